"""4-model + 3-index + dev questions -> 5-report: metrics.json, report.html and every answer.

python -m pipelines.evaluate_rag --run runs/mine
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.job import (
    ABLATION_REPORT,
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
from pipelines.report_content import report_content
from ragray import artifacts
from ragray.artifacts import Artifact, ArtifactError, InputRef, Plan
from ragray.console import Progress
from ragray.distributed.session import ray_session
from ragray.questions import read_questions
from ragray.records import Question
from ragray.report import write_report
from ragray.scoring import metrics_of
from ragray.storage import local_copy, write_whole


def evaluate_rag(run: Run) -> Artifact:
    """Score the dev sets before and after joint training, and closed book."""
    return _report(run, run.path("report"), {"model": run.open("model")})


def evaluate_ablation(run: Run) -> Artifact:
    """The same beside the model that was trained with a frozen question encoder; a report of its own."""
    frozen = artifacts.open_artifact(run.folder / FROZEN_MODEL, "model")
    return _report(run, run.folder / ABLATION_REPORT, {"model": run.open("model"), "frozen model": frozen})


def _report(run: Run, target: Path, models: Mapping[str, Artifact]) -> Artifact:
    index = run.open("index")
    _check_base_models(run, index, models["model"])
    for model in models.values():
        check_same_encoder(
            index, InputRef(kind="encoder", fingerprint=model.input_fingerprint("encoder")), str(model.folder)
        )
    sets = {name: _dev_questions(run, name) for name in run.config.dev_questions}
    files = [file_ref(f"questions of {name}", run.file(path)) for name, path in run.config.dev_questions.items()]
    trained = [InputRef(kind=name, fingerprint=model.fingerprint) for name, model in models.items()]
    settings = {
        **run.config.evaluate.model_dump(mode="json"),
        **question_settings(run.config.encoder),
        "decoding": run.config.decoding.model_dump(mode="json"),
    }
    plan = Plan("report", settings, [index.ref, *trained, *files])
    name = "evaluate_rag" if target == run.path("report") else "evaluate_ablation"
    if finished := artifacts.find_finished(target, plan):
        run.console.skipped(name, f"{finished.folder} is there")
        return finished
    with (
        run.console.stage(name) as stage,
        ray_session(run.verbose),
        artifacts.create(target, plan, staged=True) as workspace,
    ):
        _reuse_answers(run, plan, workspace.folder)
        questions = [question for rows in sets.values() for question in rows]
        answered = [
            position < run.config.evaluate.answers_per_set.get(name, len(rows))
            for name, rows in sets.items()
            for position in range(len(rows))
        ]
        systems = _evaluate(run, index, models, questions, answered, workspace.folder / "answers", stage.progress)
        metrics = metrics_of(systems, _positions(sets), run.config.evaluate.recall_at)
        text = json.dumps(metrics, indent=1)
        artifacts.write_atomically(workspace.folder / "metrics.json", text + "\n")
        write_report(workspace.folder, report_content(run, index, models["model"], metrics, systems, sets))
        workspace.summary = {name: metrics[name] for name in ("before", "after", "frozen", "closed_book")}
        stage.outcome = f"{len(questions):,} questions, {sum(answered)} of them answered, by {len(systems)} systems"
    return artifacts.open_artifact(target, "report")


def _check_base_models(run: Run, index: Artifact, model: Artifact) -> None:
    """Refuse to compare a model with a "before" that it wasn't trained from.

    Raises:
        ArtifactError: naming both.
    """
    config = run.config
    encoder, passage_encoder = run.towers()
    check_same_encoder(index, encoder_ref(passage_encoder, config.encoder), "the recipe")
    generator = generator_ref(run.model(config.generator.model), config.generator)
    recipe = {
        f"encoder.model={config.encoder.model}": question_encoder_ref(encoder),
        f"generator.model={config.generator.model} with its prompt": generator,
    }
    for setting, ref in recipe.items():
        trained_from = model.input_fingerprint(ref.kind)
        if trained_from != ref.fingerprint:
            raise ArtifactError(
                f"{model.folder} was trained from {ref.kind} {trained_from}, but the recipe's {setting} is "
                f"{ref.fingerprint}: use the recipe of the training"
            )


def _reuse_answers(run: Run, plan: Plan, folder: Path) -> None:
    """Take over the answers of the plain report, where it was made from the same things as this one."""
    plain = run.path("report")
    if not plain.exists() or (folder / "answers").exists():
        return
    inputs = [ref for ref in plan.inputs if ref.kind != "frozen model"]
    if artifacts.open_artifact(plain, "report").fingerprint == Plan(plan.kind, plan.config, inputs).fingerprint:
        with write_whole(folder / "answers") as temporary:
            shutil.copytree(local_copy(plain / "answers"), temporary)


def _dev_questions(run: Run, name: str) -> list[Question]:
    """The questions of a dev set, their ids prefixed with its name."""
    questions = read_questions(run.file(run.config.dev_questions[name]))
    return [replace(question, id=f"{name}/{question.id}") for question in questions]


def _positions(sets: Mapping[str, Sequence[Question]]) -> dict[str, range]:
    positions, first = {}, 0
    for name, questions in sets.items():
        positions[name] = range(first, first + len(questions))
        first += len(questions)
    return positions


def _evaluate(
    run: Run,
    index: Artifact,
    models: Mapping[str, Artifact],
    questions: list[Question],
    answered: list[bool],
    folder: Path,
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    from ragray.distributed import session
    from ragray.distributed.evaluation import EvaluationJob, System, evaluate
    from ragray.distributed.retrieval import ClusterRetriever
    from ragray.priors import PriorSource

    config = run.config
    base_encoder, base_generator = run.model(config.encoder.model), run.model(config.generator.model)
    joint = models["model"].folder.resolve()
    trained = (str(joint / "question_encoder"), str(joint / "generator"))
    retriever = ClusterRetriever.start(index)
    settings = models["model"].manifest.config
    to_answer = [question for question, wanted in zip(questions, answered, strict=True) if wanted]
    prior = PriorSource.of(settings["prior"], retriever, index.folder, to_answer)
    systems = [
        System("before", base_encoder, base_generator, prior),
        System("after", *trained, prior),
        System("closed_book", *trained, replace(prior, kind="closed_book")),
    ]
    if frozen := models.get("frozen model"):
        systems.append(System("frozen", base_encoder, str(frozen.folder.resolve() / "generator"), prior))
    pool = session.actor_pool(config.resources.evaluate_actors, config.resources)
    job = EvaluationJob(
        config=config.evaluate,
        decoding=config.decoding,
        encoder=config.encoder,
        generator=config.generator,
        variant=settings["variant"],
        threads=pool.threads,
        resources=config.resources,
    )
    results = evaluate(
        job, systems, questions, answered, folder, num_actors=pool.actors, gpus_per_actor=pool.gpus, progress=progress
    )
    retriever.stop()
    return results


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", evaluate_rag))
