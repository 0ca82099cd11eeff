from __future__ import annotations

import numpy as np
import pytest

from ragray.formulas.metrics import exact_match, f1, holds_answer, normalize_answer, paired_bootstrap, recall_at


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Hague", "hague"),
        ("an apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("co-operation", "cooperation"),
        ("Theodore Banana", "theodore banana"),
        ("São Tomé", "são tomé"),
        ("\t The \n", ""),
        ("", ""),
    ],
)
def test_normalisation_is_squads(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("the Lima.", ["Lima"], 1.0),
        ("Lima, Peru", ["Lima"], 0.0),
        ("Peking", ["Beijing", "Peking"], 1.0),
        ("", ["Lima"], 0.0),
        ("Lima", [], 0.0),
    ],
)
def test_exact_match(prediction, answers, expected):
    assert exact_match(prediction, answers) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("Mount Kenya", ["Mount Kenya"], 1.0),
        ("Kenya", ["Mount Kenya"], 2 / 3),
        ("Lima Lima Lima", ["Lima"], 0.5),
        ("the mount", ["Kenya", "mount kenya"], 2 / 3),
        ("Oslo", ["Lima"], 0.0),
        ("", ["Lima"], 0.0),
        ("the", ["a"], 1.0),
        ("Lima", [], 0.0),
    ],
)
def test_f1(prediction, answers, expected):
    assert f1(prediction, answers) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("The capital is Lima; the sol.", ["lima"], True),
        ("The capital is Limassol.", ["Lima"], False),
        ("Mount  Kenya, 5199 m", ["Mount Kenya"], True),
        ("Mount of Kenya", ["Mount Kenya"], False),
        ("anything", ["the", ""], False),
        ("anything", [], False),
    ],
)
def test_a_passage_holds_an_answer_as_whole_words(text, answers, expected):
    assert holds_answer(text, answers) is expected


def test_recall_counts_a_hit_among_the_first_k():
    hits = [False, True, False]
    assert [recall_at(hits, k) for k in (1, 2, 20)] == [0.0, 1.0, 1.0]
    assert recall_at([], 5) == 0.0


def test_bootstrap_of_a_constant_difference_is_a_point():
    interval = paired_bootstrap([1.0, 0.5, 0.25], [0.75, 0.25, 0.0])
    assert (interval.difference, interval.low, interval.high) == (0.25, 0.25, 0.25)
    assert interval.excludes_zero


def test_bootstrap_interval_is_the_normal_one_for_many_questions():
    difference = np.random.default_rng(3).normal(0.1, 1.0, 2000)
    interval = paired_bootstrap(difference.tolist(), [0.0] * 2000)
    half_width = 1.96 * difference.std() / np.sqrt(2000)
    assert interval.difference == pytest.approx(difference.mean())
    assert interval.low == pytest.approx(difference.mean() - half_width, abs=0.05 * half_width)
    assert interval.high == pytest.approx(difference.mean() + half_width, abs=0.05 * half_width)


def test_bootstrap_pairs_the_questions():
    """Hard and easy questions differ much more than the systems do; only a paired interval sees the difference."""
    baseline = np.linspace(0, 1, 50)
    interval = paired_bootstrap((baseline + 0.01).tolist(), baseline.tolist())
    assert interval.low > 0


def test_bootstrap_of_no_difference_holds_zero_and_is_repeatable():
    system, baseline = [1.0, 0.0] * 20, [0.0, 1.0] * 20
    assert not paired_bootstrap(system, baseline).excludes_zero
    assert paired_bootstrap(system, baseline) == paired_bootstrap(system, baseline)


def test_bootstrap_depends_on_its_seed():
    system = np.random.default_rng(0).normal(size=30).tolist()
    assert paired_bootstrap(system, [0.0] * 30, seed=1) != paired_bootstrap(system, [0.0] * 30, seed=2)


@pytest.mark.parametrize(("system", "baseline"), [([], []), ([1.0], [1.0, 0.0])])
def test_bootstrap_refuses_what_is_not_paired(system, baseline):
    with pytest.raises(ValueError, match="of one length > 0"):
        paired_bootstrap(system, baseline)
