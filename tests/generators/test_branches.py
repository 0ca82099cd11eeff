"""Growing answers from prompts equals reading whole rows again, for every architecture."""

from __future__ import annotations

import pytest
import torch

from ragray.records import InputError


def grow(generator, root, steps):
    """Extend by (parents, tokens) a step; returns what each step gave."""
    branches, given = root, []
    for parents, tokens in steps:
        branches, logits = generator.extend(branches, torch.tensor(parents), torch.tensor(tokens))
        given.append((branches, logits))
    return given


def histories(steps):
    """(prompt, all tokens so far) of every branch after each step."""
    now = [(row, ()) for row in range(9)]
    found = []
    for parents, tokens in steps:
        now = [(now[parent][0], (*now[parent][1], *ids)) for parent, ids in zip(parents, tokens, strict=True)]
        found.append(now)
    return found


# Nine prompts at first; branches in any order, several of a prompt, none of some, one or more tokens at once.
STEPS = [
    ([8, 2, 0, 2, 5, 1], [[30], [31], [32], [33], [34], [35]]),
    (
        [3, 3, 0, 5, 1, 0, 3],
        [[40, 50, 60], [41, 51, 61], [42, 52, 62], [43, 53, 63], [44, 54, 64], [45, 55, 65], [1, 2, 3]],
    ),
    ([6, 0, 2], [[70, 80], [71, 81], [72, 82]]),
    ([2, 1, 0, 2], [[90], [91], [92], [93]]),
]


@pytest.mark.parametrize("budget", [1, 4096])
def test_growing_answers_equals_reading_each_whole_row_again(exact, plain_logits, questions, passages_BK, budget):
    rows = exact.prompt.rows(questions, passages_BK)
    prefill = exact.prefill(questions, passages_BK, tokens_per_batch=budget)
    check_growth(exact, plain_logits, rows, prefill, tolerance=1e-9)


def test_growing_answers_in_float32_is_near_reading_each_whole_row_again(
    generator, plain_logits, questions, passages_BK
):
    rows = generator.prompt.rows(questions, passages_BK)
    check_growth(generator, plain_logits, rows, generator.prefill(questions, passages_BK), tolerance=1e-4)


@torch.no_grad()
def check_growth(generator, plain_logits, rows, prefill, tolerance):
    assert len(prefill) == len(rows)
    for row, logits_V in zip(rows, prefill.logits_RV, strict=True):
        assert_near(logits_V, plain_logits(generator, row, [])[-1], tolerance)
    for (branches, logits_NTV), expected_N, (_, tokens_NT) in zip(
        grow(generator, prefill.root, STEPS), histories(STEPS), STEPS, strict=True
    ):
        assert len(branches) == len(expected_N)
        for logits_TV, (row, tokens) in zip(logits_NTV, expected_N, strict=True):
            expected_TV = plain_logits(generator, rows[row], tokens)[-len(tokens_NT[0]) :]
            assert_near(logits_TV, expected_TV, tolerance)


def assert_near(actual, expected, tolerance):
    """To a part of the largest number: rounding errors are of its size."""
    torch.testing.assert_close(actual, expected, atol=tolerance * max(1.0, float(expected.abs().max())), rtol=0)


def test_branches_stay_as_they_are_when_they_are_extended(exact, questions, passages_BK):
    prefill = exact.prefill(questions, passages_BK)
    (first, _), (second, again) = grow(exact, prefill.root, STEPS[:2])
    before = [(layer.keys.clone(), layer.values.clone()) for layer in first.layers]
    _, others = exact.extend(first, torch.tensor([1, 4]), torch.tensor([[9, 8, 7, 6], [5, 4, 3, 2]]))
    _, repeated = exact.extend(first, torch.tensor(STEPS[1][0]), torch.tensor(STEPS[1][1]))
    assert others.shape[:2] == (2, 4)
    torch.testing.assert_close(repeated, again, atol=1e-12, rtol=0)
    for (keys, values), layer in zip(before, first.layers, strict=True):
        assert torch.equal(keys, layer.keys)
        assert torch.equal(values, layer.values)
    assert second.num_tokens - first.num_tokens == 3
    (_, from_root), *_ = grow(exact, prefill.root, STEPS[:1])
    torch.testing.assert_close(from_root, grow(exact, prefill.root, STEPS[:1])[0][1], atol=1e-12, rtol=0)


def test_a_short_prompt_beside_a_long_one_is_read_as_if_alone(exact, passages):
    questions = ["Oslo?", "Which mountain is the highest point of Kenya, please?"]
    together = exact.prefill(questions, [[passages[4]], [passages[0]]])
    alone = exact.prefill(questions[:1], [[passages[4]]])
    torch.testing.assert_close(together.logits_RV[0], alone.logits_RV[0], atol=1e-9, rtol=0)
    tokens = torch.tensor([[20, 21, 22]])
    _, in_company = exact.extend(together.root, torch.tensor([1, 0]), tokens.expand(2, -1))
    _, by_itself = exact.extend(alone.root, torch.tensor([0]), tokens)
    torch.testing.assert_close(in_company[1], by_itself[0], atol=1e-9, rtol=0)


