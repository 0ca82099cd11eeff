from __future__ import annotations

import importlib
import json
import pickle
import pkgutil

import numpy as np
import pytest

import ragray
from ragray.records import Answer, Hits, InputError, Passage, RagrayError

PASSAGE = Passage("p1", "Peru", "Lima")


def all_errors() -> list[type[RagrayError]]:
    for module in pkgutil.walk_packages(ragray.__path__, "ragray."):
        importlib.import_module(module.name)
    found: list[type[RagrayError]] = [RagrayError]
    for error in found:
        found.extend(cls for cls in error.__subclasses__() if cls not in found)
    return found


def test_every_error_survives_pickling():
    errors = all_errors()
    assert InputError in errors
    for error in errors:
        copy = pickle.loads(pickle.dumps(error("3 > 2: lower it")))
        assert type(copy) is error
        assert str(copy) == "3 > 2: lower it"


def test_input_errors_are_value_errors():
    assert issubclass(InputError, ValueError)


def test_records_are_immutable():
    with pytest.raises(AttributeError):
        PASSAGE.text = "Cusco"  # type: ignore[misc]


def test_hits_know_the_ids_of_their_passages():
    hits = Hits(np.zeros((1, 2), np.float32), np.zeros((1, 2, 3), np.float32), [[PASSAGE, PASSAGE]], "v1")
    assert hits.ids_BK == [["p1", "p1"]]


def test_an_answer_is_json_with_its_evidence():
    answer = Answer("Where?", "Lima", -0.5, (PASSAGE,), (1.0,), (1.0,), "v1")
    assert json.loads(json.dumps(answer.as_dict())) == {
        "question": "Where?",
        "answer": "Lima",
        "log_prob": -0.5,
        "index_version": "v1",
        "passages": [{"id": "p1", "title": "Peru", "text": "Lima", "prior": 1.0, "posterior": 1.0}],
    }


def test_an_answer_with_fewer_probabilities_than_passages_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        Answer("Where?", "Lima", -0.5, (PASSAGE, PASSAGE), (1.0,), (1.0,), "v1").as_dict()
