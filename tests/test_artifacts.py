from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

from ragray.artifacts import (
    MANIFEST,
    ArtifactError,
    DiskFullError,
    InputRef,
    Plan,
    content_fingerprint,
    create,
    find_finished,
    open_artifact,
    verify_checksums,
    write_atomically,
)
from ragray.records import InputError
from ragray.storage import BusyError

PLAN = Plan("index", {"num_shards": 2, "factory": "Flat"}, [InputRef(kind="embeddings", fingerprint="e1")])


def make(path: Path, plan: Plan = PLAN) -> None:
    with create(path, plan) as workspace:
        (workspace.folder / "shard").mkdir(exist_ok=True)
        (workspace.folder / "shard" / "a.txt").write_text("first")
        (workspace.folder / "b.txt").write_text("second")
        workspace.summary["passages"] = 2


def partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def contents(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


# creating and opening


def test_what_is_created_can_be_opened(tmp_path):
    make(tmp_path / "3-index")
    artifact = open_artifact(tmp_path / "3-index", "index")
    verify_checksums(artifact)
    assert artifact.fingerprint == PLAN.fingerprint
    assert artifact.ref == InputRef(kind="index", fingerprint=PLAN.fingerprint)
    assert artifact.input_fingerprint("embeddings") == "e1"
    assert artifact.manifest.summary == {"passages": 2}
    assert [entry.name for entry in artifact.manifest.files] == ["b.txt", "shard/a.txt"]
    assert set(contents(tmp_path)) == {f"3-index/{name}" for name in ("b.txt", "shard/a.txt", MANIFEST)}


def test_nothing_has_the_final_name_before_it_is_complete(tmp_path):
    path = tmp_path / "3-index"
    with create(path, PLAN) as workspace:
        (workspace.folder / "a").write_text("x")
        assert not path.exists()
    assert path.exists()
    assert not partial(path).exists()


def test_artifacts_are_never_overwritten(tmp_path):
    make(tmp_path / "3-index")
    with pytest.raises(ArtifactError, match="never overwritten"):
        make(tmp_path / "3-index")


def test_the_fingerprint_is_of_settings_and_inputs():
    def fingerprint(kind: str = "index", shards: int = 2, inputs: tuple[str, ...] = ("e1", "x1")) -> str:
        refs = [InputRef(kind=name[0], fingerprint=name) for name in inputs]
        return Plan(kind, {"factory": "Flat", "num_shards": shards}, refs).fingerprint

    assert fingerprint() == fingerprint(inputs=("x1", "e1"))
    assert len({fingerprint(), fingerprint("model"), fingerprint(shards=3), fingerprint(inputs=("e2", "x1"))}) == 4


def test_an_input_that_is_not_there_is_named(tmp_path):
    make(tmp_path / "3-index")
    with pytest.raises(ArtifactError, match="no input of kind 'model'"):
        open_artifact(tmp_path / "3-index", "index").input_fingerprint("model")


# continuing


def test_a_partial_folder_is_continued(tmp_path):
    path = tmp_path / "3-index"
    with pytest.raises(RuntimeError), create(path, PLAN) as workspace:
        (workspace.folder / "done.txt").write_text("kept")
        raise RuntimeError("interrupted")
    assert not path.exists()
    with create(path, PLAN) as workspace:
        assert (workspace.folder / "done.txt").read_text() == "kept"
    assert contents(path).keys() == {"done.txt", MANIFEST}


def test_a_partial_folder_of_other_settings_is_thrown_away(tmp_path):
    path = tmp_path / "3-index"
    with pytest.raises(RuntimeError), create(path, PLAN) as workspace:
        (workspace.folder / "done.txt").write_text("of other settings")
        raise RuntimeError("interrupted")
    make(path, Plan("index", {"num_shards": 3, "factory": "Flat"}, PLAN.inputs))
    assert "done.txt" not in contents(path)


def test_an_input_error_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError), create(tmp_path / "runs" / "3-index", PLAN) as workspace:
        (workspace.folder / "half.txt").write_text("x")
        raise InputError("line 3 of questions.jsonl is not JSON")
    assert list((tmp_path / "runs").iterdir()) == []


