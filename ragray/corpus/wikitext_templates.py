"""MediaWiki templates as the text that a reader sees: wrappers, characters, dates, numbers, languages, measurements.

Which templates are shown is decided by name.  All others (references, boxes, maintenance notes) are not text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date

from ragray.corpus.wikitext_units import convert, grouped, number, unit

MISSING = "\ue000"  # a value that a reader sees and that can't be known from the page: today's age, inflation
GUESS, GUESS_END = "\ue001", "\ue002"  # around what an unknown template may show

_MONTHS = ("January", "February", "March", "April", "May", "June",
           "July", "August", "September", "October", "November", "December")  # fmt: skip
_SUPERSCRIPTS = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")


def names(text: str) -> frozenset[str]:
    """The names between the bars, whatever lines they stand on."""
    return frozenset("".join(line.strip() for line in text.splitlines()).split("|"))


_FIRST = names(
    """abbr|abbrlink|as written|avoid wrap|b|bdi|big|birth-date|birth-date and age|block indent|bold|center|chem2|code|
    date|death-date|death-date and age|defn|del|delink|dfn|em|end-date|flag|flag country|flag+link|flagathlete|
    flagcountry|flagu|flatlist|grc|hebrew|hover title|i|ill|ill2|illm|interlanguage link|interlanguage link forced|
    interlanguage link multi|ipa|ipalink|kbd|key press|keypress|lang-ja|large|larger|link-interwiki|longitem|marriage|
    math|midsize|mono|mvar|nastaliq|no italic|no wrap|nobold|nobr|nobreak|noitalic|normal|nowrap|nwr|overline|
    plainlist|poem|polytonic|proper name|red link|rtl-lang|samp|sc|sc2|sic|small|small caps|smallcaps|smaller|
    start-date|strike|strikethrough|strong|term|tmath|tooltip|tt|typo|u|underline|unicode|vanchor|var|verse|
    visible anchor|vr|xt"""
)
_SECOND = names("background color|bgcolor|color|colored text|colour|coloured text|hs|lang|langx|script|sort")
_LAST = names("align|font color|fontcolor|resize|rtgs|transl|transliteration|url")
_JOINED = names("chem|linktext|not a typo|notatypo|proper|su")
_LISTS = names(
    """bulleted list|collapsible list|comma separated entries|cslist|flat list|hlist|ordered list|ubl|unbulleted list|
    vunblist"""
)
_CONTENT = names("col-list|column-list|columns list|columns-list")
_QUOTES = names(
    """block quote|blockquote|bquote|centered pull quote|cquote|long quote|poem quote|poemquote|pull quote|quotation|
    quote|quoteblock|verse translation"""
)
_SHIPS = names("css|hmas|hmcs|hmnzs|hms|hmt|hnlms|hswms|ins|mv|rfa|rms|sms|ss|uscgc|usns|uss")
_CHARACTERS = {
    "ndash": "–", "en dash": "–", "snd": " – ", "snds": " – ", "spaced ndash": " – ", "spnd": " – ", "sndash": " – ",
    "spaced en dash": " – ", "mdash": "—", "em dash": "—", "mdashb": "—", "spaced mdash": " — ", "smdash": " — ",
    "·": " · ", "middot": " · ", "dot": " · ", "•": " • ", "bull": " • ", "bullet": " • ", "nbsp": " ", "spaces": " ",
    "space": " ", "thinsp": " ", "thin space": " ", "hair space": " ", "sp": " ", "!": "|", "pipe": "|", "=": "=",
    "'": "'", "'s": "'s", "' \"": "' \"", "'\"": "'\"", "\" '": "\" '", "\"'": "\"'", "-\"": "\"", "-'": "'",
    "shy": "", "wbr": "", "zwsp": "", "zwj": "", "zwnj": "", "eqm": "⇌", "equilibrium": "⇌", "sqrt": "√", "pi": "π",
    "times": "×", "minus": "−", "plusmn": "±", "±": "±", "hyphen": "-", "asterisk": "*", "hash": "#", "br": "\n",
    "break": "\n", "crlf": "\n", "dagger": "†", "double dagger": "‡", "double-dagger": "‡", "degree": "°", "deg": "°",
    "euro": "€", "yes": "Yes", "no": "No", "n/a": "N/A", "na": "N/A", "tba": "TBA", "tbd": "TBD",
    "unknown": "Unknown", "infinity": "∞", "prime": "′", "double prime": "″", "okina": "ʻ", "hamza": "ʾ", "ayin": "ʿ",
    "paragraph": "\n\n", "pb": "\n\n", "paragraph break": "\n\n", "lbrack": "[", "rbrack": "]", "lbrace": "{",
    "rbrace": "}", "ellipsis": "...", "...": "...", "slash": "/", "\\": " / ", "nnbsp": " ", "figure space": " ",
    "zero width joiner em dash zero width non joiner": "—", "wj": "", "ibid": "Ibid.", "usa": "United States",
    "uk": "United Kingdom", "gbr": "United Kingdom", "fra": "France", "ger": "Germany", "deu": "Germany",
    "ita": "Italy", "esp": "Spain", "rus": "Russia", "chn": "China", "jpn": "Japan", "ind": "India", "can": "Canada",
    "aus": "Australia", "bra": "Brazil", "mex": "Mexico", "arg": "Argentina", "ned": "Netherlands", "swe": "Sweden",
    "nor": "Norway", "den": "Denmark", "fin": "Finland", "pol": "Poland", "sui": "Switzerland", "aut": "Austria",
    "bel": "Belgium", "por": "Portugal", "gre": "Greece", "tur": "Turkey", "kor": "South Korea", "nzl": "New Zealand",
    "irl": "Ireland", "rsa": "South Africa", "ukr": "Ukraine", "cze": "Czech Republic", "hun": "Hungary",
    "rou": "Romania", "mne": "Montenegro", "srb": "Serbia", "cro": "Croatia", "egy": "Egypt",
}  # fmt: skip
_CURRENCIES = {
    "us$": "US$", "usd": "US$", "usdollar": "US$", "a$": "A$", "aud": "A$", "au$": "A$", "c$": "C$", "cad": "C$",
    "ca$": "C$", "nz$": "NZ$", "nzd": "NZ$", "hk$": "HK$", "s$": "S$", "r$": "R$", "£": "£", "gbp": "£", "pound": "£",
    "€": "€", "eur": "€", "₹": "₹", "inr": "₹", "indian rupee": "₹", "indianrupee": "₹", "jpy": "¥", "¥": "¥",
    "yen": "¥", "cny": "CN¥", "rmb": "CN¥", "cn¥": "CN¥", "php": "₱", "philippine peso": "₱", "₱": "₱", "krw": "₩",
    "₩": "₩", "rub": "₽", "ils": "₪", "ngn": "₦", "naira": "₦", "chf": "CHF ", "sek": "SEK ", "nok": "NOK ",
    "dkk": "DKK ", "pkr": "Rs. ", "brl": "R$",
}  # fmt: skip
_LANGUAGES = {
    "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan",
    "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish",
    "gd": "Scottish Gaelic", "gl": "Galician", "grc": "Ancient Greek", "gsw": "Swiss German", "he": "Hebrew",
    "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic",
    "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "ko": "Korean", "ku": "Kurdish",
    "la": "Latin", "lb": "Luxembourgish", "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "mn": "Mongolian",
    "ms": "Malay", "mt": "Maltese", "ne": "Nepali", "nl": "Dutch", "no": "Norwegian", "pa": "Punjabi", "pl": "Polish",
    "ps": "Pashto", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sa": "Sanskrit", "sh": "Serbo-Croatian",
    "sk": "Slovak", "sl": "Slovene", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili",
    "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu",
    "uz": "Uzbek", "vi": "Vietnamese", "yi": "Yiddish", "zh": "Chinese", "ber": "Berber", "ang": "Old English",
    "nah": "Nahuatl", "haw": "Hawaiian", "mi": "Māori", "non": "Old Norse", "got": "Gothic", "syr": "Syriac",
    "am": "Amharic",
}  # fmt: skip
_CHINESE = {"c": "Chinese", "s": "simplified Chinese", "t": "traditional Chinese", "p": "pinyin", "w": "Wade–Giles"}
_ACCIDENTALS = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}
_GAUGES = {"sg": "1,435 mm (4 ft 8 1/2 in)", "ussg": "4 ft 8 1/2 in (1,435 mm)", "uksg": "4 ft 8 1/2 in (1,435 mm)"}
_UNKNOWABLE = re.compile(
    r"inflation$|inflation/|currentyear|currentmonth|currentday|localyear|years ago|time ago|#expr:?|#time:?|age in"
    r"|numberof|metadata|to usd|#invoke:?|#property:?"
)


@dataclass(frozen=True, slots=True)
class Call:
    """A use of a template: its name in lower case, and the arguments as plain text.

    Numbered arguments are in ``numbered`` too, whether they were written ``|x`` or ``|2=x``.
    """

    name: str
    numbered: list[str]
    named: dict[str, str]

    def get(self, *keys: str | int) -> str:
        """The first argument of these names or numbers (from 1) that isn't empty, or ""."""
        for key in keys:
            value = self.named.get(key, "") if isinstance(key, str) else (self.numbered[key - 1 : key] or [""])[0]
            if value.strip():
                return value.strip()
        return ""

    def shown(self) -> list[str]:
        """The numbered arguments that aren't empty."""
        return [value.strip() for value in self.numbered if value.strip()]


