"""The report of a run: one self-contained HTML page for newcomers and researchers alike.

The page claims nothing that the run's own numbers don't say: every sentence about a rise or a fall is made from a
difference and its interval.  Everything that comes from data is escaped, and the same content gives the same bytes.
The skeleton is ``web/report.html.template``, the figures are in ``ragray/web/figures.py``.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from ragray.records import Answer
from ragray.web import figures
from ragray.web.evidence import KEY, evidence
from ragray.web.scores import INTERVALS_NOTE, SetResults, count, lede, read_sets, score_table, verdict

_ABLATION = "ragray quickstart --ablation"
_VARIANTS = {"rag_token": "RAG-Token", "rag_sequence": "RAG-Sequence"}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was run, on what, and for how long.  The mappings are shown in their own order."""

    run: str
    corpus: str
    passages: int
    shards: int
    encoder: str
    generator: str
    variant: str
    settings: Mapping[str, object]
    stage_seconds: Mapping[str, float]
    machine: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """One dev question, answered by the untrained and the trained model."""

    references: tuple[str, ...]
    before: Answer
    after: Answer


@dataclass(frozen=True, slots=True)
class ReportContent:
    """All that the report shows.

    ``metrics`` has the form of ``metrics.json``: scores of the main dev set by system, scores of further sets by set
    and system, ``questions`` (size by set) and ``comparisons`` (by set, "system - baseline" and metric).
    ``training_log`` has a row a step with ``step``, ``loss`` and what else was logged.
    ``recall_curves`` is by set, system and k.
    """

    run: RunFacts
    metrics: Mapping[str, Any]
    training_log: Sequence[Mapping[str, float]]
    recall_curves: Mapping[str, Mapping[str, Mapping[int, float]]]
    examples: Sequence[Example]
    main_set: str = "dev"


def write_report(folder: Path, content: ReportContent) -> Path:
    """Write ``report.html`` into the folder and return its path."""
    path = folder / "report.html"
    path.write_text(render_report(content), encoding="utf-8")
    return path


def render_report(content: ReportContent) -> str:
    """The whole page as text."""
    main, *harder = read_sets(content.metrics, content.main_set)
    facts = content.run
    variant = _VARIANTS.get(facts.variant, facts.variant)
    template = Template(resources.files("ragray.web").joinpath("report.html.template").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(f"{facts.run}: ragray report"),
        heading=escape(facts.run),
        facts=escape(
            f"{facts.corpus} · {facts.passages:,} passages in {count(facts.shards, 'index shard')} · {facts.encoder} · "
            f"{facts.generator} · {variant}"
        ),
        lede=lede(main),
        variant=escape(variant),
        main_set=escape(main.name),
        main_count=main.size,
        results=_main_results(main, content.recall_curves),
        harder=_harder_results(harder),
        training=_training(content.training_log),
        examples=_examples(content.examples),
        run=_run(facts),
        next=_what_next(facts, content.examples, ablation_missing="frozen" not in main.scores),
    )


def format_seconds(seconds: float) -> str:
    if seconds < 59.95:  # what one decimal would show as 60.0
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _main_results(main: SetResults, curves: Mapping[str, Mapping[str, Mapping[int, float]]]) -> str:
    parts = [score_table(main)]
    if main.differences:
        parts.append(INTERVALS_NOTE)
    if "frozen" not in main.scores:
        parts.append(
            '<p class="note">Not run: the same training with the question encoder frozen, which shows how much of the '
            f"gain comes from learning to retrieve. To run it: <code>{_ABLATION}</code></p>"
        )
    panels = "".join(
        f'<figure><p class="panel-title"><code>{escape(name)}</code></p>'
        f"{figures.recall_curve(name, {s: {int(k): v for k, v in c.items()} for s, c in by_system.items()})}</figure>"
        for name, by_system in curves.items()
    )
    if panels:
        parts.append(
            "<h3>Recall@k before and after training</h3>"
            f'<div class="panels">{panels}</div><p class="note">Share of questions for which one of the first k '
            "passages holds a reference answer.</p>"
        )
    return "\n".join(parts)


def _harder_results(harder: Sequence[SetResults]) -> str:
    if not harder:
        return ""
    parts = [
        '<section aria-labelledby="harder"><h2 id="harder">Harder questions</h2>',
        "<p>A gain on questions like those of training says little about other questions. "
        "These sets ask whether it reaches further.</p>",
    ]
    for results in harder:
        parts += [
            f"<h3><code>{escape(results.name)}</code>{results.size}</h3>",
            f"<p>{verdict(results)}</p>",
            score_table(results),
        ]
    return "\n".join([*parts, "</section>"])


