"""The loss of the RAG model over tiny random models, and where its gradient goes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from ragray.formulas import marginal
from ragray.index_shard import IndexShard, build_shard
from ragray.priors import DensePrior
from ragray.rag import Rag, drift
from ragray.records import Hits, Passage

both_variants = pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])


def gradients(module):
    return {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}


def of_one(scores_KT):
    """(token_logprobs_BKT, mask_BT) of one answer."""
    return scores_KT.unsqueeze(0), torch.ones(1, scores_KT.shape[1], dtype=torch.bool)


# float64, for finite differences


@dataclass
class FixedRetriever:
    """Finds the same for any question vector, so that the retrieved set stays while weights move."""

    hits: Hits

    def search(self, vectors_BD, k):
        return self.hits


@pytest.fixture
def exact_rag(encoder, shard, questions, load, monkeypatch):
    """A model in float64 from end to end; ragray's own calls of ``float()`` would round."""
    hits = shard.search(encoder.embed_questions(questions).detach().numpy(), 3)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    encoder.double()
    exact = FixedRetriever(replace(hits, vectors_BKD=hits.vectors_BKD.astype("float64")))

    def make(variant, name="gpt2", **options):
        generator = load(name, torch.float64, max_answer_tokens=8)
        return Rag(DensePrior(encoder, exact), generator, variant, 3, **options)

    return make


@torch.no_grad()
def slope(function, weight, place, step=1e-5):
    """Of the function at one entry of a weight, by finite differences."""
    before = weight[place].item()
    values = []
    for side in (1, -1):
        weight[place] = before + side * step
        values.append(function().item())
    weight[place] = before
    return (values[0] - values[1]) / (2 * step)


@both_variants
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_the_question_encoders_gradient_is_that_of_finite_differences(
    exact_rag, encoder, questions, answers, variant, name
):
    rag = exact_rag(variant, name)

    def loss():
        return rag.loss(questions, answers).nll_B.sum()

    assert loss().dtype == torch.float64
    loss().backward()
    bert = encoder.model
    for weight in (
        bert.embeddings.word_embeddings.weight,
        bert.encoder.layer[0].attention.self.query.weight,
        bert.encoder.layer[1].output.dense.weight,
        bert.encoder.layer[1].output.dense.bias,
    ):
        largest = torch.unravel_index(weight.grad.abs().argmax(), weight.shape)
        assert weight.grad[largest].abs() > 1e-4
        for place in (largest, tuple(size // 2 for size in weight.shape)):
            assert slope(loss, weight, place) == pytest.approx(weight.grad[place].item(), rel=1e-5, abs=1e-8)


@both_variants
def test_a_learned_temperatures_gradient_is_that_of_finite_differences(exact_rag, encoder, questions, answers, variant):
    rag = exact_rag(variant)
    (weight,) = encoder.train_temperature()

    def loss():
        return rag.loss(questions, answers).nll_B.sum()

    loss().backward()
    assert weight.grad.abs() > 1e-3
    assert slope(loss, weight, ()) == pytest.approx(weight.grad.item(), rel=1e-6)


@both_variants
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_reading_passages_twice_to_save_memory_changes_neither_loss_nor_gradient(
    exact_rag, encoder, questions, answers, variant, name
):
    results = []
    for passages_per_backward in (None, 1, 2, 4, 9):
        encoder.zero_grad()
        rag = exact_rag(variant, name, passages_per_backward=passages_per_backward, label_smoothing=0.1)
        loss = rag.loss(questions, answers)
        loss.nll_B.sum().backward()
        results.append((loss.nll_B.detach(), loss.posterior_BK, gradients(encoder), gradients(rag.generator)))
    assert all(results[0][2:])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-9, rtol=0)


# loss


@both_variants
@torch.no_grad()
def test_the_loss_is_the_marginal_of_prior_and_generator(make_rag, encoder, shard, questions, answers, variant):
    rag = make_rag(variant)
    loss = rag.loss(questions, answers)
    vectors_BD = encoder.embed_questions(questions)
    hits = shard.search(vectors_BD.numpy(), 3)
    prior_BK = (torch.from_numpy(hits.scores_BK) / 2.0).softmax(-1)  # the encoder's temperature
    scores = rag.generator.target_logprobs(questions, hits.passages_BK, answers)
    torch.testing.assert_close(loss.prior_BK, prior_BK, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(loss.nll_B, -marginal.log_likelihood(variant, prior_BK.log(), *scores))
    torch.testing.assert_close(loss.vectors_BD, vectors_BD)
    for distribution_BK in (loss.prior_BK, loss.posterior_BK):
        torch.testing.assert_close(distribution_BK.sum(-1), torch.ones(3))


@both_variants
def test_the_question_encoder_learns_through_the_prior_alone(make_rag, encoder, shard, questions, answers, variant):
    """d(-log p(y|x))/dq(x) = sum_K (prior - posterior) d(z) / temperature; for RAG-Token, summed over the tokens."""
    rag = make_rag(variant)
    rag.loss(questions, answers).nll_B.sum().backward()
    actual = gradients(encoder)
    encoder.zero_grad()

    with torch.no_grad():
        evidence = rag.prior(questions, 3)
        log_prior_BK, prior_BK = evidence.log_prior_BK, evidence.log_prior_BK.exp()
        logprobs_BKT, mask_BT = rag.generator.target_logprobs(questions, evidence.passages_BK, answers)
        if variant == "rag_sequence":
            push_BK = prior_BK - marginal.posterior(variant, log_prior_BK, logprobs_BKT, mask_BT)
        else:
            push_BKT = prior_BK.unsqueeze(-1) - marginal.token_posterior(log_prior_BK, logprobs_BKT)
            push_BK = (push_BKT * mask_BT.unsqueeze(1)).sum(-1)
        vectors_BKD = torch.from_numpy(shard.search(evidence.vectors_BD.numpy(), 3).vectors_BKD)
        gradient_BD = (push_BK.unsqueeze(-1) * vectors_BKD).sum(1) / encoder.preparation.temperature
    encoder.embed_questions(questions).backward(gradient_BD)
    expected = gradients(encoder)

    assert actual.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in actual.values()) > 1e-2
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-4, rtol=1e-3, msg=name)


