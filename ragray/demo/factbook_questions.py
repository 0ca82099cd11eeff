"""Questions over the Factbook by template, split so that no country is in both train and dev.

A question stands only if its first answer stands, after SQuAD's normalisation, in one passage of its country.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ragray.demo import factbook_answers as read
from ragray.demo.factbook import LEFT_OUT, SECTIONS, Country, documents, read_factbook
from ragray.demo.factbook_answers import Fact, Source
from ragray.formulas.metrics import normalize_answer
from ragray.records import Document, Question

PASSAGE_WORDS = 100
DEV_SHARE = 0.2
NO_QUESTIONS = frozenset({"ee", "um", "xx"})  # no country or territory of its own


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of question.  ``{of}`` is the country with its article; ``{role}`` the office, or else ``role``.

    ``wordings`` are for train and dev, ``held_back`` for dev_wording; a relation that is ``held_out`` is asked in
    dev_relations only.
    """

    name: str
    source: Source
    wordings: tuple[str, ...]
    held_back: tuple[str, ...] = ()
    held_out: bool = False
    role: str = ""


RELATIONS = (
    Relation(
        "capital",
        Source("Government", "Capital", ("name",), read.capital),
        (
            "What is the capital of {of}?",
            "Which city is the capital of {of}?",
            "What is the name of {ofs} capital?",
            "Name the capital city of {of}.",
        ),
        (
            "What city is the seat of government of {of}?",
            "If you fly to the capital of {of}, where do you land?",
        ),
    ),
    Relation(
        "chief_of_state",
        Source("Government", "Executive branch", ("chief of state",), read.person),
        (
            "Who is the {role} of {of}?",
            "Who is the chief of state of {of}?",
            "Who is {ofs} head of state?",
            "Name the chief of state of {of}.",
        ),
        ("Which person holds the highest office of state in {of}?", "Who represents {of} as its head of state?"),
        role="head of state",
    ),
    Relation(
        "head_of_government",
        Source("Government", "Executive branch", ("head of government",), read.person),
        (
            "Who is the head of government of {of}?",
            "Who leads the government of {of}?",
            "Who is the {role} of {of}?",
            "Name the head of government of {of}.",
        ),
        ("Who runs {ofs} government?", "Which politician heads the government in {of}?"),
        role="head of government",
    ),
    Relation(
        "national_anthem",
        Source("Government", "National anthem(s)", ("title",), read.anthem),
        (
            "What is the national anthem of {of}?",
            "What is the title of {ofs} national anthem?",
            "What is the national anthem of {of} called?",
            "Name the national anthem of {of}.",
        ),
        ("Which song is played as the anthem of {of}?", "What anthem do people sing in {of}?"),
    ),
    Relation(
        "highest_point",
        Source("Geography", "Elevation", ("highest point",), read.high_or_low_point),
        (
            "What is the highest point in {of}?",
            "What is the highest point of {of}?",
            "Which place has the highest elevation in {of}?",
            "Name the highest point in {of}.",
        ),
        ("What is the tallest peak in {of}?", "Where in {of} would you stand highest above the sea?"),
    ),
    Relation(
        "internet_country_code",
        Source("Communications", "Internet country code", ("text",), read.internet_code),
        (
            "What is the internet country code of {of}?",
            "What is {ofs} internet country code?",
            "Which internet domain ending belongs to {of}?",
            "What country code do internet addresses in {of} use?",
        ),
        ("What is the top-level domain of {of}?", "How do web addresses from {of} end?"),
    ),
    Relation(
        "independence",
        Source("Government", "Independence", ("text",), read.independence),
        (
            "When did {of} become independent?",
            "What is the date of independence of {of}?",
            "On what date did {of} gain independence?",
            "When did {of} gain its independence?",
        ),
        ("Since what date has {of} been a sovereign state?", "What day marks the independence of {of}?"),
    ),
    Relation(
        "currency",
        Source("Economy", "Exchange rates", ("Currency", "text"), read.currency),
        (
            "What is the currency of {of}?",
            "Which currency is used in {of}?",
            "What currency does {of} use?",
            "Name the currency of {of}.",
        ),
        ("What money do people pay with in {of}?", "In what currency are prices quoted in {of}?"),
    ),
    Relation(
        "national_symbol",
        Source("Government", "National symbol(s)", ("text",), read.one_of_a_kind),
        (
            "What is the national symbol of {of}?",
            "What is {ofs} national symbol?",
            "Which symbol stands for {of}?",
            "Name the national symbol of {of}.",
        ),
        ("By which emblem is {of} known?", "What does {of} use as its national symbol?"),
    ),
    Relation(
        "government_type",
        Source("Government", "Government type", ("text",), read.government_type),
        (
            "What type of government does {of} have?",
            "What is the government type of {of}?",
            "What form of government does {of} have?",
            "What kind of government is there in {of}?",
        ),
        ("How is {of} governed?", "Under what political system is {of} run?"),
    ),
    Relation(
        "demonym",
        Source("People and Society", "Nationality", ("adjective",), read.demonym),
        (
            "What is the nationality of someone from {of}?",
            "Which adjective describes the nationality of {of}?",
            "What adjective is used for the people of {of}?",
            "What is the adjective for {of}?",
        ),
        ("What do you call something that comes from {of}?", "What is the demonym for {of}?"),
    ),
    Relation(
        "legislature",
        Source("Government", "Legislative branch", ("legislature name",), read.legislature),
        (
            "What is the name of {ofs} legislature?",
            "What is the legislature of {of} called?",
            "What is the legislature of {of}?",
            "Name the legislature of {of}.",
        ),
        ("Which body makes the laws of {of}?", "What is the lawmaking assembly of {of} called?"),
    ),
    Relation(
        "official_language",
        Source("People and Society", "Languages", ("Languages", "text"), read.official_language),
        (
            "What is the official language of {of}?",
            "Which language is official in {of}?",
            "What is {ofs} official language?",
            "Name the official language of {of}.",
        ),
        (
            "In what language are the laws of {of} written?",
            "What language has official status in {of}?",
        ),
    ),
    Relation(
        "lowest_point",
        Source("Geography", "Elevation", ("lowest point",), read.high_or_low_point),
        (
            "What is the lowest point in {of}?",
            "What is the lowest point of {of}?",
            "Which place has the lowest elevation in {of}?",
            "Name the lowest point in {of}.",
        ),
        held_out=True,
    ),
    Relation(
        "national_holiday",
        Source("Government", "National holiday", ("text",), read.holiday),
        (
            "What is the national holiday of {of}?",
            "What is {ofs} national holiday?",
            "Which day does {of} celebrate as its national holiday?",
            "Name the national holiday of {of}.",
        ),
        held_out=True,
    ),
    Relation(
        "coastline",
        Source("Geography", "Coastline", ("text",), read.length),
        (
            "How long is the coastline of {of}?",
            "What is the length of {ofs} coastline?",
            "How many kilometers of coastline does {of} have?",
            "How long is {ofs} coast?",
        ),
        held_out=True,
    ),
)

