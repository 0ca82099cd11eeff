"""A plan on paper: hours of encoding, bytes on disk and in memory, and shards, from a corpus' size alone.

Pure arithmetic on frozen records; nothing is loaded, opened or started.  Sizes are in bytes, times in seconds.
``docs/planning.md`` explains the formulas and says where the constants were measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ragray.records import InputError

GIB = 2**30
VectorType = Literal["float32", "float16"]
IndexKind = Literal["flat", "flat float16", "SQ8", "HNSW32", "IVF-PQ"]
INDEX_KINDS: tuple[IndexKind, ...] = ("flat", "flat float16", "SQ8", "HNSW32", "IVF-PQ")
VECTOR_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2}

# Measured on 2 cores of an Intel Xeon with AMX, one thread an actor; docs/planning.md says how.
CPU_FLOPS: Mapping[str, tuple[float, float]] = {"float32": (100e9, 110e9), "bfloat16": (250e9, 500e9)}  # see cpu_flops
START_S = 15.0  # Ray, the actors' imports, the model
PASSAGE_OVERHEAD_S = 0.0003  # reading, writing and handing over, beside Encoder.embed_passages
TEXT_RATIO = 0.58  # of Parquet's snappy on English text
ENCODER_PROCESS_BYTES = 400 * 2**20
SHARD_PROCESS_BYTES = 100 * 2**20
BUILD_COPIES = 3.0  # of a shard's vectors and texts, while it is built

_HASH_BYTES = 16
_HNSW_LINKS = 32
_PQ_CENTROIDS = 256
_GATED = {"gemma", "gemma2", "gemma3_text", "llama", "mistral", "modernbert", "qwen2", "qwen3"}
_PLAIN = {"bert", "camembert", "distilbert", "dpr", "electra", "mpnet", "roberta", "xlm-roberta"}
_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_DISTILBERT_NAMES = ("dim", "n_layers", "n_heads", "hidden_dim")
_WITHOUT_POOLER = {"distilbert", "electra"}


@dataclass(frozen=True, slots=True)
class EncoderCost:
    """The sizes of a transformer encoder that its arithmetic and memory follow from."""

    layers: int
    hidden: int
    query_width: int  # heads * head size
    key_value_width: int
    intermediate: int
    gated: bool  # the feed-forward part has three matrices, not two
    vocabulary: int
    max_tokens: int
    dimension: int
    pooled_products: int = 0  # of matrices that see the first token alone

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EncoderCost:
        """By a model's ``config.json``; of a RAG folder, its question encoder's.

        Raises:
            InputError: for a family of models whose matrices aren't known here, or a size that is missing.
        """
        config = config.get("question_encoder", config)
        family, known = str(config.get("model_type")), _PLAIN | _GATED
        if family not in known:
            raise InputError(f"can't plan for an encoder of model_type {family!r}; known: {', '.join(sorted(known))}")
        hidden_name, layers_name, heads_name, inner_name = _DISTILBERT_NAMES if family == "distilbert" else _NAMES
        try:
            hidden, heads = int(config[hidden_name]), int(config[heads_name])
            head = int(config.get("head_dim") or hidden // heads)
            projection = int(config.get("projection_dim") or 0) if family == "dpr" else 0
            plain_pooler = family in _PLAIN and family not in _WITHOUT_POOLER and family != "dpr"
            return cls(
                layers=int(config[layers_name]),
                hidden=hidden,
                query_width=heads * head,
                key_value_width=int(config.get("num_key_value_heads") or heads) * head,
                intermediate=int(config[inner_name]),
                gated=family in _GATED,
                vocabulary=int(config["vocab_size"]),
                max_tokens=int(config.get("max_position_embeddings", 512)),
                dimension=projection or hidden,
                pooled_products=hidden * hidden if plain_pooler else hidden * projection,
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise InputError(f"config.json of a {family} encoder lacks a size or holds a wrong one: {error}") from error

    @property
    def layer_weights(self) -> int:
        """Of one layer's matrices: queries and output, keys and values, and the feed-forward part."""
        attention = 2 * self.hidden * self.query_width + 2 * self.hidden * self.key_value_width
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """Of matrices and word embeddings; biases and norms are left out."""
        return self.layers * self.layer_weights + self.vocabulary * self.hidden + self.pooled_products

    def flops(self, tokens: float) -> float:
        """Of one forward pass over one text of so many tokens, a multiply-add being two.

        Each layer has 2 * weights a token, and 2 * tokens * query_width a token for each of QK^T and the weighted sum
        of V (Kaplan et al. 2020, table 1, with every token seeing all others).  Elementwise work isn't counted.
        """
        return self.total_flops(1, tokens, tokens**2)

    def total_flops(self, texts: int, tokens: float, squared_tokens: float) -> float:
        """Of texts with so many tokens in all; ``squared_tokens``: the sum of the squares of their lengths."""
        matrices = 2 * tokens * self.layer_weights
        attention = 4 * squared_tokens * self.query_width
        return self.layers * (matrices + attention) + 2 * self.pooled_products * texts


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is embedded; ``text_bytes`` are of id, title and text of a passage, ``vectors`` is ``embed.vectors``."""

    passages: int
    tokens_per_passage: float = 130.0
    text_bytes: float = 650.0
    vectors: VectorType = "float32"
    passages_per_file: int = 1024

    def __post_init__(self) -> None:
        for name in ("passages", "tokens_per_passage", "text_bytes", "passages_per_file"):
            _check_positive(name, getattr(self, name))
        if self.vectors not in VECTOR_BYTES:
            raise InputError(f"vectors must be one of {', '.join(VECTOR_BYTES)}, got {self.vectors!r}")


@dataclass(frozen=True, slots=True)
class Machine:
    """``count`` equal machines.  ``flops_per_cpu`` and ``flops_per_gpu`` are what an encoder really achieves a second.

    ``memory_share`` is the part of the memory that shards, builders or encoders may fill; the rest is for Ray, the
    models and the page cache.
    """

    count: int
    cpus: int
    memory_bytes: float
    flops_per_cpu: float = 100e9
    gpus: int = 0
    flops_per_gpu: float | None = None
    memory_share: float = 0.6

    def __post_init__(self) -> None:
        for name in ("count", "cpus", "memory_bytes", "flops_per_cpu"):
            _check_positive(name, getattr(self, name))
        if self.gpus < 0 or not 0 < self.memory_share <= 1:
            raise InputError(f"gpus={self.gpus} must be >= 0 and memory_share={self.memory_share} in (0, 1]")
        if self.gpus:
            if self.flops_per_gpu is None:
                raise InputError(
                    f"gpus={self.gpus} needs the FLOP/s that the encoder reaches on one; no default holds for all: "
                    "give --tflops-per-gpu, or --calibrate on a machine that has one"
                )
            _check_positive("flops_per_gpu", self.flops_per_gpu)

    @property
    def budget_bytes(self) -> float:
        return self.memory_share * self.memory_bytes

    @property
    def actors(self) -> int:
        """Encoding actors of one machine: one a GPU, else one a CPU."""
        return self.gpus or self.cpus

    @property
    def flops_per_actor(self) -> float:
        return self.flops_per_gpu if self.gpus and self.flops_per_gpu else self.flops_per_cpu


@dataclass(frozen=True, slots=True)
class EncodingPlan:
    """``ragray embed``."""

    flops_per_passage: float
    actors: int
    passages_per_s: float
    seconds: float
    memory_per_machine_bytes: float


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """One FAISS type.  ``index_bytes`` are of all shards, once; ``disk_bytes`` of the whole index folder.

    Where the index doesn't fit, the numbers are those of one shard a machine, and ``machines_needed`` says how many
    machines it takes (None: no number of them is enough).
    """

    kind: IndexKind
    factory: str
    fits: bool
    shards: int
    actors_per_machine: int
    index_bytes: float
    disk_bytes: float
    memory_per_machine_bytes: float
    build_memory_bytes: float
    machines_needed: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it.  ``passages_bytes`` and ``embeddings_bytes`` are of Parquet files."""

    encoder: EncoderCost
    corpus: Corpus
    machine: Machine
    replicas: int
    passages_bytes: float
    embeddings_bytes: float
    encoding: EncodingPlan
    indexes: tuple[IndexPlan, ...]