def renderer(name: str) -> Callable[[Call], str] | None:
    """How a template of this name (lower case, single spaces) is shown; None if it isn't, or isn't known."""
    if name in _FIRST:
        return lambda call: call.get(1, "text", "content", "en")
    if name in _CHARACTERS:
        return lambda call: _CHARACTERS[call.name]
    if name in _CURRENCIES:
        return lambda call: _CURRENCIES[call.name] + call.get(1)
    for group, show in _GROUPS:
        if name in group:
            return show
    found = _RENDERERS.get(name)
    if found:
        return found
    for pattern, show in _FAMILIES:
        if pattern.match(name):
            return show
    return (lambda call: MISSING) if _UNKNOWABLE.match(name) else None


def superscript(text: str) -> str:
    """Signs that Unicode has as superscripts are raised, an ordinal's letters are not: m², 10⁻³, 19th."""
    return text.translate(_SUPERSCRIPTS) if re.fullmatch(r"[-+−]?\d*[-+−]?", text) else text


def coordinates(parts: list[str]) -> str:
    """What {{coord|…}} shows: 12°30′N 45°W."""
    shown = ""
    signs = iter("°′″")
    for part in (part.strip() for part in parts):
        if part in ("N", "S", "E", "W"):
            shown += part + " "
            signs = iter("°′″")
        elif number(part) is not None:
            shown += part + next(signs, "")
        else:
            break
    return shown.strip() if shown[-2:-1] in ("N", "S", "E", "W") else ", ".join(parts[:2])


