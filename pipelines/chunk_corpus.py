"""documents -> 1-passages: disjoint 100-word passages as Parquet.

python -m pipelines.chunk_corpus --run runs/mine --set corpus=documents.jsonl
"""

from __future__ import annotations

from pipelines.job import Run, file_ref, run_job
from ragray import artifacts
from ragray.artifacts import Artifact, Plan
from ragray.distributed.session import ray_session


def chunk_corpus(run: Run) -> Artifact:
    """Split the corpus into passages, streamed."""
    corpus = run.file(run.config.corpus)
    plan = Plan("passages", run.config.chunk.model_dump(mode="json"), [file_ref("corpus", corpus)])
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
        summary = chunking.chunk_corpus(corpus, workspace.folder, run.config.chunk, workers, stage.progress)
        workspace.summary.update(summary)
        stage.outcome = f"{summary['num_passages']:,} passages"
    return run.open("passages")


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", chunk_corpus))
