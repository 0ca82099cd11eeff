"""The Serve app with the tiny models, asked over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.job import open_run
from pipelines.serve_rag import ask, serving
from ragray.records import RagrayError

pytestmark = pytest.mark.ray

QUESTIONS = ["What is the capital of Norland?", "Who leads Drosk?", "Which money is used in Hanji?", "Where?"]


@pytest.fixture(scope="module")
def address(ray_cluster, debug_run, free_port):
    with serving(open_run("debug", debug_run.folder, [f"serve.port={free_port()}"])) as address:
        yield address


def post(address: str, body: bytes) -> tuple[int, str]:
    request = urllib.request.Request(f"{address}/ask", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"{address}{path}", timeout=60) as response:
        return response.read().decode()


def test_an_answer_comes_with_its_evidence(address):
    answer = ask(address, QUESTIONS[0])
    assert set(answer) == {"question", "answer", "log_prob", "index_version", "passages"}
    assert answer["question"] == QUESTIONS[0]
    assert len(answer["passages"]) == 3
    for passage in answer["passages"]:
        assert set(passage) == {"id", "title", "text", "prior", "posterior"}
    for probability in ("prior", "posterior"):
        assert sum(passage[probability] for passage in answer["passages"]) == pytest.approx(1, abs=1e-3)


def test_concurrent_questions_get_their_own_answers(address):
    alone = {question: ask(address, question) for question in QUESTIONS}
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda question: ask(address, question), QUESTIONS * 4))
    for question, answer in zip(QUESTIONS * 4, together, strict=True):
        assert answer["question"] == question
        assert {p["id"] for p in answer["passages"]} == {p["id"] for p in alone[question]["passages"]}
        priors = [sorted(p["prior"] for p in one["passages"]) for one in (answer, alone[question])]
        assert priors[0] == pytest.approx(priors[1], abs=1e-3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"question": "  "}', "at least 1 character"),
        (b'{"question": "Why?", "k": 3}', "Extra inputs are not permitted"),
        (b'{"query": "Why?"}', "Field required"),
        (json.dumps({"question": "why " * 1000}).encode(), "at most 2000 characters"),
        (b"Why?", "JSON decode error"),
    ],
    ids=["empty", "unknown-field", "no-question", "too-long", "no-json"],
)
def test_a_request_that_is_none_is_refused_with_the_reason(address, body, message):
    status, reason = post(address, body)
    assert status == 422
    assert message in reason


def test_a_refusal_reaches_the_prompt_as_an_error(address):
    with pytest.raises(RagrayError, match=r"refused the question \(422\).*at least 1 character"):
        ask(address, "")


def test_it_tells_what_it_serves(address, debug_run):
    about = json.loads(get(address, "/about"))
    manifest = json.loads((debug_run.folder / "3-index" / "manifest.json").read_text())
    assert about["index_version"] == manifest["fingerprint"] == ask(address, QUESTIONS[0])["index_version"]
    assert about["passages"] == 60
    assert about["variant"] == "rag_token"
    assert "What is the capital of Norland?" in about["examples"]


def test_health_and_page_are_there(address):
    assert json.loads(get(address, "/healthz")) == {"status": "ok"}
    assert get(address, "/").lstrip().lower().startswith("<!doctype html>")


def test_nobody_at_the_address_is_said_in_a_sentence(free_port):
    with pytest.raises(RagrayError, match=r"no answer from .*: give the URL that `ragray serve` shows"):
        ask(f"http://127.0.0.1:{free_port()}", "Why?")
