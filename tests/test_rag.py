from __future__ import annotations

import pytest
import torch

from ragray.formulas import marginal
from ragray.index_shard import IndexShard, build_shard
from ragray.rag import Rag, answer_closed_book
from ragray.records import Passage

both_variants = pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])


@pytest.fixture
def make_rag(encoder, shard, generator):
    return lambda variant, k=3, retriever=shard: Rag(encoder, retriever, generator, variant, k)


def encoder_gradients(rag):
    return {name: weight.grad.clone() for name, weight in rag.encoder.named_parameters() if weight.grad is not None}


# retrieval and prior


@torch.no_grad()
def test_the_prior_is_a_softmax_over_the_nearest_passages(make_rag, encoder, passages, questions):
    log_prior_BK, hits = make_rag("rag_token").retrieve(questions)
    scores_BN = encoder.embed_questions(questions) @ torch.from_numpy(encoder.embed_passages(passages)).T
    best_BK, rows_BK = scores_BN.topk(3)
    assert hits.ids_BK == [[passages[row].id for row in rows] for rows in rows_BK.tolist()]
    expected = (best_BK / encoder.preparation.temperature).softmax(-1)
    torch.testing.assert_close(log_prior_BK.exp(), expected, atol=1e-5, rtol=1e-4)


def test_fewer_passages_than_asked_for_are_all_of_them(make_rag, passages, questions):
    log_prior_BK, hits = make_rag("rag_token", k=50).retrieve(questions)
    assert log_prior_BK.shape == (3, len(passages))
    assert [sorted(ids) for ids in hits.ids_BK] == [sorted(passage.id for passage in passages)] * 3


# loss


@both_variants
@torch.no_grad()
def test_the_loss_is_the_marginal_of_prior_and_generator(make_rag, generator, questions, answers, variant):
    rag = make_rag(variant)
    loss = rag.loss(questions, answers)
    log_prior_BK, hits = rag.retrieve(questions)
    scores = generator.target_logprobs(questions, hits.passages_BK, answers)
    torch.testing.assert_close(loss.nll_B, -marginal.log_likelihood(variant, log_prior_BK, *scores))
    for distribution_BK in (loss.prior_BK, loss.posterior_BK):
        torch.testing.assert_close(distribution_BK.sum(-1), torch.ones(3))


@both_variants
def test_the_question_encoder_learns_through_the_prior_alone(make_rag, generator, encoder, questions, answers, variant):
    """d(-log p(y|x))/dq(x) = sum_K (prior - posterior) d(z) / temperature; for RAG-Token, summed over the tokens."""
    rag = make_rag(variant)
    rag.loss(questions, answers).nll_B.sum().backward()
    actual = encoder_gradients(rag)
    encoder.zero_grad()

    with torch.no_grad():
        log_prior_BK, hits = rag.retrieve(questions)
        logprobs_BKT, mask_BT = generator.target_logprobs(questions, hits.passages_BK, answers)
        prior_BK = log_prior_BK.exp()
        if variant == "rag_sequence":
            push_BK = prior_BK - marginal.posterior(variant, log_prior_BK, logprobs_BKT, mask_BT)
        else:
            push_BKT = prior_BK.unsqueeze(-1) - marginal.token_posterior(log_prior_BK, logprobs_BKT)
            push_BK = (push_BKT * mask_BT.unsqueeze(1)).sum(-1)
        vectors_BKD = torch.from_numpy(hits.vectors_BKD)
        gradient_BD = (push_BK.unsqueeze(-1) * vectors_BKD).sum(1) / encoder.preparation.temperature
    encoder.embed_questions(questions).backward(gradient_BD)
    expected = encoder_gradients(rag)

    assert actual.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in actual.values()) > 1e-2
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-4, rtol=1e-3, msg=name)


@both_variants
def test_the_question_encoders_gradient_is_that_of_finite_differences(make_rag, encoder, questions, answers, variant):
    rag = make_rag(variant, k=6)  # all passages: a small step can't change which are found
    weight = encoder.model.encoder.layer[1].output.dense.weight
    rag.loss(questions, answers).nll_B.sum().backward()
    direction, step = weight.grad / weight.grad.norm(), 1e-2
    values = []
    with torch.no_grad():
        for side in (1, -1):
            weight += side * step * direction
            values.append(rag.loss(questions, answers).nll_B.double().sum().item())
            weight -= side * step * direction
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(weight.grad.norm().item(), rel=0.02)


@both_variants
def test_one_passage_teaches_the_question_encoder_nothing(make_rag, questions, answers, variant):
    rag = make_rag(variant, k=1)
    rag.loss(questions, answers).nll_B.sum().backward()
    assert all(gradient.abs().max() < 1e-6 for gradient in encoder_gradients(rag).values())
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
    assert all(gradient.abs().max() < 1e-4 for gradient in encoder_gradients(rag).values())


# answers


@both_variants
def test_answers_cite_their_passages_with_prior_and_posterior(make_rag, questions, variant):
    rag = make_rag(variant)
    log_prior_BK, hits = rag.retrieve(questions)
    for b, prediction in enumerate(rag.answer(questions)):
        answer = prediction.answer
        assert prediction.reference_log_prob is None
        assert (answer.question, answer.index_version) == (questions[b], "v1")
        assert [passage.id for passage in answer.passages] == hits.ids_BK[b]
        assert answer.prior == pytest.approx(log_prior_BK[b].exp().tolist(), abs=1e-5)
        assert sum(answer.posterior) == pytest.approx(1)


@both_variants
def test_a_reference_scores_what_the_loss_says(make_rag, questions, answers, variant):
    rag = make_rag(variant)
    scored = [prediction.reference_log_prob for prediction in rag.answer(questions, answers)]
    assert scored == pytest.approx((-rag.loss(questions, answers).nll_B).tolist(), abs=1e-4)


@both_variants
def test_training_teaches_answers_whose_log_probability_is_minus_their_loss(make_rag, questions, answers, variant):
    rag = make_rag(variant)
    rag.generator.config = rag.generator.config.model_copy(update={"max_answer_tokens": 24})  # room for all answers
    weights = [*rag.encoder.parameters(), *rag.generator.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        rag.loss(questions, answers).nll_B.mean().backward()
        optimizer.step()
    predictions = rag.answer(questions, answers)
    assert [prediction.answer.text for prediction in predictions] == list(answers)
    loss = rag.loss(questions, answers)
    for b, prediction in enumerate(predictions):
        assert prediction.answer.log_prob == pytest.approx(-loss.nll_B[b].item(), abs=1e-4)
        assert prediction.answer.posterior == pytest.approx(loss.posterior_BK[b].tolist(), abs=1e-4)


@both_variants
def test_an_answer_does_not_depend_on_the_other_questions(make_rag, questions, answers, variant):
    rag = make_rag(variant)
    together = rag.answer(questions, answers)
    for b, expected in enumerate(together):
        (alone,) = rag.answer(questions[b : b + 1], answers[b : b + 1])
        assert alone.answer.text == expected.answer.text
        assert alone.answer.log_prob == pytest.approx(expected.answer.log_prob, abs=1e-4)
        assert alone.reference_log_prob == pytest.approx(expected.reference_log_prob, abs=1e-4)


@torch.no_grad()
def test_closed_book_is_the_generator_alone(generator, questions, answers):
    logprobs_B1T, _ = generator.target_logprobs(questions, None, answers)
    results = answer_closed_book(generator, questions, answers)
    assert [log_prob for _, log_prob in results] == pytest.approx(logprobs_B1T.sum((1, 2)).tolist(), abs=1e-4)
