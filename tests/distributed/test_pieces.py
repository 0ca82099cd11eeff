"""A map that can be killed anywhere and goes on: every output once and whole."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ragray.distributed.pieces import Piece, PieceWorker, run_pieces
from ragray.records import InputError
from ragray.storage import write_whole

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture
def shouter():
    """A worker that writes its task in capitals and notes that it ran; made here, so that it travels by value."""

    class Shouter(PieceWorker):
        def __init__(self, log: str, deadly: str | None = None, refused: str | None = None) -> None:
            self.log, self.deadly, self.refused = Path(log), deadly, refused

        def process(self, task, output):
            with self.log.open("a") as file:
                file.write(f"{task['word']}\n")
            if task["word"] == self.refused:
                raise InputError(f"{self.refused!r} can't be shouted")
            with write_whole(output) as temporary:
                temporary.write_text(task["word"].upper())
                if task["word"] == self.deadly and not self.log.with_suffix(".killed").exists():
                    self.log.with_suffix(".killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)  # while its output is half-written
            return {"letters": len(task["word"])}

    return Shouter


@pytest.fixture
def pieces(tmp_path):
    return [Piece(str(tmp_path / f"{word}.txt"), {"word": word}, units=2) for word in ("one", "two", "three", "four")]


def texts(pieces):
    return [Path(piece.output).read_text() for piece in pieces]


def test_every_piece_is_run_and_progress_told(shouter, pieces, tmp_path):
    told = []
    ran = run_pieces(pieces, shouter, {"log": str(tmp_path / "log")}, 2, progress=lambda *done: told.append(done))
    assert ran == {"pieces": 4, "letters": 15}
    assert texts(pieces) == ["ONE", "TWO", "THREE", "FOUR"]
    assert told == [(0, 8), (2, 8), (4, 8), (6, 8), (8, 8)]


def test_only_missing_pieces_are_run(shouter, pieces, tmp_path):
    for piece in (pieces[0], pieces[2]):
        Path(piece.output).write_text("kept")
    told = []
    ran = run_pieces(pieces, shouter, {"log": str(tmp_path / "log")}, 2, progress=lambda *done: told.append(done))
    assert ran == {"pieces": 2, "letters": 7}
    assert sorted((tmp_path / "log").read_text().split()) == ["four", "two"]
    assert texts(pieces) == ["kept", "TWO", "kept", "FOUR"]
    assert told[0] == (4, 8)


def test_a_killed_worker_costs_nothing_but_time(shouter, pieces, tmp_path):
    run_pieces(pieces, shouter, {"log": str(tmp_path / "log"), "deadly": "two"}, 2)
    assert (tmp_path / "log.killed").exists()
    assert texts(pieces) == ["ONE", "TWO", "THREE", "FOUR"]


def test_an_error_arrives_as_it_was_raised_and_stops_the_workers(shouter, pieces, tmp_path):
    import ray
    from ray.util.state import list_actors

    with pytest.raises(InputError, match=r"^'three' can't be shouted$"):
        run_pieces(pieces, shouter, {"log": str(tmp_path / "log"), "refused": "three"}, 2)
    deadline = time.monotonic() + 30
    while working := [actor for actor in list_actors(ray.get_runtime_context().gcs_address) if _is_working(actor)]:
        assert time.monotonic() < deadline, working
        time.sleep(0.2)


def test_an_error_of_the_constructor_arrives_too(pieces):
    class Unwilling(PieceWorker):
        def __init__(self) -> None:
            raise InputError("no model there")

    with pytest.raises(InputError, match=r"^no model there$"):
        run_pieces(pieces, Unwilling, {}, 1)


def _is_working(actor) -> bool:
    return actor.class_name.startswith("MapWorker") and actor.state != "DEAD"
