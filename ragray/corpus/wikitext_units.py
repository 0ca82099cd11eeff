"""Measurements as MediaWiki's template ``convert`` shows them: the value, its unit, and the value in another unit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache

# Codes, singular, plural, symbol, kind, size in the kind's base unit, units it is converted to if none is named.
_UNITS = """
in,inch,inches,"|inch|inches|in|length|0.0254|mm ; ft,foot,feet,'|foot|feet|ft|length|0.3048|m
yd,yard,yards|yard|yards|yd|length|0.9144|m ; mi,mile,miles,smi|mile|miles|mi|length|1609.344|km
nmi,NM|nautical mile|nautical miles|nmi|length|1852|km mi
fathom,fathoms,ftm|fathom|fathoms|fathom|length|1.8288|ft m
furlong,furlongs|furlong|furlongs|furlong|length|201.168|km ; hand|hand|hands|h|length|0.1016|in cm
AU,au|astronomical unit|astronomical units|AU|length|149597870700|km mi
ly|light-year|light-years|ly|length|9460730472580800|pc ; pc|parsec|parsecs|pc|length|30856775814913673|ly
acre,acres|acre|acres|acre|area|4046.8564224|ha ; ha,hectare,hectares|hectare|hectares|ha|area|10000|acre
dunam|dunam|dunams|dunam|area|1000|km2 ; l,L,litre,liter|litre|litres|L|volume|0.001|impgal USgal
cc|cubic centimetre|cubic centimetres|cc|volume|0.000001|cuin
USgal,usgal,U.S.gal,gal|US gallon|US gallons|US gal|volume|0.003785411784|l impgal
impgal|imperial gallon|imperial gallons|imp gal|volume|0.00454609|l USgal
USqt|US quart|US quarts|US qt|volume|0.000946352946|l
impqt|imperial quart|imperial quarts|imp qt|volume|0.0011365225|l
USpt|US pint|US pints|US pt|volume|0.000473176473|l ; imppt|imperial pint|imperial pints|imp pt|volume|0.00056826125|l
USoz,USfloz,usfloz|US fluid ounce|US fluid ounces|US fl oz|volume|0.0000295735295625|ml
impoz,impfloz|imperial fluid ounce|imperial fluid ounces|imp fl oz|volume|0.0000284130625|ml
oilbbl,bbl|barrel|barrels|bbl|volume|0.158987294928|m3
USbsh,bushel|US bushel|US bushels|US bsh|volume|0.03523907016688|m3
acre.ft,acre·ft,acre-ft,acft,acre.foot,acre ft|acre-foot|acre-feet|acre⋅ft|volume|1233.48183754752|m3
t,tonne,tonnes,MT|tonne|tonnes|t|mass|1000|LT ST ; LT,long ton|long ton|long tons|long tons|mass|1016.0469088|t
ST,short ton|short ton|short tons|short tons|mass|907.18474|t ; lb,lbs,pound,pounds|pound|pounds|lb|mass|0.45359237|kg
oz,ounce,ounces|ounce|ounces|oz|mass|0.028349523125|g ; st,stone|stone|stone|st|mass|6.35029318|kg lb
ozt|troy ounce|troy ounces|ozt|mass|0.0311034768|g ; carat|carat|carats|carat|mass|0.0002|g
gr|grain|grains|gr|mass|0.00006479891|g ; cwt,lcwt|long hundredweight|long hundredweight|cwt|mass|50.80234544|kg
s,sec|second|seconds|s|time|1| ; min|minute|minutes|min|time|60| ; h,hr,hour|hour|hours|h|time|3600|
d,day|day|days|d|time|86400| ; week,wk|week|weeks|week|time|604800| ; month,mo|month|months|month|time|2629746|
year,yr,a|year|years|year|time|31557600| ; mph,MPH|mile per hour|miles per hour|mph|speed|0.44704|km/h
km/h,kmh,kph,km/hr|kilometre per hour|kilometres per hour|km/h|speed|0.2777777777777778|mph
kn,knot,knots,kt|knot|knots|kn|speed|0.5144444444444445|km/h mph
hp,bhp,shp,ihp|horsepower|horsepower|hp|power|745.6998715822702|kW
PS,metric horsepower|metric horsepower|metric horsepower|PS|power|735.49875|kW
psi,PSI,lbf/in2|pound per square inch|pounds per square inch|psi|pressure|6894.757293168361|kPa
bar|bar|bars|bar|pressure|100000|kPa ; mbar|millibar|millibars|mbar|pressure|100|hPa
atm|standard atmosphere|standard atmospheres|atm|pressure|101325|kPa
inHg|inch of mercury|inches of mercury|inHg|pressure|3386.388640341|kPa
mmHg,Torr,torr|millimetre of mercury|millimetres of mercury|mmHg|pressure|133.322387415|kPa
lbf|pound-force|pounds-force|lbf|force|4.4482216152605|N ; kgf|kilogram-force|kilograms-force|kgf|force|9.80665|N lbf
BTU,Btu|British thermal unit|British thermal units|BTU|energy|1055.05585262|kJ
ftlbf,ftlb|foot-pound force|foot-pounds force|ft⋅lbf|energy|1.3558179483314|J
tTNT|ton of TNT|tons of TNT|tTNT|energy|4184000000|GJ
ktTNT,kt(TNT)|kiloton of TNT|kilotons of TNT|kt TNT|energy|4184000000000|TJ
Nm,N.m,N·m|newton-metre|newton-metres|N⋅m|torque|1|lbft
lbft,lbfft,lb.ft,lbf.ft,lb·ft,lbf·ft,ftlbf-torque|pound force-foot|pounds force-foot|lbf⋅ft|torque|1.3558179483314|Nm
PD,inhabitants,person|inhabitant|inhabitants||people|1|
C,°C,degC,celsius|degree Celsius|degrees Celsius|°C|temperature|1|F
F,°F,degF,fahrenheit|degree Fahrenheit|degrees Fahrenheit|°F|temperature|0.5555555555555556|C
K,°K|kelvin|kelvins|K|temperature|1|C
C-change,°C-change,C change|degree Celsius|degrees Celsius|°C|temperature change|1|F-change
F-change,°F-change,F change|degree Fahrenheit|degrees Fahrenheit|°F|temperature change|0.5555555555555556|C-change
"""
_SI = {
    "m": ("metre", "length", 1.0), "g": ("gram", "mass", 0.001), "l": ("litre", "volume", 0.001),
    "L": ("litre", "volume", 0.001), "t": ("tonne", "mass", 1000.0), "W": ("watt", "power", 1.0),
    "J": ("joule", "energy", 1.0), "Pa": ("pascal", "pressure", 1.0), "N": ("newton", "force", 1.0),
    "Hz": ("hertz", "frequency", 1.0), "V": ("volt", "voltage", 1.0), "A": ("ampere", "current", 1.0),
    "eV": ("electronvolt", "energy", 1.602176634e-19), "Wh": ("watt-hour", "energy", 3600.0),
    "cal": ("calorie", "energy", 4.184),
}  # fmt: skip
_PREFIXES = {"": ("", 0), "k": ("kilo", 3), "M": ("mega", 6), "G": ("giga", 9), "T": ("tera", 12), "P": ("peta", 15),
             "h": ("hecto", 2), "da": ("deca", 1), "d": ("deci", -1), "c": ("centi", -2), "m": ("milli", -3),
             "μ": ("micro", -6), "u": ("micro", -6), "n": ("nano", -9), "p": ("pico", -12)}  # fmt: skip
_TARGETS = """
m:ft km:mi cm:in mm:in dm:in m2:sqft km2:sqmi cm2:sqin mm2:sqin m3:cuft km3:cumi cm3:cuin sqmi:km2 sqft:m2 sqyd:m2
sqin:cm2 cuft:m3 cuyd:m3 cuin:cm3 cumi:km3 kg:lb g:oz mg:gr ml:impoz+USoz W:hp kW:hp MW:hp Pa:psi kPa:psi MPa:psi
hPa:inHg N:lbf kN:lbf J:ftlbf kJ:BTU MJ:kWh /km2:/sqmi /sqmi:/km2 PD/km2:PD/sqmi PD/sqmi:PD/km2 kg/m3:lb/cuft
g/cm3:lb/cuin m3/s:cuft/s m/s:ft/s ft/s:m/s kWh:MJ kcal:kJ cal:J cuft/s:m3/s m/s2:ft/s2 ft/s2:m/s2 oilbbl/d:m3/d
kg/ha:lb/acre l/s:cuft/s lb/cuft:kg/m3 USgal/min:l/s
"""  # unit:units it is converted to
_THOUSANDS = {3: "thousand", 6: "million", 9: "billion", 12: "trillion"}
_RANGES = {"to": " to ", "-": "–", "–": "–", "to(-)": " to ", "and": " and ", "and(-)": " and ", "or": " or ",
           "by": " by ", "x": " by ", "×": " × ", "xx": " × ", "*": " × ", "+/-": " ± ", "±": " ± ", "+": " + ",
           "to about": " to about ", "&": " & ", "til": " to ", ",": ", "}  # fmt: skip
_ZERO_IN_KELVINS = {"°C": 273.15, "°F": 459.67 * 5 / 9}
_COMPOSITES = {"ftin": ("ft", "in", 12), "stlb": ("st", "lb", 14), "lboz": ("lb", "oz", 16)}


@dataclass(frozen=True, slots=True)
class Unit:
    """``scale`` is its size in the base unit of its ``kind``; units of one kind convert into each other."""

    singular: str
    plural: str
    symbol: str
    kind: str
    scale: float
    target: str = ""

    def to_base(self, value: float) -> float:
        return value * self.scale + (_ZERO_IN_KELVINS.get(self.symbol, 0.0) if self.kind == "temperature" else 0.0)

    def from_base(self, value: float) -> float:
        return (value - (_ZERO_IN_KELVINS.get(self.symbol, 0.0) if self.kind == "temperature" else 0.0)) / self.scale


@dataclass(frozen=True, slots=True)
class _Amount:
    """A number as it was written: ``shown`` to the reader, its value, its decimals (if negative, zeros at its end)."""

    shown: str
    value: float
    decimals: float


def convert(arguments: list[str], options: dict[str, str]) -> str:
    """The text of ``{{convert|…}}``: "8 kilometres (5.0 mi)".

    Rounds as the template does: to the precision of what is given, and at least two significant figures.  Of units
    that aren't known the value and the code are shown; nothing is dropped.
    """
    parts = [argument.strip() for argument in arguments]
    options = {key.strip(): value.strip() for key, value in options.items()}
    options.setdefault("abbr", "on" if options.get("abbre") == "on" else "out")
    suffix = ""
    if options.get("adj") in ("mid", "pre") and len(parts) > 2 and number(parts[-1]) is None:
        suffix = parts.pop() if unit(parts[-1]) is None or parts[-1].startswith("-") else ""
    amounts, separators, rest = _amounts(parts)
    if not amounts or not rest:
        return " ".join(part for part in parts if part)
    source = unit(rest[0])
    pieces = [(amounts, separators, source, rest[0])]
    rest = rest[1:]
    while len(rest) > 1 and (more := _amount(rest[0])) and (smaller := unit(rest[1])) and source:
        if smaller.kind != source.kind:
            break
        pieces.append(([more], [], smaller, rest[1]))
        rest = rest[2:]
    target = rest.pop(0) if rest and number(rest[0]) is None else ""
    target = target or (source.target if source and options.get("disp") not in ("unit", "number") else "")
    precision = next((int(part) for part in rest if re.fullmatch(r"-?\d{1,2}", part)), None)
    if "precision" in options:
        precision = int(options["precision"])
    symbols = options["abbr"] in ("on", "in", "values") or (options["abbr"] == "comma")
    flipped = bool(target) and "flip" in (options.get("order"), options.get("disp"))
    if flipped and options["abbr"] in ("out", "in"):  # the full name goes to what comes first
        symbols, options["abbr"] = not symbols, "out" if symbols else "in"
    given = " ".join(_shown(*piece, symbols, options, suffix) for piece in pieces)
    targets = [target] if unit(target) else target.split()
    converted = [_converted(pieces, code, precision, options) for code in targets] if source else []
    return _arranged(given, [text for text in converted if text], options)


@lru_cache(maxsize=4096)
def unit(code: str) -> Unit | None:
    """The unit that a code of the template means, SI prefixes, powers of ten, squares, cubes and quotients included."""
    code = code.strip().replace("²", "2").replace("³", "3").replace("µ", "μ")
    found = _table().get(code) or _scaled(code) or _si(code) or _power(code) or _quotient(code)
    target = _targets_by_unit().get(code)
    return replace(found, target=target) if found and target else found


def grouped(digits: str) -> str:
    """A number in digits, with commas between its thousands and a minus sign before it if it's negative."""
    sign = "−" if digits[:1] in ("-", "−") else ""
    whole, point, decimals = digits.lstrip("+-−").replace(",", "").partition(".")
    return sign + (f"{int(whole):,}" if len(whole) > 3 and whole.isdigit() else whole or "0") + point + decimals


