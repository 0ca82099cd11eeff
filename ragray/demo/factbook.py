"""The World Factbook's JSON records -> one readable document a country or territory.

A record is ``REGION/CODE.json``: section -> field -> value (see :mod:`ragray.demo.factbook_prose`).  Pure: the same
folder gives the same bytes on every machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragray.demo.factbook_prose import FieldValue, field_label, labelled, leaves, name_case, render_line, sentences
from ragray.records import Document, InputError

SECTIONS = (
    "Introduction",
    "Geography",
    "People and Society",
    "Environment",
    "Government",
    "Economy",
    "Communications",
    "Military and Security",
)

# Fields ("Field") and sub-fields ("Field: sub-field") that the documents leave out: tables of figures, addresses, lists
# of acronyms, origins of names.  What stays is a little over 4,000 passages of 100 words.
LEFT_OUT = frozenset(
    {
        "Age structure",
        "Alcohol consumption per capita",
        "Area - rankings",
        "Average household expenditures",
        "Birth rate",
        "Broadband - fixed subscriptions",
        "Budget",
        "Capital: etymology",
        "Capital: note",
        "Carbon dioxide emissions",
        "Child marriage",
        "Children under the age of 5 years underweight",
        "Constitution: amendment process",
        "Contraceptive prevalence rate",
        "Country name: etymology",
        "Current account balance",
        "Currently married women (ages 15-49)",
        "Death rate",
        "Debt - external",
        "Demographic profile",
        "Dependency ratios",
        "Diplomatic representation from the US",
        "Diplomatic representation in the US",
        "Drinking water source",
        "Ease of Doing Business Index scores",
        "Education expenditure",
        "Executive branch: election results",
        "Flag: note",
        "GDP (official exchange rate)",
        "GDP - composition, by end use",
        "GDP - composition, by sector of origin",
        "Geoparks",
        "Gini Index coefficient - distribution of family income",
        "Gross reproduction rate",
        "Health expenditure",
        "Hospital bed density",
        "Household income or consumption by percentage share",
        "Industrial production growth rate",
        "Infant mortality rate",
        "Inflation rate (consumer prices)",
        "International environmental agreements",
        "International law organization participation",
        "International organization participation",
        "Judicial branch: judge selection and term of office",
        "Judicial branch: note",
        "Judicial branch: subordinate courts",
        "Labor force",
        "Land use",
        "Languages: major-language sample(s)",
        "Legislative branch - lower chamber: electoral system",
        "Legislative branch - lower chamber: parties elected and seats per party",
        "Legislative branch - lower chamber: percentage of women in chamber",
        "Legislative branch - lower chamber: scope of elections",
        "Legislative branch - upper chamber: electoral system",
        "Legislative branch - upper chamber: parties elected and seats per party",
        "Legislative branch - upper chamber: percentage of women in chamber",
        "Legislative branch - upper chamber: scope of elections",
        "Legislative branch: parties elected and seats per party",
        "Legislative branch: percentage of women in chamber",
        "Legislative branch: scope of elections",
        "Map references",
        "Maritime claims",
        "Maternal mortality ratio",
        "Median age",
        "Methane emissions",
        "Military - note",
        "Military and security forces: note",
        "Military and security service personnel strengths",
        "Military deployments",
        "Military equipment inventories and acquisitions",
        "Military expenditures",
        "Military service age and obligation",
        "Mother's mean age at first birth",
        "Net migration rate",
        "Obesity - adult prevalence rate",
        "Particulate matter emissions",
        "Physician density",
        "Political parties",
        "Population below poverty line",
        "Population growth rate",
        "Population: female",
        "Population: male",
        "Public debt",
        "Real GDP (purchasing power parity)",
        "Real GDP growth rate",
        "Real GDP per capita",
        "Remittances",
        "Reserves of foreign exchange and gold",
        "Sanitation facility access",
        "School life expectancy (primary to tertiary education)",
        "Sex ratio",
        "Taxes and other revenues",
        "Telephones - fixed lines",
        "Telephones - mobile cellular",
        "Tobacco use",
        "Total fertility rate",
        "Total renewable water resources",
        "Total water withdrawal",
        "Unemployment rate",
        "Waste and recycling",
        "Wonders of the World",
        "World biomes",
        "Youth unemployment rate (ages 15-24)",
    }
)

# Titles where the record has no usable short form.
TITLES = {
    "ce": "Sri Lanka",
    "cf": "Republic of the Congo",
    "cg": "Democratic Republic of the Congo",
    "dr": "Dominican Republic",
    "ee": "European Union",
    "fm": "Micronesia",
    "gz": "Gaza Strip",
    "um": "United States Pacific Island Wildlife Refuges",
    "vq": "United States Virgin Islands",
    "vt": "Vatican City",
    "xx": "World",
}

# Fields in which words in capitals are names of people (or, of the urban areas, of capitals).
_NAME_FIELDS = frozenset(
    {
        "Background",
        "Capital",
        "Constitution",
        "Country name",
        "Dependency status",
        "Economic overview",
        "Executive branch",
        "Flag",
        "Government type",
        "Independence",
        "Legislative branch",
        "Legislative branch - lower chamber",
        "Legislative branch - upper chamber",
        "Major urban areas - population",
        "National anthem(s)",
        "National coat of arms",
        "National holiday",
    }
)


@dataclass(frozen=True, slots=True)
class Country:
    """One record: ``sections`` is section -> field -> value, as in the JSON file."""

    code: str
    title: str
    sections: Mapping[str, Mapping[str, FieldValue]]

    def text(self, section: str, field: str, *sub_fields: str) -> str | None:
        """The HTML text of the first of ``sub_fields`` (or of the field itself) that the record has."""
        texts = dict(leaves(self.sections.get(section, {}).get(field, {})))
        return next((texts[name] for name in sub_fields or ("text",) if texts.get(name, "").strip()), None)


def read_factbook(folder: Path) -> list[Country]:
    """Read every ``REGION/CODE.json`` under ``folder``, in the order of the codes.

    Raises InputError where the folder holds no records, or two records share a code or a title.
    """
    files = sorted(folder.glob("*/*.json"), key=lambda file: (file.stem, file.parent.name))
    if not files:
        raise InputError(f"{folder} holds no REGION/CODE.json records; give the `data` folder of the Factbook package")
    countries = [_country(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    for what in ("code", "title"):
        values = [getattr(country, what) for country in countries]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise InputError(f"{folder}: {what} {twice[0]!r} comes in two records; remove one of the files")
    return countries


def _country(code: str, record: Mapping[str, Mapping[str, FieldValue]]) -> Country:
    untitled = Country(code, code, record)
    return Country(code, TITLES.get(code) or _usual_name(untitled) or code.upper(), record)


def _usual_name(country: Country) -> str | None:
    """The short form of the name, else the long form, without brackets and alternatives."""
    for form in ("conventional short form", "conventional long form"):
        name = render_line(country.text("Government", "Country name", form) or "")
        name = re.sub(r"\s*\((?!Keeling).*", "", name)
        if name and name.lower() != "none":
            return name
    return None


def documents(
    countries: Sequence[Country], sections: Sequence[str] = SECTIONS, left_out: frozenset[str] = LEFT_OUT
) -> list[Document]:
    """One document a country: a paragraph a section, a few sentences a field."""
    return [Document(country.code, country.title, document_text(country, sections, left_out)) for country in countries]


def document_text(country: Country, sections: Sequence[str] = SECTIONS, left_out: frozenset[str] = LEFT_OUT) -> str:
    """The prose of one record: "Capital: Paris. Geographic coordinates of the capital: 48 52 N, 2 20 E. ..."."""
    paragraphs = []
    told: set[str] = set()  # some fields stand in two sections
    for section in sections:
        fields = country.sections.get(section, {})
        prose = [field_prose(field, value, left_out) for field, value in fields.items() if field not in left_out]
        fresh = [text for text in prose if text and text not in told]
        told.update(fresh)
        paragraphs.append("\n".join(fresh))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def field_prose(field: str, value: FieldValue, left_out: frozenset[str] = frozenset()) -> str:
    """One field as sentences, each part under its own label; empty where nothing is worth a sentence."""
    parts = []
    for sub_field, raw in leaves(value):
        text = sentences(plain_value(field, sub_field, raw))
        if not text or text.lower() in ("none.", "na.") or f"{field}: {sub_field}" in left_out:
            continue
        if field in _NAME_FIELDS and sub_field != "abbreviation":
            text = name_case(text)
        if sub_field == "note":
            text = re.sub(r"^note(?: \d+)?: *", "", text, flags=re.IGNORECASE)
            parts.append(f"Note: {text}")
        else:
            parts.append(labelled(field_label(field, sub_field), text))
    return " ".join(parts)


def plain_value(field: str, sub_field: str, raw: str) -> str:
    """The value as a sentence needs it: currencies without rates, elevations with a unit, no boilerplate notes."""
    if field == "Exchange rates":
        line = render_line(raw)
        if sub_field == "Currency" or " per US dollar -" in line:
            return line.split(" per US dollar")[0]
        return raw if sub_field == "text" and re.search(r"US dollar (?:is used|became)|\buses the", line) else ""
    if field == "Elevation" and sub_field != "note" and re.search(r"[A-Za-z)] -?[\d,.]*\d$", render_line(raw)):
        return f"{render_line(raw)} m"
    if sub_field == "note" and re.search(r"based on (?:percentage|purchasing)|top (?:five|ten)|data (?:in|are)", raw):
        return ""
    return raw
