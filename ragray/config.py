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


PriorKind = Literal["dense", "bm25", "gold", "closed_book"]


class DemoConfig(Settings):
    """A demo corpus with questions (``pipelines/get_demo.py``)."""

    material: Literal["factbook", "wikipedia", "tiny"] = Field(
        "factbook", description="The World Factbook, an excerpt of English Wikipedia, or a few invented lines"
    )
    sections: tuple[str, ...] | None = Field(None, description="sections of the factbook; null: the default choice")


class ChunkConfig(Settings):
    """documents -> passages: by default disjoint pieces of 100 words, as in the paper (Lewis et al. 2020, sec. 3)."""

    unit: Literal["words", "tokens", "sentences", "document"] = Field(
        "words", description="what passages are cut between; document: the documents are passages already"
    )
    size: int = Field(100, ge=1, description="of a passage at most: words, or tokens for that unit")
    overlap: int = Field(0, ge=0, description="what a passage repeats of the one before, in the same measure")
    tokenizer: str | None = Field(None, description="of the unit tokens, a folder or hub name; null: the encoder's")
    language: str = Field("en", description="of the unit sentences: ISO 639 code")
    reader: Literal["jsonl", "dpr_tsv", "parquet", "arrow", "mediawiki", "text"] | None = Field(
        None, description="format of the corpus files; null: by their names"
    )
    on_bad_input: Literal["fail", "skip"] = Field(
        "fail", description="a record that can't be used: stop, or leave it out and list it with its place"
    )

    @pydantic.model_validator(mode="after")
    def _moves_on(self) -> ChunkConfig:
        if self.overlap >= self.size:
            raise ValueError(f"overlap={self.overlap} must be less than size={self.size}")
        return self


class EncoderConfig(Settings):
    """The bi-encoder d(z), q(x): Hugging Face or sentence-transformers models, and their text preparation."""

    model: str = Field(description="a folder, a hub name, or demo:minilm; the question encoder starts from it")
    passage_model: str | None = Field(
        None,
        description="the passage encoder where it isn't the same model: a folder or hub name, e.g. "
        "facebook/dpr-ctx_encoder-multiset-base",
    )
    max_question_tokens: int | None = Field(
        None, ge=4, description="longer ones are cut; null: what the model was made for; DPR: 256, as it was trained"
    )
    max_passage_tokens: int | None = Field(None, ge=8, description="longer ones are cut; null: as for questions")
    passage_template: str | None = Field(
        None,
        description='null: the prompt that the model\'s own folder has for passages, if any, then "{title}. {text}"; '
        'E5: "passage: {title} {text}"; of no effect where title_as_pair holds',
    )
    question_template: str | None = Field(
        None,
        description='null: the prompt that the model\'s own folder has for questions, if any, then "{question}"; '
        'E5: "query: {question}"',
    )
    title_as_pair: bool | None = Field(
        None, description="a passage is a pair, title and text; null: what the model's own folder says (DPR: yes)"
    )
    pooling: Literal["mean", "cls", "last", "pooler"] | None = Field(
        None,
        description="null: what the model's own folder says, else mean; cls: the first token; last: the last one that "
        "the tokenizer gives, for decoder-only models; pooler: DPR models, and only they",
    )
    normalize: bool | None = Field(None, description="null: what the model's own folder says, else no")
    temperature: float = Field(1.0, gt=0, description="of the prior p(z|x) = softmax(q·d / temperature)")

    @property
    def of_passages(self) -> str:
        """The model that embeds the passages."""
        return self.passage_model or self.model


