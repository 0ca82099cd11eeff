"""2-embeddings -> 3-index: FAISS shards with their vectors and passages.

python -m pipelines.index_embeddings --run runs/mine --set index.num_shards=4
"""

from __future__ import annotations

from pipelines.job import Run, run_job
from ragray import artifacts
from ragray.artifacts import Artifact, InputRef, Plan
from ragray.distributed.session import ray_session


def index_embeddings(run: Run) -> Artifact:
    """Build the shards; shards that an interrupted run finished are kept."""
    embeddings = run.open("embeddings")
    encoder = InputRef(kind="encoder", fingerprint=embeddings.input_fingerprint("encoder"))
    plan = Plan("index", run.config.index.model_dump(mode="json"), [embeddings.ref, encoder])
    if finished := artifacts.find_finished(run.path("index"), plan):
        run.console.skipped("index_embeddings", f"{finished.folder} is there")
        return finished
    with (
        run.console.stage("index_embeddings") as stage,
        ray_session(run.verbose),
        artifacts.create(run.path("index"), plan) as workspace,
    ):
        from ragray.distributed import indexing, session

        workers = session.num_cluster_cpus()
        summary = indexing.build_index(embeddings.folder, workspace.folder, run.config.index, workers, stage.progress)
        workspace.summary.update(summary)
        stage.outcome = f"{summary['num_passages']:,} passages in {summary['num_shards']} shards"
    return run.open("index")


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", index_embeddings))
