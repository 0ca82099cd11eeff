"""The records that flow through ragray, and the one protocol that joins laptop and cluster.

Shape legend, used as suffixes of array names in every module:

    B questions in a batch      K passages per question     D embedding size     T target tokens
    L prompt tokens             V vocabulary                N passages in a shard    S shards

``scores_BK`` is an array of shape (B, K).  Units stand in names too: ``timeout_s``, ``size_bytes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FloatArray = npt.NDArray[np.float32]

PASSAGE_SCHEMA = pa.schema(
    [("id", pa.string()), ("title", pa.string()), ("text", pa.string()), ("hash", pa.binary(16))]
)
"""A passage on disk; the hash is ``content_hash`` of its title and text."""


def embedding_schema(dimension: int, dtype: str = "float32") -> pa.Schema:
    """A passage and its vector; what an index shard is built from."""
    number = {"float32": pa.float32(), "float16": pa.float16()}[dtype]
    return PASSAGE_SCHEMA.append(pa.field("vector", pa.list_(number, dimension)))


class RagrayError(Exception):
    """Base of every error that a user can meet.  The message says the value, the limit and the way out.

    Subclasses take one message, so that they survive pickling between processes.
    """


class InputError(RagrayError, ValueError):
    """Something the user gave (a file, a value, a setting) can't be used as it is."""


@dataclass(frozen=True, slots=True)
class Document:
    """One article of a corpus, before it is split into passages."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrievable unit of text: the z of p(z|x)."""

    id: str
    title: str
    text: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Question:
    """A question x with its acceptable answers y; the first answer is the training target.

    ``title`` names the document that holds the answer and ``relation`` the kind of question.  Both are for evaluation
    only: training never reads them.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    title: str | None = None
    relation: str | None = None


@dataclass(frozen=True, slots=True)
class Hits:
    """What a retriever found for B questions: the K best passages of each, best first.

    ``vectors_BKD`` are the exact stored vectors, from which p(z|x) is recomputed with the question encoder's gradient;
    ``scores_BK`` are their inner products with the question vectors that were searched.
    """

    scores_BK: FloatArray
    vectors_BKD: FloatArray
    passages_BK: Sequence[Sequence[Passage]]
    index_version: str

    @property
    def ids_BK(self) -> list[list[str]]:
        return [[passage.id for passage in row] for row in self.passages_BK]


class Retriever(Protocol):
    """Anything that answers "the K nearest passages": an in-process index or a service of actors."""

    def search(self, vectors_BD: FloatArray, k: int) -> Hits:
        """Return the ``min(k, N)`` passages of largest inner product with each row, ties broken by passage id."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its evidence.

    ``prior`` is p(z|x) and ``posterior`` p(z|x,y) of each cited passage, ``log_likelihoods`` its log p(y|x,z).
    ``token_posteriors`` has, for RAG-Token, a row a passage with p(z|x,y_t,y_<t) of each token.
    """

    question: str
    text: str
    log_prob: float
    passages: tuple[Passage, ...]
    prior: tuple[float, ...]
    posterior: tuple[float, ...]
    index_version: str
    token_ids: tuple[int, ...] = ()
    log_likelihoods: tuple[float, ...] = ()
    token_posteriors: tuple[tuple[float, ...], ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form; the passages carry their probabilities."""
        return {
            "question": self.question,
            "answer": self.text,
            "log_prob": self.log_prob,
            "index_version": self.index_version,
            "passages": [
                {**passage.as_dict(), "prior": prior, "posterior": posterior}
                for passage, prior, posterior in zip(self.passages, self.prior, self.posterior, strict=True)
            ],
        }