def _examples(examples: Sequence[Example]) -> str:
    if not examples:
        return "<p>No examples were kept.</p>"
    return KEY + "\n".join(evidence(example.references, example.before, example.after) for example in examples)


def _training(log: Sequence[Mapping[str, float]]) -> str:
    """Loss beside what the posterior asks of the prior; quantities that were not logged are left out."""
    if not log:
        return "<p>No training log was kept.</p>"
    window = 2 * min(7, len(log) // 16) + 1
    steps = [row["step"] for row in log]
    panels = [
        f'<figure><p class="panel-title">Loss: −log p(y|x), nats</p>'
        f"{figures.loss_curve(steps, [row['loss'] for row in log], window)}</figure>"
    ]
    curves = {
        label: [row[key] for row in log]
        for key, label in (("prior_entropy", "entropy of the prior, nats"), ("kl", "KL(posterior ‖ prior), nats"))
        if all(key in row for row in log)
    }
    if curves:
        panels.append(
            '<figure><p class="panel-title">Prior and posterior over the retrieved passages</p>'
            f"{figures.prior_curves(steps, curves, window)}</figure>"
        )
    words = f"Dots are single steps, lines running means over {count(window, 'step')}."
    if curves:
        words += (
            " A prior of low entropy is sure of its passages; a KL near 0 says that the answer agrees with it: "
            "either retrieval is right already, or the generator doesn't look at the passages."
        )
    return f'<div class="panels wide">{"".join(panels)}</div><p class="note">{words}{_step_times(log)}</p>'


def _step_times(log: Sequence[Mapping[str, float]]) -> str:
    seconds = [row["seconds"] for row in log if "seconds" in row]
    if not seconds:
        return ""
    words = f" A step took {statistics.median(seconds):.2f} s (median)"
    retrieval = [row["retrieval_seconds"] for row in log if "retrieval_seconds" in row]
    if retrieval:
        words += f", of which retrieval {statistics.median(retrieval):.3f} s"
    return words + "."


def _run(facts: RunFacts) -> str:
    longest = max(facts.stage_seconds.values(), default=0.0) or 1.0
    stages = "".join(
        f'<tr><th scope="row">{escape(stage)}</th><td class="number">{format_seconds(seconds)}</td>'
        f'<td class="bar"><i style="width: {100 * seconds / longest:.1f}%"></i></td></tr>'
        for stage, seconds in facts.stage_seconds.items()
    )
    total = format_seconds(sum(facts.stage_seconds.values()))
    return (
        f"<p>Machine: {escape(facts.machine)}.</p>"
        f'<div class="columns"><div><h3>Time by stage</h3><table><tbody>{stages}'
        f'<tr><th scope="row">total</th><td class="number">{total}</td><td></td></tr></tbody></table>'
        f"<h3>Settings</h3>{_facts_table(facts.settings)}</div>"
        f"<div><h3>Artifacts and versions</h3>{_facts_table(facts.versions, code=True)}"
        '<p class="note">The fingerprint of an artifact covers its settings and the fingerprints of what it was made '
        "from.</p></div></div>"
    )


def _facts_table(facts: Mapping[str, object], code: bool = False) -> str:
    rows = []
    for name, value in facts.items():
        text = escape(f"{value:g}" if isinstance(value, float) else str(value))
        rows.append(f'<tr><th scope="row">{escape(name)}</th><td>{f"<code>{text}</code>" if code else text}</td></tr>')
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _what_next(facts: RunFacts, examples: Sequence[Example], ablation_missing: bool) -> str:
    """Commands to copy, with this run's name and one of its own questions in them."""
    run = shlex.quote(facts.run)
    question = shlex.quote(examples[0].after.question) if examples else '"..."'
    ideas = [
        ("Ask it something, and see the passages it leans on:", f"ragray ask {question} --run {run}"),
        ("The same in a browser, and as an HTTP API:", f"ragray serve --run {run}"),
    ]
    if ablation_missing:
        ideas.append(("Find out how much of the gain comes from learning to retrieve:", _ABLATION))
    items = "".join(f"<li>{escape(words)}<pre>{escape(command)}</pre></li>" for words, command in ideas)
    own = (
        "<li>Your own corpus: documents as JSON lines of <code>id</code>, <code>title</code>, <code>text</code>, and "
        "questions with their answers. The project's <code>README.md</code> shows the files and the recipe.</li>"
    )
    return f'<ol class="next">{items}{own}</ol>'
