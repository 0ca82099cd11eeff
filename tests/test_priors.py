"""Where passages and p(z|x) come from: the dense prior, its baselines, and what a process builds them from."""

from __future__ import annotations

import pickle

import pytest
import torch

from ragray.index_shard import IndexShard, ShardSet, build_shard, shard_folder
from ragray.lexical import LexicalIndex
from ragray.priors import ClosedBook, DensePrior, GoldPrior, LexicalPrior, PriorSource, gold_passages
from ragray.rag import Rag
from ragray.records import InputError, Passage, Question

both_variants = pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
KINDS = ("dense", "bm25", "gold", "closed_book")


def ids(passages_BK):
    return [[passage.id for passage in row] for row in passages_BK]


@pytest.fixture
def asked(questions):
    """The questions as records, with the passage's title where the answer alone wouldn't tell."""
    answers, titles = (("Lima",), ("Oslo",), ("Mount Kenya",)), (None, "Norway", "Kenya")
    rows = enumerate(zip(questions, answers, titles, strict=True))
    return [Question(f"q{number}", text, answer, title) for number, (text, answer, title) in rows]


@pytest.fixture
def index(encoder, passages, passage_table, tmp_path):
    """The folder of an index in two shards."""
    vectors_ND = encoder.embed_passages(passages)
    for number, part in enumerate((slice(0, 4), slice(4, 6))):
        table = passage_table(passages[part])
        build_shard(shard_folder(tmp_path / "index", number), vectors_ND[part], table, "Flat")
    return tmp_path / "index"


@pytest.fixture
def shards(index):
    return ShardSet([IndexShard(folder, "v2") for folder in sorted(index.iterdir())])


@pytest.fixture
def priors(encoder, shard, passages, asked):
    gold = gold_passages(passages, asked)
    return {
        "dense": DensePrior(encoder, shard),
        "bm25": LexicalPrior(LexicalIndex.build(passages)),
        "gold": GoldPrior(gold),
        "closed_book": ClosedBook(),
    }


# dense


