"""The same files on a disk and in an object store, which is a real service in another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ragray import storage
from ragray.records import InputError
from ragray.storage import cache_folder, file_sizes, is_local, local_copy, location, remote_version, upload, write_whole


@pytest.fixture(params=["disk", "s3"])
def folder(request, tmp_path):
    if request.param == "disk":
        return tmp_path / "folder"
    return request.getfixturevalue("bucket") / "folder"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "deep" / "b.bin").write_bytes(bytes(1000))
    return folder


def write(path, text):
    with write_whole(path) as temporary:
        temporary.write_text(text)


def test_a_file_is_there_when_its_block_has_ended_and_not_before(folder):
    if is_local(folder):
        folder.mkdir()
    place = folder / "a.txt"
    with write_whole(place) as temporary:
        temporary.write_text("whole")
        assert not place.exists()
    assert place.read_text() == "whole"
    assert file_sizes(folder) == {"a.txt": 5}


def test_of_a_block_that_fails_nothing_is_left_under_the_name(folder):
    if is_local(folder):
        folder.mkdir()
    with pytest.raises(RuntimeError), write_whole(folder / "a.txt") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert not (folder / "a.txt").exists()


def test_folders_are_written_whole_too(folder, source):
    if is_local(folder):
        folder.mkdir()
    with write_whole(folder / "copy") as temporary:
        source.rename(temporary)
    assert file_sizes(folder / "copy") == {"a.txt": 1, "deep/b.bin": 1000}


def test_deleting_takes_everything_and_does_not_mind_nothing(folder, source):
    storage.delete(folder)
    if is_local(folder):
        folder.mkdir()
    with write_whole(folder / "copy") as temporary:
        source.rename(temporary)
    storage.delete(folder)
    assert file_sizes(folder) == {}


def test_locations_travel_between_processes(folder):
    if is_local(folder):
        folder.mkdir()
    write(folder / "a.txt", "here")
    assert pickle.loads(pickle.dumps(folder / "a.txt")).read_text() == "here"
    assert location(str(folder / "a.txt")).read_text() == "here"


def test_a_local_path_is_its_own_copy(tmp_path):
    assert local_copy(tmp_path / "x") == tmp_path / "x"


def test_a_copy_is_fetched_once_and_again_after_a_change(bucket, source, monkeypatch):
    upload(source, bucket / "model")
    copy = local_copy(bucket / "model")
    assert copy.name == "model"
    assert file_sizes(copy) == file_sizes(source)
    with monkeypatch.context() as offline:
        offline.setattr(storage.shutil, "copyfileobj", None)
        assert local_copy(str(bucket / "model")) == copy
    write(bucket / "model" / "a.txt", "new")
    assert (local_copy(bucket / "model") / "a.txt").read_text() == "new"
    assert (copy / "a.txt").read_text() == "a"


def test_one_file_is_copied_as_a_file(bucket):
    write(bucket / "questions.jsonl", "{}")
    assert local_copy(bucket / "questions.jsonl").read_text() == "{}"


def test_the_version_of_remote_files_follows_their_names_and_contents(bucket, source):
    upload(source, bucket / "corpus")
    before = remote_version(bucket / "corpus")
    assert remote_version(bucket / "corpus") == before
    write(bucket / "corpus" / "a.txt", "b")
    changed = remote_version(bucket / "corpus")
    write(bucket / "corpus" / "c.txt", "b")
    assert len({before, changed, remote_version(bucket / "corpus")}) == 3


def test_nothing_at_a_uri_is_an_error(bucket):
    with pytest.raises(InputError, match=r"nothing at s3://.*/model"):
        local_copy(bucket / "model")


def test_an_unknown_kind_of_uri_is_an_error():
    with pytest.raises(InputError, match=r"nosuch://x.*"):
        location("nosuch://x")


def test_the_cache_folder_is_the_users_choice(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGRAY_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("RAGRAY_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "ragray"
