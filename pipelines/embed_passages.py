"""1-passages -> 2-embeddings: every passage through the passage encoder, on all the machines there are.

python -m pipelines.embed_passages --run runs/mine --set encoder.model=path/of/model
"""

from __future__ import annotations

from pipelines.job import Run, encoder_ref, run_job
from ragray import artifacts
from ragray.artifacts import Artifact, Plan
from ragray.distributed.session import ray_session


def embed_passages(run: Run) -> Artifact:
    """Embed the passages with the passage encoder; files that an interrupted run finished are kept."""
    config, passages = run.config, run.open("passages")
    _, model = run.towers()
    settings = {**config.embed.model_dump(mode="json"), "encoder": config.encoder.of_passages}
    plan = Plan("embeddings", settings, [passages.ref, encoder_ref(model, config.encoder)])
    if finished := artifacts.find_finished(run.path("embeddings"), plan):
        run.console.skipped("embed_passages", f"{finished.folder} is there")
        return finished
    with (
        run.console.stage("embed_passages") as stage,
        ray_session(run.verbose),
        artifacts.create(run.path("embeddings"), plan) as workspace,
    ):
        from ragray.distributed import embedding, session

        pool = session.actor_pool(config.resources.embed_actors, config.resources)
        summary = embedding.embed_passages(
            passages.folder,
            workspace.folder,
            model,
            config.encoder,
            config.embed,
            num_actors=pool.actors,
            threads=pool.threads,
            tokens_per_batch=config.resources.tokens_per_batch,
            gpus_per_actor=pool.gpus,
            progress=stage.progress,
        )
        workspace.summary.update(summary)
        stage.outcome = (
            f"{summary['num_passages']:,} vectors of {summary['dimension']} numbers, {stage.rate:.0f} a second"
        )
    return run.open("embeddings")


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", embed_passages))
