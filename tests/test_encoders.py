from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    DistilBertConfig,
    DistilBertModel,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    DPRReader,
    ModernBertConfig,
    ModernBertModel,
    Qwen2Model,
    RobertaConfig,
    RobertaModel,
    XLNetConfig,
    XLNetModel,
)

from ragray.config import EncoderConfig
from ragray.encoders import PREPARATION_FILE, Encoder, check_towers
from ragray.records import InputError, Passage


def load(folder, **settings):
    return Encoder.load(folder, EncoderConfig(model="tiny", **settings))


def plain_vector(encoder, text, pooling="mean"):
    """One text alone, without padding."""
    tokens = encoder.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        hidden_LD = encoder.model(**tokens).last_hidden_state[0]
    return {"mean": hidden_LD.mean(0), "cls": hidden_LD[0], "last": hidden_LD[-1]}[pooling].numpy()


def test_vectors_are_those_of_each_text_alone(encoder, passages):
    expected = [plain_vector(encoder, f"{p.title}. {p.text}") for p in passages]
    actual_ND = encoder.embed_passages(passages)
    assert actual_ND.dtype == np.float32
    assert actual_ND.shape == (len(passages), encoder.dimension)
    np.testing.assert_allclose(actual_ND, expected, atol=1e-5)


def test_neither_batch_order_nor_token_budget_changes_a_vector(encoder, passages):
    expected_ND = encoder.embed_passages(passages)
    np.testing.assert_allclose(encoder.embed_passages(passages[::-1])[::-1], expected_ND, atol=1e-5)
    for budget in (1, 40, 10_000):
        np.testing.assert_allclose(encoder.embed_passages(passages, budget), expected_ND, atol=1e-5)


def test_question_vectors_have_a_gradient_and_equal_each_question_alone(encoder, questions):
    vectors_BD = encoder.embed_questions(questions)
    assert vectors_BD.requires_grad
    expected = [plain_vector(encoder, question) for question in questions]
    np.testing.assert_allclose(vectors_BD.detach(), expected, atol=1e-5)


def test_one_tower_reads_questions_and_passages_alike(encoder_folder):
    encoder = load(encoder_folder, passage_template="{title} {text}", question_template="Oslo {question}")
    question_D = encoder.embed_questions(["is it?"])[0].detach()
    np.testing.assert_allclose(encoder.embed_passages([Passage("1", "Oslo", "is it?")])[0], question_D, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_and_normalisation_follow_the_settings(encoder_folder, questions, pooling, normalize):
    encoder = load(encoder_folder, pooling=pooling, normalize=normalize)
    expected = np.array([plain_vector(encoder, question, pooling) for question in questions])
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.embed_questions(questions).detach(), expected, atol=1e-5)


def test_long_texts_are_cut_at_the_limits(encoder_folder):
    encoder = load(encoder_folder, max_passage_tokens=10, max_question_tokens=5)
    assert [len(row) for row in encoder.tokenize_questions(["Oslo", "Oslo " * 50])] == [3, 5]
    assert [len(row) for row in encoder.tokenize_passages([Passage("1", "Oslo", "Lima " * 50)])] == [10]


def test_a_model_that_says_no_limit_has_that_of_its_positions(encoder_folder, tmp_path):
    assert load(encoder_folder).preparation.max_passage_tokens == 256
    assert load(encoder_folder).preparation.max_question_tokens == 256
    shutil.copytree(encoder_folder, tmp_path / "model")
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 99}))
    assert load(tmp_path / "model").preparation.max_passage_tokens == 99
    assert load(tmp_path / "model", max_passage_tokens=200).preparation.max_passage_tokens == 200


def test_a_limit_over_the_positions_is_refused(encoder_folder):
    assert load(encoder_folder, max_passage_tokens=256).preparation.max_passage_tokens == 256
    with pytest.raises(InputError, match=r"encoder.max_passage_tokens=257 is over the 256 positions"):
        load(encoder_folder, max_passage_tokens=257)
    with pytest.raises(InputError, match=r"encoder.max_question_tokens=300 is over the 256 positions"):
        load(encoder_folder, max_question_tokens=300)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_text_as_long_as_roberta_has_positions_for_can_be_read(encoder_folder, tmp_path, padding):
    """Its positions start after that of padding."""
    shape = {**SIZE, "intermediate_size": 48, "type_vocab_size": 1, "max_position_embeddings": 40}
    RobertaModel(RobertaConfig(**shape, pad_token_id=padding)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder_folder).save_pretrained(tmp_path)
    encoder = load(tmp_path)
    assert encoder.preparation.max_passage_tokens == 39 - padding
    encoder.tokenizer.pad_token_id = padding
    assert np.isfinite(encoder.embed_passages([Passage("1", "Oslo", "Lima " * 50)])).all()


