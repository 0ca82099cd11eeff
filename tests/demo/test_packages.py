"""Fetching packages: a tiny wheel made here, found by the real pip in a local folder; no network."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from ragray.demo import packages
from ragray.demo.packages import DemoError, Package, fetch
from ragray.storage import cache_folder

NAME = "ragray-test-package"
MODULE = "ragray_test_package"


def make_wheel(folder: Path, members: dict[str, str] | None = None) -> Package:
    """A wheel that pip accepts, and the package that names it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{MODULE}-1.0.dist-info"
    wheel = folder / f"{MODULE}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (members or {f"{MODULE}/data/a.txt": "hello"}).items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Package(NAME, "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local folder that pip takes for its only source."""
    folder = tmp_path / "index"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def pip_runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run, still run."""
    commands: list[list[str]] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> object:
        commands.append(command)
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    return commands


def contents(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def test_a_package_is_downloaded_once_and_its_wheel_deleted(
    index: Path, tmp_path: Path, pip_runs: list[list[str]]
) -> None:
    package, cache, lines = make_wheel(index), tmp_path / "cache", list[str]()
    folder = fetch(package, cache, lines.append)
    assert folder == cache / f"{NAME}-1.0"
    assert (folder / MODULE / "data" / "a.txt").read_text() == "hello"
    assert lines[0] == f"downloading {NAME}==1.0"
    assert fetch(package, cache) == folder
    assert len(pip_runs) == 1
    assert contents(cache) == [f"{NAME}-1.0"]


def test_a_wheel_laid_into_the_cache_needs_no_pip(tmp_path: Path, index: Path, pip_runs: list[list[str]]) -> None:
    cache = tmp_path / "cache"
    package = make_wheel(cache / "wheels")
    assert (fetch(package, cache) / MODULE).is_dir()
    assert not pip_runs
    assert contents(cache / "wheels") == [f"{MODULE}-1.0-py3-none-any.whl"]


def test_a_wrong_checksum_names_both_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    package, cache = make_wheel(index), tmp_path / "cache"
    with pytest.raises(DemoError) as caught:
        fetch(Package(NAME, "1.0", "0" * 64), cache)
    assert package.sha256 in str(caught.value)
    assert "0" * 64 in str(caught.value)
    assert contents(cache) == []


def test_an_index_without_the_package_gives_pips_words_and_the_ways_out(index: Path, tmp_path: Path) -> None:
    index.mkdir()
    with pytest.raises(DemoError) as caught:
        fetch(Package(NAME, "1.0", "0" * 64), tmp_path / "cache")
    for part in ("No matching distribution", "PIP_INDEX_URL", str(tmp_path / "cache" / "wheels"), f"{NAME}==1.0"):
        assert part in str(caught.value)
    assert contents(tmp_path / "cache") == []


def test_a_missing_pip_says_how_to_get_it(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = make_wheel(index)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DemoError, match="ensurepip"):
        fetch(package, tmp_path / "cache")


def test_what_a_killed_run_left_behind_is_never_taken_for_the_package(index: Path, tmp_path: Path) -> None:
    package, cache = make_wheel(index), tmp_path / "cache"
    half = cache / f".part-{package.folder}-killed" / "unpacked"
    half.mkdir(parents=True)
    (half / "half.txt").write_text("half")
    folder = fetch(package, cache)
    assert sorted(path.name for path in folder.iterdir()) == [MODULE, f"{MODULE}-1.0.dist-info"]


def test_a_failure_during_unpacking_leaves_no_folder(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, cache = make_wheel(index), tmp_path / "cache"

    def stop(_archive: zipfile.ZipFile, path: Path) -> None:
        (path / "half.txt").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch(package, cache)
    assert contents(cache) == []
    assert fetch(package, cache).is_dir()


def test_a_full_disk_names_the_needed_bytes(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = make_wheel(index, {f"{MODULE}/a": "x" * 12_345})

    def full(_archive: zipfile.ZipFile, _path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(DemoError, match=r"disk is full: 12,\d{3} bytes needed, .* RAGRAY_CACHE"):
        fetch(package, tmp_path / "cache")


@pytest.mark.parametrize(
    "name", ["../outside.txt", "/outside.txt", f"{MODULE}/../../outside.txt", "a\\..\\outside.txt"]
)
def test_a_member_outside_the_folder_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    cache = tmp_path / "cache"
    package = make_wheel(cache / "wheels", {f"{MODULE}/a.txt": "a", name: "evil"})
    with pytest.raises(DemoError, match="unsafe path"):
        fetch(package, cache)
    assert contents(cache) == ["wheels"]
    assert not list(tmp_path.rglob("*outside*"))


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / f"{MODULE}-1.0-py3-none-any.whl").write_bytes(b"cut off")
    with pytest.raises(DemoError, match="not a whole wheel file"):
        fetch(Package(NAME, "1.0", hashlib.sha256(b"cut off").hexdigest()), tmp_path)


def test_fetching_at_once_from_several_threads_gives_one_whole_folder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    package = make_wheel(cache / "wheels", {f"{MODULE}/{number}.txt": "x" * 1000 for number in range(50)})
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(package, cache))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / package.folder] * 6
    assert len(list((cache / package.folder / MODULE).iterdir())) == 50
    assert contents(cache) == [package.folder, "wheels"]


@pytest.mark.slow
def test_smollm2_becomes_a_tied_bfloat16_llama_that_answers(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = cache_folder() / packages.SMOLLM2.folder
    if not kept.is_dir():
        pytest.skip(f"{packages.SMOLLM2.requirement} is not in the cache {cache_folder()}")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    os.symlink(kept, tmp_path / packages.SMOLLM2.folder)
    folder = packages.smollm2(tmp_path)
    output = capfd.readouterr()
    assert output.out + output.err == ""
    assert packages.smollm2(tmp_path) == folder
    assert contents(tmp_path) == [packages.SMOLLM2.folder, folder.name]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.config.tie_word_embeddings
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        best = model(ids).logits[0, -1].argmax()
    assert tokenizer.decode(best).strip() == "Paris"
    shutil.rmtree(folder)
