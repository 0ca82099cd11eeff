"""Gathers from a run what its report shows."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pipelines.job import Run
from ragray.artifacts import Artifact
from ragray.records import Answer, Passage, Question
from ragray.report import Example, ReportContent, RunFacts
from ragray.scoring import recall_curve

_EXAMPLES = 4


def report_content(
    run: Run,
    index: Artifact,
    model: Artifact,
    metrics: Mapping[str, Any],
    systems: Mapping[str, Sequence[Mapping[str, Any]]],
    sets: Mapping[str, Sequence[Question]],
) -> ReportContent:
    """Everything the report needs, from settings, manifests, logs and rows."""
    from ragray.distributed.training import read_log

    main_set = next(iter(sets))
    curves, first = {}, 0
    for name, questions in sets.items():
        rows = {system: systems[system][first : first + len(questions)] for system in ("before", "after")}
        if all("hits" in row for row in rows["after"]):  # not for a model that doesn't retrieve
            largest = max(run.config.evaluate.recall_at)
            curves[name] = {system: recall_curve(part, largest) for system, part in rows.items()}
        first += len(questions)
    return ReportContent(
        run=_facts(run, index, model),
        metrics=metrics,
        training_log=read_log(model.folder),
        recall_curves=curves,
        examples=_examples(sets[main_set], systems),
        main_set=main_set,
    )


def _facts(run: Run, index: Artifact, model: Artifact) -> RunFacts:
    config, train = run.config, run.config.train
    return RunFacts(
        run=str(run.folder),
        corpus=config.corpus,
        passages=int(index.manifest.summary["num_passages"]),
        shards=int(index.manifest.summary["num_shards"]),
        encoder=" + ".join(dict.fromkeys([config.encoder.model, config.encoder.of_passages])),
        generator=config.generator.model,
        variant=train.variant,
        settings={
            "training steps": train.steps,
            "questions a step": train.questions_per_step,
            "passages a question, K, in training": train.passages_per_question,
            "passages a question, K, in evaluation": config.evaluate.passages_per_question,
            "learning rate of the question encoder": train.optimizer.encoder_rate,
            "learning rate of the generator": train.optimizer.generator_rate,
            "generator layers trained": train.optimizer.generator_layers or "all",
            "weight of the anchor": train.anchor,
            "prior": train.prior,
            "temperature of the prior at the start": config.encoder.temperature,
            "seed": train.seed,
        },
        stage_seconds=run.console.seconds,
        machine=f"{os.cpu_count()} CPUs ({platform.machine()}), {'GPU' if config.resources.use_gpu else 'no GPU used'}",
        versions={
            "3-index": index.fingerprint,
            model.folder.name: model.fingerprint,
            "ragray": model.manifest.ragray_version,
            **{package: version(package) for package in ("ray", "torch", "transformers", "faiss-cpu")},
        },
    )


def _examples(questions: Sequence[Question], systems: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Example, ...]:
    """The first questions of different relations; not chosen by how well they went."""
    examples: list[Example] = []
    seen: set[str | int] = set()
    for position, question in enumerate(questions):
        if question.relation in seen or len(examples) == _EXAMPLES:
            continue
        seen.add(question.relation if question.relation is not None else position)
        before, after = (_answer(systems[name][position]["answer"]) for name in ("before", "after"))
        examples.append(Example(question.answers, before, after))
    return tuple(examples)


def _answer(row: Mapping[str, Any]) -> Answer:
    passages = row["passages"]
    return Answer(
        question=row["question"],
        text=row["answer"],
        log_prob=row["log_prob"],
        passages=tuple(Passage(passage["id"], passage["title"], passage["text"]) for passage in passages),
        prior=tuple(passage["prior"] for passage in passages),
        posterior=tuple(passage["posterior"] for passage in passages),
        index_version=row["index_version"],
    )
