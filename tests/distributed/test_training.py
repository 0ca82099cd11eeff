"""Joint training: what moves, what stays, and that an interruption changes nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import chain

import pytest
import torch
from safetensors.torch import load_file

from pipelines.job import open_run
from ragray.config import EncoderConfig, OptimizerConfig, TrainConfig
from ragray.demo import tiny
from ragray.distributed.training import TrainingError, _check_finite, _Model, _rate_factor, question_positions, read_log
from ragray.encoders import Encoder
from ragray.priors import ClosedBook, DensePrior
from ragray.rag import Rag
from ragray.records import InputError, Question

WEIGHTS = {"question_encoder": tiny.encoder, "generator": tiny.generator}


def moved(before, after):
    """Names of the weights that differ."""
    return {name for name in before if not torch.equal(before[name].float(), after[name].float())}


@pytest.mark.ray
def test_question_encoder_and_generator_are_trained_together(debug_run, demo_cache):
    for part, make in WEIGHTS.items():
        before = load_file(make(demo_cache) / "model.safetensors")
        after = load_file(debug_run.folder / "4-model" / part / "model.safetensors")
        still = before.keys() - moved(before, after)
        assert all("pooler" in name for name in still), still  # BERT's classification head, no part of the vectors


@pytest.mark.ray
def test_the_log_has_one_entry_a_step(debug_run):
    log = read_log(debug_run.folder / "4-model")
    assert [entry["step"] for entry in log] == [1, 2, 3, 4, 5, 6]
    assert all(entry["loss"] > 0 and entry["kl"] >= 0 and entry["prior_entropy"] >= 0 for entry in log)


@pytest.mark.ray
def test_training_that_is_killed_goes_on_to_the_same_weights(debug_run, jobs, tmp_path):
    folder = debug_run.copy(tmp_path / "run", "0-demo", "3-index")
    command = ("train_rag", "--recipe", "debug", "--run", folder, "--set", "resources.checkpoint_every=1")
    job = jobs.start(*command)
    deadline = time.monotonic() + 120
    while not list(folder.glob(".4-model.*.checkpoints/train/checkpoint_manager_snapshot.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGKILL)
    jobs.finish(job)
    seconds = [entry["seconds"] for entry in read_log(folder / ".4-model.partial")]
    assert len(seconds) < 6

    again = jobs.run(*command)
    assert again.returncode == 0, again.errors
    log = read_log(folder / "4-model")
    assert log[0]["seconds"] == seconds[0]  # kept, not made again
    undisturbed = debug_run.folder / "4-model"
    for part in WEIGHTS:
        after, expected = (load_file(model / part / "model.safetensors") for model in (folder / "4-model", undisturbed))
        assert moved(after, expected) == set()
    numbers = [[{**entry, "seconds": 0} for entry in entries] for entries in (log, read_log(undisturbed))]
    assert numbers[0] == numbers[1]
    assert [path.name for path in folder.glob(".*")] == []


@pytest.mark.slow
@pytest.mark.ray
def test_what_a_worker_refuses_reaches_the_user(ray_cluster, debug_run, tmp_path):
    from pipelines.train_rag import train_rag

    folder = debug_run.copy(tmp_path / "run", "0-demo", "3-index")
    with pytest.raises(InputError, match=r"train.generator_layers is 9, but the generator has 3 layers"):
        train_rag(open_run("debug", folder, ["train.generator_layers=9", "resources.train_workers=1"]))
    assert sorted(path.name for path in folder.iterdir()) == ["0-demo", "3-index"]


@pytest.fixture
def step(encoder, generator, shard, questions, answers):
    """One optimizer step without Ray; returns the names of the weights that moved."""

    def run(encoder_rate: float, passages_per_question: int, variant: str = "rag_token", prior=None) -> set[str]:
        weights = [encoder.trainable(encoder_rate), generator.train_last_layers(None, 1e-3)]
        rag = Rag(prior or DensePrior(encoder, shard), generator, variant, passages_per_question)
        model = _Model(rag, encoder, None, 0.0)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        loss_B, *_ = model(questions, answers)
        loss_B.sum().backward()
        torch.optim.SGD(chain(*weights), lr=1e-2).step()
        return moved(before, dict(model.named_parameters()))

    return run


@pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
def test_one_step_moves_question_encoder_and_generator(step, variant):
    parts = {name.split(".")[0] for name in step(encoder_rate=1e-3, passages_per_question=3, variant=variant)}
    assert parts == {"encoder", "generator"}


def test_with_one_passage_the_question_encoder_has_nothing_to_learn(step):
    """The prior over one passage is 1, whatever q(x) is."""
    assert {name.split(".")[0] for name in step(encoder_rate=1e-3, passages_per_question=1)} == {"generator"}


def test_with_rate_zero_the_question_encoder_stays_as_it_is(step):
    assert {name.split(".")[0] for name in step(encoder_rate=0.0, passages_per_question=3)} == {"generator"}


@pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
def test_without_passages_the_generator_learns_alone(step, variant):
    moved_weights = step(encoder_rate=1e-3, passages_per_question=3, variant=variant, prior=ClosedBook())
    assert {name.split(".")[0] for name in moved_weights} == {"generator"}


@pytest.mark.parametrize("rate", [0.0, 2.0])
def test_the_anchors_penalty_is_part_of_what_is_minimised_but_not_of_what_is_logged(
    encoder, encoder_folder, generator, shard, questions, answers, rate
):
    """At the start it is 0; its gradient pulls a question encoder back that has moved away."""
    start = Encoder.load(encoder_folder, EncoderConfig(model="tiny", temperature=2.0))
    rag = Rag(DensePrior(encoder, shard), generator, "rag_token", 3)
    with torch.no_grad():
        for anchored in (_Model(rag, encoder, start, rate), _Model(rag, encoder, None, rate)):
            loss_B, nll_B, *_ = anchored(questions, answers)
            torch.testing.assert_close(loss_B, nll_B, atol=1e-4, rtol=1e-5)
        encoder.model.embeddings.word_embeddings.weight[:, 0] += 1.0
        loss_B, nll_B, *_ = _Model(rag, encoder, start, rate)(questions, answers)
        distance_B = (encoder.embed_questions(questions) - start.embed_questions(questions)).square().sum(1)
        assert (distance_B > 0.01).all()
        torch.testing.assert_close(loss_B - nll_B, rate * distance_B, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_workers_shares_are_the_batch_whatever_their_number(world):
    config = TrainConfig(questions_per_step=8, seed=5)
    for step in range(7):
        shares = [question_positions(20, config, step, rank, world) for rank in range(world)]
        assert list(chain(*shares)) == question_positions(20, config, step)
        assert {len(share) for share in shares} <= {8 // world, -(-8 // world)}


def test_an_epoch_shows_every_question_once_and_the_next_in_another_order():
    config = TrainConfig(questions_per_step=8, seed=5)
    seen = list(chain(*(question_positions(20, config, step) for step in range(5))))
    assert sorted(seen[:20]) == sorted(seen[20:]) == list(range(20))
    assert seen[:20] != seen[20:]
    assert seen[:8] != question_positions(20, config.model_copy(update={"seed": 6}), 0)


def test_the_rate_warms_up_and_decays():
    config = TrainConfig(steps=100, optimizer=OptimizerConfig(warmup_steps=10))
    rates = [_rate_factor(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(0.91)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.05)
    assert _rate_factor(0, TrainConfig(steps=1)) == 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_names_its_question(wrong):
    batch = [Question(name, "?", ("a",)) for name in ("fine", "broken")]
    with pytest.raises(TrainingError, match=rf"the loss of question 'broken' is {wrong} at step 7: lower train"):
        _check_finite(torch.tensor([1.0, wrong]), batch, 7)


def test_a_half_written_line_of_the_log_is_passed_over(tmp_path):
    (tmp_path / "training_log.jsonl").write_text(json.dumps({"step": 1}) + '\n{"step": 2, "lo')
    assert read_log(tmp_path) == [{"step": 1}]
