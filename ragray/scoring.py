"""Per-question results -> ``metrics.json``: means, recall curves and paired comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from ragray.formulas.metrics import holds_answer, paired_bootstrap, recall_at
from ragray.records import Passage, Question

Rows = Sequence[Mapping[str, Any]]  # of one system on one dev set; see distributed/evaluation.py
BASELINES = ("before", "closed_book", "frozen")


def is_hit(passage: Passage, question: Question) -> bool:
    """A passage is a hit if it holds an answer and, where the question names its document, comes from that document."""
    named = question.title is None or passage.title == question.title
    return named and holds_answer(passage.text, question.answers)


def metrics_of(systems: Mapping[str, Rows], sets: Mapping[str, Sequence[int]], ks: Sequence[int]) -> dict[str, Any]:
    """The whole of ``metrics.json``.

    Args:
        systems: rows of ``before``, ``after``, ``closed_book`` and, if that was run, ``frozen``.
        sets: positions in the rows of each dev set; the first set's scores stand at the top level.
        ks: the k of recall@k.
    """
    answers = systems["after"]
    metrics: dict[str, Any] = {
        "questions": {name: len(positions) for name, positions in sets.items()},
        "answered": {name: sum("text" in answers[at] for at in positions) for name, positions in sets.items()},
        "comparisons": {},
    }
    for number, (set_name, positions) in enumerate(sets.items()):
        chosen = {name: [rows[position] for position in positions] for name, rows in systems.items()}
        scores: dict[str, Any] = {name: summarize(rows, ks) for name, rows in chosen.items()}
        scores.setdefault("frozen", None)
        metrics.update(scores if number == 0 else {set_name: scores})
        metrics["comparisons"][set_name] = {
            f"after - {name}": compare(chosen["after"], chosen[name], ks) for name in BASELINES if name in chosen
        }
    return metrics


def summarize(rows: Rows, ks: Sequence[int]) -> dict[str, float | None]:
    """Means over the questions that have the metric; None where none has.  ``nll`` is -log p(y|x) in nats."""
    values = {name: [value for row in rows if (value := _value(row, name)) is not None] for name in metric_names(ks)}
    return {name: fmean(value) if value else None for name, value in values.items()}


def compare(system: Rows, baseline: Rows, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    """system - baseline by metric, with the paired bootstrap 95% interval over the questions that both have it for."""
    compared = {}
    for name in metric_names(ks):
        pairs = [(_value(ours, name), _value(theirs, name)) for ours, theirs in zip(system, baseline, strict=True)]
        both = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        if both:
            system_values, baseline_values = zip(*both, strict=True)
            compared[name] = asdict(paired_bootstrap(system_values, baseline_values))
    return compared


def recall_curve(rows: Rows, largest_k: int) -> dict[int, float]:
    """recall@k for k = 1 .. largest_k."""
    return {k: fmean(recall_at(row["hits"], k) for row in rows) for k in range(1, largest_k + 1)}


def metric_names(ks: Sequence[int]) -> list[str]:
    return [*(f"recall@{k}" for k in ks), "exact_match", "f1", "nll"]


def _value(row: Mapping[str, Any], metric: str) -> float | None:
    if metric.startswith("recall@"):
        return recall_at(row["hits"], int(metric.removeprefix("recall@"))) if "hits" in row else None
    if metric == "nll":
        return -row["log_prob"] if "log_prob" in row else None
    return row.get(metric)
