"""documents -> 1-passages: disjoint 100-word passages as Parquet.

python -m pipelines.chunk_corpus --run runs/mine --set corpus=documents.jsonl
"""

from __future__ import annotations

from typing import Any

from pipelines.job import Run, file_ref, model_ref, run_job
from ragray import artifacts
from ragray.artifacts import Artifact, Plan
from ragray.distributed.session import ray_session


def chunk_corpus(run: Run) -> Artifact:
    """Split the corpus into passages, streamed."""
    corpus = run.file(run.config.corpus)
    config, tokenizer, inputs = run.config.chunk, None, [file_ref("corpus", corpus)]
    if config.unit == "tokens":
        tokenizer = run.model(config.tokenizer or run.config.encoder.of_passages)
        inputs.append(model_ref("tokenizer", tokenizer))
    plan = Plan("passages", config.model_dump(mode="json"), inputs)
    if finished := artifacts.find_finished(run.path("passages"), plan):
        run.console.skipped("chunk_corpus", f"{finished.folder} is there")
        return finished
    with (
        run.console.stage("chunk_corpus") as stage,
        ray_session(run.verbose),
        artifacts.create(run.path("passages"), plan) as workspace,
    ):
        from ragray.distributed import chunking, session

        workers = session.num_cluster_cpus()
        summary = chunking.chunk_corpus(corpus, workspace.folder, config, workers, stage.progress, tokenizer=tokenizer)
        workspace.summary.update(summary)
        stage.outcome = f"{summary['num_passages']:,} passages{_left_out(summary)}"
    return run.open("passages")


def _left_out(summary: dict[str, Any]) -> str:
    """What didn't become a passage, for the line that the stage ends with."""
    found = {"records skipped": summary["skipped_records"]}
    found |= {f"passages {reason.replace('_', ' ')}": count for reason, count in summary["dropped_passages"].items()}
    return "".join(f", {count:,} {what}" for what, count in found.items() if count)


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", chunk_corpus))
