from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.formulas.topk import order_topk

# Few distinct scores, so that ties are common.
candidates = st.dictionaries(
    st.text(st.characters(min_codepoint=33, max_codepoint=500), min_size=1, max_size=5),
    st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.25, 2.0, math.inf]),
    min_size=1,
    max_size=12,
)


@given(candidates, st.integers(1, 15), st.randoms(use_true_random=False))
def test_equals_a_plain_sort_whatever_the_order_of_the_candidates(scores_by_id, k, random):
    expected = sorted(scores_by_id, key=lambda name: (-scores_by_id[name], name))[:k]
    ids = list(scores_by_id)
    random.shuffle(ids)
    order = order_topk(np.array([scores_by_id[name] for name in ids], dtype=np.float32), ids, k)
    assert [ids[position] for position in order] == expected


def test_nan_ranks_last():
    assert order_topk(np.float32([math.nan, -math.inf, 1.0]), ["a", "b", "c"], 3).tolist() == [2, 1, 0]


def test_refuses_k_below_one_and_unequal_lengths():
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        order_topk(np.float32([1.0]), ["a"], 0)
    with pytest.raises(ValueError, match="1 scores for 2 ids"):
        order_topk(np.float32([1.0]), ["a", "b"], 1)
