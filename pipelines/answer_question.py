"""One question -> one answer at the prompt: from a running server, or with the run's models loaded in this process."""

from __future__ import annotations

import os

from pipelines.job import Run, check_same_encoder
from pipelines.serve_rag import ask, show_answer
from ragray.artifacts import InputRef
from ragray.records import InputError


def answer_question(run: Run, question: str, address: str | None = None) -> None:
    """Print the answer with its cited passages.

    Raises:
        InputError: an empty question.
        ArtifactError: the run has no model or index yet, or they don't belong together.
    """
    if not question.strip():
        raise InputError("the question is empty")
    show_answer(run, ask(address, question) if address else _answer_here(run, question))


def _answer_here(run: Run, question: str) -> dict[str, object]:
    from transformers.utils import logging as transformers_logging

    from ragray.encoders import Encoder
    from ragray.generators.loading import load_generator
    from ragray.index_shard import open_shards
    from ragray.precision import resolve_dtype, set_threads
    from ragray.priors import PriorSource
    from ragray.rag import Rag

    transformers_logging.disable_progress_bar()
    set_threads(os.cpu_count() or 1)
    index, model, config = run.open("index"), run.open("model"), run.config
    check_same_encoder(
        index, InputRef(kind="encoder", fingerprint=model.input_fingerprint("encoder")), str(model.folder)
    )
    trained = model.manifest.config
    prior = PriorSource.of(trained["prior"], open_shards(index), index.folder, [])
    rag = Rag(
        prior.build(Encoder.load(model.folder / "question_encoder", config.encoder)),
        load_generator(model.folder / "generator", config.generator, resolve_dtype("auto"), config.resources.attention),
        trained["variant"],
        config.serve.passages_per_question,
        decoding=config.decoding,
    )
    return rag.answer([question])[0].answer.as_dict()
