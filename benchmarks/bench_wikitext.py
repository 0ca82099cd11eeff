"""Wikitext to plain text: speed and faults, ours beside wikiextractor, on the same dump in the same run.

Without a dump it fetches the wheel of gensim 4.4.0, which holds 206 pages of the English Wikipedia.  wikiextractor
3.1.0 is run as it ships, with one process, from this Python or the one that --wikiextractor names.  CPU seconds are of
the whole command with its children, the best of some turns.  Faults are counted in disjoint passages of 100 words.
Prints a table; --json FILE writes {claim: {ours, peer, ratio, bar, met, unit}}.

    python benchmarks/bench_wikitext.py --json results.json
    python benchmarks/bench_wikitext.py enwiki-20260101-pages-articles1.xml.bz2 --turns 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from claims import write_claims

from ragray.corpus import mediawiki
from ragray.corpus.files import open_file
from ragray.corpus.wikitext_units import convert
from ragray.records import Document

SAMPLE = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
FULL_DUMP_CHARACTERS = 25e9  # of wikitext in the English Wikipedia's articles, about 7.1 million of them

FAULTS = {
    "markup": re.compile(
        r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|'''|==+ |<(?:ref|br|span|div|sup|sub|small|math|gallery|nowiki|!--|/)"
        r"|&[a-z]+;|&#\d|__[A-Z]{3,}__|\|\s*[a-z_ ]{2,20}\s*=|\b(?:File|Image|Category):\S|templatestyles|formula_\d|\[https?://"
        r"|(?<![\w/])(?:thumb|upright)\|"
    ),
    "empty brackets": re.compile(r"\([\s,;:.–-]*\)|\(\s*[;,]|[,;]\s*\)|\[\s*\]"),
    "gaps": re.compile(
        r"(?<=[a-z,]) \.(?=\s|$)|\b(?:of|about|approximately|by|from|to|at|between|the|and)[.;]"
        r"(?=\s[A-Z]|$)|\b(?:of|about|approximately|the|a|an|is|was) ,"
        r"|\b(?:height|length|distance|depth|elevation|area) of"
        r" (?:and|in|from|to|by|with|is|was)\b|\b(?:about|approximately|nearly|roughly|over) "
        r"(?:of|west|east|north|south|long|wide|high|tall|deep|away|per)\b"
    ),
}
MEASUREMENT = re.compile(r"\{\{\s*(?:convert|cvt|convinfobox)\s*\|([^{}]*)\}\}", re.I)


@dataclass(frozen=True)
class Claim:
    """A number of ours beside the peer's.  ``at_least``: the bar is a lower limit of ours, else an upper one."""

    name: str
    unit: str
    ours: float
    peer: float | None
    bar: float | None = None
    at_least: bool = False

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.peer else None

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        return self.ours >= self.bar if self.at_least else self.ours <= self.bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path, nargs="?", help="a MediaWiki dump (default: gensim's sample)")
    parser.add_argument("--wikiextractor", default=sys.executable, help="a Python that has wikiextractor")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=int, default=0, help="print so many random passages of ours, and the faults")
    parser.add_argument("--extract", type=Path, help=argparse.SUPPRESS)  # the measured process: write JSON lines there
    options = parser.parse_args()
    if options.extract:
        _extract(options.dump, options.extract)
        return
    with tempfile.TemporaryDirectory() as folder:
        dump = options.dump or _sample(Path(folder))
        claims = _compare(dump, Path(folder), options.wikiextractor, options.turns, options.show)
    _show(claims)
    if options.json:
        write_claims(options.json, claims)


def _extract(dump: Path, output: Path) -> None:
    with output.open("w", encoding="utf-8") as file:
        for span in mediawiki.spans(dump, 1 << 40):
            for item in mediawiki.read(span):
                if isinstance(item, Document):
                    file.write(json.dumps({"id": item.id, "title": item.title, "text": item.text}) + "\n")


def _sample(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "gensim==4.4.0", "-d", str(folder)]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("gensim*.whl"))) as wheel:
        return Path(wheel.extract(SAMPLE, folder)).rename(folder / "sample.xml.bz2")


def _compare(dump: Path, folder: Path, python: str, turns: int, show: int) -> list[Claim]:
    output = folder / "ours.jsonl"
    ours_command = [sys.executable, __file__, str(dump), "--extract", str(output)]
    peer_command = [python, "-m", "wikiextractor.WikiExtractor", str(dump), "--json", "--processes", "1", "-q"]
    times = []
    for turn in range(turns):  # by turns, so that both see the same machine
        times.append((_cpu_and_wall(ours_command), _cpu_and_wall([*peer_command, "-o", str(folder / f"peer{turn}")])))
    ours = {document.id: document for document in _documents([output])}
    peer = {document.id: document for document in _documents(sorted((folder / "peer0").rglob("wiki_*")))}
    wikitext = {id: text for id, text in _wikitext(dump) if id in ours}
    characters = sum(map(len, wikitext.values()))
    kept = [{id: document for id, document in side.items() if id in wikitext} for side in (ours, peer)]
    claims = []
    for at, kind in enumerate(("CPU", "wall")):
        best = [min(turn[side][at] for turn in times) for side in (0, 1)]
        claims += [
            Claim(f"pages/s ({kind})", "1/s", len(wikitext) / best[0], len(wikitext) / best[1]),
            Claim(f"wikitext ({kind})", "MB/s", characters / best[0] / 1e6, characters / best[1] / 1e6),
        ]
        for cores in (1, 100):
            hours = [FULL_DUMP_CHARACTERS / (characters / seconds) / 3600 / cores for seconds in best]
            claims.append(Claim(f"English Wikipedia, {cores} core{'s'[: cores > 1]} ({kind})", "h", hours[0], hours[1]))
    return claims + _quality(kept, wikitext, show)


