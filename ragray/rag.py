"""The RAG model: a prior p(z|x) over retrieved passages and a generator p(y|x,z), summed over the passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragray.config import DecodingConfig
from ragray.decoding.answers import Decoded, as_batch, decode, score_targets
from ragray.decoding.search import Allowed
from ragray.encoders import Encoder
from ragray.formulas import marginal
from ragray.generators.base import Generator, Prefill
from ragray.generators.prompt import Ids
from ragray.priors import Evidence, Prior
from ragray.records import Answer, InputError


@dataclass(frozen=True, slots=True)
class Loss:
    """-log p(y|x) of a batch and what monitors want to know about it."""

    nll_B: Tensor
    vectors_BD: Tensor | None
    prior_BK: Tensor
    posterior_BK: Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says to one question: its answers, best first, and log p(y|x) of the reference if given."""

    answers: tuple[Answer, ...]
    reference_log_prob: float | None = None

    @property
    def answer(self) -> Answer:
        return self.answers[0]


@dataclass(frozen=True, slots=True)
class Classified:
    """p(label|x) over the labels given, and the passages' part in the likeliest: posterior (K,)."""

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    posterior: tuple[float, ...]

    @property
    def label(self) -> str:
        return self.labels[max(range(len(self.labels)), key=self.probabilities.__getitem__)]


_LOGITS_AT_ONCE = 2**28  # of one step of decoding: a gigabyte in float32


