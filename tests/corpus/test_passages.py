"""Splits lose nothing, repeat what they are told to, and name passages the same way every time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from ragray.config import ChunkConfig
from ragray.corpus.passages import Splitter, content_hash, windows
from ragray.records import Document, Passage

TEXT = "The dam is 3.5 m high. It was built in 1904 by Mr. Aske. \n\n Nobody knows why! It leaks."


def split(text, **settings):
    return list(Splitter(ChunkConfig(**settings)).split(Document("d", "T", text)))


@given(words=st.lists(st.text("ab", min_size=1, max_size=3)), size=st.integers(1, 7))
def test_disjoint_passages_of_words_join_to_the_document(words, size):
    passages = split("  ".join(words), size=size)
    assert " ".join(passage.text for passage in passages) == " ".join(words)
    assert [passage.id for passage in passages] == [f"d-{number}" for number in range(len(passages))]
    assert all(len(passage.text.split()) == size for passage in passages[:-1])


@given(sizes=st.lists(st.integers(1, 9), max_size=30), limit=st.integers(1, 12), overlap=st.integers(0, 11))
def test_windows_cover_every_piece_and_keep_to_the_limit(sizes, limit, overlap):
    ranges = list(windows(sizes, limit, overlap))
    assert {place for start, stop in ranges for place in range(start, stop)} == set(range(len(sizes)))
    for start, stop in ranges:
        assert sum(sizes[start:stop]) <= limit or stop - start == 1
    for (start, stop), (next_start, next_stop) in pairwise(ranges):
        assert start <= next_start <= stop < next_stop
        assert sum(sizes[next_start:stop]) <= overlap
        if next_start > start + 1 and sum(sizes[next_start - 1 : next_stop]) <= limit:
            assert sum(sizes[next_start - 1 : stop]) > overlap  # as much as fits


def test_words_overlap_as_told():
    assert [passage.text for passage in split("a b c d e f g", size=4, overlap=2)] == ["a b c d", "c d e f", "e f g"]


def test_sentences_stay_whole_unless_one_is_over_the_limit():
    passages = split(TEXT, unit="sentences", size=10)
    assert [passage.text for passage in passages] == [
        "The dam is 3.5 m high.",
        "It was built in 1904 by Mr. Aske.",
        "Nobody knows why! It leaks.",
    ]
    long = split("one two three four five. Six.", unit="sentences", size=3)
    assert [passage.text for passage in long] == ["one two three", "four five. Six."]


def test_sentences_overlap_by_whole_sentences():
    passages = split("Ann ran. Bob sat. Cy hid. Di won.", unit="sentences", size=4, overlap=2)
    assert [passage.text for passage in passages] == ["Ann ran. Bob sat.", "Bob sat. Cy hid.", "Cy hid. Di won."]


def test_tokens_join_to_the_document_and_keep_to_the_limit(encoder_folder):
    tokenizer = AutoTokenizer.from_pretrained(encoder_folder)
    splitter = Splitter(ChunkConfig(unit="tokens", size=5), tokenizer)
    passages = list(splitter.split(Document("d", "T", TEXT)))
    assert "".join("".join(passage.text for passage in passages).split()) == "".join(TEXT.split())
    lengths = [len(tokenizer(passage.text, add_special_tokens=False).input_ids) for passage in passages]
    assert len(passages) > 3
    assert max(lengths) <= 5 + 1  # a word cut in two can have a token more


def test_documents_that_are_passages_keep_their_ids():
    assert split(" one\n two ", unit="document") == [Passage("d", "T", "one two")]


def test_white_space_becomes_single_spaces_and_none_is_left_of_nothing():
    assert [passage.text for passage in split(" one\n two\tthree ", size=2)] == ["one two", "three"]
    assert split(" \n ") == []


@pytest.mark.parametrize("overlap", [100, 150])
def test_an_overlap_that_never_moves_on_is_refused(overlap):
    with pytest.raises(ValueError, match=f"overlap={overlap} must be less than size=100"):
        ChunkConfig(overlap=overlap)


def test_the_hash_is_of_title_and_text_alone():
    one = content_hash(Passage("a", "T", "x"))
    assert one == content_hash(Passage("b", "T", "x"))
    pairs = (("T", "y"), ("U", "x"), ("Tx", ""), ("", "Tx"))
    others = [content_hash(Passage("a", title, text)) for title, text in pairs]
    assert len({one, *others}) == 5
    assert len(one) == 16