def _format_number(text: str) -> str:
    plain = text.strip().replace("−", "-")
    return grouped(plain) if re.fullmatch(r"-?\d{4,}(\.\d+)?", plain) else text.strip()


def _authors_and_year(call: Call) -> str:
    *authors, year = call.shown() or [""]
    return f"{_join(authors, ', ')} ({year})" if authors else year


def _format_first(call: Call) -> str:
    return _format_number(call.get(1))


def _join(values: Iterable[str], separator: str) -> str:
    return separator.join(value for value in values if value)


def _date(parts: list[str], day_first: bool) -> str:
    """A date of [year, month, day], of which the last may lack; what is no such date is given back as it is."""
    if not parts:
        return ""
    if len(parts) == 1 or not re.fullmatch(r"-?\d{1,4}", parts[0]):
        return parts[0]
    month = _MONTHS[int(parts[1]) - 1] if parts[1].isdigit() and 1 <= int(parts[1]) <= 12 else parts[1]
    day = parts[2].lstrip("0") if len(parts) > 2 else ""
    if not day:
        return f"{month} {parts[0]}"
    return f"{day} {month} {parts[0]}" if day_first else f"{month} {day}, {parts[0]}"


def _plain_date(call: Call) -> str:
    return _date(call.shown()[:3], call.get("df")[:1] in ("y", "1", "t") or call.get("format") == "dmy")


def _years_between(start: list[str], end: list[str]) -> int | None:
    try:
        first, last = (date(int(y), int(m), int(d)) for y, m, d in (start, end))
    except ValueError:
        return None
    return last.year - first.year - ((last.month, last.day) < (first.month, first.day))


def _death_and_age(call: Call) -> str:
    parts = call.shown()
    years = _years_between(parts[3:6], parts[:3])
    return _plain_date(call) + (f" (aged {years})" if years is not None else "")


def _age(call: Call) -> str:
    years = _years_between(call.shown()[:3], call.shown()[3:6])
    return MISSING if years is None else str(years)


def _as_of(call: Call) -> str:
    if call.get("alt"):
        return call.get("alt")
    word = "since" if call.get("since") else "as of"
    word = word if call.get("lc") else word[0].upper() + word[1:]
    return f"{word} {_date(call.shown()[:3], day_first=call.get('df') != 'US')}"


def _circa(call: Call) -> str:
    return _join((f"c. {value}" for value in call.shown()), " – ") or "c."


def _quote(call: Call) -> str:
    text = call.get("text", "quote", 1)
    if call.name == "verse translation":
        return "\n\n" + _join(call.shown(), "\n\n") + "\n\n"
    source = _join((call.get("author", "sign", "by", 2), call.get("source", "title", 3)), ", ")
    return f"\n\n{text}" + (f"\n\n— {source}" if source else "") + "\n\n"


