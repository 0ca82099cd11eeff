"""The form in which benchmarks write what they measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class Claim(Protocol):
    """A number of ours beside the peer's; how they are compared with the bar is each benchmark's own affair."""

    name: str
    unit: str
    ours: float
    peer: float | None
    bar: float | None

    @property
    def ratio(self) -> float | None: ...

    @property
    def met(self) -> bool | None: ...


def write_claims(file: Path, claims: Iterable[Claim]) -> None:
    """``{name: {ours, peer, ratio, bar, met, unit}}`` as JSON."""
    keys = ("ours", "peer", "ratio", "bar", "met", "unit")
    rows = {claim.name: {key: getattr(claim, key) for key in keys} for claim in claims}
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
