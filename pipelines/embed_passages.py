"""1-passages -> 2-embeddings: every passage through the passage encoder, on all the machines there are.

python -m pipelines.embed_passages --run runs/mine --set encoder.model=path/of/model
"""

from __future__ import annotations

from typing import Any

from pipelines.job import Run, encoder_ref, run_job
from ragray import artifacts
from ragray.artifacts import Artifact, ArtifactError, Plan
from ragray.distributed.session import ray_session
from ragray.storage import location


def embed_passages(run: Run) -> Artifact:
    """Embed the passages with the passage encoder; files that an interrupted run finished are kept."""
    config, passages = run.config, run.open("passages")
    _, model = run.towers()
    settings = {**config.embed.model_dump(mode="json"), "encoder": config.encoder.of_passages}
    plan = Plan("embeddings", settings, [passages.ref, encoder_ref(model, config.encoder)])
    earlier = _earlier(config.resources.earlier_embeddings, plan)
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
            earlier=earlier,
        )
        workspace.summary.update(summary)
        kept = summary["num_passages"] - summary["num_embedded"]
        stage.outcome = (
            f"{summary['num_passages']:,} vectors of {summary['dimension']} numbers, {stage.rate:.0f} a second"
            f"{_efficiency(summary)}" + (f"; {kept:,} taken over" if kept else "")
        )
    return run.open("embeddings")


def _efficiency(summary: dict[str, Any]) -> str:
    if not summary["num_embedded"]:
        return ""
    rate, share = summary["tokens_per_encoder_second"], summary["share_of_peak"]
    return f"; {rate:,} tokens a second and actor, {summary['padding_share']:.1%} padding" + (
        f", {share:.0%} of the peak" if share else ""
    )


def _earlier(folder: str | None, plan: Plan) -> Artifact | None:
    """The embeddings whose vectors may be taken over.

    Raises:
        ArtifactError: if their vectors were made otherwise.
    """
    if folder is None:
        return None
    earlier = artifacts.open_artifact(location(folder), "embeddings")
    encoder = next(ref for ref in plan.inputs if ref.kind == "encoder")
    there = {**earlier.manifest.config, "encoder fingerprint": earlier.input_fingerprint("encoder")}
    here = {**plan.config, "encoder fingerprint": encoder.fingerprint}
    for key in ("encoder fingerprint", "dtype", "vectors"):
        if there[key] != here[key]:
            raise ArtifactError(
                f"{earlier.folder} was made with {key} {there[key]}, and here it is {here[key]}: its vectors can't be "
                "taken over; leave out resources.earlier_embeddings"
            )
    return earlier


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", embed_passages))
