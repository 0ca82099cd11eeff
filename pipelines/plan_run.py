"""A plan before anything is run: hours, bytes, memory, shards.

python -m pipelines.plan_run --passages 21e6 --encoder path/of/model --machines 8 --cpus 16 --memory-gib 64
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.job import guarded
from ragray import planner
from ragray.console import Console
from ragray.planner import GIB, Corpus, EncoderCost, Machine, Plan
from ragray.records import InputError

_WORDS = ("river", "music", "early", "house", "north", "the", "of", "and", "city", "paper", "green", "water", "road")
_CALIBRATION_PASSAGES = 64


def plan_run(
    passages: float,
    encoder: str,
    *,
    tokens_per_passage: float = 130.0,
    text_bytes: float = 650.0,
    vectors: str = "float32",
    machines: int = 1,
    cpus: int | None = None,
    memory_gib: float | None = None,
    memory_share: float = 0.6,
    gpus: int = 0,
    dtype: str = "auto",
    gflops_per_cpu: float | None = None,
    tflops_per_gpu: float | None = None,
    shards: int | None = None,
    replicas: int = 1,
    calibrate: bool = False,
    json_file: Path | None = None,
    console: Console | None = None,
) -> Plan:
    """Print the plan, and write it to ``json_file``.  What isn't given of the machines is this machine's.

    Raises:
        InputError: no such encoder, or a number that can't be planned with.
    """
    console = console or Console()
    if not math.isfinite(passages) or passages < 1 or passages != int(passages):
        raise InputError(f"passages must be a whole number of at least 1, got {passages:g}")
    corpus = Corpus(int(passages), tokens_per_passage, text_bytes, vectors)  # type: ignore[arg-type]
    cost = EncoderCost.from_config(encoder_config(encoder))
    rate = None
    if calibrate:
        per_second, rate, device = measure_encoder(encoder, cost, tokens_per_passage, dtype)
        unit = "GPU" if device == "cuda" else "core"
        console.line(f"measured here: {per_second:.1f} passages/s, {rate / 1e9:.0f} GFLOP/s on one {unit}")
        if gpus and device != "cuda":
            raise InputError(f"gpus={gpus}, but there is no GPU here to calibrate on: give --tflops-per-gpu")
    cpu_rate = rate if rate is not None and not gpus else None
    if gflops_per_cpu is not None:
        cpu_rate = gflops_per_cpu * 1e9
    machine = Machine(
        count=machines,
        cpus=cpus if cpus is not None else os.cpu_count() or 1,
        memory_bytes=memory_gib * GIB if memory_gib is not None else machine_memory_bytes(),
        flops_per_cpu=default_rate(dtype, cost, gpus) if cpu_rate is None else cpu_rate,
        gpus=gpus,
        flops_per_gpu=rate if tflops_per_gpu is None else tflops_per_gpu * 1e12,
        memory_share=memory_share,
    )
    plan = planner.make_plan(cost, corpus, machine, replicas=replicas, shards=shards)
    for line in plan_lines(plan, encoder):
        console.line(line)
    if json_file is not None:
        json_file.write_text(
            json.dumps({**asdict(plan), "warnings": plan_warnings(plan)}, indent=1) + "\n", encoding="utf-8"
        )
    return plan


def plan_lines(plan: Plan, encoder: str) -> list[str]:
    """The plan as text: what is assumed, encoding and files, a row a FAISS type, warnings."""
    corpus, machine, encoding = plan.corpus, plan.machine, plan.encoding
    kind = "GPU" if machine.gpus else "CPU"
    lines = [
        f"{corpus.passages:,} passages of {corpus.tokens_per_passage:g} tokens, {encoder}: "
        f"{plan.encoder.dimension} numbers a vector, {encoding.flops_per_passage / 1e9:.2f} GFLOP a passage",
        f"{machine.count} x {machine.cpus} CPUs, {machine.gpus} GPUs, {machine.memory_bytes / GIB:.1f} GiB, of which "
        f"{machine.memory_share:.0%} may be filled; {machine.flops_per_actor / 1e9:.0f} GFLOP/s a {kind}",
        "",
        f"encoding          {encoding.seconds / 3600:10.2f} hours    {encoding.actors} actors, "
        f"{encoding.passages_per_s:,.0f} passages/s, {encoding.memory_per_machine_bytes / GIB:.1f} GiB a machine",
        f"1-passages        {plan.passages_bytes / GIB:10.2f} GiB",
        f"2-embeddings      {plan.embeddings_bytes / GIB:10.2f} GiB",
        "",
        f"{'3-index, GiB':<13} {'FAISS factory':<15} {'index':>8} {'on disk':>8} {'shards':>7} {'a machine':>10} "
        f"{'memory':>8} {'building':>9}  fits",
    ]
    for index in plan.indexes:
        lines.append(
            f"{index.kind:<13} {index.factory:<15} {index.index_bytes / GIB:8.2f} {index.disk_bytes / GIB:8.2f} "
            f"{index.shards:7d} {index.actors_per_machine:10d} {index.memory_per_machine_bytes / GIB:8.2f} "
            f"{index.build_memory_bytes / GIB:9.2f}  {'yes' if index.fits else 'NO'}"
        )
    lines.append(f"({plan.replicas} replica(s) of each shard; a machine, memory, building: of one machine)")
    return lines + [f"warning: {warning}" for warning in plan_warnings(plan)]


def plan_warnings(plan: Plan) -> list[str]:
    """What won't work as planned: the value, the limit, the way out."""
    machine, encoding, replicas = plan.machine, plan.encoding, plan.replicas
    budget = f"{machine.budget_bytes / GIB:.1f} GiB ({machine.memory_share:.0%} of a machine's memory)"
    found = []
    if replicas > machine.count:
        found.append(f"{replicas} replicas on {machine.count} machines share some, and fall with them: use fewer")
    if encoding.memory_per_machine_bytes > machine.budget_bytes:
        found.append(
            f"encoding takes {encoding.memory_per_machine_bytes / GIB:.1f} GiB on a machine, over {budget}: set "
            "resources.embed_actors to fewer actors"
        )
    fitting = [index for index in plan.indexes if index.fits]
    smallest = min(fitting, key=lambda index: index.memory_per_machine_bytes, default=None)
    for index in plan.indexes:
        if not index.fits:
            needed = index.machines_needed
            ways = [f"{needed} machines"] if needed and needed > machine.count else []
            ways += [smallest.kind] if smallest else []
            found.append(
                f"{index.kind}: {index.index_bytes * replicas / GIB:.1f} GiB on {machine.count} machines is "
                f"{index.memory_per_machine_bytes / GIB:.1f} GiB on one, over {budget}: use "
                f"{' or '.join(ways) or 'another number of shards, or machines with more memory'}"
            )
        elif index.build_memory_bytes > machine.budget_bytes:
            enough = planner.shards_to_build(index.kind, plan)
            found.append(
                f"{index.kind}: building {index.shards} shards takes {index.build_memory_bytes / GIB:.1f} GiB on a "
                f"machine, over {budget}: "
                + (
                    f"use --shards {enough}, of which {machine.cpus} are built there at once"
                    if enough
                    else "build it on machines with more memory"
                )
            )
    return found


