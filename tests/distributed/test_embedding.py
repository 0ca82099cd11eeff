"""Embedding on the cluster gives the vectors of one process, in the order of the passages, and nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray
from ray.util.state import list_actors

from ragray import artifacts, parquet_files
from ragray.artifacts import InputRef, Plan
from ragray.config import EmbedConfig, EncoderConfig
from ragray.corpus.passages import content_hash
from ragray.distributed import embedding
from ragray.distributed.embedding import embed_passages, vectors_of
from ragray.encoders import Encoder
from ragray.records import PASSAGE_SCHEMA, InputError, Passage

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

CONFIG = EncoderConfig(model="tiny")
COLUMNS = [*PASSAGE_SCHEMA.names, "vector"]


def write_passages(folder, *parts):
    folder.mkdir()
    for number, part in enumerate(parts):
        rows = [{**passage.as_dict(), "hash": content_hash(passage)} for passage in part]
        file = folder / f"passages-{number:05d}.parquet"
        parquet_files.write(file, [pa.Table.from_pylist(rows, PASSAGE_SCHEMA)], PASSAGE_SCHEMA, {})
    return folder


@pytest.fixture
def many(passages):
    """14 passages."""
    rows = [Passage(f"q{n:02d}", p.title, f"{n} {p.text}" * (1 + n % 3)) for n, p in enumerate((*passages,) * 3)]
    return rows[:14]


@pytest.fixture
def embed(tmp_path, encoder_folder):
    def run(passages, name="embeddings", earlier=None, **settings):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        summary = embed_passages(
            passages,
            folder,
            str(encoder_folder),
            CONFIG,
            EmbedConfig(**{"dtype": "float32", "passages_per_file": 4, **settings}),
            num_actors=2,
            threads=1,
            tokens_per_batch=300,
            gpus_per_actor=0,
            progress=lambda done, total: None,
            earlier=earlier,
        )
        return summary, folder

    return run


@pytest.fixture
def as_artifact(tmp_path):
    """Makes an embeddings artifact of a folder of files."""

    def make(folder):
        plan = Plan("embeddings", {}, [InputRef(kind="encoder", fingerprint="e")])
        with artifacts.create(tmp_path / f"{folder.name}-whole", plan) as workspace:
            for file in folder.iterdir():
                (workspace.folder / file.name).write_bytes(file.read_bytes())
        return artifacts.open_artifact(tmp_path / f"{folder.name}-whole", "embeddings")

    return make


def table_of(folder):
    return pa.concat_tables([parquet_files.read(file, COLUMNS) for file in sorted(folder.glob("*.parquet"))])


def test_vectors_are_those_of_one_process_in_the_order_of_the_passages(embed, tmp_path, encoder_folder, many):
    summary, folder = embed(write_passages(tmp_path / "passages", many[:9], many[9:]))
    encoder = Encoder.load(encoder_folder, CONFIG)
    assert {key: summary[key] for key in ("num_passages", "num_files", "dimension", "num_embedded")} == {
        "num_passages": 14,
        "num_files": 5,
        "dimension": 32,
        "num_embedded": 14,
    }
    assert summary["num_tokens"] == sum(map(len, encoder.tokenize_passages(many)))
    table = table_of(folder)
    assert table.select(["id", "title", "text"]).to_pylist() == [passage.as_dict() for passage in many]
    vectors_ND = vectors_of(table)
    assert vectors_ND.dtype == np.float32
    np.testing.assert_allclose(vectors_ND, encoder.embed_passages(many), rtol=1e-4, atol=1e-5)


def test_half_precision_is_stored_on_demand(embed, tmp_path, many):
    passages = write_passages(tmp_path / "passages", many)
    half, whole = vectors_of(table_of(embed(passages, "half", vectors="float16")[1])), embed(passages, "whole")[1]
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, vectors_of(table_of(whole)), rtol=1e-3, atol=1e-3)


def test_an_interrupted_run_embeds_only_what_is_missing(embed, tmp_path, many):
    passages = write_passages(tmp_path / "passages", many[:9], many[9:])
    first, folder = embed(passages)
    files = sorted(folder.iterdir())
    whole, lost = files[2].read_bytes(), files[2]
    lost.unlink()
    times = {file: file.stat().st_mtime_ns for file in files if file != lost}
    again = embed(passages)[0]
    of_a_run = ("encoder_seconds", "tokens_per_encoder_second", "share_of_peak")
    assert {key: again[key] for key in again if key not in of_a_run} == {
        key: first[key] for key in first if key not in of_a_run
    }
    assert lost.read_bytes() == whole
    assert {file: file.stat().st_mtime_ns for file in files if file != lost} == times


def test_of_a_changed_corpus_only_what_is_new_goes_through_the_model(embed, as_artifact, tmp_path, many):
    earlier = as_artifact(embed(write_passages(tmp_path / "p1", many[:9], many[9:]), "e1")[1])
    changed = [passage for passage in many[::-1] if passage.id not in ("q03", "q04")]  # two deleted, order turned
    changed[2] = Passage(changed[2].id, changed[2].title, changed[2].text + " Changed.")
    changed.insert(5, Passage("new", "New", "One that wasn't there."))
    changed.append(Passage("moved", many[7].title, many[7].text))  # another id, a known content
    passages = write_passages(tmp_path / "p2", changed[:6], changed[6:])
    summary, folder = embed(passages, "e2", earlier)
    assert summary["num_embedded"] == 2
    full_summary, full = embed(passages, "e3")
    assert full_summary["num_embedded"] == 14
    ours, theirs = table_of(folder), table_of(full)
    assert ours.drop_columns("vector") == theirs.drop_columns("vector")
    np.testing.assert_allclose(vectors_of(ours), vectors_of(theirs), rtol=1e-4, atol=1e-5)
    known = {row["hash"]: row["vector"] for row in table_of(earlier.folder).to_pylist()}
    kept = [row for row in ours.to_pylist() if row["hash"] in known]
    assert len(kept) == 12
    assert all(row["vector"] == known[row["hash"]] for row in kept)  # bit by bit


def test_of_an_unchanged_corpus_nothing_does(embed, as_artifact, tmp_path, many):
    passages = write_passages(tmp_path / "passages", many)
    first = embed(passages, "e1")[1]
    summary, second = embed(passages, "e2", as_artifact(first))
    assert (summary["num_embedded"], summary["num_batches"]) == (0, 0)
    assert table_of(second) == table_of(first)


def test_a_number_that_half_precision_cannot_hold_is_refused(many):
    vectors_ND = np.full((2, 3), 1e6, np.float32)
    with np.errstate(over="ignore"):
        stored_ND = vectors_ND.astype(np.float16)
    with pytest.raises(
        InputError, match=r"passage 'q00' has a vector with a number of 1e\+06: set embed.vectors=float32"
    ):
        embedding._check_finite(stored_ND, vectors_ND, many[:2])


def test_a_killed_encoder_actor_costs_only_time(embed, tmp_path, many):
    """The actor's process is killed when the first file is there, in the middle of the rest."""
    passages = write_passages(tmp_path / "passages", [replace(p, id=f"{p.id}-{n}") for n in range(30) for p in many])
    killed, address = [], ray.get_runtime_context().gcs_address

    def kill():
        while not list((tmp_path / "embeddings").glob("embeddings-*.parquet")):
            time.sleep(0.01)
        actors = [actor for actor in list_actors(address) if actor.class_name.startswith("MapWorker") and actor.pid]
        killed.append(next(actor.pid for actor in actors if actor.state == "ALIVE"))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    summary, folder = embed(passages)
    killer.join()
    assert killed
    assert summary["num_embedded"] == 30 * 14
    ids = table_of(folder).column("id").to_pylist()
    assert ids == [row["id"] for row in parquet_files.read(passages / "passages-00000.parquet", ["id"]).to_pylist()]
    assert not list(folder.glob(".*"))


def test_a_lost_node_costs_only_time(tmp_path, encoder_folder, many):
    rows = [replace(p, id=f"{p.id}-{n}", text=f"{n} {p.text}") for n in range(50) for p in many]
    passages = write_passages(tmp_path / "passages", rows)
    (tmp_path / "embeddings").mkdir()
    program = Path(__file__).parent / "lose_a_node.py"
    result = tmp_path / "result.json"
    subprocess.run(
        [sys.executable, program, passages, tmp_path / "embeddings", encoder_folder, result],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        capture_output=True,
        timeout=200,
    )
    told = json.loads(result.read_text())
    assert told["nodes_alive"] == 2
    assert told["files_at_loss"][0] < 35
    assert told["summary"]["num_embedded"] == 700
    assert table_of(tmp_path / "embeddings").column("id").to_pylist() == [row.id for row in rows]
