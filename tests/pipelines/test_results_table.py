"""The table that a run ends with."""

from __future__ import annotations

from pipelines.end_to_end import results_table

CHANGE = {"difference": 0.25, "low": -0.5, "high": 1.0}


def metrics(**systems):
    change = {metric: CHANGE for metric, value in systems["after"].items() if value is not None}
    comparisons = {"dev": {"after - before": change}}
    return {"questions": {"dev": 16}, "answered": {"dev": 4}, "frozen": None, "comparisons": comparisons, **systems}


def test_it_has_a_column_for_every_system_and_the_change_of_every_metric():
    table = results_table(metrics(before={"recall@1": 0.5, "f1": 0.25}, after={"recall@1": 0.75, "f1": 0.5}), "dev")
    assert table[0] == "dev: 16 questions, 4 of them answered"
    assert table[1].split()[:2] == ["before", "after"]
    assert table[2].split() == ["recall@1", "0.500", "0.750", "+0.250", "[-0.500,", "+1.000]"]


def test_a_closed_book_run_has_no_recall_to_compare():
    scores = {"recall@1": None, "f1": 0.5}
    table = results_table(metrics(closed_book=scores, before=scores, after=scores), "dev")
    assert table[2].split() == ["recall@1", "-", "-", "-"]
    assert table[3].split()[:4] == ["f1", "0.500", "0.500", "0.500"]
