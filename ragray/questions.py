"""Question files -> ``Question`` records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ragray.corpus.jsonl import Span, read_objects
from ragray.records import InputError, Question


def read_questions(path: Path) -> list[Question]:
    """Read JSON lines ``{"question": str, "answers": [str, ...]}``, optionally with ``id``, ``title`` and ``relation``.

    A question without an id is named by its line number.

    Raises:
        InputError: naming file and line: broken JSON, no question, no answers, an id used twice, an empty file.
    """
    if not path.is_file():
        raise InputError(f"no questions file at {path}")
    questions = []
    for number, record in read_objects(Span(str(path))):
        try:
            questions.append(_question(record, str(number)))
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not questions:
        raise InputError(f"{path} holds no questions")
    twice = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
    if twice:
        raise InputError(f"{path}: id {twice[0]!r} is used more than once; ids must be unique")
    return questions


def _question(record: dict[str, Any], default_id: str) -> Question:
    text, answers = record.get("question"), record.get("answers")
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"'question' must be a text, got {text!r}")
    if not isinstance(answers, list) or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise InputError(f"'answers' must be a list of texts, got {answers!r}")
    if not answers:
        raise InputError(f"the question {text!r} has no answers: give at least one or leave the question out")
    for key in ("id", "title", "relation"):
        if record.get(key) is not None and not isinstance(record[key], str):
            raise InputError(f"{key!r} must be a text, got {record[key]!r}")
    return Question(record.get("id") or default_id, text, tuple(answers), record.get("title"), record.get("relation"))
