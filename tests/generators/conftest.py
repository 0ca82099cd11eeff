"""One generator of every architecture, and the plain reference: one row at a time, no cache, no batch, no padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ragray.config import GeneratorConfig
from ragray.generators.base import Generator
from ragray.generators.loading import load_generator
from ragray.generators.prompt import PassagesBK, Row
from ragray.records import Passage

KINDS = ("llama", "gpt2", "qwen2", "gemma2", "bart", "t5")
Load = Callable[..., Generator]


@pytest.fixture(scope="session")
def load(request: pytest.FixtureRequest) -> Load:
    """(architecture or folder, how it is loaded, settings of its prompt) -> a generator of one's own."""

    def load_one(
        kind: str | Path, dtype: torch.dtype = torch.float32, attention: str | None = None, **settings: Any
    ) -> Generator:
        folders = {name: f"{name}_folder" for name in KINDS} | {"llama": "generator_folder"}
        folder = request.getfixturevalue(folders[kind]) if isinstance(kind, str) else kind
        settings = {"max_answer_tokens": 8, **settings}
        return load_generator(folder, GeneratorConfig(model="tiny", **settings), dtype, attention)

    return load_one


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def generator(load: Load, kind: str) -> Generator:
    """Of every architecture, in float32."""
    return load(kind)


@pytest.fixture
def exact(load: Load, kind: str, float64_throughout: None) -> Generator:
    """Of every architecture, in float64."""
    return load(kind, torch.float64)


@pytest.fixture
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of transformers compute norms and softmax in float32, even if they are float64: here they don't."""
    to, to_float, softmax = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax

    def keep(convert: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def converted(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
            down = tensor.dtype == torch.float64 and (not args or args[0] == torch.float32) and not options
            return tensor if down else convert(tensor, *args, **options)

        return converted

    def keeping_softmax(tensor: Tensor, dim: int, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return softmax(tensor, dim=dim, dtype=None if tensor.dtype == torch.float64 else dtype)

    monkeypatch.setattr(torch.Tensor, "to", keep(to))
    monkeypatch.setattr(torch.Tensor, "float", keep(to_float))
    monkeypatch.setattr(torch.nn.functional, "softmax", keeping_softmax)


@pytest.fixture(scope="session")
def passages_BK(passages: Sequence[Passage]) -> PassagesBK:
    """Three questions with three passages each: one is shared by all, one far shorter, the last row has one twice."""
    short, long = passages[4], passages[0]
    return [[long, passages[2], short], [short, long, passages[3]], [passages[5], long, passages[5]]]


@pytest.fixture(scope="session")
def plain_logits() -> Callable[[Generator, Row, Sequence[int]], Tensor]:
    """The logits before each of some tokens that follow a prompt, and after the last: (T + 1, V)."""

    def read(generator: Generator, row: Row, tokens: Sequence[int]) -> Tensor:
        prompt = (*row.passage, *row.question)
        if generator.model.config.is_encoder_decoder:
            decoder = torch.tensor([[generator.decoder_start, *tokens]])  # type: ignore[attr-defined]
            output = generator.model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder, use_cache=False)
            return output.logits[0]
        output = generator.model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False)
        return output.logits[0, len(prompt) - 1 :]

    return read


@pytest.fixture(scope="session")
def count_elements() -> Callable[[Callable[[], Tensor]], int]:
    """How many numbers autograd keeps for the backward pass of what a function computes; weights don't count."""

    def count(compute: Callable[[], Tensor]) -> int:
        kept: dict[tuple[int, tuple[int, ...]], Tensor] = {}

        def note(tensor: Tensor) -> Tensor:
            if not tensor.is_leaf or not tensor.requires_grad:
                kept[tensor.data_ptr(), tuple(tensor.shape)] = tensor  # held: its place isn't given to another
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            compute()
        return sum(tensor.numel() for tensor in kept.values() if tensor.is_floating_point())

    return count
