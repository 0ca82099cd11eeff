"""passages -> embeddings: an actor pool of passage encoders, one Parquet file a slice of passages.

A passage whose content an earlier artifact of the same encoder holds keeps the vector that it has there: only new and
changed passages go through the model.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ragray import parquet_files
from ragray.artifacts import Artifact
from ragray.config import EmbedConfig, EncoderConfig
from ragray.console import Progress
from ragray.distributed.pieces import Piece, PieceWorker, run_pieces
from ragray.planner import EncoderCost
from ragray.records import PASSAGE_SCHEMA, FloatArray, InputError, Passage, embedding_schema
from ragray.storage import write_whole


class _PassageEmbedder(PieceWorker):
    def __init__(self, model: str, encoder: EncoderConfig, config: EmbedConfig, threads: int, tokens_per_batch: int):
        from ragray.encoders import Encoder  # torch only where it computes
        from ragray.precision import compute_device, matrix_flops, resolve_dtype, set_threads

        set_threads(threads)
        dtype, device = resolve_dtype(config.dtype), compute_device()
        self.encoder = Encoder.load(model, encoder, dtype).to(device)
        self.cost = _cost(self.encoder.model.config)
        self.peak_flops = matrix_flops(dtype, device) if self.cost else 0.0
        self.dtype = np.dtype(config.vectors)
        self.tokens_per_batch = tokens_per_batch

    def process(self, task: dict[str, Any], output: Path) -> Counter[str]:
        from ragray.precision import release_memory

        table = parquet_files.read(task["path"], PASSAGE_SCHEMA.names, task["start"], task["rows"])
        vectors_ND = np.zeros((len(table), self.encoder.dimension), self.dtype)
        known_N = _fill_known(vectors_ND, table, task["known"])
        counts = Counter({"known": int(known_N.sum())})
        new = np.flatnonzero(~known_N)
        started = time.perf_counter()
        if len(new):
            rows = table.take(new).to_pylist()
            passages = [Passage(row["id"], row["title"], row["text"]) for row in rows]
            found_MD, taken = self.encoder.embed_counted(passages, self.tokens_per_batch)
            with np.errstate(over="ignore"):  # told below
                vectors_ND[new] = found_MD
            _check_finite(vectors_ND[new], found_MD, passages)
            counts.update(taken)
            release_memory()
        seconds = time.perf_counter() - started
        measured = Counter(tokens=counts["tokens"], microseconds=int(1e6 * seconds))
        if self.cost:
            flops = self.cost.total_flops(len(new), counts["tokens"], counts["squared_tokens"])
            measured.update(megaflop=int(flops / 1e6), peak_megaflop=int(self.peak_flops * seconds / 1e6))
        embedded = _embedding_table(table, vectors_ND)
        with write_whole(output) as temporary:
            parquet_files.write(temporary, [embedded], embedded.schema, counts)
        return measured


def embed_passages(
    passages: Path,
    folder: Path,
    model: str,
    encoder: EncoderConfig,
    config: EmbedConfig,
    *,
    num_actors: int,
    threads: int,
    tokens_per_batch: int,
    gpus_per_actor: float,
    progress: Progress,
    earlier: Artifact | None = None,
) -> dict[str, Any]:
    """Embed every passage of the passages folder into ``embeddings-*.parquet`` under ``folder``, in the same order.

    Finished files of an interrupted run are kept.  The workers hold one file each.  With ``earlier``, an embeddings
    artifact of the same encoder, its vectors are taken over; 16 bytes for each of them are held here.

    The summary's last three are of this run alone: ``encoder_seconds`` are those of all actors together, tokenizing
    included, and ``share_of_peak`` is of what they could do in products of large matrices; None for a family of models
    whose arithmetic isn't known.
    """
    known = _Earlier.of(earlier) if earlier else None
    pieces = [
        Piece(str(folder / f"embeddings-{number:05d}.parquet"), _task(part, known), part.rows)
        for number, part in enumerate(_slices(passages, config.passages_per_file))
    ]
    arguments = {
        "model": model,
        "encoder": encoder,
        "config": config,
        "threads": threads,
        "tokens_per_batch": tokens_per_batch,
    }
    measured = run_pieces(pieces, _PassageEmbedder, arguments, num_actors, threads, gpus_per_actor, progress)
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update(parquet_files.counts(piece.output))
    dimension = parquet_files.schema(pieces[0].output).field("vector").type.list_size
    num_passages = sum(piece.units for piece in pieces)
    return {
        "num_passages": num_passages,
        "num_files": len(pieces),
        "dimension": dimension,
        "num_embedded": num_passages - counts["known"],
        "num_tokens": counts["tokens"],
        "padding_share": round(1 - counts["tokens"] / max(counts["padded_tokens"], 1), 4),
        "num_batches": counts["batches"],
        "encoder_seconds": round(measured["microseconds"] / 1e6, 2),
        "tokens_per_encoder_second": round(measured["tokens"] / max(measured["microseconds"] / 1e6, 1e-6)),
        "share_of_peak": _share(measured["megaflop"], measured["peak_megaflop"]),
    }


@dataclass(frozen=True, slots=True)
class _Slice:
    """Consecutive rows of a passages file."""

    path: str
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Where the contents of an earlier artifact lie: the first 8 bytes of their hashes, sorted, with file and row."""

    files: tuple[str, ...]
    key_N: npt.NDArray[np.uint64]
    file_N: npt.NDArray[np.int32]
    row_N: npt.NDArray[np.int32]

    @classmethod
    def of(cls, artifact: Artifact) -> _Earlier:
        files = [str(file) for file in sorted(artifact.folder.glob("embeddings-*.parquet"))]
        keys = [_keys(parquet_files.read(file, ["hash"])) for file in files]
        key_N = np.concatenate(keys)
        order = np.argsort(key_N, kind="stable")
        file_N = np.repeat(np.arange(len(keys), dtype=np.int32), [len(part) for part in keys])
        row_N = np.concatenate([np.arange(len(part), dtype=np.int32) for part in keys])
        return cls(tuple(files), key_N[order], file_N[order], row_N[order])

    def find(self, key_M: npt.NDArray[np.uint64]) -> dict[str, npt.NDArray[np.int32]]:
        """By file, the pairs (row asked for, row there), (2, pairs), of equal keys: probably, but not surely, of equal
        contents."""
        place_M = np.searchsorted(self.key_N, key_M).clip(max=len(self.key_N) - 1)
        asked = np.flatnonzero(self.key_N[place_M] == key_M).astype(np.int32)
        file_F, row_F = self.file_N[place_M[asked]], self.row_N[place_M[asked]]
        return {
            self.files[number]: np.stack([asked[file_F == number], row_F[file_F == number]])
            for number in np.unique(file_F)
        }


