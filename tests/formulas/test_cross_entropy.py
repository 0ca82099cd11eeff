"""Target log-probabilities against log_softmax and gather, written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ragray.formulas import cross_entropy
from ragray.formulas.cross_entropy import target_logprobs

smoothings = st.sampled_from([0.0, 0.1, 0.9])


@pytest.fixture(autouse=True, params=[1, 12, 2**20], ids="{}_elements_a_chunk".format)
def chunk_size(request, monkeypatch):
    """Chunks of one row, of a few rows with a rest, and of all rows: no result may depend on it."""
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", request.param)


def plain(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (1 - smoothing) * chosen + smoothing * logprobs.mean(-1) if smoothing else chosen


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits and targets of up to three dimensions before the vocabulary; some batches are empty."""
    shape, vocabulary = draw(st.lists(st.integers(0, 4), max_size=3)), draw(st.integers(1, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    logits = 3 * torch.randn(*shape, vocabulary, generator=generator, dtype=torch.float64)
    return logits + draw(st.sampled_from([0, -100])), torch.randint(vocabulary, shape, generator=generator)


@given(batch=batches(), smoothing=smoothings)
def test_value_and_gradient_equal_log_softmax_and_gather(batch, smoothing):
    logits, targets = batch
    weights = torch.linspace(-1, 2, targets.numel(), dtype=torch.float64).view(targets.shape)
    results = []
    for formula in (target_logprobs, plain):
        leaf = logits.clone().requires_grad_()
        value = formula(leaf, targets, smoothing)
        results.append((value.detach(), *torch.autograd.grad(value, leaf, weights)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradient_equals_finite_differences(smoothing):
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0, 1, 2, 3], [4, 4, 0, 2]])
    assert torch.autograd.gradcheck(lambda x: target_logprobs(x, targets, smoothing), logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_passage_gives_pytorchs_cross_entropy(dtype, smoothing):
    logits, targets = torch.randn(9, 11, generator=torch.Generator().manual_seed(1), dtype=dtype), torch.arange(9)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(-target_logprobs(logits, targets, smoothing), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits = (5 * torch.randn(7, 300, generator=torch.Generator().manual_seed(2))).to(dtype).requires_grad_()
    targets = logits.argmax(-1)
    value = target_logprobs(logits, targets, 0.1)
    value.sum().backward()
    exact = logits.detach().double().requires_grad_()
    plain(exact, targets, 0.1).sum().backward()
    assert value.dtype == torch.float32
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(value.double(), plain(exact, targets, 0.1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.grad, exact.grad.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_autocast_changes_nothing():
    logits, targets = torch.randn(5, 40), torch.arange(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = target_logprobs(logits, targets, 0.1)
    torch.testing.assert_close(actual, target_logprobs(logits, targets, 0.1), rtol=0, atol=0)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_without_gradients(context):
    with context():
        value = target_logprobs(torch.zeros(2, 4), torch.tensor([0, 3]))
    torch.testing.assert_close(value, torch.full((2,), -math.log(4)))


def test_transposed_logits_are_read_in_their_own_order():
    logits, targets = torch.randn(6, 3, 5).double().transpose(0, 1).requires_grad_(), torch.arange(18).view(3, 6) % 5
    (gradient,) = torch.autograd.grad(target_logprobs(logits, targets).sum(), logits)
    (expected,) = torch.autograd.grad(plain(logits, targets).sum(), logits)
    torch.testing.assert_close(gradient, expected)


# impossible tokens


def test_an_impossible_target_has_a_finite_gradient_that_never_raises_an_impossible_logit():
    logits = torch.tensor([[0.0, -math.inf, 0.0]] * 2, requires_grad=True)
    value = target_logprobs(logits, torch.tensor([1, 2]))
    value.sum().backward()
    assert value.tolist() == pytest.approx([-math.inf, -math.log(2)])
    assert logits.grad.tolist() == [[-0.5, 1.0, -0.5], [-0.5, 0.0, 0.5]]


def test_smoothing_over_an_impossible_token_makes_every_target_impossible():
    logits = torch.tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    value = target_logprobs(logits, torch.tensor([0]), 0.3)
    value.sum().backward()
    assert value.tolist() == [-math.inf]
    torch.testing.assert_close(logits.grad, torch.tensor([[0.3, 0.1, -0.4]]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_row_without_incoming_gradient_gets_exactly_zero(smoothing):
    logits = torch.tensor([[-math.inf] * 3, [1.0, -math.inf, 2.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    value = target_logprobs(logits.requires_grad_(), torch.tensor([0, 1, 2, 0]), smoothing)
    (gradient,) = torch.autograd.grad(value, logits, torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert (gradient[:3] == 0).all()
    assert (gradient[3] != 0).all()


# memory


class NewStorages(TorchDispatchMode):
    """Notes the bytes of every storage made inside; what was made stays alive, so that no address comes twice."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.made: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.made[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return result

    def sizes_above(self, size_bytes: int) -> list[int]:
        return [storage.nbytes() for storage in self.made.values() if storage.nbytes() > size_bytes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_gradient_is_as_large_as_the_logits(dtype, monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 300)
    logits, targets = torch.randn(50, 100).to(dtype).requires_grad_(), torch.zeros(50, dtype=torch.int64)
    with NewStorages(logits, targets) as forward:
        value = target_logprobs(logits, targets, 0.1).sum()
    with NewStorages(logits, targets) as backward:
        torch.autograd.grad(value, logits)
    assert forward.sizes_above(300 * 4) == []
    assert backward.sizes_above(300 * 4) == [logits.nbytes]
    with NewStorages(logits, targets) as unchunked:
        plain(logits, targets)
    assert unchunked.sizes_above(300 * 4) == [logits.nbytes], "this test is blind"


# errors


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_refuses_a_label_smoothing_outside_its_range(smoothing):
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\)"):
        target_logprobs(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), smoothing)


def test_refuses_targets_of_another_shape():
    with pytest.raises(ValueError, match=r"targets of shape \(3, 2\) for logits of shape \(2, 3, 4\)"):
        target_logprobs(torch.zeros(2, 3, 4), torch.zeros(3, 2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_normalizer_is_the_logsumexp_in_chunks_of_any_size(dtype, monkeypatch):
    logits = torch.randn(3, 5, 11).to(dtype)
    logits[0, 0, 0] = -torch.inf
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 4 * 11)
    precise = logits.to(torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(cross_entropy.log_normalizer(logits), torch.logsumexp(precise, dim=-1))
    assert cross_entropy.log_normalizer(logits[:0]).shape == (0, 5)