@lru_cache(maxsize=1)
def _targets_by_unit() -> dict[str, str]:
    pairs = (pair.split(":") for pair in _TARGETS.split())
    return {code: targets.replace("+", " ") for code, targets in pairs}


@lru_cache(maxsize=1)
def _table() -> dict[str, Unit]:
    rows = (row.strip().split("|") for row in re.split(r"\n| ; ", _UNITS.strip()))
    return {
        code: Unit(singular, plural, symbol, kind, float(scale), target)
        for codes, singular, plural, symbol, kind, scale, target in rows
        for code in codes.split(",")
    }


def _scaled(code: str) -> Unit | None:
    """``e9acre`` and ``koilbbl``: billions of acres, thousands of barrels."""
    match = re.fullmatch(r"e(3|6|9|12)(.+)|([kMGT])((?:oil)?bbl|cuft|cuyd|cumi|USgal|impgal|acre.*|carat)(/.+)?", code)
    if not match:
        return None
    power = int(match[1]) if match[1] else _PREFIXES[match[3]][1]
    base = unit(match[2] or match[4] + (match[5] or ""))
    if not base:
        return None
    word = _THOUSANDS[power]
    plural, symbol = f"{word} {base.plural}", f"{word} {base.symbol}"
    target = {"oilbbl": "m3", "cuft": "m3"}.get(match[4] or "", base.target) if base.target else ""
    target = f"e{power}{target}" if target and " " not in target else ""
    return Unit(plural, plural, symbol, base.kind, base.scale * 10**power, target)