_ARTICLE = re.compile(
    r"Islands$|Republic|Kingdom|United States$|Emirates$|^(?:Comoros|Maldives|Netherlands|Philippines|Gaza Strip"
    r"|Isle of Man|West Bank)$|Territory$|Lands$|^United States "
)


def with_article(title: str) -> str:
    """The country as a sentence says it: "the Bahamas", "the Netherlands", "Peru"."""
    if title.startswith("The "):
        return f"the {title[4:]}"
    return f"the {title}" if _ARTICLE.search(title) else title


def possessive(name: str) -> str:
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def is_dev(code: str) -> bool:
    """Whether the country's questions are for dev: about DEV_SHARE of the countries, by the hash of the code."""
    return _hash(f"ragray {code}") % 1000 < DEV_SHARE * 1000


def passage_texts(document: Document) -> list[str]:
    """The normalised disjoint 100-word passages of a document, between spaces."""
    words = document.text.split()
    starts = range(0, len(words), PASSAGE_WORDS)
    return [f" {normalize_answer(' '.join(words[start : start + PASSAGE_WORDS]))} " for start in starts]


def facts(countries: Sequence[Country], corpus: Sequence[Document]) -> dict[tuple[str, str], Fact]:
    """(code, relation) -> answers whose first stands in one passage of the country's document."""
    passages = {document.id: passage_texts(document) for document in corpus}
    found = {}
    for country in countries:
        for relation in RELATIONS if country.code not in NO_QUESTIONS else ():
            fact = relation.source.fact(country)
            if relation.name == "chief_of_state" and "Dependency status" in country.sections.get("Government", {}):
                fact = replace(fact, role=None)  # nobody speaks of the president of Guam
            first = f" {normalize_answer(fact.answers[0])} " if fact.answers else None
            if first and any(first in text for text in passages.get(country.code, ())):
                found[country.code, relation.name] = fact
    return found


