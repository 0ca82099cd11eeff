"""Log-probabilities of target tokens from logits, with a gradient, and without a second array of the logits' size.

A vocabulary is large, so that M rows of logits can be the biggest array of a training step, and log_softmax, gather and
their gradients make three more of its size.  Here the rows are worked through in chunks small enough for the
processor's cache, and the gradient that backward returns is the only other (M, V) array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 2**20


def target_logprobs(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """(1 - eps) * log p(target) + eps * mean_V log p, where log p = log_softmax(logits) and eps = ``label_smoothing``.

    With one passage a question this is ``-torch.nn.functional.cross_entropy(..., label_smoothing=eps)`` (Szegedy et al.
    2016, arXiv 1512.00567).  With more, smoothing is applied to each passage, before the marginal.  The RAG of
    transformers smooths the marginal instead and needs a (B, K, T, V) array for it.

    A target whose logit is ``-inf`` is impossible: ``-inf``, with a finite gradient.  Rows whose incoming gradient is 0
    (padding) get a gradient of exactly 0, even if all of their logits are ``-inf``.  There is no second derivative.

    Args:
        logits: (..., V), of any floating dtype; the gradient has the same.
        targets: (...), int64, each in [0, V).

    Returns:
        (...), float32 or, for float64 logits, float64.

    Raises:
        ValueError: if ``label_smoothing`` is outside [0, 1), or the shapes don't belong together.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"targets of shape {tuple(targets.shape)} for logits of shape {tuple(logits.shape)}")
    rows_MV, targets_M1 = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1, 1)
    logprobs_M1: Tensor = _TargetLogprobs.apply(rows_MV, targets_M1, label_smoothing)  # type: ignore[no-untyped-call]
    return logprobs_M1.view(targets.shape)


def log_normalizer(logits: Tensor) -> Tensor:
    """logsumexp over the vocabulary, (..., V) -> (...), float32 or, for float64 logits, float64; without gradient."""
    rows_MV = logits.reshape(-1, logits.shape[-1])
    buffer_CV = _chunk_buffer(rows_MV)
    normalizer_M = buffer_CV.new_empty(len(rows_MV))
    for rows, normalizer in _chunks(rows_MV, normalizer_M):
        torch.logsumexp(rows.to(buffer_CV.dtype), dim=-1, out=normalizer)
    return normalizer_M.view(logits.shape[:-1])


class _TargetLogprobs(torch.autograd.Function):
    """Chunks of C rows; what is saved for backward is the input and one logsumexp a row."""

    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, targets_M1: Tensor, smoothing: float) -> Tensor:
        buffer_CV = _chunk_buffer(logits_MV)
        logprobs_M1 = buffer_CV.new_empty(len(logits_MV), 1)
        logsumexp_M1 = torch.empty_like(logprobs_M1)
        for logits, targets, logprobs, logsumexp in _chunks(logits_MV, targets_M1, logprobs_M1, logsumexp_M1):
            largest = logits.amax(1, keepdim=True).to(buffer_CV.dtype)
            shifted = torch.sub(logits, largest, out=buffer_CV[: len(logits)])
            chosen = shifted.gather(1, targets)
            if smoothing:
                chosen = (1 - smoothing) * chosen + smoothing * shifted.mean(1, keepdim=True)
            log_sum = shifted.exp_().sum(1, keepdim=True).log_()
            torch.sub(chosen, log_sum, out=logprobs)
            torch.add(largest, log_sum, out=logsumexp)
        ctx.save_for_backward(logits_MV, targets_M1, logsumexp_M1)
        ctx.smoothing = smoothing
        return logprobs_M1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_M1: Tensor) -> tuple[Tensor, None, None]:
        """gradient * ((1 - eps) * onehot + eps / V - softmax)."""
        logits_MV, targets_M1, logsumexp_M1 = ctx.saved_tensors
        smoothing: float = ctx.smoothing
        buffer_CV, result_MV = _chunk_buffer(logits_MV), torch.empty_like(logits_MV)
        # exp(logit - inf) is 0, where 0 * NaN would be NaN.
        logsumexp_M1 = logsumexp_M1.masked_fill(gradient_M1 == 0, torch.inf)
        for logits, targets, logsumexp, gradient, result in _chunks(
            logits_MV, targets_M1, logsumexp_M1, gradient_M1, result_MV
        ):
            difference = torch.sub(logits, logsumexp, out=buffer_CV[: len(logits)]).exp_()
            difference.scatter_add_(1, targets, torch.full_like(logsumexp, smoothing - 1))
            if smoothing:
                difference.sub_(smoothing / logits.shape[1])
            torch.mul(difference, -gradient, out=result)
        return result_MV, None, None


def _rows_per_chunk(logits_MV: Tensor) -> int:
    return max(1, CHUNK_ELEMENTS // logits_MV.shape[1])


def _chunk_buffer(logits_MV: Tensor) -> Tensor:
    dtype = torch.promote_types(logits_MV.dtype, torch.float32)
    return logits_MV.new_empty(min(len(logits_MV), _rows_per_chunk(logits_MV)), logits_MV.shape[1], dtype=dtype)


def _chunks(logits_MV: Tensor, *others_MX: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same rows of every array."""
    rows = _rows_per_chunk(logits_MV)
    return zip(*(torch.split(array, rows) for array in (logits_MV, *others_MX)), strict=True)