class EmbedConfig(Settings):
    """passages -> embeddings."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of the computation; auto: bfloat16 where the processor has it"
    )
    vectors: Literal["float32", "float16"] = Field("float32", description="how they are stored")
    passages_per_file: int = Field(1024, ge=1, description="an output file is the unit of resuming")


class IndexConfig(Settings):
    """embeddings -> index."""

    num_shards: int = Field(2, ge=1)
    factory: str = Field("Flat", description="a FAISS factory string; inner product")


class GeneratorConfig(Settings):
    """The language model p(y|x,z) and its prompt: a passage part, then a question part, then the answer.

    The parts have limits of their own, so that no passage, however long, can push the question out.
    """

    model: str = Field(description="a folder, a hub name, or demo:smollm2; decoder-only or sequence-to-sequence")
    passage_template: str = "Title: {title}\n{text}\n"
    question_template: str = "Question: {question}\nAnswer:"
    answer_template: str = " {answer}"
    max_passage_tokens: int = Field(256, ge=1)
    max_question_tokens: int = Field(64, ge=1)
    max_prompt_tokens: int | None = Field(
        None, ge=2, description="of passage, question and the tokenizer's own tokens together; the passage gives way"
    )
    max_answer_tokens: int = Field(24, ge=1, description="with the end token; also how long an answer can get")
    end_answers: bool = Field(True, description="the end token is part of an answer; false for one-token class labels")
    stop: tuple[str, ...] = Field(("\n", "\n\n"), description="texts of one token that end an answer too")
    decoder_start: int | None = Field(
        None, ge=0, description="sequence-to-sequence: the token that decoding starts from; null: the model's own"
    )
    text_rules: Literal["plain", "hf_rag"] = Field(
        "plain",
        description="hf_rag: titles lose one pair of quotes and double spaces become single, as in RagRetriever",
    )


class DecodingConfig(Settings):
    """How an answer y is found under p(y|x) (Lewis et al. 2020, section 2.5); the names are those of transformers."""

    num_beams: int = Field(1, ge=1, description="1: greedy search")
    do_sample: bool = Field(False, description="draw answers from the model instead")
    temperature: float = Field(1.0, gt=0, description="of sampling")
    top_k: int | None = Field(None, ge=1, description="of sampling: draw from the k likeliest tokens")
    top_p: float = Field(1.0, gt=0, le=1, description="of sampling: draw from the likeliest tokens of this mass")
    seed: int = Field(0, description="of sampling")
    max_new_tokens: int | None = Field(None, ge=1, description="null: generator.max_answer_tokens")
    min_new_tokens: int = Field(0, ge=0, description="the end token isn't allowed before")
    num_return_sequences: int = Field(1, ge=1, description="answers a question; best first, samples as drawn")
    length_penalty: float = Field(1.0, description="beams are ranked by log-probability / length ** this")
    early_stopping: bool | Literal["never"] = Field(
        False, description="when a beam search ends; never: only once no running beam can win"
    )
    sequence_scoring: Literal["thorough", "fast"] = Field(
        "thorough", description="RAG-Sequence: score every candidate under all passages, or under those that found it"
    )

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> DecodingConfig:
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample draws from the model and num_beams={self.num_beams} searches it: choose one")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens={self.min_new_tokens} is over max_new_tokens={self.max_new_tokens}")
        return self


class OptimizerConfig(Settings):
    """What is trained, and how fast: AdamW with a learning rate for each model, linear warm-up and decay."""

    encoder_rate: float = Field(2e-5, ge=0, description="learning rate of the question encoder; 0 freezes it")
    temperature_rate: float = Field(0.0, ge=0, description="learning rate of log(encoder.temperature); 0: it stays")
    generator_rate: float = Field(3e-5, ge=0, description="learning rate of the generator; 0 freezes it")
    generator_layers: int | None = Field(None, ge=1, description="train only this many last layers; null: all weights")
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)


class TrainConfig(Settings):
    """Joint training of question encoder and generator through p(z|x)."""

    variant: Literal["rag_token", "rag_sequence"] = "rag_token"
    prior: PriorKind = Field(
        "dense", description="where p(z|x) comes from; the others than dense are baselines without a question encoder"
    )
    steps: int = Field(100, ge=1)
    questions_per_step: int = Field(8, ge=1)
    passages_per_question: int = Field(5, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="of the answers' tokens, under each passage")
    anchor: float = Field(0.0, ge=0, description="weight of the penalty that keeps q(x) near its start; see rag.py")
    seed: int = 0

    @pydantic.model_validator(mode="after")
    def _something_is_trained(self) -> TrainConfig:
        rates = self.optimizer
        encoder_learns = self.prior == "dense" and max(rates.encoder_rate, rates.temperature_rate) > 0
        if not encoder_learns and rates.generator_rate == 0:
            why = "encoder_rate and generator_rate are both 0" if self.prior == "dense" else "generator_rate is 0"
            raise ValueError(f"{why}: nothing would be trained")
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
    earlier_embeddings: str | None = Field(
        None, description="an embeddings folder of the same encoder: passages that it holds aren't embedded again"
    )
    train_workers: int | None = Field(None, ge=1)
    threads_per_worker: int | None = Field(None, ge=1)
    evaluate_actors: int | None = Field(None, ge=1)
    tokens_per_batch: int = Field(2048, ge=1, description="padded tokens that a model sees at once")
    questions_per_backward: int = Field(4, ge=1, description="questions whose activations are held at once")
    passages_per_backward: int | None = Field(
        None, ge=1, description="of these, passages whose activations are held at once: reads each twice; null: all"
    )
    gradient_checkpointing: bool = Field(False, description="hold the inputs of layers only, compute the rest twice")
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"] | None = Field(
        None, description="how the generator computes attention; null: what transformers chooses"
    )
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
    decoding: DecodingConfig = DecodingConfig()
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
