"""Per-question results -> ``metrics.json``: means, recall curves and paired comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from ragray.formulas.metrics import paired_bootstrap, recall_at

Rows = Sequence[Mapping[str, Any]]  # of one system on one dev set; see distributed/evaluation.py
BASELINES = ("before", "closed_book", "frozen")


def metrics_of(systems: Mapping[str, Rows], sets: Mapping[str, Sequence[int]], ks: Sequence[int]) -> dict[str, Any]:
    """The whole of ``metrics.json``.

    Args:
        systems: rows of ``before``, ``after``, ``closed_book`` and, if that was run, ``frozen``.
        sets: positions in the rows of each dev set; the first set's scores stand at the top level.
        ks: the k of recall@k.
    """
    metrics: dict[str, Any] = {"questions": {name: len(rows) for name, rows in sets.items()}, "comparisons": {}}
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
    """Means over the questions; ``nll`` is the mean of -log p(y|x) in nats.  Recall is None without retrieval."""
    values = {name: _values(rows, name) for name in metric_names(ks)}
    return {name: None if value is None else fmean(value) for name, value in values.items()}


def compare(system: Rows, baseline: Rows, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    """system - baseline by metric, with the paired bootstrap 95% interval; only metrics that both of them have."""
    pairs = {name: (_values(system, name), _values(baseline, name)) for name in metric_names(ks)}
    return {
        name: asdict(paired_bootstrap(ours, theirs))
        for name, (ours, theirs) in pairs.items()
        if ours is not None and theirs is not None
    }


def recall_curve(rows: Rows, largest_k: int) -> dict[int, float]:
    """recall@k for k = 1 .. largest_k."""
    return {k: fmean(recall_at(row["hits"], k) for row in rows) for k in range(1, largest_k + 1)}


def metric_names(ks: Sequence[int]) -> list[str]:
    return [*(f"recall@{k}" for k in ks), "exact_match", "f1", "nll"]


def _values(rows: Rows, metric: str) -> list[float] | None:
    if metric.startswith("recall@"):
        k = int(metric.removeprefix("recall@"))
        return [recall_at(row["hits"], k) for row in rows] if all("hits" in row for row in rows) else None
    if metric == "nll":
        return [-row["log_prob"] for row in rows]
    return [row[metric] for row in rows]