def encoder_config(encoder: str) -> dict[str, Any]:
    """A model's ``config.json``: of a folder, of ``demo:minilm`` and its like, or from the hub (that file alone).

    Raises:
        InputError: if there is none.
    """
    if encoder.startswith("demo:"):
        encoder = _demo_model(encoder)
    path = Path(encoder) / "config.json"
    if not Path(encoder).exists():
        from huggingface_hub import hf_hub_download

        try:
            path = Path(hf_hub_download(encoder, "config.json"))
        except (OSError, ValueError) as error:  # its own errors are of these two families
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"no encoder folder {encoder}, and no such model on the hub: {reason}") from error
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read as a model's config.json: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} must hold an object, got {type(config).__name__}")
    return config


def measure_encoder(
    encoder: str, cost: EncoderCost, tokens: float, dtype: str = "auto", seconds: float = 8.0
) -> tuple[float, float, str]:
    """(passages/s, FLOP/s, device) of ``Encoder.embed_passages`` with one thread, on synthetic passages.

    Lengths vary by a fifth, so that padding counts.  The first batch isn't timed.
    """
    from ragray.config import EncoderConfig, Resources
    from ragray.encoders import Encoder
    from ragray.precision import compute_device, resolve_dtype, set_threads
    from ragray.records import Passage

    set_threads(1)
    device = compute_device()
    limit = max(8, min(cost.max_tokens - 2, math.ceil(1.25 * tokens)))
    config = EncoderConfig(model=encoder, max_passage_tokens=limit)
    folder = _demo_model(encoder) if encoder.startswith("demo:") else encoder
    model = Encoder.load(folder, config, resolve_dtype(dtype)).to(device)
    generator = random.Random(0)
    sizes = [max(1, round(tokens * generator.uniform(0.8, 1.2)) - 3) for _ in range(_CALIBRATION_PASSAGES)]
    passages = [
        Passage(str(number), "", " ".join(generator.choices(_WORDS, k=size))) for number, size in enumerate(sizes)
    ]
    flops = sum(cost.flops(len(row)) for row in model.tokenize_passages(passages))
    budget = Resources().tokens_per_batch
    model.embed_passages(passages[:8], budget)
    rounds, started = 0, time.monotonic()
    while rounds == 0 or time.monotonic() - started < seconds:
        model.embed_passages(passages, budget)
        rounds += 1
    elapsed = time.monotonic() - started
    return rounds * len(passages) / elapsed, rounds * flops / elapsed, device.type


