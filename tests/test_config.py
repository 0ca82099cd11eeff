from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from ragray.config import ChunkConfig, RunConfig, Settings, TrainConfig, load_recipe
from ragray.records import InputError

MINIMAL = """
corpus: documents.jsonl
train_questions: train.jsonl
dev_questions: {dev: dev.jsonl}
encoder: {model: minilm}
generator: {model: smollm}
train: {steps: 7}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(MINIMAL)
    return file


def test_a_recipe_fills_the_rest_with_defaults(recipe):
    config = load_recipe(recipe)
    assert config.train.steps == 7
    assert config.chunk == ChunkConfig()


@pytest.mark.parametrize(
    ("override", "section", "key", "expected"),
    [
        ("train.steps=9", "train", "steps", 9),
        ("train.variant=rag_token", "train", "variant", "rag_token"),
        ("evaluate.answers_per_set={dev: 2}", "evaluate", "answers_per_set", {"dev": 2}),
        ("evaluate.recall_at=[1, 3]", "evaluate", "recall_at", (1, 3)),
        ("generator.answer_template=' = {answer}'", "generator", "answer_template", " = {answer}"),
    ],
)
def test_overrides_are_yaml_values_at_a_dotted_path(recipe, override, section, key, expected):
    assert getattr(getattr(load_recipe(recipe, [override]), section), key) == expected


def test_an_override_reaches_into_a_section_of_a_section(recipe):
    overrides = ["train.optimizer.generator_layers=null", "train.optimizer.encoder_rate=0"]
    optimizer = load_recipe(recipe, overrides).train.optimizer
    assert optimizer.generator_layers is None
    assert optimizer.encoder_rate == 0


@pytest.mark.parametrize("prior", ["bm25", "gold", "closed_book"])
def test_a_baseline_without_a_question_encoder_must_train_the_generator(recipe, prior):
    with pytest.raises(InputError, match="generator_rate is 0: nothing would be trained"):
        load_recipe(recipe, [f"train.prior={prior}", "train.optimizer.generator_rate=0"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["decoding.num_beams=4", "decoding.do_sample=true"], "choose one"),
        (["decoding.max_new_tokens=3", "decoding.min_new_tokens=4"], "min_new_tokens=4 is over max_new_tokens=3"),
    ],
)
def test_settings_of_decoding_that_contradict_each_other_are_refused(recipe, overrides, message):
    with pytest.raises(InputError, match=message):
        load_recipe(recipe, overrides)


def test_the_last_override_wins(recipe):
    assert load_recipe(recipe, ["train.steps=1", "train.steps=2"]).train.steps == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.stepz=9", r"train\.stepz: extra inputs are not permitted"),
        ("trian.steps=9", "trian: extra inputs"),
        ("train.steps=0", r"train\.steps: .*greater than or equal to 1, got 0"),
        ("train.variant=rag", r"train\.variant: .*'rag_token' or 'rag_sequence', got 'rag'"),
        ("corpus=", r"corpus: .*got None"),
        ("train.steps", "must read section.key=value"),
        ("=3", "must read section.key=value"),
        ("corpus.steps=3", "'corpus' is a value, not a section"),
        ("train.steps=[", "holds no YAML value"),
    ],
)
def test_a_wrong_override_is_named(recipe, override, message):
    with pytest.raises(InputError, match=message):
        load_recipe(recipe, [override])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "is not YAML"),
        (b"- 1", "must be a mapping of sections, got list"),
        (b"", "must be a mapping of sections, got NoneType"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"corpus: c", "encoder: field required"),
    ],
    ids=["broken", "list", "empty", "binary", "incomplete"],
)
def test_a_wrong_recipe_is_named(recipe, content, message):
    recipe.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_recipe(recipe)


def test_a_missing_recipe_lists_the_others(recipe):
    with pytest.raises(InputError, match=r"no recipe .*other\.yaml; recipes there: mine"):
        load_recipe(recipe.with_name("other.yaml"))
    with pytest.raises(InputError, match="no recipe"):
        load_recipe(recipe.parent)


def test_settings_are_immutable():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        TrainConfig().steps = 3


def test_a_stage_has_about_twelve_settings_at_most():
    counts = {cls.__name__: len(cls.model_fields) for cls in Settings.__subclasses__() if cls is not RunConfig}
    assert max(counts.values()) <= 13, counts


@pytest.mark.parametrize(
    "file", sorted(Path(__file__).parents[1].glob("pipelines/recipes/*.yaml")), ids=lambda f: f.stem
)
def test_every_recipe_that_ships_is_valid(file):
    load_recipe(file)
