"""Fixtures shared by all tests: tiny random models made in the process and saved as real model folders, and one Ray."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Ray reads these when it is imported, which may happen while tests are collected.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("RAY_DATA_USE_DATASOURCE_V2", "0")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pyarrow as pa
import pytest
import torch
from hypothesis import settings
from transformers import PreTrainedTokenizerFast

from ragray.config import EncoderConfig, GeneratorConfig
from ragray.demo import tiny
from ragray.encoders import Encoder
from ragray.generators.base import Generator
from ragray.generators.loading import load_generator
from ragray.index_shard import IndexShard, build_shard
from ragray.records import Passage
from ragray.storage import location
from tests.s3_server import s3_server
from tests.tiny_models import tiny_bart, tiny_t5

settings.register_profile("ragray", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("ragray")

ROOT = Path(__file__).parents[1]
PASSAGES = tuple(
    Passage(f"p{number}", title, text)
    for number, (title, text) in enumerate(
        [
            ("Norway", "The capital is Oslo. Bergen lies on the western coast, between seven mountains and the sea."),
            ("Chad", "The capital is N'Djamena."),
            ("Peru", "The capital is Lima; the highest point is Huascarán, and the currency is the sol."),
            ("Japan", "Tokyo. The emperor is the ceremonial head of the state, the prime minister of the government."),
            ("Fiji", "Suva"),
            ("Kenya", "The capital is Nairobi, the highest point Mount Kenya, the internet country code .ke, no more."),
        ]
    )
)
QUESTIONS = ("What is the capital of Peru?", "Oslo?", "Which mountain is the highest point of Kenya, please?")
ANSWERS = ("Lima", "Norway", "Mount Kenya or so")


@pytest.fixture(scope="session")
def passages() -> tuple[Passage, ...]:
    return PASSAGES


@pytest.fixture(scope="session")
def questions() -> tuple[str, ...]:
    return QUESTIONS


@pytest.fixture(scope="session")
def answers() -> tuple[str, ...]:
    return ANSWERS


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer BERT with a WordPiece tokenizer, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("encoder")
    tiny.save_encoder(folder, _texts())
    return folder


@pytest.fixture(scope="session")
def generator_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random three-layer Llama with a byte-level BPE tokenizer; it likes its end token, so that answers end."""
    folder = tmp_path_factory.mktemp("generator")
    tiny.save_generator(folder, _texts())
    return folder


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learned positions, input embeddings that are the output's too, dropout where it is trained."""
    names = {"n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.3}
    return _save_causal(tmp_path_factory.mktemp("gpt2"), "gpt2", **names)


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Biases in the attention, two heads of queries to one of keys."""
    return _save_causal(tmp_path_factory.mktemp("qwen2"), "qwen2", **_LLAMA_LIKE, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def gemma2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Soft caps on attention scores and on logits, low enough to matter; every other layer has a window of 400."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 6.0, "query_pre_attn_scalar": 4}
    size = {"head_dim": 8, "sliding_window": 400, "tie_word_embeddings": False}
    return _save_causal(tmp_path_factory.mktemp("gemma2"), "gemma2", **_LLAMA_LIKE, **caps, **size)


@pytest.fixture(scope="session")
def mistral_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every layer sees a window of 48 tokens."""
    options = {"sliding_window": 48, "tie_word_embeddings": False}
    return _save_causal(tmp_path_factory.mktemp("mistral"), "mistral", **_LLAMA_LIKE, **options)


@pytest.fixture(scope="session")
def bart_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequence-to-sequence: ``<s> ... </s>`` around the input and the answer, decoding starts from ``</s>``."""
    tokenizer = _byte_tokenizer(["<s>", "<pad>", "</s>"], "<s> $A </s>", bos_token="<s>", eos_token="</s>")
    tokenizer.pad_token = "<pad>"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = tiny_bart(len(tokenizer))
    model.final_logits_bias[0, tokenizer.eos_token_id] = 6.0  # so that answers end
    return _save(tmp_path_factory.mktemp("bart"), model, tokenizer)


@pytest.fixture(scope="session")
def t5_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequence-to-sequence: relative positions, ``</s>`` after the input and the answer, starts from ``<pad>``."""
    tokenizer = _byte_tokenizer(["<pad>", "</s>"], "$A </s>", eos_token="</s>", pad_token="<pad>")
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = tiny_t5(len(tokenizer))
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] *= 2  # so that answers end
    return _save(tmp_path_factory.mktemp("t5"), model, tokenizer)


@pytest.fixture(scope="session")
def byte_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """(special tokens, template of them around a text, names) -> a byte-level BPE tokenizer that knows the texts."""
    return _byte_tokenizer


@pytest.fixture
def encoder(encoder_folder: Path) -> Encoder:
    return Encoder.load(encoder_folder, EncoderConfig(model="tiny", temperature=2.0))


@pytest.fixture
def generator(generator_folder: Path) -> Generator:
    return load_generator(generator_folder, GeneratorConfig(model="tiny", max_answer_tokens=8))


@pytest.fixture
def shard(encoder: Encoder, passage_table: Callable[[Sequence[Passage]], pa.Table], tmp_path: Path) -> IndexShard:
    """All test passages, embedded by the tiny encoder."""
    build_shard(tmp_path / "shard", encoder.embed_passages(PASSAGES), passage_table(PASSAGES), "Flat")
    return IndexShard(tmp_path / "shard", index_version="v1")


