"""Versioned, immutable folders with a manifest: what every stage reads and writes.

A stage works in a hidden folder beside its target (``.1-passages.partial``).  Leaving the ``create`` block writes
``manifest.json`` there, last and atomically, and renames the folder to its final name: a folder with its final name is
complete.  A killed stage leaves the hidden folder; the same stage run again continues in it, one with other settings
throws it away.

The fingerprint is a hash of kind, format version, settings and the inputs' fingerprints.  It is known before the work
starts, so that a finished stage is recognised and skipped, and it chains: an artifact names what it was made from.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict

import ragray
from ragray import storage
from ragray.records import InputError, RagrayError

MANIFEST = "manifest.json"
_CHECKSUM_THREADS = 8
_PLAN = "plan.json"  # the fingerprint that a partial folder works towards

FORMAT_VERSIONS = {"demo": 1, "passages": 2, "embeddings": 2, "index": 2, "model": 2, "report": 1}


class ArtifactError(RagrayError):
    """An artifact is missing, damaged, of another kind or made from other things than asked for."""


class DiskFullError(RagrayError):
    """No space is left where an artifact is written; finished files are kept and the stage can be run again."""


class InputRef(BaseModel):
    """What an artifact was made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: str
    fingerprint: str


class FileEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    """The record of an artifact.  ``summary`` holds counts and measurements; it is not part of the fingerprint."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: str
    format_version: int
    fingerprint: str
    config: dict[str, Any]
    inputs: tuple[InputRef, ...]
    files: tuple[FileEntry, ...]
    summary: dict[str, Any]
    ragray_version: str
    git_commit: str | None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A complete artifact on disk."""

    folder: Path
    manifest: Manifest

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def ref(self) -> InputRef:
        return InputRef(kind=self.manifest.kind, fingerprint=self.fingerprint)

    def input_fingerprint(self, kind: str) -> str:
        """Fingerprint of the input of this kind.

        Raises:
            ArtifactError: if the artifact has no such input.
        """
        for ref in self.manifest.inputs:
            if ref.kind == kind:
                return ref.fingerprint
        raise ArtifactError(f"{self.folder} ({self.manifest.kind}) names no input of kind {kind!r}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a stage is about to make: settings, inputs and therefore the fingerprint, before any work is done."""

    kind: str
    config: Mapping[str, Any]
    inputs: Sequence[InputRef]

    @property
    def fingerprint(self) -> str:
        refs = sorted((ref.kind, ref.fingerprint) for ref in self.inputs)
        identity = [self.kind, FORMAT_VERSIONS[self.kind], dict(self.config), refs]
        return hashlib.sha256(_canonical(identity).encode()).hexdigest()[:16]


@dataclass(slots=True)
class Workspace:
    """The hidden folder in which a stage works."""

    folder: Path
    target: Path
    plan: Plan
    summary: dict[str, Any] = field(default_factory=dict)


def open_artifact(path: Path, kind: str) -> Artifact:
    """Open a complete artifact, checking kind, format version and that every file is there in full size.

    Raises:
        ArtifactError: and says what was found, what was wanted and what to do.
    """
    manifest = _read_manifest(path)
    if manifest.kind != kind:
        raise ArtifactError(f"{path} holds {manifest.kind}, but {kind} is wanted; pass the folder of a {kind} stage")
    if manifest.format_version != FORMAT_VERSIONS[kind]:
        raise ArtifactError(
            f"{path} has {kind} format {manifest.format_version}; this ragray {ragray.__version__} reads format "
            f"{FORMAT_VERSIONS[kind]}; make it again or install ragray {manifest.ragray_version}"
        )
    sizes = storage.file_sizes(path)
    for entry in manifest.files:
        found = sizes.get(entry.name)
        if found != entry.size_bytes:
            state = "is missing" if found is None else f"has {found} bytes"
            raise ArtifactError(
                f"{path / entry.name} {state}, its manifest says {entry.size_bytes} bytes: delete {path} and make it "
                "again"
            )
    return Artifact(path, manifest)


def verify_checksums(artifact: Artifact) -> None:
    """Read every file and compare its SHA-256 with the manifest.

    Raises:
        ArtifactError: naming the first file that differs.
    """
    for entry in artifact.manifest.files:
        if file_sha256(artifact.folder / entry.name) != entry.sha256:
            raise ArtifactError(
                f"{artifact.folder / entry.name} was changed after it was written (checksum differs): "
                f"delete {artifact.folder} and make it again"
            )


def find_finished(path: Path, plan: Plan) -> Artifact | None:
    """The artifact at ``path`` if it is what ``plan`` would make; None if there is none yet.

    Raises:
        ArtifactError: if something else stands there; the message names the settings or inputs that differ.
    """
    if not _is_taken(path):
        return None
    artifact = open_artifact(path, plan.kind)
    if artifact.fingerprint == plan.fingerprint:
        return artifact
    raise ArtifactError(
        f"{path} was made differently: {_difference(artifact.manifest, plan)}. "
        f"Choose another run folder, or delete {path} and what was made from it"
    )


@contextmanager
def create(path: Path, plan: Plan, staged: bool = False) -> Iterator[Workspace]:
    """Work towards the artifact at ``path``; on leaving the block without an error, commit it.

    In an object store the work goes on at ``path`` itself, which is complete once its manifest is there; ``staged``
    for work that needs a local folder: it is done in the cache and uploaded at the end.

    A partial folder of the same fingerprint is continued.  After an ``InputError`` the partial folder is removed: what
    it holds is of no use until the input is mended.  After anything else, a kill included, it stays for the next run.

    Raises:
        ArtifactError: if ``path`` exists.
        BusyError: if another process of this machine is making it.
        DiskFullError: if no space is left, whatever the error of the writer that noticed.
    """
    if _is_taken(path):
        raise ArtifactError(f"{path} exists, and artifacts are never overwritten: choose another folder or delete it")
    folder = _working_folder(path, plan, staged)
    try:
        with storage.alone(folder):
            _prepare(folder, plan)
            workspace = Workspace(folder, path, plan)
            yield workspace
            _commit(workspace)
    except InputError:
        storage.delete(folder)
        raise
    except Exception as error:
        free_bytes = _free_bytes(folder)
        if isinstance(error, RagrayError) or not _says_disk_full(error, free_bytes):
            raise
        raise DiskFullError(
            f"no space left while writing {path} ({free_bytes / 1e6:.1f} MB free): free some space and run the same "
            f"command again; finished files are kept in {folder}"
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file under a temporary name, flush it to disk, then rename it."""
    if not storage.is_local(path):
        path.write_text(text, encoding="utf-8")  # one request
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _says_disk_full(error: Exception, free_bytes: int) -> bool:
    """numpy, torch and FAISS report a full disk as a short write, without an errno: then the disk itself is asked."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return free_bytes < 2**20 or os.strerror(errno.ENOSPC) in str(error)


def _free_bytes(folder: Path) -> int:
    local = folder if storage.is_local(folder) else Path(tempfile.gettempdir())
    existing = next(parent for parent in (local / "file").absolute().parents if parent.exists())
    return shutil.disk_usage(existing).free


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def content_fingerprint(path: Path) -> str:
    """Hash of a file, or of all files of a folder with their relative names: the identity of outside input.

    What lies in an object store isn't read: its identity is what the store says of its files.

    Raises:
        InputError: if there is nothing at ``path``.
    """
    if not path.exists():
        raise InputError(f"no file or folder {path}")
    if not storage.is_local(path):
        return storage.remote_version(path)
    if path.is_file():
        return file_sha256(path)[:16]
    files = sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path)))
    listing = [[file.relative_to(path).as_posix(), file_sha256(file)] for file in files]
    return hashlib.sha256(_canonical(listing).encode()).hexdigest()[:16]


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _is_taken(path: Path) -> bool:
    """Whether something stands at ``path``; in an object store, something complete."""
    return path.exists() if storage.is_local(path) else (path / MANIFEST).exists()


