"""The ``ragray`` command is a thin face of the pipelines."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ragray.cli import app

COMMANDS = ["quickstart", "demo", "chunk", "embed", "index", "train", "evaluate", "serve", "ask", "plan"]


@pytest.fixture
def ragray():
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_help_lists_the_commands(ragray):
    result = ragray("--help")
    assert result.exit_code == 0
    assert [command for command in COMMANDS if f"  {command} " in result.output] == COMMANDS


@pytest.mark.ray
def test_ask_answers_from_a_finished_run(ragray, debug_run):
    """The run is made by Ray processes; the answer needs none."""
    result = ragray("ask", "What is the capital of Norland?", "--recipe", "debug", "--run", debug_run.folder)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "Q  What is the capital of Norland?" in lines
    assert sum(line.startswith("   prior ") for line in lines) == 3


def test_a_users_error_is_one_line_and_exit_code_1(ragray, tmp_path):
    for arguments, message in [
        (("ask", " ", "--run", tmp_path), "error: the question is empty\n"),
        (("chunk", "--recipe", "debug", "--set", "corpus=nowhere", "--run", tmp_path / "r"), "no corpus at nowhere"),
        (("ask", "who?", "--address", "nowhere", "--run", tmp_path), "no answer from nowhere"),
        (("index", "--set", "words"), "override 'words' must read section.key=value"),
    ]:
        result = ragray(*arguments)
        assert result.exit_code == 1
        assert message in result.output
        assert result.output.count("\n") == 1


def test_plan_has_the_flags_of_its_job(ragray, encoder_folder):
    result = ragray("plan", "--passages", "21e6", "--encoder", encoder_folder, "--machines", 2, "--cpus", 4)
    assert result.exit_code == 0, result.output
    assert "21,000,000 passages" in result.output
    assert "ragray plan" in ragray("plan", "--help").output
