"""Short, verbatim answers out of the Factbook's structured fields: one function a kind of answer.

Each takes the rendered text of a field and returns the acceptable answers, the form of the document first; none where
the field is empty, too long or names more than one thing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragray.demo.factbook import Country, plain_value
from ragray.demo.factbook_prose import name_case, render_line
from ragray.formulas.metrics import normalize_answer

MOST_WORDS = 8

_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DATE = re.compile(rf"(\d{{1,2}}) ({_MONTHS}) (\d{{3,4}})\b")

_NAME = re.compile(r"[^\W\d_a-z][^\W\d]*(?:[ '-](?:[^\W\d_a-z][^\W\d]*|al|and|d|de|del|du|la|of|s|the))*")

_RANKS = (
    r"Acting|Interim|Caretaker|Transition|Transitional|Air|Vice-Marshal|Archbishop|Capt\.|Captain|Col\.|Crown|Dame|Dr\."
    r"|Gen\.|General|Lt\.|Sir|Sr\.|GNU|CNSP"
)
_OFFICES = (
    "Administrator",
    "Administrator Superior",
    "Amir",
    "Chairman of the Cabinet of Ministers",
    "Chairperson of the Council of Ministers",
    "Chancellor",
    "Chief Executive",
    "Chief Minister",
    "Emperor",
    "Governor",
    "Grand Duke",
    "King",
    "King Sultan",
    "Lord of Mann King",
    "Mayor and Chairman of the Island Council",
    "Minister of State",
    "Pope",
    "Premier",
    "President",
    "President of China",
    "President of Council of Ministers",
    "President of French Polynesia",
    "President of Territorial Council",
    "President of the Government",
    "President of the Government of Spain",
    "President of the National Council for the Safeguard of the Homeland",
    "President of the Pontifical Commission for the State of Vatican City and President of the Governorate of the "
    "Vatican City State",
    "President of the Swiss Confederation",
    "President of the Territorial Assembly",
    "President, Presidential Council,",
    "Presidential Leadership Council Chairperson",
    "Prime Minister",
    "Prime Minister and Co-Vice President",
    "Prime Minister and Foreign Minister",
    "Prime Minister Crown Prince",
    "Crown Prince and Prime Minister",
    "Prince",
    "Queen",
    "Secretary of State for Foreign and Political Affairs",
    "Sovereign Council Chair and Commander-in-Chief of the Sudanese Armed Forces",
    "State Affairs Commission President",
    "Sultan and Prime Minister",
    "Supreme Leader",
    "Supreme People's Assembly President",
    "Taliban Leader",
    "Taoiseach",
    "Vice President",
)
_TITLE = re.compile(
    rf"(?:(?:{_RANKS}) )*(?P<office>{'|'.join(map(re.escape, sorted(_OFFICES, key=len, reverse=True)))})? ?"
    rf"(?:(?:{_RANKS}) )*"
)
# Offices that a question may name: "Who is the prime minister of Peru?"
_ROLES = {
    "Amir": "amir",
    "Chancellor": "chancellor",
    "Chief Minister": "chief minister",
    "Emperor": "emperor",
    "Governor": "governor",
    "Grand Duke": "grand duke",
    "King": "king",
    "Pope": "pope",
    "Premier": "premier",
    "President": "president",
    "Prime Minister": "prime minister",
    "Prime Minister and Foreign Minister": "prime minister",
    "Sultan and Prime Minister": "sultan",
    "Taoiseach": "prime minister",
}


# Plurals of currencies that don't end in a plain "s".
_ONE = {
    "colones": "colon",
    "emalangeni": "lilangeni",
    "koruny": "koruna",
    "kroner": "krone",
    "kronor": "krona",
    "kronur": "krona",
    "lei": "leu",
    "leke": "lek",
    "leva": "lev",
    "maloti": "loti",
    "meticais": "metical",
    "quetzales": "quetzal",
    "zlotych": "zloty",
}
_WHEREABOUTS = ("Antarctica", "South Georgia", "Tenerife")  # in brackets after a mountain, but no second name of it


@dataclass(frozen=True, slots=True)
class Fact:
    """The acceptable answers of one relation of one country; ``role`` is the office that a question may name."""

    answers: tuple[str, ...] = ()
    role: str | None = None


def fact(*answers: str, role: str | None = None) -> Fact:
    """The answers without repetitions; no fact where the first is empty or longer than MOST_WORDS."""
    cleaned = [re.sub(r"(?<!D\.C)(?<!Jr)\.$", "", answer.strip(" ,;")) for answer in answers]
    if not cleaned or not normalize_answer(cleaned[0]) or len(cleaned[0].split()) > MOST_WORDS:
        return Fact()
    cleaned += [unaccented(answer) for answer in cleaned]
    by_form = {normalize_answer(answer): answer for answer in reversed(cleaned) if normalize_answer(answer)}
    return Fact(tuple(by_form[form] for form in dict.fromkeys(map(normalize_answer, cleaned)) if form), role)


def unaccented(text: str) -> str:
    """ "San Jose" for "San José": a form that readers, and questions, use as well."""
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


def brackets(text: str) -> tuple[str, list[str]]:
    """("Sapitwa 3,002 m", ["Mount Mlanje"]) of "Sapitwa (Mount Mlanje) 3,002 m"; only names count as alternatives."""
    inside = [part for found in re.findall(r"\(([^()]*)\)", text) for part in re.split(r"[,/]| or ", found)]
    names = [part.strip() for part in inside if _NAME.fullmatch(part.strip())]
    return " ".join(re.sub(r"\s*\([^()]*\)", "", text).split()), names


def person(text: str) -> Fact:
    """The office holder of "President Emmanuel MACRON (since 14 May 2017); represented by ..."."""
    # Two office holders: "...); Denis BECIROVIC (...".
    if re.search(r"\); (?!note|the |also|head |$)|; and Co-|^co-|^overall", text.split("represented by")[0]):
        return Fact()
    head = re.split(r"\((?:since|for|\d|chairperson|vacant)", text)[0]
    head = " ".join(re.sub(r"\([^()]*\)", " ", head.split(";")[0]).split())
    title = _TITLE.match(head)
    office = (title.group("office") if title else None) or ""
    name = " ".join(re.sub(r" (?:of|also) .*$", "", head[title.end() :] if title else head).split())
    if not 1 <= len(name.split()) <= MOST_WORDS or re.match(r"[a-z]", name):
        return Fact()
    full = name_case(name)  # as long as the name: surnames are found in the one and read in the other
    capitals = re.search(r"(?<!\w)(?:[^\W\d_a-z]{2,}(?:['-][^\W\d_]+)*\b ?)+", name)
    bare = full[capitals.start() : capitals.end()].strip() if capitals else ""
    joined = full[full.rfind(" ", 0, capitals.start()) + 1 : capitals.end()].strip() if capitals else ""
    words = [word for word in full.split() if not re.fullmatch(r"\w\.|\".*\"", word)]
    regnal = [f"{office.split()[-1]} {full}"] if re.search(r"(?:King|Prince|Pope|Emperor|Duke)$", office) else []
    shorter = [" ".join(words), f"{words[0]} {joined}" if joined and words[0] not in joined else "", joined, bare]
    return fact(full, *regnal, *shorter, role=None if "represented by" in text else _ROLES.get(office))


def capital(text: str) -> Fact:
    """One capital; none where the record names several, or offices in place of a capital."""
    main = re.split(r"; note - | in Romanian", text)[0]
    name, others = brackets(main)
    if re.search(r";|no official|administered|capital\)", main) or ("," in name and "D.C." not in name):
        return Fact()
    return fact(name, *others)


def high_or_low_point(text: str) -> Fact:
    """The name of the place in "Mont Blanc 4,810 m"; none where the place has no name."""
    main = re.split(r"; note| note - ", text)[0]
    name, others = brackets(main)
    place = re.sub(r",? (?:more than )?-?\d[\d,.]* ?m?.*$", "", name)
    if re.search(r"^\d|unnamed|;| and |junction|location|lighthouse|height|^near|dunes|golf|/[A-Z].*/|/.*s$|, ", place):
        return Fact()
    short = re.sub(r" on .*$", "", place)
    return fact(short, place, *short.split("/"), *(other for other in others if other not in _WHEREABOUTS))


def anthem(text: str) -> Fact:
    """The title in quotes of '"La Marseillaise" (The Song of Marseille)', and its translation."""
    titles = re.findall(r'"([^"]+)"', text)
    if len(titles) > 1 or len(text) > 160:
        return Fact()
    name = titles[0] if titles else re.split(r"\s*\(", text)[0].strip('"')
    translation = re.findall(r"\(\"?([^()\"]+)\"?\)?\s*$", text)
    return fact(name, *translation)


def internet_code(text: str) -> Fact:
    return fact(text) if re.fullmatch(r"\.[a-z]{2}", text) else Fact()


def independence(text: str) -> Fact:
    """The one date of independence; none where several dates could be meant."""
    main = re.split(r"; notable earlier|; note", text)[0]
    found = _DATE.match(main)
    later = [part for part in main.split("; ")[1:] if _DATE.match(part) and "recognized" not in part]
    if not found or later:
        return Fact()
    how = main[found.end() :].strip()  # "(from France)", but not "(current constitution adopted)"
    if how and not re.match(r"\(.*(?:\bfrom\b|independen|mandate|split|declared)", how):
        return Fact()
    day, month, year = found.groups()
    return fact(found.group(), f"{month} {day}, {year}")


def currency(text: str) -> Fact:
    """ "Algerian dinars (DZD)" -> Algerian dinars, Algerian dinar, DZD; "the US dollar is used" -> US dollar."""
    if re.search(r"\bthe US dollar\b", text):
        return fact("US dollar", "US dollars", "USD", "dollar")
    used = re.search(r"uses the (\w+)", text)
    name, codes = brackets(used.group(1) if used else text)
    if re.search(r"/| or |per US|,|see ", name):
        return Fact()
    *kind, unit = name.split()
    one = _ONE.get(unit) or re.sub(r"(?<=[a-z]{2})s$", "", unit)
    return fact(name, " ".join([*kind, one]), *codes, one, unit)


def one_of_a_kind(text: str) -> Fact:
    """A symbol, where there is one: "harpy eagle", not "lion, elephant"."""
    name, _ = brackets(text)
    if re.search(r"[,;/]| and |no official|displaying|field", name) or len(name.split()) > 6:
        return Fact()
    return fact(name, text)


def government_type(text: str) -> Fact:
    name, _ = brackets(text.split(";")[0])
    vague = r"^(?:the|a|formerly|legal|in transition|administered|mixed)\b|,| - | that "
    if re.search(vague, name) or len(name.split()) > 6:
        return Fact()
    return fact(name)


def demonym(text: str) -> Fact:
    name = re.sub(r"\(s\)$", "", text.split("; note")[0])
    return Fact() if re.search(r"[,;/()]| or |^none$|^NA$", name) else fact(name)


def legislature(text: str) -> Fact:
    name, others = brackets(text)
    parts = re.split(r" - | or ", name)
    if re.search(r"[;,]|note", name):
        return Fact()
    last = re.findall(r"\(([^()]+)\)", text)
    return fact(parts[0], name, *parts[1:], *others, *last)


def official_language(text: str) -> Fact:
    """The language of "Spanish (official) 98%, ..."; none where the record names no official language, or several."""
    listed = re.split(r"; note", text)[0]
    if len(re.findall(r"\bofficial\b", listed)) != 1:
        return Fact()
    found = re.search(
        r"(?:^|, |; )([A-Z][\w' -]*?)(?: \d[\d.]*%)?(?: \([A-Z][^()]*\))? "
        r"\(official\b(?! (?:language|regional|in|on|only))",
        listed,
    )
    if not found or re.search(r"\b(?:and|only|in|of)\b", found.group(1)):
        return Fact()
    return fact(found.group(1))


def holiday(text: str) -> Fact:
    """The name of the one national holiday: "Independence Day, 5 July (1962)" -> Independence Day."""
    name, others = brackets(text)
    name = name.split(",")[0]
    named = r"\b(?:Day|Celebration|Holiday|Fédération|Revolution|Festival)$|[Bb]irthday|^Founding"
    if ";" in text or not re.search(named, name):
        return Fact()
    return fact(name_case(name), *(other for other in others if other.endswith("Day")))


def length(text: str) -> Fact:
    found = re.match(r"([\d,.]+) km\b", text)
    if not found or found.group(1) == "0":
        return Fact()
    number = found.group(1)
    return fact(f"{number} km", f"{number} kilometers", f"{number} kilometres", number)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a relation's answer stands in the record, and how to read it."""

    section: str
    field: str
    sub_fields: Sequence[str]
    read: Callable[[str], Fact]

    def fact(self, country: Country) -> Fact:
        for sub_field in self.sub_fields:
            raw = country.text(self.section, self.field, sub_field)
            text = render_line(plain_value(self.field, sub_field, raw)) if raw else ""
            if text and text.lower() not in ("none", "na"):
                return self.read(text)
        return Fact()
