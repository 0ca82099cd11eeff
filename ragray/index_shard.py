"""One shard of an index: a FAISS index, the exact vectors it was built from, and the passages they stand for.

A shard is a folder of three files: ``index.faiss``, ``vectors.npy`` and ``passages.arrow``.  Vectors and passages are
memory-mapped: only what a search touches is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ragray.artifacts import Artifact
from ragray.formulas.topk import order_topk
from ragray.records import FloatArray, Hits, InputError, Passage
from ragray.storage import local_copy

RowArray = npt.NDArray[np.int64]

_INDEX, _VECTORS, _PASSAGES = "index.faiss", "vectors.npy", "passages.arrow"
_TIE_MARGIN = 16  # spare candidates from FAISS, so that equal scores at the cut are ordered by id


def build_shard(folder: Path, vectors_ND: FloatArray, passages: pa.Table, factory: str) -> None:
    """Write one shard.

    Args:
        vectors_ND: float32 passage vectors.
        passages: N rows with string columns id, title and text, and maybe others, in the order of the vectors.
        factory: a FAISS factory string, for inner product.

    Raises:
        InputError: if the factory string means nothing to FAISS or can't be trained on N vectors, or if a vector holds
            NaN or infinity.
    """
    if not np.isfinite(vectors_ND).all():
        raise InputError("passage vectors hold NaN or infinity; embed the passages in float32")
    folder.mkdir(parents=True, exist_ok=True)
    vectors_ND = np.ascontiguousarray(vectors_ND, dtype=np.float32)
    try:
        index = faiss.index_factory(vectors_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            index.train(vectors_ND)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(
            f"index.factory {factory!r} can't be built over {len(vectors_ND)} vectors: {reason}"
        ) from error
    index.add(vectors_ND)
    faiss.write_index(index, str(folder / _INDEX))
    np.save(folder / _VECTORS, vectors_ND)
    with pa.OSFile(str(folder / _PASSAGES), "wb") as file, pa.ipc.new_file(file, passages.schema) as writer:
        writer.write_table(passages)


class IndexShard:
    """A loaded shard; answers ``search`` like any ``Retriever``."""

    def __init__(self, folder: str | Path, index_version: str, num_threads: int = 1) -> None:
        folder = local_copy(folder)
        faiss.omp_set_num_threads(num_threads)
        self.index_version = index_version
        self._index = faiss.read_index(str(folder / _INDEX), faiss.IO_FLAG_MMAP_IFC)
        self._vectors_ND = np.load(folder / _VECTORS, mmap_mode="r")
        with pa.memory_map(str(folder / _PASSAGES)) as source:
            self._passages = pa.ipc.open_file(source).read_all()

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        return int(self._vectors_ND.shape[1])

    def search(self, vectors_BD: FloatArray, k: int) -> Hits:
        """The ``min(k, N)`` passages nearest to each vector, scored with the exact stored vectors.

        Raises:
            InputError: if k < 1, or the vectors have another dimension than the index or hold NaN or infinity.
        """
        if k < 1:
            raise InputError(f"k must be >= 1, got {k}")
        if vectors_BD.ndim != 2 or vectors_BD.shape[1] != self.dimension:
            raise InputError(
                f"vectors of shape {vectors_BD.shape} can't be searched in an index of {self.dimension}-d vectors"
            )
        queries_BD = np.ascontiguousarray(vectors_BD, dtype=np.float32)
        if not np.isfinite(queries_BD).all():
            raise InputError("question vectors hold NaN or infinity, so nothing can be nearest to them")
        _, rows_BM = self._index.search(queries_BD, min(k + _TIE_MARGIN, len(self)))
        found = [self._best(query_D, rows_M, k) for query_D, rows_M in zip(queries_BD, rows_BM, strict=True)]
        scores_BK = np.stack([scores for scores, _, _ in found])
        vectors_BKD = np.stack([vectors for _, vectors, _ in found])
        return Hits(scores_BK, vectors_BKD, [passages for _, _, passages in found], self.index_version)

    def _best(self, query_D: FloatArray, rows_M: RowArray, k: int) -> tuple[FloatArray, FloatArray, list[Passage]]:
        """Order the candidates by exact score, looking wider where they can't tell which the k best are."""
        rows_M, scores_M = self._rescore(query_D, rows_M)
        width = k + _TIE_MARGIN
        while width < len(self) and _tied_at_cut(scores_M, k):
            width *= 8
            _, rows_1M = self._index.search(query_D[np.newaxis], min(width, len(self)))
            rows_M, scores_M = self._rescore(query_D, rows_1M[0])
        if len(rows_M) < min(k, len(self)):  # an approximate index looked at too few passages
            rows_M, scores_M = self._rescore(query_D, np.arange(len(self)))
        order = order_topk(scores_M, self._passages.column("id").take(rows_M).to_pylist(), k)
        records = self._passages.take(rows_M[order]).to_pylist()
        passages = [Passage(row["id"], row["title"], row["text"]) for row in records]
        return scores_M[order], self._vectors_ND[rows_M[order]], passages

    def _rescore(self, query_D: FloatArray, rows_M: RowArray) -> tuple[RowArray, FloatArray]:
        """The rows that FAISS really found (it fills up with -1) and their inner products with the stored vectors.

        ``einsum`` and not ``@``: BLAS rounds a row by its place in the matrix, so that equal vectors would differ.
        """
        rows_M = rows_M[rows_M >= 0]
        return rows_M, np.einsum("md,d->m", self._vectors_ND[rows_M], query_D)


