"""Inline SVG figures of the report.

Curves are drawn by matplotlib, rows inside tables by hand.  Both leave as fragments for HTML: text stays text,
colours are CSS variables so that one figure serves light and dark, ids are prefixed so that many figures share one
page, and nothing depends on the clock or on chance: the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Drawn colour -> CSS variable of report.html.template, whose light values these are.
INK, MUTED, FAINT, BEFORE, AFTER, POSTERIOR = "#1c1d21", "#62656e", "#d9dbe0", "#7c818b", "#0f5fae", "#b84f08"
_VARIABLES = {INK: "ink", MUTED: "muted", FAINT: "faint", BEFORE: "before", AFTER: "after", POSTERIOR: "posterior"}

_PIXELS_PER_INCH = 72  # matplotlib's SVG unit is the point; the page shows one point as one CSS pixel
_STYLE: Any = {  # matplotlib's type for it lists every setting
    "svg.fonttype": "none",
    "svg.hashsalt": "ragray",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "lines.solid_capstyle": "round",
}


def recall_curve(name: str, curves: Mapping[str, Mapping[int, float]]) -> str:
    """recall@k over k, before and after, named in the plot; ``name`` is the dev set's."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _panel(340, 250)
        last_k = max((max(curve) for curve in curves.values() if curve), default=1)
        for system, curve in curves.items():
            ks = sorted(curve)
            color = AFTER if system == "after" else BEFORE
            axes.plot(ks, [100 * curve[k] for k in ks], color=color, linewidth=2, marker="o", markersize=3)
        _name_lines(axes, curves)
        axes.set_ylim(0, 104)
        axes.set_yticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100%"])
        axes.set_xlim(0.4, last_k + 0.6)
        axes.set_xticks(sorted({1, *range(5, last_k + 1, 5), last_k}))
        axes.set_xlabel("passages retrieved, k")
        axes.yaxis.grid(True)
        return _svg(figure, f"recall-{name}", f"recall at k on {name}: {_spoken(curves)}")


def loss_curve(steps: Sequence[float], losses: Sequence[float], window: int) -> str:
    """The loss of every step as a dot, and its running mean over ``window`` steps as a line."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _panel(460, 300)
        axes.plot(steps, losses, linestyle="none", marker="o", markersize=2.8, color=BEFORE, alpha=0.55)
        means = running_mean(losses, window)
        axes.plot(steps, means, color=AFTER, linewidth=2)
        axes.annotate(f"{means[-1]:.2f}", (steps[-1], means[-1]), (6, 0), textcoords="offset points",
                      va="center", color=AFTER, fontweight="bold", annotation_clip=False)  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.yaxis.grid(True)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("training step")
        spoken = f"loss by training step: {losses[0]:.2f} first, {losses[-1]:.2f} last"
        return _svg(figure, "loss", spoken)


def prior_curves(steps: Sequence[float], curves: Mapping[str, Sequence[float]], window: int) -> str:
    """Small panels over one step axis, one a quantity (entropy of the prior, KL of the posterior from it)."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(460 / _PIXELS_PER_INCH, 300 / _PIXELS_PER_INCH), layout="constrained")
        panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (label, values), color in zip(panels, curves.items(), (AFTER, POSTERIOR), strict=False):
            axes.plot(steps, values, linestyle="none", marker="o", markersize=2.2, color=BEFORE, alpha=0.55)
            axes.plot(steps, running_mean(values, window), color=color, linewidth=2)
            axes.set_title(label, loc="left", color=color, fontsize=11, pad=4)
            axes.set_ylim(bottom=0)
            axes.yaxis.grid(True)
            axes.yaxis.set_major_locator(MaxNLocator(3))
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            _quiet(axes)
        panels[-1].set_xlabel("training step")
        spoken = "; ".join(f"{label}: {values[0]:.2f} first, {values[-1]:.2f} last" for label, values in curves.items())
        return _svg(figure, "prior", spoken)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over an odd ``window`` centred on each value, cut off at the ends, so that the curve doesn't lag."""
    reach = window // 2
    return [statistics.fmean(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values))]


def prior_to_posterior(prior: float, posterior: float) -> str:
    """One row, 0 to 1: a hollow dot at the prior, a filled one at the posterior, the way between as a bar."""
    x_prior, x_posterior = (8 + 184 * min(max(value, 0.0), 1.0) for value in (prior, posterior))
    return (
        f'<svg class="row" viewBox="0 0 200 20" role="img" aria-label="prior {prior:.1%}, posterior {posterior:.1%}">'
        '<path class="axis" d="M8 10H192M8 6V14M100 7V13M192 6V14"/>'
        f'<path class="way" d="M{x_prior:.1f} 10H{x_posterior:.1f}"/>'
        f'<circle class="prior" cx="{x_prior:.1f}" cy="10" r="4.6"/>'
        f'<circle class="posterior" cx="{x_posterior:.1f}" cy="10" r="5"/></svg>'
    )


def interval_row(difference: float, low: float, high: float, reach: float) -> str:
    """A difference and its interval around zero, on a scale of ``-reach`` to ``reach``."""
    x_low, x_difference, x_high = (88 + 82 * min(max(v / reach, -1.0), 1.0) for v in (low, difference, high))
    return (
        '<svg class="row interval" viewBox="0 0 176 14" aria-hidden="true">'
        '<path class="axis" d="M4 7H172"/><path class="zero" d="M88 1V13"/>'
        f'<path class="range" d="M{x_low:.1f} 7H{x_high:.1f}"/><circle cx="{x_difference:.1f}" cy="7" r="3.4"/></svg>'
    )


def _panel(width: int, height: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH), layout="constrained")
    axes = figure.add_subplot()
    _quiet(axes)
    return figure, axes


def _quiet(axes: Axes) -> None:
    axes.tick_params(length=3)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)


def _name_lines(axes: Axes, curves: Mapping[str, Mapping[int, float]]) -> None:
    """Name the lines in their colours, with the value at the first k, in the corner that rising curves leave empty."""
    highest = max((max(curve.values()) for curve in curves.values() if curve), default=0.0)
    height = 0.06 if highest > 0.4 else 0.8
    for system, curve in sorted(curves.items(), key=lambda item: item[1].get(1, 0.0)):
        if curve:
            first = min(curve)
            color = AFTER if system == "after" else MUTED
            words = f"{system}: {curve[first]:.1%} at k = {first}"
            axes.text(0.98, height, words, transform=axes.transAxes, ha="right", color=color, fontweight="bold")
            height += 0.1


def _spoken(curves: Mapping[str, Mapping[int, float]]) -> str:
    return "; ".join(
        f"{system} {curve[min(curve)]:.1%} at {min(curve)}, {curve[max(curve)]:.1%} at {max(curve)}"
        for system, curve in curves.items()
        if curve
    )


def _svg(figure: Figure, name: str, spoken: str) -> str:
    """The figure as an HTML fragment, named ``name`` and described to screen readers as ``spoken``."""
    figure.patch.set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'<style type="text/css">.*?</style>', "", text, flags=re.S)  # it would style the whole page
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()  # type: ignore[union-attr]
    text = re.sub(
        r"<svg[^>]*>",
        f'<svg class="figure" viewBox="0 0 {width} {height}" style="max-width: {1.25 * float(width):.0f}px" '
        f'role="img" aria-label="{escape(spoken)}">',
        text,
        count=1,
    )
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    prefix = re.sub(r"[^a-z0-9]+", "-", name.lower())
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r"(?<=[\d ])(\d*\.\d{2})\d+", r"\1", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    return re.sub(r"\s*\n\s*", "\n", text).strip()
