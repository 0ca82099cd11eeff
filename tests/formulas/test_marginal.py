"""The marginal likelihoods against sums over every path, written out in float64."""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragray.formulas.marginal import (
    log_likelihood,
    log_prior,
    posterior,
    sequence_joint,
    sequence_log_likelihood,
    token_log_likelihood,
    token_posterior,
)

VARIANTS = ["rag_token", "rag_sequence"]
both_variants = pytest.mark.parametrize("variant", VARIANTS)


class Batch(NamedTuple):
    log_prior_BK: Tensor
    token_logprobs_BKT: Tensor
    mask_BT: Tensor


@st.composite
def batches(draw: st.DrawFn, min_length: int = 0, impossible: bool = True) -> Batch:
    """Random log-probabilities of at most 3 questions, 4 passages and 4 tokens; some tokens are impossible."""
    num_questions, num_passages = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(min_length, 4), min_size=num_questions, max_size=num_questions))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = (num_questions, num_passages, max(1, *lengths, 0))
    logprobs = -4 * torch.rand(shape, generator=generator, dtype=torch.float64)
    if impossible:
        share = draw(st.sampled_from([0.0, 0.3, 1.0]))
        logprobs[torch.rand(shape, generator=generator) < share] = -torch.inf
    prior = torch.randn(shape[:2], generator=generator, dtype=torch.float64).log_softmax(-1)
    return Batch(prior, logprobs, torch.arange(shape[2]) < torch.tensor(lengths).unsqueeze(1))


def path_probabilities(variant: str, batch: Batch, question: int) -> list[tuple[tuple[int, ...], float]]:
    """Probability of the answer along every path: one passage per token, or one for the whole answer."""
    prior = batch.log_prior_BK[question].exp().tolist()
    probs = batch.token_logprobs_BKT[question].exp().tolist()
    tokens = [t for t in range(batch.mask_BT.shape[1]) if batch.mask_BT[question, t]]
    if variant == "rag_token":
        paths = product(range(len(prior)), repeat=len(tokens))
        return [(path, math.prod(prior[k] * probs[k][t] for k, t in zip(path, tokens, strict=True))) for path in paths]
    return [((k,), prior[k] * math.prod(probs[k][t] for t in tokens)) for k in range(len(prior))]


@both_variants
@given(batch=batches())
def test_likelihood_is_the_sum_over_all_paths(variant, batch):
    expected = [sum(p for _, p in path_probabilities(variant, batch, b)) for b in range(len(batch.mask_BT))]
    actual = log_likelihood(variant, *batch).exp()
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-300)


@both_variants
@given(batch=batches(min_length=1))
def test_posterior_is_each_passages_share_of_the_paths(variant, batch):
    actual_BK = posterior(variant, *batch)
    for question in range(len(batch.mask_BT)):
        paths = path_probabilities(variant, batch, question)
        total = sum(p for _, p in paths)
        if total == 0:
            continue
        for passage in range(actual_BK.shape[1]):
            share = sum(p * path.count(passage) / len(path) for path, p in paths) / total
            assert actual_BK[question, passage].item() == pytest.approx(share, rel=1e-9)


@both_variants
@given(batch=batches())
def test_posterior_sums_to_one(variant, batch):
    total_B = posterior(variant, *batch).sum(-1)
    torch.testing.assert_close(total_B, torch.ones_like(total_B))
    total_BT = token_posterior(batch.log_prior_BK, batch.token_logprobs_BKT).sum(1)
    torch.testing.assert_close(total_BT, torch.ones_like(total_BT))


@both_variants
def test_empty_answer_is_certain_and_tells_nothing_about_the_passages(variant):
    prior = torch.tensor([[0.2, 0.8]]).log()
    empty = (prior, torch.zeros(1, 2, 3), torch.zeros(1, 3, dtype=torch.bool))
    assert log_likelihood(variant, *empty).tolist() == pytest.approx([0.0], abs=1e-6)
    torch.testing.assert_close(posterior(variant, *empty), prior.exp())


@given(batch=batches(min_length=1))
def test_variants_agree_on_one_token_answers(batch):
    one = Batch(batch.log_prior_BK, batch.token_logprobs_BKT[:, :, :1], batch.mask_BT[:, :1])
    torch.testing.assert_close(token_log_likelihood(*one), sequence_log_likelihood(*one))
    torch.testing.assert_close(posterior("rag_token", *one), posterior("rag_sequence", *one))


@both_variants
@given(batch=batches())
def test_one_passage_leaves_the_plain_language_model(variant, batch):
    certain = torch.zeros(len(batch.mask_BT), 1, dtype=torch.float64)
    alone = Batch(certain, batch.token_logprobs_BKT[:, :1], batch.mask_BT)
    expected = torch.where(batch.mask_BT, batch.token_logprobs_BKT[:, 0], 0.0).sum(-1)
    torch.testing.assert_close(log_likelihood(variant, *alone), expected)


@both_variants
@pytest.mark.parametrize("filler", [0.0, -math.inf, math.inf, math.nan], ids=str)
@given(batch=batches(impossible=False))
def test_padding_changes_neither_value_nor_gradient(variant, filler, batch):
    padded = Batch(
        batch.log_prior_BK,
        torch.nn.functional.pad(batch.token_logprobs_BKT, (0, 2), value=filler),
        torch.nn.functional.pad(batch.mask_BT, (0, 2)),
    )
    torch.testing.assert_close(log_likelihood(variant, *padded), log_likelihood(variant, *batch))
    torch.testing.assert_close(posterior(variant, *padded), posterior(variant, *batch))
    length = batch.mask_BT.shape[1]
    for with_padding, without in zip(gradients(variant, padded), gradients(variant, batch), strict=True):
        torch.testing.assert_close(with_padding[..., :length], without[..., :length])
        assert with_padding.isfinite().all()


