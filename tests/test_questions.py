"""Question files: what is read, and errors that name file and line."""

from __future__ import annotations

import json

import pytest

from ragray.questions import read_questions
from ragray.records import InputError, Question


@pytest.fixture
def file(tmp_path):
    return tmp_path / "dev.jsonl"


def test_fields_are_read_and_a_missing_id_is_the_line_number(file):
    file.write_text(
        '{"question": "Why?", "answers": ["so", "because"]}\n\n'
        '{"id": "q", "question": "Höw?", "answers": ["thus"], "title": "T", "relation": "r", "more": 1}\n',
        encoding="utf-8",
    )
    assert read_questions(file) == [
        Question("1", "Why?", ("so", "because")),
        Question("q", "Höw?", ("thus",), "T", "r"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "Why?"', "not JSON"),
        ('["Why?"]', "an object is wanted, got list"),
        ('{"answers": ["so"]}', "'question' must be a text, got None"),
        ('{"question": " ", "answers": ["so"]}', "'question' must be a text, got ' '"),
        ('{"question": "Why?", "answers": []}', r"the question 'Why\?' has no answers: give at least one"),
        ('{"question": "Why?", "answers": "so"}', "'answers' must be a list of texts, got 'so'"),
        ('{"question": "Why?", "answers": ["so", ""]}', "'answers' must be a list of texts"),
        ('{"question": "Why?", "answers": ["so"], "id": 5}', "'id' must be a text, got 5"),
        ('{"question": "Why?", "answers": ["so"], "title": ["T"]}', "'title' must be a text"),
    ],
)
def test_a_broken_line_is_named(file, line, message):
    file.write_text(json.dumps({"question": "Why?", "answers": ["so"]}) + f"\n{line}\n")
    with pytest.raises(InputError, match=rf"dev.jsonl, line 2: {message}"):
        read_questions(file)


def test_an_id_used_twice_is_refused(file):
    file.write_text('{"id": "2", "question": "Why?", "answers": ["so"]}\n{"question": "How?", "answers": ["so"]}\n')
    with pytest.raises(InputError, match=r"dev.jsonl: id '2' is used more than once"):
        read_questions(file)


def test_an_empty_file_and_a_missing_one_are_refused(file):
    with pytest.raises(InputError, match=r"no questions file at .*dev.jsonl"):
        read_questions(file)
    file.write_text("\n\n")
    with pytest.raises(InputError, match=r"dev.jsonl holds no questions"):
        read_questions(file)