def make_plan(
    encoder: EncoderCost, corpus: Corpus, machine: Machine, *, replicas: int = 1, shards: int | None = None
) -> Plan:
    """Plan every stage up to the index; ``shards`` None: for each FAISS type, the smallest number that fits.

    Raises:
        InputError: for counts that aren't positive, more shards than passages, more tokens than the encoder takes.
    """
    _check_positive("replicas", replicas)
    if shards is not None:
        _check_positive("shards", shards)
        if shards > corpus.passages:
            raise InputError(f"shards={shards} is over passages={corpus.passages}: use fewer shards")
    if corpus.tokens_per_passage > encoder.max_tokens:
        raise InputError(
            f"tokens_per_passage={corpus.tokens_per_passage:g} is over the encoder's {encoder.max_tokens}: passages "
            "are cut there, so give at most that"
        )
    encoding = plan_encoding(encoder, corpus, machine)
    indexes = tuple(plan_index(kind, encoder.dimension, corpus, machine, replicas, shards) for kind in INDEX_KINDS)
    return Plan(
        encoder=encoder,
        corpus=corpus,
        machine=machine,
        replicas=replicas,
        passages_bytes=passages_bytes(corpus),
        embeddings_bytes=embeddings_bytes(corpus, encoder.dimension),
        encoding=encoding,
        indexes=indexes,
    )


