"""Answers scored from a prefill, all at once, against each read alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ragray.config import DecodingConfig
from ragray.decoding import scoring
from ragray.decoding.answers import decode
from ragray.decoding.scoring import score_sequences

sequence = st.lists(st.sampled_from([5, 6, 7]), max_size=6).map(tuple)  # so few tokens that much is shared
by_row = st.lists(st.lists(sequence, max_size=5), min_size=9, max_size=9)
NESTED = [(5, 6), (5, 6, 7, 7, 7), (5,), (5, 6), (), (6,), (5, 6, 7, 6), (5, 6, 7, 7, 7, 5)]


def assert_plain(case, sequences, scores_R):
    assert [len(scores) for scores in scores_R] == [len(of_row) for of_row in sequences]
    for row, of_row, scores in zip(case.rows, sequences, scores_R, strict=True):
        for tokens, score in zip(of_row, scores, strict=True):
            torch.testing.assert_close(score, case.plain.score(row, tokens), atol=2e-5, rtol=1e-5)


def count_reads(generator, sequences, prefill):
    """How many tokens were read, filling aside, and in how many calls."""
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        extend = generator.extend
        patch.setattr(generator, "extend", lambda *given: calls.append(given[-1]) or extend(*given))
        score_sequences(generator, prefill, sequences)
    return sum(int((tokens != generator.prompt.pad_id).sum()) for tokens in calls), len(calls)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@example([NESTED, [], [(7,)], [NESTED[1]] * 3, [()], [], NESTED[::-1], [(6, 6), (7, 7)], []])
@example([[] for _ in range(9)])
@given(by_row)
def test_every_sequence_scores_as_if_read_alone(case, sequences):
    assert_plain(case, sequences, score_sequences(case.generator, case.prefill, sequences))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@example([NESTED, [], [(7,)], [NESTED[1]] * 3, [()], [], NESTED[::-1], [(6, 6), (7, 7)], []])
@given(by_row)
def test_every_beginning_is_read_once_and_no_last_token_at_all(case, sequences):
    beginnings = {
        (row, tokens[:depth])
        for row, of_row in enumerate(sequences)
        for tokens in of_row
        for depth in range(len(tokens))
    }
    read, _ = count_reads(case.generator, sequences, case.prefill)
    assert read == sum(bool(tokens) for _, tokens in beginnings)


def test_answers_that_share_nothing_are_read_in_one_call(case):
    assert count_reads(case.generator, [[(5, 6, 7, 5)], [(6, 5, 5)]] + [[]] * 7, case.prefill) == (5, 1)
    assert count_reads(case.generator, [[(5, 6, 7, 5), (5, 6, 6, 6)]] + [[]] * 8, case.prefill) == (4, 2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6)
@example([NESTED, [], [(7,)], [NESTED[1]] * 3, [()], [], NESTED[::-1], [(6, 6), (7, 7)], []])
@given(by_row)
def test_chunks_of_rows_change_nothing(case, sequences):
    for rows_at_once in (0, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scoring, "_LOGITS_AT_ONCE", rows_at_once * case.prefill.logits_RV.shape[1])
            assert_plain(case, sequences, score_sequences(case.generator, case.prefill, sequences))


def test_few_logits_at_once_are_more_calls(case, monkeypatch):
    sequences = [[(5, 6, 7)]] * 9
    assert count_reads(case.generator, sequences, case.prefill) == (18, 1)
    monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", 1)
    assert count_reads(case.generator, sequences, case.prefill) == (18, 9)


def test_the_prefill_can_be_used_again(case):
    sequences = [NESTED] * 9
    before = score_sequences(case.generator, case.prefill, sequences)
    decode("rag_token", case.generator, case.prefill, case.log_prior_BK, DecodingConfig(num_beams=3))
    after = score_sequences(case.generator, case.prefill, sequences)
    torch.testing.assert_close(after, before, atol=0, rtol=0)
