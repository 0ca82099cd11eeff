"""One answered question with its evidence: answers before and after training, and the passages behind the last one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from ragray.formulas.metrics import exact_match, holds_answer
from ragray.records import Answer, Passage
from ragray.web import figures

_FIRST_WORDS = 16  # of a folded passage

KEY = (
    '<div class="key">'
    '<span><svg viewBox="0 0 14 14" aria-hidden="true"><circle class="k-prior" cx="7" cy="7" r="5"/></svg>'
    "prior p(z|x)</span>"
    '<span><svg viewBox="0 0 14 14" aria-hidden="true"><circle class="k-posterior" cx="7" cy="7" r="5.5"/></svg>'
    "posterior p(z|x,y)</span>"
    "<span><mark>answer</mark> a reference, or the model's answer, in the text</span><span>axis: 0 to 100%</span></div>"
)


def evidence(references: Sequence[str], before: Answer, after: Answer) -> str:
    """The question, its answers, and the passages of ``after`` in the order of retrieval.

    The passage of largest posterior is shown in full, the others folded.
    """
    rank_before = {passage.id: rank for rank, passage in enumerate(before.passages, start=1)}
    top = max(range(len(after.passages)), key=lambda k: after.posterior[k], default=0)
    rows = "".join(
        _passage(
            passage,
            after.prior[k],
            after.posterior[k],
            references=references,
            phrases=[*references, after.text],
            rank=f"rank {k + 1}, {_was(rank_before.get(passage.id), len(before.passages))}",
            unfolded=k == top,
        )
        for k, passage in enumerate(after.passages)
    )
    return (
        f"<article><h3>{escape(after.question)}</h3>"
        f'<dl class="answers"><dt>reference</dt><dd>{escape(" / ".join(references))}</dd>'
        f"<dt>before</dt><dd>{_answer(before, references)}</dd>"
        f'<dt>after</dt><dd class="after">{_answer(after, references)}</dd></dl>'
        f'<div class="passages">{rows}</div></article>'
    )


def highlight(text: str, phrases: Sequence[str]) -> str:
    """The text escaped, with every whole-word occurrence of a phrase, whatever its case, inside ``<mark>``."""
    stripped = {phrase.strip().rstrip(".") for phrase in phrases} - {""}
    wanted = sorted(stripped, key=lambda phrase: (-len(phrase), phrase))
    if not wanted:
        return escape(text)
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, wanted))})(?!\w)", re.IGNORECASE)
    pieces = pattern.split(text)  # odd places hold the occurrences
    return "".join(f"<mark>{escape(p)}</mark>" if place % 2 else escape(p) for place, p in enumerate(pieces))


def _was(rank_before: int | None, count_before: int) -> str:
    if rank_before is None:
        return f"not in the first {count_before} before training"
    return f"was {rank_before} before training"


def _answer(answer: Answer, references: Sequence[str]) -> str:
    right = exact_match(answer.text, references) == 1.0
    style, words = ("right", "✓ exact match") if right else ("wrong", "✗ no exact match")
    text = escape(answer.text) if answer.text.strip() else "<i>(empty)</i>"
    return f'{text} <span class="verdict {style}">{words}</span>'


def _passage(
    passage: Passage,
    prior: float,
    posterior: float,
    *,
    references: Sequence[str],
    phrases: Sequence[str],
    rank: str,
    unfolded: bool,
) -> str:
    text = highlight(passage.text, phrases)
    words = passage.text.split()
    if unfolded or len(words) <= _FIRST_WORDS:
        body = f'<p class="text">{text}</p>'
    else:
        start = escape(" ".join(words[:_FIRST_WORDS]))
        summary = f'<summary>Text<span class="start">: {start} …</span></summary>'
        body = f'<details>{summary}<p class="text">{text}</p></details>'
    holds = ' <span class="verdict right">✓ holds a reference</span>' if holds_answer(passage.text, references) else ""
    return (
        f'<div class="passage"><div>{figures.prior_to_posterior(prior, posterior)}'
        f'<p class="numbers"><span>prior {prior:.1%}</span><b>→ posterior {posterior:.1%}</b></p></div>'
        f'<div><p class="heading"><b>{escape(passage.title)}</b>{holds}<small>{escape(passage.id)} · {rank}</small></p>'
        f"{body}</div></div>"
    )