def _si(code: str) -> Unit | None:
    for symbol, (name, kind, scale) in _SI.items():
        prefix = code.removesuffix(symbol)
        if code.endswith(symbol) and prefix in _PREFIXES:
            word, power = _PREFIXES[prefix]
            plural = word + name + ("" if name == "hertz" else "s")
            return Unit(word + name, plural, prefix.replace("u", "μ") + symbol, kind, scale * 10.0**power)
    return None


def _power(code: str) -> Unit | None:
    """``km2``, ``sqmi``, ``cuft``, ``s2``."""
    match = re.fullmatch(r"(sq|cu) ?([^\d/]+)|([^\d/]+)([23])", code)
    base = unit(match[2] or match[3]) if match else None
    if not match or not base or base.kind not in ("length", "time"):
        return None
    square = match[1] == "sq" or match[4] == "2"
    word, sign = ("square", "sq") if square else ("cubic", "cu")
    metric = bool(_si(match[2] or match[3])) or base.kind == "time"
    symbol = base.symbol + ("²" if square else "³") if metric else f"{sign} {base.symbol}"
    kind = {"length": "area" if square else "volume"}.get(base.kind, f"{base.kind} {word}")
    scale = base.scale ** (2 if square else 3)
    singular, plural = (
        f"{name} {word}d" if base.kind == "time" else f"{word} {name}" for name in (base.singular, base.plural)
    )
    return Unit(singular, plural, symbol, kind, scale)


