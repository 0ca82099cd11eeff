"""The World Factbook's field values as prose: HTML to sentences, labels to words, CAPITALS to names.

A field's value is ``{"text": html}``, perhaps with ``"note": html``, or ``{sub-field: {"text": html}, ...}``.
Everything here is pure and needs the standard library only.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping

FieldValue = str | Mapping[str, "FieldValue"]

# Fields whose natural name differs from the record's.
FIELD_NAMES = {
    "Area - comparative": "Comparative area",
    "Diplomatic representation from the US": "US diplomatic representation",
    "Exports - commodities": "Export commodities",
    "Exports - partners": "Export partners",
    "Geography - note": "Geography note",
    "Imports - commodities": "Import commodities",
    "Imports - partners": "Import partners",
    "Legislative branch - lower chamber": "Lower chamber",
    "Legislative branch - upper chamber": "Upper chamber",
    "Major lakes (area sq km)": "Major lakes",
    "Major rivers (by length in km)": "Major rivers",
    "Major urban areas - population": "Major urban areas by population",
    "Major watersheds (area sq km)": "Major watersheds",
    "National anthem(s)": "National anthem",
    "National color(s)": "National colors",
    "National symbol(s)": "National symbol",
}

# (field, sub-field) -> what a reader would call it.  Others read "Field, sub-field".
LABELS = {
    ("Area", "land"): "Land area",
    ("Area", "total"): "Total area",
    ("Area", "water"): "Water area",
    ("Capital", "daylight saving time"): "Daylight saving time",
    ("Capital", "etymology"): "Etymology of the capital's name",
    ("Capital", "geographic coordinates"): "Geographic coordinates of the capital",
    ("Capital", "name"): "Capital",
    ("Capital", "time difference"): "Time difference",
    ("Capital", "time zone note"): "Time zone note",
    ("Country name", "conventional long form"): "Conventional long form of the country name",
    ("Country name", "conventional short form"): "Conventional short form",
    ("Country name", "etymology"): "Etymology of the country name",
    ("Country name", "former"): "Former names",
    ("Country name", "local long form"): "Local long form",
    ("Country name", "local short form"): "Local short form",
    ("Elevation", "highest point"): "Highest point",
    ("Elevation", "lowest point"): "Lowest point",
    ("Elevation", "mean elevation"): "Mean elevation",
    ("Exchange rates", "Currency"): "Currency",
    ("Exchange rates", "text"): "Currency",
    ("Executive branch", "cabinet"): "Cabinet",
    ("Executive branch", "chief of state"): "Chief of state",
    ("Executive branch", "election results"): "Election results",
    ("Executive branch", "election/appointment process"): "Election or appointment process",
    ("Executive branch", "expected date of next election"): "Expected date of next election",
    ("Executive branch", "head of government"): "Head of government",
    ("Executive branch", "most recent election date"): "Most recent election date",
    ("Judicial branch", "highest court(s)"): "Highest courts",
    ("Judicial branch", "subordinate courts"): "Subordinate courts",
    ("Land boundaries", "border countries"): "Border countries",
    ("Land boundaries", "total"): "Total land boundaries",
    ("Languages", "Languages"): "Languages",
    ("Legislative branch", "legislature name"): "Name of the legislature",
    ("Legislative branch", "legislative structure"): "Legislative structure",
    ("Legislative branch - lower chamber", "chamber name"): "Name of the lower chamber",
    ("Legislative branch - upper chamber", "chamber name"): "Name of the upper chamber",
    ("National anthem(s)", "history"): "History of the anthem",
    ("National anthem(s)", "lyrics/music"): "Lyrics and music of the anthem",
    ("National anthem(s)", "title"): "Title of the national anthem",
    ("National heritage", "selected World Heritage Site locales"): "World Heritage Sites",
    ("National heritage", "total World Heritage Sites"): "Number of World Heritage Sites",
    ("Nationality", "adjective"): "Nationality adjective",
    ("Nationality", "noun"): "Nationality noun",
    ("Population", "total"): "Population",
}

# All-capital words that are no names, in the fields that hold names.
ACRONYMS = frozenset(
    """ABOP ACT ADF AIDS ANC ANZAC ANZUS APC AQIM ASEAN ASSK AU BC BFC BIOT BNP BRI BRICS BSAC BVI CAR CARICOM CCM CCP
    CCR CEMAC CENI CEPA CERC CMA CNMI CNRD CNSP CNT COFA COR COVID CPN CPP DC DPP DPRK DRC DROC DST EC ECCU ECOWAS ECSC
    EDSA EEA EEBC EEC EEU EP EPRDF EU EUFOR EUR FARC FAST FDLR FDRE FIFA FIS FLN FNC FRELIMO FRG FRY FSC FSM FUNCINPEC
    GCC GDP GDR GEODSS GMT GNA GNC GNU GPS HAMAS HIPC HIV HKSAR HMS ICU IDF IMF IPTV ISIS ITCZ JCPOA KANU KKTC KMT KRG
    KWP LDC LNA LNG LPA LTTE MCAT MCP MEC MINURSO MMD MONUSCO MORENA MOU MP MPLA MPP NA NAFTA NARC NASA NATO NC NCPO NDC
    NEGL NGO NLD NNW NPC NPP NRPC NSDC NSPC NTC NUG NWR NZ OAS OAU OCU OECD OECS OLA OPBAT OPEC PA PAN PDF PDG PDR PDRY
    PEDS PF PH PJD PKK PLC PLO PNC PNG PPM PRC PRI PRK RENAMO RN RNI ROK RPA RPF RPT RS RSFSR SAC SACU SADC SADR SBA SDF
    SEPA SFG SFOR SFRY SFSR SLPP SPA SRP STC SWAPO TAAF TBMM TEU TFEU TFG TLC TMC TPLF TPP TRNC TTP TTPI TV UAE UAOC UAV
    UK UML UMNO UN UNESCO UNITA UNM UNMIK UNMO UNSC UOC US USA USD USMCA USSR UTC VHP WAEMU WTO WWII YAR""".split()  # noqa: SIM905 (eight lines beat two hundred)
)
_ROMAN = re.compile(r"X{0,2}(?:IX|IV|V?I{0,3})")
_PARTICLES = frozenset({"BIN", "DA", "DE", "DEL", "DER", "DI", "DO", "DOS", "IBN", "VON"})

_BREAK = re.compile(r"<\s*/?\s*(?:br|p|li|ul|ol|div|h\d)\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_LETTERS = re.compile(r"[^\W\d_]+")
_LABELLED = re.compile(r"[^.;:]{2,80}:(?:\s|$)")
_MAP = re.compile(r",? as shown (?:in|on) th(?:is|e) [\w ]*map\b")  # the maps aren't in the record
_PLAIN = str.maketrans(
    {"\u00a0": " ", "\u200b": "", "\ufeff": "", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'}
)


def render_lines(value: str) -> list[str]:
    """The lines of an HTML value, as plain text: no tags, entities or double spaces; straight quotes."""
    text = _TAG.sub("", _BREAK.sub("\n", value))
    text = html.unescape(html.unescape(text)).translate(_PLAIN)
    text = _MAP.sub("", text.replace("++", "\n").replace(" -- ", " - "))
    lines = (re.sub(r"\s+([,;:)]|\.(?!\w))", r"\1", " ".join(line.split())) for line in text.split("\n"))
    return [line for line in lines if line.strip(" .;,:-")]


def render_line(value: str) -> str:
    """An HTML value as one line of text."""
    return " ".join(render_lines(value))


def sentences(value: str) -> str:
    """An HTML value as sentences: every line starts with a capital and ends with punctuation."""
    lines = render_lines(value)
    joined: list[str] = []
    for line in lines:
        if joined and joined[-1].endswith(":"):  # a label that stood on a line of its own
            joined[-1] = f"{joined[-1]} {line}"
        else:
            joined.append(line)
    return " ".join(_sentence(line, capital=index > 0) for index, line in enumerate(joined))


def _sentence(line: str, capital: bool) -> str:
    if line[-1] in ",;:":
        line = line[:-1].rstrip()
    ended = line[-1] in ".!?" or line[-2:] in ('."', '!"', '?"')
    text = line if ended else f"{line}."
    return text[0].upper() + text[1:] if capital else text


def name_case(text: str, keep: frozenset[str] = ACRONYMS) -> str:
    """The Factbook's SURNAMES in normal case: "Charles DE GAULLE" -> "Charles de Gaulle".

    ``keep`` holds the words that stay in capitals.  Words in brackets, "(XYZ)" or "(... or XYZ)", stay too, wherever
    they come again in the text.
    """
    known = {
        part
        for found in re.findall(r"\(\"?([A-Z]{2,7}(?:-[A-Z]+)*)\"?(?=[),/;]| or )|\bor ([A-Z]{2,7})\)", text)
        for word in found
        for part in word.split("-")
    }
    stay = keep | known

    def convert(match: re.Match[str]) -> str:
        word = match.group()
        before, after = text[: match.start()], text[match.end() :]
        if not word.isupper() or after[:1].isdigit():
            return word
        inside = re.search(r"([^\W\d_]+)'$", before)  # the letters before an apostrophe
        if inside and inside.group(1).isupper() and len(inside.group(1)) > 1:
            return word.lower()
        numeral = _ROMAN.fullmatch(word) and not after.startswith(" Jinping")
        if len(word) == 1 or word in stay or numeral:
            return word
        if word in ("AL", "EL", "AZ") and after.startswith("-"):
            return word.lower() if before.endswith(" ") else word.capitalize()
        if word in ("LA", "LAS", "LOS") and before.endswith("DE "):
            return word.lower()
        if word in _PARTICLES and re.search(r"\w\.? $", before) and after.startswith(" "):
            return word.lower()
        if re.match(r"MC[A-Z]{4}", word):
            return f"Mc{word[2:].capitalize()}"
        return word.capitalize()

    return _LETTERS.sub(convert, text)


def field_label(field: str, sub_field: str) -> str:
    """What the prose calls a field ("text" stands for the field itself) or a sub-field."""
    if (field, sub_field) in LABELS:
        return LABELS[field, sub_field]
    name = FIELD_NAMES.get(field, field.replace("(s)", "s").replace(" - ", ", "))
    if sub_field == "text":
        return name
    sub_name = sub_field.replace("(s)", "s").replace(" - ", ", ")
    if sub_name.lower().startswith(name.lower()):
        return sub_name[0].upper() + sub_name[1:]
    return f"{name}, {sub_name}"


def leaves(value: FieldValue) -> Iterator[tuple[str, str]]:
    """(sub-field, HTML) of a field's value in the record's order; the field's own text is "text", its note "note"."""
    if isinstance(value, str):
        yield "text", value
        return
    for key, below in value.items():
        name = key.strip()
        if isinstance(below, str):
            yield name, below
        elif isinstance(below, Mapping):
            for deeper, text in leaves(below):
                yield (name if deeper == "text" else deeper), text


def labelled(label: str, text: str) -> str:
    """ "Label: text", without saying the label twice, and "Label. Part: text" where the text starts with a label."""
    last = label.rsplit(", ", 1)[-1].rsplit(": ", 1)[-1]
    if text.lower().startswith(f"{last.lower()}:"):
        text = text[len(last) + 1 :].lstrip()
    if _LABELLED.match(text):
        return f"{label}. {text[0].upper()}{text[1:]}"
    return f"{label}: {text}"
