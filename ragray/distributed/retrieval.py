"""Retrieval actors: every shard of an index lives in an actor of its own, and a search asks all of them.

``ClusterRetriever`` is the cluster's ``Retriever``.  It is picklable: the trainer, the evaluator and the server each
get a copy that talks to the same actors.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from ragray.artifacts import Artifact
from ragray.index_shard import IndexShard, merge_hits, shard_folder
from ragray.records import FloatArray, Hits, RagrayError

_RETRY_PAUSE_S = 0.5


class RetrievalError(RagrayError):
    """A shard doesn't answer in time."""


@ray.remote
class ShardActor:
    """Holds one shard; restarts by loading it again from disk."""

    def __init__(self, folder: str, index_version: str) -> None:
        self._shard = IndexShard(folder, index_version, num_threads=1)

    def search(self, vectors_BD: FloatArray, k: int) -> Hits:
        return self._shard.search(vectors_BD, k)

    def size(self) -> int:
        return len(self._shard)


@dataclass(frozen=True, slots=True)
class ClusterRetriever:
    """The merged top-k of all shard actors of one index version."""

    actors: tuple[Any, ...]
    index_version: str
    timeout_s: float = 120.0

    @classmethod
    def start(cls, index: Artifact) -> ClusterRetriever:
        """Start one actor a shard and wait until all have loaded.

        Raises:
            RetrievalError: if a shard doesn't load in time.
        """
        options = ShardActor.options(num_cpus=0, max_restarts=-1, scheduling_strategy="SPREAD")  # type: ignore[attr-defined]
        actors = tuple(
            options.remote(str(shard_folder(index.folder, number)), index.fingerprint)
            for number in range(int(index.manifest.summary["num_shards"]))
        )
        retriever = cls(actors, index.fingerprint)
        retriever._ask_all("size")
        return retriever

    def search(self, vectors_BD: FloatArray, k: int) -> Hits:
        """The ``min(k, N)`` nearest passages over all shards.

        Raises:
            RetrievalError: if a shard doesn't answer within ``timeout_s``, restarts included.
            InputError: as ``IndexShard.search``.
        """
        parts: list[Hits] = self._ask_all("search", ray.put(vectors_BD), k)
        return merge_hits(parts, k)

    def stop(self) -> None:
        """End the actors.  Searches fail from then on."""
        for actor in self.actors:
            ray.kill(actor)

    def _ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """Ask every actor, all at once; one that died is asked again while Ray restarts it, until the time is up."""
        deadline = time.monotonic() + self.timeout_s
        calls = [getattr(actor, method).remote(*arguments) for actor in self.actors]
        answers = []
        for number, actor in enumerate(self.actors):
            while True:
                try:
                    answers.append(ray.get(calls[number], timeout=max(0.0, deadline - time.monotonic())))
                    break
                except (RayActorError, GetTimeoutError) as error:
                    if time.monotonic() + _RETRY_PAUSE_S > deadline:
                        raise RetrievalError(
                            f"shard {number} of index {self.index_version} gave no answer within "
                            f"{self.timeout_s:.0f} s ({type(error).__name__}): see `ray status` and the shard's files, "
                            "then try again"
                        ) from error
                    time.sleep(_RETRY_PAUSE_S)
                    calls[number] = getattr(actor, method).remote(*arguments)
        return answers
