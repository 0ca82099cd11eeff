"""Folders of transformers' RAG, read and written."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    DPRQuestionEncoder,
    RagConfig,
    RagTokenForGeneration,
    RagTokenizer,
)

from ragray import huggingface_rag
from ragray.config import EncoderConfig, GeneratorConfig
from ragray.encoders import Encoder, check_towers
from ragray.generators.base import Generator
from ragray.generators.loading import load_generator
from ragray.records import InputError
from tests.huggingface_rag.peer import (
    ANSWERS,
    CLASSES,
    MAX_TOKENS,
    NUM_DOCS,
    PASSAGES_BK,
    QUESTIONS,
    Theirs,
    both_kinds,
    both_variants,
    of_equal_length,
    our_answers,
    our_nll,
    ours,
    save_rag,
)

# folders


@both_kinds
def test_a_generator_saved_by_ragray_gives_the_same_scores(rag_folder, tmp_path, kind):
    generator = ours(rag_folder(kind))
    generator.save(tmp_path)
    again = load_generator(tmp_path, GeneratorConfig(model="rag"))
    assert again.config == generator.config
    with torch.no_grad():
        assert torch.equal(our_nll(again, "rag_token"), our_nll(generator, "rag_token"))


@both_kinds
def test_saved_parts_are_plain_folders_of_transformers(rag_folder, tmp_path, kind):
    folder = rag_folder(kind)
    encoder = Encoder.load(folder, EncoderConfig(model="rag"))
    encoder.save(tmp_path / "question_encoder")
    generator = ours(folder)
    generator.save(tmp_path / "generator")
    plain = AutoModel.from_pretrained(tmp_path / "question_encoder")
    assert isinstance(plain, DPRQuestionEncoder)
    for ours_, theirs in (
        (encoder.model, plain),
        (generator.model, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "generator")),
    ):
        expected = ours_.state_dict()
        assert theirs.state_dict().keys() == expected.keys()
        assert all(torch.equal(weight, expected[name]) for name, weight in theirs.state_dict().items())


def test_question_vectors_are_those_of_the_question_encoder(rag_folder):
    folder = rag_folder("bart")
    encoder = Encoder.load(folder, EncoderConfig(model="rag", passage_model="dpr"))
    model = RagTokenForGeneration.from_pretrained(folder).eval()
    tokenizer = RagTokenizer.from_pretrained(folder).question_encoder
    with torch.no_grad():
        expected = torch.cat([model.question_encoder(**tokenizer(q, return_tensors="pt"))[0] for q in QUESTIONS])
        torch.testing.assert_close(encoder.embed_questions(QUESTIONS), expected, atol=1e-5, rtol=1e-5)
    assert encoder.preparation.pooling == "pooler"
    assert encoder.dimension == expected.shape[1]


def test_a_rag_folder_can_be_one_tower_beside_a_passage_encoder(rag_folder, tmp_path):
    folder = rag_folder("bart")
    Encoder.load(folder, EncoderConfig(model="rag")).save(tmp_path)
    check_towers(str(folder), str(tmp_path))
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**settings, "projection_dim": 8}), encoding="utf-8")
    with pytest.raises(InputError, match=r"has 32 and .* has 8"):
        check_towers(str(folder), str(tmp_path))


def test_old_folders_with_pickled_weights_load(rag_folder, tmp_path):
    folder = rag_folder("bart")
    model = RagTokenForGeneration.from_pretrained(folder)
    RagTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        assert torch.equal(our_nll(ours(tmp_path), "rag_token"), our_nll(ours(folder), "rag_token"))


def test_search_settings_in_an_old_generator_config_do_not_hinder_saving(tmp_path):
    settings = {"num_beams": 4, "max_length": 20, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "prefix": " "}
    folder = save_rag(tmp_path / "rag", "bart", "rag_token", generator_settings=settings)
    generator = ours(folder)
    generator.save(tmp_path / "generator")
    again = load_generator(tmp_path / "generator", GeneratorConfig(model="rag"))
    assert again.config.passage_template == " {title} / {text}"
    with torch.no_grad():
        assert torch.equal(our_nll(again, "rag_token"), our_nll(generator, "rag_token"))


def test_only_rag_folders_are_taken_for_such(rag_folder, tmp_path):
    assert huggingface_rag.is_rag_folder(rag_folder("bart"))
    ours(rag_folder("bart")).save(tmp_path / "generator")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_text('{"model_type": "unheard-of"}', encoding="utf-8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{", encoding="utf-8")
    for folder in (tmp_path / "generator", tmp_path, tmp_path / "strange", tmp_path / "broken", tmp_path / "none"):
        assert not huggingface_rag.is_rag_folder(folder)
    assert not huggingface_rag.is_rag_folder("nobody/no-such-model")
    assert not huggingface_rag.is_rag_folder("demo:smollm2")


@both_kinds
@pytest.mark.parametrize("part", ["model.safetensors", "generator_tokenizer", "question_encoder_tokenizer"])
def test_a_folder_that_lacks_a_part_is_an_error(tmp_path, kind, part):
    folder = save_rag(tmp_path, kind, "rag_token")
    (folder / part).rename(folder / "elsewhere")
    with pytest.raises(InputError, match=r"no (RAG model of transformers|tokenizer) at"):
        ours(folder)


def test_missing_weights_are_an_error(tmp_path):
    folder = save_rag(tmp_path, "bart", "rag_token")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["generator"]["decoder_layers"] = 3
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(InputError, match=r"lacks \d+ weights .*generator.model.decoder.layers.2"):
        ours(folder)


def test_an_attention_implementation_can_be_chosen(rag_folder):
    folder = rag_folder("bart")
    config = GeneratorConfig(model="rag")
    eager = load_generator(folder, config, attention="eager")
    assert eager.model.config._attn_implementation == "eager"
    with torch.no_grad():
        torch.testing.assert_close(our_nll(eager, "rag_token"), our_nll(load_generator(folder, config), "rag_token"))
    with pytest.raises(InputError, match="can't use attention 'telepathy'"):
        load_generator(folder, config, attention="telepathy")


# export


def export(folder: Path, encoder: Encoder, generator: Generator, variant: str) -> None:
    huggingface_rag.export(
        folder,
        encoder.model,
        encoder.tokenizer,
        generator.model,
        generator.prompt.tokenizer,
        generator.config,
        variant,
        NUM_DOCS,
        encoder.preparation.temperature,
    )


@both_kinds
@both_variants
def test_transformers_gives_an_exported_model_the_same_loss(rag_folder, tmp_path, kind, variant):
    folder = rag_folder(kind)
    passages_BK = of_equal_length(ours(folder))
    export(tmp_path, Encoder.load(folder, EncoderConfig(model="rag")), ours(folder), variant)
    theirs, generator = Theirs.load(tmp_path, variant, passages_BK=passages_BK), ours(tmp_path)
    assert theirs.model.config.architectures == [CLASSES[variant].__name__]
    start = generator.model.config.decoder_start_token_id
    with torch.no_grad():
        expected = theirs.nll([(start, *target) for target in generator.prompt.targets(ANSWERS)])
        for same in (ours(folder), generator):
            actual = our_nll(same, variant, passages_BK=passages_BK)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    answers = our_answers(generator, variant, passages_BK, max_new_tokens=MAX_TOKENS, num_beams=3)
    assert theirs.generate(num_beams=3, max_length=MAX_TOKENS + 1) == [answer for row in answers for answer in row]


def test_templates_of_a_generator_trained_by_ragray_are_exported(rag_folder, tmp_path):
    plain = ours(rag_folder("bart"))
    templates = {"passage_template": "read: {title} | {text} {{", "question_template": "}} ? {question}"}
    ours(rag_folder("bart")).save(tmp_path / "generator")
    saved = json.loads((tmp_path / "generator" / "ragray_generator.json").read_text(encoding="utf-8"))
    saved |= {**templates, "max_prompt_tokens": 90, "decoder_start": 0}
    (tmp_path / "generator" / "ragray_generator.json").write_text(json.dumps(saved), encoding="utf-8")
    generator = load_generator(tmp_path / "generator", plain.config)
    export(tmp_path / "rag", Encoder.load(rag_folder("bart"), EncoderConfig(model="rag")), generator, "rag_token")
    config = RagConfig.from_pretrained(tmp_path / "rag")
    assert (config.generator.prefix, config.title_sep, config.doc_sep) == ("read: ", " | ", " {} ? ")
    assert config.architectures == ["RagTokenForGeneration"]
    assert (config.max_combined_length, config.n_docs, config.retrieval_vector_size) == (90, NUM_DOCS, 32)
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (0, 1, 2)
    assert (config.decoder_start_token_id, config.generator.decoder_start_token_id) == (0, 0)
    again = ours(tmp_path / "rag")
    assert again.prompt.rows(QUESTIONS, PASSAGES_BK) == generator.prompt.rows(QUESTIONS, PASSAGES_BK)


@pytest.mark.parametrize(
    "templates",
    [
        {"question_template": " // {question}\nAnswer:"},
        {"passage_template": "{text} ({title})"},
        {"passage_template": "{text}"},
        {"passage_template": "{title}: {title} / {text}"},
    ],
)
def test_templates_that_the_format_cannot_express_are_refused(rag_folder, tmp_path, templates):
    generator = ours(rag_folder("bart"))
    generator.prompt.config = generator.config.model_copy(update=templates)
    with pytest.raises(InputError, match="reads title, text and question in this order"):
        export(tmp_path, Encoder.load(rag_folder("bart"), EncoderConfig(model="rag")), generator, "rag_token")
    assert not list(tmp_path.iterdir())


def test_models_that_the_format_cannot_hold_are_refused(rag_folder, tmp_path):
    generator, encoder = ours(rag_folder("bart")), Encoder.load(rag_folder("bart"), EncoderConfig(model="rag"))
    decoder_only = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=False, model_type="llama"))
    bert = SimpleNamespace(config=SimpleNamespace(model_type="bert"))
    arguments = (generator.prompt.tokenizer, generator.config, "rag_token", NUM_DOCS, 1.0)
    with pytest.raises(InputError, match="the generator is a llama model"):
        huggingface_rag.export(tmp_path, encoder.model, encoder.tokenizer, decoder_only, *arguments)
    with pytest.raises(InputError, match="the question encoder is a bert model"):
        huggingface_rag.export(tmp_path, bert, encoder.tokenizer, generator.model, *arguments)
    with pytest.raises(InputError, match=r"the prior's temperature is 0\.5"):
        huggingface_rag.export(tmp_path, encoder.model, encoder.tokenizer, generator.model, *arguments[:-1], 0.5)
    assert not list(tmp_path.iterdir())
