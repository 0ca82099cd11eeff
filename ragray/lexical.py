"""BM25 over passages: the retriever that only counts words, to compare a learned one with.

The variant is Lucene's (Kamphuis et al. 2020) with k1 = 1.5 and b = 0.75, computed by bm25s (Lù 2024,
arXiv 2407.03618).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import bm25s
import numpy as np

from ragray.records import FloatArray, InputError, Passage

logging.getLogger("bm25s").setLevel(logging.WARNING)  # bm25s sets DEBUG, and would write into everyone's log

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The lower-cased runs of letters and digits of any script; no stemming, no stop words."""
    return _WORD.findall(text.lower())


class LexicalIndex:
    """All passages of a corpus in memory, with the BM25 weight of every word in every passage that has it."""

    def __init__(self, passages: Sequence[Passage], bm25: bm25s.BM25) -> None:
        self._passages, self._bm25 = passages, bm25

    @classmethod
    def build(cls, passages: Sequence[Passage]) -> LexicalIndex:
        """Index title and text of the passages.

        Raises:
            InputError: if there are no passages.
        """
        if not passages:
            raise InputError("no passages to index: a lexical index needs at least one")
        by_id = sorted(passages, key=lambda passage: passage.id)
        vocabulary: dict[str, int] = {}
        tokens = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in words(f"{passage.title} {passage.text}")]
            for passage in by_id
        ]
        bm25 = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        with np.errstate(invalid="ignore"):  # 0 / 0, where no passage has any word
            bm25.index((tokens, vocabulary), create_empty_token=False, show_progress=False)
        return cls(by_id, bm25)

    def search(self, questions: Sequence[str], k: int) -> tuple[FloatArray, list[list[Passage]]]:
        """BM25 scores and passages of the ``min(k, N)`` best passages of each question, best first, ties by passage id.

        A word counts as often as the question has it.  Words that no passage has count nothing, so that a question of
        only such words gets the first passages by id, with score 0.  Everything runs in the calling thread.

        Raises:
            InputError: if k < 1.
        """
        if k < 1:
            raise InputError(f"k must be >= 1, got {k}")
        scores_BK = np.empty((len(questions), min(k, len(self._passages))), dtype=np.float32)
        passages_BK = []
        for question, best_K in zip(questions, scores_BK, strict=True):
            scores_N = self._scores(question)
            order_K = np.argsort(-scores_N, kind="stable")[:k]  # stable: passages lie in the order of their ids
            best_K[:] = scores_N[order_K]
            passages_BK.append([self._passages[position] for position in order_K])
        return scores_BK, passages_BK

    def _scores(self, question: str) -> FloatArray:
        known = self._bm25.get_tokens_ids(words(question))
        scores_N: FloatArray = np.zeros(len(self._passages), dtype=np.float32)
        return self._bm25.get_scores_from_ids(known) if known else scores_N
