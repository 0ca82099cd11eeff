from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragray.config import GeneratorConfig
from ragray.generator import Generator
from ragray.records import InputError, Passage


def load(folder, **options):
    return Generator.load(folder, GeneratorConfig(model="tiny", **options))


@pytest.fixture
def passages_BK(passages):
    """Three questions with two passages each; one passage is shared by all, one is far shorter than the others."""
    return [[passages[0], passages[2]], [passages[4], passages[0]], [passages[5], passages[0]]]


def prompt(generator, question, passage):
    return generator.tokenize_passages([passage])[0] + generator.tokenize_questions([question])[0]


# scoring answers


@torch.no_grad()
def test_target_logprobs_are_those_of_each_row_alone(generator, plain_logprobs, questions, passages_BK, answers):
    logprobs_BKT, mask_BT = generator.target_logprobs(questions, passages_BK, answers)
    targets_B = generator.tokenize_answers(answers)
    assert mask_BT.sum(1).tolist() == [len(target) for target in targets_B]
    for b, target in enumerate(targets_B):
        for k, passage in enumerate(passages_BK[b]):
            expected = plain_logprobs(generator, prompt(generator, questions[b], passage), target)
            torch.testing.assert_close(logprobs_BKT[b, k, : len(target)], expected, atol=1e-5, rtol=0)
            assert (logprobs_BKT[b, k, len(target) :] == 0).all()


@torch.no_grad()
def test_neither_batch_order_nor_token_budget_changes_a_score(generator, questions, passages_BK, answers):
    expected = generator.target_logprobs(questions, passages_BK, answers).token_logprobs_BKT
    for budget in (1, 150, 100_000):
        scores = generator.target_logprobs(questions, passages_BK, answers, tokens_per_batch=budget)
        torch.testing.assert_close(scores.token_logprobs_BKT, expected, atol=1e-5, rtol=0)
    flipped = generator.target_logprobs(questions[::-1], passages_BK[::-1], answers[::-1]).token_logprobs_BKT
    torch.testing.assert_close(flipped.flip(0), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_closed_book_is_one_row_a_question(generator, plain_logprobs, questions, answers):
    logprobs_B1T, _ = generator.target_logprobs(questions, None, answers)
    prefill = generator.prefill(questions, None)
    targets_B = generator.tokenize_answers(answers)
    torch.testing.assert_close(generator.score(prefill, targets_B), logprobs_B1T[:, 0], atol=1e-5, rtol=0)
    for b, target in enumerate(targets_B):
        expected = plain_logprobs(generator, generator.tokenize_questions([questions[b]])[0], target)
        torch.testing.assert_close(logprobs_B1T[b, 0, : len(target)], expected, atol=1e-5, rtol=0)


# prefill, score and step


@pytest.mark.parametrize("budget", [1, 4096])
@torch.no_grad()
def test_score_from_the_prefill_equals_target_logprobs_as_often_as_asked(
    generator, questions, passages_BK, answers, budget
):
    expected = generator.target_logprobs(questions, passages_BK, answers).token_logprobs_BKT.flatten(0, 1)
    prefill = generator.prefill(questions, passages_BK, tokens_per_batch=budget)
    targets_R = [target for target in generator.tokenize_answers(answers) for _ in range(2)]
    for _ in range(2):
        torch.testing.assert_close(generator.score(prefill, targets_R), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_shared_passage_prefix_equals_reading_every_prompt_apart(generator, questions, passages_BK):
    prefill = generator.prefill(questions, passages_BK)
    prompts = [prompt(generator, q, passage) for q, row in zip(questions, passages_BK, strict=True) for passage in row]
    expected = torch.stack([generator.model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in prompts])
    torch.testing.assert_close(prefill.logits_RV, expected, atol=1e-4, rtol=1e-4)
    assert prefill.length_R.tolist() == [len(ids) for ids in prompts]


def test_every_distinct_passage_is_read_once(generator, questions, passages_BK):
    tokens = []
    embeddings = generator.model.get_input_embeddings()
    embeddings.register_forward_pre_hook(lambda _, arguments: tokens.append(arguments[0].numel()))
    generator.prefill(questions, passages_BK, tokens_per_batch=1)
    distinct = generator.tokenize_passages({passage for row in passages_BK for passage in row})
    suffixes = generator.tokenize_questions(questions)
    assert sum(tokens) == sum(map(len, distinct)) + 6 * max(map(len, suffixes))


@torch.no_grad()
def test_steps_equal_reading_the_longer_row_again(generator, questions, passages_BK):
    prefill = generator.prefill(questions, passages_BK)
    rows = [prompt(generator, q, passage) for q, row in zip(questions, passages_BK, strict=True) for passage in row]
    for tokens in ([5, 6, 7, 8, 9, 10], [20, 21, 22, 23, 24, 25]):
        generator.step(prefill, torch.tensor(tokens))
        rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]
    expected = torch.stack([generator.model(input_ids=torch.tensor([row])).logits[0, -1] for row in rows])
    torch.testing.assert_close(prefill.logits_RV, expected, atol=1e-4, rtol=1e-4)


# what survives truncation

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80) | st.text("aé漢🎈 ", max_size=80)


