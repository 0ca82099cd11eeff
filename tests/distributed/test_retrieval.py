"""Actors answer as one process would, and survive the death of one of them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import ray

from ragray.artifacts import Plan, create, open_artifact
from ragray.distributed.retrieval import ClusterRetriever, RetrievalError
from ragray.index_shard import IndexShard, build_shard, shard_folder
from ragray.records import InputError, Passage

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

VECTORS_ND = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
VECTORS_ND[30:40] = VECTORS_ND[3]  # equal scores, in several shards
QUERIES_BD = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
QUERIES_BD[0] = VECTORS_ND[3]
PASSAGES = [Passage(f"p{(7 * row) % 60:02d}", "title", f"text {row}") for row in range(60)]


@pytest.fixture
def index(tmp_path, passage_table):
    """Three shards of 20 passages."""
    with create(tmp_path / "3-index", Plan("index", {}, [])) as workspace:
        for number in range(3):
            rows = slice(20 * number, 20 * number + 20)
            build_shard(shard_folder(workspace.folder, number), VECTORS_ND[rows], passage_table(PASSAGES[rows]), "Flat")
        workspace.summary["num_shards"] = 3
    return open_artifact(tmp_path / "3-index", "index")


@pytest.fixture
def retriever(index):
    retriever = ClusterRetriever.start(index)
    yield retriever
    retriever.stop()


@pytest.mark.parametrize("k", [1, 7, 100])
def test_sharded_actors_answer_as_one_shard_in_this_process(index, retriever, tmp_path, passage_table, k):
    build_shard(tmp_path / "whole", VECTORS_ND, passage_table(PASSAGES), "Flat")
    expected = IndexShard(tmp_path / "whole", index.fingerprint).search(QUERIES_BD, k)
    hits = retriever.search(QUERIES_BD, k)
    assert hits.ids_BK == expected.ids_BK
    assert hits.index_version == index.fingerprint
    np.testing.assert_array_equal(hits.vectors_BKD, expected.vectors_BKD)
    np.testing.assert_allclose(hits.scores_BK, expected.scores_BK, rtol=1e-6)


def test_a_killed_actor_comes_back_and_the_search_is_answered(retriever):
    before = retriever.search(QUERIES_BD, 9)
    pid = ray.get(retriever.actors[1].__ray_call__.remote(lambda actor: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    assert retriever.search(QUERIES_BD, 9).ids_BK == before.ids_BK
    assert ray.get(retriever.actors[1].__ray_call__.remote(lambda actor: os.getpid())) != pid


def test_a_copy_in_another_process_asks_the_same_actors(retriever):
    search = ray.remote(lambda copy, queries_BD: copy.search(queries_BD, 4).ids_BK)
    assert ray.get(search.remote(retriever, QUERIES_BD)) == retriever.search(QUERIES_BD, 4).ids_BK


def test_a_stopped_retriever_says_so_within_its_time(index):
    retriever = replace(ClusterRetriever.start(index), timeout_s=2.0)
    retriever.stop()
    started = time.monotonic()
    with pytest.raises(RetrievalError, match=rf"shard 0 of index {index.fingerprint} gave no answer within 2 s"):
        retriever.search(QUERIES_BD, 4)
    assert time.monotonic() - started < 10


def test_a_refusal_of_a_shard_is_told_as_such(retriever):
    with pytest.raises(InputError, match="8-d vectors"):
        retriever.search(np.zeros((1, 5), np.float32), 4)