@both_variants
def test_one_passage_teaches_the_question_encoder_nothing(make_rag, questions, answers, variant):
    rag = make_rag(variant, k=1)
    rag.loss(questions, answers).nll_B.sum().backward()
    assert all(gradient.abs().max() < 1e-6 for gradient in gradients(rag.prior.encoder).values())
    assert any(weight.grad.abs().max() > 1e-3 for weight in rag.generator.parameters())


@both_variants
def test_passages_that_explain_the_answer_alike_teach_the_question_encoder_nothing(
    make_rag, encoder, passage_table, passages, questions, answers, variant, tmp_path
):
    same_text = [Passage(passage.id, "Peru", "Lima") for passage in passages]
    build_shard(tmp_path / "same", encoder.embed_passages(passages), passage_table(same_text), "Flat")
    rag = make_rag(variant, retriever=IndexShard(tmp_path / "same", "v1"))
    loss = rag.loss(questions, answers)
    torch.testing.assert_close(loss.posterior_BK, loss.prior_BK)
    loss.nll_B.sum().backward()
    assert all(gradient.abs().max() < 1e-4 for gradient in gradients(encoder).values())


@both_variants
@torch.no_grad()
def test_label_smoothing_mixes_in_the_mean_over_the_vocabulary_under_each_passage(
    make_rag, questions, answers, variant
):
    rag = make_rag(variant, label_smoothing=0.2)
    evidence = rag.prior(questions, 3)
    rows = rag.generator.prompt.rows(questions, evidence.passages_BK)
    expected = []
    for b, target in enumerate(rag.generator.prompt.targets(answers)):
        smoothed = []
        for passage, question in rows[3 * b : 3 * b + 3]:
            whole = torch.tensor([[*passage, *question, *target]])
            logprobs_TV = rag.generator.model(input_ids=whole).logits[0, -len(target) - 1 : -1].log_softmax(-1)
            of_target = logprobs_TV.gather(1, torch.tensor(target).unsqueeze(1)).squeeze(1)
            smoothed.append(0.8 * of_target + 0.2 * logprobs_TV.mean(1))
        scores = of_one(torch.stack(smoothed))
        expected.append(-marginal.log_likelihood(variant, evidence.log_prior_BK[b : b + 1], *scores).item())
    assert rag.loss(questions, answers).nll_B.tolist() == pytest.approx(expected, abs=1e-3)
    references = [prediction.reference_log_prob for prediction in rag.answer(questions, answers)]
    unsmoothed = make_rag(variant).loss(questions, answers).nll_B
    assert references == pytest.approx((-unsmoothed).tolist(), abs=1e-3), "an evaluation is never smoothed"


@both_variants
@pytest.mark.parametrize("name", ["generator", "bart"])
def test_a_generator_in_bfloat16_gives_a_float32_loss(make_rag, load, questions, answers, variant, name):
    rag = make_rag(variant, generator=load(name, torch.bfloat16))
    loss = rag.loss(questions, answers)
    assert {loss.nll_B.dtype, loss.prior_BK.dtype, loss.posterior_BK.dtype} == {torch.float32}
    loss.nll_B.sum().backward()
    assert all(gradient.isfinite().all() for gradient in gradients(rag.generator).values())
    assert max(gradient.abs().max() for gradient in gradients(rag.prior.encoder).values()) > 0
    expected = make_rag(variant, generator=load(name)).loss(questions, answers).nll_B
    torch.testing.assert_close(loss.nll_B, expected, atol=0.5, rtol=0.05)
    (prediction, *_) = rag.answer(questions, answers)
    assert prediction.reference_log_prob == pytest.approx(-loss.nll_B[0].item(), abs=0.3, rel=0.02)


def test_drift_is_the_squared_distance_from_where_the_start_encoder_puts_the_question(encoder, questions):
    vectors_BD = encoder.embed_questions(questions) + torch.tensor([[1.0], [0.0], [-2.0]])
    penalty_B = drift(vectors_BD, encoder, questions)
    torch.testing.assert_close(penalty_B, encoder.dimension * torch.tensor([1.0, 0.0, 4.0]), atol=1e-3, rtol=1e-4)
    (gradient_BD,) = torch.autograd.grad(penalty_B.sum(), vectors_BD)
    torch.testing.assert_close(gradient_BD[:, 0], torch.tensor([2.0, 0.0, -4.0]), atol=1e-4, rtol=1e-4)