@torch.no_grad()
def test_no_passage_however_long_pushes_the_question_out(generator, questions):
    long = Passage("1", "Peru", "The capital is Lima. " * 300)
    cut = generator.tokenize_passages([long])[0]
    assert len(cut) == generator.config.max_passage_tokens
    for question in questions:
        (suffix,) = generator.tokenize_questions([question])
        assert generator.tokenizer.decode(suffix) == f"Question: {question}\nAnswer:"
        expected = generator.model(input_ids=torch.tensor([cut + suffix])).logits[0, -1]
        actual = generator.prefill([question], [[long]]).logits_RV[0]
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=texts, repeat=st.integers(1, 30))
def test_a_long_question_is_cut_but_keeps_its_start_and_the_cue_to_answer(generator, question, repeat):
    question = "Where" + question * repeat
    (row,) = generator.tokenize_questions([question])
    text = generator.tokenizer.decode(row)
    assert text.startswith("Question: Where")
    assert text.endswith("\nAnswer:")
    assert len(row) <= generator.config.max_question_tokens


def test_cut_passages_are_counted(generator_folder, passages):
    generator = load(generator_folder, max_passage_tokens=20)
    rows = generator.tokenize_passages(passages)
    assert generator.truncated_passages == sum(len(row) == 20 for row in rows) > 0


def test_answers_end_with_the_end_token_unless_they_are_cut(generator_folder):
    generator = load(generator_folder, max_answer_tokens=4)
    short, long = generator.tokenize_answers(["a", "a b c d e f g"])
    assert short[-1] == generator.end_id
    assert len(long) == 4
    assert generator.end_id not in long


def test_an_answer_is_read_back_up_to_its_first_line(generator):
    (ids,) = generator.tokenize_answers(["é sol"])
    assert generator.decode(ids) == "é sol"
    (ids,) = generator.tokenize_answers(["\n Lima \nOslo"])
    assert generator.decode(ids) == "Lima"
    assert generator.decode([generator.end_id]) == ""


# what is trained


def loss(generator, questions, passages_BK, answers):
    return -generator.target_logprobs(questions, passages_BK, answers).token_logprobs_BKT.sum()


def test_only_the_last_layers_get_a_gradient(generator, questions, passages_BK, answers):
    trained = generator.train_last_layers(1, rate=1e-4)
    loss(generator, questions, passages_BK, answers).backward()
    with_gradient = {name for name, weight in generator.named_parameters() if weight.grad is not None}
    assert {name for name in with_gradient if "layers.2." not in name} == set()
    assert len(with_gradient) == len(trained) > 0
    assert all(weight.grad.abs().sum() > 0 for weight in trained)


def test_frozen_layers_keep_no_activations(generator, questions, passages_BK, answers):
    generator.train_last_layers(1, rate=1e-4)
    where, kept = ["before"], set()
    for number, layer in enumerate(generator.model.model.layers):
        layer.register_forward_pre_hook(lambda *_, number=number: where.__setitem__(0, f"layer {number}"))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.add(where[0]) or tensor, lambda tensor: tensor):
        loss(generator, questions, passages_BK, answers)
    assert kept == {"layer 2"}


def test_rate_zero_freezes_and_no_number_of_layers_trains_everything(generator):
    assert generator.train_last_layers(None, rate=0) == []
    assert generator.train_last_layers(1, rate=0) == []
    assert len(generator.train_last_layers(None, rate=1e-4)) == len(list(generator.parameters()))


def test_more_layers_than_there_are_is_refused(generator):
    with pytest.raises(InputError, match="generator_layers is 4, but the generator has 3 layers"):
        generator.train_last_layers(4, rate=1e-4)


def test_trained_weights_are_float32_in_a_bfloat16_model(generator_folder, questions, passages_BK, answers):
    generator = Generator.load(generator_folder, GeneratorConfig(model="tiny"), dtype=torch.bfloat16)
    trained = generator.train_last_layers(1, rate=1e-4)
    assert {weight.dtype for weight in trained} == {torch.float32}
    assert generator.model.get_input_embeddings().weight.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss(generator, questions, passages_BK, answers).backward()
    assert all(weight.grad.dtype == torch.float32 for weight in trained)


# folders


@torch.no_grad()
def test_the_prompt_is_saved_with_the_model_and_wins_over_other_settings(
    generator_folder, tmp_path, questions, passages_BK, answers
):
    generator = load(generator_folder, question_template="Q: {question} A:", max_passage_tokens=30)
    generator.save(tmp_path)
    again = load(tmp_path, max_passage_tokens=99)
    assert again.config == generator.config
    torch.testing.assert_close(
        again.target_logprobs(questions, passages_BK, answers),
        generator.target_logprobs(questions, passages_BK, answers),
    )


def test_a_folder_without_a_model_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=f"no decoder-only generator at {tmp_path}"):
        load(tmp_path)