def _quality(sides: list[dict[str, Document]], wikitext: dict[str, str], show: int) -> list[Claim]:
    passages = [[text for document in side.values() for text in _passages(document.text)] for side in sides]
    claims = [Claim("passages of 100 words", "", len(passages[0]), len(passages[1]))]
    for name, pattern in FAULTS.items():
        found = [[(match[0], text) for text in side if (match := pattern.search(text))] for side in passages]
        bar = 5 if name == "markup" else None
        claims.append(Claim(f"passages with {name}", "", len(found[0]), len(found[1]), bar))
        for fault, text in found[0] if show else []:
            at = text.index(fault)
            print(f"{name}: {fault!r} in …{text[max(0, at - 60) : at + 60]}…")
    for text in random.Random(show).sample(passages[0], min(show, len(passages[0]))):
        print(f"\n{text}")
    expected = {id: _measurements(text) for id, text in wikitext.items()}
    total = sum(map(len, expected.values()))
    naive = {id: Document(id, "", _strip_code(text)) for id, text in wikitext.items()}
    counts = [_kept_measurements(side, expected) for side in (*sides, naive)]
    claims.append(Claim(f"measurements kept, of {total}", "", counts[0], counts[1], total, at_least=True))
    claims.append(
        Claim(f"measurements kept, of {total} (peer: mwparserfromhell's strip_code)", "", counts[0], counts[2])
    )
    return claims


def _passages(text: str, size: int = 100) -> Iterator[str]:
    words = text.split()
    for start in range(0, len(words), size):
        yield " ".join(words[start : start + size])


def _measurements(wikitext: str) -> list[str]:
    """The first number of each conversion in a page's running text, as a reader sees it."""
    body = re.sub(r"<!--.*?-->|<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref>|<gallery.*?</gallery>", "", wikitext, flags=re.S)
    body = re.sub(r"\[\[(?:File|Image):(?:[^\[\]]|\[\[[^\[\]]*\]\]|\[[^\[\]]*\])*\]\]", "", body)
    body = re.sub(r"^\{\|.*?^\|\}", "", body, flags=re.S | re.M)
    body = re.split(r"^==+\s*(?:See also|References|External links|Notes|Further reading)\s*==+", body, flags=re.M)[0]
    found = []
    for match in MEASUREMENT.finditer(body):
        if body.count("{{", 0, match.start()) == body.count("}}", 0, match.start()):  # not inside of another template
            arguments = [part for part in match[1].split("|") if "=" not in part]
            number = re.match(r"[−-]?[\d.,]+(?:[ +]?\d+/\d+)?", convert(arguments[:1], {}).replace("−", "-"))
            found.append(
                f"{float(arguments[0].replace(',', '').replace('−', '-')):g}" if number is None else arguments[0]
            )
    return [text.strip() for text in found]


def _kept_measurements(side: dict[str, Document], expected: dict[str, list[str]]) -> int:
    """How many measurements are in the texts: a number followed by a unit's letters, each used once."""
    kept = 0
    for id, numbers in expected.items():
        text = side[id].text.replace(",", "").replace("−", "-").replace("\u00a0", " ") if id in side else ""
        with_unit = (
            r"(-?\d+(?:\.\d+)?(?:[ +]\d+/\d+)?)(?=(?:[ -]?(?:to|by|and|or|–|×)?[ -]?[\d.]+)?[ -]?(?:[A-Za-z°/]))"
        )
        shown = Counter(re.findall(with_unit, text.replace("–", " – ").replace("  ", " ")))
        for number in numbers:
            plain = number.replace(",", "").replace("−", "-").replace("+", " ")
            for form in (plain, f"-{plain}", plain.lstrip("-")):
                if shown[form]:
                    shown[form] -= 1
                    kept += 1
                    break
    return kept


def _strip_code(wikitext: str) -> str:
    import mwparserfromhell

    return str(mwparserfromhell.parse(wikitext).strip_code())


def _documents(files: list[Path]) -> Iterator[Document]:
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["text"].strip():
                yield Document(row["id"], row["title"], row["text"])


def _wikitext(dump: Path) -> Iterator[tuple[str, str]]:
    with open_file(str(dump)) as file:
        for _, element in ET.iterparse(file):
            if element.tag.endswith("}page"):
                space = element.tag[: -len("page")]
                yield element.findtext(f"{space}id", ""), element.findtext(f"{space}revision/{space}text", "") or ""
                element.clear()


def _cpu_and_wall(command: list[str]) -> tuple[float, float]:
    """(CPU seconds of a command and all processes that it starts, seconds).

    Looked up while they run, since a process that nobody waits for is in nobody's account.
    """
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment, start_new_session=True)
    seconds: dict[int, float] = {}
    while process.poll() is None:
        seconds.update(_session_seconds(process.pid))
        time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return sum(seconds.values()), time.perf_counter() - started


def _session_seconds(session: int) -> dict[int, float]:
    """CPU seconds of every process of a session."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session:
            found[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _show(claims: list[Claim]) -> None:
    print(f"{'':70} {'ours':>10} {'peer':>10} {'ratio':>7} {'bar':>7}")
    for claim in claims:
        bar = "" if claim.bar is None else f"{'>=' if claim.at_least else '<='} {claim.bar:g}"
        met = {None: "", True: "met", False: "NOT MET"}[claim.met]
        peer, ratio = ("-" if value is None else f"{value:.2f}" for value in (claim.peer, claim.ratio))
        print(f"{claim.name:70} {claim.ours:10.2f} {peer:>10} {ratio:>7} {bar:>7} {claim.unit:5}{met}")


if __name__ == "__main__":
    main()
