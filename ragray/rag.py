"""The RAG model: question encoder + retriever + generator, joined by the prior p(z|x).

The prior is recomputed in torch from q(x) and the stored vectors of the K retrieved passages, so that its gradient
reaches the question encoder.  That is the only way in which the question encoder learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragray import decoding
from ragray.encoders import Encoder
from ragray.formulas import marginal
from ragray.generator import Generator, Prefill
from ragray.records import Answer, FloatArray, Hits, Retriever


@dataclass(frozen=True, slots=True)
class Loss:
    """-log p(y|x) of a batch and what monitors want to know about it."""

    nll_B: Tensor
    vectors_BD: Tensor
    prior_BK: Tensor
    posterior_BK: Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says to one question: its answer with its K passages, and log p(y|x) of the reference if given."""

    answer: Answer
    reference_log_prob: float | None


class Rag:
    """p(y|x) = sum over retrieved passages z of p(z|x) p(y|x,z), in both variants; the weights know no variant."""

    def __init__(
        self,
        encoder: Encoder,
        retriever: Retriever,
        generator: Generator,
        variant: marginal.Variant,
        passages_per_question: int,
        tokens_per_batch: int = 4096,
    ) -> None:
        self.encoder = encoder
        self.retriever = retriever
        self.generator = generator
        self.variant = variant
        self.passages_per_question = passages_per_question
        self.tokens_per_batch = tokens_per_batch

    def retrieve(self, questions: Sequence[str], k: int | None = None) -> tuple[Tensor, Hits]:
        """(log p(z|x) with gradient, shape (B, K); the hits)."""
        return self._search(self.encoder.embed_questions(questions), k)

    @torch.inference_mode()
    def find(self, questions: Sequence[str], k: int) -> Hits:
        """The k passages of each question, without gradient or prior."""
        return self._search(self.encoder.embed_questions(questions), k)[1]

    def _search(self, vectors_BD: Tensor, k: int | None = None) -> tuple[Tensor, Hits]:
        hits = self.retriever.search(_to_numpy(vectors_BD), k or self.passages_per_question)
        passage_vectors_BKD = torch.from_numpy(hits.vectors_BKD).to(vectors_BD.device)
        scores_BK = torch.einsum("bd,bkd->bk", vectors_BD, passage_vectors_BKD)
        return marginal.log_prior(scores_BK, self.encoder.preparation.temperature).to(self.generator.device), hits

    def loss(self, questions: Sequence[str], answers: Sequence[str]) -> Loss:
        """-log p(y|x) of each answer, with gradients into question encoder and generator."""
        vectors_BD = self.encoder.embed_questions(questions)
        log_prior_BK, hits = self._search(vectors_BD)
        scores = self.generator.target_logprobs(questions, hits.passages_BK, answers, self.tokens_per_batch)
        likelihood_B = marginal.log_likelihood(self.variant, log_prior_BK, *scores)
        with torch.no_grad():
            posterior_BK = marginal.posterior(self.variant, log_prior_BK, *scores)
        return Loss(-likelihood_B, vectors_BD, log_prior_BK.detach().exp(), posterior_BK)

    @torch.inference_mode()
    def answer(self, questions: Sequence[str], references: Sequence[str] | None = None) -> list[Prediction]:
        """Answer every question; with ``references``, also score one reference answer each, from the same prefill."""
        log_prior_BK, hits = self.retrieve(questions)
        prefill = self.generator.prefill(questions, hits.passages_BK, self.tokens_per_batch)
        reference_B = self._score_references(prefill, log_prior_BK, references)
        decoded = decoding.decode(self.variant, self.generator, prefill, log_prior_BK)
        posterior_BK = marginal.posterior(self.variant, log_prior_BK, decoded.token_logprobs_BKT, decoded.mask_BT)
        return [
            Prediction(
                Answer(
                    question=question,
                    text=self.generator.decode(decoded.tokens_B[index]),
                    log_prob=float(decoded.log_likelihood_B[index]),
                    passages=tuple(hits.passages_BK[index]),
                    prior=tuple(log_prior_BK[index].exp().tolist()),
                    posterior=tuple(posterior_BK[index].tolist()),
                    index_version=hits.index_version,
                ),
                reference_B[index],
            )
            for index, question in enumerate(questions)
        ]

    def _score_references(
        self, prefill: Prefill, log_prior_BK: Tensor, references: Sequence[str] | None
    ) -> Sequence[float | None]:
        if references is None:
            return [None] * len(log_prior_BK)
        targets_B = self.generator.tokenize_answers(references)
        scores_BKT, mask_BT = decoding.score_targets(self.generator, prefill, targets_B, log_prior_BK.shape[1])
        likelihood: list[float] = marginal.log_likelihood(self.variant, log_prior_BK, scores_BKT, mask_BT).tolist()
        return likelihood


def drift(vectors_BD: Tensor, start_encoder: Encoder, questions: Sequence[str]) -> Tensor:
    """Squared distance of q(x) from where the start encoder puts it, shape (B,), with gradient.

    As a penalty it keeps the question encoder from forgetting questions that training doesn't show.
    """
    with torch.no_grad():
        start_BD = start_encoder.embed_questions(questions)
    return (vectors_BD - start_BD).square().sum(-1)


@torch.inference_mode()
def answer_closed_book(
    generator: Generator, questions: Sequence[str], references: Sequence[str]
) -> list[tuple[str, float]]:
    """(answer, log p(reference|x)) by the generator alone, without passages."""
    prefill = generator.prefill(questions, passages_BK=None)
    certain_B1 = torch.zeros(len(questions), 1, device=generator.device)
    targets_B = generator.tokenize_answers(references)
    scores_BKT, mask_BT = decoding.score_targets(generator, prefill, targets_B, num_passages=1)
    likelihood_B = marginal.token_log_likelihood(certain_B1, scores_BKT, mask_BT)
    decoded = decoding.decode_rag_token(generator, prefill, certain_B1)
    return [
        (generator.decode(tokens), likelihood)
        for tokens, likelihood in zip(decoded.tokens_B, likelihood_B.tolist(), strict=True)
    ]


def _to_numpy(vectors_BD: Tensor) -> FloatArray:
    array: FloatArray = vectors_BD.detach().float().cpu().numpy()
    return array
