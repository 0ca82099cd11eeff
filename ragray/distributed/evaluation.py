"""model + index + dev questions -> what each question got: retrieved passages, answer, scores.

A system is an encoder, a generator and whether it reads passages.  Blocks of questions are answered by a pool of
actors; every block writes one file of JSON lines, so that an interrupted evaluation goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragray.config import DecodingConfig, EncoderConfig, EvaluateConfig, GeneratorConfig, Resources
from ragray.console import Progress
from ragray.distributed.pieces import Piece, PieceWorker, run_pieces
from ragray.formulas.marginal import Variant
from ragray.formulas.metrics import exact_match, f1
from ragray.priors import PriorSource
from ragray.records import Question
from ragray.scoring import is_hit
from ragray.storage import write_whole

_ANSWERED_AT_ONCE = 16
_RETRIEVED_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class System:
    """What is evaluated, under a name."""

    name: str
    encoder_folder: str
    generator_folder: str
    prior: PriorSource

    @property
    def retrieves(self) -> bool:
        return self.prior.kind in ("dense", "bm25")


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """What all systems share."""

    config: EvaluateConfig
    decoding: DecodingConfig
    encoder: EncoderConfig
    generator: GeneratorConfig
    variant: Variant
    threads: int
    resources: Resources


class _Evaluator(PieceWorker):
    """Holds one system at a time: the pieces come system by system."""

    def __init__(self, job: EvaluationJob, systems: Sequence[System]) -> None:
        from ragray.precision import set_threads

        set_threads(job.threads)
        self.job = job
        self.systems = {system.name: system for system in systems}
        self.system: System | None = None

    def _load(self, system: System) -> None:
        from ragray.encoders import Encoder
        from ragray.generators.loading import load_generator
        from ragray.precision import compute_device, resolve_dtype
        from ragray.rag import Rag

        job, device = self.job, compute_device()
        generator = load_generator(
            system.generator_folder, job.generator, resolve_dtype("auto"), job.resources.attention
        ).to(device)
        encoder = Encoder.load(system.encoder_folder, job.encoder).to(device)
        self.rag = Rag(
            system.prior.build(encoder),
            generator,
            job.variant,
            job.config.passages_per_question,
            decoding=job.decoding,
            tokens_per_batch=job.resources.tokens_per_batch,
        )
        self.system = system

    def process(self, task: dict[str, Any], output: Path) -> None:
        from ragray.precision import release_memory

        questions = [Question(**{**row, "answers": tuple(row["answers"])}) for row in json.loads(task["questions"])]
        system = self.systems[task["system"]]
        if self.system != system:
            self._load(system)
        answer = self._answer if task["answer"] else self._retrieve
        release_memory()
        with write_whole(output) as temporary:
            lines = [json.dumps(row, ensure_ascii=False) for row in answer(questions)]
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _retrieve(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        passages_BK = self.rag.prior.find([q.question for q in questions], max(self.job.config.recall_at))
        return [
            {"id": question.id, "hits": [is_hit(passage, question) for passage in row]}
            for question, row in zip(questions, passages_BK, strict=True)
        ]

    def _answer(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        texts, references = [q.question for q in questions], [q.answers[0] for q in questions]
        predictions = self.rag.answer(texts, references)
        rows = []
        for question, found, prediction in zip(questions, self._retrieve(questions), predictions, strict=True):
            assert prediction.reference_log_prob is not None  # references were given
            scores = _scores(question, prediction.answer.text, prediction.reference_log_prob)
            hits = found if self.system and self.system.retrieves else {}
            rows.append({**hits, **scores, "answer": prediction.answer.as_dict()})
        return rows


def evaluate(
    job: EvaluationJob,
    systems: Sequence[System],
    questions: Sequence[Question],
    answered: Sequence[bool],
    folder: Path,
    *,
    num_actors: int,
    gpus_per_actor: float,
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """Rows by system, in the order of ``questions``: id, and hits if the system retrieves; where ``answered``, also
    text, scores and answer.

    Questions are put into blocks by title, so that those of a block read the same passages (each is read once).
    """
    by_title = sorted(range(len(questions)), key=lambda position: (questions[position].title or "", position))
    to_answer = _blocks([position for position in by_title if answered[position]], _ANSWERED_AT_ONCE)
    to_retrieve = _blocks([position for position in by_title if not answered[position]], _RETRIEVED_AT_ONCE)
    pieces = {
        system.name: [
            _piece(folder, system, number, [questions[position] for position in block], number < len(to_answer))
            for number, block in enumerate(to_answer + to_retrieve if system.retrieves else to_answer)
        ]
        for system in systems
    }
    for name in pieces:
        (folder / name).mkdir(parents=True, exist_ok=True)
    everything = [piece for part in pieces.values() for piece in part]
    arguments = {"job": job, "systems": tuple(systems)}
    run_pieces(everything, _Evaluator, arguments, num_actors, job.threads, gpus_per_actor, progress)
    results = {}
    for name, part in pieces.items():
        rows = {row["id"]: row for piece in part for row in _read_rows(Path(piece.output))}
        results[name] = [rows.get(question.id, {"id": question.id}) for question in questions]
    return results


def _blocks(positions: Sequence[int], size: int) -> list[Sequence[int]]:
    return [positions[start : start + size] for start in range(0, len(positions), size)]


def _piece(folder: Path, system: System, number: int, questions: Sequence[Question], answer: bool) -> Piece:
    output = folder / system.name / f"block-{number:05d}.jsonl"
    rows = json.dumps([_as_row(question) for question in questions])
    return Piece(str(output), {"system": system.name, "answer": answer, "questions": rows}, len(questions))


def _scores(question: Question, text: str, log_prob: float) -> dict[str, Any]:
    return {
        "id": question.id,
        "text": text,
        "exact_match": exact_match(text, question.answers),
        "f1": f1(text, question.answers),
        "log_prob": log_prob,
    }


def _as_row(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "question": question.question,
        "answers": list(question.answers),
        "title": question.title,
        "relation": question.relation,
    }


def _read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
