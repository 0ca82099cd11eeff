"""What is wrong is said in one line, with exit code 1, and leaves no folder behind."""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path

import pytest
from transformers import BertConfig

from pipelines.chunk_corpus import chunk_corpus
from pipelines.embed_passages import embed_passages
from pipelines.evaluate_rag import evaluate_rag
from pipelines.index_embeddings import index_embeddings
from pipelines.job import run_job
from pipelines.serve_rag import serve_rag
from pipelines.train_rag import train_rag
from ragray.demo import tiny
from ragray.demo.packages import quiet_transformers

DOCUMENT = json.dumps({"id": "a", "title": "A", "text": "some words"}).encode() + b"\n"
HALF_A_GZIP = gzip.compress(b"".join(DOCUMENT.replace(b'"a"', b'"%d"' % n) for n in range(2000)))[:5000]


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs a job that must fail; returns what it said."""

    def run(job, *settings: str, recipe: str = "debug", folder: Path = tmp_path / "run") -> str:
        before = sorted(folder.rglob("*"))
        overrides = [word for setting in settings for word in ("--set", setting)]
        assert run_job("", job, ["--recipe", recipe, "--run", str(folder), *overrides]) == 1
        assert sorted(folder.rglob("*")) == before
        error = capsys.readouterr().err
        assert re.fullmatch("error: [^\n]+\n", error)
        return error

    return run


def test_a_missing_corpus(jobs):
    """As a user sees it; the other tests call the job in this process."""
    job = jobs.run("chunk_corpus", "--recipe", "debug", "--run", "runs/bad", "--set", "corpus=nowhere.jsonl")
    assert (job.returncode, job.output) == (1, "")
    assert job.errors == "error: no corpus at nowhere.jsonl\n"
    assert not (jobs.cwd / "runs" / "bad").exists()


@pytest.mark.ray
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", b"<xml>\n", r"corpus.jsonl, line 1: not JSON .*<xml>"),
        ("corpus.jsonl", DOCUMENT + b'{"id": "b"}\n', r"corpus.jsonl, line 2: no 'title' among \['id'\]"),
        ("corpus.jsonl", DOCUMENT * 2, r"the document id 'a' is used more than once"),
        ("corpus.jsonl", b"", r"corpus.jsonl holds no words"),
        ("corpus.jsonl", gzip.compress(DOCUMENT), r"corpus.jsonl is compressed as .gz, against what its name says"),
        ("corpus.jsonl.gz", HALF_A_GZIP, r"corpus.jsonl.gz is a damaged or cut .gz file"),
    ],
    ids=["not-json", "no-title", "id-twice", "empty", "gzip-by-another-name", "cut-gzip"],
)
def test_a_corpus_that_can_not_be_read(ray_cluster, refused, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert re.search(message, refused(chunk_corpus, f"corpus={tmp_path / name}"))


@pytest.mark.ray
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "Why?", "answers": ["so"]}\n{"question": \n', "questions.jsonl, line 2: not JSON"),
        ('{"question": "Why?", "answers": []}\n', "questions.jsonl, line 1: the question 'Why?' has no answers"),
        ("", "questions.jsonl holds no questions"),
    ],
    ids=["broken-line", "no-answers", "empty"],
)
def test_questions_that_can_not_be_read(debug_run, refused, tmp_path, content, message):
    file = tmp_path / "questions.jsonl"
    file.write_text(content)
    training = debug_run.copy(tmp_path / "run", "3-index")
    assert message in refused(train_rag, f"train_questions={file}", folder=training)
    evaluation = debug_run.copy(tmp_path / "other", "3-index", "4-model")
    assert message in refused(evaluate_rag, f"dev_questions={{dev: {file}}}", folder=evaluation)


@pytest.mark.ray
def test_an_index_of_another_encoder(debug_run, refused, tmp_path):
    folder = debug_run.copy(tmp_path / "run", "0-demo", "3-index")
    inputs = json.loads((folder / "3-index" / "manifest.json").read_text())["inputs"]
    built_with = next(ref["fingerprint"] for ref in inputs if ref["kind"] == "encoder")
    error = refused(train_rag, "encoder.max_passage_tokens=9", folder=folder)
    named = re.search(r"built with passage encoder (\w+), but .* needs (\w+): .* Embed and index the corpus", error)
    assert named
    assert named[1] == built_with != named[2]


@pytest.fixture
def other_encoder(tmp_path) -> Path:
    """Of the same dimension as the demo's."""
    with quiet_transformers():
        tiny.save_encoder(tmp_path / "other-encoder", ["Another encoder knows other words."])
    return tmp_path / "other-encoder"


