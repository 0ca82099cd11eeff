"""``metrics.json`` from rows: means by set, recall curves, paired comparisons."""

from __future__ import annotations

import pytest

from ragray.scoring import compare, metric_names, metrics_of, recall_curve, summarize

KS = (1, 2)


def row(hits, exact_match, log_prob, f1=0.5):
    scores = {"exact_match": exact_match, "f1": f1, "log_prob": log_prob}
    return scores if hits is None else {**scores, "hits": hits}


BEFORE = [row([False, True], 0.0, -4.0), row([False, False], 0.0, -2.0), row([True, False], 1.0, -1.0)]
AFTER = [row([True, False], 1.0, -1.0), row([False, True], 0.0, -1.0), row([True, False], 1.0, -1.0)]
CLOSED = [row(None, 0.0, -9.0)] * 3


def test_a_summary_is_the_means_over_the_questions():
    assert summarize(BEFORE, KS) == {
        "recall@1": pytest.approx(1 / 3),
        "recall@2": pytest.approx(2 / 3),
        "exact_match": pytest.approx(1 / 3),
        "f1": 0.5,
        "nll": pytest.approx(7 / 3),
    }


def test_without_retrieval_there_is_no_recall():
    summary = summarize(CLOSED, KS)
    assert summary["recall@1"] is summary["recall@2"] is None
    assert summary["nll"] == 9.0
    assert "recall@1" not in compare(AFTER, CLOSED, KS)


def test_a_comparison_is_paired_and_its_interval_holds_the_difference():
    change = compare(AFTER, BEFORE, KS)
    assert list(change) == metric_names(KS)
    assert change["recall@1"]["difference"] == pytest.approx(1 / 3)
    assert change["nll"]["difference"] == pytest.approx(-4 / 3)
    assert change["f1"] == {"difference": 0.0, "low": 0.0, "high": 0.0}
    for interval in change.values():
        assert interval["low"] <= interval["difference"] <= interval["high"]


def test_questions_that_were_only_retrieved_for_count_for_recall_alone():
    retrieved = [{"hits": row["hits"]} for row in BEFORE[1:]]
    summary = summarize([{**BEFORE[0], "text": ""}, *retrieved], KS)
    assert summary["recall@2"] == pytest.approx(2 / 3)
    assert summary["nll"] == 4.0


def test_the_first_set_stands_at_the_top_and_the_others_under_their_names():
    systems = {"before": BEFORE, "after": AFTER, "closed_book": CLOSED}
    metrics = metrics_of(systems, {"dev": range(2), "other": range(2, 3)}, KS)
    assert metrics["questions"] == {"dev": 2, "other": 1}
    assert metrics["before"]["exact_match"] == 0.0
    assert metrics["other"]["before"]["exact_match"] == 1.0
    assert metrics["frozen"] is metrics["other"]["frozen"] is None
    assert set(metrics["comparisons"]["dev"]) == {"after - before", "after - closed_book"}


def test_the_frozen_ablation_is_compared_when_it_was_run():
    systems = {"before": BEFORE, "after": AFTER, "closed_book": CLOSED, "frozen": BEFORE}
    metrics = metrics_of(systems, {"dev": range(3)}, KS)
    assert metrics["frozen"] == metrics["before"]
    assert metrics["comparisons"]["dev"]["after - frozen"] == metrics["comparisons"]["dev"]["after - before"]


def test_the_recall_curve_never_falls():
    assert recall_curve(BEFORE, 3) == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3), 3: pytest.approx(2 / 3)}
