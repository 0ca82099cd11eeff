"""Greedy search, beam search and sampling against slow loops, exhaustive search, and transformers."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch

from ragray.config import DecodingConfig
from ragray.decoding.answers import decode
from ragray.decoding.search import Limits, beam_search, follow, likeliest, sampler
from ragray.generators.causal import CausalGenerator
from ragray.records import InputError

both_variants = pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
every_way = pytest.mark.parametrize(
    "way", [{}, {"num_beams": 3}, {"do_sample": True}], ids=["greedy", "beams", "sampling"]
)


def answers_of(case, variant, allowed=None, **options):
    """The tokens of every answer, by question."""
    config = DecodingConfig(**options)
    decoded_B = decode(variant, case.generator, case.prefill, case.log_prior_BK, config, allowed)
    return [[answer.tokens for answer in answers] for answers in decoded_B]


def several(way):
    """The way's settings with as many answers as each can give under both variants."""
    return {**way, "num_return_sequences": 3} if way else way


# greedy search


def test_greedy_search_equals_a_slow_uncached_loop(case):
    limits = Limits.of(case.generator, DecodingConfig())
    found = follow(case.generator, case.prefill, case.log_prior_BK, torch.arange(3), limits, likeliest)
    expected = [
        case.plain.greedy(rows_K, prior, 8) for rows_K, prior in zip(case.rows_BK, case.log_prior_BK, strict=True)
    ]
    assert [answer.tokens for answer in found] == expected
    for answer, rows_K in zip(found, case.rows_BK, strict=True):
        torch.testing.assert_close(
            answer.token_logprobs_KT, case.plain.scores(rows_K, answer.tokens), atol=2e-5, rtol=1e-5
        )


def test_greedy_search_of_single_prompts_equals_a_slow_uncached_loop(case):
    limits = Limits.of(case.generator, DecodingConfig(max_new_tokens=12))
    found = follow(case.generator, case.prefill, torch.zeros(9, 1), torch.arange(9), limits, likeliest)
    assert [answer.tokens for answer in found] == [case.plain.greedy([row], torch.zeros(1), 12) for row in case.rows]
    lengths = {len(answer.tokens) for answer in found}
    assert len(lengths) > 1, "the fixture must have answers that end early and late, else this test is weak"


# beam search


@pytest.fixture
def few(case):
    """Four tokens, the end token among them, that are all that may be used."""
    return [case.generator.prompt.end_id, 5, 20, 33]


def every_sequence(few, max_tokens):
    end, *others = few
    whole = [tokens for length in range(max_tokens) for tokens in product(others, repeat=length)]
    return [(*tokens, end) for tokens in whole] + list(product(others, repeat=max_tokens))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_a_beam_search_wide_enough_equals_exhaustive_search(case, few, length_penalty):
    config = DecodingConfig(num_beams=64, length_penalty=length_penalty, early_stopping="never", max_new_tokens=3)
    limits = Limits.of(case.generator, config, lambda group, tokens: few)
    found_B = beam_search(case.generator, case.prefill, case.log_prior_BK, limits, config)
    for found, rows_K, log_prior_K in list(zip(found_B, case.rows_BK, case.log_prior_BK, strict=True))[1:]:

        def merit(tokens, rows_K=rows_K, log_prior_K=log_prior_K):
            return case.plain.log_likelihood("rag_token", rows_K, log_prior_K, tokens) / len(tokens) ** length_penalty

        expected = sorted(every_sequence(few, 3), key=merit, reverse=True)
        assert len(expected) == 1 + 3 + 9 + 27
        assert [answer.tokens for answer in found] == expected


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_beam_search_of_a_single_prompt_is_that_of_transformers(case, early_stopping, length_penalty):
    compare_with_transformers(case, early_stopping=early_stopping, length_penalty=length_penalty, max_new_tokens=12)


def test_with_a_least_length_too(case):
    compare_with_transformers(case, min_new_tokens=3, max_new_tokens=6)


def compare_with_transformers(case, **options):
    generator = case.generator
    config = DecodingConfig(num_beams=3, **options)
    found_R = beam_search(generator, case.prefill, torch.zeros(9, 1), Limits.of(generator, config), config)
    for row, found in list(zip(case.rows, found_R, strict=True))[::4]:
        output = generator.model.generate(
            torch.tensor([[*row.passage, *row.question]]),
            **options,
            num_beams=3,
            num_return_sequences=3,
            do_sample=False,
            eos_token_id=list(generator.stop_ids),
            pad_token_id=generator.prompt.pad_id,
            return_dict_in_generate=True,
            output_scores=True,
        )
        prompt_length = len(row.passage) + len(row.question) if isinstance(generator, CausalGenerator) else 1
        expected = [up_to_its_end(generator, ids[prompt_length:].tolist()) for ids in output.sequences]
        assert [answer.tokens for answer in found] == expected
        merits = [
            answer.token_logprobs_KT.sum().item() / len(answer.tokens) ** config.length_penalty for answer in found
        ]
        assert merits == pytest.approx(output.sequences_scores.tolist(), rel=1e-5)


