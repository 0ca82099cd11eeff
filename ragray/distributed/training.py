"""index + questions -> model: joint training of question encoder and generator on Ray Train.

Every worker takes its share of a step's questions: q(x) -> retrieval actors -> p(z|x) with gradient -> generator ->
marginal loss -> backward, averaged over the workers by DistributedDataParallel.

Everything random is a function of the seed and the step, so a run that was interrupted and continued from its last
checkpoint goes the same way as one that wasn't.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ragray.config import EncoderConfig, GeneratorConfig, Resources, TrainConfig
from ragray.console import Progress
from ragray.distributed.pieces import innermost_error
from ragray.encoders import Encoder
from ragray.generators.base import Generator
from ragray.generators.loading import load_generator
from ragray.generators.prompt import Cuts
from ragray.precision import release_memory, resolve_dtype, set_threads
from ragray.priors import PriorSource
from ragray.rag import Rag, drift
from ragray.records import InputError, Question, RagrayError

LOG_FILE = "training_log.jsonl"
_STATE_FILE = "state.pt"


class TrainingError(RagrayError):
    """Training can't go on: the loss is not a number, or the workers keep failing."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """All that a worker needs; plain values and handles."""

    config: TrainConfig
    encoder: EncoderConfig
    generator: GeneratorConfig
    encoder_folder: str
    generator_folder: str
    prior: PriorSource
    questions: tuple[Question, ...]
    output: str
    threads: int
    resources: Resources


