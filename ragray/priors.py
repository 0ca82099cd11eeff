"""Where the K passages of a question come from, and their prior p(z|x).

The RAG model takes any of these.  ``DensePrior`` is the model of the paper, and the only one that learns; the others
are its baselines: BM25 (the paper's ablation, table 6), the right passage given, and no passage at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ragray.config import PriorKind
from ragray.encoders import Encoder
from ragray.formulas import marginal
from ragray.index_shard import read_passages
from ragray.lexical import LexicalIndex
from ragray.records import FloatArray, InputError, Passage, Question, Retriever
from ragray.scoring import is_hit
from ragray.storage import location


@dataclass(frozen=True, slots=True)
class Evidence:
    """K passages for each of B questions and log p(z|x), with gradient where something learns."""

    log_prior_BK: Tensor
    passages_BK: Sequence[Sequence[Passage]] | None  # none: closed book
    index_version: str = ""
    vectors_BD: Tensor | None = None


class Prior(Protocol):
    """Gives every question its passages and their probabilities."""

    def __call__(self, questions: Sequence[str], k: int) -> Evidence: ...

    def find(self, questions: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """The k passages of each question alone, without gradient; what recall is measured on."""
        ...


class DensePrior:
    """p(z|x) = softmax_K(q(x)·d(z) / temperature), over the K passages that a retriever finds for q(x).

    The prior is recomputed in torch from q(x) and the stored vectors of the passages, so that its gradient reaches the
    question encoder.  That is the only way in which the question encoder learns.
    """

    def __init__(self, encoder: Encoder, retriever: Retriever) -> None:
        self.encoder = encoder
        self.retriever = retriever

    def __call__(self, questions: Sequence[str], k: int) -> Evidence:
        vectors_BD = self.encoder.embed_questions(questions)
        hits = self.retriever.search(_to_numpy(vectors_BD), k)
        passage_vectors_BKD = torch.from_numpy(hits.vectors_BKD).to(vectors_BD.device)
        scores_BK = torch.einsum("bd,bkd->bk", vectors_BD, passage_vectors_BKD)
        log_prior_BK = marginal.log_prior(scores_BK, self.encoder.temperature)
        return Evidence(log_prior_BK, hits.passages_BK, hits.index_version, vectors_BD)

    @torch.inference_mode()
    def find(self, questions: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        return self.retriever.search(_to_numpy(self.encoder.embed_questions(questions)), k).passages_BK


class LexicalPrior:
    """BM25 finds the passages, and its scores are the logits of the prior (Lewis et al. 2020, section 4.5)."""

    def __init__(self, index: LexicalIndex, temperature: float = 1.0) -> None:
        self.index = index
        self.temperature = temperature

    def __call__(self, questions: Sequence[str], k: int) -> Evidence:
        scores_BK, passages_BK = self.index.search(questions, k)
        return Evidence(marginal.log_prior(torch.from_numpy(scores_BK), self.temperature), passages_BK)

    def find(self, questions: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        return self.index.search(questions, k)[1]


class GoldPrior:
    """The right passage is given: K = 1 and p(z|x) = 1.  It bounds what better retrieval could bring.

    Raises:
        InputError: when asked a question whose passage isn't known.
    """

    def __init__(self, passages: Mapping[str, Passage]) -> None:
        self.passages = passages

    def __call__(self, questions: Sequence[str], k: int) -> Evidence:
        return Evidence(torch.zeros(len(questions), 1), self.find(questions, 1))

    def find(self, questions: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        unknown = [question for question in questions if question not in self.passages]
        if unknown:
            how_many = f"{len(unknown)} of {len(questions)} questions"
            raise InputError(f"no gold passage is known for {how_many}, the first is {unknown[0]!r}")
        return [[self.passages[question]] for question in questions]


class ClosedBook:
    """No passage: the generator alone, p(y|x)."""

    def __call__(self, questions: Sequence[str], k: int) -> Evidence:
        return Evidence(torch.zeros(len(questions), 1), None)

    def find(self, questions: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        return [[] for _ in questions]


@dataclass(frozen=True, slots=True)
class PriorSource:
    """What a process builds its prior from: plain values and handles, to be sent to it."""

    kind: PriorKind
    retriever: Retriever
    index_folder: str
    gold: Mapping[str, Passage]

    @classmethod
    def of(cls, kind: PriorKind, retriever: Retriever, index: Path, questions: Sequence[Question]) -> PriorSource:
        """With the gold passages of these questions, if they are what is wanted.

        Raises:
            InputError: if a question has none, or there are no questions to know the passages of.
        """
        if kind == "gold" and not questions:
            raise InputError(
                "this model was trained with train.prior=gold, which knows the passages of given questions alone: "
                "evaluate it; to serve or ask, train with another prior"
            )
        gold = gold_passages(read_passages(index), questions) if kind == "gold" else {}
        return cls(kind, retriever, str(index.resolve()), gold)

    def build(self, encoder: Encoder) -> Prior:
        """For ``bm25`` the process reads all passages of the index and counts their words."""
        match self.kind:
            case "dense":
                return DensePrior(encoder, self.retriever)
            case "bm25":
                return LexicalPrior(LexicalIndex.build(read_passages(location(self.index_folder))))
            case "gold":
                return GoldPrior(self.gold)
            case "closed_book":
                return ClosedBook()


def gold_passages(passages: Sequence[Passage], questions: Sequence[Question]) -> dict[str, Passage]:
    """By question, the first passage that holds an answer and, where the question names its document, is of it.

    Raises:
        InputError: if a question has none.
    """
    by_title: dict[str, list[Passage]] = {}
    for passage in passages:
        by_title.setdefault(passage.title, []).append(passage)
    gold = {}
    for question in questions:
        among = passages if question.title is None else by_title.get(question.title, [])
        found = next((passage for passage in among if is_hit(passage, question)), None)
        if found is None:
            raise InputError(
                f"question {question.id!r} has no gold passage: none holds an answer of it; leave it out, or use "
                "another train.prior than gold"
            )
        gold[question.question] = found
    return gold


def _to_numpy(vectors_BD: Tensor) -> FloatArray:
    array: FloatArray = vectors_BD.detach().float().cpu().numpy()
    return array
