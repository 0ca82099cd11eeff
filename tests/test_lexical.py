"""BM25 against its formula, written out."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.lexical import LexicalIndex, words
from ragray.records import InputError, Passage

PASSAGES = [
    Passage("norway", "Norway", "The capital is Oslo. The sea lies in the west."),
    Passage("peru", "Peru", "The capital is Lima. The currency is the sol."),
    Passage("fiji", "Fiji", "Suva"),
]


def plain_bm25(passages: list[Passage], question: str, k1: float = 1.5, b: float = 0.75) -> np.ndarray:
    """Score of every passage (Lucene's variant): the sum of idf * tf / (tf + k1 * (1 - b + b * length / mean))."""
    counts_N = [Counter(words(f"{passage.title} {passage.text}")) for passage in passages]
    length_N = np.array([counts.total() for counts in counts_N], dtype=np.float64)
    norm_N = k1 * (1 - b + b * length_N / max(length_N.mean(), 1e-300))
    scores_N = np.zeros(len(passages))
    for word in words(question):
        frequency_N = np.array([counts[word] for counts in counts_N], dtype=np.float64)
        having = np.count_nonzero(frequency_N)
        if having:
            idf = np.log(1 + (len(passages) - having + 0.5) / (having + 0.5))
            scores_N += idf * frequency_N / (frequency_N + norm_N)
    return scores_N


VOCABULARY = ["the", "sea", "oslo", "Lima", "lima", "west", "Élan", "北京", "1905", "_"]
texts = st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join)
corpora = st.lists(st.tuples(texts, texts), min_size=1, max_size=8).map(
    lambda pairs: [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(pairs)]
)


@given(passages=corpora, questions=st.lists(texts, max_size=3), k=st.integers(1, 10))
def test_equals_the_formula_and_breaks_ties_by_id(passages, questions, k):
    scores_BK, passages_BK = LexicalIndex.build(passages[::-1]).search(questions, k)
    assert scores_BK.shape == (len(questions), min(k, len(passages)))
    assert scores_BK.dtype == np.float32
    assert len(passages_BK) == len(questions)
    for question, scores_K, found_K in zip(questions, scores_BK, passages_BK, strict=True):
        expected_N = dict(zip(passages, plain_bm25(passages, question), strict=True))
        np.testing.assert_allclose(scores_K, sorted(expected_N.values(), reverse=True)[:k], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(scores_K, [expected_N[passage] for passage in found_K], rtol=1e-5, atol=1e-6)
        order = [(-score, passage.id) for score, passage in zip(scores_K, found_K, strict=True)]
        assert order == sorted(order)
        assert len(set(found_K)) == len(found_K)


def test_the_passage_with_the_rare_word_comes_first():
    _, passages_BK = LexicalIndex.build(PASSAGES).search(["What is the currency of the sea?", "SUVA", "oslo"], 1)
    assert [[passage.id for passage in row] for row in passages_BK] == [["peru"], ["fiji"], ["norway"]]


def test_the_title_is_searched_too():
    _, passages_BK = LexicalIndex.build(PASSAGES).search(["Fiji", "norway"], 1)
    assert [row[0].id for row in passages_BK] == ["fiji", "norway"]


def test_equal_scores_are_ordered_by_id():
    same = [Passage(name, "Same", "words") for name in ("b", "a", "10", "9")]
    scores_BK, passages_BK = LexicalIndex.build(same).search(["words"], 3)
    assert [passage.id for passage in passages_BK[0]] == ["10", "9", "a"]
    assert scores_BK.min() == scores_BK.max() > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("question", ["zebra", "", "?!"])
@pytest.mark.parametrize("passages", [PASSAGES, [Passage(name, "", "...") for name in ("fiji", "norway", "peru")]])
def test_a_question_without_a_known_word_scores_zero_everywhere(passages, question):
    scores_BK, passages_BK = LexicalIndex.build(passages).search([question], 2)
    assert scores_BK.tolist() == [[0.0, 0.0]]
    assert [passage.id for passage in passages_BK[0]] == ["fiji", "norway"]


def test_words_are_lower_cased_letters_and_digits_of_any_script():
    assert words("N'Djamena, snake_case; Huascarán 6,768 m — 北京!") == [
        *("n", "djamena", "snake", "case", "huascarán", "6", "768", "m", "北京"),
    ]


def test_refuses_no_passages_and_k_below_one():
    with pytest.raises(InputError, match="no passages to index"):
        LexicalIndex.build([])
    with pytest.raises(InputError, match="k must be >= 1, got 0"):
        LexicalIndex.build(PASSAGES).search(["Oslo"], 0)


def test_nothing_is_printed_or_logged(capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        LexicalIndex.build(PASSAGES).search(["Oslo", ""], 2)
    assert (*capfd.readouterr(), caplog.text) == ("", "", "")
    command = [sys.executable, "-W", "error", "-c", "import ragray.lexical"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
