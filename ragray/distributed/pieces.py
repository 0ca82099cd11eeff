"""A resumable map: work cut into pieces, each of which writes one file, run by Ray Data on tasks or a pool of actors.

A piece is done when its file exists: files appear whole, by a rename.  So a job that is killed and run again does only
what is missing, and a piece that Ray retries after a crash does no harm.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayError

from ragray.console import Progress
from ragray.records import RagrayError
from ragray.storage import location


@dataclass(frozen=True, slots=True)
class Piece:
    """One unit of work: what to do (values to be pickled), the file it makes, and its weight for the progress bar."""

    output: str
    task: dict[str, Any]
    units: int = 1


class PieceWorker:
    """Base of workers: built once an actor, then given one piece after another."""

    def process(self, task: dict[str, Any], output: Path) -> Mapping[str, int] | None:
        """Do the work and write ``output`` under a name that ``write_whole`` gives; returns what was measured."""
        raise NotImplementedError


class _Runner:
    """What Ray Data calls.  Errors of ours come back as values: of what an actor raises, Ray keeps only the text."""

    def __init__(self, worker: type[PieceWorker], arguments: dict[str, Any]) -> None:
        self._make = partial(worker, **arguments)
        self._worker: PieceWorker | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        ((output, task),) = zip(batch["output"], batch["task"], strict=True)
        measured: Mapping[str, int] | None = None
        try:
            self._worker = self._worker or self._make()
            place = location(output)
            if not place.exists():
                measured = self._worker.process(pickle.loads(task), place)
        except RagrayError as error:
            return {"units": batch["units"], "error": [pickle.dumps(error)], "measured": [b""]}
        return {"units": batch["units"], "error": [b""], "measured": [pickle.dumps(dict(measured or {}))]}


def run_pieces(
    pieces: Sequence[Piece],
    worker: type[PieceWorker],
    arguments: dict[str, Any],
    num_actors: int,
    cpus_per_actor: float = 1,
    gpus_per_actor: float = 0,
    progress: Progress = lambda done, total: None,
) -> Counter[str]:
    """Run every piece whose file doesn't exist yet; returns how many ``pieces`` that were, and the sums of what they
    measured.

    Raises:
        RagrayError: what a worker raised, as it raised it.
    """
    total = sum(piece.units for piece in pieces)
    folders = {location(piece.output).parent for piece in pieces}
    there = {str(path) for folder in folders if folder.exists() for path in folder.iterdir()}
    missing = [piece for piece in pieces if str(location(piece.output)) not in there]
    done = total - sum(piece.units for piece in missing)
    progress(done, total)
    measured = Counter(pieces=len(missing))
    if not missing:
        return measured
    DataContext.get_current().enable_progress_bars = False
    DataContext.get_current().print_on_execution_start = False
    num_actors = min(num_actors, len(missing))
    dataset = ray.data.from_items(
        [{"output": piece.output, "task": pickle.dumps(piece.task), "units": piece.units} for piece in missing],
        override_num_blocks=len(missing),
    ).map_batches(
        _Runner,
        fn_constructor_kwargs={"worker": worker, "arguments": arguments},
        batch_size=1,
        compute=ActorPoolStrategy(size=num_actors),
        num_cpus=cpus_per_actor,
        num_gpus=gpus_per_actor or None,
    )
    for row in dataset.iter_rows():
        if row["error"]:
            raise pickle.loads(row["error"])
        measured.update(pickle.loads(row["measured"]))
        done += int(row["units"])
        progress(done, total)
    return measured


def innermost_error(error: BaseException) -> BaseException | None:
    """The error of ours under the wrappers that Ray puts around what a worker raised; None if there is none.

    It comes without the other process's traceback, which stays on the error that it is raised from.
    """
    seen: BaseException | None = error
    visited: set[int] = set()
    while seen is not None and id(seen) not in visited:
        visited.add(id(seen))
        if isinstance(seen, RagrayError):
            family = next(k for k in type(seen).__mro__ if issubclass(k, RagrayError) and not issubclass(k, RayError))
            return family(str(seen.args[0] if seen.args else seen))
        failures = getattr(seen, "worker_failures", None) or {}
        inner = getattr(seen, "cause", None) or next(iter(failures.values()), None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__
    return None
