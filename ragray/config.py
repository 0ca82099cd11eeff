"""Settings: one frozen model a stage, gathered in ``RunConfig``; recipes are YAML files of it.

Unknown keys are errors.  What changes only the speed is in ``Resources`` and never enters a fingerprint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field

from ragray.records import InputError


class Settings(BaseModel):
    """Base of all settings: immutable, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DemoConfig(Settings):
    """A demo corpus with questions (``pipelines/get_demo.py``)."""

    material: Literal["factbook", "tiny"] = Field("factbook", description="The World Factbook, or a few invented lines")
    sections: tuple[str, ...] | None = Field(None, description="sections of the factbook; null: the default choice")


class ChunkConfig(Settings):
    """documents -> passages: disjoint pieces of ``words`` whitespace-separated words (Lewis et al. 2020, section 3)."""

    words: int = Field(100, ge=1)


class EncoderConfig(Settings):
    """The bi-encoder d(z), q(x): a Hugging Face or sentence-transformers model, and its text preparation."""

    model: str = Field(description="a folder, a hub name, or demo:minilm")
    max_question_tokens: int = Field(64, ge=4)
    max_passage_tokens: int = Field(256, ge=8)
    passage_template: str = "{title}. {text}"
    question_template: str = "{question}"
    pooling: Literal["mean", "cls"] | None = Field(
        None, description="null: what the model's own folder says, else mean"
    )
    normalize: bool | None = Field(None, description="null: what the model's own folder says, else no")
    temperature: float = Field(1.0, gt=0, description="of the prior p(z|x) = softmax(q·d / temperature)")


class EmbedConfig(Settings):
    """passages -> embeddings."""

    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the processor has it"
    )
    passages_per_file: int = Field(1024, ge=1, description="an output file is the unit of resuming")


class IndexConfig(Settings):
    """embeddings -> index."""

    num_shards: int = Field(2, ge=1)
    factory: str = Field("Flat", description="a FAISS factory string; inner product")


class GeneratorConfig(Settings):
    """The decoder-only language model p(y|x,z) and its prompt: a passage part, then a question part, then the answer.

    The parts are tokenised apart and have limits of their own, so that no passage, however long, can push the question
    out, and a passage's part is the same for every question.
    """

    model: str = Field(description="a folder, a hub name, or demo:smollm2")
    passage_template: str = "Title: {title}\n{text}\n"
    question_template: str = "Question: {question}\nAnswer:"
    answer_template: str = " {answer}"
    max_passage_tokens: int = Field(256, ge=1)
    max_question_tokens: int = Field(64, ge=1)
    max_answer_tokens: int = Field(24, ge=1)


class TrainConfig(Settings):
    """Joint training of question encoder and generator through p(z|x)."""

    variant: Literal["rag_token", "rag_sequence"] = "rag_token"
    steps: int = Field(100, ge=1)
    questions_per_step: int = Field(8, ge=1)
    passages_per_question: int = Field(5, ge=1)
    encoder_rate: float = Field(2e-5, ge=0, description="learning rate of the question encoder; 0 freezes it")
    generator_rate: float = Field(3e-5, ge=0, description="learning rate of the generator; 0 freezes it")
    generator_layers: int | None = Field(None, ge=1, description="train only this many last layers; null: all weights")
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    anchor: float = Field(0.0, ge=0, description="weight of the penalty that keeps q(x) near its start; see rag.py")
    seed: int = 0

    @pydantic.model_validator(mode="after")
    def _something_is_trained(self) -> TrainConfig:
        if self.encoder_rate == 0 and self.generator_rate == 0:
            raise ValueError("encoder_rate and generator_rate are both 0: nothing would be trained")
        return self


class EvaluateConfig(Settings):
    """How answers are found and scored."""

    passages_per_question: int = Field(5, ge=1)
    recall_at: tuple[int, ...] = (1, 5, 20)
    answers_per_set: dict[str, int] = Field(
        {}, description="answer only the first so many of a set (sets not named: all); recall is measured on all"
    )


class ServeConfig(Settings):
    """The HTTP app."""

    passages_per_question: int = Field(5, ge=1)
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    max_replicas: int = Field(1, ge=1)
    demo_questions: tuple[str, ...] = ()


class Resources(Settings):
    """What changes the speed and not the result, rounding apart; null: so that all CPUs or GPUs are used."""

    embed_actors: int | None = Field(None, ge=1)
    train_workers: int | None = Field(None, ge=1)
    threads_per_worker: int | None = Field(None, ge=1)
    evaluate_actors: int | None = Field(None, ge=1)
    tokens_per_batch: int = Field(2048, ge=1, description="padded tokens that a model sees at once")
    questions_per_backward: int = Field(4, ge=1, description="questions whose activations are held at once")
    checkpoint_every: int = Field(20, ge=1, description="training steps")
    use_gpu: bool = False


class RunConfig(Settings):
    """Everything that a run needs, from documents to answers."""

    demo: DemoConfig | None = None
    corpus: str = Field(description="documents as jsonl, or demo:documents")
    train_questions: str = Field(description="questions as jsonl, or demo:train")
    dev_questions: dict[str, str] = Field(
        description="name of a dev set -> jsonl, or demo:NAME; the first is the main one"
    )
    chunk: ChunkConfig = ChunkConfig()
    encoder: EncoderConfig
    embed: EmbedConfig = EmbedConfig()
    index: IndexConfig = IndexConfig()
    generator: GeneratorConfig
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    serve: ServeConfig = ServeConfig()
    resources: Resources = Resources()


def load_recipe(path: Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a recipe and apply ``section.key=value`` overrides (values are YAML).

    Raises:
        InputError: file missing, YAML broken, unknown key, or a value outside its limits; the message names it.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml"))) or "none"
        raise InputError(f"no recipe {path}; recipes there: {known}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"recipe {path} must be a mapping of sections, got {type(values).__name__}")
    for override in overrides or []:
        _apply_override(values, override)
    try:
        return RunConfig.model_validate(values)
    except pydantic.ValidationError as error:
        raise InputError(f"recipe {path}: {_readable(error)}") from None


def _apply_override(values: dict[str, Any], override: str) -> None:
    dotted, separator, text = override.partition("=")
    if not separator or not dotted:
        raise InputError(f"override {override!r} must read section.key=value")
    *parents, key = dotted.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise InputError(f"override {override!r}: {parent!r} is a value, not a section")
    try:
        values[key] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"override {override!r} holds no YAML value: {error}") from None


def _readable(error: pydantic.ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, item['loc']))}: {item['msg'].lower()}"
        + ("" if item["type"] in ("missing", "extra_forbidden") else f", got {item['input']!r}")
        for item in error.errors()
    )
