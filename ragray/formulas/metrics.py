"""Metrics of open-domain question answering, per question, and the paired bootstrap that compares two systems."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces (SQuAD, Rajpurkar et al. 2016)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals any normalised answer, else 0.0."""
    return float(any(normalize_answer(prediction) == normalize_answer(answer) for answer in answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Best harmonic mean of word precision and recall over the answers, in [0, 1] (SQuAD)."""
    return max((_word_f1(prediction, answer) for answer in answers), default=0.0)


def _word_f1(prediction: str, answer: str) -> float:
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not predicted or not expected:
        return float(predicted == expected)
    overlap = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * overlap / (len(predicted) + len(expected))


def holds_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether any answer stands in the text as whole words, both normalised (DPR's "string" match)."""
    padded = f" {normalize_answer(text)} "
    return any(f" {normalized} " in padded for normalized in map(normalize_answer, answers) if normalized)


def recall_at(hit_K: Sequence[bool], k: int) -> float:
    """1.0 if any of the first k passages is a hit, else 0.0.  Fewer than k passages is no error."""
    return float(any(hit_K[:k]))


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean difference with its 95% interval."""

    difference: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    system: Sequence[float], baseline: Sequence[float], resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean of ``system - baseline`` over the same questions, with its percentile bootstrap 95% interval.

    Questions are resampled with replacement (Efron & Tibshirani 1993, chapter 13; paired, as in Koehn 2004).

    Raises:
        ValueError: if the two differ in length or are empty.
    """
    if len(system) != len(baseline) or not len(system):
        raise ValueError(f"paired scores must be of one length > 0, got {len(system)} and {len(baseline)}")
    difference = np.asarray(system, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    generator = np.random.default_rng(seed)
    size = len(difference)
    means = [difference[generator.integers(0, size, size)].mean() for _ in range(resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(difference.mean()), float(low), float(high))
