"""What a job prints where there is no terminal: plain lines, now and then one about the progress."""

from __future__ import annotations

import re

import pytest

from ragray import console
from ragray.console import Console


def test_a_stage_tells_its_start_and_its_outcome(capsys):
    ours = Console()
    with ours.stage("embed_passages") as stage:
        stage.progress(3, 10)
        stage.note("a [note] in brackets")
        stage.outcome = "10 vectors [384]"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "embed_passages    …"
    assert lines[1] == "  a [note] in brackets"
    assert re.fullmatch(r"embed_passages    10 vectors \[384\] \(0 s\)", lines[2])
    assert ours.seconds["embed_passages"] >= 0


def test_a_stage_that_fails_tells_no_outcome(capsys):
    ours = Console()
    with pytest.raises(OSError, match="disk"), ours.stage("embed_passages"):
        raise OSError("disk")
    assert capsys.readouterr().out == "embed_passages    …\n"
    assert ours.seconds == {}


def test_a_log_gets_a_line_with_the_remaining_time_now_and_then(capsys, monkeypatch):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    with Console().stage("train_rag") as stage:
        for done in range(5):
            stage.progress(done, 8)
    told = [line for line in capsys.readouterr().out.splitlines() if " of 8" in line]
    assert told == [
        "  train_rag: 1 of 8, about 280 s left",
        "  train_rag: 3 of 8, about 133 s left",
    ]


def test_kept_work_does_not_count_for_the_speed(capsys, monkeypatch):
    """A run that goes on at 900 of 1000 has done nothing yet."""
    clock = iter([0.0, 1.0, 100.0, 101.0, 102.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with Console().stage("embed_passages") as stage:
        stage.progress(900, 1000)
        stage.progress(910, 1000)
    assert "910 of 1,000, about 900 s left" in capsys.readouterr().out


def test_lines_are_printed_as_they_are(capsys):
    ours = Console()
    long = "[bold]no markup[/bold] " * 20
    ours.line(long)
    ours.skipped("chunk_corpus", "runs/[x] is there")
    assert capsys.readouterr().out == f"{long}\nchunk_corpus      skipped: runs/[x] is there\n"
