"""The split of documents into passages: disjoint pieces of a fixed number of words (Lewis et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Iterator

from ragray.records import Document, Passage


def split_document(document: Document, words: int = 100) -> Iterator[Passage]:
    """Disjoint passages of ``words`` whitespace-separated words, the last one shorter.

    Ids are ``DOCUMENT-NUMBER`` with the number from 0: the same document gives the same ids at every run.  White space
    is normalised to single spaces.  A document without words gives no passage.

    Raises:
        ValueError: if words < 1.
    """
    if words < 1:
        raise ValueError(f"words must be >= 1, got {words}")
    pieces = document.text.split()
    for number, start in enumerate(range(0, len(pieces), words)):
        yield Passage(f"{document.id}-{number}", document.title, " ".join(pieces[start : start + words]))