@given(batch=batches(impossible=False))
def test_gradient_in_the_joint_is_the_posterior(batch):
    prior_gradient, token_gradient = gradients("rag_sequence", batch)
    posterior_BK = posterior("rag_sequence", *batch)
    torch.testing.assert_close(prior_gradient, posterior_BK)
    torch.testing.assert_close(token_gradient, posterior_BK.unsqueeze(-1) * batch.mask_BT.unsqueeze(1))

    prior_gradient, token_gradient = gradients("rag_token", batch)
    expected_BKT = token_posterior(batch.log_prior_BK, batch.token_logprobs_BKT) * batch.mask_BT.unsqueeze(1)
    torch.testing.assert_close(token_gradient, expected_BKT)
    torch.testing.assert_close(prior_gradient, expected_BKT.sum(-1))


@both_variants
@given(batch=batches())
def test_gradient_equals_finite_differences(variant, batch):
    """In every log-probability that is possible, the others staying ``-inf``."""
    possible_BKT = batch.token_logprobs_BKT.isfinite()

    def possible_answers(prior: Tensor, logprobs: Tensor) -> Tensor:
        value = log_likelihood(variant, prior, batch.token_logprobs_BKT.masked_scatter(possible_BKT, logprobs), mask)
        return torch.where(value.isfinite(), value, 0.0)

    mask, leaves = batch.mask_BT, (batch.log_prior_BK, batch.token_logprobs_BKT[possible_BKT])
    assert torch.autograd.gradcheck(possible_answers, [leaf.clone().requires_grad_() for leaf in leaves])


@both_variants
@given(batch=batches(), share=st.floats(0.01, 0.99))
def test_a_passage_that_comes_twice_counts_with_the_mass_of_both(variant, batch, share):
    prior_BK, logprobs_BKT, mask_BT = batch
    first_B1, second_B1 = prior_BK[:, :1] + math.log(share), prior_BK[:, :1] + math.log1p(-share)
    twice = Batch(
        torch.cat([first_B1, prior_BK[:, 1:], second_B1], dim=1),
        torch.cat([logprobs_BKT, logprobs_BKT[:, :1]], dim=1),
        mask_BT,
    )
    torch.testing.assert_close(log_likelihood(variant, *twice), log_likelihood(variant, *batch))
    posterior_BK = posterior(variant, *twice)
    posterior_BK[:, 0] += posterior_BK[:, -1]
    torch.testing.assert_close(posterior_BK[:, :-1], posterior(variant, *batch))


@both_variants
@given(batch=batches())
def test_impossible_tokens_give_no_nan(variant, batch):
    for gradient in gradients(variant, batch):
        assert gradient.isfinite().all()
    assert not log_likelihood(variant, *batch).isnan().any()


@both_variants
def test_an_impossible_answer_has_no_gradient_and_leaves_the_prior(variant):
    prior = torch.tensor([[0.2, 0.8]]).log()
    never = Batch(prior, torch.full((1, 2, 3), -torch.inf), torch.ones(1, 3, dtype=torch.bool))
    assert log_likelihood(variant, *never).item() == -math.inf
    assert all(gradient.eq(0).all() for gradient in gradients(variant, never))
    torch.testing.assert_close(posterior(variant, *never), prior.exp())


@both_variants
def test_bfloat16_inputs_are_computed_in_float32(variant):
    torch.manual_seed(0)
    prior, logprobs = torch.randn(2, 3).log_softmax(-1).bfloat16(), -torch.rand(2, 3, 30).bfloat16()
    mask = torch.ones(2, 30, dtype=torch.bool)
    for formula in (log_likelihood, posterior):
        result = formula(variant, prior, logprobs, mask)
        assert result.dtype == torch.float32
        exact = formula(variant, prior.double(), logprobs.double(), mask)
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


def test_sequence_joint_sums_the_answer_onto_the_prior():
    joint = sequence_joint(
        torch.tensor([[-1.0, -2.0]]), torch.tensor([[[-1.0, -9.0], [-3.0, -9.0]]]), torch.tensor([[True, False]])
    )
    assert joint.tolist() == [[-2.0, -5.0]]


def test_prior_is_a_softmax_with_temperature():
    prior = log_prior(torch.tensor([[2.0, 0.0]]), temperature=0.5).exp()
    assert prior.tolist()[0] == pytest.approx([1 / (1 + math.exp(-4)), 1 / (1 + math.exp(4))])
    assert log_prior(torch.tensor([[1.0]]).bfloat16()).dtype == torch.float32


@given(temperature=st.floats(0.1, 10), seed=st.integers(0, 10**6))
def test_a_learned_temperature_gets_its_gradient(temperature, seed):
    scores_BK = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    learned = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(log_prior(scores_BK, learned), log_prior(scores_BK, temperature), check_dtype=False)
    assert torch.autograd.gradcheck(log_prior, (scores_BK.requires_grad_(), learned))


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_prior_refuses_a_temperature_that_is_not_positive(temperature, as_tensor):
    with pytest.raises(ValueError, match=f"temperature must be > 0, got {temperature}"):
        log_prior(torch.zeros(1, 2), torch.tensor(temperature, requires_grad=True) if as_tensor else temperature)


def gradients(variant: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """Gradients of the summed log-likelihood in (log_prior_BK, token_logprobs_BKT)."""
    prior, logprobs = (x.clone().requires_grad_() for x in batch[:2])
    log_likelihood(variant, prior, logprobs, batch.mask_BT).sum().backward()
    zero = torch.zeros_like
    return (
        prior.grad if prior.grad is not None else zero(prior),
        logprobs.grad if logprobs.grad is not None else zero(logprobs),
    )