def up_to_its_end(generator, tokens):
    ends = [at for at, token in enumerate(tokens) if token in generator.stop_ids]
    return tuple(tokens[: ends[0] + 1] if ends else tokens)


def test_the_three_ways_to_stop_a_beam_search_differ(bart_case):
    """Else the comparison with transformers would say nothing about them."""
    ways = [
        answers_of(
            bart_case, "rag_token", num_beams=3, num_return_sequences=3, early_stopping=early, length_penalty=2.0
        )
        for early in (False, True, "never")
    ]
    assert ways[0] != ways[1]
    assert ways[0] != ways[2]


def test_fewer_sequences_than_beams_are_all_found(case):
    end = case.generator.prompt.end_id
    options = {"num_beams": 6, "num_return_sequences": 6, "max_new_tokens": 2}
    for variant in ("rag_token", "rag_sequence"):
        for answers in answers_of(case, variant, lambda question, tokens: [5, end], **options):
            assert sorted(answers) == sorted([(end,), (5, end), (5, 5)])


@both_variants
@pytest.mark.parametrize("num_beams", [1, 3])
def test_answers_depend_neither_on_the_other_questions_nor_on_their_order(case, variant, num_beams):
    options = {"num_beams": num_beams, "num_return_sequences": num_beams}
    together = answers_of(case, variant, **options)
    assert answers_of(case.of(2, 0, 1), variant, **options) == [together[2], together[0], together[1]]
    assert [answers_of(case.of(b), variant, **options)[0] for b in range(3)] == together


# limits


@both_variants
@every_way
def test_an_answer_has_neither_fewer_nor_more_tokens_than_told(case, variant, way):
    for least, most in [(0, 1), (1, 1), (3, 3), (4, 6)]:
        for answers in answers_of(case, variant, min_new_tokens=least, max_new_tokens=most, **several(way)):
            assert answers
            for tokens in answers:
                assert least <= len(tokens) <= most
                stops = [at for at, token in enumerate(tokens) if token in case.generator.stop_ids]
                assert stops == [] or (stops == [len(tokens) - 1] and stops[0] >= least)
                assert stops or len(tokens) == most


@both_variants
@every_way
def test_only_allowed_tokens_of_the_right_question_are_used(case, variant, way):
    def allowed(question, tokens):
        first = 10 + 50 * question + 2 * sum(tokens) % 7 + len(tokens)
        return [first, first + 1]

    answers_B = answers_of(case, variant, allowed, max_new_tokens=5, **several(way))
    for question, answers in enumerate(answers_B):
        for tokens in answers:
            assert len(tokens) == 5
            assert all(token in allowed(question, tokens[:at]) for at, token in enumerate(tokens))


@both_variants
@every_way
def test_every_stop_token_ends_an_answer_but_not_too_early(llama_case, variant, way):
    line_break = llama_case.generator.stop_ids[1]
    assert line_break != llama_case.generator.prompt.end_id
    (answer, *_), *_ = answers_of(llama_case, variant, lambda question, tokens: [line_break], **several(way))
    assert answer == (line_break,)

    def allowed(question, tokens):
        return [line_break, 5] if len(tokens) < 2 else [line_break]

    for answers in answers_of(llama_case, variant, allowed, min_new_tokens=2, **several(way)):
        assert set(answers) == {(5, 5, line_break)}


@both_variants
@every_way
def test_a_dead_end_is_an_error_that_names_the_question(case, variant, way):
    def allowed(question, tokens):
        return [] if question == 1 and len(tokens) == 2 else [5, 6]

    with pytest.raises(InputError, match="no answer to question 1 of"):
        answers_of(case, variant, allowed, max_new_tokens=4, **several(way))
    end = case.generator.prompt.end_id
    with pytest.raises(InputError, match="no answer to question 0 of"):
        answers_of(case, variant, lambda question, tokens: [end], min_new_tokens=2, **several(way))


@both_variants
def test_answers_that_avoid_a_dead_end_are_given(case, variant):
    """Of 30 samples some begin with 5, which leads nowhere, and some with 6."""
    options = {"do_sample": True, "num_return_sequences": 30, "max_new_tokens": 3, "temperature": 100.0}
    for answers in answers_of(case, variant, lambda question, tokens: [] if 5 in tokens else [5, 6], **options):
        assert 0 < len(answers) < 30
        assert all(tokens[:2] == (6, 6) for tokens in answers)


# sampling


@both_variants
def test_samples_are_those_of_their_seed(case, variant):
    options = {"do_sample": True, "num_return_sequences": 4}
    first = answers_of(case, variant, seed=1, **options)
    assert answers_of(case, variant, seed=1, **options) == first
    assert answers_of(case, variant, seed=2, **options) != first


