"""What the RAG model answers over tiny random models, and its labels."""

from __future__ import annotations

import json

import pytest
import torch

from ragray.config import DecodingConfig, GeneratorConfig
from ragray.formulas import marginal
from ragray.generators.loading import load_generator
from ragray.priors import ClosedBook
from ragray.rag import Rag
from ragray.records import InputError

both_variants = pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])


def of_one(scores_KT):
    """(token_logprobs_BKT, mask_BT) of one answer."""
    return scores_KT.unsqueeze(0), torch.ones(1, scores_KT.shape[1], dtype=torch.bool)


# two variants of one model


@torch.no_grad()
def test_the_variant_is_a_setting_and_no_part_of_the_weights(make_rag, generator, questions, answers, tmp_path):
    generator.save(tmp_path / "saved")
    again = load_generator(tmp_path / "saved", GeneratorConfig(model="other"))
    losses = {}
    for variant in ("rag_token", "rag_sequence"):
        losses[variant] = make_rag(variant).loss(questions, answers).nll_B
        torch.testing.assert_close(make_rag(variant, generator=again).loss(questions, answers).nll_B, losses[variant])
    assert not torch.allclose(losses["rag_token"], losses["rag_sequence"])
    torch.testing.assert_close(again.state_dict(), generator.state_dict(), atol=0, rtol=0)


@torch.no_grad()
def test_the_variants_agree_on_one_passage_and_on_one_token(make_rag, load, questions, answers):
    one_token = load("generator", max_answer_tokens=1, end_answers=False)
    for options in ({"k": 1}, {"k": 3, "generator": one_token}):
        by_token, by_sequence = (make_rag(variant, **options) for variant in ("rag_token", "rag_sequence"))
        torch.testing.assert_close(
            by_token.loss(questions, answers).nll_B, by_sequence.loss(questions, answers).nll_B, atol=1e-4, rtol=1e-5
        )
    for one, other in zip(*(make_rag(v, k=1).answer(questions) for v in ("rag_token", "rag_sequence")), strict=True):
        assert one.answer.token_ids == other.answer.token_ids
        assert one.answer.log_prob == pytest.approx(other.answer.log_prob, abs=1e-4)


# answers


@both_variants
@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3, "num_return_sequences": 3}, {"sequence_scoring": "fast", "num_return_sequences": 1}],
    ids=["greedy", "beams", "fast"],
)
def test_answers_come_with_their_evidence(make_rag, questions, variant, options):
    rag = make_rag(variant, decoding=DecodingConfig(**options))
    evidence = rag.prior(questions, 3)
    rows = rag.generator.prompt.rows(questions, evidence.passages_BK)
    for b, prediction in enumerate(rag.answer(questions)):
        assert prediction.reference_log_prob is None
        assert prediction.answer is prediction.answers[0]
        assert len(prediction.answers) == options.get("num_return_sequences", 1)
        for answer in prediction.answers:
            assert (answer.question, answer.index_version) == (questions[b], "v1")
            assert answer.passages == tuple(evidence.passages_BK[b])
            assert answer.prior == pytest.approx(evidence.log_prior_BK[b].exp().tolist(), abs=1e-5)
            assert sum(answer.prior) == pytest.approx(1)
            assert sum(answer.posterior) == pytest.approx(1)
            assert answer.text == rag.generator.prompt.text(answer.token_ids)
            for row, of_passage in zip(rows[3 * b : 3 * b + 3], answer.log_likelihoods, strict=True):
                found = of_passage > -torch.inf or options.get("sequence_scoring") != "fast"
                assert not found or of_passage == pytest.approx(plain(rag, row, answer.token_ids), abs=1e-3)
            json.dumps(answer.as_dict(), allow_nan=False)
            if variant == "rag_sequence":
                assert answer.token_posteriors is None
                joint_K = torch.tensor(answer.log_likelihoods) + evidence.log_prior_BK[b]
                assert answer.log_prob == pytest.approx(joint_K.logsumexp(0).item(), abs=1e-4)
                assert answer.posterior == pytest.approx(joint_K.softmax(0).tolist(), abs=1e-4)
            else:
                posterior_KT = torch.tensor(answer.token_posteriors)
                assert posterior_KT.shape == (3, len(answer.token_ids))
                assert posterior_KT.sum(0).tolist() == pytest.approx([1] * len(answer.token_ids))
                assert posterior_KT.mean(1).tolist() == pytest.approx(answer.posterior, abs=1e-5)