def _working_folder(path: Path, plan: Plan, staged: bool) -> Path:
    if storage.is_local(path):
        return path.parent / f".{path.name}.partial"
    return storage.cache_folder() / "staged" / plan.fingerprint if staged else path


def _prepare(folder: Path, plan: Plan) -> None:
    if not storage.is_local(folder):
        if not _works_towards(folder / _PLAN, plan):
            storage.delete(folder)
            write_atomically(folder / _PLAN, json.dumps({"fingerprint": plan.fingerprint}))
        return
    if any(_works_towards(folder / name, plan) for name in (_PLAN, MANIFEST)):
        for half_written in folder.rglob(".*.tmp"):  # left by a kill inside write_atomically
            half_written.unlink()
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_atomically(folder / _PLAN, json.dumps({"fingerprint": plan.fingerprint}))


def _works_towards(marker: Path, plan: Plan) -> bool:
    """A kill between writing the manifest and renaming the folder leaves the manifest as the only marker."""
    return marker.exists() and json.loads(marker.read_text(encoding="utf-8"))["fingerprint"] == plan.fingerprint


def _commit(workspace: Workspace) -> None:
    folder, plan = workspace.folder, workspace.plan
    sizes = {name: size for name, size in sorted(storage.file_sizes(folder).items()) if name not in (_PLAN, MANIFEST)}
    with ThreadPoolExecutor(_CHECKSUM_THREADS) as pool:
        checksums = pool.map(file_sha256, [folder / name for name in sizes])
        files = tuple(
            FileEntry(name=name, size_bytes=size, sha256=checksum)
            for (name, size), checksum in zip(sizes.items(), checksums, strict=True)
        )
    manifest = Manifest(
        kind=plan.kind,
        format_version=FORMAT_VERSIONS[plan.kind],
        fingerprint=plan.fingerprint,
        config=dict(plan.config),
        inputs=tuple(plan.inputs),
        files=files,
        summary=workspace.summary,
        ragray_version=ragray.__version__,
        git_commit=_git_commit(),
    )
    if not storage.is_local(workspace.target) and folder != workspace.target:  # staged
        storage.upload(folder, workspace.target)
        shutil.rmtree(folder)
        folder = workspace.target
    write_atomically(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    (folder / _PLAN).unlink(missing_ok=True)
    if folder != workspace.target:
        folder.rename(workspace.target)


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not file.exists() and not path.is_dir():
        raise ArtifactError(f"{path} doesn't exist; run the stage that makes it first")
    if not file.exists():
        raise ArtifactError(f"{path} has no {MANIFEST}: it isn't a finished artifact of ragray")
    try:
        return Manifest.model_validate_json(file.read_text(encoding="utf-8"))
    except (pydantic.ValidationError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{file} can't be read ({error}): delete {path} and make it again") from None


def _difference(manifest: Manifest, plan: Plan) -> str:
    wanted = json.loads(_canonical(dict(plan.config)))
    changed = [
        f"{key} is {manifest.config.get(key)!r} there and {wanted.get(key)!r} here"
        for key in sorted({*manifest.config, *wanted})
        if manifest.config.get(key) != wanted.get(key)
    ]
    there = {ref.kind: ref.fingerprint for ref in manifest.inputs}
    here = {ref.kind: ref.fingerprint for ref in plan.inputs}
    changed += [
        f"its {kind} was {there.get(kind)} and is now {here.get(kind)}"
        for kind in sorted({*there, *here})
        if there.get(kind) != here.get(kind)
    ]
    return "; ".join(changed) or "by another format version"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


@cache
def _git_commit() -> str | None:
    """Commit of the checkout that ragray runs from; None for an installed package."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
