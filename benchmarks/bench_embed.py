"""Embedding a corpus on Ray against sentence-transformers and against a bare PyTorch loop.

Same weights (the demo's MiniLM), same texts, same threads; every measurement in a process of its own, by turns, best of
some.  The start of Ray and the loading of the model are taken out and printed apart.  Prints every claim; --json FILE
writes {claim: {ours, peer, ratio, bar, met, unit}}

    python benchmarks/bench_embed.py --json results.json        # half an hour on two cores
    python benchmarks/bench_embed.py --quick                    # a few passages, to see that it runs

Texts come from the demo corpus, or from the passages of a run (--passages runs/quickstart/1-passages), and from two
files of tab-separated id, text and title (--tailed, --large); a file that isn't there is left out, with a word.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import multiprocessing
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_quickstart import MARK, MemoryWatch

SHARED = Path(__file__).parents[2] / "shared" / "data"
BATCH_SIZES = [8, 16, 32, 64, 128]
SAMPLE = 16  # vectors that are compared
Rows = list[dict[str, Any]]


def main() -> None:
    options = _options()
    # The same for all: what ragray sets for its own processes, and no more threads than the model gets.
    os.environ.update(MALLOC_MMAP_THRESHOLD_=str(4 << 30), MALLOC_TRIM_THRESHOLD_=str(8 << 30))
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1", RAY_DATA_USE_DATASOURCE_V2="0")
    os.environ.update(OMP_NUM_THREADS=str(options.threads), TRANSFORMERS_VERBOSITY="error")
    claims: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as work:
        corpora = {"short": _quickstart_passages(options.passages)} | _from_file("tailed", options.tailed)
        for name, rows in corpora.items():
            folder = _write(Path(work) / name, list(islice(rows, options.limit)))
            claims |= {f"{claim}, {name}": found for claim, found in _speed(folder, options).items()}
        for rows in _from_file("large", options.large).values():
            claims |= _memory(Path(work), list(rows), options)
    for name, claim in claims.items():
        peer = "" if claim["peer"] is None else f", beside {claim['peer']:.4g}: {claim['ratio']:.2f}"
        met = "met" if claim["met"] else "NOT MET"
        print(f"{met:<8} {name}: {claim['ours']:.4g} {claim['unit']}{peer}, bar {claim['bar']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(claims, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few passages and one turn")
    parser.add_argument("--passages", type=Path, help="a folder of passages; otherwise the demo corpus is chunked")
    parser.add_argument("--tailed", type=Path, default=SHARED / "pool" / "passages.tsv.gz")
    parser.add_argument("--large", type=Path, default=SHARED / "throughput" / "wordnet_passages.tsv.gz")
    parser.add_argument("--large-sizes", type=int, nargs=2, default=[20_000, 117_000], metavar="PASSAGES")
    parser.add_argument("--limit", type=int, default=4096, help="passages of a corpus")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens-per-batch", type=int, default=2048)
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=BATCH_SIZES, help="of the peer, the best is taken"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.limit, options.turns, options.large_sizes, options.batch_sizes = 48, 1, [100, 200], [16]
    return options


def _speed(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The claims on speed for one corpus."""
    common = {"folder": folder, "threads": options.threads}
    ours = partial(_ours, **common, tokens_per_batch=options.tokens_per_batch)
    size = _in_process(partial(_best_batch_size, sizes=options.batch_sizes, **common))
    works: dict[str, Callable[..., dict[str, Any]]] = {
        "ours": partial(ours, workers=1),
        "ours, two workers": partial(ours, workers=2),
        "bare loop": partial(_bare, **common, tokens_per_batch=options.tokens_per_batch),
        "peer, float32, batches of 32": partial(_peer, **common, dtype="float32", batch_size=32),
        "peer, same dtype, batches of 32": partial(_peer, **common, dtype="auto", batch_size=32),
        f"peer, same dtype, batches of {size}": partial(_peer, **common, dtype="auto", batch_size=size),
    }
    best: dict[str, dict[str, Any]] = {}
    for _ in range(options.turns):
        for name, work in works.items():
            found = _in_process(work)
            if name not in best or found["rate"] > best[name]["rate"]:
                best[name] = found
    print(f"\n{folder.name}: {pq.read_metadata(_file(folder)).num_rows} passages, {best['ours']['note']}")
    for name, found in best.items():
        print(f"{name:<36} {found['rate']:8.1f} passages/s, {found['start']:5.1f} s to start")
    _check_same_vectors(best)
    rates = {name: found["rate"] for name, found in best.items()}
    peers = [rate for name, rate in rates.items() if name.startswith("peer, same dtype")]
    claims = {
        "sentence-transformers at the same dtype, its best batch size": _claim(rates["ours"], max(peers), 1.2),
        "bare loop": _claim(rates["ours"], rates["bare loop"], 0.9),
        "one worker to two": _claim(rates["ours, two workers"], rates["ours"], 1.8),
        "share of padding": _claim(best["ours"]["padding"], None, 0.03, "share", at_most=True),
    }
    if best["ours"]["dtype"] == "bfloat16":  # this processor multiplies it natively
        float32 = rates["peer, float32, batches of 32"]
        claims["sentence-transformers as it comes (float32, batches of 32)"] = _claim(rates["ours"], float32, 3.0)
    return claims