@torch.no_grad()
def plain(rag, row, tokens):
    """log p(y|x,z), the row read alone."""
    logits_LV = rag.generator.model(input_ids=torch.tensor([[*row.passage, *row.question, *tokens]])).logits[0]
    logprobs_TV = logits_LV[-len(tokens) - 1 : -1].log_softmax(-1)
    return logprobs_TV[torch.arange(len(tokens)), torch.tensor(tokens)].sum().item()


def test_fast_decoding_that_finds_an_answer_from_one_passage_can_be_written_down(make_rag, questions):
    rag = make_rag("rag_sequence", decoding=DecodingConfig(sequence_scoring="fast"))
    found = [prediction.answer for prediction in rag.answer(questions)]
    assert any(-torch.inf in answer.log_likelihoods for answer in found), "else this test says nothing"
    for answer in found:
        json.dumps(answer.as_dict(), allow_nan=False)
        for of_passage, posterior in zip(answer.log_likelihoods, answer.posterior, strict=True):
            assert (of_passage == -torch.inf) == (posterior == 0)


@both_variants
def test_without_passages_an_answer_has_no_evidence(generator, questions, answers, variant):
    for prediction in Rag(ClosedBook(), generator, variant, 3).answer(questions, answers):
        answer = prediction.answer
        assert (answer.passages, answer.prior, answer.posterior, answer.log_likelihoods) == ((), (), (), ())
        assert answer.token_posteriors is None
        assert json.loads(json.dumps(answer.as_dict(), allow_nan=False))["passages"] == []


@both_variants
@pytest.mark.parametrize("num_beams", [1, 3])
def test_thorough_decoding_says_of_every_answer_what_the_loss_says_of_its_text(
    make_rag, load, questions, num_beams, variant
):
    """Of those whose text is tokenised as the tokens that were found, which random bytes often aren't."""
    generator = load("generator", max_answer_tokens=8, answer_template="{answer}")
    decoding = DecodingConfig(num_beams=num_beams, num_return_sequences=3 if num_beams > 1 else 1)
    letters = [generator.prompt.end_id, *(generator.prompt.tokenizer.convert_tokens_to_ids(list("qwxzv")))]
    rag = make_rag(variant, generator=generator, decoding=decoding)
    checked = 0
    for b, prediction in enumerate(rag.answer(questions, allowed=lambda question, tokens: letters)):
        for answer in prediction.answers:
            if generator.prompt.targets([answer.text]) == [answer.token_ids]:
                checked += 1
                loss = rag.loss([questions[b]], [answer.text]).nll_B.item()
                assert answer.log_prob == pytest.approx(-loss, abs=1e-3)
    assert checked


@both_variants
@pytest.mark.parametrize("name", ["generator", "bart", "t5"])
def test_a_reference_scores_what_the_loss_says(make_rag, load, questions, answers, variant, name):
    rag = make_rag(variant, generator=load(name))
    scored = [prediction.reference_log_prob for prediction in rag.answer(questions, answers)]
    assert scored == pytest.approx((-rag.loss(questions, answers).nll_B).tolist(), abs=1e-3, rel=1e-5)


@both_variants
def test_one_retrieval_and_one_reading_serve_answers_and_references(
    make_rag, generator, questions, answers, variant, monkeypatch
):
    calls, rag = [], make_rag(variant, decoding=DecodingConfig(num_beams=2))
    for thing, name in ((generator, "prefill"), (generator, "_read"), (rag.prior.retriever, "search")):
        method = getattr(thing, name)
        monkeypatch.setattr(thing, name, lambda *given, name=name, method=method: calls.append(name) or method(*given))
    rag.answer(questions, answers)
    assert sorted(calls) == ["_read", "prefill", "search"]


@both_variants
def test_allowed_tokens_are_asked_for_by_the_position_of_the_question(make_rag, questions, variant):
    rag = make_rag(variant, decoding=DecodingConfig(max_new_tokens=3, num_beams=2))
    predictions = rag.answer(questions, allowed=lambda question, tokens: [10 + question])
    assert [prediction.answer.token_ids for prediction in predictions] == [(10,) * 3, (11,) * 3, (12,) * 3]


