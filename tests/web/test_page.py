"""The server's page: rules that its text must keep, and its behaviour in a browser against a stub of the API."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

import pytest

PAGE = resources.files("ragray.web").joinpath("index.html").read_text(encoding="utf-8")
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Tags(HTMLParser):
    """Collects start tags and asserts that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def tags() -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(PAGE)
    parser.close()
    assert parser.open == []
    return parser.tags


def test_page_names_no_address_outside_the_server(tags: list[tuple[str, dict[str, str | None]]]) -> None:
    assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", PAGE, re.IGNORECASE)
    addresses = [attrs[name] for _, attrs in tags for name in ("src", "href", "action") if name in attrs]
    assert addresses == ["data:,"]
    assert "default-src 'none'; connect-src 'self'" in PAGE


def test_page_never_turns_data_into_markup() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in PAGE


def test_every_input_has_a_label_and_every_reference_an_id(tags: list[tuple[str, dict[str, str | None]]]) -> None:
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = {attrs["for"] for tag, attrs in tags if tag == "label"}
    assert {attrs["id"] for tag, attrs in tags if tag == "input"} == labelled
    for _, attrs in tags:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert attrs.get(name) is None or attrs[name] in ids
    assert set(re.findall(r'byId\("([^"]+)"\)', PAGE)) <= set(ids)


def test_waiting_and_errors_are_announced(tags: list[tuple[str, dict[str, str | None]]]) -> None:
    by_id = {attrs["id"]: attrs for _, attrs in tags if "id" in attrs}
    assert by_id["status"]["aria-live"] == "polite"
    assert by_id["error"]["role"] == "alert"
    assert ("html", {"lang": "en"}) in tags


# In a browser

ANSWER = {
    "question": "Which city is the capital of Brunei?",
    "answer": "Bandar Seri Begawan",
    "log_prob": -0.5,
    "index_version": "index-2",
    "passages": [
        {"id": "bx:0", "title": "Brunei", "text": "An oil state.", "prior": 0.7, "posterior": 0.05},
        {
            "id": "bx:1",
            "title": "<b>Brunei</b>",
            "text": "<script>window.broken = 1</script> Capital: BANDAR SERI BEGAWAN. Not Bandar Seri Begawans.",
            "prior": 0.3,
            "posterior": 0.95,
        },
    ],
}
ABOUT = {
    "run": "quickstart",
    "variant": "rag_token",
    "index_version": "index-1",
    "passages": 4253,
    "encoder": "MiniLM",
    "generator": "SmolLM2",
    "examples": ["Which city is the capital of Brunei?"],
}


class Stub(BaseHTTPRequestHandler):
    """Answers as the real API does; the question chooses the outcome."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/about":
            self._send(200, json.dumps(ABOUT), "application/json")
        else:
            self._send(200, PAGE, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["question"]
        status, body = 200, ANSWER | {"question": question}
        if not question.strip():
            status, body = 422, {"detail": [{"msg": "question must not be empty", "loc": ["body", "question"]}]}
        elif question == "busy":
            status, body = 503, {"detail": "All replicas are at work."}
        elif question == "odd":
            return self._send(200, "no JSON", "application/json")
        self._send(status, json.dumps(body), "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(server: ThreadingHTTPServer) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on the PATH")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        yield page
        browser.close()
        assert problems == []


def ask(page: Any, question: str) -> None:
    page.get_by_label("Your question").fill(question)
    page.keyboard.press("Enter")


@pytest.mark.browser
def test_answer_with_passages_by_posterior(page: Any) -> None:
    page.get_by_role("button", name="Which city is the capital of Brunei?").click()
    page.get_by_role("heading", name="Passages, by their share in the answer").wait_for()
    assert page.locator("#answer").inner_text() == "Bandar Seri Begawan"
    assert "60.7%" in page.locator("#probability").inner_text()  # exp(-0.5)
    cards = page.locator("#passages li")
    assert cards.locator("small").all_inner_texts() == ["bx:1", "bx:0"]
    assert cards.nth(0).locator("b").all_inner_texts() == ["30.0%", "95.0%"]
    assert cards.nth(0).locator("mark").all_inner_texts() == ["BANDAR SERI BEGAWAN"]
    assert page.locator("#index-version").inner_text() == "index-2"
    assert page.locator("#variant").inner_text() == "RAG-Token"


@pytest.mark.browser
def test_markup_in_passages_stays_text(page: Any) -> None:
    ask(page, "anything")
    page.locator("#passages li").first.wait_for()
    assert "<b>Brunei</b>" in page.locator("#passages h3").first.inner_text()
    assert "<script>" in page.locator("#passages .text").first.inner_text()
    assert page.evaluate("window.broken") is None


@pytest.mark.browser
@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("", "question must not be empty"),
        ("busy", "The server is busy. All replicas are at work. Try again in a moment."),
        ("odd", "The server's reply can't be read"),
    ],
)
def test_errors_are_said_in_words(page: Any, question: str, message: str) -> None:
    ask(page, question)
    page.locator("#error").wait_for()
    assert message in page.locator("#error").inner_text()
    assert page.locator("#submit").inner_text() == "Ask"
    ask(page, "a good question")
    page.locator("#passages li").first.wait_for()
    assert not page.locator("#error").is_visible()


@pytest.mark.browser
def test_network_down_is_said(page: Any) -> None:
    page.context.set_offline(True)
    ask(page, "anything")
    page.locator("#error").wait_for()
    assert "can't be reached" in page.locator("#error").inner_text()


@pytest.mark.browser
def test_history_asks_again(page: Any) -> None:
    for question in ("first", "second"):
        ask(page, question)
        page.locator("#asked", has_text=question).wait_for()
    page.locator("#history-list button", has_text="first").click()
    page.locator("#asked", has_text="first").wait_for()
    assert page.locator("#history-list button").all_inner_texts()[0].startswith("first")


@pytest.mark.browser
def test_narrow_screens_need_no_sideways_scrolling(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    ask(page, "anything")
    page.locator("#passages li").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
