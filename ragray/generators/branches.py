"""Partial answers that grow from prompts: N branches over R prompts, whose keys and values they share.

In a beam search many partial answers continue the same prompt.  Copying the prompt's keys and values for each of them
costs more than the computing; so a branch has keys and values of its own for its own tokens only, and its attention
reads the prompt's where they are.  Branches are in step: all have the same number of tokens.

It works inside the models of transformers by two of their extension points: a cache whose layers know about prompts,
and an attention function that looks for what the cache has left on the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer

from ragray.records import InputError

_ATTENTION = "ragray_branches"


class KeysValues(NamedTuple):
    """Of one layer: (rows, heads, length, head size) each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is known of R prompts after reading them: every layer's keys and values, which of them are real, lengths."""

    layers: Sequence[KeysValues]
    mask_RL: Tensor
    length_R: Tensor

    def part(self, rows: slice) -> Prompts:
        """Those of a range of rows, without a copy."""
        layers = [KeysValues(keys[rows], values[rows]) for keys, values in self.layers]
        return Prompts(layers, self.mask_RL[rows], self.length_R[rows])


@dataclass(frozen=True, slots=True)
class Branches:
    """N partial answers: the prompt of each, and every layer's keys and values of their own tokens."""

    prompts: Prompts
    row_N: Tensor
    layers: Sequence[KeysValues] | None  # none before the first token
    num_tokens: int = 0

    def __len__(self) -> int:
        return len(self.row_N)

    def choose(self, parent_N: Tensor) -> Branches:
        """The branches at these places, each as often as it is named."""
        layers = self.layers and [KeysValues(*(states[parent_N] for states in layer)) for layer in self.layers]
        return Branches(self.prompts, self.row_N[parent_N], layers, self.num_tokens)


@dataclass(frozen=True, slots=True)
class Folding:
    """Puts the branches of a prompt side by side, (N, ...) -> (R, W, ...), and back; W is the most that one has."""

    place_N: Tensor
    num_rows: int
    width: int

    @classmethod
    def of(cls, row_N: Tensor, num_rows: int) -> Folding:
        count_R = torch.bincount(row_N, minlength=num_rows)
        order_N = torch.argsort(row_N, stable=True)
        first_R = count_R.cumsum(0) - count_R
        rank_N = torch.empty_like(row_N)
        rank_N[order_N] = torch.arange(len(row_N), device=row_N.device) - first_R[row_N[order_N]]
        width = int(count_R.max())
        return cls(row_N * width + rank_N, num_rows, width)

    def fold(self, x: Tensor) -> Tensor:
        """(N, ...) -> (R, W, ...); zeros where a prompt has fewer than W branches."""
        folded = x.new_zeros(self.num_rows * self.width, *x.shape[1:])
        folded[self.place_N] = x
        return folded.view(self.num_rows, self.width, *x.shape[1:])

    def unfold(self, x: Tensor) -> Tensor:
        """(R, W, ...) -> (N, ...)."""
        return x.flatten(0, 1)[self.place_N]


@dataclass(frozen=True, slots=True)
class _Shared:
    """One layer's prompt, as the attention function finds it."""

    prompt: KeysValues
    mask_RL: Tensor
    folding: Folding
    has_own: bool


class _BranchLayer(DynamicLayer):
    """A cache layer that holds the tokens of branches and leaves word of the prompt on the keys it returns."""

    def __init__(self, own: KeysValues | None, shared: _Shared | None) -> None:
        super().__init__()
        self._shared = shared
        if own is not None:
            self.lazy_initialization(*own)
            self.keys, self.values = own

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        keys.ragray_shared = self._shared  # type: ignore[attr-defined]
        return keys, values


def own_cache(branches: Branches, folding: Folding | None) -> Cache:
    """A cache to extend the branches with; with a folding, attention reads their prompts too (decoder-only models)."""
    prompts = branches.prompts
    layers: list[Any] = []
    for number, prompt in enumerate(prompts.layers):
        shared = None if folding is None else _Shared(prompt, prompts.mask_RL, folding, has_own=True)
        layers.append(_BranchLayer(branches.layers[number] if branches.layers else None, shared))
    return Cache(layers=layers)


def prompt_cache(prompts: Prompts, folding: Folding) -> Cache:
    """A cache of the prompts alone, for the cross-attention of sequence-to-sequence models."""
    layers: list[Any] = []
    for prompt in prompts.layers:
        layer = _BranchLayer(prompt, None)
        layer.keys = prompt.keys.view_as(prompt.keys)  # a view: what is left on it stays off the prompt's own
        layer.keys.ragray_shared = _Shared(prompt, prompts.mask_RL, folding, has_own=False)  # type: ignore[attr-defined]
        layers.append(layer)
    return Cache(layers=layers)


def held_by(cache: Cache) -> list[KeysValues]:
    """Every layer's keys and values."""
    layers: list[Any] = cache.layers
    return [KeysValues(layer.keys, layer.values) for layer in layers]


def check_window(window: int | None, length: int) -> None:
    """Refuse what a sliding window would cut: padding and shared prompts would have to be counted differently there.

    Raises:
        InputError: if ``length`` tokens are more than the window has.
    """
    if window is not None and length > window:
        raise InputError(
            f"a prompt with its answer has {length} tokens, over the sliding window of {window} that this generator's "
            "attention has: lower generator.max_passage_tokens"
        )