# the model's own attention


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_the_attention_asked_for_is_used_and_changes_no_score(
    load, kind, float64_throughout, questions, passages_BK, answers, attention
):
    if (kind, attention) == ("gemma2", "sdpa"):
        pytest.skip("transformers has no sdpa for soft caps")
    generator = load(kind, torch.float64, attention=attention)
    assert flags(generator) == {attention}
    expected = load(kind, torch.float64).target_logprobs(questions, passages_BK, answers).token_logprobs_BKT
    scores = generator.target_logprobs(questions, passages_BK, answers).token_logprobs_BKT
    torch.testing.assert_close(scores, expected, atol=1e-9, rtol=0)
    prefill = generator.prefill(questions, passages_BK)
    generator.extend(prefill.root, torch.tensor([0, 3]), torch.tensor([[5], [6]]))
    assert flags(generator) == {attention}


def test_the_attention_is_the_models_own_again_after_a_failure(generator, questions, passages_BK):
    before = flags(generator)
    prefill = generator.prefill(questions, passages_BK)
    seen = []

    def fail(*_):
        seen.append(flags(generator))
        raise RuntimeError("in the middle")

    hook = generator._layer_stack()[-1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        generator.extend(prefill.root, torch.tensor([0]), torch.tensor([[5]]))
    hook.remove()
    assert flags(generator) == before
    assert seen == [{"ragray_branches"}]


def flags(generator):
    """The attention of all the model's parts."""
    return {module.config._attn_implementation for module in generator.model.modules() if hasattr(module, "config")}


# sliding windows


@pytest.fixture
def windowed(load, mistral_folder, float64_throughout):
    """Its window is 48 tokens."""
    return lambda **settings: load(mistral_folder, torch.float64, **settings)


@torch.no_grad()
def test_inside_its_sliding_window_a_model_is_exact(windowed, plain_logits, questions, passages_BK, answers):
    generator = windowed(max_passage_tokens=12)
    rows = generator.prompt.rows(questions, passages_BK)
    assert max(len(row.passage) for row in rows) + max(len(row.question) for row in rows) < 40
    check_growth(generator, plain_logits, rows, generator.prefill(questions, passages_BK), tolerance=1e-9)


@pytest.mark.parametrize("max_passage_tokens", [40, 60])  # both parts together are over it, or a passage alone
def test_over_its_sliding_window_a_model_is_refused(windowed, questions, passages, answers, max_passage_tokens):
    generator = windowed(max_passage_tokens=max_passage_tokens, passage_template="{text} " * 4)
    passages_BK = [[passage] for passage in passages[:3]]
    refused = pytest.raises(InputError, match=r"has \d+ tokens, over the sliding window of 48 .* generator.max_passage")
    with refused:
        generator.prefill(questions, passages_BK)
    with refused:
        generator.target_logprobs(questions, passages_BK, answers)


def test_an_answer_may_not_grow_over_the_sliding_window(windowed, passages):
    prefill = windowed(max_passage_tokens=20).prefill(["Oslo?"], [[passages[0]]])
    room = 48 - int(prefill.root.prompts.length_R)
    generator = windowed()
    tokens = torch.arange(5, 5 + room).unsqueeze(0)
    branches, _ = generator.extend(prefill.root, torch.tensor([0]), tokens)
    with pytest.raises(InputError, match="has 49 tokens, over the sliding window of 48"):
        generator.extend(branches, torch.tensor([0]), torch.tensor([[5]]))


@torch.no_grad()
def test_a_prompt_alone_may_be_as_long_as_the_sliding_window(windowed, plain_logits, passages):
    settings = {"passage_template": "{text} {text}"}
    generator = windowed(max_prompt_tokens=48, **settings)
    (row,) = generator.prompt.rows(["Oslo?"], [[passages[0]]])
    assert len(row.passage) + len(row.question) == 48
    logits_V = generator.prefill(["Oslo?"], [[passages[0]]]).logits_RV[0]
    torch.testing.assert_close(logits_V, plain_logits(generator, row, [])[-1], atol=1e-9, rtol=0)
    with pytest.raises(InputError, match="has 49 tokens, over the sliding window of 48"):
        windowed(max_prompt_tokens=49, **settings).prefill(["Oslo?"], [[passages[0]]])


@torch.no_grad()
def test_prompts_with_answers_of_just_the_sliding_window_are_exact(windowed, plain_logits, passages):
    generator = windowed(max_passage_tokens=20)
    prompts = ["Oslo?", "Which?"]
    rows = generator.prompt.rows(prompts, [[passages[0]], [passages[4]]])
    prefill = generator.prefill(prompts, [[passages[0]], [passages[4]]])
    room = 48 - prefill.root.prompts.mask_RL.shape[1]
    tokens = torch.arange(5, 5 + room).expand(2, -1)
    _, logits_NTV = generator.extend(prefill.root, torch.tensor([0, 1]), tokens)
    for row, logits_TV in zip(rows, logits_NTV, strict=True):
        torch.testing.assert_close(logits_TV, plain_logits(generator, row, tokens[0].tolist())[1:], atol=1e-9, rtol=0)
