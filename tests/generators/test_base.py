"""log p(y|x,z) of given answers, the same for every architecture."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@torch.no_grad()
def test_scores_are_those_of_each_row_alone(exact, plain_logits, questions, passages_BK, answers, smoothing):
    logprobs_BKT, mask_BT = exact.target_logprobs(questions, passages_BK, answers, label_smoothing=smoothing)
    rows, targets_B = exact.prompt.rows(questions, passages_BK), exact.prompt.targets(answers)
    assert mask_BT.tolist() == [[at < len(target) for at in range(mask_BT.shape[1])] for target in targets_B]
    for number, row in enumerate(rows):
        b, k = divmod(number, len(passages_BK[0]))
        target = targets_B[b]
        logprobs_TV = plain_logits(exact, row, target[:-1]).log_softmax(-1)
        expected = (1 - smoothing) * logprobs_TV.gather(1, torch.tensor(target).unsqueeze(1)).squeeze(1)
        expected += smoothing * logprobs_TV.mean(-1)
        torch.testing.assert_close(logprobs_BKT[b, k, : len(target)], expected, atol=1e-9, rtol=0)
        assert (logprobs_BKT[b, k, len(target) :] == 0).all()


@torch.no_grad()
def test_float32_scores_are_near_those_of_each_row_alone(generator, plain_logits, questions, passages_BK, answers):
    logprobs_BKT, _ = generator.target_logprobs(questions, passages_BK, answers)
    rows, target = generator.prompt.rows(questions, passages_BK), generator.prompt.targets(answers)[0]
    for k in range(3):
        expected = plain_logits(generator, rows[k], target[:-1]).log_softmax(-1)
        expected = expected.gather(1, torch.tensor(target).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(logprobs_BKT[0, k, : len(target)], expected, atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_neither_batch_order_nor_token_budget_changes_a_score(exact, questions, passages_BK, answers):
    expected = exact.target_logprobs(questions, passages_BK, answers).token_logprobs_BKT
    for budget in (1, 150, 100_000):
        scores = exact.target_logprobs(questions, passages_BK, answers, tokens_per_batch=budget).token_logprobs_BKT
        torch.testing.assert_close(scores, expected, atol=1e-9, rtol=0)
    flipped_BK = [row[::-1] for row in passages_BK[::-1]]
    flipped = exact.target_logprobs(questions[::-1], flipped_BK, answers[::-1]).token_logprobs_BKT
    torch.testing.assert_close(flipped.flip(0, 1), expected, atol=1e-9, rtol=0)


@torch.no_grad()
def test_a_passage_that_is_there_twice_scores_the_same_twice(exact, questions, passages_BK, answers):
    logprobs_KT = exact.target_logprobs(questions, passages_BK, answers).token_logprobs_BKT[2]
    torch.testing.assert_close(logprobs_KT[0], logprobs_KT[2], atol=1e-12, rtol=0)
    assert not torch.allclose(logprobs_KT[0], logprobs_KT[1], atol=1e-3)


@torch.no_grad()
def test_closed_book_is_one_row_a_question(exact, plain_logits, questions, answers):
    logprobs_B1T, _ = exact.target_logprobs(questions, None, answers)
    prefill = exact.prefill(questions, None)
    assert logprobs_B1T.shape[:2] == (3, 1)
    rows, targets_B = exact.prompt.rows(questions, None), exact.prompt.targets(answers)
    for b, target in enumerate(targets_B):
        logprobs_TV = plain_logits(exact, rows[b], target[:-1]).log_softmax(-1)
        expected = logprobs_TV.gather(1, torch.tensor(target).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(logprobs_B1T[b, 0, : len(target)], expected, atol=1e-9, rtol=0)
        torch.testing.assert_close(prefill.logits_RV[b].log_softmax(-1), logprobs_TV[0], atol=1e-9, rtol=0)


@pytest.mark.parametrize("passages_per_backward", [None, 1])
@pytest.mark.parametrize("texts", [("", "", ""), ("", "a", "Lima")])
def test_empty_answers_have_no_tokens_and_no_gradient_of_nan(
    load, kind, questions, passages_BK, texts, passages_per_backward
):
    nor_a_start = {"decoder_start": 0} if kind == "bart" else {}
    generator = load(kind, end_answers=False, answer_template="{answer}", **nor_a_start)
    scores = generator.target_logprobs(questions, passages_BK, texts, passages_per_backward=passages_per_backward)
    lengths = [len(target) for target in generator.prompt.targets(texts)]
    assert lengths[0] == 0
    assert scores.mask_BT.sum(1).tolist() == lengths
    assert scores.token_logprobs_BKT.shape == (3, 3, max(lengths))
    assert (scores.token_logprobs_BKT[0] == 0).all()
    if max(lengths) > 0:
        (-scores.token_logprobs_BKT.sum()).backward()
        gradients = [weight.grad for weight in generator.parameters() if weight.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)


@torch.no_grad()
def test_one_token_answers_are_scored_from_the_prompt_alone(load, kind, questions, passages_BK):
    generator = load(kind, max_answer_tokens=1)
    logprobs_BKT, mask_BT = generator.target_logprobs(questions, passages_BK, ("Lima", "b", "c"))
    first_B = [target[0] for target in generator.prompt.targets(("Lima", "b", "c"))]
    assert mask_BT.tolist() == [[True]] * 3
    first_logprobs = generator.prefill(questions, passages_BK).logits_RV.log_softmax(-1).view(3, 3, -1)
    for b, token in enumerate(first_B):
        torch.testing.assert_close(logprobs_BKT[b, :, 0], first_logprobs[b, :, token], atol=1e-4, rtol=1e-5)


def tokens_read(modules):
    """A list that gets the ids of every call of embeddings."""
    read = []
    for module in modules:
        module.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    return read


def embeddings(generator):
    """The modules that see the ids that prompts are made of."""
    if generator.prompt.joint:
        return [generator.model.get_encoder().get_input_embeddings()]
    return [generator.model.get_input_embeddings()]


@pytest.mark.parametrize("way", ["prefill", "target_logprobs"])
def test_what_is_distinct_is_read_once(generator, questions, passages_BK, answers, way):
    """Of a decoder-only model the passage parts; of a sequence-to-sequence model whole prompts."""
    rows = generator.prompt.rows(questions, passages_BK)
    read = tokens_read(embeddings(generator))
    if way == "prefill":
        generator.prefill(questions, passages_BK, tokens_per_batch=1)
        suffixes = [len(row.question) for row in rows]
    else:
        generator.target_logprobs(questions, passages_BK, answers, tokens_per_batch=1)
        targets_B = generator.prompt.targets(answers)
        suffixes = [len(row.question) + len(targets_B[at // 3]) - 1 for at, row in enumerate(rows)]
    distinct = {row.question for row in rows} if generator.prompt.joint else {row.passage for row in rows}
    after = 0 if generator.prompt.joint else len(rows) * max(suffixes)
    assert len(distinct) < len(rows)
    assert sum(ids.numel() for ids in read) == sum(map(len, distinct)) + after
