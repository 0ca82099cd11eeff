"""Answers of the two variants: what is said of them against scores of each answer read alone."""

from __future__ import annotations

import pytest
import torch

from ragray.config import DecodingConfig
from ragray.decoding import answers
from ragray.decoding.answers import decode, decode_rag_sequence, score_targets
from ragray.decoding.scoring import score_sequences
from ragray.formulas import marginal
from ragray.records import InputError

both_variants = pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
every_search = pytest.mark.parametrize(
    "options",
    [
        {"num_return_sequences": 9},
        {"num_beams": 3, "num_return_sequences": 9},
        {"num_beams": 3, "num_return_sequences": 9, "length_penalty": 0.0, "min_new_tokens": 2},
    ],
    ids=["greedy", "beams", "beams-with-options"],
)


def sequence_answers(case, **options):
    config = DecodingConfig(**options)
    return decode_rag_sequence(case.generator, case.prefill, case.log_prior_BK, config)


def found_by(case, b, options):
    """The answers that the search from each passage of a question ends with: one question, certain of one passage."""
    alone = {name: value for name, value in options.items() if name != "num_return_sequences"}
    found_K = []
    for k, passage in enumerate(case.passages_BK[b]):
        if alone.get("num_beams", 1) == 1:
            found_K.append([case.plain.greedy([case.rows_BK[b][k]], torch.zeros(1), 8)])
            continue
        prefill = case.generator.prefill([case.questions[b]], [[passage]])
        config = DecodingConfig(num_return_sequences=alone["num_beams"], **alone)
        (found,) = decode("rag_token", case.generator, prefill, torch.zeros(1, 1), config)
        found_K.append([answer.tokens for answer in found])
    return found_K


# RAG-Sequence


@every_search
def test_thorough_decoding_is_every_candidate_scored_under_every_passage(case, options):
    several = 0
    for b, found in enumerate(sequence_answers(case, **options)):
        candidates = {tokens for tokens_N in found_by(case, b, options) for tokens in tokens_N}
        several += len(candidates) > 1
        scores = {
            tokens: case.plain.log_likelihood("rag_sequence", case.rows_BK[b], case.log_prior_BK[b], tokens)
            for tokens in candidates
        }
        expected = sorted(candidates, key=scores.__getitem__, reverse=True)[:9]
        assert [answer.tokens for answer in found] == expected
        assert [answer.log_likelihood for answer in found] == pytest.approx(
            [scores[tokens] for tokens in expected], abs=1e-4
        )
    assert several, "the fixture must have passages that disagree, else this test is weak"


@every_search
def test_fast_decoding_counts_the_passages_that_found_the_answer(case, options):
    for b, found in enumerate(sequence_answers(case, sequence_scoring="fast", **options)):
        found_K = found_by(case, b, options)
        assert found
        for answer in found:
            finders = torch.tensor([answer.tokens in tokens_N for tokens_N in found_K])
            scores_K = case.plain.scores(case.rows_BK[b], answer.tokens).sum(1) + case.log_prior_BK[b]
            assert finders.any()
            assert answer.log_likelihood == pytest.approx(scores_K[finders].logsumexp(0).item(), abs=1e-4)
            assert torch.isneginf(answer.token_logprobs_KT.sum(1)).tolist() == (~finders).tolist()
        likelihoods = [answer.log_likelihood for answer in found]
        assert likelihoods == sorted(likelihoods, reverse=True)


@every_search
def test_fast_decoding_finds_the_same_answers_and_never_overstates_them(case, options):
    understated, options = 0, {**options, "max_new_tokens": 2}  # short, so that other passages' shares can be seen
    fast_B, thorough_B = (sequence_answers(case, **options, sequence_scoring=way) for way in ("fast", "thorough"))
    for fast, thorough in zip(fast_B, thorough_B, strict=True):
        bounds = {answer.tokens: answer.log_likelihood for answer in fast}
        exact = {answer.tokens: answer.log_likelihood for answer in thorough}
        assert bounds.keys() == exact.keys()
        assert all(bounds[tokens] <= exact[tokens] + 1e-5 for tokens in exact)
        understated += sum(bounds[tokens] < exact[tokens] - 1e-5 for tokens in exact)
    assert understated


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_score_that_a_search_has_computed_is_not_computed_again(case, monkeypatch, num_beams):
    asked = []
    monkeypatch.setattr(answers, "score_sequences", lambda *given: asked.append(given[2]) or score_sequences(*given))
    options = {"num_beams": num_beams, "num_return_sequences": 9}
    found_B = sequence_answers(case, **options)
    (missing_R,) = asked
    for b, found in enumerate(found_B):
        candidates = [answer.tokens for answer in found]
        for known, missing in zip(found_by(case, b, options), missing_R[3 * b : 3 * b + 3], strict=True):
            assert sorted([*known, *missing]) == sorted(candidates)
    sequence_answers(case, sequence_scoring="fast", **options)
    assert len(asked) == 1


# both variants


