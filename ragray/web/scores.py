"""The scores of a run in tables and words: ``metrics.json`` in, HTML fragments out.

Every sentence about a rise or a fall is made from a difference and its interval; none is written beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from ragray.formulas.metrics import Interval
from ragray.web import figures

# One system's scores on one dev set, by metric ("recall@5", "exact_match", ...); None where a metric has no meaning.
Scores = Mapping[str, float | None]

_SYSTEMS = {  # in the order of the columns
    "closed_book": "closed book, no passages",
    "before": "before training",
    "frozen": "trained with frozen encoder",
    "after": "after training",
}
_METRICS = {"exact_match": "exact match", "f1": "F1", "nll": "−log p(y|x)"}
_SET_MEANINGS = {
    "dev_wording": "the relations of the training questions, asked in words that training never used",
    "dev_relations": "relations that were left out of training altogether",
}


@dataclass(frozen=True, slots=True)
class SetResults:
    """Scores by system and intervals by "system - baseline" and metric, of one dev set."""

    name: str
    questions: int | None
    answered: int | None
    scores: Mapping[str, Scores]
    differences: Mapping[str, Mapping[str, Interval]]

    @property
    def size(self) -> str:
        """ ", 520 questions, 100 of them answered", to follow the name of the set."""
        if self.questions is None:
            return ""
        part = self.answered is not None and self.answered < self.questions
        return f", {count(self.questions, 'question')}" + (f", {self.answered:,} of them answered" if part else "")

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(metric for scores in self.scores.values() for metric in scores))


def read_sets(metrics: Mapping[str, Any], main_set: str) -> list[SetResults]:
    """The main set first, then the others in their own order."""
    sets: dict[str, dict[str, Scores]] = {main_set: {}}
    for key, value in metrics.items():
        if key in ("questions", "answered", "comparisons") or not isinstance(value, Mapping):
            continue
        if any(isinstance(inner, Mapping) for inner in value.values()):
            sets[key] = {system: scores for system, scores in value.items() if scores is not None}
        else:
            sets[main_set][key] = value
    comparisons = metrics.get("comparisons", {})
    return [
        SetResults(
            name,
            metrics.get("questions", {}).get(name),
            metrics.get("answered", {}).get(name),
            {system: scores[system] for system in [*_SYSTEMS, *scores] if system in scores},
            {title: _intervals(by_metric) for title, by_metric in (comparisons.get(name) or {}).items() if by_metric},
        )
        for name, scores in sets.items()
    ]


def _intervals(by_metric: Mapping[str, Mapping[str, float] | None]) -> dict[str, Interval]:
    return {
        metric: Interval(values["difference"], values["low"], values["high"])
        for metric, values in by_metric.items()
        if values is not None
    }


def _label(metric: str) -> str:
    return _METRICS.get(metric, metric)


def _is_share(metric: str) -> bool:
    return metric.startswith("recall@") or metric in ("exact_match", "f1")


def format_score(metric: str, value: float | None) -> str:
    """Shares as per cent with one decimal, everything else with two."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}%" if _is_share(metric) else f"{value:.2f}"


def format_interval(metric: str, interval: Interval) -> tuple[str, str]:
    """(difference with its sign, "[low, high]"); shares in percentage points."""
    scale, digits = (100, 1) if _is_share(metric) else (1, 2)
    difference, low, high = (
        f"{round(scale * value, digits) + 0.0:+.{digits}f}".replace("-", "−")
        for value in (interval.difference, interval.low, interval.high)
    )
    return difference, f"[{low}, {high}]"


def _direction(metric: str, interval: Interval) -> str:
    """better, worse, or unclear where the interval holds zero; a lower nll is better."""
    if not interval.excludes_zero:
        return "unclear"
    return "better" if (interval.difference > 0) != (metric == "nll") else "worse"


