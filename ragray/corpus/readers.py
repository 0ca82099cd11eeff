"""The choice of a reader for each file of a corpus, by the file's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ragray.corpus import jsonl, tables, text_files
from ragray.corpus.files import Bad, Span
from ragray.records import Document, InputError


@dataclass(frozen=True, slots=True)
class Reader:
    """How files of one kind are known by their names, cut into spans and read."""

    names: tuple[str, ...]
    spans: Callable[[Path, int], list[Span]]
    read: Callable[[Span], Iterator[Document | Bad]]
    compressed: bool = False

    def knows(self, file: Path) -> bool:
        ends = ("", ".gz", ".bz2", ".zst") if self.compressed else ("",)
        return any(fnmatchcase(file.name.lower(), name + end) for name in self.names for end in ends)


def readers() -> dict[str, Reader]:
    """The readers, by the names that the setting ``chunk.reader`` has for them."""
    texts = ("*.txt", "*.md", "*.markdown", "*.html", "*.htm", "*.pdf")
    return {
        "jsonl": Reader(("*.jsonl", "*.ndjson", "*.json"), jsonl.spans, jsonl.read, compressed=True),
        "dpr_tsv": Reader(("*.tsv",), tables.dpr_spans, tables.read_dpr, compressed=True),
        "parquet": Reader(("*.parquet",), tables.parquet_spans, tables.read_parquet),
        "arrow": Reader(("*.arrow",), tables.arrow_spans, tables.read_arrow),
        "mediawiki": Reader(("*.xml", "*.xml-p*"), _mediawiki_spans, _read_mediawiki, compressed=True),
        "text": Reader(texts, text_files.spans, text_files.read),
    }


def corpus_spans(corpus: Path, span_bytes: int, reader: str | None = None) -> list[Span]:
    """Cut a corpus, a file or a folder with files at any depth, into spans of about so many bytes.

    Files are sorted by their paths.  In a folder, hidden files are left out and so are those of unknown kinds.  A
    folder that datasets wrote with ``save_to_disk`` is read as its ``state.json`` says.  ``reader`` is the name of the
    only one to be used: in a folder it reads the files of its kind, or, if there are none, all.

    Raises:
        InputError: if nothing is there that a reader knows, a file is of another kind than its name says or damaged, or
            a saved dataset has several splits.
    """
    known = readers()
    if reader is not None and reader not in known:
        raise InputError(f"no reader {reader!r}; there are {', '.join(known)}")
    if not corpus.exists():
        raise InputError(f"no corpus at {corpus}")
    files = _folder_files(corpus) if corpus.is_dir() else [corpus]
    named = [(file, name) for file in files if (name := _reader_of(file, known))]
    if reader is not None:
        named = [(file, name) for file, name in named if name == reader] or [(file, reader) for file in files]
    if not named:
        kinds = "; ".join(f"{name}: {' '.join(kind.names)}" for name, kind in known.items())
        raise InputError(f"no file of a known kind at {corpus}; there are {kinds}")
    root = str(corpus if corpus.is_dir() else corpus.parent)
    spans = [span for file, name in named for span in known[name].spans(file, span_bytes)]
    return [replace(span, root=root, size_bytes=span.size_bytes or (span.stop or 0) - span.start) for span in spans]


def read_documents(span: Span) -> Iterator[Document | Bad]:
    """The documents of a span, and in their places the records that can't be used.

    Raises:
        InputError: if the file is missing or damaged, or the library for its kind is missing.
    """
    return readers()[span.reader].read(span)


def _folder_files(folder: Path) -> list[Path]:
    """The files of a corpus, sorted; of a saved dataset only its ``state.json``."""
    root = str(folder).rstrip("/") + "/"
    paths = {str(path).removeprefix(root): path for path in folder.rglob("*")}
    shown = [path for name, path in sorted(paths.items()) if not any(part.startswith(".") for part in name.split("/"))]
    files = [path for path in shown if path.is_file()]
    for file in files:
        if file.name == tables.SPLITS_FILE and (splits := tables.saved_splits(file)):
            raise InputError(f"{file.parent} is a dataset of the splits {', '.join(splits)}: name the folder of one")
    saved = {str(file.parent) for file in files if _is_saved_dataset(file)}
    return [file for file in files if str(file.parent) not in saved or file.name == tables.STATE_FILE]


def _reader_of(file: Path, known: dict[str, Reader]) -> str | None:
    if _is_saved_dataset(file):
        return "arrow"
    return next((name for name, reader in known.items() if reader.knows(file)), None)


def _is_saved_dataset(file: Path) -> bool:
    return file.name == tables.STATE_FILE and tables.saved_files(file) is not None


def _mediawiki_spans(file: Path, span_bytes: int) -> list[Span]:
    from ragray.corpus import mediawiki

    return mediawiki.spans(file, span_bytes)


def _read_mediawiki(span: Span) -> Iterator[Document | Bad]:
    from ragray.corpus import mediawiki

    return mediawiki.read(span)
