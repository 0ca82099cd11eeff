"""The whole chain, run as a user runs it: with tiny models, over real processes, files and HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from ragray.artifacts import MANIFEST

pytestmark = pytest.mark.ray

STAGES = ["0-demo", "1-passages", "2-embeddings", "3-index", "4-model", "5-report"]


def contents(folder: Path, *stages: str) -> dict[str, str]:
    """SHA-256 of every file, by relative name."""
    files = [file for stage in stages for file in sorted((folder / stage).rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def fingerprints(folder: Path) -> dict[str, str]:
    return {stage: json.loads((folder / stage / MANIFEST).read_text())["fingerprint"] for stage in STAGES}


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 200
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"{folder / pattern} never came"
        time.sleep(0.01)


def test_one_command_makes_every_stage(debug_run):
    assert sorted(path.name for path in debug_run.folder.iterdir()) == STAGES
    assert (debug_run.folder / "5-report" / "report.html").stat().st_size > 10_000


def test_metrics_are_complete(debug_run):
    metrics = json.loads((debug_run.folder / "5-report" / "metrics.json").read_text())
    names = {"recall@1", "recall@5", "recall@20", "exact_match", "f1", "nll"}
    assert metrics["questions"] == {"dev": 16, "dev_wording": 16}
    for scores in (metrics, metrics["dev_wording"]):
        assert scores["frozen"] is None
        assert {name: set(scores[name]) for name in ("before", "after", "closed_book")} == dict.fromkeys(
            ("before", "after", "closed_book"), names
        )
        assert scores["closed_book"]["recall@1"] is None
        assert scores["before"] != scores["after"]
    assert set(metrics["comparisons"]) == {"dev", "dev_wording"}


def test_it_ends_with_cited_answers_and_the_results(debug_run):
    output = debug_run.job.output
    assert "Q  What is the capital of Norland?" in output
    assert output.count(" prior ") == 2 * 3
    assert str(debug_run.folder / "5-report" / "report.html") in output
    assert re.search(rf"ragray serve .*--run {debug_run.folder}", output)


def test_ray_keeps_quiet_and_leaves_nothing_running(debug_run):
    said = [line for line in debug_run.job.errors.splitlines() if "Set ray log level" not in line]
    assert said == []
    assert "raylet" not in debug_run.job.output
    assert "" not in debug_run.job.output.partition("serve_rag")[0].splitlines()
    assert debug_run.job.left_over == []


def test_the_same_command_again_skips_everything(debug_run, jobs):
    before = {file: file.stat().st_mtime_ns for file in debug_run.folder.rglob("*")}
    again = jobs.run("end_to_end", "--recipe", "debug", "--run", debug_run.folder, "--set", "serve.demo_questions=[]")
    assert again.returncode == 0, again.errors
    assert again.output.count("skipped") == len(STAGES)
    assert {file: file.stat().st_mtime_ns for file in debug_run.folder.rglob("*")} == before


def test_a_killed_run_goes_on_to_the_same_result(debug_run, jobs, tmp_path):
    command = ("end_to_end", "--recipe", "debug", "--run", tmp_path / "run", "--set", "serve.demo_questions=[]")
    job = jobs.start(*command)
    wait_for(tmp_path / "run", ".2-embeddings.partial/embeddings-*.parquet")
    os.killpg(job.pid, signal.SIGKILL)
    jobs.finish(job)
    assert not (tmp_path / "run" / "2-embeddings").exists()

    again = jobs.run(*command)
    assert again.returncode == 0, again.errors
    assert again.output.count("skipped") == 2
    assert fingerprints(tmp_path / "run") == fingerprints(debug_run.folder)
    weights = [f"4-model/{part}/model.safetensors" for part in ("question_encoder", "generator")]
    ours, theirs = contents(tmp_path / "run", *STAGES), contents(debug_run.folder, *STAGES)
    assert ours.keys() == theirs.keys()
    for name in [*weights, *(name for name in ours if name[0] in "0123" and not name.endswith(MANIFEST))]:
        assert ours[name] == theirs[name], name


@pytest.mark.slow
def test_rag_sequence_goes_the_whole_way_too(debug_run, jobs, tmp_path, free_port):
    folder = debug_run.copy(tmp_path / "run", *STAGES[:4])
    settings = ("train.variant=rag_sequence", f"serve.port={free_port()}")
    overrides = [word for setting in settings for word in ("--set", setting)]
    job = jobs.run("end_to_end", "--recipe", "debug", "--run", folder, *overrides)
    assert job.returncode == 0, job.errors
    assert job.output.count(" posterior ") == 2 * 3
    manifest = json.loads((folder / "4-model" / MANIFEST).read_text())
    assert manifest["config"]["variant"] == "rag_sequence"


@pytest.mark.parametrize(
    ("finished", "moment"),
    [
        (STAGES[:2], ".2-embeddings.partial/embeddings-*"),
        pytest.param(STAGES[:4], ".4-model.partial/*.jsonl", marks=pytest.mark.slow),
    ],
    ids=["embedding", "training"],
)
def test_ctrl_c_stops_everything_and_says_how_to_go_on(debug_run, jobs, tmp_path, finished, moment):
    folder = debug_run.copy(tmp_path / "run", *finished)
    job = jobs.start("end_to_end", "--recipe", "debug", "--run", folder)
    wait_for(folder, moment)
    os.killpg(job.pid, signal.SIGINT)
    ended = jobs.finish(job)
    assert ended.returncode == 130
    assert ended.errors.splitlines()[-1] == "interrupted; the same command goes on from here"
    assert "Traceback" not in ended.errors
    assert ended.left_over == []
