"""Gradients: what is trained, and the ways to hold less memory, none of which changes the gradient."""

from __future__ import annotations

import pytest
import torch

from ragray.formulas import marginal
from ragray.records import InputError

VARIANTS = ["rag_token", "rag_sequence"]


@pytest.fixture
def step(questions, passages_BK, answers):
    """(generator, options) -> the loss of a training step, which couples the passages, and all its gradients."""

    def run(generator, variant="rag_token", **options):
        scores_BK = torch.tensor([[0.3, -1.0, 0.2], [0.0, 2.0, 1.0], [-0.5, 0.5, 0.1]], dtype=torch.float64)
        scores_BK.requires_grad_()
        generator.zero_grad()
        scores = generator.target_logprobs(questions, passages_BK, answers, **options)
        log_prior_BK = marginal.log_prior(scores_BK)
        loss = -marginal.log_likelihood(variant, log_prior_BK, *scores).mean()
        loss.backward()
        gradients = [weight.grad.flatten() for weight in generator.parameters() if weight.grad is not None]
        return loss.detach(), torch.cat([scores_BK.grad.flatten(), *gradients])

    return run


def assert_same(one, other):
    assert one[1].abs().sum() > 1e-3
    assert one[1].shape == other[1].shape
    torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


# fewer passages at once


@pytest.mark.parametrize("variant", VARIANTS)
def test_fewer_passages_at_once_give_the_same_loss_and_gradient(exact, step, variant):
    expected = step(exact, variant)
    for passages_per_backward in (1, 2, 3, 100):
        assert_same(step(exact, variant, passages_per_backward=passages_per_backward), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["gpt2", "bart", "t5"])
def test_what_is_read_again_has_the_same_dropout(load, kind, float64_throughout, step, monkeypatch, variant):
    generator = load(kind, torch.float64).train()

    def seeded(seed):
        torch.manual_seed(seed)
        return step(generator, variant, passages_per_backward=2)

    twice_read = seeded(1)
    assert not torch.allclose(twice_read[1], seeded(2)[1])
    monkeypatch.setattr("ragray.generators.base.checkpoint", lambda read, *rows, use_reentrant: read(*rows))
    assert_same(twice_read, seeded(1))


def test_fewer_passages_at_once_in_bfloat16_are_near_all_at_once(load, kind, step):
    generator = load(kind, torch.bfloat16)
    generator.train_last_layers(None, rate=1e-4)
    loss, gradient = step(generator)
    loss_of_parts, gradient_of_parts = step(generator, passages_per_backward=2)
    torch.testing.assert_close(loss_of_parts, loss, rtol=0.02, atol=0)
    assert torch.cosine_similarity(gradient_of_parts, gradient, dim=0) > 0.99


def test_passages_for_later_keep_nothing_in_the_forward_pass(generator, passages, answers, count_elements):
    def keep(passages_per_backward):
        passages_BK = [[*passages, *passages[:2]]]
        return count_elements(
            lambda: generator.target_logprobs(
                ["Oslo?"], passages_BK, answers[:1], passages_per_backward=passages_per_backward
            )
        )

    assert keep(2) < keep(None) / 4


def test_the_backward_pass_holds_so_many_passages_at_a_time(generator, passages, answers):
    scores = generator.target_logprobs(["Oslo?"], [passages], answers[:1], passages_per_backward=2)
    rows_read = []
    generator._layer_stack()[0].register_forward_pre_hook(lambda _, arguments: rows_read.append(len(arguments[0])))
    scores.token_logprobs_BKT.sum().backward()
    assert len(rows_read) >= 3
    assert max(rows_read) == 2


def test_without_a_gradient_nothing_is_read_twice(generator, questions, passages_BK, answers):
    calls = []
    generator._layer_stack()[0].register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        scores = generator.target_logprobs(questions, passages_BK, answers, passages_per_backward=3)
    assert not scores.token_logprobs_BKT.requires_grad
    assert len(calls) <= 6  # three parts, of decoder-only models each in a pass for passages and one for the rest


# checkpoints of layers


@pytest.mark.parametrize("variant", VARIANTS)
def test_checkpoints_give_the_same_loss_and_gradient_without_dropout(exact, step, variant):
    expected = step(exact, variant)
    exact.checkpoint_gradients()
    assert exact.model.is_activation_checkpointing
    assert_same(step(exact, variant), expected)
    assert_same(step(exact, variant, passages_per_backward=2), expected)