def test_temporary_files_of_a_killed_run_are_no_part_of_the_artifact(tmp_path):
    path = tmp_path / "3-index"
    with pytest.raises(RuntimeError), create(path, PLAN) as workspace:
        for name in (".manifest.json.tmp", ".plan.json.tmp", ".b.txt.tmp"):
            (workspace.folder / name).write_text("hal")
        raise RuntimeError("killed in the middle of write_atomically")
    make(path)
    open_artifact(path, "index")
    assert contents(path).keys() == {"b.txt", "shard/a.txt", MANIFEST}


# Runs in a process of its own: makes an artifact of three files and, on the first run, kills itself where argv[2] says.
KILLED_STAGE = """
import os, pathlib, signal, sys
from ragray import artifacts
path, moment, marker = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
def die(*arguments, **options):
    marker.write_text("killed")
    os.kill(os.getpid(), signal.SIGKILL)
plan = artifacts.Plan("index", {"num_shards": 2, "factory": "Flat"}, [])
first = not marker.exists()
with artifacts.create(path, plan) as workspace:
    for number in range(3):
        file = workspace.folder / f"{number}.txt"
        if not file.exists():
            artifacts.write_atomically(file, str(number) * 1000)
            print("wrote", number, flush=True)
        if first and moment == "between files" and number == 1:
            die()
    if first and moment == "manifest half written":
        artifacts.os.fsync = die
    if first and moment == "before the manifest is renamed":
        pathlib.Path.replace = die
    if first and moment == "before the plan is removed":
        pathlib.Path.unlink = die
    if first and moment == "before the folder is renamed":
        pathlib.Path.rename = die
"""

MOMENTS = [
    "between files",
    "manifest half written",
    "before the manifest is renamed",
    "before the plan is removed",
    "before the folder is renamed",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stage_killed_at_any_moment_ends_like_one_that_was_not(tmp_path, moment):
    def run(path: Path, at: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED_STAGE, str(path), at, str(tmp_path / f"{path.name}.marker")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    assert run(tmp_path / "calm", "never").returncode == 0
    assert run(tmp_path / "killed", moment).returncode == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    again = run(tmp_path / "killed", moment)
    assert again.returncode == 0, again.stderr
    assert again.stdout.split() == (["wrote", "2"] if moment == "between files" else [])
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    verify_checksums(open_artifact(tmp_path / "killed", "index"))


# refusing


def test_a_missing_artifact_says_what_to_do(tmp_path):
    with pytest.raises(ArtifactError, match="doesn't exist; run the stage that makes it first"):
        open_artifact(tmp_path / "3-index", "index")
    with pytest.raises(ArtifactError, match=r"no manifest\.json"):
        open_artifact(tmp_path, "index")


def test_another_kind_is_refused(tmp_path):
    make(tmp_path / "3-index")
    with pytest.raises(ArtifactError, match="holds index, but model is wanted"):
        open_artifact(tmp_path / "3-index", "model")


def test_another_format_version_is_refused(tmp_path):
    make(tmp_path / "3-index")
    edit_manifest(tmp_path / "3-index", format_version=99, ragray_version="7.0.0")
    with pytest.raises(ArtifactError, match=r"index format 99; this ragray .* reads format \d+.*install ragray 7.0.0"):
        open_artifact(tmp_path / "3-index", "index")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "index"}', "\udcff"], ids=["empty", "cut", "list", "keys", "bytes"]
)
def test_a_broken_manifest_is_refused(tmp_path, text):
    make(tmp_path / "3-index")
    (tmp_path / "3-index" / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match="can't be read"):
        open_artifact(tmp_path / "3-index", "index")


def test_a_missing_or_cut_file_is_refused(tmp_path):
    make(tmp_path / "3-index")
    file = tmp_path / "3-index" / "b.txt"
    file.write_text("secon")
    with pytest.raises(ArtifactError, match=r"b\.txt has 5 bytes, its manifest says 6"):
        open_artifact(tmp_path / "3-index", "index")
    file.unlink()
    with pytest.raises(ArtifactError, match=r"b\.txt is missing"):
        open_artifact(tmp_path / "3-index", "index")