@torch.no_grad()
def test_the_dense_prior_is_a_softmax_over_the_nearest_passages(priors, encoder, passages, questions):
    evidence = priors["dense"](questions, 3)
    scores_BN = encoder.embed_questions(questions) @ torch.from_numpy(encoder.embed_passages(passages)).T
    best_BK, rows_BK = scores_BN.topk(3)
    assert ids(evidence.passages_BK) == [[passages[row].id for row in rows] for rows in rows_BK.tolist()]
    assert evidence.index_version == "v1"
    expected = (best_BK / encoder.preparation.temperature).softmax(-1)
    torch.testing.assert_close(evidence.log_prior_BK.exp(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(evidence.vectors_BD, encoder.embed_questions(questions))
    assert ids(priors["dense"].find(questions, 3)) == ids(evidence.passages_BK)


def test_the_dense_prior_is_of_the_vectors_of_now_and_not_of_the_retrievers_scores(encoder, shard, questions):
    """A retriever may round its scores; the gradient must start from exact ones."""

    class Rounding:
        def search(self, vectors_BD, k):
            hits = shard.search(vectors_BD, k)
            return type(hits)(hits.scores_BK * 0, hits.vectors_BKD, hits.passages_BK, hits.index_version)

    expected, actual = (DensePrior(encoder, retriever)(questions, 3) for retriever in (shard, Rounding()))
    torch.testing.assert_close(actual.log_prior_BK, expected.log_prior_BK)
    actual.log_prior_BK[:, 0].sum().backward()
    assert max(weight.grad.abs().max() for weight in encoder.parameters() if weight.grad is not None) > 1e-3


@torch.no_grad()
def test_fewer_passages_than_asked_for_are_all_of_them(priors, passages, questions):
    for kind in ("dense", "bm25"):
        evidence = priors[kind](questions, 50)
        assert evidence.log_prior_BK.shape == (3, len(passages))
        assert [sorted(row) for row in ids(evidence.passages_BK)] == [sorted(p.id for p in passages)] * 3


# baselines


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_bm25_scores_are_the_logits_of_the_lexical_prior(passages, questions, temperature):
    index = LexicalIndex.build(passages)
    evidence = LexicalPrior(index, temperature)(questions, 3)
    scores_BK, passages_BK = index.search(questions, 3)
    assert ids(evidence.passages_BK) == ids(passages_BK)
    torch.testing.assert_close(evidence.log_prior_BK.exp(), (torch.from_numpy(scores_BK) / temperature).softmax(-1))
    assert evidence.log_prior_BK.exp().amax() > 0.4
    assert evidence.vectors_BD is None
    assert ids(LexicalPrior(index).find(questions, 2)) == [row[:2] for row in ids(passages_BK)]


def test_the_gold_prior_is_sure_of_the_right_passage(priors, questions):
    evidence = priors["gold"](questions[::-1], 5)
    assert ids(evidence.passages_BK) == [["p5"], ["p0"], ["p2"]] == ids(priors["gold"].find(questions[::-1], 5))
    assert evidence.log_prior_BK.tolist() == [[0.0]] * 3


def test_gold_passages_without_questions_are_refused(shard, tmp_path):
    with pytest.raises(InputError, match="knows the passages of given questions alone"):
        PriorSource.of("gold", shard, tmp_path, [])


@pytest.mark.parametrize("method", ["__call__", "find"])
def test_a_question_without_a_known_gold_passage_is_refused(priors, questions, method):
    with pytest.raises(InputError, match=r"no gold passage is known for 2 of 3 questions, the first is 'Who\?'"):
        getattr(priors["gold"], method)(["Who?", questions[0], "Why?"], 1)


@both_variants
@torch.no_grad()
def test_closed_book_is_the_generator_alone(generator, questions, answers, variant):
    logprobs_B1T, _ = generator.target_logprobs(questions, None, answers)
    rag = Rag(ClosedBook(), generator, variant, 5)
    loss = rag.loss(questions, answers)
    assert loss.nll_B.tolist() == pytest.approx((-logprobs_B1T.sum((1, 2))).tolist(), abs=1e-4)
    assert loss.prior_BK.tolist() == [[1.0]] * 3
    references = [prediction.reference_log_prob for prediction in rag.answer(questions, answers)]
    assert references == pytest.approx(logprobs_B1T.sum((1, 2)).tolist(), abs=1e-4)
    assert rag.prior.find(questions, 5) == [[], [], []]


@both_variants
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_learns_and_answers_under_every_prior(priors, generator, encoder, questions, answers, variant, kind):
    rag = Rag(priors[kind], generator, variant, 2)
    loss = rag.loss(questions, answers)
    loss.nll_B.sum().backward()
    assert max(weight.grad.abs().max() for weight in generator.parameters()) > 1e-3
    assert any(weight.grad is not None for weight in encoder.parameters()) == (kind == "dense")
    assert (loss.vectors_BD is not None) == (kind == "dense")
    torch.testing.assert_close(loss.prior_BK.sum(1), torch.ones(3))
    predictions = rag.answer(questions, answers)
    references = [prediction.reference_log_prob for prediction in predictions]
    assert references == pytest.approx((-loss.nll_B).tolist(), abs=1e-3)
    shown = {"dense": 2, "bm25": 2, "gold": 1, "closed_book": 0}[kind]
    assert [len(prediction.answer.passages) for prediction in predictions] == [shown] * 3
    assert [classified.label in ("yes", "no") for classified in rag.classify(questions, ("yes", "no"))] == [True] * 3


# gold passages


def test_a_gold_passage_is_the_first_that_holds_an_answer_and_is_of_the_right_document():
    passages = [
        Passage("1", "Chile", "Not Lima but Santiago."),
        Passage("2", "Peru", "A country by the sea."),
        Passage("3", "Peru", "The capital is Lima."),
        Passage("4", "Peru", "Lima once more."),
    ]
    questions = [
        Question("a", "Capital of Peru?", ("Callao", "lima"), title="Peru"),
        Question("b", "Where is Lima?", ("Lima",)),
    ]
    gold = gold_passages(passages, questions)
    assert {question: passage.id for question, passage in gold.items()} == {
        "Capital of Peru?": "3",
        "Where is Lima?": "1",
    }


@pytest.mark.parametrize("title", [None, "Peru", "Nowhere"])
def test_a_question_that_no_passage_answers_is_refused_by_name(passages, title):
    answer = "Quito" if title != "Nowhere" else "Lima"
    with pytest.raises(InputError, match=r"question 'q7' has no gold passage.*train\.prior"):
        gold_passages(passages, [Question("q7", "Capital?", (answer,), title=title)])


# what a process builds


@pytest.mark.parametrize("kind", KINDS)
def test_a_prior_is_built_from_what_was_sent(index, shards, encoder, priors, asked, questions, kind, monkeypatch):
    monkeypatch.chdir(index.parent)  # a process of a cluster has a working directory of its own
    relative = index.relative_to(index.parent)
    source = PriorSource.of(kind, shards, relative, asked)
    assert source.kind == kind
    assert set(source.gold) == (set(questions) if kind == "gold" else set())
    sent = PriorSource(kind, shards, source.index_folder, pickle.loads(pickle.dumps(source.gold)))
    monkeypatch.chdir("/")
    prior, expected = sent.build(encoder), priors[kind]
    assert type(prior) is type(expected)
    evidence, expected_evidence = prior(questions, 3), expected(questions, 3)
    torch.testing.assert_close(evidence.log_prior_BK, expected_evidence.log_prior_BK, atol=1e-5, rtol=1e-4)
    assert evidence.passages_BK == expected_evidence.passages_BK
    assert prior.find(questions, 3) == expected.find(questions, 3)


def test_gold_passages_that_are_not_there_are_missed_at_once_and_only_if_wanted(index, shards):
    hopeless = [Question("q9", "Who?", ("nobody at all",))]
    with pytest.raises(InputError, match="question 'q9' has no gold passage"):
        PriorSource.of("gold", shards, index, hopeless)
    assert PriorSource.of("dense", shards, index, hopeless).gold == {}