def _cost(config: Any) -> EncoderCost | None:
    try:
        return EncoderCost.from_config(config.to_dict())
    except InputError:
        return None


def _share(done: int, possible: int) -> float | None:
    return round(done / possible, 3) if possible else None


def _task(part: _Slice, known: _Earlier | None) -> dict[str, Any]:
    found = known.find(_keys(parquet_files.read(part.path, ["hash"], part.start, part.rows))) if known else {}
    return {"path": part.path, "start": part.start, "rows": part.rows, "known": found}


def _fill_known(vectors_ND: FloatArray, table: pa.Table, known: dict[str, npt.NDArray[np.int32]]) -> npt.NDArray[Any]:
    """Put the vectors of contents that earlier files hold in their places; returns which rows these are, (N,)."""
    filled_N = np.zeros(len(table), bool)
    for path, (rows, there) in known.items():
        earlier = parquet_files.read(path, ["hash", "vector"]).take(there)
        same = np.array([a == b for a, b in zip(earlier["hash"], table["hash"].take(rows), strict=True)])
        vectors_ND[rows[same]] = vectors_of(earlier)[same]
        filled_N[rows[same]] = True
    return filled_N


def _slices(passages: Path, rows_per_slice: int) -> list[_Slice]:
    """Slices of the files in order; none reaches over files."""
    slices = []
    for path in sorted(passages.glob("passages-*.parquet")):
        rows = parquet_files.num_rows(path)
        slices += [
            _Slice(str(path), start, min(rows_per_slice, rows - start)) for start in range(0, rows, rows_per_slice)
        ]
    return slices


def _check_finite(stored_MD: FloatArray, found_MD: FloatArray, passages: Sequence[Passage]) -> None:
    bad = np.flatnonzero(~np.isfinite(stored_MD).all(axis=1))
    if not len(bad):
        return
    name = passages[bad[0]].id
    if np.isfinite(found_MD[bad[0]]).all():
        largest = np.abs(found_MD[bad[0]]).max()
        raise InputError(f"passage {name!r} has a vector with a number of {largest:.3g}: set embed.vectors=float32")
    raise InputError(
        f"the encoder gives NaN or infinity for passage {name!r}: set embed.dtype=float32, or check the model"
    )


def _keys(table: pa.Table) -> npt.NDArray[np.uint64]:
    """The first 8 bytes of every hash."""
    hashes = table.column("hash").combine_chunks()
    whole = np.frombuffer(b"".join(hashes.to_pylist()), dtype=np.uint64)
    return whole[::2]


def vectors_of(table: pa.Table) -> FloatArray:
    """The vectors of an embedding table, (N, D), as they are stored."""
    vectors = table.column("vector").combine_chunks()
    return np.asarray(vectors.flatten()).reshape(len(table), vectors.type.list_size)


def _embedding_table(passages: pa.Table, vectors_ND: FloatArray) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), vectors_ND.shape[1])
    schema = embedding_schema(vectors_ND.shape[1], str(vectors_ND.dtype))
    return pa.Table.from_arrays([*passages.select(PASSAGE_SCHEMA.names).columns, vectors], schema=schema)