def test_a_model_without_any_limit_needs_the_setting(encoder_folder, tmp_path):
    settings = XLNetConfig(vocab_size=300, d_model=32, n_layer=1, n_head=2, d_inner=48)
    XLNetModel(settings).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder_folder).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"doesn't say how many tokens it can read: set encoder.max_passage_tokens"):
        load(tmp_path)
    assert load(tmp_path, max_passage_tokens=9, max_question_tokens=9).preparation.max_passage_tokens == 9


def test_nothing_in_nothing_out(encoder):
    assert encoder.embed_passages([]).shape == (0, encoder.dimension)


def test_text_preparation_is_saved_with_the_model_and_wins_over_other_settings(encoder_folder, tmp_path, questions):
    settings = {"pooling": "cls", "normalize": True, "temperature": 0.05, "question_template": "Q: {question}"}
    encoder = load(encoder_folder, **settings)
    encoder.save(tmp_path)
    again = load(tmp_path, pooling="mean", normalize=False, temperature=3.0, max_question_tokens=7)
    assert again.preparation == encoder.preparation
    torch.testing.assert_close(again.embed_questions(questions), encoder.embed_questions(questions))


def test_a_folder_without_a_model_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=f"no encoder at {tmp_path}"):
        load(tmp_path)


def test_a_folder_that_lacks_weights_of_its_model_is_refused(encoder, tmp_path):
    """Transformers alone would fill them with random ones."""
    encoder.tokenizer.save_pretrained(tmp_path)
    weights = encoder.model.state_dict()
    del weights["encoder.layer.1.output.dense.weight"]
    encoder.model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(
        InputError, match=r"lacks 1 weights of a BertModel, such as encoder.layer.1.output.dense.weight"
    ):
        load(tmp_path)


SIZE = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ROBERTA = RobertaConfig(**SIZE, intermediate_size=48, type_vocab_size=1, pad_token_id=0, initializer_range=0.3)
DISTILBERT = DistilBertConfig(vocab_size=300, dim=32, n_layers=2, n_heads=4, hidden_dim=48, initializer_range=0.3)
MODERNBERT = ModernBertConfig(**SIZE, intermediate_size=48, pad_token_id=0, cls_token_id=2, sep_token_id=3)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize(
    "model",
    [RobertaModel(ROBERTA), DistilBertModel(DISTILBERT), ModernBertModel(MODERNBERT)],
    ids=["roberta", "distilbert", "modernbert"],
)
def test_encoders_of_other_families_give_the_vectors_of_each_text_alone(
    model, pooling, encoder_folder, tmp_path, passages
):
    """They know no token types, which their tokenizers may give all the same."""
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder_folder).save_pretrained(tmp_path)
    for settings in ({}, {"title_as_pair": True}):
        encoder = load(tmp_path, pooling=pooling, passage_template="{title} {text}", **settings)
        expected = []
        for passage in passages:
            texts = [passage.title, passage.text] if settings else [f"{passage.title} {passage.text}"]
            ids = torch.tensor([encoder.tokenizer(*texts).input_ids])
            with torch.no_grad():
                hidden_LD = model.eval()(input_ids=ids).last_hidden_state[0]
            expected.append((hidden_LD[0] if pooling == "cls" else hidden_LD.mean(0)).numpy())
        np.testing.assert_allclose(encoder.embed_passages(passages), expected, atol=1e-5)
        assert encoder.dimension == 32


@pytest.fixture
def decoder_folder(qwen2_folder, byte_tokenizer, tmp_path):
    """Of a decoder-only embedder: its tokenizer pads on the left and ends every text."""
    Qwen2Model.from_pretrained(qwen2_folder).save_pretrained(tmp_path / "decoder")
    tokenizer = byte_tokenizer(["<end>"], "$A <end>", eos_token="<end>", pad_token="<end>", padding_side="left")
    tokenizer.save_pretrained(tmp_path / "decoder")
    return tmp_path / "decoder"


def test_a_decoder_gives_the_vector_of_the_last_token_whatever_the_padding(decoder_folder, passages):
    model, tokenizer = Qwen2Model.from_pretrained(decoder_folder).eval(), AutoTokenizer.from_pretrained(decoder_folder)
    inputs = tokenizer([p.text for p in passages], padding=True, truncation=True, max_length=60, return_tensors="pt")
    assert tokenizer.padding_side == "left"
    assert set(inputs.input_ids[:, -1].tolist()) == {tokenizer.eos_token_id}  # of the cut ones too
    assert inputs.attention_mask[:, 0].tolist().count(1) in range(1, len(passages))
    with torch.no_grad():
        expected_ND = model(**inputs).last_hidden_state[:, -1].numpy()
    encoder = load(decoder_folder, pooling="last", passage_template="{text}", max_passage_tokens=60)
    np.testing.assert_allclose(encoder.embed_passages(passages), expected_ND, atol=1e-5)
    np.testing.assert_allclose(encoder.embed_passages(passages, 1), expected_ND, atol=1e-5)