@both_variants
@pytest.mark.parametrize("sharp", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}], ids=str)
def test_the_sharpest_sampling_is_greedy_search(case, variant, sharp):
    drawn_B = answers_of(case, variant, do_sample=True, num_return_sequences=20, **sharp)
    if variant == "rag_token":
        expected_B = [{answers[0]} for answers in answers_of(case, variant)]
    else:  # a greedy answer from a passage that was drawn
        expected_B = [set(answers) for answers in answers_of(case, variant, num_return_sequences=3)]
    for drawn, expected in zip(drawn_B, expected_B, strict=True):
        assert len(drawn) == 20
        assert set(drawn) <= expected
    assert set(drawn_B[0]) == expected_B[0]


def assert_drawn_from(counts: Counter, probabilities: dict, least: float = 8.0):
    """Pearson's chi-squared over the outcomes expected at least so often, and all others as one."""
    total = counts.total()
    assert counts.keys() <= probabilities.keys()
    cells = [(counts[key], total * p) for key, p in probabilities.items() if total * p >= least]
    rest = (total - sum(seen for seen, _ in cells), total - sum(expected for _, expected in cells))
    if rest[1] > least:
        cells.append(rest)
    freedom = len(cells) - 1
    assert freedom > 0
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5, f"chi-squared of {statistic:.1f} with {freedom} degrees"


@both_variants
def test_first_tokens_come_as_often_as_the_mixture_says(case, variant):
    drawn_B = answers_of(case, variant, do_sample=True, num_return_sequences=1200, max_new_tokens=1)
    for drawn, rows_K, log_prior_K in zip(drawn_B, case.rows_BK, case.log_prior_BK, strict=True):
        probabilities = case.plain.next(rows_K, log_prior_K, ()).exp()
        assert_drawn_from(Counter(drawn), {(token,): p for token, p in enumerate(probabilities.tolist())})


@both_variants
def test_whole_answers_come_as_often_as_their_likelihood_says(case, variant):
    """Under RAG-Sequence a sample stays with the passage that it was drawn from; what isn't allowed doesn't count."""
    best = torch.stack([case.plain.read(row, ())[-1] for row in case.rows]).topk(2).indices
    few = sorted({case.generator.prompt.end_id, *best.flatten().tolist()})[:8]
    drawn_B = answers_of(
        case, variant, lambda question, tokens: few, do_sample=True, num_return_sequences=1500, max_new_tokens=2
    )
    for drawn, rows_K, log_prior_K in zip(drawn_B, case.rows_BK, case.log_prior_BK, strict=True):
        if variant == "rag_token":
            probabilities = pair_probabilities(case, rows_K, log_prior_K, few)
        else:
            parts = [pair_probabilities(case, [row], torch.zeros(1), few) for row in rows_K]
            weights = log_prior_K.exp().tolist()
            probabilities = {
                pair: sum(weight * part[pair] for weight, part in zip(weights, parts, strict=True)) for pair in parts[0]
            }
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert_drawn_from(Counter(drawn), probabilities)


def pair_probabilities(case, rows_K, log_weight_K, few):
    """Of every answer of two tokens, or one if that ends it, from a few tokens."""

    def following(tokens):
        return dict(zip(few, case.plain.next(rows_K, log_weight_K, tokens)[few].softmax(-1).tolist(), strict=True))

    pairs = {}
    for first, p in following(()).items():
        if first in case.generator.stop_ids:
            pairs[(first,)] = p
        else:
            pairs |= {(first, second): p * q for second, q in following((first,)).items()}
    return pairs


def test_over_many_seeds_the_passage_and_the_token_are_drawn_apart(llama_case):
    case = llama_case.of(0)
    options = {"do_sample": True, "max_new_tokens": 1, "sequence_scoring": "fast"}
    counts = Counter(answers_of(case, "rag_sequence", seed=seed, **options)[0][0] for seed in range(600))
    probabilities = case.plain.next(case.rows_BK[0], case.log_prior_BK[0], ()).exp()
    assert_drawn_from(counts, {(token,): p for token, p in enumerate(probabilities.tolist())})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.71}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"top_p": 0.39}, [1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.75}, [4 / 7, 3 / 7, 0, 0]),
        ({"temperature": 0.5, "top_p": 0.6}, [16 / 25, 9 / 25, 0, 0]),
    ],
    ids=str,
)
def test_temperature_then_top_k_then_top_p(options, expected):
    places = [2, 0, 3, 1]  # not in the order of their probability
    logprobs_V = torch.empty(4)
    logprobs_V[places] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    draw = sampler(DecodingConfig(do_sample=True, **options), torch.Generator().manual_seed(0))
    counts = Counter(draw(logprobs_V.expand(4000, 4).clone()).tolist())
    frequencies = [counts[place] / 4000 for place in places]
    assert frequencies == pytest.approx(expected, abs=0.035)
    assert all(counts[place] == 0 for place, p in zip(places, expected, strict=True) if p == 0)
