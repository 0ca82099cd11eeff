"""What a job tells the person or the log that watches it: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

Progress = Callable[[int, int], None]  # (units done, units in all)

_LOG_EVERY_S = 30.0


class StageView:
    """The view of one running stage: tell it the progress, and at the end what came out."""

    def __init__(self, console: RichConsole, name: str, bar: ProgressBar | None) -> None:
        self._console, self._name, self._bar = console, name, bar
        self._task = bar.add_task(name, total=None, rate="") if bar else None
        self._started = self._last_line = time.monotonic()
        self._first_done: int | None = None
        self._done = 0
        self.outcome = "done"

    def progress(self, done: int, total: int) -> None:
        """``done`` of ``total`` units; a log gets a line with the remaining time now and then."""
        self._first_done = done if self._first_done is None else self._first_done
        self._done = done
        now = time.monotonic()
        rate = (done - self._first_done) / max(now - self._started, 1e-9)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, rate=f"{rate:.0f}/s" if rate >= 2 else "")
            return
        if now - self._last_line >= _LOG_EVERY_S and self._first_done < done < total:
            speed = f"{rate:.0f} a second, " if rate >= 2 else ""
            left_s = (total - done) / rate
            self._console.print(f"  {self._name}: {done:,} of {total:,}, {speed}about {left_s:.0f} s left")
            self._last_line = now

    def note(self, line: str) -> None:
        """A line worth keeping."""
        self._console.print(f"  {escape(line)}", highlight=False)

    @property
    def rate(self) -> float:
        """Units a second of this run; what an interrupted run had done doesn't count."""
        return (self._done - (self._first_done or 0)) / self.seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


class Console:
    """Where all jobs of a process print."""

    def __init__(self) -> None:
        self._rich = RichConsole(soft_wrap=True, highlight=False)
        self.seconds: dict[str, float] = {}

    def line(self, text: str = "") -> None:
        self._rich.print(escape(text))

    def skipped(self, name: str, reason: str) -> None:
        self._rich.print(f"[dim]{name:<17} skipped: {escape(reason)}[/dim]")

    @contextmanager
    def stage(self, name: str) -> Iterator[StageView]:
        """Show a stage while it runs, and one line with its outcome and time when it has ended well."""
        if self._rich.is_terminal:
            with self._bar() as bar:
                view = StageView(self._rich, name, bar)
                yield view
        else:
            self._rich.print(f"{name:<17} …")
            view = StageView(self._rich, name, None)
            yield view
        self.seconds[name] = round(view.seconds, 1)
        self._rich.print(f"[bold]{name:<17}[/bold] {escape(view.outcome)} ({view.seconds:.0f} s)")

    def _bar(self) -> ProgressBar:
        columns = (
            TextColumn("{task.description:<17}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        return ProgressBar(*columns, console=self._rich, transient=True)