def _quotient(code: str) -> Unit | None:
    over, slash, under = code.partition("/")
    if not slash or "/" in under:
        return None
    top = unit(over) if over else Unit("", "", "", "", 1.0)
    bottom = unit(under)
    if not top or not bottom:
        return None
    singular, plural = (f"{name} per {bottom.singular}".strip() for name in (top.singular, top.plural))
    kind = f"{top.kind}/{bottom.kind}".replace("people/", "/").replace("length/time", "speed")
    scale = top.scale / bottom.scale
    return Unit(singular, plural, f"{top.symbol}/{bottom.symbol}", kind, scale)


def number(text: str) -> float | None:
    """The value of a number with commas or a minus sign, None if it is none."""
    try:
        return float(text.replace(",", "").replace("−", "-"))
    except ValueError:
        return None


def _amount(text: str) -> _Amount | None:
    """A number, or a fraction such as ``5+1/2``, ``1/2`` and ``1//2``."""
    plain = text.replace(",", "").replace("−", "-").replace("⁄", "/").strip()
    match = re.fullmatch(r"(-?)(?:(\d+)[+ ])?(\d+)//?(\d+)", plain)
    if match and int(match[4]):
        sign, whole, over, under = match.groups()
        value = (int(whole or 0) + int(over) / int(under)) * (-1 if sign else 1)
        shown = ("−" if sign else "") + (f"{whole} " if whole else "") + f"{over}/{under}"
        return _Amount(shown, value, max(math.log10(int(under)), 1))
    value_or_none = number(plain)
    if value_or_none is None or not math.isfinite(value_or_none):
        return None
    digits, _, exponent = plain.lower().partition("e")
    whole, point, decimals = digits.partition(".")
    count = len(decimals) if point else -(len(whole) - len(whole.rstrip("0")))
    shown = grouped(digits) + (f"×10^{exponent.lstrip('+')}" if exponent else "")
    return _Amount(shown, value_or_none, count - int(exponent or 0))


