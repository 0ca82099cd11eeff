"""How far is a plan off?  The plan of `ragray plan` beside a real `ragray embed` and real FAISS indexes.

    python benchmarks/bench_plan.py --encoder demo:minilm --json results.json     # minutes
    python benchmarks/bench_plan.py --encoder demo:tiny-encoder --quick           # whether this script works

Passages are SQuAD's, as often as it takes.  The time is the wall clock of the whole command, Ray's start included, so
other load on the machine counts against the plan.  FAISS indexes are built over the vectors that were embedded.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.plan_run import default_rate, encoder_config, machine_memory_bytes, measure_encoder
from ragray import planner
from ragray.planner import Corpus, EncoderCost, Machine

DATA = Path(__file__).parents[2] / "shared" / "data" / "squad" / "passages_w100.tsv.gz"
TIME_BAR, BYTES_BAR = 0.25, 0.05


def read_texts(size: int) -> list[tuple[str, str]]:
    """(title, text) of so many passages, in their order, again from the start when they are used up."""
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        rows = [(row["title"], row["text"]) for row in csv.DictReader(file, delimiter="\t")]
    return [rows[number % len(rows)] for number in range(size)]


def write_run(folder: Path, texts: list[tuple[str, str]], encoder: str) -> Path:
    """A recipe and documents that give a passage each."""
    documents = folder / "documents.jsonl"
    with documents.open("w", encoding="utf-8") as file:
        for number, (title, text) in enumerate(texts):
            words = " ".join(text.split()[:100])
            file.write(json.dumps({"id": f"d{number}", "title": title, "text": words}) + "\n")
    recipe = folder / "recipe.yaml"
    settings = {
        "corpus": str(documents),
        "train_questions": "none",
        "dev_questions": {"dev": "none"},
        "encoder": {"model": encoder},
        "generator": {"model": "none"},
    }
    recipe.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    return recipe


def run_stage(stage: str, recipe: Path, folder: Path) -> float:
    """Seconds of one stage, as a command of its own."""
    started = time.monotonic()
    command = [sys.executable, "-m", f"pipelines.{stage}", "--recipe", str(recipe), "--run", str(folder)]
    subprocess.run(command, check=True)
    return time.monotonic() - started


def token_counts(encoder: str, texts: list[tuple[str, str]]) -> float:
    from transformers import AutoTokenizer

    from pipelines.job import open_run

    tokenizer = AutoTokenizer.from_pretrained(open_run("quickstart", None, []).model(encoder))
    sample = [f"{title}. {text}" for title, text in texts[:512]]
    return statistics.mean(len(ids) for ids in tokenizer(sample, truncation=True, max_length=256).input_ids)


def compare(encoder: str, size: int, rate: float | None) -> dict[str, tuple[float, float, float, str]]:
    """claim -> (planned, measured, bar, unit) at one corpus size."""
    texts = read_texts(size)
    cost = EncoderCost.from_config(encoder_config(encoder))
    sizes = [len(f"d{number}-0{title}{text}".encode()) for number, (title, text) in enumerate(texts)]
    corpus = Corpus(size, token_counts(encoder, texts), statistics.mean(sizes))
    machine = Machine(1, os.cpu_count() or 1, machine_memory_bytes(), default_rate("auto", cost, 0))
    plan = planner.make_plan(cost, corpus, machine)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_run(folder, texts, encoder)
        run_stage("chunk_corpus", recipe, folder / "run")
        seconds = run_stage("embed_passages", recipe, folder / "run")
        passages = sum(file.stat().st_size for file in (folder / "run" / "1-passages").glob("*.parquet"))
        files = sorted((folder / "run" / "2-embeddings").glob("*.parquet"))
        embeddings = sum(file.stat().st_size for file in files)
        table = pa.concat_tables([pq.read_table(file) for file in files])
    vectors_ND = np.asarray(table.column("vector").combine_chunks().flatten()).reshape(size, -1)
    found = {f"time, {size} passages, default rates": (plan.encoding.seconds, seconds, TIME_BAR, "s")}
    if rate is not None:
        calibrated = planner.plan_encoding(cost, corpus, replace(machine, flops_per_cpu=rate)).seconds
        found[f"time, {size} passages, calibrated"] = (calibrated, seconds, TIME_BAR, "s")
    found[f"passages, {size}"] = (plan.passages_bytes, passages, 2 * BYTES_BAR, "bytes")
    found[f"embeddings, {size}"] = (plan.embeddings_bytes, embeddings, BYTES_BAR, "bytes")
    for kind in planner.INDEX_KINDS:
        planned = planner.faiss_bytes(kind, size, cost.dimension)
        found[f"{kind} index, {size}"] = (planned, faiss_size(kind, vectors_ND), BYTES_BAR, "bytes")
    return found


def faiss_size(kind: planner.IndexKind, vectors_ND: Any) -> float:
    import faiss

    faiss.omp_set_num_threads(1)
    factory = planner.faiss_factory(kind, *vectors_ND.shape)
    index = faiss.index_factory(vectors_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    if kind == "IVF-PQ":  # the size doesn't depend on how well the codebooks are trained
        index.cp.niter = index.pq.cp.niter = 1
    if not index.is_trained:
        index.train(vectors_ND)
    index.add(vectors_ND)
    return float(faiss.serialize_index(index).nbytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="demo:minilm", help="a model's folder, or demo:minilm")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--quick", action="store_true", help="300 passages, no claims")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not DATA.exists():
        print(f"skipped: the passages of SQuAD aren't at {DATA}")
        return 0
    cost = EncoderCost.from_config(encoder_config(options.encoder))
    rate = None if options.quick else measure_encoder(options.encoder, cost, 130)[1]
    claims: dict[str, dict[str, Any]] = {}
    for size in [300] if options.quick else options.sizes:
        for name, (planned, measured, bar, unit) in compare(options.encoder, size, rate).items():
            error = planned / measured - 1
            met = abs(error) <= bar
            claims[name] = {"ours": planned, "peer": measured, "ratio": 1 + error, "bar": bar, "met": met, "unit": unit}
    print(f"\n{'':42} {'planned':>14} {'measured':>14} {'error':>8} {'bar':>7}")
    for name, claim in claims.items():
        print(
            f"{name:42} {claim['ours']:14,.1f} {claim['peer']:14,.1f} {claim['ratio'] - 1:+8.1%} {claim['bar']:7.0%} "
            f"{claim['unit']:6}{'met' if claim['met'] else 'NOT MET'}"
        )
    if rate is not None:
        print(f"calibrated: {rate / 1e9:.0f} GFLOP/s a core")
    if options.json:
        options.json.write_text(json.dumps(claims, indent=1) + "\n", encoding="utf-8")
    return 0 if options.quick or all(claim["met"] for claim in claims.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