# DPR


@pytest.fixture(params=[0, 24], ids=["plain", "projected"])
def dpr_folders(request, tmp_path, passages, questions):
    return {
        kind: save_dpr(tmp_path / kind.__name__, kind, [*passages, *questions], request.param)
        for kind in (DPRQuestionEncoder, DPRContextEncoder)
    }


def save_dpr(folder, kind, texts, projection_dim=0, positions=128):
    """A tiny random model, in the layout of the facebook/dpr-* repositories."""
    letters = sorted(set(str(texts).lower()) - {" "})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), "capital"]
    torch.manual_seed(len(kind.__name__))
    shape = {**SIZE, "vocab_size": len(words), "intermediate_size": 48, "max_position_embeddings": positions}
    kind(DPRConfig(**shape, projection_dim=projection_dim, initializer_range=0.3)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 512}))
    return folder


def test_a_dpr_passage_encoder_reads_title_and_text_as_a_pair(dpr_folders, passages):
    folder = dpr_folders[DPRContextEncoder]
    reference, tokenizer = DPRContextEncoder.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    pairs = [tokenizer(p.title, p.text, truncation="only_second", max_length=40, return_tensors="pt") for p in passages]
    assert {pair.input_ids.shape[1] == 40 for pair in pairs} == {True, False}  # some are cut
    with torch.no_grad():
        expected = [reference(**pair).pooler_output[0].numpy() for pair in pairs]
    encoder = load(folder, max_passage_tokens=40)
    vectors_ND = encoder.embed_passages(passages, tokens_per_batch=100)
    np.testing.assert_allclose(vectors_ND, expected, rtol=1e-6, atol=1e-6)
    assert encoder.dimension == vectors_ND.shape[1] == (reference.config.projection_dim or 32)


def test_a_dpr_question_encoder_gives_its_poolers_output_with_a_gradient(dpr_folders, questions):
    folder = dpr_folders[DPRQuestionEncoder]
    reference, tokenizer = DPRQuestionEncoder.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    expected = [reference(**tokenizer(q, return_tensors="pt")).pooler_output[0].detach().numpy() for q in questions]
    encoder = load(folder)
    weights = encoder.trainable(1.0)
    vectors_BD = encoder.embed_questions(questions)
    np.testing.assert_allclose(vectors_BD.detach(), expected, rtol=1e-6, atol=1e-6)
    vectors_BD.square().sum().backward()
    assert all(weight.grad is not None for weight in weights)


def test_a_dpr_model_is_the_same_after_saving(dpr_folders, tmp_path, passages, questions):
    for kind, embed, texts in (
        (DPRContextEncoder, Encoder.embed_passages, passages),
        (DPRQuestionEncoder, Encoder.embed_questions, questions),
    ):
        encoder = load(dpr_folders[kind])
        encoder.save(tmp_path / "saved")
        again = load(tmp_path / "saved", title_as_pair=False)
        assert type(again.model) is kind
        assert again.preparation == encoder.preparation
        np.testing.assert_array_equal(*(torch.as_tensor(embed(e, texts)).detach() for e in (encoder, again)))


def test_old_dpr_weights_are_read(dpr_folders, passages):
    """Those of facebook/dpr-* are pickled, and have a pooler and position ids that transformers has dropped since."""
    folder = dpr_folders[DPRContextEncoder]
    encoder = load(folder)
    weights = encoder.model.state_dict()
    weights["ctx_encoder.bert_model.pooler.dense.weight"] = torch.zeros(32, 32)
    weights["ctx_encoder.bert_model.embeddings.position_ids"] = torch.arange(128)[None]
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    np.testing.assert_array_equal(load(folder).embed_passages(passages), encoder.embed_passages(passages))


def test_dpr_reads_as_many_tokens_as_it_was_trained_with(tmp_path, passages):
    folder = save_dpr(tmp_path, DPRQuestionEncoder, passages, positions=512)
    preparation = load(folder).preparation
    assert (preparation.max_question_tokens, preparation.max_passage_tokens) == (256, 256)


