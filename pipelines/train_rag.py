"""3-index + questions -> 4-model: question encoder and generator, trained together through p(z|x).

python -m pipelines.train_rag --run runs/mine --set train_questions=train.jsonl --set train.variant=rag_sequence
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pipelines.job import (
    FROZEN_MODEL,
    Run,
    check_same_encoder,
    encoder_ref,
    file_ref,
    generator_ref,
    question_encoder_ref,
    question_settings,
    run_job,
)
from ragray import artifacts
from ragray.artifacts import Artifact, Plan
from ragray.config import TrainConfig
from ragray.distributed.session import ray_session
from ragray.questions import read_questions
from ragray.storage import cache_folder, is_local


def train_rag(run: Run) -> Artifact:
    """Train both models jointly."""
    return _train(run, run.path("model"), run.config.train, "train_rag")


def train_frozen(run: Run) -> Artifact:
    """The ablation: the same run with the question encoder frozen (Lewis et al. 2020, table 6)."""
    train = run.config.train
    optimizer = train.optimizer.model_copy(update={"encoder_rate": 0.0})
    frozen = train.model_copy(update={"optimizer": optimizer, "anchor": 0.0})
    return _train(run, run.folder / FROZEN_MODEL, frozen, "train_frozen")


def _train(run: Run, target: Path, train: TrainConfig, name: str) -> Artifact:
    config, index = run.config, run.open("index")
    questions_file = run.file(config.train_questions)
    questions = read_questions(questions_file)
    (encoder, passage_encoder), generator = run.towers(), run.model(config.generator.model)
    encoder_identity = encoder_ref(passage_encoder, config.encoder)
    check_same_encoder(index, encoder_identity, f"the run with passage encoder {config.encoder.of_passages}")
    generator_identity = generator_ref(generator, config.generator)
    settings = {
        **train.model_dump(mode="json"),
        **question_settings(config.encoder),
        "encoder": config.encoder.model,
        "generator": config.generator.model,
    }
    identities = [encoder_identity, question_encoder_ref(encoder), generator_identity]
    inputs = [index.ref, *identities, file_ref("questions", questions_file)]
    plan = Plan("model", settings, inputs)
    if finished := artifacts.find_finished(target, plan):
        run.console.skipped(name, f"{finished.folder} is there")
        return finished
    place = target.parent if is_local(target) else cache_folder() / "staged"
    checkpoints = place / f".{target.name}.{plan.fingerprint}.checkpoints"
    with (
        run.console.stage(name) as stage,
        ray_session(run.verbose),
        artifacts.create(target, plan, staged=True) as workspace,
    ):
        from ragray.distributed import session
        from ragray.distributed.retrieval import ClusterRetriever
        from ragray.distributed.training import TrainingJob
        from ragray.distributed.training import train as run_training
        from ragray.priors import PriorSource

        retriever = ClusterRetriever.start(index)
        pool = session.actor_pool(config.resources.train_workers, config.resources)
        workers = min(pool.actors, train.questions_per_step)
        job = TrainingJob(
            config=train,
            encoder=config.encoder,
            generator=config.generator,
            encoder_folder=encoder,
            generator_folder=generator,
            prior=PriorSource.of(train.prior, retriever, index.folder, questions),
            questions=tuple(questions),
            output=str(workspace.folder.resolve()),
            threads=pool.threads,
            resources=config.resources,
        )
        summary = run_training(job, checkpoints, workers, config.resources.use_gpu, stage.progress)
        retriever.stop()
        workspace.summary.update(summary)
        stage.outcome = f"{summary['steps']} steps, loss {summary['last_loss']:.2f}"
    for outdated in place.glob(f".{target.name}.*.checkpoints"):
        shutil.rmtree(outdated, ignore_errors=True)
    return artifacts.open_artifact(target, "model")


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", train_rag))