@pytest.fixture(scope="session")
def passage_table() -> Callable[[Sequence[Passage]], pa.Table]:
    return lambda passages: pa.Table.from_pylist([passage.as_dict() for passage in passages])


@pytest.fixture(scope="session")
def plain_logprobs() -> Callable[[Generator, Sequence[int], Sequence[int]], torch.Tensor]:
    """The reference: log p of every target token by one pass over one row, without cache, batch or padding."""

    def score(generator: Generator, prompt: Sequence[int], target: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            logits_LV = generator.model(input_ids=torch.tensor([[*prompt, *target]]), use_cache=False).logits[0]
        before = torch.arange(len(target)) + len(prompt) - 1
        return logits_LV.log_softmax(-1)[before, torch.tensor(target)]

    return score


@pytest.fixture(scope="session")
def ray_cluster(s3_environment: dict[str, str]) -> Iterator[None]:
    """One small local Ray for all tests that need one; the CPUs are logical.  Its workers find the S3 service."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=True,
        log_to_driver=False,
        logging_level="ERROR",
        namespace="test",
        object_store_memory=256 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty ``$RAGRAY_CACHE`` for the whole session, of this process and of jobs."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("RAGRAY_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def jobs(demo_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path_factory.mktemp("jobs"))
    yield jobs
    for job in jobs.started:
        jobs.kill_left_over(job)


@dataclass(frozen=True)
class Jobs:
    """Runs jobs as a user does, each in an operating system's session of its own, by which its processes are found."""

    cwd: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, module: str, *arguments: str | Path) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        job = subprocess.Popen(
            [sys.executable, "-m", f"pipelines.{module}", *map(str, arguments)],
            cwd=self.cwd,
            env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self.started.append(job)
        return job

    def run(self, module: str, *arguments: str | Path) -> FinishedJob:
        return self.finish(self.start(module, *arguments))

    def finish(self, job: subprocess.Popen[str]) -> FinishedJob:
        """Wait for its end.  What its session has left running by then is told, and killed."""
        try:
            output, errors = job.communicate(timeout=280)
        finally:
            left_over = self.kill_left_over(job)
        return FinishedJob(job.returncode, output, errors, left_over)

    def kill_left_over(self, job: subprocess.Popen[str]) -> list[str]:
        """Command lines of what was still running."""
        left_over = self.processes(job)
        for pid in left_over:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(left_over.values())

    def processes(self, job: subprocess.Popen[str]) -> dict[int, str]:
        """Command lines of the living processes of its session, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # gone meanwhile
                continue
            if int(session) == job.pid and state != "Z":
                found[int(folder.name)] = command
        return found


@dataclass(frozen=True)
class FinishedJob:
    returncode: int
    output: str
    errors: str
    left_over: list[str]


@dataclass(frozen=True)
class DebugRun:
    """The whole ``debug`` recipe, run once for all tests; read only."""

    folder: Path
    job: FinishedJob

    def copy(self, target: Path, *stages: str) -> Path:
        """A run folder of one's own that has these stages finished."""
        for stage in stages:
            shutil.copytree(self.folder / stage, target / stage)
        return target


@pytest.fixture(scope="session")
def debug_run(jobs: Jobs, free_port: Callable[[], int]) -> DebugRun:
    folder = jobs.cwd / "runs" / "debug"
    job = jobs.run("end_to_end", "--recipe", "debug", "--run", folder, "--set", f"serve.port={free_port()}")
    assert job.returncode == 0, job.errors
    return DebugRun(folder, job)


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Gives a port of this machine on which nothing listens."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find


@pytest.fixture(scope="session")
def s3_environment(free_port: Callable[[], int]) -> Iterator[dict[str, str]]:
    """What leads a process to an S3 service that runs while the tests do."""
    with s3_server(free_port()) as environment:
        os.environ.update(environment)
        yield environment


@pytest.fixture
def bucket(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty bucket of one's own, and an empty cache for what is fetched from it."""
    monkeypatch.setenv("RAGRAY_CACHE", str(tmp_path / "cache"))
    place = location(f"s3://{uuid.uuid4().hex}")
    place.mkdir()
    return place


def _texts() -> list[str]:
    return [f"Title: {p.title}\n{p.text}" for p in PASSAGES] + [f"Question: {q}\nAnswer:" for q in QUESTIONS]


_LLAMA_LIKE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}


def _byte_tokenizer(special: Sequence[str], frame: str | None = None, **names: str) -> PreTrainedTokenizerFast:
    return tiny.byte_tokenizer(_texts(), special, frame, **names)


def _save_causal(folder: Path, kind: str, **options: Any) -> Path:
    """A random decoder-only model with a byte-level BPE tokenizer; it likes its end token, so that answers end."""
    import transformers

    name = "<|endoftext|>" if kind == "qwen2" else tiny.END  # transformers' tokenizer of Qwen 2 adds it if it's missing
    tokenizer = _byte_tokenizer([name], eos_token=name)
    end = tokenizer.eos_token_id
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), eos_token_id=end, bos_token_id=None, pad_token_id=None, **options
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_output_embeddings().weight[end] *= 2
    return _save(folder, model, tokenizer)


def _save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
