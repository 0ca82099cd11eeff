"""Shards built on the cluster hold every passage once, in order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragray.config import IndexConfig
from ragray.distributed.indexing import build_index
from ragray.index_shard import IndexShard, ShardSet, shard_folder
from ragray.records import InputError, embedding_schema

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

VECTORS_ND = np.random.default_rng(0).normal(size=(23, 8)).astype(np.float32)


@pytest.fixture
def embeddings(tmp_path):
    """23 vectors in files of 10, 10 and 3."""
    folder = tmp_path / "embeddings"
    folder.mkdir()
    for number, start in enumerate((0, 10, 20)):
        rows = [
            {"id": f"p{row:02d}", "title": "t", "text": f"text {row}", "vector": VECTORS_ND[row].tolist()}
            for row in range(start, min(start + 10, 23))
        ]
        table = pa.Table.from_pylist(rows, embedding_schema(8))
        pq.write_table(table, folder / f"embeddings-{number:05d}.parquet")
    return folder


def build(embeddings, folder, **settings):
    folder.mkdir(exist_ok=True)
    return build_index(embeddings, folder, IndexConfig(**settings), 2, lambda done, total: None)


@pytest.mark.parametrize("num_shards", [1, 4])
def test_every_passage_is_found_by_its_own_vector(embeddings, tmp_path, num_shards):
    summary = build(embeddings, tmp_path / "index", num_shards=num_shards)
    assert summary["num_passages"] == sum(summary["rows_per_shard"]) == 23
    assert max(summary["rows_per_shard"]) - min(summary["rows_per_shard"]) <= 1
    shards = ShardSet([IndexShard(shard_folder(tmp_path / "index", n), "v1") for n in range(num_shards)])
    unit_ND = VECTORS_ND / np.linalg.norm(VECTORS_ND, axis=1, keepdims=True)
    hits = shards.search(unit_ND * 100, 23)
    nearest = (unit_ND @ VECTORS_ND.T).argmax(1)
    assert [row[0] for row in hits.ids_BK] == [f"p{row:02d}" for row in nearest]
    assert all(len(set(row)) == 23 for row in hits.ids_BK)


def test_more_shards_than_passages_are_refused(embeddings, tmp_path):
    with pytest.raises(InputError, match=r"index.num_shards is 24, but there are only 23 passages"):
        build(embeddings, tmp_path / "index", num_shards=24)


def test_a_wrong_factory_is_refused_by_name(embeddings, tmp_path):
    with pytest.raises(InputError, match=r"index.factory .Flatt. can.t be built"):
        build(embeddings, tmp_path / "index", factory="Flatt")