def default_rate(dtype: str, cost: EncoderCost, gpus: int) -> float:
    """FLOP/s of one CPU on the encoder, by the constants of the planner."""
    if dtype == "auto":
        from ragray.precision import resolve_dtype

        dtype = "float32" if gpus else str(resolve_dtype(dtype)).removeprefix("torch.")
    return planner.cpu_flops(dtype, cost.hidden)


def _demo_model(name: str) -> str:
    from pipelines.job import open_run

    return open_run("quickstart", None, []).model(name)


def machine_memory_bytes() -> float:
    """All memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """The command line: a flag for every argument of ``plan_run``."""
    form = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(prog, description=(__doc__ or "").partition("\n")[0], formatter_class=form)
    parser.add_argument("--passages", type=float, required=True, help="how many; 21e6 is a number too")
    parser.add_argument("--encoder", required=True, help="a folder, a hub name, or demo:minilm")
    parser.add_argument("--tokens-per-passage", type=float, default=130.0)
    parser.add_argument("--text-bytes", type=float, default=650.0, help="of a passage with its title and id")
    parser.add_argument("--vectors", choices=list(planner.VECTOR_BYTES), default="float32")
    parser.add_argument("--machines", type=int, default=1)
    parser.add_argument("--cpus", type=int, help="of one machine; default: this one's")
    parser.add_argument("--memory-gib", type=float, help="of one machine; default: this one's")
    parser.add_argument("--memory-share", type=float, default=0.6, help="of the memory that may be filled")
    parser.add_argument("--gpus", type=int, default=0, help="of one machine")
    parser.add_argument("--dtype", choices=["auto", *planner.CPU_FLOPS], default="auto", help="auto: as here")
    parser.add_argument("--gflops-per-cpu", type=float, help="that the encoder achieves on one core")
    parser.add_argument("--tflops-per-gpu", type=float, help="that the encoder achieves on one GPU")
    parser.add_argument("--shards", type=int, help="default: for each FAISS type, the fewest that fit")
    parser.add_argument("--replicas", type=int, default=1, help="of every shard")
    parser.add_argument("--calibrate", action="store_true", help="measure the encoder on this machine and use that")
    parser.add_argument("--json", type=Path, dest="json_file", help="write the plan here")
    options = parser.parse_args(argv)
    return guarded(lambda: plan_run(**vars(options)))


if __name__ == "__main__":
    raise SystemExit(main())
