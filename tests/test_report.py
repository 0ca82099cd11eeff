"""The report says what the numbers say, escapes what it was given, and is the same page for the same content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ragray.formulas.metrics import Interval
from ragray.records import Answer, Passage
from ragray.report import Example, ReportContent, RunFacts, format_seconds, render_report, write_report
from ragray.web import figures
from ragray.web.evidence import highlight
from ragray.web.scores import format_interval, format_score

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Asserts balanced tags; keeps the text outside <style> and the ids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.pieces.append(data)


def scores(recall: float | None, em: float, f1: float, nll: float) -> dict[str, float | None]:
    return {"recall@1": recall, "recall@7": recall, "exact_match": em, "f1": f1, "nll": nll}


def interval(difference: float, low: float, high: float) -> dict[str, float]:
    return {"difference": difference, "low": low, "high": high}


def make_metrics() -> dict[str, Any]:
    return {
        "before": scores(0.531, 0.002, 0.0713, 14.213),
        "after": scores(0.804, 0.353, 0.463, 5.871),
        "frozen": None,
        "closed_book": scores(None, 0.012, 0.094, 13.02),
        "dev_wording": {"before": scores(0.4, 0.0, 0.05, 9.0), "after": scores(0.41, 0.2, 0.3, 6.0)},
        "dev_relations": {"before": scores(0.622, 0.0, 0.05, 9.0), "after": scores(0.231, 0.1, 0.2, 8.0)},
        "questions": {"dev": 425, "dev_wording": 212, "dev_relations": 1},
        "comparisons": {
            "dev": {
                "after - before": {
                    "recall@1": interval(0.273, 0.2211, 0.3244),
                    "exact_match": interval(0.351, 0.3, 0.4),
                    "nll": interval(-8.342, -9.0, -7.5),
                },
                "after - closed_book": {"exact_match": interval(0.341, 0.29, 0.39)},
            },
            "dev_wording": {"after - before": {"recall@1": interval(0.01, -0.03, 0.05)}},
            "dev_relations": {"after - before": {"recall@1": interval(-0.391, -0.456, -0.329)}},
        },
    }


def make_answer(text: str, *passages: tuple[Passage, float, float]) -> Answer:
    return Answer(
        question="Which city is the capital of Brunei?",
        text=text,
        log_prob=-0.5,
        passages=tuple(passage for passage, _, _ in passages),
        prior=tuple(prior for _, prior, _ in passages),
        posterior=tuple(posterior for _, _, posterior in passages),
        index_version="index-1",
    )


def make_content(**changes: Any) -> ReportContent:
    oil = Passage("bx:0", "Brunei", "An oil state. " * 20)
    capital = Passage("bx:1", "Brunei", "The capital is BANDAR SERI BEGAWAN.")
    content = ReportContent(
        run=RunFacts(
            run="quickstart",
            corpus="The World Factbook",
            passages=4253,
            shards=2,
            encoder="MiniLM",
            generator="SmolLM2",
            variant="rag_token",
            settings={"steps": 100, "encoder rate": 5e-5},
            stage_seconds={"train": 1213.0, "chunk": 3.9},
            machine="2 CPU cores",
            versions={"3-index": "9f2c41"},
        ),
        metrics=make_metrics(),
        training_log=[
            {"step": step, "loss": 9.0 / step, "prior_entropy": 1.0, "kl": 0.5, "seconds": 2.0} for step in range(1, 41)
        ],
        recall_curves={"dev": {name: {k: 1 - 0.5 / k for k in range(1, 21)} for name in ("before", "after")}},
        examples=[
            Example(
                references=("Bandar Seri Begawan",),
                before=make_answer("Brunei City", (oil, 0.9, 0.8), (capital, 0.1, 0.2)),
                after=make_answer("Bandar Seri Begawan", (capital, 0.625, 0.9375), (oil, 0.375, 0.0625)),
            )
        ],
    )
    return replace(content, **changes)


def test_report_is_one_balanced_page_without_requests(tmp_path: Path) -> None:
    path = write_report(tmp_path, make_content())
    assert path == tmp_path / "report.html"
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    assert not re.search(r"https?://", html)
    assert all(address.startswith(("#", "data:")) for address in re.findall(r'(?:href|src)="([^"]*)"', html))
    drawn = set(re.findall(r"var\(--([a-z-]+)\)", html))
    assert drawn <= set(re.findall(r"--([a-z-]+):", html))


def test_every_reference_inside_figures_has_its_target() -> None:
    html = render_report(make_content())
    ids = set(Page(html).ids)
    assert set(re.findall(r'href="#([^"]+)"', html)) | set(re.findall(r"url\(#([^)]+)\)", html)) <= ids


def test_same_content_gives_the_same_bytes() -> None:
    assert render_report(make_content()) == render_report(make_content())


def test_numbers_equal_the_metrics() -> None:
    text = Page(render_report(make_content())).text
    assert "With training, recall@1 rose from 53.1% to 80.4% , and exact match rose from 0.2% to 35.3%" in text
    assert "exact match 1.2% 0.2% 35.3% +35.1 [+30.0, +40.0]" in text
    assert "recall@7 – 53.1% 80.4% – –" in text
    assert "−log p(y|x) 13.02 14.21 5.87 −8.34 [−9.00, −7.50]" in text
    assert "4,253 passages in 2 index shards" in text
    assert "dev_relations , 1 question " in text


def test_sentences_follow_the_intervals() -> None:
    text = Page(render_report(make_content())).text
    assert "Recall@1 did not clearly change: from 40.0% to 41.0% (+1.0 points, 95% interval [−3.0, +5.0])" in text
    assert "Recall@1 fell from 62.2% to 23.1% (−39.1 points, 95% interval [−45.6, −32.9])" in text
    assert "can forget the others" in text
    assert "carries over" not in text

    metrics = make_metrics()
    metrics["comparisons"]["dev_relations"]["after - before"]["recall@1"] = interval(0.2, 0.1, 0.3)
    text = Page(render_report(make_content(metrics=metrics))).text
    assert "carries over" in text
    assert "can forget the others" not in text


def test_intervals_that_exclude_zero_are_marked() -> None:
    html = render_report(make_content())
    assert '<td class="difference better" title="better"><b>−8.34</b>' in html  # a lower nll is better
    assert '<td class="difference worse" title="worse"><b>−39.1</b>' in html
    assert '<td class="difference unclear" title="interval holds zero"><b>+1.0</b>' in html


@pytest.mark.parametrize("ran", [True, False])
def test_missing_ablation_says_how_to_run_it(ran: bool) -> None:
    metrics = make_metrics() | {"frozen": scores(0.531, 0.3, 0.4, 6.6) if ran else None}
    text = Page(render_report(make_content(metrics=metrics))).text
    assert ("ragray quickstart --ablation" in text) != ran
    assert ("trained with frozen encoder" in text) == ran


EVIL = "<script>alert('x')</script>&\"$title$"


def test_everything_from_data_is_escaped() -> None:
    passage = Passage(EVIL, EVIL, f"{EVIL} answer")
    answer = replace(make_answer(EVIL, (passage, 1.0, 1.0)), question=EVIL)
    content = make_content()
    metrics = make_metrics()
    metrics[EVIL] = metrics.pop("dev_wording")
    facts = replace(
        content.run,
        **dict.fromkeys(("run", "corpus", "encoder", "generator", "variant", "machine"), EVIL),
        settings={EVIL: EVIL},
        stage_seconds={EVIL: 1.0},
        versions={EVIL: EVIL},
    )
    curves: Mapping[str, Any] = {EVIL: {"before": {1: 0.5}, EVIL: {1: 0.6}}}
    evil = make_content(
        run=facts, metrics=metrics, recall_curves=curves, examples=[Example((EVIL, "answer"), answer, answer)]
    )
    html = render_report(evil)
    page = Page(html)
    assert "script" not in page.tags
    assert EVIL in page.text


def test_example_shows_answers_and_both_probabilities() -> None:
    html = render_report(make_content())
    text = Page(html).text
    assert "before Brunei City ✗ no exact match" in text
    assert "after Bandar Seri Begawan ✓ exact match" in text
    assert "prior 62.5% → posterior 93.8%" in text
    assert "✓ holds a reference bx:1 · rank 1, was 2 before training" in text
    assert "<mark>BANDAR SERI BEGAWAN</mark>" in html


def test_report_without_log_curves_or_examples() -> None:
    text = Page(render_report(make_content(training_log=[], recall_curves={}, examples=[]))).text
    assert "No training log was kept." in text
    assert "No examples were kept." in text


def test_report_of_one_step_and_of_unlogged_quantities() -> None:
    text = Page(render_report(make_content(training_log=[{"step": 1, "loss": 3.0}]))).text
    assert "running means over 1 step." in text
    assert "entropy" not in text.partition("Training")[2]


def test_keys_read_from_json_are_sorted_as_numbers() -> None:
    text = {str(k): k / 20 for k in range(1, 21)}
    number = {k: k / 20 for k in range(1, 21)}
    curves: list[Mapping[str, Any]] = [{"dev": {"after": curve}} for curve in (text, number)]
    pages = [render_report(make_content(recall_curves=curve)) for curve in curves]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("text", "phrases", "expected"),
    [
        ("Oslo, not Oslofjord", ["oslo"], "<mark>Oslo</mark>, not Oslofjord"),
        ("a < b", ["b"], "a &lt; <mark>b</mark>"),
        ("C++ (1985)", ["C++"], "<mark>C++</mark> (1985)"),
        ("New York City", ["New York", "New York City"], "<mark>New York City</mark>"),
        ("in Washington, D.C.", ["Washington, D.C."], "in <mark>Washington, D.C</mark>."),
        ("plain", ["", " "], "plain"),
    ],
)
def test_highlight(text: str, phrases: list[str], expected: str) -> None:
    assert highlight(text, phrases) == expected


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [("recall@5", 0.9415, "94.2%"), ("nll", 5.871, "5.87"), ("f1", None, "–"), ("exact_match", 0.0, "0.0%")],
)
def test_format_score(metric: str, value: float | None, expected: str) -> None:
    assert format_score(metric, value) == expected


def test_format_interval_never_shows_minus_zero() -> None:
    assert format_interval("f1", Interval(-0.0001, -0.02, 0.02)) == ("+0.0", "[−2.0, +2.0]")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.94, "3.9 s"), (59.97, "1 min 00 s"), (71.4, "1 min 11 s"), (7260.0, "2 h 01 min")]
)
def test_format_seconds(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected


def test_running_mean_is_centred_and_cut_off_at_the_ends() -> None:
    assert figures.running_mean([1.0, 2.0, 6.0, 3.0], 3) == [1.5, 3.0, 11 / 3, 4.5]
    assert figures.running_mean([5.0], 1) == [5.0]