def test_the_text_of_a_pair_is_cut_before_its_title(dpr_folders):
    encoder = load(dpr_folders[DPRContextEncoder], max_passage_tokens=8)

    def read(title, text):
        (tokens,) = encoder.tokenize_passages([Passage("1", title, text)])
        return encoder.tokenizer.decode(tokens.ids), tokens.types

    capital = "capital "
    assert read(capital * 2, capital) == ("[CLS] capital capital [SEP] capital [SEP]", [0, 0, 0, 0, 1, 1])
    assert read(capital, capital * 9) == (f"[CLS] capital [SEP] {capital * 4}[SEP]", [0, 0, 0, 1, 1, 1, 1, 1])
    assert read(capital * 4, capital * 9) == (f"[CLS] {capital * 4}[SEP] capital [SEP]", [0] * 6 + [1, 1])
    assert read(capital * 5, capital * 9) == (f"[CLS] {capital * 5}[SEP] [SEP]", [0] * 7 + [1])
    assert read(capital * 9, capital) == (f"[CLS] {capital * 5}[SEP] [SEP]", [0] * 7 + [1])
    assert read("", capital * 9) == (f"[CLS] [SEP] {capital * 5}[SEP]", [0, 0] + [1] * 6)


def test_a_dpr_tower_refuses_the_texts_of_the_other(dpr_folders, passages, questions):
    with pytest.raises(InputError, match=r"set encoder.passage_model to its DPRContextEncoder"):
        load(dpr_folders[DPRQuestionEncoder]).embed_passages(passages)
    with pytest.raises(InputError, match=r"set encoder.model to a DPRQuestionEncoder"):
        load(dpr_folders[DPRContextEncoder]).embed_questions(questions)


def test_a_dpr_reader_is_no_encoder(tmp_path, passages):
    folder = save_dpr(tmp_path, DPRReader, passages)
    with pytest.raises(InputError, match=r"lacks \d+ weights of a DPRQuestionEncoder, .*\['DPRReader'\]"):
        load(folder)


def test_pooling_must_suit_the_model(dpr_folders, encoder_folder):
    for pooling in ("mean", "cls"):
        with pytest.raises(InputError, match=f"encoder.pooling={pooling} doesn't suit .*, a dpr model"):
            load(dpr_folders[DPRQuestionEncoder], pooling=pooling)
    assert load(dpr_folders[DPRQuestionEncoder], pooling="pooler").preparation.pooling == "pooler"
    with pytest.raises(InputError, match=r"encoder.pooling=pooler doesn't suit .*, a bert model"):
        load(encoder_folder, pooling="pooler")


def test_towers_need_vectors_of_one_dimension(dpr_folders, encoder_folder):
    question, passage = map(str, dpr_folders.values())
    check_towers(question, passage)
    if load(passage).dimension == 24:
        with pytest.raises(InputError, match=f"encoder.model={encoder_folder} has 32 and .*={passage} has 24"):
            check_towers(str(encoder_folder), passage)


def test_a_preparation_saved_before_there_were_pairs_still_loads(encoder, tmp_path, passages):
    encoder.save(tmp_path)
    file = tmp_path / PREPARATION_FILE
    old = {name: value for name, value in json.loads(file.read_text()).items() if name != "title_as_pair"}
    file.write_text(json.dumps(old))
    assert load(tmp_path).preparation == encoder.preparation


# The temperature


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.05, 0.07, 1.0, 1.3, 20.0])
def test_a_temperature_that_is_not_trained_is_the_configured_one_exactly(encoder_folder, temperature, dtype, tmp_path):
    encoder = load(encoder_folder, temperature=temperature).to(dtype)
    assert torch.equal(encoder.temperature, torch.tensor(temperature))
    assert not encoder.temperature.requires_grad
    encoder.save(tmp_path)
    assert load(tmp_path).preparation.temperature == temperature


def test_a_trained_temperature_follows_its_gradient_and_is_saved(encoder_folder, tmp_path):
    encoder = load(encoder_folder, temperature=0.5)
    weights = encoder.trainable(1.0)
    assert not encoder.log_temperature.requires_grad
    (weight,) = encoder.train_temperature()
    assert dict(encoder.named_parameters())["log_temperature"] is weight
    assert all(weight is not other for other in weights)
    (3 * encoder.temperature).backward()
    assert weight.grad == pytest.approx(3 * 0.5)  # of exp
    with torch.no_grad():
        weight.fill_(-1.0)
    assert float(encoder.temperature.detach()) == pytest.approx(np.exp(-1), rel=1e-6)
    encoder.save(tmp_path)
    again = load(tmp_path)
    assert float(again.temperature) == pytest.approx(np.exp(-1), rel=1e-6)
    assert float(again.log_temperature) == pytest.approx(-1, rel=1e-6)


def test_a_trained_temperature_survives_a_state_dict(encoder_folder):
    trained, fresh = (load(encoder_folder, temperature=temperature) for temperature in (0.5, 2.0))
    with torch.no_grad():
        trained.log_temperature += 0.25
    fresh.load_state_dict(trained.state_dict())
    torch.testing.assert_close(fresh.temperature, trained.temperature)