def _tied_at_cut(scores_M: FloatArray, k: int) -> bool:
    """Whether even the worst candidate equals the k-th best, so that there may be more of that score."""
    return len(scores_M) > k and bool(scores_M.min() == np.partition(scores_M, -k)[-k])


class ShardSet:
    """All shards of an index in this process: the single-machine ``Retriever``."""

    def __init__(self, shards: Sequence[IndexShard]) -> None:
        self._shards = list(shards)

    def search(self, vectors_BD: FloatArray, k: int) -> Hits:
        """The ``min(k, N)`` nearest passages over all shards."""
        return merge_hits([shard.search(vectors_BD, k) for shard in self._shards if len(shard)], k)


def shard_folder(index: Path, number: int) -> Path:
    """Where an index artifact keeps a shard."""
    return index / f"shard-{number:05d}"


def open_shards(index: Artifact) -> ShardSet:
    """Load every shard of an index into this process."""
    numbers = range(int(index.manifest.summary["num_shards"]))
    return ShardSet([IndexShard(shard_folder(index.folder, number), index.fingerprint) for number in numbers])


def read_passages(index: Path) -> list[Passage]:
    """All passages of an index, shard by shard."""
    passages = []
    for folder in map(local_copy, sorted(index.glob("shard-*"))):
        with pa.memory_map(str(folder / _PASSAGES)) as source:
            rows = pa.ipc.open_file(source).read_all().select(["id", "title", "text"]).to_pylist()
            passages += [Passage(**row) for row in rows]
    return passages


def merge_hits(parts: Iterable[Hits], k: int) -> Hits:
    """The k best of several shards' hits, for every question; the same whatever the order of the parts.

    Raises:
        InputError: if there are no parts, or if they come from different index versions.
    """
    parts = list(parts)
    versions = sorted({part.index_version for part in parts})
    if len(versions) != 1:
        raise InputError(f"hits of one index version are needed, got {versions or 'no hits'}")
    scores_BM = np.concatenate([part.scores_BK for part in parts], axis=1)
    vectors_BMD = np.concatenate([part.vectors_BKD for part in parts], axis=1)
    passages_BM = [
        [passage for row in rows for passage in row] for rows in zip(*(part.passages_BK for part in parts), strict=True)
    ]
    order_BK = [
        order_topk(scores, [passage.id for passage in row], k)
        for scores, row in zip(scores_BM, passages_BM, strict=True)
    ]
    return Hits(
        np.stack([scores[order] for scores, order in zip(scores_BM, order_BK, strict=True)]),
        np.stack([vectors[order] for vectors, order in zip(vectors_BMD, order_BK, strict=True)]),
        [[row[position] for position in order] for row, order in zip(passages_BM, order_BK, strict=True)],
        versions[0],
    )