def plan_encoding(encoder: EncoderCost, corpus: Corpus, machine: Machine) -> EncodingPlan:
    """Actors take whole files in turn: the time is that of ceil(files / actors) files in a row, and the start.

    seconds = START_S + ceil(files / actors) * passages of a file * (flops / flops_per_actor + PASSAGE_OVERHEAD_S)
    """
    flops = encoder.flops(corpus.tokens_per_passage)
    files = math.ceil(corpus.passages / corpus.passages_per_file)
    actors = min(files, machine.count * machine.actors)
    passage_s = flops / machine.flops_per_actor + PASSAGE_OVERHEAD_S
    seconds = math.ceil(files / actors) * min(corpus.passages, corpus.passages_per_file) * passage_s
    memory = min(actors, machine.actors) * (ENCODER_PROCESS_BYTES + 4 * encoder.parameters)
    return EncodingPlan(flops, actors, actors / passage_s, START_S + seconds, memory)


def passages_bytes(corpus: Corpus) -> float:
    """Parquet of ids, titles, texts and 16-byte hashes."""
    return corpus.passages * (corpus.text_bytes * TEXT_RATIO + _HASH_BYTES)


def embeddings_bytes(corpus: Corpus, dimension: int) -> float:
    """Parquet of passages and their vectors, which don't compress."""
    return passages_bytes(corpus) + corpus.passages * dimension * VECTOR_BYTES[corpus.vectors]


def faiss_factory(kind: IndexKind, passages: int, dimension: int) -> str:
    """The factory string of a shard.  IVF lists: the power of two nearest to 4 sqrt(N), at least 39 vectors in each.

    IVF-PQ has a byte for every four dimensions, or the next fewer that divides the dimension.
    """
    if kind != "IVF-PQ":
        return {"flat": "Flat", "flat float16": "SQfp16", "SQ8": "SQ8", "HNSW32": f"HNSW{_HNSW_LINKS}"}[kind]
    return f"IVF{_ivf_lists(passages)},PQ{_pq_bytes(dimension)}"


def faiss_bytes(kind: IndexKind, passages: int, dimension: int) -> float:
    """Of one shard's FAISS index, on disk and in memory.

    flat 4D, float16 2D, SQ8 D a vector (and 8D of ranges); HNSW32 4D, 12 of bookkeeping, and 4 a link: 2M on the
    ground and M on each of 1/(M-1) levels above; IVF-PQ m of code and 8 of id, with 4D + 8 a list and 4 * 256 * D of
    codebooks.
    """
    if kind == "IVF-PQ":
        lists = _ivf_lists(passages) * (4 * dimension + 8)
        return passages * (_pq_bytes(dimension) + 8) + lists + 4 * _PQ_CENTROIDS * dimension
    links = 4 * (2 * _HNSW_LINKS + _HNSW_LINKS / (_HNSW_LINKS - 1)) + 12
    vector = {"flat": 4 * dimension, "flat float16": 2 * dimension, "SQ8": dimension, "HNSW32": 4 * dimension + links}
    return passages * vector[kind] + (8 * dimension if kind == "SQ8" else 0)


