"""The split of documents into passages: by words, as in the paper (Lewis et al. 2020, section 3), or otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from ragray.config import ChunkConfig
from ragray.records import Document, Passage

MAX_PASSAGE_CHARS = 20_000

Piece = tuple[str, int]
"""A part of a document that isn't cut any more, and its size in the unit of the split."""


class Splitter:
    """Documents -> passages, as the settings say."""

    def __init__(self, config: ChunkConfig, tokenizer: Any = None) -> None:
        """``tokenizer``: a fast tokenizer of transformers, for a split by tokens."""
        self.config = config
        cuts: dict[str, Callable[[str], list[Piece]] | None] = {
            "words": _words,
            "tokens": partial(_tokens, tokenizer),
            "sentences": partial(_sentences, config.language, config.size),
            "document": None,
        }
        self._cut = cuts[config.unit]
        self._joint = "" if config.unit == "tokens" else " "

    def split(self, document: Document) -> Iterator[Passage]:
        """The passages of a document; white space becomes single spaces.

        Ids are ``DOCUMENT-NUMBER`` with the number from 0: the same document gives the same ids at every run.  Where
        the documents are passages already, they keep their ids.  A document without words gives no passage.
        """
        if self._cut is None:
            yield Passage(document.id, document.title, " ".join(document.text.split()))
            return
        pieces = self._cut(document.text)
        sizes = [size for _, size in pieces]
        for number, (start, stop) in enumerate(windows(sizes, self.config.size, self.config.overlap)):
            text = self._joint.join(piece for piece, _ in pieces[start:stop])
            yield Passage(f"{document.id}-{number}", document.title, " ".join(text.split()))


def content_hash(passage: Passage) -> bytes:
    """16 bytes that two passages share if they have the same title and text."""
    return hashlib.blake2b(f"{passage.title}\0{passage.text}".encode(), digest_size=16).digest()


def windows(sizes: Sequence[int], limit: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Ranges of pieces that are as long as ``limit`` allows, and one piece at least, and cover all pieces.

    Each begins with the last pieces of the one before, as many as fit into ``overlap``; every range ends further on.
    """
    total = [0, *accumulate(sizes)]
    start, stop = 0, 0
    while stop < len(sizes):
        stop += 1
        while total[stop] - total[start] > limit and start < stop - 1:  # a long piece leaves no room for overlap
            start += 1
        while stop < len(sizes) and total[stop + 1] - total[start] <= limit:
            stop += 1
        yield start, stop
        first, start = start, stop
        while start - 1 > first and total[stop] - total[start - 1] <= overlap:
            start -= 1


def _words(text: str) -> list[Piece]:
    return [(word, 1) for word in text.split()]


def _tokens(tokenizer: Any, text: str) -> list[Piece]:
    """Tokens with the white space before them, so that they join to the text again."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    ends = [0, *(end for _, end in offsets)]
    return [(text[start:end], 1) for start, end in pairwise(ends)]


def _sentences(language: str, limit: int, text: str) -> list[Piece]:
    """Sentences, sized in words; those over the limit in parts of it."""
    from sentencex import segment

    words = [sentence.split() for sentence in segment(language, text)]
    parts = [part[at : at + limit] for part in words for at in range(0, len(part), limit)]
    return [(" ".join(part), len(part)) for part in parts]
