"""Embedding on the cluster gives the vectors of one process, in the order of the passages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragray.config import EmbedConfig, EncoderConfig
from ragray.distributed.embedding import embed_passages
from ragray.encoders import Encoder
from ragray.records import PASSAGE_SCHEMA, Passage

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

CONFIG = EncoderConfig(model="tiny")


@pytest.fixture
def many_passages(tmp_path, passages):
    """14 passages in two files."""
    rows = [Passage(f"q{n:02d}", p.title, " ".join([p.text] * (1 + n % 3))) for n, p in enumerate((*passages,) * 3)][
        :14
    ]
    (tmp_path / "passages").mkdir()
    for number, part in enumerate((rows[:9], rows[9:])):
        table = pa.Table.from_pylist([passage.as_dict() for passage in part], PASSAGE_SCHEMA)
        pq.write_table(table, tmp_path / "passages" / f"passages-{number:05d}.parquet")
    return rows


@pytest.fixture
def embed(tmp_path, encoder_folder, many_passages):
    (tmp_path / "embeddings").mkdir()

    def run():
        return embed_passages(
            tmp_path / "passages",
            tmp_path / "embeddings",
            str(encoder_folder),
            CONFIG,
            EmbedConfig(dtype="float32", passages_per_file=4),
            num_actors=2,
            threads=1,
            tokens_per_batch=300,
            gpus_per_actor=0,
            progress=lambda done, total: None,
        )

    return run


def test_vectors_are_those_of_one_process_in_the_order_of_the_passages(embed, tmp_path, encoder_folder, many_passages):
    assert embed() == {"num_passages": 14, "num_files": 5, "dimension": 32}
    files = sorted((tmp_path / "embeddings").iterdir())
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table.select(["id", "title", "text"]).to_pylist() == [passage.as_dict() for passage in many_passages]
    vectors_ND = np.stack(table.column("vector").to_numpy())
    assert vectors_ND.dtype == np.float32
    np.testing.assert_allclose(
        vectors_ND, Encoder.load(encoder_folder, CONFIG).embed_passages(many_passages), rtol=1e-4, atol=1e-5
    )


def test_an_interrupted_run_embeds_only_what_is_missing(embed, tmp_path):
    embed()
    files = sorted((tmp_path / "embeddings").iterdir())
    whole, lost = files[2].read_bytes(), files[2]
    lost.unlink()
    times = {file: file.stat().st_mtime_ns for file in files if file != lost}
    embed()
    assert lost.read_bytes() == whole
    assert {file: file.stat().st_mtime_ns for file in files if file != lost} == times
