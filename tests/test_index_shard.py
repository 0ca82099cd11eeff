from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.index_shard import IndexShard, ShardSet, build_shard, merge_hits
from ragray.records import FloatArray, Hits, InputError


def shards(folder: Path, vectors_ND: FloatArray, count: int, factory: str = "Flat", seed: int = 0) -> ShardSet:
    """``count`` shards over the vectors in shuffled order; the id of a passage is its row."""
    rows_N = np.random.default_rng(seed).permutation(len(vectors_ND))
    for number, rows in enumerate(np.array_split(rows_N, count)):
        table = pa.table({"id": [f"p{row:04}" for row in rows], "title": ["t"] * len(rows), "text": ["x"] * len(rows)})
        build_shard(folder / f"{count}-{number}", vectors_ND[rows], table, factory)
    return ShardSet([IndexShard(folder / f"{count}-{number}", "v1") for number in range(count)])


def brute_force(vectors_ND: FloatArray, query_D: FloatArray, k: int) -> list[str]:
    scores_N = vectors_ND.astype(np.float64) @ query_D
    return [f"p{row:04}" for row in sorted(range(len(scores_N)), key=lambda row: (-scores_N[row], row))[:k]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


@given(st.integers(0, 10**6), st.integers(1, 80), st.integers(1, 100))
def test_sharded_equals_brute_force_in_ids_and_order(tmp_path_factory, seed, num_passages, k):
    """Vectors of small integers: their scores are exact and full of ties, at the cut too."""
    random = np.random.default_rng(seed)
    vectors_ND = random.integers(-1, 2, size=(num_passages, 3)).astype(np.float32)
    queries_BD = random.integers(-1, 2, size=(4, 3)).astype(np.float32)
    expected = [brute_force(vectors_ND, query, k) for query in queries_BD]
    for count in {1, 2, min(5, num_passages)}:
        hits = shards(tmp_path_factory.mktemp("s"), vectors_ND, count, seed=seed).search(queries_BD, k)
        assert hits.ids_BK == expected


def test_the_number_of_shards_changes_no_bit_of_a_score(folder):
    """Every vector has four copies here and there; were a score rounded by the place of its row, they would differ."""
    random = np.random.default_rng(0)
    vectors_ND = np.repeat(random.normal(size=(20, 100)).astype(np.float32), 4, axis=0)
    queries_BD = random.normal(size=(50, 100)).astype(np.float32)
    whole, split = (shards(folder, vectors_ND, count).search(queries_BD, 80) for count in (1, 7))
    assert whole.ids_BK == split.ids_BK
    assert (whole.scores_BK == split.scores_BK).all()


def test_more_ties_than_spare_candidates_are_still_ordered_by_id(folder):
    vectors_ND = np.random.default_rng(0).normal(size=(300, 100)).astype(np.float32)
    vectors_ND[50:150] = 3 * vectors_ND[50]
    expected = [f"p{row:04}" for row in range(50, 80)]
    for count in (1, 3):
        assert shards(folder, vectors_ND, count).search(vectors_ND[50:51], 30).ids_BK == [expected]


def test_scores_are_inner_products_with_the_vectors_that_come_along(folder):
    vectors_ND = np.random.default_rng(1).normal(size=(60, 16)).astype(np.float32)
    queries_BD = vectors_ND[:5] + 0.01
    hits = shards(folder, vectors_ND, 2).search(queries_BD, 7)
    np.testing.assert_allclose(hits.scores_BK, np.einsum("bd,bkd->bk", queries_BD, hits.vectors_BKD), rtol=1e-5)
    for ids_K, vectors_KD in zip(hits.ids_BK, hits.vectors_BKD, strict=True):
        np.testing.assert_array_equal(vectors_KD, vectors_ND[[int(name[1:]) for name in ids_K]])
    assert hits.scores_BK.dtype == hits.vectors_BKD.dtype == np.float32
    assert hits.index_version == "v1"


def test_more_passages_than_there_are_is_no_error(folder):
    hits = shards(folder, np.eye(3, dtype=np.float32), 2).search(np.ones((2, 3), np.float32), 10)
    assert hits.ids_BK == [["p0000", "p0001", "p0002"]] * 2


@pytest.mark.parametrize("factory", ["IVF8,Flat", "HNSW16", "SQ8", "PQ4x4", "IVF8,PQ4x4"])
def test_approximate_indexes_give_k_passages_with_exact_scores(folder, factory):
    vectors_ND = np.random.default_rng(2).normal(size=(400, 16)).astype(np.float32)
    queries_BD = vectors_ND[:20]
    hits = shards(folder, vectors_ND, 1, factory).search(queries_BD, 100)
    assert hits.scores_BK.shape == (20, 100)
    assert all(len(set(ids)) == 100 for ids in hits.ids_BK)
    np.testing.assert_allclose(
        hits.scores_BK, np.einsum("bd,bkd->bk", queries_BD, hits.vectors_BKD), rtol=1e-4, atol=1e-5
    )
    assert (np.diff(hits.scores_BK) <= 0).all()


@pytest.mark.parametrize("shape", [(2, 5), (3,), (1, 2, 3)], ids=str)
def test_vectors_of_another_dimension_are_refused(folder, shape):
    with pytest.raises(InputError, match="3-d vectors"):
        shards(folder, np.eye(3, dtype=np.float32), 1).search(np.zeros(shape, np.float32), 1)


def test_k_below_one_is_refused(folder):
    with pytest.raises(InputError, match="k must be >= 1, got 0"):
        shards(folder, np.eye(3, dtype=np.float32), 1).search(np.zeros((1, 3), np.float32), 0)


@pytest.mark.parametrize("factory", ["Flatt", "", "IVF100,Flat", "PQ5", "IDMap"])
def test_a_factory_that_can_not_be_built_is_refused_by_name(tmp_path, factory):
    table = pa.table({"id": ["a", "b"], "title": ["", ""], "text": ["", ""]})
    with pytest.raises(InputError, match=f"index.factory '{factory}' can't be built over 2 vectors"):
        build_shard(tmp_path / "shard", np.eye(2, 8, dtype=np.float32), table, factory)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused(folder, wrong):
    vectors_ND = np.full((2, 3), wrong, np.float32)
    with pytest.raises(InputError, match="question vectors hold NaN or infinity"):
        shards(folder, np.eye(3, dtype=np.float32), 1).search(vectors_ND, 1)
    with pytest.raises(InputError, match="passage vectors hold NaN or infinity"):
        shards(folder, vectors_ND, 1)


def test_hits_of_two_index_versions_are_never_mixed():
    old, new = (Hits(np.zeros((1, 0), np.float32), np.zeros((1, 0, 2), np.float32), [[]], v) for v in ("v1", "v2"))
    with pytest.raises(InputError, match="one index version"):
        merge_hits([old, new], 1)
    with pytest.raises(InputError, match="got no hits"):
        merge_hits([], 1)
