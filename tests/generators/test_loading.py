"""A model folder -> the generator that fits it, or a refusal that names the folder."""

from __future__ import annotations

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, BertConfig, BertLMHeadModel, LlamaForCausalLM

from ragray.generators.causal import CausalGenerator
from ragray.generators.seq2seq import Seq2SeqGenerator
from ragray.records import InputError


def test_the_folder_says_which_generator_it_is(generator, kind):
    assert type(generator) is (Seq2SeqGenerator if kind in ("bart", "t5") else CausalGenerator)
    assert generator.prompt.joint == (kind in ("bart", "t5"))
    assert not any(module.training for module in generator.modules())


@torch.no_grad()
def test_a_saved_generator_scores_as_before_and_is_a_plain_folder(
    load, kind, tmp_path, questions, passages_BK, answers
):
    generator = load(kind, question_template="Q: {question} A:", max_passage_tokens=30)
    generator.save(tmp_path)
    again = load(tmp_path, max_passage_tokens=99)
    assert again.config == generator.config
    torch.testing.assert_close(
        again.target_logprobs(questions, passages_BK, answers),
        generator.target_logprobs(questions, passages_BK, answers),
    )
    plain_class = AutoModelForSeq2SeqLM if kind in ("bart", "t5") else AutoModelForCausalLM
    plain = plain_class.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(weight, plain[name]) for name, weight in generator.model.state_dict().items())


def test_a_model_is_loaded_in_the_precision_asked_for(load, kind):
    generator = load(kind, torch.bfloat16)
    assert generator.dtype == torch.bfloat16
    assert {weight.dtype for weight in generator.parameters()} == {torch.bfloat16}


def test_an_empty_folder_is_refused_by_name(load, tmp_path):
    with pytest.raises(InputError, match=f"no generator at {tmp_path}"):
        load(tmp_path)


def test_a_model_without_a_tokenizer_is_refused_by_name(load, kind, tmp_path):
    load(kind).model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"no tokenizer at {tmp_path}"):
        load(tmp_path)


def test_an_encoder_is_refused_by_name(load, encoder_folder):
    with pytest.raises(
        InputError, match=rf"no generator at {encoder_folder}: it lacks \d+ weights of one, such as cls"
    ):
        load(encoder_folder)


def test_a_language_model_that_sees_what_comes_after_is_refused(load, byte_tokenizer, tmp_path):
    tokenizer = byte_tokenizer(["</s>"], eos_token="</s>")
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = BertConfig(vocab_size=len(tokenizer), initializer_range=0.3, **size)
    BertLMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"tiny is an encoder \(BertLMHeadModel\), whose tokens see those after"):
        load(tmp_path)


def test_a_model_without_a_head_is_refused_and_not_given_a_random_one(load, generator_folder, tmp_path):
    folder = shutil.copytree(generator_folder, tmp_path / "headless")
    load(generator_folder).model.base_model.save_pretrained(folder)
    with pytest.raises(InputError, match=rf"no generator at {folder}: it lacks 1 weights of one, such as lm_head"):
        load(folder)


def test_a_broken_config_is_refused_by_name(load, generator_folder, tmp_path):
    folder = shutil.copytree(generator_folder, tmp_path / "broken")
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=f"no generator at {folder}"):
        load(folder)


def test_an_attention_that_the_model_cant_use_is_refused_by_name(load, gemma2_folder):
    with pytest.raises(InputError, match=rf"no generator at {gemma2_folder}: .*scaled_dot_product_attention"):
        load(gemma2_folder, attention="sdpa")


@pytest.mark.parametrize("change", [lambda logits: logits * 1.5, lambda logits: logits.clamp(max=0.5)])
def test_a_head_that_does_something_unknown_is_refused(load, monkeypatch, change):
    forward = LlamaForCausalLM.forward

    def changed(*args, **options):
        output = forward(*args, **options)
        output.logits = change(output.logits)
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", changed)
    with pytest.raises(InputError, match="LlamaForCausalLM computes its logits in a way that ragray doesn't know"):
        load("llama")


def test_a_question_part_without_text_is_refused(load, passages):
    generator = load("llama", question_template="{question}")
    for read in (
        lambda: generator.prefill([""], [[passages[0]]]),
        lambda: generator.target_logprobs(["Oslo?", ""], [[passages[0]]] * 2, ["a", "b"]),
    ):
        with pytest.raises(InputError, match=r"question came out empty: generator\.question_template"):
            read()


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_decoding_starts_from_the_settings_token_or_the_models(load, kind):
    generator = load(kind)
    assert generator.decoder_start == generator.model.config.decoder_start_token_id
    assert load(kind, decoder_start=7).decoder_start == 7
    generator.model.config.decoder_start_token_id = None
    with pytest.raises(InputError, match=r"tiny names no decoder_start_token_id: set generator\.decoder_start"):
        _ = generator.decoder_start


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_the_decoder_start_is_what_answers_are_scored_after(load, kind, plain_logits, questions, passages_BK):
    generator = load(kind, decoder_start=7)
    (row, *_) = generator.prompt.rows(questions, passages_BK)
    expected = plain_logits(generator, row, [])[0]
    torch.testing.assert_close(generator.prefill(questions, passages_BK).logits_RV[0], expected, atol=1e-3, rtol=1e-4)
    other = load(kind).prefill(questions, passages_BK).logits_RV[0]
    assert not torch.allclose(other, expected, atol=1e-1)


def test_the_models_own_end_tokens_end_answers_too(load, kind):
    generator = load(kind)
    generator.model.generation_config.eos_token_id = [generator.prompt.end_id, 77, 78]
    assert generator.stop_ids == (*generator.prompt.stop_ids, 77, 78)
    generator.model.generation_config.eos_token_id = None
    assert generator.stop_ids == generator.prompt.stop_ids