@both_variants
@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3, "num_return_sequences": 3}, {"do_sample": True, "num_return_sequences": 3}],
    ids=["greedy", "beams", "sampling"],
)
def test_what_is_said_of_an_answer_is_what_its_tokens_score(case, variant, options):
    decoded_B = decode(variant, case.generator, case.prefill, case.log_prior_BK, DecodingConfig(**options))
    for b, found in enumerate(decoded_B):
        for answer in found:
            expected_KT = case.plain.scores(case.rows_BK[b], answer.tokens)
            torch.testing.assert_close(answer.token_logprobs_KT, expected_KT, atol=2e-5, rtol=1e-5)
            expected = case.plain.log_likelihood(variant, case.rows_BK[b], case.log_prior_BK[b], answer.tokens)
            assert answer.log_likelihood == pytest.approx(expected, abs=1e-4)


@both_variants
def test_several_answers_are_distinct_and_at_most_as_many_as_asked_for(case, variant):
    sizes = set()
    for wanted in (1, 2, 4):
        config = DecodingConfig(num_beams=4, num_return_sequences=wanted)
        for found in decode(variant, case.generator, case.prefill, case.log_prior_BK, config):
            assert len({answer.tokens for answer in found}) == len(found) == wanted
            merits = [
                answer.log_likelihood / (1 if variant == "rag_sequence" else len(answer.tokens)) for answer in found
            ]
            assert merits == sorted(merits, reverse=True)
            sizes.add(len(found))
    assert sizes == {1, 2, 4}


def test_greedy_search_from_every_passage_finds_as_many_answers_as_passages_at_most(case):
    found_B = sequence_answers(case, num_return_sequences=50)
    assert all(1 <= len(found) <= 3 for found in found_B)
    assert max(map(len, found_B)) > 1


@pytest.mark.parametrize(("num_beams", "wanted"), [(1, 2), (3, 4)])
def test_more_answers_than_a_search_by_rag_token_keeps_are_refused(case, num_beams, wanted):
    config = DecodingConfig(num_beams=num_beams, num_return_sequences=wanted)
    with pytest.raises(InputError, match=rf"num_return_sequences={wanted} is over num_beams={num_beams}"):
        decode("rag_token", case.generator, case.prefill, case.log_prior_BK, config)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_with_one_passage_the_variants_are_one(case, num_beams):
    prefill = case.generator.prefill(case.questions, [row[:1] for row in case.passages_BK])
    config = DecodingConfig(num_beams=num_beams, num_return_sequences=num_beams, length_penalty=0.0)
    by_token, by_sequence = (
        decode(variant, case.generator, prefill, torch.zeros(3, 1), config) for variant in ("rag_token", "rag_sequence")
    )
    for one, other in zip(by_token, by_sequence, strict=True):
        assert [answer.tokens for answer in one] == [answer.tokens for answer in other]
        assert [answer.log_likelihood for answer in one] == pytest.approx(
            [answer.log_likelihood for answer in other], abs=1e-5
        )


def test_a_passage_of_probability_zero_changes_nothing(case):
    """Its answers may be candidates of RAG-Sequence, but they are no likelier for it."""
    sure_BK = torch.tensor([[0.6, 0.4, 0.0]] * 3).log()
    prefill = case.generator.prefill(case.questions, [row[:2] for row in case.passages_BK])
    for variant in ("rag_token", "rag_sequence"):
        for options in ({}, {"num_beams": 3}, {"do_sample": True}):
            config = DecodingConfig(**options, num_return_sequences=1)
            found_B = decode(variant, case.generator, case.prefill, sure_BK, config)
            for b, (answer,) in enumerate(found_B):
                expected = case.plain.log_likelihood(variant, case.rows_BK[b][:2], sure_BK[b, :2], answer.tokens)
                assert answer.log_likelihood == pytest.approx(expected, abs=1e-4)
                assert torch.isfinite(answer.token_logprobs_KT).all()
    without = decode("rag_token", case.generator, prefill, sure_BK[:, :2], DecodingConfig(num_beams=3))
    with_it = decode("rag_token", case.generator, case.prefill, sure_BK, DecodingConfig(num_beams=3))
    assert [found[0].tokens for found in with_it] == [found[0].tokens for found in without]


def test_targets_are_scored_under_all_passages_of_their_question(case):
    targets_B = [[(5, 6, 7), (5,)], [], [(8, 9)]]
    scores_B = score_targets(case.generator, case.prefill, targets_B, 3)
    assert list(map(len, scores_B)) == [2, 0, 1]
    for b, targets in enumerate(targets_B):
        for target, scores_KT in zip(targets, scores_B[b], strict=True):
            torch.testing.assert_close(scores_KT, case.plain.scores(case.rows_BK[b], target), atol=2e-5, rtol=1e-5)


def test_likelihoods_of_all_answers_are_a_distribution(llama_case):
    """Of all answers of one token there are V, and p(y|x) sums to 1 over them under both variants."""
    targets = [(token,) for token in range(llama_case.prefill.logits_RV.shape[1])]
    scores_B = score_targets(llama_case.generator, llama_case.prefill, [targets] * 3, 3)
    one = torch.ones(len(targets), 1, dtype=torch.bool)
    for log_prior_K, scores in zip(llama_case.log_prior_BK, scores_B, strict=True):
        for variant in ("rag_token", "rag_sequence"):
            prior_VK = log_prior_K.expand(len(targets), 3)
            total = marginal.log_likelihood(variant, prior_VK, torch.stack(scores), one).exp().sum()
            assert total.item() == pytest.approx(1, abs=1e-4)