def _language(call: Call) -> str:
    code = call.name.removeprefix("lang-").split("-")[0]
    name, text = _LANGUAGES.get(code), call.get(1, "text")
    if not text or call.get("links", "label") in ("no", "none"):
        return text
    return f"{name}: {text}" if name else text


def _chinese(call: Call) -> str:
    found = [f"{label}: {call.get(key)}" for key, label in _CHINESE.items() if call.get(key)]
    return _join(found, "; ") or call.get(1)


def _nihongo(call: Call) -> str:
    english, japanese, reading, extra = (call.get(number) for number in (1, 2, 3, 4))
    if not english:
        english, reading = reading, ""
    note = _join((japanese, reading, extra), ", ")
    return f"{english} ({note})" if note and english else english or note


def _english_sounds(call: Call) -> str:
    words = {"lang", "pron", "local", "us", "uk", "also", "or", "en", "audio", "ˌus"}
    return _join(["/" + "".join(value for value in call.shown() if value.lower() not in words) + "/"], "")


def _value(call: Call) -> str:
    """{{val|…}}: number, uncertainty, power of ten and unit."""
    number, spread = _format_number(call.get(1)), call.get(2)
    if spread:
        number += spread if spread.startswith("(") else f"±{spread}"
    power = f"×10{call.get('e').translate(_SUPERSCRIPTS)}" if call.get("e") else ""
    code = call.get("u", "ul")
    known = unit(code)
    return call.get("p") + _join((number + power, known.symbol if known else code), " ") + call.get("s")


def _fraction(call: Call) -> str:
    parts = call.shown()
    if call.name in ("sfrac", "sfraction") and len(parts) == 2 and any(re.search(r"[ +−]", part) for part in parts):
        parts = [f"({part})" if re.search(r"[ +−]", part) else part for part in parts]
    if len(parts) == 1:
        return f"1/{parts[0]}"
    return f"{parts[0]} {parts[1]}/{parts[2]}" if len(parts) > 2 else _join(parts, "/")


def _power(call: Call) -> str:
    parts = call.shown()
    if call.name in ("e", "x10^", "esp"):
        return f"×10{parts[0].translate(_SUPERSCRIPTS)}" if parts else ""
    if call.name == "10^":
        return f"10{superscript(call.get(1))}"
    return f"{parts[0]}{superscript(parts[1])}" if len(parts) > 1 else ""


def _ship(call: Call) -> str:
    parts = call.numbered if call.name == "ship" else [call.name.upper(), *call.numbered]
    prefix, name, hull, form = (part.strip() for part in [*parts, "", "", "", ""][:4])
    if form == "6":
        return name
    if form == "3":
        return hull
    return _join((prefix, name, f"({hull})" if hull and not form else ""), " ")


def _gauge(call: Call) -> str:
    code = call.get(1)
    metric = re.fullmatch(r"([\d.]+) ?mm", code)
    return _GAUGES.get(code.lower(), f"{grouped(metric[1])} mm" if metric else code)


def _currency(call: Call) -> str:
    code = call.get(2, "code", "c").lower()
    return _CURRENCIES.get(code, code.upper() + " ") + call.get(1, "amount")


def _height(call: Call) -> str:
    """{{height|m=1.83}}: the measure with the other system's."""
    if call.get("m") or call.get("cm"):
        given = [call.get("m", "cm"), "m" if call.get("m") else "cm", "ftin"]
    else:
        given = [call.get("ft") or "0", "ft", call.get("in") or "0", "in", "m"]
    return convert(given, {"abbr": "on"} | ({"round": ""} if call.get("m", "cm") else {"precision": "2"}))


def _convert(call: Call) -> str:
    numbered = list(call.numbered)
    named = dict(call.named)
    direct = re.fullmatch(r"(\w+) to (\w+)", call.name)
    if direct:
        numbered = [*numbered[:1], direct[1], direct[2], *numbered[1:]]
    if call.name == "cvt":
        named.setdefault("abbr", "on")
    return convert(numbered, named)


def _density(call: Call) -> str:
    people, area = number(call.get(1)), number(call.get(2))
    if people is None or not area:
        return MISSING
    target = [f"/{call.get(4)}"] if call.get(4) else []
    return convert([f"{people / area:.{0 if people > 9 * area else 1}f}", f"/{call.get(3)}", *target], {"abbr": "on"})


