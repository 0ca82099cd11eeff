"""Folders of sentence-transformers: what is read from them, and that the vectors are the library's own."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from ragray.config import EncoderConfig
from ragray.encoders import Encoder
from ragray.records import InputError
from ragray.sentence_transformers_folder import ModelCard, read

OLD_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
PROMPTS = {"query": "query {Oslo}: ", "document": "", "passage": "Nairobi; ", "other": "mountain "}


@pytest.fixture
def write(encoder_folder, tmp_path):
    """Writes the encoder as a folder of the library: ``old`` as before version 6, or ``new``."""

    def write(
        style="new", pooling="mean", normalize=False, max_tokens=None, lower_case=False, prompts=None, default=""
    ):
        folder = tmp_path / "model"
        shutil.copytree(encoder_folder, folder)
        parts = ["Transformer", "Pooling"] + ["Normalize"] * normalize
        homes = {"Transformer": "base", "Pooling": "sentence_transformer", "Normalize": "base"}
        modules = []
        for number, part in enumerate(parts):
            kind = f"models.{part}" if style == "old" else f"{homes[part]}.modules.{part.lower()}.{part}"
            path = f"{number}_{part}" if number else ""
            (folder / path).mkdir(exist_ok=True)
            modules.append({"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"})
        put(folder / "modules.json", modules)
        flags = {flag: mode == pooling for mode, flag in OLD_FLAGS.items()}
        if style == "old":
            put(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **flags})
            put(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": lower_case})
        else:
            modes = {"embedding_dimension": 32, "pooling_mode": pooling, "include_prompt": True}
            put(folder / "1_Pooling" / "config.json", modes)
            ways = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
            task = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
            put(folder / "sentence_bert_config.json", {**task, "modality_config": ways})
            change(folder / "tokenizer_config.json", model_max_length=max_tokens or 512)
        if prompts:
            said = {"prompts": prompts, "default_prompt_name": default or None, "similarity_fn_name": "cosine"}
            put(folder / "config_sentence_transformers.json", said)
        return folder

    return write


def put(file, content):
    file.write_text(json.dumps(content))


def change(file, **settings):
    put(file, {**json.loads(file.read_text()), **settings})


def load(folder, **settings):
    return Encoder.load(folder, EncoderConfig(model="tiny", **settings))


def test_a_folder_without_modules_says_nothing(encoder_folder):
    assert read(encoder_folder) == ModelCard("mean", False, "", "", None, None, False)


@pytest.mark.parametrize("style", ["old", "new"])
@pytest.mark.parametrize(("mode", "ours"), [("mean", "mean"), ("cls", "cls"), ("lasttoken", "last")])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_folder_says_how_it_pools_and_whether_it_normalizes(write, style, mode, ours, normalize):
    folder = write(style, mode, normalize)
    preparation = load(folder).preparation
    assert (preparation.pooling, preparation.normalize) == (ours, normalize)
    overruled = load(folder, pooling="cls", normalize=not normalize).preparation
    assert (overruled.pooling, overruled.normalize) == ("cls", not normalize)


def test_flags_that_are_all_missing_mean_mean(write):
    folder = write("old")
    put(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32})
    assert read(folder).pooling == "mean"


@pytest.mark.parametrize("style", ["old", "new"])
def test_other_pooling_is_refused_by_name_unless_overruled(write, style):
    folder = write(style, "max")
    with pytest.raises(InputError, match="pools by max, but ragray by one of mean, cls, lasttoken"):
        load(folder)
    assert load(folder, pooling="mean").preparation.pooling == "mean"


@pytest.mark.parametrize("settings", [{"pooling_mode": ["mean", "cls"]}, {"pooling_mode_mean_tokens": True}])
def test_two_poolings_at_once_are_refused(write, settings):
    folder = write("old", "cls")
    change(folder / "1_Pooling" / "config.json", **settings)
    with pytest.raises(InputError, match=r"pools by (mean \+ cls|cls \+ mean)"):
        load(folder)


def test_pooling_without_the_prompt_is_refused(write):
    folder = write(prompts=PROMPTS)
    change(folder / "1_Pooling" / "config.json", include_prompt=False)
    for settings in ({}, {"pooling": "mean"}):
        with pytest.raises(InputError, match="include_prompt is false"):
            load(folder, **settings)


@pytest.mark.parametrize(
    "parts",
    [
        ["Transformer", "Pooling", "Dense"],
        ["Transformer", "Normalize", "Pooling"],
        ["StaticEmbedding"],
        ["Router", "Pooling"],
    ],
)
def test_other_modules_are_refused_by_name(write, parts):
    folder = write()
    put(folder / "modules.json", [{"path": "", "type": f"sentence_transformers.models.{part}"} for part in parts])
    with pytest.raises(InputError, match=f"lists {', '.join(parts)}, but ragray runs Transformer, Pooling"):
        load(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_expansion": {"length": 8}}, "doesn't follow query_expansion="),
        ({"processing_kwargs": {"text": {"max_length": 9}}}, "doesn't follow processing_kwargs="),
        ({"transformer_task": "fill-mask"}, "only transformer_task=feature-extraction"),
        ({"modality_config": {"message": {"method_output_name": "last_hidden_state"}}}, "modality_config reads texts"),
        ({"modality_config": {"text": {"method_output_name": "logits"}}}, "modality_config reads texts"),
    ],
)
def test_settings_of_the_transformer_that_cannot_be_followed_are_refused(write, settings, message):
    folder = write()
    change(folder / "sentence_bert_config.json", **settings)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_normalizing_tokens_is_refused(write):
    folder = write(normalize=True)
    put(folder / "2_Normalize" / "config.json", {"module_input_name": "token_embeddings"})
    with pytest.raises(InputError, match="module_input_name=token_embeddings"):
        load(folder)


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({"query": "q: ", "document": "d: ", "passage": "p: "}, None, ("q: ", "d: ")),
        ({"query": "q: ", "document": "", "passage": "p: "}, None, ("q: ", "p: ")),
        ({"query": "q: ", "corpus": "c: "}, "query", ("q: ", "c: ")),
        ({"query": "q: ", "document": ""}, "query", ("q: ", "")),  # a question's prompt isn't for passages
        ({"query": "", "document": "d: "}, "document", ("", "d: ")),
        ({"query": "", "document": "", "all": "a: "}, "all", ("a: ", "a: ")),
        ({"query": "q: ", "all": "a: "}, "all", ("q: ", "a: ")),
        ({"all": "a: "}, None, ("", "")),
        ({}, "gone", ("", "")),
        (None, None, ("", "")),
    ],
)
def test_each_kind_of_text_gets_its_prompt(write, prompts, default, expected):
    folder = write()
    put(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default})
    card = read(folder)
    assert (card.question_prompt, card.passage_prompt) == expected


def test_prompts_are_part_of_the_templates_unless_these_are_set(write):
    folder = write(prompts={"query": "{Q}: ", "document": "D: "})
    preparation = load(folder).preparation
    assert preparation.question_template == "{{Q}}: {question}"
    assert preparation.passage_template == "D: {title}. {text}"
    preparation = load(folder, question_template="{question}", passage_template="{text}").preparation
    assert (preparation.question_template, preparation.passage_template) == ("{question}", "{text}")


def test_limits_are_the_folders_unless_they_are_set(write):
    folder = write("old", max_tokens=20)
    preparation = load(folder).preparation
    assert (preparation.max_question_tokens, preparation.max_passage_tokens) == (20, 20)
    preparation = load(folder, max_question_tokens=9, max_passage_tokens=100).preparation
    assert (preparation.max_question_tokens, preparation.max_passage_tokens) == (9, 100)
    change(folder / "sentence_bert_config.json", query_length=12, document_length=30)
    preparation = load(folder).preparation
    assert (preparation.max_question_tokens, preparation.max_passage_tokens) == (12, 30)
    change(folder / "sentence_bert_config.json", query_length=None, document_length=None, max_seq_length=1000)
    assert load(folder).preparation.max_passage_tokens == 256  # the positions that there are


def test_lower_case_is_read_and_kept_when_saved(write, tmp_path):
    encoder = load(write("old", lower_case=True))
    assert encoder.tokenize_questions(["LIMA"]) == encoder.tokenize_questions(["lima"])
    encoder.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.tokenize_questions(["LIMA"]) == encoder.tokenize_questions(["lima"])
    assert again.preparation == encoder.preparation


# The library itself


@pytest.fixture(scope="module")
def sentence_transformers():
    return pytest.importorskip("sentence_transformers", reason="a peer for comparison, not a dependency")


@pytest.mark.parametrize("style", ["old", "new"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_the_library(sentence_transformers, write, style, pooling, normalize, passages, questions):
    folder = write(style, pooling, normalize, max_tokens=20, lower_case=style == "old", prompts=PROMPTS)
    peer, encoder = sentence_transformers.SentenceTransformer(str(folder), device="cpu"), load(folder)
    texts = [f"{passage.title}. {passage.text}" for passage in passages]
    lengths = [len(row) for row in encoder.tokenize_passages(passages)]
    assert max(lengths) == 20 > min(lengths)  # some are cut
    np.testing.assert_allclose(
        encoder.embed_questions(questions).detach(), peer.encode(list(questions), prompt_name="query"), atol=1e-5
    )
    np.testing.assert_allclose(
        encoder.embed_passages(passages), peer.encode(texts, prompt_name="passage", batch_size=2), atol=1e-5
    )


def test_a_default_prompt_is_applied_as_the_library_does(sentence_transformers, write, questions):
    folder = write(prompts={"other": PROMPTS["other"]}, default="other")
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(
        load(folder).embed_questions(questions).detach(), peer.encode(list(questions)), atol=1e-5
    )


def test_a_folder_that_the_library_saved_gives_its_vectors(sentence_transformers, encoder_folder, tmp_path, questions):
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [Transformer(str(encoder_folder), max_seq_length=8, do_lower_case=True), Pooling(32, "lasttoken")]
    peer = sentence_transformers.SentenceTransformer(
        modules=[*modules, Normalize()], prompts={"query": "mountain: "}, device="cpu"
    )
    peer.save(str(tmp_path / "saved"))
    encoder = load(tmp_path / "saved")
    assert max(len(row) for row in encoder.tokenize_questions(questions)) == 8
    np.testing.assert_allclose(
        encoder.embed_questions(questions).detach(), peer.encode_query(list(questions)), atol=1e-5
    )