def test_checkpoints_really_keep_less(generator, questions, passages_BK, count_elements):
    def keep():
        return count_elements(lambda: generator.target_logprobs(questions, passages_BK, ("a", "b", "c")))

    before = keep()
    generator.checkpoint_gradients()
    assert keep() < before / 2


def test_with_checkpoints_answers_grow_as_before(generator, questions, passages_BK):
    def grow():
        prefill = generator.prefill(questions, passages_BK)
        tokens = torch.tensor([[5, 6], [7, 8]])
        return prefill.logits_RV, generator.extend(prefill.root, torch.tensor([4, 1]), tokens)[1]

    before = grow()
    generator.checkpoint_gradients()
    torch.testing.assert_close(grow(), before)


def test_checkpoints_work_with_a_few_trained_layers_in_bfloat16(load, kind, step):
    generator = load(kind, torch.bfloat16)
    trained = generator.train_last_layers(1, rate=1e-4)
    loss, gradient = step(generator)
    generator.checkpoint_gradients()
    again, gradient_again = step(generator)
    assert all(weight.grad is not None for weight in trained)
    torch.testing.assert_close(again, loss, rtol=0.02, atol=0)
    assert torch.cosine_similarity(gradient_again, gradient, dim=0) > 0.99


# what is trained


def test_only_the_last_layers_get_a_gradient(generator, step):
    trained = generator.train_last_layers(1, rate=1e-4)
    step(generator)
    last = {id(weight) for weight in generator._layer_stack()[-1].parameters()}
    with_gradient = {id(weight) for weight in generator.parameters() if weight.grad is not None}
    assert with_gradient == {id(weight) for weight in trained} <= last
    assert len(trained) > 0
    assert all(weight.grad.abs().sum() > 0 for weight in trained)


def test_the_layers_are_those_of_the_decoder(generator, kind):
    names = {"llama": "model.layers", "gpt2": "transformer.h", "bart": "model.decoder.layers", "t5": "decoder.block"}
    trained = {id(weight) for weight in generator.train_last_layers(2, rate=1e-4)}
    found = {name for name, weight in generator.model.named_parameters() if id(weight) in trained}
    assert all(name.startswith(names.get(kind, "model.layers")) for name in found)
    assert {id(weight) for weight in generator.parameters() if weight.requires_grad} == trained


def test_frozen_layers_keep_no_activations(generator, questions, passages_BK, answers):
    generator.train_last_layers(1, rate=1e-4)
    where, kept = ["before"], set()
    layers = generator._layer_stack()
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: where.__setitem__(0, number))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.add(where[0]) or tensor, lambda tensor: tensor):
        generator.target_logprobs(questions, passages_BK, answers)
    assert kept == {len(layers) - 1}


def test_rate_zero_freezes_and_no_number_of_layers_trains_everything(generator):
    assert generator.train_last_layers(None, rate=0) == []
    assert generator.train_last_layers(1, rate=0) == []
    assert not any(weight.requires_grad for weight in generator.parameters())
    assert len(generator.train_last_layers(None, rate=1e-4)) == len(list(generator.parameters()))


def test_more_layers_than_there_are_is_refused(generator):
    layers = len(generator._layer_stack())
    with pytest.raises(InputError, match=f"generator_layers is {layers + 1}, but the generator has {layers} layers"):
        generator.train_last_layers(layers + 1, rate=1e-4)


def test_trained_weights_are_float32_in_a_bfloat16_model(load, kind, step):
    generator = load(kind, torch.bfloat16)
    trained = generator.train_last_layers(1, rate=1e-4)
    assert {weight.dtype for weight in trained} == {torch.float32}
    assert all(weight.ndim > 1 for weight in trained)  # float32 norms would lift what they touch to float32
    assert generator.model.get_input_embeddings().weight.dtype == torch.bfloat16
    step(generator)
    assert all(weight.grad.dtype == torch.float32 for weight in trained)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "bart"])  # the tiny T5's numbers are too large for it
@torch.no_grad()
def test_a_bfloat16_model_is_near_its_float32_self(load, kind, questions, passages_BK, answers):
    expected = load(kind).target_logprobs(questions, passages_BK, answers).token_logprobs_BKT
    scores = load(kind, torch.bfloat16).target_logprobs(questions, passages_BK, answers).token_logprobs_BKT
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, expected, rtol=0.1, atol=1.0)
