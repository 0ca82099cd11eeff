"""Wikitext shows what a reader sees: no markup, no gap where a template was, and nothing swallowed by broken markup."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.corpus.wikitext import MAX_FORMULA, plain_text
from ragray.corpus.wikitext_units import convert, unit

MARKUP = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|'''|== |<ref|<[a-z]+[ />]|__[A-Z]{3,}__")


@pytest.mark.parametrize(
    ("wikitext", "shown"),
    [
        ("The '''kiln''' is ''old''.", "The kiln is old."),
        ("The ''l'étang'''s edge", "The l'étangs edge"),
        ("A [[brick]] and two [[tile|tiles]], [[wall]]s", "A brick and two tiles, walls"),
        ("See [[:Category:Kilns]] and [[wikt:kiln|kiln]].", "See Category:Kilns and kiln."),
        ("It burns.[[Category:Kilns]] [[de:Ofen]]", "It burns."),
        ("It burns.[[File:Kiln.jpg|thumb]]It cools[[File:Kiln.jpg]].", "It burns. It cools."),
        ("[[File:Kiln.jpg|thumb|A [[kiln]] of {{convert|3|m|ft}} [http://a.example x]]]It burns.", "It burns."),
        ("Baked<ref>Old book, [[p.]] {{cite book|title=x}}</ref> clay<ref name=a/>.", "Baked clay."),
        ("Hot<!-- how\n\nhot? --> clay", "Hot clay"),
        ("a\n<!-- line -->\nb", "a b"),
        ("<nowiki>[[x]] {{y}}</nowiki> is typed", "[[x]] {{y}} is typed"),
        ("Smith &amp; Sons, 5&nbsp;&ndash;&#32;6 &lt;ref&gt;", "Smith & Sons, 5 – 6 <ref>"),
        ("one<br/>two<br>three", "one two three"),
        ("10<sup>6</sup> m<sup>2</sup> of H<sub>2</sub>O, the 19<sup>th</sup>", "10⁶ m² of H2O, the 19th"),
        ("[http://a.example The site] and [http://b.example]", "The site and"),
        ("so <math>E = mc^2</math> holds", "so E = mc^2 holds"),
        (r"a <math>\frac{1}{x^{{2}}}</math>", r"a \frac{1}{x^{ {2} } }"),
        ("__NOTOC__\nText\n----\nMore", "Text\n\nMore"),
        ("<gallery>\nA.jpg|one\n</gallery>Text", "Text"),
        ("Here is {{PAGENAME}}.", "Here is Kiln."),
    ],
)
def test_inline_markup_is_shown_as_text(wikitext, shown):
    assert plain_text(wikitext, "Kiln") == shown


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{nowrap|five miles}}", "five miles"),
        ("{{lang|de|Ofen}}", "Ofen"),
        ("{{lang-de|Ofen}}", "German: Ofen"),
        ("{{lang-qqq|Ofen}}", "Ofen"),
        ("{{transl|ru|ISO|pech}}", "pech"),
        ("{{IPAc-en|k|ɪ|l|n}}", "/kɪln/"),
        ("{{circa|1400}}", "c. 1400"),
        ("{{c.|1400|1410}}", "c. 1400 – c. 1410"),
        ("{{val|1234.5|0.2|e=3|u=kg}}", "1,234.5±0.2×10³ kg"),
        ("{{birth date|1879|3|14}}", "March 14, 1879"),
        ("{{birth date|1879|3|14|df=y}}", "14 March 1879"),
        ("{{death date and age|1955|4|18|1879|3|14}}", "April 18, 1955 (aged 76)"),
        ("{{start date|2001|02}}", "February 2001"),
        ("{{dts|1800|May|5}}", "May 5, 1800"),
        ("{{age|1900|5|2|1950|5|1}}", "49"),
        ("{{as of|2009}}", "As of 2009"),
        ("{{as of|2009|3|lc=y}}", "as of March 2009"),
        ("{{formatnum:1234567}}", "1,234,567"),
        ("{{frac|3|1|2}}", "3 1/2"),
        ("{{sup|2}}", "²"),
        ("{{sub|2}}", "2"),
        ("{{abbr|NGO|non-governmental organisation}}", "NGO"),
        ("{{small|[[a|b]] ''c''}}", "b c"),
        ("x{{ndash}}y{{snd}}z", "x–y – z"),
        ("{{US$|20 million}}", "US$20 million"),
        ("{{height|m=1.83}}", "1.83 m (6 ft 0 in)"),
        ("{{height|ft=6|in=1}}", "6 ft 1 in (1.85 m)"),
        ("{{chem|H|2|O}}", "H2O"),
        ("{{hlist|clay|sand}}", "clay, sand"),
        ("{{nihongo|Oven|炉|ro}}", "Oven (炉, ro)"),
        ("{{pop density|1000|50|km2|sqmi}}", "20/km² (52/sq mi)"),
        ("{{nowrap|{{convert|8|km|mi}}}}", "8 kilometres (5.0 mi)"),
        ("{{small|1=[[a=b]]}}", "a=b"),
        ("{{abbr|{{nowrap|x {{lang|de|y}}}}|z}}", "x y"),
        ("{{#if:yes|then|else}}", "then"),
        ("{{harvtxt|Potter|Clay|1974}}", "Potter, Clay (1974)"),
    ],
)
def test_templates_that_a_reader_sees_are_shown(template, shown):
    assert plain_text(f"So {template} it is") == f"So {shown} it is"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("convert|8|km|mi", "8 kilometres (5.0 mi)"),
        ("convert|1|km|mi|sp=us", "1 kilometer (0.62 mi)"),
        ("convert|3|to|5|m", "3 to 5 metres (9.8 to 16.4 ft)"),
        ("convert|3|-|5|m|ft|abbr=on", "3–5 m (9.8–16.4 ft)"),
        ("convert|8|km|mi|abbr=off", "8 kilometres (5.0 miles)"),
        ("convert|8|km|mi|adj=on", "8-kilometre (5.0 mi)"),
        ("convert|8|km|mi|adj=mid|-long", "8-kilometre-long (5.0 mi)"),
        ("convert|6|ft|1|in|cm", "6 feet 1 inch (185 cm)"),
        ("convert|1+1/2|in|mm", "1 1/2 inches (38 mm)"),
        ("convert|20|C", "20 °C (68 °F)"),
        ("convert|-40|C|F", "−40 °C (−40 °F)"),
        ("convert|1200|m|ft|0", "1,200 metres (3,937 ft)"),
        ("convert|100|lb|kg|order=flip", "45 kilograms (100 lb)"),
        ("convert|40|m|ft|disp=or", "40 metres or 130 ft"),
        ("convert|2|e6acre|km2", "2 million acres (8,100 km²)"),
        ("convert|12|km/h|mph", "12 kilometres per hour (7.5 mph)"),
        ("convert|10|m|fathom ft", "10 metres (5.5 fathom; 33 ft)"),
        ("cvt|10|kg|lb|sigfig=3", "10 kg (22.0 lb)"),
        ("convert|7|smoots|m", "7 smoots"),
        ("km to mi|8", "8 kilometres (5.0 mi)"),
    ],
)
def test_measurements_keep_number_unit_and_conversion(template, shown):
    assert plain_text(f"It lies {{{{{template}}}}} off.") == f"It lies {shown} off."


@given(st.lists(st.text("0123456789.+-/ekmfti |", max_size=6), max_size=6))
def test_no_arguments_break_a_conversion(arguments):
    assert isinstance(convert(arguments, {}), str)


@given(st.text("kmgftsqcu/23e9 ", max_size=8))
def test_no_code_breaks_the_search_for_a_unit(code):
    found = unit(code)
    assert found is None or found.scale > 0


@pytest.mark.parametrize(
    ("wikitext", "shown"),
    [
        ("The kiln ({{audio|x.ogg}}; {{respell}}) burns.", "The kiln burns."),
        ("The kiln ({{audio|x.ogg}}; German: Ofen) burns.", "The kiln (German: Ofen) burns."),
        ("The kiln (old, {{audio|x.ogg}}) burns .", "The kiln (old) burns."),
        ("It cost $5 (${{inflation|US|5|1929}} in {{CURRENTYEAR}}) then.", "It cost $5 then."),
        ("It is old. It is {{age|1970|1|1}} years old now. It burns.", "It is old. It burns."),
        ("It fell at {{coord|12|30|N|45|W}}, near a kiln.", "It fell at 12°30′N 45°W, near a kiln."),
        ("It burns.{{coord|12|30|N|45|W|display=title}}", "It burns."),
        ("a height of {{unheard of|30 m}}.", "a height of 30 m."),
        ("It burns.{{unheard of|note}} It cools.", "It burns. It cools."),
    ],
)
def test_what_is_dropped_leaves_no_gap(wikitext, shown):
    assert plain_text(wikitext) == shown


def test_paragraphs_headings_and_list_items_are_separate():
    text = "One\nline.\n\nTwo.\n== Use ==\n* clay\n** fine\n# first\n; term\n: meaning\nAfter."
    assert plain_text(text).split("\n\n") == [
        "One line.", "Two.", "Use", "clay", "fine", "first", "term", "meaning After.",
    ]  # fmt: skip


def test_boxes_tables_and_link_sections_are_left_out():
    text = (
        "{{Infobox kiln\n| name = K\n| size = {{convert|3|m|ft}}\n}}\n"
        "Text.\n{| class=wikitable\n! A !! B\n|-\n| 1 || {| \n| inner\n|}\n|}\n<table><tr><td>cell</td></tr></table>"
        "\n== Facts ==\n=== Empty ===\n{|\n| x\n|}\n=== Full ===\nFact.\n== See also ==\n* [[Oven]]\n=== More ===\n"
        "* [[Fire]]\n== Later ==\nEnd.\n== References ==\n{{reflist}}\n== Only a table ==\n{|\n|}\n{{navbox}}"
    )
    assert plain_text(text).split("\n\n") == ["Text.", "Facts", "Full", "Fact.", "Later", "End."]


def test_a_quotation_is_a_paragraph_with_its_author():
    assert (
        plain_text("He said: {{quote|Burn it.|A. Potter}} So be it.")
        == "He said:\n\nBurn it.\n\n— A. Potter\n\nSo be it."
    )


def test_a_long_formula_is_left_out():
    assert plain_text(f"It is so: <math>{'x+' * MAX_FORMULA}y</math>") == "It is so:"


@pytest.mark.parametrize(
    "broken",
    [
        "{{Infobox kiln\n| name = K\n| size = 3\n",
        "{{small|open ",
        "{|\n! head\n| cell\n",
        "<ref>open ",
        "<ref name=x",
        "[[File:a.jpg|thumb|open ",
        "[[open ",
        "''' bold ",
        "<div class=x>",
        "<!-- open ",
        "}} ]] |} </ref> </div>",
        "<math>x ",
    ],
)
def test_broken_wikitext_shows_no_markup_and_swallows_nothing(broken):
    shown = plain_text(f"Before.\n\n{broken}\n\nThe kiln is ''hot''.\n\n== Use ==\nAfter [[all]].")
    assert not MARKUP.search(shown), shown
    assert shown.startswith("Before.")
    assert shown.endswith("The kiln is hot.\n\nUse\n\nAfter all.")


@given(
    st.lists(
        st.sampled_from(["{{", "}}", "[[", "]]", "{|", "|}", "|", "\n", "<ref>", "</ref>", "'''", "== ", "a", " ", "="])
    )
)
def test_any_mixture_of_markup_leaves_no_braces_and_no_references(pieces):
    shown = plain_text("".join(pieces))
    assert not re.search(r"\{\{|\}\}|\[\[|\]\]|<ref|'''", shown), shown


@pytest.mark.timeout(20)
@pytest.mark.parametrize("mark", ["{{a|", "[[a|", "[http://a "])
def test_thousands_of_marks_that_are_never_closed_take_no_minutes(mark):
    shown = plain_text("Before.\n\n" + mark * 5000 + "\n\nAfter.")
    assert not MARKUP.search(shown)
    assert shown.startswith("Before.")
    assert shown.endswith("After.")