def test_a_changed_file_of_the_same_size_fails_its_checksum(tmp_path):
    make(tmp_path / "3-index")
    (tmp_path / "3-index" / "b.txt").write_text("sEcond")
    with pytest.raises(ArtifactError, match=r"b\.txt was changed after it was written"):
        verify_checksums(open_artifact(tmp_path / "3-index", "index"))


def test_a_finished_stage_is_recognised(tmp_path):
    assert find_finished(tmp_path / "3-index", PLAN) is None
    make(tmp_path / "3-index")
    found = find_finished(tmp_path / "3-index", PLAN)
    assert found is not None
    assert found.fingerprint == PLAN.fingerprint


def test_what_was_made_differently_is_refused_by_name(tmp_path):
    make(tmp_path / "3-index")
    other = Plan("index", {"num_shards": 4, "factory": "Flat"}, [InputRef(kind="embeddings", fingerprint="e2")])
    with pytest.raises(ArtifactError) as caught:
        find_finished(tmp_path / "3-index", other)
    message = str(caught.value)
    assert "num_shards is 2 there and 4 here" in message
    assert "its embeddings was e1 and is now e2" in message
    assert "factory" not in message


def edit_manifest(folder: Path, **changes: object) -> None:
    file = folder / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# full disks


def test_no_space_left_keeps_finished_files_and_says_so(tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFullError, match="finished files are kept"), create(tmp_path / "3-index", PLAN) as workspace:
        (workspace.folder / "done.txt").write_text("kept")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            write_atomically(workspace.folder / "next.txt", "x")
    make(tmp_path / "3-index")
    assert contents(tmp_path / "3-index")["done.txt"] == b"kept"


def test_other_os_errors_pass_unchanged(tmp_path):
    with pytest.raises(PermissionError), create(tmp_path / "3-index", PLAN):
        raise PermissionError(errno.EACCES, "not yours")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


NOISE = np.random.default_rng(0).normal(size=(1000, 256)).astype(np.float32)


def write_faiss(file: Path) -> None:
    index = faiss.IndexFlatIP(256)
    index.add(NOISE)
    faiss.write_index(index, str(file))


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_bytes(NOISE.tobytes()),
        lambda file: np.save(file.with_suffix(".npy"), NOISE),
        lambda file: parquet.write_table(pa.table({"x": NOISE.ravel()}), file),
        lambda file: save_file({"x": torch.from_numpy(NOISE)}, file),
        lambda file: torch.save(torch.from_numpy(NOISE), file),
        write_faiss,
    ],
    ids=["python", "numpy", "parquet", "safetensors", "torch", "faiss"],
)
def test_every_writer_on_a_full_disk_ends_in_the_same_error(tiny_disk, write):
    with pytest.raises(DiskFullError, match="no space left while writing"), create(tiny_disk / "3-index", PLAN) as work:
        write(work.folder / "big")


def test_a_run_folder_that_can_not_even_be_made_is_a_full_disk(tiny_disk):
    with pytest.raises(OSError, match="No space left"):
        (tiny_disk / "filler").write_bytes(bytes(2**20))
    with pytest.raises(DiskFullError, match="no space left while writing"):
        make(tiny_disk / uuid.uuid4().hex / "3-index")


# outside inputs


def test_content_fingerprint_follows_names_and_bytes_but_not_hidden_files(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_text("1")
    before = content_fingerprint(folder)
    (folder / ".cache").write_text("x")
    assert content_fingerprint(folder) == before
    (folder / "a").rename(folder / "b")
    renamed = content_fingerprint(folder)
    (folder / "b").write_text("2")
    assert len({before, renamed, content_fingerprint(folder)}) == 3
    assert content_fingerprint(folder / "b") != content_fingerprint(folder)


def test_content_fingerprint_of_nothing_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no file or folder"):
        content_fingerprint(tmp_path / "missing")


def test_two_at_work_on_one_artifact_are_kept_apart(tmp_path):
    plan = Plan("index", {"a": 1}, [])
    with create(tmp_path / "3-index", plan) as workspace:
        (workspace.folder / "file").write_text("x")
        other = Plan("index", {"a": 2}, [])
        with pytest.raises(BusyError, match="another process is at work in"), create(tmp_path / "3-index", other):
            pass
        assert (workspace.folder / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["3-index"]