@pytest.mark.ray
def test_an_index_of_another_passage_encoder(debug_run, refused, other_encoder, tmp_path):
    folder = debug_run.copy(tmp_path / "run", "0-demo", "3-index")
    error = refused(train_rag, f"encoder.passage_model={other_encoder}", folder=folder)
    assert re.search(rf"built with passage encoder \w+, but the run with passage encoder {other_encoder} needs", error)


@pytest.mark.ray
def test_a_model_of_another_question_encoder(debug_run, refused, other_encoder, tmp_path):
    """The index is the right one: its passage encoder is named, and only the questions' is another."""
    folder = debug_run.copy(tmp_path / "run", "0-demo", "3-index", "4-model")
    towers = (f"encoder.model={other_encoder}", "encoder.passage_model=demo:tiny-encoder")
    error = refused(evaluate_rag, *towers, folder=folder)
    assert re.search(rf"trained from question encoder \w+, but the recipe's encoder.model={other_encoder} is", error)


@pytest.mark.ray
@pytest.mark.parametrize(("job", "stages"), [(embed_passages, ["1-passages"]), (train_rag, ["0-demo", "3-index"])])
def test_towers_of_different_dimensions(debug_run, refused, other_encoder, tmp_path, job, stages):
    BertConfig(hidden_size=48).save_pretrained(other_encoder)
    folder = debug_run.copy(tmp_path / "run", *stages)
    error = refused(job, f"encoder.passage_model={other_encoder}", folder=folder)
    assert re.search(
        rf"one dimension, but encoder.model=\S+ has 32 and encoder.passage_model={other_encoder} has 48", error
    )


@pytest.mark.ray
@pytest.mark.parametrize(
    ("job", "setting", "message"),
    [
        (chunk_corpus, "chunk.size=30", "1-passages was made differently: size is 20 there and 30 here"),
        (embed_passages, "encoder.max_passage_tokens=9", r"2-embeddings was made differently: its encoder was \w+ and"),
        (index_embeddings, "index.num_shards=3", "3-index was made differently: num_shards is 2 there and 3 here"),
        (train_rag, "train.seed=1", "4-model was made differently: seed is 0 there and 1 here"),
    ],
    ids=["chunk", "embed", "index", "train"],
)
def test_other_settings_over_a_finished_folder(debug_run, refused, job, setting, message):
    error = refused(job, setting, folder=debug_run.folder)
    assert re.search(message, error)
    assert "Choose another run folder, or delete" in error


def test_a_stage_before_its_input(refused):
    assert "1-passages doesn't exist; run the stage that makes it first" in refused(embed_passages)


def test_an_unknown_recipe(refused):
    assert re.search(
        r"no recipe .*debugg.yaml; recipes there: debug, .*quickstart", refused(chunk_corpus, recipe="debugg")
    )


def test_an_unknown_setting(refused):
    assert "chunk.wrods: extra inputs are not permitted" in refused(chunk_corpus, "chunk.wrods=3")


def test_an_unknown_demo_model(debug_run, refused, tmp_path):
    folder = debug_run.copy(tmp_path / "run", "1-passages")
    assert "no demo model 'demo:bert'; there are demo:minilm," in refused(
        embed_passages, "encoder.model=demo:bert", folder=folder
    )


@pytest.mark.ray
def test_a_taken_port(debug_run, refused):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        error = refused(serve_rag, f"serve.port={port}", folder=debug_run.folder)
    assert f"can't listen on 127.0.0.1:{port} (Address already in use): choose another" in error
