"""The split into passages loses no word, and gives the same ids every time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.corpus.passages import split_document
from ragray.records import Document, Passage


@given(text=st.text(alphabet="aü \n\t\u00a0", max_size=200), words=st.integers(1, 9))
def test_passages_hold_all_words_in_order_and_are_full_but_the_last(text, words):
    passages = list(split_document(Document("d", "T", text), words))
    assert " ".join(passage.text for passage in passages).split() == text.split()
    sizes = [len(passage.text.split()) for passage in passages]
    assert all(size == words for size in sizes[:-1])
    assert all(0 < size <= words for size in sizes[-1:])
    assert [passage.id for passage in passages] == [f"d-{number}" for number in range(len(passages))]


def test_white_space_becomes_single_spaces_and_the_title_stays():
    assert list(split_document(Document("d-1", "The  T", " one\n two\tthree "), 2)) == [
        Passage("d-1-0", "The  T", "one two"),
        Passage("d-1-1", "The  T", "three"),
    ]


def test_a_document_without_words_gives_no_passage():
    assert list(split_document(Document("d", "T", " \n "), 100)) == []


def test_less_than_one_word_is_refused():
    with pytest.raises(ValueError, match="words must be >= 1, got 0"):
        list(split_document(Document("d", "T", "a"), 0))
