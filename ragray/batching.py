"""Rows of token ids -> padded batches with little padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def token_budget_batches(lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Partition row positions into batches of similar length, longest first.

    A batch holds as many rows as ``longest * rows <= tokens_per_batch`` allows, and at least one.
    """
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    batches: list[list[int]] = []
    for position in order:
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= tokens_per_batch:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def distinct_batches(
    rows: Sequence[tuple[int, ...]], tokens_per_batch: int
) -> tuple[list[list[tuple[int, ...]]], list[int]]:
    """(batches of the distinct rows under the budget, for every row its place in the batches, one after the other)."""
    distinct = list(dict.fromkeys(rows))
    positions = token_budget_batches([len(row) for row in distinct], tokens_per_batch)
    batches = [[distinct[position] for position in batch] for batch in positions]
    places = {row: place for place, row in enumerate(row for batch in batches for row in batch)}
    return batches, [places[row] for row in rows]


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Right-pad rows to the longest: (ids, mask), both int64 of shape (rows, L); the mask is 1 on real tokens."""
    width = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[index, : len(row)] = 1
    return ids, mask
