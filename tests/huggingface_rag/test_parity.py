"""Loss, gradients and answers beside those of transformers' RAG; where theirs are wrong, beside the exact ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ragray.records import Passage
from tests.huggingface_rag.peer import (
    ANSWERS,
    LIMIT,
    MAX_TOKENS,
    PASSAGES,
    PASSAGES_BK,
    QUESTIONS,
    SCORES_BK,
    Theirs,
    both_kinds,
    both_variants,
    exact_log_likelihood,
    exact_nll,
    of_equal_length,
    our_answers,
    our_nll,
    ours,
    retrieved_ids,
    save_rag,
    seeds,
    up_to_end,
)

# what the generator reads


@both_kinds
@pytest.mark.parametrize("settings", [{}, {"prefix": "answer: "}], ids=["plain", "prefix"])
def test_inputs_are_those_of_rag_retriever(tmp_path, kind, settings):
    folder = save_rag(
        tmp_path, kind, "rag_token", generator_settings=settings, title_sep=" {t} /  ", doc_sep=" // {} {question} "
    )
    ids, mask = retrieved_ids(folder, QUESTIONS, PASSAGES_BK)
    expected = [tuple(row[real.bool()].tolist()) for row, real in zip(ids, mask, strict=True)]
    generator = ours(folder)
    assert [row.question for row in generator.prompt.rows(QUESTIONS, PASSAGES_BK)] == expected
    text = generator.prompt.tokenizer.decode(expected[0], skip_special_tokens=True)
    assert text.startswith(settings.get("prefix", "") + "Norway {t} / The capital is Oslo. Bergen")
    assert text.endswith(" // {} {question} what is the capital of peru?")


@both_kinds
def test_where_rag_retriever_cuts_off_the_question_ours_cuts_the_passage(tmp_path, kind):
    folder = save_rag(tmp_path, kind, "rag_token", max_combined_length=48)
    long = Passage("long", "Norway", "The capital is Oslo. " * 20)
    ids, _ = retrieved_ids(folder, QUESTIONS[:1], [[long]])
    generator = ours(folder)
    row = generator.prompt.rows(QUESTIONS[:1], [[long]])[0].question
    theirs_text, our_text = generator.prompt.tokenizer.batch_decode([ids[0], row], skip_special_tokens=True)
    assert "peru" not in theirs_text
    assert our_text.startswith("Norway / The capital is Oslo.")
    assert our_text.endswith(" // what is the capital of peru?")
    assert len(row) == 48


def test_settings_that_are_not_about_the_input_stay_the_users(rag_folder):
    config = ours(rag_folder("bart"), max_answer_tokens=7, end_answers=False, decoder_start=0, stop=("\n",)).config
    assert (config.max_answer_tokens, config.end_answers, config.decoder_start) == (7, False, 0)
    assert (config.passage_template, config.question_template) == ("{title} / {text}", " // {question}")
    assert (config.max_prompt_tokens, config.max_question_tokens, config.stop) == (LIMIT, LIMIT // 2, ())


# loss


@both_kinds
@both_variants
def test_the_loss_is_theirs_for_targets_after_the_start_token(rag_folder, kind, variant):
    folder = rag_folder(kind, variant)
    generator = ours(folder)
    targets = generator.prompt.targets(ANSWERS)
    assert len(set(map(len, targets))) > 1
    start = generator.model.config.decoder_start_token_id
    with torch.no_grad():
        expected = Theirs.load(folder, variant).nll([(start, *target) for target in targets])
        torch.testing.assert_close(our_nll(generator, variant), expected, atol=1e-5, rtol=1e-5)


@both_variants
def test_the_loss_is_theirs_for_tokenizer_made_labels(rag_folder, variant):
    """As their training scripts have it: labels ``<s> … </s>``, whose first token is not scored but begins decoding."""
    folder = rag_folder("bart", variant)
    generator = ours(folder, decoder_start=0)
    labels = generator.prompt.tokenizer(text_target=list(ANSWERS)).input_ids
    assert [tuple(row[1:]) for row in labels] == generator.prompt.targets(ANSWERS)
    with torch.no_grad():
        expected = Theirs.load(folder, variant).nll(labels)
        torch.testing.assert_close(our_nll(generator, variant), expected, atol=1e-5, rtol=1e-5)


@both_kinds
@both_variants
def test_gradients_are_theirs(rag_folder, kind, variant):
    """Of the scores that make the prior, and of every weight of the generator."""
    folder = rag_folder(kind, variant)
    generator, theirs = ours(folder, torch.float64), Theirs.load(folder, variant, torch.float64)
    theirs.inputs["doc_scores"].requires_grad_()
    start = generator.model.config.decoder_start_token_id
    theirs.nll([(start, *target) for target in generator.prompt.targets(ANSWERS)]).sum().backward()
    scores_BK = SCORES_BK.double().requires_grad_()
    our_nll(generator, variant, scores_BK=scores_BK).sum().backward()

    def assert_same(actual, expected):
        """The gradients of some biases of BART are 0 but for rounding."""
        torch.testing.assert_close(actual, expected, atol=max(1e-9 * float(expected.abs().max()), 1e-13), rtol=1e-9)

    assert_same(scores_BK.grad, theirs.inputs["doc_scores"].grad)
    expected = {name: weight.grad for name, weight in theirs.model.generator.named_parameters()}
    for name, weight in generator.model.named_parameters():
        assert_same(weight.grad, expected[name])


def test_their_rag_sequence_loses_the_prior_of_one_token_targets_and_ours_does_not(rag_folder):
    folder = rag_folder("bart", "rag_sequence")
    generator, theirs = ours(folder, decoder_start=0, end_answers=False), Theirs.load(folder, "rag_sequence")
    answers = ("L", "N", "M")
    targets = generator.prompt.targets(answers)
    assert [len(target) for target in targets] == [1, 1, 1]
    exact = exact_nll(theirs, targets, start=0)
    with torch.no_grad():
        their_nll = theirs.nll([(0, *target) for target in targets])
        our_value = our_nll(generator, "rag_sequence", answers)
        same_model = our_nll(generator, "rag_token", answers)
    torch.testing.assert_close(our_value, exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(same_model, exact, atol=1e-5, rtol=1e-5)
    unweighted = exact_nll(theirs, targets, start=0, scores_BK=torch.zeros(3, 3)) - math.log(3)
    torch.testing.assert_close(their_nll, unweighted, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_their_rag_sequence_fails_with_t5_and_ours_does_not(tmp_path):
    folder = save_rag(tmp_path, "t5", "rag_sequence")
    generator, theirs = ours(folder), Theirs.load(folder, "rag_sequence")
    targets = generator.prompt.targets(ANSWERS)
    with pytest.raises(AttributeError, match="bos_token_id"):
        theirs.nll([(0, *target) for target in targets])
    exact = exact_nll(theirs, targets, start=0)
    torch.testing.assert_close(our_nll(generator, "rag_sequence"), exact, atol=1e-5, rtol=1e-5)


# decoding


@seeds
@both_kinds
def test_greedy_answers_of_rag_token_are_theirs(rag_folder, kind, seed):
    folder = rag_folder(kind, seed=seed)
    expected = Theirs.load(folder, "rag_token").generate(max_length=MAX_TOKENS + 1)
    actual = our_answers(ours(folder), "rag_token", max_new_tokens=MAX_TOKENS)
    assert [answer for answers in actual for answer in answers] == expected


@seeds
@both_kinds
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_beams_of_rag_token_are_theirs(rag_folder, kind, seed, early_stopping):
    folder = rag_folder(kind, seed=seed)
    theirs, generator = Theirs.load(folder, "rag_token"), ours(folder)
    for length_penalty in (1.0, 0.0, 2.0, -1.0):
        options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": length_penalty}
        options["early_stopping"] = early_stopping
        expected = theirs.generate(max_length=MAX_TOKENS + 1, **options)
        actual = our_answers(generator, "rag_token", max_new_tokens=MAX_TOKENS, **options)
        assert [answer for answers in actual for answer in answers] == expected, length_penalty


@seeds
@both_kinds
def test_thorough_answers_of_rag_sequence_are_theirs_for_inputs_without_padding(rag_folder, kind, seed):
    folder = rag_folder(kind, "rag_sequence", seed)
    generator = ours(folder)
    passages_BK = of_equal_length(generator)
    theirs = Theirs.load(folder, "rag_sequence", passages_BK=passages_BK)
    assert theirs.inputs["context_attention_mask"].all()
    for number in (1, 3):
        options = {"num_beams": 4, "num_return_sequences": number}
        expected = theirs.generate(max_length=MAX_TOKENS + 1, **options)
        actual = our_answers(generator, "rag_sequence", passages_BK, max_new_tokens=MAX_TOKENS, **options)
        assert [answer for answers in actual for answer in answers] == expected, number


@both_kinds
def test_their_rag_sequence_reads_padding_when_it_searches_and_ours_does_not(rag_folder, kind):
    """It passes no mask of the padding on, and transformers infers none for sequence-to-sequence models."""
    folder, options = rag_folder(kind, "rag_sequence"), {"num_beams": 4, "num_return_sequences": 3}
    theirs = Theirs.load(folder, "rag_sequence")
    exact = thorough(theirs, SCORES_BK, **options)
    assert our_answers(ours(folder), "rag_sequence", max_new_tokens=MAX_TOKENS, **options) == exact
    flat = [answer for answers in exact for answer in answers]
    assert theirs.generate(max_length=MAX_TOKENS + 1, **options) != flat


@both_kinds
def test_the_models_compared_give_answers_that_end_at_different_lengths(rag_folder, kind):
    """Else the tests above would say nothing about where answers end."""
    lengths = set()
    for seed in range(3):
        for answers in our_answers(
            ours(rag_folder(kind, seed=seed)), "rag_token", max_new_tokens=MAX_TOKENS, num_beams=4
        ):
            lengths |= set(map(len, answers))
    assert len(lengths) >= 3


@both_kinds
@pytest.mark.parametrize("number", [2, 6])
def test_their_rag_sequence_cannot_use_another_number_of_passages_and_ours_can(rag_folder, kind, number):
    folder = rag_folder(kind, "rag_sequence")
    passages_BK = [[*PASSAGES[start:], *PASSAGES[:start]][:number] for start in range(3)]
    scores_BK = torch.linspace(-1, 1, 3 * number).view(number, 3).T
    theirs = Theirs.load(folder, "rag_sequence", passages_BK=passages_BK, scores_BK=scores_BK)
    options = {"num_beams": 3, "num_return_sequences": 3}
    with pytest.raises((AssertionError, RuntimeError)):
        theirs.generate(n_docs=number, max_length=MAX_TOKENS + 1, **options)
    actual = our_answers(ours(folder), "rag_sequence", passages_BK, scores_BK, max_new_tokens=MAX_TOKENS, **options)
    assert actual == thorough(theirs, scores_BK, **options)


def thorough(theirs: Theirs, scores_BK: torch.Tensor, num_beams: int, num_return_sequences: int) -> list[Any]:
    """Thorough Decoding by its definition: the beams of each passage, scored under all of them."""
    generator, (num_questions, number) = theirs.model.generator, scores_BK.shape
    start, end = generator.config.decoder_start_token_id, generator.config.eos_token_id
    rows = generator.generate(
        theirs.inputs["context_input_ids"],
        attention_mask=theirs.inputs["context_attention_mask"],
        num_beams=num_beams,
        num_return_sequences=num_beams,
        max_length=MAX_TOKENS + 1,
    )
    beams = [up_to_end(row, end) for row in rows[:, 1:].tolist()]
    answers = []
    for index in range(num_questions):
        candidates = set(beams[index * number * num_beams : (index + 1) * number * num_beams])
        score = {
            tokens: float(exact_log_likelihood(theirs, index, tokens, start, scores_BK[index])) for tokens in candidates
        }
        answers.append(sorted(candidates, key=score.__getitem__, reverse=True)[:num_return_sequences])
    return answers


def test_their_rag_token_ignores_max_new_tokens_and_ours_does_not(tmp_path):
    folder = save_rag(tmp_path, "bart", "rag_token", likes_end=False)
    assert min(map(len, Theirs.load(folder, "rag_token").generate(max_new_tokens=3))) > 3
    assert {len(answers[0]) for answers in our_answers(ours(folder), "rag_token", max_new_tokens=3)} == {3}
