"""Exact, deterministic top-k: best score first, ties by id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def order_topk(scores_M: npt.NDArray[np.float32], ids_M: Sequence[str], k: int) -> npt.NDArray[np.intp]:
    """Positions of the ``min(k, M)`` best candidates of one question, best first, equal scores by ascending id.

    The order doesn't depend on the order of the candidates, so the merge of per-shard results is the same whatever the
    number of shards.  NaN scores rank last.

    Raises:
        ValueError: if k < 1 or the lengths differ.
    """
    if k < 1:
        raise ValueError(f"k must be >= 1, got {k}")
    if len(scores_M) != len(ids_M):
        raise ValueError(f"{len(scores_M)} scores for {len(ids_M)} ids")
    descending = -np.nan_to_num(np.asarray(scores_M, dtype=np.float64), nan=-np.inf)
    return np.lexsort((np.asarray(ids_M, dtype=np.str_), descending))[:k]