class _Model(nn.Module):
    """Question encoder and generator under one ``forward``, as DistributedDataParallel wants it."""

    def __init__(self, rag: Rag, encoder: Encoder, start_encoder: Encoder | None, anchor: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.generator = rag.generator
        self._rag = [rag]  # not a module
        self._start_encoder = [start_encoder]  # kept out of the parameters
        self._anchor = anchor

    def forward(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(loss_B, nll_B, prior_BK, posterior_BK); the loss is -log p(y|x) plus the anchor's penalty."""
        loss = self._rag[0].loss(questions, answers)
        loss_B = loss.nll_B
        if self._start_encoder[0] is not None and loss.vectors_BD is not None:
            loss_B = loss_B + self._anchor * drift(loss.vectors_BD, self._start_encoder[0], questions)
        return loss_B, loss.nll_B.detach(), loss.prior_BK, loss.posterior_BK


def train(
    job: TrainingJob, checkpoints: Path, num_workers: int, use_gpu: bool, progress: Progress
) -> dict[str, float | int]:
    """Train and leave ``question_encoder/``, ``generator/`` and the log under ``job.output``.

    ``checkpoints`` keeps the newest checkpoint; a run with the same folder continues from it.

    Raises:
        TrainingError: the loss became NaN or infinite, or a worker failed more than twice.
        RagrayError: what retrieval or input checks raised in a worker.
    """
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={"job": job},
        scaling_config=ScalingConfig(
            num_workers=num_workers, use_gpu=use_gpu, resources_per_worker={"CPU": job.threads, "GPU": int(use_gpu)}
        ),
        run_config=RunConfig(
            name="train",
            storage_path=str(checkpoints.resolve()),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            failure_config=FailureConfig(max_failures=2),
        ),
    )
    started = time.monotonic()
    try:
        _fit(trainer, lambda: progress(len(read_log(Path(job.output))), job.config.steps))
    except Exception as error:
        cause = innermost_error(error)
        if isinstance(cause, InputError):
            shutil.rmtree(checkpoints, ignore_errors=True)  # of no use until the input is mended
        if isinstance(cause, RagrayError):
            raise cause from error
        raise TrainingError(
            f"training failed: {cause or error}; run again to go on from the last checkpoint"
        ) from error
    last = read_log(Path(job.output))[-1]
    return {"steps": job.config.steps, "last_loss": last["loss"], "seconds": round(time.monotonic() - started, 1)}


def _fit(trainer: TorchTrainer, watch: Callable[[], None]) -> None:
    """``trainer.fit()`` in a thread, and ``watch`` every second meanwhile.

    In the main thread Ray Train would take Ctrl-C over for good, and end the process without a word.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(trainer.fit())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, daemon=True).start()
    while not wait([outcome], timeout=1.0).done:
        watch()
    watch()
    outcome.result()


def read_log(folder: Path) -> list[dict[str, float]]:
    """One entry a step: loss (mean -log p(y|x)), prior_entropy, kl (of posterior from prior), cut_passages, seconds.

    ``cut_passages`` is the share of the first worker's passages that were over a limit of the generator's prompt.
    """
    file = folder / LOG_FILE
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _train_worker(settings: dict[str, Any]) -> None:
    job: TrainingJob = settings["job"]
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    set_threads(job.threads)
    torch.manual_seed(job.config.seed)
    device = ray.train.torch.get_device()
    rag, encoder, start_encoder = _build_rag(job, device)
    learns = job.config.prior == "dense"
    encoder_weights = encoder.trainable(job.config.optimizer.encoder_rate if learns else 0.0)
    temperature = encoder.train_temperature() if learns and job.config.optimizer.temperature_rate > 0 else []
    generator_weights = rag.generator.train_last_layers(
        job.config.optimizer.generator_layers, job.config.optimizer.generator_rate
    )
    optimizer = torch.optim.AdamW(
        [
            {"params": encoder_weights, "lr": job.config.optimizer.encoder_rate},
            {"params": generator_weights, "lr": job.config.optimizer.generator_rate},
            {"params": temperature, "lr": job.config.optimizer.temperature_rate, "weight_decay": 0.0},
        ],
        weight_decay=job.config.optimizer.weight_decay,
        fused=True,  # in place; the default makes copies of all weights
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, job.config))
    model: nn.Module = _Model(rag, encoder, start_encoder, job.config.anchor)
    first_step = _restore(model, optimizer, schedule)
    if world > 1:
        model = prepare_model(model, parallel_strategy_kwargs={"gradient_as_bucket_view": True})
    log = _Log(Path(job.output), first_step) if rank == 0 else None
    for step in range(first_step, job.config.steps):
        started = time.monotonic()
        batch = [
            job.questions[position]
            for position in question_positions(len(job.questions), job.config, step, rank, world)
        ]
        nll_B, prior_BK, posterior_BK = _accumulate_gradient(model, job, batch, step, world)
        for weights in (encoder_weights, generator_weights, temperature):
            nn.utils.clip_grad_norm_(weights, job.config.optimizer.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        release_memory()
        numbers = _monitors(nll_B, prior_BK, posterior_BK, world)
        cuts, rag.generator.prompt.cuts = rag.generator.prompt.cuts, Cuts()
        numbers["cut_passages"] = round(cuts.passages / max(1, cuts.passages_seen), 4)
        if log is not None:
            log.write(step, numbers, time.monotonic() - started)
        done = step + 1
        if done == job.config.steps and rank == 0:
            _save_model(encoder, rag.generator, Path(job.output))
        if done % job.resources.checkpoint_every == 0 and done < job.config.steps:
            _report(_Model(rag, encoder, None, 0.0), optimizer, schedule, done, rank)


def _accumulate_gradient(
    model: nn.Module, job: TrainingJob, batch: Sequence[Question], step: int, world: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward through the mean loss of the step, a few questions at a time: their activations are all that is held.

    Returns (nll_B, prior_BK, posterior_BK) of the whole batch.
    """
    size = job.resources.questions_per_backward
    parts = [batch[at : at + size] for at in range(0, len(batch), size)]
    seen: list[tuple[Tensor, ...]] = []
    for number, part in enumerate(parts, start=1):
        more = isinstance(model, DistributedDataParallel) and number < len(parts)
        with model.no_sync() if more else nullcontext():  # type: ignore[operator]  # workers average once a step
            loss_B, *monitored = model([q.question for q in part], [q.answers[0] for q in part])
            _check_finite(loss_B, part, step)
            (loss_B.sum() * world / job.config.questions_per_step).backward()
        seen.append(tuple(monitored))
    nll_B, prior_BK, posterior_BK = (torch.cat(pieces) for pieces in zip(*seen, strict=True))
    return nll_B, prior_BK, posterior_BK


def _build_rag(job: TrainingJob, device: torch.device) -> tuple[Rag, Encoder, Encoder | None]:
    """(the model, its question encoder, the encoder that the anchor holds it near)."""
    encoder = Encoder.load(job.encoder_folder, job.encoder).to(device)
    generator = load_generator(job.generator_folder, job.generator, resolve_dtype("auto"), job.resources.attention).to(
        device
    )
    if job.resources.gradient_checkpointing:
        generator.checkpoint_gradients()
    start = Encoder.load(job.encoder_folder, job.encoder).to(device) if job.config.anchor > 0 else None
    rag = Rag(
        job.prior.build(encoder),
        generator,
        job.config.variant,
        job.config.passages_per_question,
        label_smoothing=job.config.label_smoothing,
        tokens_per_batch=job.resources.tokens_per_batch,
        passages_per_backward=job.resources.passages_per_backward,
    )
    return rag, encoder, start


def question_positions(num_questions: int, config: TrainConfig, step: int, rank: int = 0, world: int = 1) -> list[int]:
    """Positions of the questions that one of ``world`` workers sees at a step: its share of a shuffled epoch.

    A function of its arguments alone.  All shares of a step together are the same whatever the number of workers.
    """
    first = step * config.questions_per_step
    low = first + rank * config.questions_per_step // world
    high = first + (rank + 1) * config.questions_per_step // world
    places = [divmod(position, num_questions) for position in range(low, high)]
    orders = {epoch: list(range(num_questions)) for epoch, _ in places}
    for epoch, order in orders.items():
        random.Random(f"{config.seed}-{epoch}").shuffle(order)
    return [orders[epoch][offset] for epoch, offset in places]


def _rate_factor(step: int, config: TrainConfig) -> float:
    """Linear warm-up times linear decay, never below a twentieth."""
    warmup = min(1.0, (step + 1) / max(1, config.optimizer.warmup_steps))
    return warmup * max(0.05, 1 - step / config.steps)


def _check_finite(loss_B: Tensor, batch: Sequence[Question], step: int) -> None:
    bad = torch.nonzero(~torch.isfinite(loss_B.detach())).flatten().tolist()
    if bad:
        raise TrainingError(
            f"the loss of question {batch[bad[0]].id!r} is {float(loss_B[bad[0]])} at step {step}: lower "
            "train.optimizer.generator_rate and train.optimizer.encoder_rate, or look at that question and its answers"
        )


def _report(model: _Model, optimizer: Any, schedule: Any, done: int, rank: int) -> None:
    """Hand a checkpoint to Ray Train; every worker takes part, rank 0 has the state."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            state = {
                "weights": {name: p.detach() for name, p in model.named_parameters() if p.requires_grad},
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "step": done,
            }
            torch.save(state, Path(folder) / _STATE_FILE)
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report({"step": done}, checkpoint=checkpoint)


def _restore(model: nn.Module, optimizer: Any, schedule: Any) -> int:
    """Load the last checkpoint, if there is one; returns the step to go on from."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / _STATE_FILE, weights_only=True)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in state["weights"].items():
            parameters[name].copy_(value)
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return int(state["step"])


def _save_model(encoder: Encoder, generator: Generator, output: Path) -> None:
    for module, name in ((encoder, "question_encoder"), (generator, "generator")):
        folder = output / name
        folder.mkdir(parents=True, exist_ok=True)
        module.save(folder)


def _monitors(nll_B: Tensor, prior_BK: Tensor, posterior_BK: Tensor, world: int) -> dict[str, float]:
    """Means over all workers' questions, in nats: -log p(y|x), prior entropy, KL(posterior || prior)."""
    log_prior_BK = prior_BK.clamp_min(1e-12).log()
    entropy_B = -(prior_BK * log_prior_BK).sum(1)
    kl_B = (posterior_BK * (posterior_BK.clamp_min(1e-12).log() - log_prior_BK)).sum(1)
    sums = torch.stack([nll_B.sum(), entropy_B.sum(), kl_B.sum(), torch.tensor(float(len(nll_B)), device=nll_B.device)])
    if world > 1:
        torch.distributed.all_reduce(sums)
    loss, entropy, kl = (sums[:3] / sums[3]).tolist()
    return {"loss": round(loss, 4), "prior_entropy": round(entropy, 4), "kl": round(kl, 4)}


class _Log:
    """The training log; a continued run drops what was written after its checkpoint."""

    def __init__(self, folder: Path, first_step: int) -> None:
        self._file = folder / LOG_FILE
        kept = [json.dumps(entry) for entry in read_log(folder) if entry["step"] <= first_step]
        self._file.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def write(self, step: int, numbers: dict[str, float], seconds: float) -> None:
        entry = {"step": step + 1, **numbers, "seconds": round(seconds, 3)}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
