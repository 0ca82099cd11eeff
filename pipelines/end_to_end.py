"""The whole chain, from documents to answers over HTTP.

    python -m pipelines.end_to_end --recipe quickstart --run runs/quickstart

The same command again goes on where it stopped: finished stages are recognised by their manifests and skipped.
"""

from __future__ import annotations

import json
import time
from typing import Any

from pipelines.chunk_corpus import chunk_corpus
from pipelines.embed_passages import embed_passages
from pipelines.evaluate_rag import evaluate_ablation, evaluate_rag
from pipelines.get_demo import get_demo
from pipelines.index_embeddings import index_embeddings
from pipelines.job import Run, run_job
from pipelines.serve_rag import demonstrate
from pipelines.train_rag import train_frozen, train_rag
from ragray.artifacts import Artifact
from ragray.distributed.session import ray_session
from ragray.questions import read_questions


def end_to_end(run: Run, ablation: bool = False) -> None:
    """Run every stage that isn't done yet, then show the results."""
    started = time.monotonic()
    if run.config.demo is not None:
        get_demo(run)
    _check_questions(run)
    with ray_session(run.verbose):
        chunk_corpus(run)
        embed_passages(run)
        index_embeddings(run)
        train_rag(run)
        report = evaluate_rag(run)
        if ablation:
            train_frozen(run)
            report = evaluate_ablation(run)
        if run.config.serve.demo_questions:
            demonstrate(run)
    _show_results(run, report, time.monotonic() - started)


def _check_questions(run: Run) -> None:
    """Find a broken question file now, not after the corpus is embedded."""
    for name in (run.config.train_questions, *run.config.dev_questions.values()):
        read_questions(run.file(name))


def _show_results(run: Run, report: Artifact, seconds: float) -> None:
    metrics = json.loads((report.folder / "metrics.json").read_text(encoding="utf-8"))
    say = run.console.line
    say()
    for line in results_table(metrics, next(iter(run.config.dev_questions))):
        say(line)
    say()
    say(f"Took {seconds / 60:.1f} minutes. Report: {report.folder / 'report.html'}")
    say("Next:")
    where = f"--run {run.folder}" if run.recipe == "quickstart" else f"--recipe {run.recipe} --run {run.folder}"
    say(f'  ragray ask "…" {where}')
    say("      one answer at the prompt")
    say(f"  ragray serve {where}")
    say("      the page and the HTTP API")
    if not metrics.get("frozen"):
        say(f"  ragray quickstart {where} --ablation")
        say("      also train with a frozen question encoder, to compare")


def results_table(metrics: dict[str, Any], dev_set: str) -> list[str]:
    """The lines that a run ends with: a dev set's scores by system, and what training changed."""
    columns = [name for name in ("closed_book", "before", "frozen", "after") if metrics.get(name)]
    lines = [
        f"{dev_set}: {metrics['questions'][dev_set]} questions, {metrics['answered'][dev_set]} of them answered",
        "".join([f"{'':<16}", *(f"{name:>13}" for name in columns), "   after - before [95%]"]),
    ]
    for metric in metrics["after"]:
        line = f"{metric:<16}" + "".join(f"{_cell(metrics[name][metric]):>13}" for name in columns)
        change = metrics["comparisons"][dev_set]["after - before"].get(metric)
        if change:  # without retrieval there is no recall to compare
            line += f"   {change['difference']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]"
        lines.append(line)
    return lines


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", end_to_end))
