"""Does the quickstart do what it promises: does joint training work, how long does it take, how much memory?

    python benchmarks/bench_quickstart.py --run runs/bench --ablation --json results.json
    python benchmarks/bench_quickstart.py --quick        # the debug recipe: whether this script works, no claims

A fresh run folder is needed: a resumed run would not show the time.  Memory is the proportional set size (PSS, shared
pages counted once) summed over all processes of the run, sampled every two seconds; the demo material should be cached.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from threading import Event, Thread
from typing import Any

MARK = "RAGRAY_BENCH_MARK"  # inherited by every process of the run


class MemoryWatch:
    """The largest total PSS of all processes that carry the mark."""

    def __init__(self, mark: str) -> None:
        self.peak_bytes = 0
        self._mark = f"{MARK}={mark}".encode()
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(2.0):
            self.peak_bytes = max(self.peak_bytes, sum(map(self._pss_bytes, Path("/proc").glob("[0-9]*"))))

    def _pss_bytes(self, process: Path) -> int:
        try:
            if self._mark not in (process / "environ").read_bytes():
                return 0
            for line in (process / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        except OSError:  # ended meanwhile
            pass
        return 0


def run_chain(recipe: str, folder: Path, overrides: list[str], ablation: bool) -> tuple[float, float]:
    """(seconds, peak GiB) of the whole chain."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "ragray.cli", "quickstart", "--recipe", recipe, "--run", str(folder)]
    command += ["--ablation"] if ablation else []
    command += [word for override in overrides for word in ("--set", override)]
    started = time.monotonic()
    watch = MemoryWatch(mark)
    subprocess.run(command, check=True, env={**os.environ, MARK: mark})
    watch.stop()
    return time.monotonic() - started, watch.peak_bytes / 2**30


def claims(metrics: dict[str, Any], seconds: float, peak_gib: float, ablation: bool) -> dict[str, dict[str, Any]]:
    """Every claim with what was measured and its bar."""
    before, after, comparisons = metrics["before"], metrics["after"], metrics["comparisons"]["dev"]
    found = {
        "recall@1 after joint training": _claim(after["recall@1"], before["recall@1"], 0.80, "share"),
        "exact match after joint training": _claim(after["exact_match"], before["exact_match"], 0.40, "share"),
        "peak memory": _claim(peak_gib, None, 8.0, "GiB", at_most=True),
    }
    if not ablation:  # the time bar is for the plain quickstart
        found["time of all stages"] = _claim(seconds / 60, None, 12.0, "minutes", at_most=True)
    for pair, metric in (
        ("after - before", "recall@1"),
        ("after - before", "exact_match"),
        ("after - before", "f1"),
        ("after - before", "nll"),
        ("after - closed_book", "exact_match"),
        ("after - closed_book", "f1"),
        ("after - closed_book", "nll"),
        ("after - frozen", "recall@1"),
    ):
        if pair in comparisons:
            change = comparisons[pair][metric]
            better = -change["high"] if metric == "nll" else change["low"]  # the end of the interval nearest to zero
            found[f"{metric}, {pair}: 95% interval beyond zero"] = _claim(better, None, 0.0, "difference")
    return found


def _claim(ours: float, peer: float | None, bar: float, unit: str, at_most: bool = False) -> dict[str, Any]:
    met = ours <= bar if at_most else ours > bar or (ours == bar and bar > 0)
    ratio = ours / peer if peer else None
    return {"ours": ours, "peer": peer, "ratio": ratio, "bar": bar, "met": met, "unit": unit}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/bench"))
    parser.add_argument("--ablation", action="store_true", help="also train with a frozen question encoder")
    parser.add_argument("--quick", action="store_true", help="the debug recipe")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.run.exists():
        parser.error(f"{options.run} exists: a resumed run doesn't show the time; choose another folder")
    recipe = "debug" if options.quick else "quickstart"
    seconds, peak_gib = run_chain(recipe, options.run, options.set, options.ablation)
    report = options.run / ("5-report-ablation" if options.ablation else "5-report")
    metrics = json.loads((report / "metrics.json").read_text(encoding="utf-8"))
    found = claims(metrics, seconds, peak_gib, options.ablation)
    print(f"\n{seconds / 60:.1f} minutes, {peak_gib:.2f} GiB at the peak\n")
    for name, claim in found.items():
        print(
            f"{'met' if claim['met'] else 'NOT MET':<8} {name}: {claim['ours']:.3f} {claim['unit']}, bar {claim['bar']}"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if options.quick or all(claim["met"] for claim in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
