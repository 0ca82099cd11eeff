"""Both decoders against slow loops that read every row again for every token."""

from __future__ import annotations

import pytest
import torch

from ragray.decoding import decode, decode_rag_sequence, decode_rag_token
from ragray.formulas import marginal


@pytest.fixture
def passages_BK(passages):
    return [list(passages[:3]), [passages[4], passages[0], passages[2]], list(passages[3:])]


@pytest.fixture
def log_prior_BK():
    return torch.tensor([[1.0, 0.5, -1.0], [0.0, 0.0, 0.0], [2.0, 1.9, 1.8]]).log_softmax(-1)


@pytest.fixture
def prompts_BK(generator, questions, passages_BK):
    suffixes = generator.tokenize_questions(questions)
    return [
        [ids + suffix for ids in generator.tokenize_passages(row)]
        for suffix, row in zip(suffixes, passages_BK, strict=True)
    ]


def next_logprobs(generator, rows):
    """log p(next token | row) of every row, each read alone; shape (rows, V)."""
    logits = [generator.model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1] for row in rows]
    return torch.stack(logits).log_softmax(-1)


def greedy(generator, step):
    """Tokens chosen one by one from ``step(tokens so far)`` up to the end token or the limit."""
    tokens: list[int] = []
    while len(tokens) < generator.config.max_answer_tokens and generator.end_id not in tokens:
        tokens.append(int(step(tokens).argmax()))
    return tokens


def plain_scores(generator, plain_logprobs, prompts_K, tokens):
    """(token_logprobs, mask) of one answer under every passage, as a batch of one question."""
    scores_KT = torch.stack([plain_logprobs(generator, prompt, tokens) for prompt in prompts_K])
    return scores_KT.unsqueeze(0), torch.ones(1, len(tokens), dtype=torch.bool)


@torch.no_grad()
def test_rag_token_equals_a_slow_uncached_search(generator, questions, passages_BK, prompts_BK, log_prior_BK):
    decoded = decode_rag_token(generator, generator.prefill(questions, passages_BK), log_prior_BK)
    for b, prompts_K in enumerate(prompts_BK):
        expected = greedy(
            generator,
            lambda tokens, b=b, prompts_K=prompts_K: torch.logsumexp(
                log_prior_BK[b].unsqueeze(-1) + next_logprobs(generator, [p + tokens for p in prompts_K]), dim=0
            ),
        )
        assert decoded.tokens_B[b] == expected
    lengths = set(map(len, decoded.tokens_B))
    assert len(lengths) > 1, "the fixture must have answers that end early and late, else this test is weak"


@torch.no_grad()
def test_rag_sequence_equals_scoring_every_hypothesis_under_every_passage(
    generator, plain_logprobs, questions, passages_BK, prompts_BK, log_prior_BK
):
    decoded = decode_rag_sequence(generator, generator.prefill(questions, passages_BK), log_prior_BK)
    several = 0
    for b, prompts_K in enumerate(prompts_BK):
        hypotheses = {
            tuple(greedy(generator, lambda tokens, p=p: next_logprobs(generator, [p + tokens])[0])) for p in prompts_K
        }
        several += len(hypotheses) > 1
        likelihood = {
            tokens: marginal.sequence_log_likelihood(
                log_prior_BK[b : b + 1], *plain_scores(generator, plain_logprobs, prompts_K, tokens)
            ).item()
            for tokens in hypotheses
        }
        best = max(likelihood, key=likelihood.__getitem__)
        assert tuple(decoded.tokens_B[b]) == best
        assert decoded.log_likelihood_B[b].item() == pytest.approx(likelihood[best], abs=1e-4)
    assert several, "the fixture must have passages that disagree, else this test is weak"


@pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
@torch.no_grad()
def test_what_is_said_of_an_answer_is_what_its_tokens_score(
    generator, plain_logprobs, questions, passages_BK, prompts_BK, log_prior_BK, variant
):
    decoded = decode(variant, generator, generator.prefill(questions, passages_BK), log_prior_BK)
    assert decoded.mask_BT.sum(1).tolist() == list(map(len, decoded.tokens_B))
    for b, tokens in enumerate(decoded.tokens_B):
        scores = plain_scores(generator, plain_logprobs, prompts_BK[b], tokens)
        actual_KT = decoded.token_logprobs_BKT[b, :, : len(tokens)]
        torch.testing.assert_close(actual_KT, scores[0][0], atol=1e-5, rtol=1e-5)
        expected = marginal.log_likelihood(variant, log_prior_BK[b : b + 1], *scores)
        torch.testing.assert_close(decoded.log_likelihood_B[b : b + 1], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
def test_an_answer_does_not_depend_on_the_other_questions(generator, questions, passages_BK, log_prior_BK, variant):
    together = decode(variant, generator, generator.prefill(questions, passages_BK), log_prior_BK)
    for b in range(3):
        prefill = generator.prefill(questions[b : b + 1], passages_BK[b : b + 1])
        alone = decode(variant, generator, prefill, log_prior_BK[b : b + 1])
        assert alone.tokens_B == [together.tokens_B[b]]
        torch.testing.assert_close(alone.log_likelihood_B[0], together.log_likelihood_B[b], atol=1e-5, rtol=1e-5)


def test_variants_agree_when_there_is_one_passage(generator, questions, passages_BK):
    alone_BK, certain_BK = [row[:1] for row in passages_BK], torch.zeros(3, 1)
    by_token, by_sequence = (
        decode(variant, generator, generator.prefill(questions, alone_BK), certain_BK)
        for variant in ("rag_token", "rag_sequence")
    )
    assert by_token.tokens_B == by_sequence.tokens_B
    torch.testing.assert_close(by_token.log_likelihood_B, by_sequence.log_likelihood_B, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
def test_answers_stop_at_the_limit_of_one_token(generator, questions, passages_BK, log_prior_BK, variant):
    generator.config = generator.config.model_copy(update={"max_answer_tokens": 1})
    decoded = decode(variant, generator, generator.prefill(questions, passages_BK), log_prior_BK)
    assert list(map(len, decoded.tokens_B)) == [1, 1, 1]