def _amounts(parts: list[str]) -> tuple[list[_Amount], list[str], list[str]]:
    """(the amounts of a value or range, the words between them, the arguments that follow)."""
    first = _amount(parts[0]) if parts else None
    if not first:
        joined = re.fullmatch(r"([\d.,]+)(-|–| to | and | or )([\d.,]+)", parts[0]) if parts else None
        return _amounts([joined[1], joined[2].strip(), joined[3], *parts[1:]]) if joined else ([], [], parts)
    amounts, separators, at = [first], [], 1
    while at + 1 < len(parts) and parts[at].lower() in _RANGES and (following := _amount(parts[at + 1])):
        separators.append(_RANGES[parts[at].lower()])
        amounts.append(following)
        at += 2
    return amounts, separators, parts[at:]


def _name(known: Unit, amount: _Amount, options: dict[str, str], adjective: bool = False) -> str:
    one = adjective or amount.value in (1, -1) or ("/" in amount.shown and amount.value <= 1)
    name = known.singular if one else known.plural
    if options.get("sp", "").lower() == "us":
        name = re.sub(r"(met|lit)re", r"\1er", name)
    return name


def _shown(
    amounts: list[_Amount],
    separators: list[str],
    known: Unit | None,
    code: str,
    symbols: bool,
    options: dict[str, str],
    suffix: str,
) -> str:
    symbols = symbols or (known is not None and known.kind.startswith("temperature") and options["abbr"] == "out")
    adjective = "on" in (options.get("sing"), options.get("adj")) or options.get("adj") in ("mid", "j")
    adjective = adjective and not symbols
    between = [separator.replace(" ", "-") for separator in separators] if adjective else separators
    figures = "".join(amount.shown + word for amount, word in zip(amounts, [*between, ""], strict=True))
    if known is None:
        return f"{figures} {code}"
    label = (
        known.symbol
        if symbols and (known.symbol or known.kind == "people")
        else _name(known, amounts[-1], options, adjective)
    )
    if options.get("adj") == "pre" and suffix:
        return f"{figures} {suffix} {label}"
    joint = "" if label.startswith("/") or label == "°" else "-" if adjective else " "
    return f"{figures}{joint}{label.replace(' ', '-') if adjective else label}{suffix}".rstrip()