def questions(
    countries: Sequence[Country], corpus: Sequence[Document], train_wordings: int = 1
) -> dict[str, list[Question]]:
    """The splits train, dev, dev_wording and dev_relations; any prefix of one is a fair sample.

    ``train_wordings`` is how many of its wordings each train fact gets; dev splits have one a fact.  Wordings are
    chosen by the hash of country and relation.
    """
    known = facts(countries, corpus)
    splits: dict[str, list[Question]] = {"train": [], "dev": [], "dev_wording": [], "dev_relations": []}
    for country in countries:
        for relation in RELATIONS:
            fact = known.get((country.code, relation.name))
            if fact is None:
                continue
            if relation.held_out:
                if is_dev(country.code):
                    splits["dev_relations"] += _asked(country, relation, fact, relation.wordings, 1)
            elif is_dev(country.code):
                splits["dev"] += _asked(country, relation, fact, relation.wordings, 1)
                splits["dev_wording"] += _asked(country, relation, fact, relation.held_back, 1)
            else:
                splits["train"] += _asked(country, relation, fact, relation.wordings, train_wordings)
    return {name: sorted(split, key=lambda question: _hash(question.id)) for name, split in splits.items()}


def _asked(
    country: Country, relation: Relation, fact: Fact, wordings: Sequence[str], how_many: int
) -> Iterable[Question]:
    """The fact in ``how_many`` of the wordings, starting from the one that the hash chooses."""
    of = with_article(country.title)
    first = _hash(f"{country.code} {relation.name}")
    for step in range(min(how_many, len(wordings))):
        number = (first + step) % len(wordings)
        text = wordings[number].format(of=of, ofs=possessive(of), role=fact.role or relation.role)
        where = "held" if wordings is relation.held_back else "asked"
        identity = f"{country.code}-{relation.name}-{where}{number}"
        yield Question(identity, text, fact.answers, country.title, relation.name)


def write_demo(
    records: Path,
    out: Path,
    sections: Sequence[str] = SECTIONS,
    left_out: frozenset[str] = LEFT_OUT,
    train_wordings: int = 1,
) -> dict[str, int]:
    """Write ``documents.jsonl`` and ``questions/SPLIT.jsonl`` under ``out``; the rows of each file by its name.

    ``records`` is the package's ``data`` folder.  The bytes depend on the records and the arguments alone.
    """
    countries = read_factbook(records)
    corpus = documents(countries, sections, left_out)
    rows: dict[str, list[dict[str, Any]]] = {"documents.jsonl": [asdict(document) for document in corpus]}
    for split, asked in questions(countries, corpus, train_wordings).items():
        rows[f"questions/{split}.jsonl"] = [_row(question) for question in asked]
    for name, lines in rows.items():
        _write(out / name, lines)
    return {name: len(lines) for name, lines in rows.items()}


def _row(question: Question) -> dict[str, Any]:
    return {**asdict(question), "answers": list(question.answers)}


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    path.write_bytes(text.encode("utf-8"))