def _memory(work: Path, rows: Rows, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    peaks = []
    for size in options.large_sizes:
        folder = _write(work / f"large-{size}", rows[:size])
        os.environ[MARK] = mark = uuid.uuid4().hex  # the child has it from its start
        watch = MemoryWatch(mark)
        _in_process(
            partial(_ours, folder, threads=options.threads, tokens_per_batch=options.tokens_per_batch, workers=1)
        )
        watch.stop()
        peaks.append(watch.peak_bytes / 2**20)
    small, large = options.large_sizes
    name = f"peak memory of all processes, {large} passages beside {small}"
    return {name: _claim(peaks[1], peaks[0], 1.05, "MiB", at_most=True)}


def _ours(folder: Path, threads: int, tokens_per_batch: int, workers: int) -> dict[str, Any]:
    """Parquet to Parquet through Ray Data, timed from when every worker has done a file to the last file."""
    from ragray import parquet_files
    from ragray.config import EmbedConfig, EncoderConfig
    from ragray.distributed.embedding import embed_passages
    from ragray.distributed.session import ray_session
    from ragray.precision import resolve_dtype

    rows = pq.read_metadata(_file(folder)).num_rows
    # Files of a size that gives every worker the same work, but not so small that lengths can't be sorted.
    per_file = -(-rows // (workers * -(-rows // (512 * workers))))

    with tempfile.TemporaryDirectory() as output, ray_session():
        started = time.perf_counter()
        summary = embed_passages(
            folder,
            Path(output),
            str(_model()),
            EncoderConfig(model="demo:minilm"),
            EmbedConfig(passages_per_file=per_file),
            num_actors=workers,
            threads=threads,
            tokens_per_batch=tokens_per_batch,
            gpus_per_actor=0,
            progress=lambda done, total: None,
        )
        total = time.perf_counter() - started
        files = sorted(Path(output).glob("*.parquet"), key=lambda file: file.stat().st_mtime)
        ended = [file.stat().st_mtime for file in files]
        before = sum(parquet_files.num_rows(file) for file in files[:workers])  # every worker has done about one
        rate = (rows - before) / (ended[-1] - ended[workers - 1])
        seconds = rows / rate
        vectors = np.stack(pq.read_table(min(files), columns=["vector"]).slice(0, SAMPLE).column("vector").to_numpy())
    dtype = str(resolve_dtype("auto")).removeprefix("torch.")
    tokens = summary["num_tokens"] / rows
    return {
        "rate": rate,
        "start": total - seconds,
        "vectors": vectors,
        "padding": summary["padding_share"],
        "dtype": dtype,
        "note": f"{tokens:.0f} tokens each, {dtype}, {summary['num_batches']} batches, in the model "
        f"{summary['encoder_seconds']} of {seconds:.2f} s",
    }


def _bare(folder: Path, threads: int, tokens_per_batch: int) -> dict[str, Any]:
    """The limit: nothing but the model and its pooling, over batches that were tokenized, sorted and padded before."""
    import torch

    from ragray.batching import pad_rows, token_budget_batches
    from ragray.config import EncoderConfig
    from ragray.encoders import Encoder
    from ragray.precision import resolve_dtype, set_threads

    set_threads(threads)
    started = time.perf_counter()
    encoder = Encoder.load(_model(), EncoderConfig(model="demo:minilm"), resolve_dtype("auto"))
    start = time.perf_counter() - started
    rows = encoder.tokenize_passages(_passages(folder))
    positions = token_budget_batches([len(row) for row in rows], tokens_per_batch)
    batches = [pad_rows([rows[place].ids for place in batch], 0) for batch in positions]
    vectors_ND = torch.empty(len(rows), encoder.dimension)

    def embed(numbers: Sequence[int]) -> None:
        for number in numbers:
            ids_BL, mask_BL = batches[number]
            hidden_BLD = encoder.model(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state.float()
            mean_BD = (hidden_BLD * mask_BL[..., None]).sum(1) / mask_BL.sum(1, keepdim=True)
            vectors_ND[positions[number]] = torch.nn.functional.normalize(mean_BD, dim=-1)

    with torch.inference_mode():
        embed(range(min(2, len(batches))))
        started = time.perf_counter()
        embed(range(len(batches)))
        seconds = time.perf_counter() - started
    return {"rate": len(rows) / seconds, "start": start, "vectors": vectors_ND[:SAMPLE].numpy()}


def _peer(folder: Path, threads: int, dtype: str, batch_size: int, limit: int | None = None) -> dict[str, Any]:
    """``SentenceTransformer.encode``."""
    from sentence_transformers import SentenceTransformer

    from ragray.precision import resolve_dtype, set_threads

    set_threads(threads)
    started = time.perf_counter()
    model = SentenceTransformer(str(_model()), device="cpu", model_kwargs={"dtype": resolve_dtype(dtype)})
    start = time.perf_counter() - started
    texts = [f"{passage.title}. {passage.text}" for passage in _passages(folder)][:limit]
    model.encode(texts[:batch_size], batch_size=batch_size)
    started = time.perf_counter()
    vectors_ND = model.encode(texts, batch_size=batch_size, show_progress_bar=False, convert_to_tensor=True)
    seconds = time.perf_counter() - started
    return {"rate": len(texts) / seconds, "start": start, "vectors": vectors_ND[:SAMPLE].float().numpy()}


def _best_batch_size(folder: Path, threads: int, sizes: Sequence[int]) -> int:
    """Of the peer, on the first 256 passages."""
    rates = {size: _peer(folder, threads, "auto", size, limit=256)["rate"] for size in sizes}
    return max(rates, key=rates.__getitem__)


def _check_same_vectors(found: dict[str, dict[str, Any]]) -> None:
    """All measured the same: cosines of 0.999 and more with the peer's vectors in float32."""
    expected = found["peer, float32, batches of 32"]["vectors"]
    for name, result in found.items():
        cosines = (result["vectors"] * expected).sum(1) / np.linalg.norm(result["vectors"], axis=1)
        assert cosines.min() > 0.999, f"{name}: other vectors, cosine {cosines.min():.4f}"


def _claim(
    ours: float, peer: float | None, bar: float, unit: str = "passages/s", at_most: bool = False
) -> dict[str, Any]:
    ratio = ours / peer if peer else None
    value = ours if ratio is None else ratio
    met = bool(value <= bar if at_most else value >= bar)
    return {"ours": ours, "peer": peer, "ratio": ratio, "bar": bar, "met": met, "unit": unit}


def _in_process(work: Callable[[], Any]) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work)


def _model() -> Path:
    from ragray.demo.packages import minilm
    from ragray.storage import cache_folder

    return minilm(cache_folder())


def _passages(folder: Path) -> list[Any]:
    from ragray.records import Passage

    return [Passage(**row) for row in pq.read_table(_file(folder), columns=["id", "title", "text"]).to_pylist()]


def _quickstart_passages(folder: Path | None) -> Iterator[dict[str, Any]]:
    """Passages of a run; otherwise the demo corpus, in pieces of 100 words."""
    if folder is not None:
        for file in sorted(folder.glob("passages-*.parquet")):
            yield from pq.read_table(file, columns=["id", "title", "text"]).to_pylist()
        return
    from ragray.demo import factbook, packages
    from ragray.storage import cache_folder

    for document in factbook.documents(factbook.read_factbook(packages.factbook(cache_folder()))):
        words = document.text.split()
        for start in range(0, len(words), 100):
            text = " ".join(words[start : start + 100])
            yield {"id": f"{document.id}-{start}", "title": document.title, "text": text}


def _from_file(name: str, file: Path) -> dict[str, Iterator[dict[str, Any]]]:
    if not file.exists():
        print(f"left out: {name}, since {file} isn't there")
        return {}
    return {name: _lines(file)}


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines, delimiter="\t")


def _write(folder: Path, rows: Rows) -> Path:
    """A passages folder of one file."""
    from ragray.corpus.passages import content_hash
    from ragray.records import PASSAGE_SCHEMA, Passage

    passages = [Passage(row["id"], row["title"], row["text"]) for row in rows]
    table = [{**passage.as_dict(), "hash": content_hash(passage)} for passage in passages]
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(table, PASSAGE_SCHEMA), _file(folder))
    return folder


def _file(folder: Path) -> Path:
    return folder / "passages-00000.parquet"


if __name__ == "__main__":
    main()