_GROUPS: tuple[tuple[frozenset[str], Callable[[Call], str]], ...] = (
    (_SECOND, lambda call: call.get(2, "text")),
    (_LAST, lambda call: (call.shown() or [""])[-1]),
    (_JOINED, lambda call: "".join(call.shown())),
    (_LISTS, lambda call: _join(call.shown(), ", ")),
    (_CONTENT, lambda call: "\n" + max(call.shown(), key=len, default="") + "\n"),
    (_QUOTES, _quote),
    (_SHIPS, _ship),
)
_RENDERERS: dict[str, Callable[[Call], str]] = {
    "convert": _convert, "cvt": _convert, "convinfobox": _convert, "convert/2": _convert, "height": _height,
    "val": _value, "circa": _circa, "c.": _circa, "ca": _circa, "c": _circa, "as of": _as_of, "asof": _as_of,
    "age": _age, "age in years": _age, "death date and age": _death_and_age, "dda": _death_and_age,
    "oldstyledate": lambda call: f"{call.get(1)} [O.S. {call.get(3)}] {call.get(2)}", "nts": _format_first,
    "floruit": lambda call: f"fl. {call.get(1)}", "fl.": lambda call: f"fl. {call.get(1)}", "frac": _fraction,
    "reign": lambda call: "r. " + _join(call.shown(), "–"), "r.": lambda call: "r. " + _join(call.shown(), "–"),
    "number table sorting": _format_first, "format price": _format_first, "formatnum": _format_first,
    "fraction": _fraction, "sfrac": _fraction, "sup": lambda call: superscript(call.get(1)),
    "sub": lambda call: call.get(1), "e": _power, "x10^": _power, "esp": _power, "10^": _power, "pow": _power,
    "gaps": lambda call: _join(call.shown(), " "), "simplenuclide": lambda call: _join(call.shown()[:2], "-"),
    "simplenuclide2": lambda call: _join(call.shown()[:2], "-"), "nuclide2": lambda call: _join(call.shown()[:2], "-"),
    "nuclide": lambda call: _join(call.shown()[:2], "-"), "ship": _ship, "zh": _chinese, "lang-zh": _chinese,
    "music": lambda call: _ACCIDENTALS.get(call.get(1), ""), "nihongo": _nihongo, "nihongo3": _nihongo,
    "sclass": lambda call: f"{call.get(1)}-class {call.get(2)}", "respell": lambda call: _join(call.shown(), "-"),
    "sclass-": lambda call: f"{call.get(1)}-class {call.get(2)}", "angbr": lambda call: f"⟨{call.get(1)}⟩",
    "angle bracket": lambda call: f"⟨{call.get(1)}⟩", "railgauge": _gauge, "track gauge": _gauge,
    "currency": _currency, "pop density": _density, "vol.": lambda call: f"Vol. {call.get(1)}",
    "isbn": lambda call: f"ISBN {call.get(1)}", "sortname": lambda call: _join(call.shown()[:2], " "),
    "bibleverse": lambda call: _join(call.shown()[:2], " "), "bibleref": lambda call: call.get(1),
    "gloss": lambda call: f"'{call.get(1)}'", "lit": lambda call: f"lit. '{call.get(1)}'",
    "radic": lambda call: f"√{call.get(1)}", "abs": lambda call: f"|{call.get(1)}|",
    "rquote": lambda call: f"\n\n{call.get(2)}\n\n", "lc": lambda call: call.get(1).lower(),
    "uc": lambda call: call.get(1).upper(), "ucfirst": lambda call: call.get(1)[:1].upper() + call.get(1)[1:],
    "lcfirst": lambda call: call.get(1)[:1].lower() + call.get(1)[1:],
    "harvtxt": _authors_and_year, "harvcoltxt": _authors_and_year,
    "#if": lambda call: call.get(2) if call.get(1) else call.get(3),
}  # fmt: skip
_FAMILIES: tuple[tuple[re.Pattern[str], Callable[[Call], str]], ...] = (
    (re.compile(r"lang-[a-z-]+$"), _language),
    (re.compile(r"ipac-"), _english_sounds),
    (re.compile(r"ipa-"), lambda call: f"[{call.get(1)}]" if call.get(1) else ""),
    (re.compile(r"(birth|death|start|end|release|film|opening|launch) ?(date|year)"), _plain_date),
    (re.compile(r"(dts|date table sorting|dob|bda|birth-?date and age|start date and age|years? range)$"), _plain_date),
    (re.compile(r"\d+/\d+$"), lambda call: call.name),
    (re.compile(r"(km|mi|m|ft|in|cm|mm|kg|lb|km2|sqmi|acre|ha|c|f|l|nmi|yd) to (\w+)$"), _convert),
)
