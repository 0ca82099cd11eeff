"""Corpus and artifacts in an object store: the same as on a disk."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.chunk_corpus import chunk_corpus
from pipelines.embed_passages import embed_passages
from pipelines.index_embeddings import index_embeddings
from pipelines.job import open_run
from ragray import artifacts, parquet_files
from ragray.artifacts import ArtifactError, verify_checksums
from ragray.index_shard import open_shards
from ragray.records import PASSAGE_SCHEMA, InputError
from ragray.storage import file_sizes, upload

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture
def remote_run(debug_run, bucket):
    """The debug recipe over a corpus in the bucket, in a run folder there."""
    upload(debug_run.folder / "0-demo" / "documents.jsonl", bucket / "corpus" / "documents.jsonl")
    return open_run("debug", str(bucket / "run"), [f"corpus={bucket / 'corpus'}"])


def test_the_stages_make_there_what_they_make_here(remote_run, debug_run):
    passages, embeddings, index = (stage(remote_run) for stage in (chunk_corpus, embed_passages, index_embeddings))
    local = artifacts.open_artifact(debug_run.folder / "1-passages", "passages")
    assert passages.manifest.summary == local.manifest.summary
    tables = [parquet_files.read(a.folder / "passages-00000.parquet", PASSAGE_SCHEMA.names) for a in (passages, local)]
    assert tables[0] == tables[1]
    assert embeddings.fingerprint != passages.fingerprint
    verify_checksums(index)
    here = artifacts.open_artifact(debug_run.folder / "3-index", "index")
    vectors_BD = np.random.default_rng(0).standard_normal((4, embeddings.manifest.summary["dimension"]))
    found, expected = (open_shards(a).search(vectors_BD.astype(np.float32), 5) for a in (index, here))
    assert found.ids_BK == expected.ids_BK
    np.testing.assert_allclose(found.scores_BK, expected.scores_BK, atol=1e-4)
    before = file_sizes(remote_run.folder)
    assert "1-passages/plan.json" not in before
    for stage in (chunk_corpus, embed_passages, index_embeddings):
        stage(remote_run)  # skipped
    assert file_sizes(remote_run.folder) == before


def test_work_that_was_interrupted_there_goes_on_and_what_is_whole_is_kept(remote_run):
    chunk_corpus(remote_run)
    embeddings = embed_passages(remote_run)
    listing = file_sizes(embeddings.folder)
    plan = remote_run.path("embeddings") / "plan.json"
    plan.write_text(f'{{"fingerprint": "{embeddings.fingerprint}"}}')  # as a killed run leaves it
    (embeddings.folder / "manifest.json").unlink()
    (embeddings.folder / "embeddings-00001.parquet").unlink()
    kept = (embeddings.folder / "embeddings-00000.parquet").stat().st_mtime
    with pytest.raises(ArtifactError, match=r"has no manifest\.json"):
        remote_run.open("embeddings")
    again = embed_passages(remote_run)
    assert file_sizes(again.folder).keys() == listing.keys()
    assert (embeddings.folder / "embeddings-00000.parquet").stat().st_mtime == kept
    assert again.manifest.files[0] == embeddings.manifest.files[0]


def test_a_corpus_that_changes_in_its_place_is_another_one(remote_run, bucket, debug_run):
    chunk_corpus(remote_run)
    text = (debug_run.folder / "0-demo" / "documents.jsonl").read_text()
    (bucket / "corpus" / "documents.jsonl").write_text(text.replace("capital", "chief town"))
    with pytest.raises(ArtifactError, match=r"its corpus was .* and is now"):
        chunk_corpus(remote_run)


def test_nothing_there_is_an_error(bucket):
    with pytest.raises(InputError, match=r"no corpus at s3://"):
        chunk_corpus(open_run("debug", str(bucket / "run"), [f"corpus={bucket / 'nowhere'}"]))