def _ivf_lists(passages: int) -> int:
    most = max(1, passages // 39)
    return int(min(2 ** round(math.log2(4 * math.sqrt(passages))), 2 ** int(math.log2(most))))


def _pq_bytes(dimension: int) -> int:
    return next(m for m in range(max(1, dimension // 4), 0, -1) if dimension % m == 0)


def plan_index(
    kind: IndexKind, dimension: int, corpus: Corpus, machine: Machine, replicas: int = 1, shards: int | None = None
) -> IndexPlan:
    """Shards of one FAISS type, spread evenly: a machine holds at most ceil(shards * replicas / machines) of them."""
    chosen = shards or smallest_shards(kind, dimension, corpus, machine, replicas)
    count = chosen or min(machine.count, corpus.passages)
    rows = math.ceil(corpus.passages / count)
    shard = faiss_bytes(kind, rows, dimension)
    actors = math.ceil(count * replicas / machine.count)
    memory = actors * (shard + SHARD_PROCESS_BYTES)
    stored = 4 * dimension + corpus.text_bytes  # a shard's exact vectors are float32
    copies = min(machine.cpus, math.ceil(count / machine.count))
    return IndexPlan(
        kind=kind,
        factory=faiss_factory(kind, rows, dimension),
        fits=memory <= machine.budget_bytes,
        shards=count,
        actors_per_machine=actors,
        index_bytes=shard * corpus.passages / rows,
        disk_bytes=shard * corpus.passages / rows + corpus.passages * stored,
        memory_per_machine_bytes=memory,
        build_memory_bytes=copies * _build_bytes(kind, rows, dimension, corpus.text_bytes),
        machines_needed=_machines_needed(kind, dimension, corpus, machine, replicas),
    )


def _build_bytes(kind: IndexKind, passages: int, dimension: int, text_bytes: float) -> float:
    """What one builder holds at its peak: the shard as Parquet gives it, in one piece, and in FAISS with its links."""
    links = faiss_bytes(kind, passages, dimension) - 4 * passages * dimension if kind == "HNSW32" else 0.0
    return BUILD_COPIES * passages * (4 * dimension + text_bytes) + links


def smallest_shards(kind: IndexKind, dimension: int, corpus: Corpus, machine: Machine, replicas: int = 1) -> int | None:
    """The fewest shards with which every machine stays in its budget; None if no number does.

    A machine's load is at least replicas * index / machines.  It comes nearest to that where shards * replicas is first
    a multiple of the machines, and from there on grows by the processes.  So the search ends at that number.
    """
    for shards in range(1, corpus.passages + 1):
        shard = faiss_bytes(kind, math.ceil(corpus.passages / shards), dimension) + SHARD_PROCESS_BYTES
        if math.ceil(shards * replicas / machine.count) * shard <= machine.budget_bytes:
            return shards
        if shards * replicas % machine.count == 0:
            return None
    return None


def _machines_needed(kind: IndexKind, dimension: int, corpus: Corpus, machine: Machine, replicas: int) -> int | None:
    """One shard a machine, which is the most of an index that fits there; None if not even one passage does."""
    room = machine.budget_bytes - SHARD_PROCESS_BYTES

    def fits(shards: int) -> bool:
        return faiss_bytes(kind, math.ceil(corpus.passages / shards), dimension) <= room

    shards = 1 + bisect_left(range(1, corpus.passages + 1), True, key=fits)
    return shards * replicas if room > 0 and shards <= corpus.passages else None


def shards_to_build(kind: IndexKind, plan: Plan) -> int | None:
    """The fewest shards that can be built with a builder a CPU and then searched; None if there is no such number."""
    corpus, machine, dimension = plan.corpus, plan.machine, plan.encoder.dimension
    rows = math.floor(machine.budget_bytes / (machine.cpus * _build_bytes(kind, 1, dimension, corpus.text_bytes)))
    if rows < 1:
        return None
    planned = plan_index(kind, dimension, corpus, machine, plan.replicas, math.ceil(corpus.passages / rows))
    return planned.shards if planned.fits else None


def cpu_flops(dtype: str, hidden: int) -> float:
    """What one core achieves on an encoder of this width: measured at 384 and 768, see docs/planning.md.

    Raises:
        InputError: for a dtype that wasn't measured.
    """
    if dtype not in CPU_FLOPS:
        raise InputError(f"dtype must be one of {', '.join(CPU_FLOPS)}, got {dtype!r}")
    narrow, wide = CPU_FLOPS[dtype]
    return narrow if hidden < 768 else wide


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number, got {value}")