@both_variants
def test_training_teaches_answers_whose_log_probability_is_minus_their_loss(
    make_rag, encoder, load, questions, answers, variant
):
    rag = make_rag(variant, generator=load("generator"))
    weights = [*encoder.trainable(1.0), *rag.generator.parameters()]
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
    rag = make_rag(variant, decoding=DecodingConfig(num_beams=2))
    together = rag.answer(questions, answers)
    for b, expected in enumerate(together):
        (alone,) = rag.answer(questions[b : b + 1], answers[b : b + 1])
        assert alone.answer.token_ids == expected.answer.token_ids
        assert alone.answer.log_prob == pytest.approx(expected.answer.log_prob, abs=1e-4)
        assert alone.reference_log_prob == pytest.approx(expected.reference_log_prob, abs=1e-4)


# labels


@both_variants
@torch.no_grad()
def test_labels_are_as_likely_as_their_texts_as_answers(make_rag, questions, variant):
    """Up to what they begin with together and the end token, which are given."""
    labels = ("Lima", "Oslo or so", "Suva")
    rag = make_rag(variant)
    targets = [target[:-1] for target in rag.generator.prompt.targets(labels)]
    given = next(at for at, tokens in enumerate(zip(*targets, strict=False)) if len(set(tokens)) > 1)
    evidence = rag.prior(questions, 3)
    for b, classified in enumerate(rag.classify(questions, labels)):
        log_prior_1K, likelihoods, scores = evidence.log_prior_BK[b : b + 1], [], []
        for label, target in zip(labels, targets, strict=True):
            (scores_KT,) = rag.generator.target_logprobs(
                [questions[b]], [evidence.passages_BK[b]], [label]
            ).token_logprobs_BKT
            scores.append(of_one(scores_KT[:, given : len(target)]))
            likelihoods.append(marginal.log_likelihood(variant, log_prior_1K, *scores[-1]))
        expected = torch.cat(likelihoods).softmax(0)
        assert classified.labels == labels
        assert sum(classified.probabilities) == pytest.approx(1)
        assert classified.probabilities == pytest.approx(expected.tolist(), abs=1e-4)
        best = int(expected.argmax())
        assert classified.label == labels[best]
        posterior_K = marginal.posterior(variant, log_prior_1K, *scores[best])[0]
        assert classified.posterior == pytest.approx(posterior_K.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["generator", "bart"])
def test_for_labels_of_one_token_the_variants_are_one(make_rag, load, questions, name):
    """With BART a label begins with ``<s>``, which is no part of the choice."""
    labels = ("s", "r", "n")
    generator = load(name, answer_template="{answer}")
    special = 3 if name == "bart" else 2
    assert [len(target) for target in generator.prompt.targets(labels)] == [special] * 3
    by_token, by_sequence = (
        make_rag(variant, generator=generator).classify(questions, labels) for variant in ("rag_token", "rag_sequence")
    )
    for one, other in zip(by_token, by_sequence, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert one.posterior == pytest.approx(other.posterior, abs=1e-5)
    assert len({classified.probabilities for classified in by_token}) == 3


@pytest.mark.parametrize("end_answers", [True, False])
def test_the_end_token_is_no_part_of_a_label(make_rag, load, questions, end_answers):
    expected = make_rag("rag_token").classify(questions, ("Lima", "Suva"))
    generator = load("generator", max_answer_tokens=8, end_answers=end_answers)
    for one, other in zip(
        make_rag("rag_token", generator=generator).classify(questions, ("Lima", "Suva")), expected, strict=True
    ):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


@pytest.mark.parametrize("labels", [(), ("yes",), ("yes", "yes")], ids=str)
def test_fewer_than_two_labels_are_refused(make_rag, questions, labels):
    with pytest.raises(InputError, match="at least two labels, all different"):
        make_rag("rag_token").classify(questions, labels)


def test_a_label_that_begins_another_is_refused(make_rag, questions):
    with pytest.raises(InputError, match=r"label 'true or false' begins with the tokens of 'true': choose other words"):
        make_rag("rag_token").classify(questions, ("true or false", "no", "true"))
