"""Where files lie: on a local disk, or in an object store that a URI names (``s3://bucket/key``, ``gs://bucket/key``).

A location is a ``pathlib.Path``; for a URI it is universal_pathlib's ``UPath``, which has the same methods over fsspec.
Object stores have no rename: a file is written here first and then put in its place by one request.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from ragray.records import InputError, RagrayError


class BusyError(RagrayError):
    """Another process is at work in the same folder."""


def location(name: str | Path) -> Path:
    """A path; for a URI, something that has the methods of one.

    Raises:
        InputError: if the kind of URI is unknown, or the library for it isn't installed.
    """
    text = str(name)
    if "://" not in text:
        return Path(text)
    from upath import UPath

    try:
        path = UPath(text, use_listings_cache=False)  # others write there too
        _ = path.fs
    except ImportError as error:
        raise InputError(f"{text} needs a library that isn't installed: pip install 'ragray[s3]' ({error})") from None
    except ValueError as error:
        raise InputError(f"{text}: {error}") from None
    return cast(Path, path)


def is_local(path: Path) -> bool:
    return isinstance(path, Path)


def cache_folder() -> Path:
    """Where what was fetched is kept: ``$RAGRAY_CACHE``, else ``~/.cache/ragray``.  Not created here."""
    return Path(os.environ.get("RAGRAY_CACHE") or Path.home() / ".cache" / "ragray").expanduser()


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file under a folder, by its name relative to it; one listing in an object store."""
    if is_local(folder):
        files = (file for file in folder.rglob("*") if file.is_file())
        return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
    return {name: int(found["size"]) for name, found in _listing(folder).items()}


@contextmanager
def write_whole(output: Path) -> Iterator[Path]:
    """A temporary local name to write to, file or folder, that becomes ``output`` if the block ends without an error.

    A local output appears at once, by a rename.  In an object store each file does, those of a folder by and by.
    """
    if is_local(output):
        temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
        yield temporary
        temporary.replace(output)
        return
    with tempfile.TemporaryDirectory(prefix="ragray-") as folder:
        temporary = Path(folder) / output.name
        yield temporary
        upload(temporary, output)


def upload(source: Path, target: Path) -> None:
    """Put a local file, or every file of a local folder in the order of their names, at the URI ``target``."""
    names = sorted(file_sizes(source)) if source.is_dir() else [""]
    for name in names:  # in one request each: a file that is opened for writing appears half-written after an error
        place = cast(Any, target / name if name else target)
        place.fs.put_file(str(source / name), place.path)


def local_copy(path: str | Path) -> Path:
    """The file or folder itself if it is local, else a copy of it in the cache, fetched once for every state of it.

    Raises:
        InputError: if there is nothing at a URI.
    """
    there = location(path)
    if is_local(there):
        return there
    listing = _listing(there)
    if not listing:
        raise InputError(f"nothing at {there}")
    copy = cache_folder() / "copies" / remote_version(there) / there.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(copy) as temporary:
            for name in listing:
                place = temporary / name if name else temporary
                place.parent.mkdir(parents=True, exist_ok=True)
                remote = cast(Any, there / name if name else there)
                remote.fs.get_file(remote.path, str(place))
    return copy


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a local working folder; a process that ends, however it does, lets go of it.

    Raises:
        BusyError: if another process of this machine holds it.
    """
    if not is_local(folder):
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process is at work in {folder}: wait until it has ended, or choose another run folder"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def delete(folder: Path) -> None:
    """A folder with all that is in it, if there is one."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif _listing(folder):
        remote = cast(Any, folder)
        remote.fs.rm(remote.path, recursive=True)


def remote_version(path: Path) -> str:
    """Identity of what lies at a URI by what the store says of it (names, sizes, entity tags), without reading it."""
    entries = sorted(
        [name, found["size"], str(found.get("ETag") or found.get("md5Hash") or found.get("mtime"))]
        for name, found in _listing(path).items()
    )
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:16]


def _listing(folder: Path) -> dict[str, dict[str, Any]]:
    """What an object store says of every file under a URI, by relative name; "" for the file that the URI itself is."""
    remote = cast(Any, folder)
    try:
        found = remote.fs.find(remote.path, detail=True)
    except FileNotFoundError:
        return {}
    prefix = remote.path.rstrip("/")
    return {str(name)[len(prefix) :].lstrip("/"): entry for name, entry in found.items()}