def _converted(
    pieces: list[tuple[list[_Amount], list[str], Unit | None, str]],
    code: str,
    precision: int | None,
    options: dict[str, str],
) -> str:
    """The same measurement in the unit ``code``, or "" if it can't be converted."""
    amounts, separators, source, _ = pieces[0]
    assert source is not None
    composite = _COMPOSITES.get(code)
    known = unit(composite[1] if composite else code)
    if known is None or known.kind != source.kind:
        return ""
    bases = [source.to_base(amount.value) for amount in amounts]
    for (amount, *_), _, smaller, _ in pieces[1:]:
        assert smaller is not None
        bases[-1] += smaller.to_base(amount.value)
    last, last_unit = pieces[-1][0], pieces[-1][2]
    assert last_unit is not None
    values = [known.from_base(base) for base in bases]
    if composite:
        return "".join(
            _in_two(value, composite) + between for value, between in zip(values, [*separators, ""], strict=True)
        )
    if precision is None:
        written = amounts if len(pieces) == 1 else last
        sigfig = options.get("sigfig", "")
        precision = max(
            int(sigfig) - 1 - math.floor(math.log10(abs(value))) if sigfig.isdigit() and value
            else _precision(amount, value, base, last_unit, known, len(pieces) > 1)
            for amount, value, base in zip(written, values[-len(written) :], bases[-len(written) :], strict=True)
        )  # fmt: skip
    step = float(options["round"]) if re.fullmatch(r"5|10|25|50|0\.5", options.get("round", "")) else None
    texts = [_rounded(round(value / step) * step if step else value, 0 if step else precision) for value in values]
    outcome = _Amount(texts[-1], number(texts[-1]) or 0.0, 0)
    names = options["abbr"] in ("off", "in", "none") or not (known.symbol or known.kind == "people")
    label = _name(known, outcome, options) if names else known.symbol
    figures = "".join(text + between for text, between in zip(texts, [*separators, ""], strict=True))
    return f"{figures}{'' if label.startswith('/') else ' '}{label}".rstrip()


def _precision(amount: _Amount, value: float, base: float, source: Unit, target: Unit, of_two: bool) -> int:
    """Decimals of a converted value, by the rule of the template's default rounding."""
    if source.kind == "temperature":
        return max(
            math.floor(amount.decimals), 2 - math.floor(math.log10(abs(base)) + 1e-14) if abs(base) > 1e-8 else 2
        )
    if value == 0:
        return 0
    adjust = (
        math.log10(target.scale) + 2 if of_two and source.symbol == "in" else math.log10(target.scale / source.scale)
    )
    adjust += math.log10(2)
    return max(math.floor(amount.decimals + adjust), 1 - math.floor(math.log10(abs(value)) + 1e-14))


def _rounded(value: float, decimals: int) -> str:
    value = math.copysign(math.floor(abs(value) * 10.0**decimals + 0.5 + 1e-9) / 10.0**decimals, value)
    text = f"{value:.{max(decimals, 0)}f}"
    return grouped("0" + text[2:] if re.fullmatch(r"-0(\.0+)?", text) else text)


def _in_two(value: float, composite: tuple[str, str, int]) -> str:
    larger, smaller, ratio = composite
    many, few = divmod(math.floor(abs(value) + 0.5), ratio)
    return f"{'−' if value < 0 else ''}{many:,} {larger} {few} {smaller}"


def _arranged(given: str, converted: list[str], options: dict[str, str]) -> str:
    """What was given and what it was converted to, in the order and with the signs that the options name."""
    display = options.get("disp", "")
    if not converted:
        return given
    others = "; ".join(converted)
    if display in ("out", "output only", "output number only", "number"):
        return others
    if "flip" in (options.get("order"), display):
        given, others = converted[0], "; ".join([given, *converted[1:]])
    if display == "or":
        return f"{given} or {others}"
    return f"{given} [{others}]" if display == "sqbr" else f"{given} ({others})"