class Rag:
    """p(y|x) = sum over passages z of p(z|x) p(y|x,z), in both variants; the weights know no variant.

    ``tokens_per_batch`` and ``passages_per_backward`` bound memory and change nothing else.
    """

    def __init__(
        self,
        prior: Prior,
        generator: Generator,
        variant: marginal.Variant,
        passages_per_question: int,
        *,
        decoding: DecodingConfig | None = None,
        label_smoothing: float = 0.0,
        tokens_per_batch: int = 4096,
        passages_per_backward: int | None = None,
    ) -> None:
        self.prior = prior
        self.generator = generator
        self.variant: marginal.Variant = variant
        self.passages_per_question = passages_per_question
        self.decoding = decoding or DecodingConfig()
        self.label_smoothing = label_smoothing
        self.tokens_per_batch = tokens_per_batch
        self.passages_per_backward = passages_per_backward

    def loss(self, questions: Sequence[str], answers: Sequence[str]) -> Loss:
        """-log p(y|x) of each answer, with gradients into question encoder and generator."""
        evidence, log_prior_BK = self._evidence(questions)
        scores = self.generator.target_logprobs(
            questions,
            evidence.passages_BK,
            answers,
            self.tokens_per_batch,
            self.passages_per_backward,
            self.label_smoothing,
        )
        likelihood_B = marginal.log_likelihood(self.variant, log_prior_BK, *scores)
        with torch.no_grad():
            posterior_BK = marginal.posterior(self.variant, log_prior_BK, *scores)
        return Loss(-likelihood_B, evidence.vectors_BD, log_prior_BK.detach().exp(), posterior_BK)

    @torch.inference_mode()
    def answer(
        self, questions: Sequence[str], references: Sequence[str] | None = None, allowed: Allowed | None = None
    ) -> list[Prediction]:
        """Answer every question; with ``references``, also score one reference answer each, from the same prefill.

        ``allowed``: (position of the question, tokens so far) -> the tokens that may follow.
        """
        size = self._answered_at_once()
        return [
            prediction
            for at in range(0, len(questions), size)
            for prediction in self._answer(
                questions[at : at + size],
                None if references is None else references[at : at + size],
                None if allowed is None else _later(allowed, at),
            )
        ]

    def _answered_at_once(self) -> int:
        """So many questions that the logits of all their beams stay within a gigabyte."""
        beams = max(self.decoding.num_beams, self.decoding.num_return_sequences if self.decoding.do_sample else 1)
        logits = self.passages_per_question * beams * self.generator.model.config.vocab_size
        return int(max(1, _LOGITS_AT_ONCE // logits))

    def _answer(
        self, questions: Sequence[str], references: Sequence[str] | None, allowed: Allowed | None
    ) -> list[Prediction]:
        evidence, log_prior_BK = self._evidence(questions)
        prefill = self._prefill(questions, evidence)
        reference_B: Sequence[float | None] = [None] * len(questions)
        if references is not None:
            reference_B = self._score_references(prefill, log_prior_BK, references)
        decoded_B = decode(self.variant, self.generator, prefill, log_prior_BK, self.decoding, allowed)
        return [
            Prediction(
                tuple(
                    self._as_answer(question, index, evidence, log_prior_BK, decoded) for decoded in decoded_B[index]
                ),
                reference_B[index],
            )
            for index, question in enumerate(questions)
        ]

    @torch.inference_mode()
    def classify(self, questions: Sequence[str], labels: Sequence[str]) -> list[Classified]:
        """p(label|x) by scoring each label's text as the answer: the paper's set-up for FEVER (section 2.4).

        The end token isn't scored, and neither is what all labels begin with: both say nothing about the label.  For
        labels of one token the two variants are the same model.

        Raises:
            InputError: for fewer than two labels, or if one label's tokens begin another's.
        """
        targets = _label_targets(self.generator, labels)
        evidence, log_prior_BK = self._evidence(questions)
        prefill = self._prefill(questions, evidence)
        given = _common_length(targets)
        scores_B = score_targets(self.generator, prefill, [targets] * len(questions), log_prior_BK.shape[1])
        classified = []
        for log_prior_K, scores in zip(log_prior_BK, scores_B, strict=True):
            told = [as_batch(label_KT[:, given:]) for label_KT in scores]
            likelihood_C = torch.cat(
                [marginal.log_likelihood(self.variant, log_prior_K.unsqueeze(0), *label) for label in told]
            )
            probabilities = torch.softmax(likelihood_C, dim=0)
            best = told[int(probabilities.argmax())]
            posterior_K = marginal.posterior(self.variant, log_prior_K.unsqueeze(0), *best)[0]
            classified.append(Classified(tuple(labels), tuple(probabilities.tolist()), tuple(posterior_K.tolist())))
        return classified

    def _evidence(self, questions: Sequence[str]) -> tuple[Evidence, Tensor]:
        evidence = self.prior(questions, self.passages_per_question)
        return evidence, evidence.log_prior_BK.to(self.generator.device)

    def _prefill(self, questions: Sequence[str], evidence: Evidence) -> Prefill:
        return self.generator.prefill(questions, evidence.passages_BK, self.tokens_per_batch)

    def _score_references(self, prefill: Prefill, log_prior_BK: Tensor, references: Sequence[str]) -> list[float]:
        targets_B = [[target] for target in self.generator.prompt.targets(references)]
        scores_B = score_targets(self.generator, prefill, targets_B, log_prior_BK.shape[1])
        return [
            float(marginal.log_likelihood(self.variant, log_prior_K.unsqueeze(0), *as_batch(scores_KT)))
            for log_prior_K, (scores_KT,) in zip(log_prior_BK, scores_B, strict=True)
        ]

    def _as_answer(
        self, question: str, index: int, evidence: Evidence, log_prior_BK: Tensor, decoded: Decoded
    ) -> Answer:
        log_prior_1K, scores = log_prior_BK[index : index + 1], as_batch(decoded.token_logprobs_KT)
        posterior_1K = marginal.posterior(self.variant, log_prior_1K, *scores)
        closed, per_token = evidence.passages_BK is None, None
        if self.variant == "rag_token" and not closed:
            posterior_KT = marginal.token_posterior(log_prior_1K, scores[0])[0]
            per_token = tuple(tuple(row) for row in posterior_KT.tolist())
        return Answer(
            question=question,
            text=self.generator.prompt.text(decoded.tokens),
            token_ids=decoded.tokens,
            log_prob=decoded.log_likelihood,
            passages=() if evidence.passages_BK is None else tuple(evidence.passages_BK[index]),
            prior=() if closed else tuple(log_prior_1K[0].exp().tolist()),
            posterior=() if closed else tuple(posterior_1K[0].tolist()),
            log_likelihoods=() if closed else tuple(decoded.token_logprobs_KT.sum(-1).tolist()),
            token_posteriors=per_token,
            index_version=evidence.index_version,
        )


def drift(vectors_BD: Tensor, start_encoder: Encoder, questions: Sequence[str]) -> Tensor:
    """Squared distance of q(x) from where the start encoder puts it, shape (B,), with gradient.

    As a penalty it keeps the question encoder from forgetting questions that training doesn't show.
    """
    with torch.no_grad():
        start_BD = start_encoder.embed_questions(questions)
    return (vectors_BD - start_BD).square().sum(-1)


def _later(allowed: Allowed, first: int) -> Allowed:
    """The same, for the questions from ``first`` on."""
    return lambda position, tokens: allowed(first + position, tokens)


def _label_targets(generator: Generator, labels: Sequence[str]) -> list[Ids]:
    """The labels' tokens without the end token."""
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise InputError(f"classification needs at least two labels, all different, got {list(labels)!r}")
    targets = [
        target[:-1] if target[-1:] == (generator.prompt.end_id,) else target
        for target in generator.prompt.targets(labels)
    ]
    for one, label in zip(targets, labels, strict=True):
        for other, longer in zip(targets, labels, strict=True):
            if label != longer and other[: len(one)] == one:
                raise InputError(f"label {longer!r} begins with the tokens of {label!r}: choose other words")
    return targets


def _common_length(targets: Sequence[Ids]) -> int:
    """How many tokens all targets begin with."""
    together = list(zip(*targets, strict=False))
    return next((at for at, tokens in enumerate(together) if len(set(tokens)) > 1), len(together))