def count(number: int | None, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _change(results: SetResults, metric: str, spell_interval: bool = True) -> str | None:
    """ "rose from 53.1% to 80.4% (+27.3 points, 95% interval [22.1, 32.4])", or None where a number is missing."""
    before, after = (results.scores.get(system, {}).get(metric) for system in ("before", "after"))
    if before is None or after is None:
        return None
    way = f"from <b>{format_score(metric, before)}</b> to <b>{format_score(metric, after)}</b>"
    interval = results.differences.get("after - before", {}).get(metric)
    if interval is None:
        return f"went {way}"
    difference, bounds = format_interval(metric, interval)
    verb = ("rose" if interval.difference > 0 else "fell") if interval.excludes_zero else "did not clearly change:"
    unit = " points" if _is_share(metric) else ""
    return f"{verb} {way}" + (f" ({difference}{unit}, 95% interval {bounds})" if spell_interval else "")


def _headline_metrics(results: SetResults) -> list[str]:
    """The smallest recall and exact match: whether the right passage came first, whether the answer was right."""
    recalls = sorted((m for m in results.metrics if m.startswith("recall@")), key=lambda m: int(m.partition("@")[2]))
    return [*recalls[:1], *(m for m in ("exact_match",) if m in results.metrics)]


def lede(main: SetResults) -> str:
    changes = [(metric, _change(main, metric, spell_interval=False)) for metric in _headline_metrics(main)]
    clauses = [f"{escape(_label(metric))} {change}" for metric, change in changes if change]
    on = f" on {count(main.questions, 'question')} of <code>{escape(main.name)}</code>" if main.questions else ""
    return (
        f"With training, {', and '.join(clauses)}{on}." if clauses else "This run was evaluated without a comparison."
    )


def verdict(results: SetResults) -> str:
    """What this set asks and what its numbers answer; the reading follows the interval of the first recall."""
    meaning = _SET_MEANINGS.get(results.name)
    sentences = [f"This set holds {meaning}."] if meaning else []
    headline = _headline_metrics(results)
    for metric in headline:
        if change := _change(results, metric):
            label = escape(_label(metric))
            sentences.append(f"{label[0].upper()}{label[1:]} {change}.")
    interval = results.differences.get("after - before", {}).get(headline[0]) if headline else None
    if interval is not None and headline[0].startswith("recall@"):
        sentences.append(
            {
                "better": "So what the question encoder learned carries over to these questions.",
                "worse": "So the question encoder lost some of what it could do: it is pulled towards the questions "
                "that it is shown and can forget the others. Ways out: a wider mix of training questions, a smaller "
                "<code>train.optimizer.encoder_rate</code>, or a <code>train.anchor</code> above 0.",
                "unclear": "The interval holds zero: on this many questions, neither a gain nor a loss in retrieval "
                "can be told from chance.",
            }[_direction(headline[0], interval)]
        )
    return " ".join(sentences)


INTERVALS_NOTE = (
    '<p class="note">Differences of shares in percentage points. Intervals: paired bootstrap over the questions. '
    "Bold with a filled dot: the interval excludes zero; blue is better, red is worse. "
    "Hollow dot: it holds zero.</p>"
)


def score_table(results: SetResults) -> str:
    """A row a metric; a column a system, then a column a difference with its interval drawn."""
    heads = "".join(
        f'<th scope="col" class="number">{escape(_SYSTEMS.get(system, system))}</th>' for system in results.scores
    ) + "".join(
        f'<th scope="col">{escape(_comparison(title))}<br>difference, 95% interval</th>'
        for title in results.differences
    )
    rows = []
    for metric in results.metrics:
        cells = "".join(
            f'<td class="number{" final" if system == "after" else ""}">{format_score(metric, scores.get(metric))}</td>'
            for system, scores in results.scores.items()
        ) + "".join(_difference_cell(results, title, metric) for title in results.differences)
        rows.append(f'<tr><th scope="row">{escape(_label(metric))}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="scores on {escape(results.name)}"><table>'
        f'<thead><tr><th scope="col">measure</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _comparison(title: str) -> str:
    return " − ".join(part.replace("_", " ") for part in title.split(" - "))


def _difference_cell(results: SetResults, title: str, metric: str) -> str:
    interval = results.differences[title].get(metric)
    if interval is None:
        return '<td class="difference">–</td>'
    reach = max(
        (
            max(abs(other.low), abs(other.high))
            for by_metric in results.differences.values()
            for name, other in by_metric.items()
            if _is_share(name) == _is_share(metric)
        ),
    )
    difference, bounds = format_interval(metric, interval)
    direction = _direction(metric, interval)
    spoken = {"better": "better", "worse": "worse", "unclear": "interval holds zero"}[direction]
    return (
        f'<td class="difference {direction}" title="{spoken}"><b>{difference}</b><span class="bounds">{bounds}</span>'
        f"{figures.interval_row(interval.difference, interval.low, interval.high, reach or 1.0)}</td>"
    )
