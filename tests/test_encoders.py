from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ragray.config import EncoderConfig
from ragray.encoders import Encoder
from ragray.records import InputError, Passage


def load(folder, **settings):
    return Encoder.load(folder, EncoderConfig(model="tiny", **settings))


def plain_vector(encoder, text, pooling="mean"):
    """One text alone, without padding."""
    tokens = encoder.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        hidden_LD = encoder.model(**tokens).last_hidden_state[0]
    return (hidden_LD[0] if pooling == "cls" else hidden_LD.mean(0)).numpy()


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


def test_pooling_and_normalisation_follow_the_settings(encoder_folder, questions):
    encoder = load(encoder_folder, pooling="cls", normalize=True)
    expected = np.array([plain_vector(encoder, question, "cls") for question in questions])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.embed_questions(questions).detach(), expected, atol=1e-5)


def test_long_texts_are_cut_at_the_limits(encoder_folder):
    encoder = load(encoder_folder, max_passage_tokens=10, max_question_tokens=5)
    assert [len(row) for row in encoder.tokenize_questions(["Oslo", "Oslo " * 50])] == [3, 5]
    assert [len(row) for row in encoder.tokenize_passages([Passage("1", "Oslo", "Lima " * 50)])] == [10]


def test_nothing_in_nothing_out(encoder):
    assert encoder.embed_passages([]).shape == (0, encoder.dimension)


def test_text_preparation_is_saved_with_the_model_and_wins_over_other_settings(encoder_folder, tmp_path, questions):
    settings = {"pooling": "cls", "normalize": True, "temperature": 0.05, "question_template": "Q: {question}"}
    encoder = load(encoder_folder, **settings)
    encoder.save(tmp_path)
    again = load(tmp_path, pooling="mean", normalize=False, temperature=3.0, max_question_tokens=7)
    assert again.preparation == encoder.preparation
    torch.testing.assert_close(again.embed_questions(questions), encoder.embed_questions(questions))


@pytest.mark.parametrize(
    ("pooling_settings", "modules", "expected"),
    [
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling"], ("mean", False)),
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling", "Normalize"], ("mean", True)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["Pooling"], ("cls", False)),
    ],
)
def test_a_sentence_transformers_folder_says_how_it_pools(encoder, tmp_path, pooling_settings, modules, expected):
    write_sentence_transformers_files(encoder, tmp_path, pooling_settings, modules)
    preparation = load(tmp_path).preparation
    assert (preparation.pooling, preparation.normalize) == expected
    overruled = load(tmp_path, pooling="cls", normalize=False).preparation
    assert (overruled.pooling, overruled.normalize) == ("cls", False)


def test_other_pooling_is_refused(encoder, tmp_path):
    write_sentence_transformers_files(encoder, tmp_path, {"pooling_mode_max_tokens": True}, ["Pooling"])
    with pytest.raises(InputError, match="only mean and cls pooling"):
        load(tmp_path)


def write_sentence_transformers_files(encoder, folder, pooling_settings, modules):
    encoder.model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling_settings))
    paths = {"Pooling": "1_Pooling"}
    listing = [{"type": f"sentence_transformers.models.{name}", "path": paths.get(name, "")} for name in modules]
    (folder / "modules.json").write_text(json.dumps(listing))


def test_a_folder_without_a_model_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=f"no encoder at {tmp_path}"):
        load(tmp_path)