@contextmanager
def branch_attention(model: nn.Module) -> Iterator[None]:
    """Within it, the model's attention is that of branches."""
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "config")]
    configs = {id(module.config): module.config for module in modules}
    before = {key: config._attn_implementation for key, config in configs.items()}
    AttentionInterface.register(_ATTENTION, _attend)
    for config in configs.values():
        config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """softmax(q·k * scaling + bias) v over the prompt's keys and the branch's own, as far as there are such.

    Shapes: query (N, H, T, d); key and value (N, H', t, d), H' <= H dividing it.  Returns (N, T, H, d).
    """
    cross = hasattr(key, "ragray_shared") and key.ragray_shared is not None and not key.ragray_shared.has_own
    if not hasattr(key, "ragray_shared") or others.get("s_aux") is not None or (cross and softcap is not None):
        raise InputError(f"{type(module).__name__} uses attention in a way that ragray's decoding doesn't know")
    shared: _Shared | None = key.ragray_shared
    check_window(others.get("sliding_window"), key.shape[2] + (shared.mask_RL.shape[1] if shared else 0))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if shared is not None and cross:
        attended = _prompt_attention(shared.folding.fold(query), shared, scale)
        return shared.folding.unfold(attended).transpose(1, 2), None
    own_scores = _scores(query, key, scale, softcap)
    if position_bias is not None:
        own_scores = own_scores + position_bias
    own_scores = own_scores + _causal(query.shape[2], key.shape[2], own_scores)
    if shared is None:
        weights = _softmax(own_scores).to(value.dtype)
        return _weighted(weights, value).transpose(1, 2), None
    query_RW = shared.folding.fold(query)
    prompt_scores = shared.folding.unfold(_prompt_scores(query_RW, shared, scale, softcap))
    scores = torch.cat([prompt_scores, own_scores], dim=-1)
    weights = _softmax(scores).to(value.dtype)
    split = prompt_scores.shape[-1]
    own = _weighted(weights[..., split:], value)
    weights_RW = shared.folding.fold(weights[..., :split])
    attended = own + shared.folding.unfold(_prompt_weighted(weights_RW, shared.prompt.values))
    return attended.transpose(1, 2), None


def _prompt_attention(query_RWHTd: Tensor, shared: _Shared, scale: float) -> Tensor:
    """(R, W, H, T, d): every branch's queries against its prompt alone."""
    num_rows, width, heads, length, size = query_RWHTd.shape
    query = query_RWHTd.transpose(1, 2).reshape(num_rows, heads, width * length, size)
    keys, values = shared.prompt
    mask = shared.mask_RL.bool()[:, None, None]
    grouped = keys.shape[1] != heads
    attended = nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
    )
    return attended.view(num_rows, heads, width, length, -1).transpose(1, 2)


def _prompt_scores(query_RWHTd: Tensor, shared: _Shared, scale: float, softcap: float | None) -> Tensor:
    """(R, W, H, T, L): every branch's queries against its prompt's keys."""
    keys = shared.prompt.keys
    num_rows, width, heads, length, size = query_RWHTd.shape
    groups = keys.shape[1]
    query = query_RWHTd.view(num_rows, width, groups, heads // groups, length, size).transpose(1, 2)
    scores = query.reshape(num_rows, groups, -1, size) @ keys.transpose(2, 3)
    scores = _capped(scores * scale, softcap)
    scores = scores.masked_fill(~shared.mask_RL.bool()[:, None, None], -torch.inf)
    scores = scores.view(num_rows, groups, width, heads // groups, length, -1).transpose(1, 2)
    return scores.reshape(num_rows, width, heads, length, -1)


def _prompt_weighted(weights_RWHTL: Tensor, values: Tensor) -> Tensor:
    """(R, W, H, T, d): what the prompt's values amount to under the weights."""
    num_rows, width, heads, length, prompt_length = weights_RWHTL.shape
    groups = values.shape[1]
    weights = weights_RWHTL.view(num_rows, width, groups, heads // groups, length, prompt_length).transpose(1, 2)
    weighted = weights.reshape(num_rows, groups, -1, prompt_length) @ values
    weighted = weighted.view(num_rows, groups, width, heads // groups, length, -1).transpose(1, 2)
    return weighted.reshape(num_rows, width, heads, length, -1)


def _scores(query: Tensor, key: Tensor, scale: float, softcap: float | None) -> Tensor:
    """(N, H, T, t): queries against a branch's own keys."""
    number, heads, length, size = query.shape
    grouped = query.reshape(number, key.shape[1], -1, size) @ key.transpose(2, 3)
    return _capped(grouped * scale, softcap).view(number, heads, length, -1)


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    number, heads, length, _ = weights.shape
    grouped = weights.reshape(number, value.shape[1], -1, weights.shape[-1]) @ value
    return grouped.view(number, heads, length, -1)


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def _causal(length: int, total: int, like: Tensor) -> Tensor:
    """0 where a token sees another, -inf where it doesn't: the last ``length`` of ``total`` tokens ask."""
    hidden = torch.ones(length, total, dtype=torch.bool, device=like.device).triu(total - length + 1)
    return torch.zeros(length, total, dtype=like.dtype, device=like.device).masked_fill(hidden, -torch.inf)
