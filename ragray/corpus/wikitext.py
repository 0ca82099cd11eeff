"""Wikitext as the plain text that a reader of the page sees."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import mwparserfromhell

from ragray.corpus.wikitext_templates import GUESS, GUESS_END, MISSING, Call, coordinates, names, renderer, superscript

MAX_FORMULA = 200  # characters of TeX
MAX_UNFINISHED = 1000  # nested or broken marks of a page that are parsed; the parser's time grows with their square

_HEADING = "\ue010"  # followed by the level's digit, before a heading's text
_PROTECTED_FROM, _SPECIAL = 0xE100, "<>&[]{}|'*#:;=_!-"  # characters that are text, not markup, wear another code
_PROTECT = str.maketrans({sign: chr(_PROTECTED_FROM + ord(sign)) for sign in _SPECIAL})

_PROTECT_ARGUMENT = {ord(sign): chr(_PROTECTED_FROM + ord(sign)) for sign in "|="}
_FUNCTIONS = frozenset(("formatnum", "lc", "uc", "ucfirst", "lcfirst"))

_FILES = (
    "file|image|media|datei|bild|fichier|archivo|imagen|ficheiro|imagem|immagine|файл|изображение|bestand|afbeelding|plik|grafika"
    "|fil|tiedosto|ファイル|画像|文件|파일|soubor|dosya"
)
_CATEGORIES = "category|kategorie|catégorie|categoría|categoria|категория|kategoria|categorie|カテゴリ|分类|분류"
_DROPPED_LINK = re.compile(rf"\s*(?:{_FILES}|{_CATEGORIES})\s*:", re.I)
_INTERLANGUAGE = re.compile(r"\s*(?:[a-z]{2,3}|simple|[a-z]{2,3}-[a-z-]{2,8}|be-x-old|zh-min-nan)\s*:\s*[^\s|]")
_DROPPED_TAGS = frozenset(
    [
        "ref",
        "references",
        "gallery",
        "timeline",
        "score",
        "source",
        "syntaxhighlight",
        "imagemap",
        "hiero",
        "graph",
        "mapframe",
        "maplink",
        "templatedata",
        "inputbox",
        "categorytree",
        "table",
        "style",
        "script",
        "noinclude",
        "includeonly",
        "section",
        "indicator",
        "charinsert",
        "chart",
    ]
)

_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki\s*>|<nowiki\s*/>|<pre\b[^<>]*>(.*?)</pre\s*>", re.S | re.I)
_COMMENT_LINE = re.compile(r"\n[ \t]*<!--(?:[^-]|-(?!->))*-->[ \t]*(?=\n)")
_COMMENT = re.compile(r"<!--.*?-->|<!--[^\n]*", re.S)
_REFERENCE = re.compile(r"<ref\b[^<>]*/\s*>|<ref\b[^<>]*>(?:[^<]|<(?!/?ref\b))*</ref\s*>", re.I)
_REFERENCE_START = re.compile(r"<ref\b[^<>\n]*>?|</ref\s*>", re.I)
_DROPPED_CONTENT = re.compile(
    r"<(gallery|timeline|score|source|syntaxhighlight|imagemap|hiero|graph|mapframe|maplink|templatedata|inputbox"
    r"|categorytree|references|style)\b[^<>]*(?<!/)>.*?</\1\s*>",
    re.S | re.I,
)
_MATH = re.compile(r"<(math|chem|ce)\b[^<>]*(?<!/)>(.*?)</\1\s*>", re.S | re.I)
_HTML_TABLE = re.compile(r"<table\b[^<>]*>(?:[^<]|<(?!/?table\b))*</table\s*>", re.I)
_TABLE_EDGE = re.compile(r"^[ \t:*#]*\{\|(?!\})|^[ \t:*#]*\|\}(?!\})", re.M)
_TABLE_LINE = re.compile(r"\n[ \t]*[|!][^\n]*")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_SIMPLE_LINK = re.compile(r"\[\[([^\[\]{}|<>\n:=]+)(?:\|([^\[\]{}|<>\n=]+))?\]\]")
_FLAT_LINK = re.compile(r"\[\[([^\[\]{}|\n]+)(?:\|([^\[\]{}]*))?\]\]")
_FLAT_TEMPLATE = re.compile(r"\{\{([^{}\[\]<>]*)\}\}")
_FLAT_WEB_LINK = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]{}<>|]+[ \t]*([^\[\]{}<>\n]*)\]")
_NEVER_SHOWN = re.compile(
    r"\{\{\s*(?:cite |citation\b|sfn|harv(?!col?txt|txt)|infobox|navbox|main\b|see also|further|refn|efn|rp\s*\|"
    r"|reflist|flagicon|use [dm]|commons|authority control|defaultsort)",
    re.I,
)
_SUPERSCRIPT = re.compile(r"<sup\b[^<>]*>([^<>{}\[\]]*)</sup\s*>", re.I)
_BLOCK_TAG = re.compile(r"</?(?:div|p|blockquote|center|ul|ol|dl|poem|hr)\b[^<>]*>", re.I)
_ITEM_TAG = re.compile(r"<br\b[^<>]*>|</?(?:li|dd|dt)\b[^<>]*>", re.I)
_INLINE_TAG = re.compile(
    r"</?(?:small|big|span|font|i|b|u|s|em|strong|tt|code|abbr|cite|var|sub|kbd|samp|del|ins|q|dfn|bdi|nowiki|time|mark"
    r"|ruby|rb|rp|rt|onlyinclude|noinclude|section|wbr|strike|data)\b[^<>]*>",
    re.I,
)
_UNFINISHED = re.compile(r"\{\{|\[\[|<[A-Za-z/]|\[(?:https?:|ftp:)?//")
_HEADING_LINE = re.compile(r"^(={1,6})[ \t]*(.+?)[ \t]*\1[ \t]*$", re.M)
_LINK_SECTIONS = names(
    """see also|references|external links|external link|further reading|notes|bibliography|notes and references
    |footnotes|citations|works cited|references and notes|general references|sources and references|primary sources
    |secondary sources|notes and citations|cited sources|explanatory notes|bibliography and references
    |references and further reading
    |selected bibliography|general sources|references and sources|additional reading|cited works|links|gallery
    |image gallery|external links and references|sources and further reading|general and cited references"""
)

_STRAY_MARKUP = re.compile(
    r"\{\{[^{}|\n]*\|[^{}|=\n]*=|\{\{[^{}|\n]*\|?|\}\}+|\[\[(?:[^\[\]|\n]*\|)?|\]\]|^[ \t]*\{\|.*$|^[ \t]*\|.*$"
    r"|^[ \t]*!.*!!.*$|\{\||\|\}|</?[a-zA-Z][^<>\n]*>|</?(?:ref|span|div|small|br|sup|sub|font)\b[^<>\n]*|__[A-Z]{3,}__"
    r"|\[(?:https?:|ftp:)?//[^\s\]]+|-\{|\}-",
    re.M,
)
_STRAY_SIGNS = ("{{", "}}", "[[", "]]", "{|", "|}", "<", "__", "[http", "[//", "[ftp", "\n|", "\n |", "!!", "-{", "}-")
_QUOTE_MARKS = re.compile(r"''+")
_LIST_START = re.compile(r"^[*#:;][ \t*#:;]*", re.M)
_RULE = re.compile(r"^----+", re.M)
_ZERO_WIDTH = re.compile("[\u200b\u200e\u200f\ufeff\u00ad\u2060]")
_EMPTY_BRACKETS = re.compile(r"\((?:[\s,;:./–—-]|\b(?:pronounced|or|and|IPA|pron\.)(?=[\s,;)]))*\)|\[[\s,;:]*\]")
_BRACKET_START = re.compile(r"\(\s*(?:[;,:]\s*)+")
_BRACKET_END = re.compile(r"[,;:–][\s,;:–]*\)")
_DOUBLED_COMMA = re.compile(r"([,;])(?:\s*[,;])+")
_SPACED_STOP = re.compile(r" \.(?=\s|$)", re.M)
_PROTECTED = re.compile("[\ue100-\ue17f]")
_MISSING_IN_BRACKETS = re.compile(rf" ?\([^()\n]*{MISSING}[^()\n]*\)")
_MISSING_SENTENCE = re.compile(
    rf"(?:(?<=[.!?] )|^)(?:[^.!?\n]|[.!?](?! ))*{MISSING}(?:[^.!?\n]|[.!?](?!\s))*(?:[.!?]+ ?|$)", re.M
)
_WANTS_VALUE = re.compile(
    r"\b(?:of|about|approximately|is|was|are|were|at|by|from|to|the|a|an|in|with|than|and|or|between|over|under|around|nearly"
    r"|some|roughly|only|least|most|for|as|called|pronounced|or|[A-Z]\$|US)\s*$|[$£€]$"
)
_GUESSED = re.compile(rf"{GUESS}([^{GUESS}{GUESS_END}]*){GUESS_END}")


def plain_text(wikitext: str, title: str = "") -> str:
    """The paragraphs, headings and list items that a reader of the page sees, separated by blank lines.

    References, tables, boxes, pictures and the sections that only hold links are left out. {{PAGENAME}} shows the
    ``title``.  Broken wikitext gives the text without its markup.
    """
    walk = _Walk(title)
    text = _without_hidden_parts(wikitext)
    text = _without_link_sections(walk.show_flat(text))
    text = _HEADING_LINE.sub(lambda match: f"\n\n{_HEADING}{len(match[1])}{match[2]}\n\n", text)
    text = _LIST_START.sub("\n\n", text)
    if 0 < len(_UNFINISHED.findall(text)) <= MAX_UNFINISHED:
        text = walk.show(mwparserfromhell.parse(text, skip_style_tags=True))
    return _paragraphs(text)


class _Walk:
    """One walk over a page's nodes.

    Most links and templates hold no others.  These are shown in place by regular expressions, by the same rules, which
    is several times as fast as to parse them; what is left, nested or broken, is parsed.
    """

    def __init__(self, title: str) -> None:
        self.title = title

    def show_flat(self, text: str) -> str:
        for _ in range(4):
            before = text
            text = _FLAT_TEMPLATE.sub(self._flat_template, text)
            text = _FLAT_LINK.sub(lambda match: _link(match[1], match[2]), text)
            if text == before:
                break
            text = _flat_tags(text)
        return _flat_tags(text)

    def _flat_template(self, match: re.Match[str]) -> str:
        if _NEVER_SHOWN.match(match[0]):
            return ""
        name, *arguments = match[1].split("|")
        pairs: list[tuple[str | None, str]] = []
        for argument in arguments:
            key, sign, value = argument.partition("=")
            pairs.append((key.strip(), value.strip()) if sign else (None, argument))
        shown = self._show_template(name, pairs)
        return shown.translate(_PROTECT_ARGUMENT) if "|" in shown or "=" in shown else shown

    def show(self, code: Any) -> str:
        return "".join([self._node(node) for node in code.nodes])

    def _node(self, node: Any) -> str:
        shown = getattr(self, "_" + type(node).__name__.lower(), None)
        return shown(node) if shown else ""

    def _text(self, node: Any) -> str:
        return str(node.value)

    def _argument(self, node: Any) -> str:
        return self.show(node.default) if node.default is not None else ""

    def _wikilink(self, node: Any) -> str:
        return _link(str(node.title), self.show(node.text) if node.text is not None else None)

    def _externallink(self, node: Any) -> str:
        if node.title is not None:
            return self.show(node.title)
        return "" if node.brackets else str(node.url)

    def _tag(self, node: Any) -> str:
        name = str(node.tag).strip().lower()
        if node.wiki_markup and name in ("li", "dt", "dd"):
            return str(node.wiki_markup)
        if name == "br":
            return "\n"
        if name == "hr":
            return "\n\n"
        if name in _DROPPED_TAGS or node.contents is None:
            return ""
        inner = self.show(node.contents)
        if name == "sup":
            return superscript(inner)
        if name in ("div", "p", "blockquote", "center", "ul", "ol", "dl", "poem"):
            return f"\n\n{inner}\n\n"
        return f"\n* {inner}\n" if name in ("li", "dd", "dt") else inner

    def _template(self, node: Any) -> str:
        pairs = [(str(item.name).strip() if item.showkey else None, item.value) for item in node.params]
        return self._show_template(self.show(node.name), pairs)

    def _show_template(self, raw_name: str, pairs: Sequence[tuple[str | None, Any]]) -> str:
        """A template with (key or None, value) of its arguments; a value is text, or nodes that are shown if needed."""
        name = " ".join(raw_name.replace("_", " ").lower().split()).removeprefix("template:")
        function, colon, _ = name.partition(":")
        if not (colon and (function.startswith("#") or function in _FUNCTIONS)):
            function = ""
        if name == "coord":
            return f"{GUESS}{coordinates([str(value) for key, value in pairs if key is None])}{GUESS_END}"
        if name in ("pagename", "subjectpagename", "fullpagename", "title"):
            return self.title
        show = renderer(function or name)
        if show is None:
            known = function or name.startswith("#") or _NEVER_SHOWN.match("{{" + name + "|")
            return "" if known else self._guess(pairs)
        numbered = [raw_name.partition(":")[2]] if function else []
        named: dict[str, str] = {}
        for key, nodes in pairs:
            value = nodes if isinstance(nodes, str) else self.show(nodes)
            if key is None or (key.isdigit() and int(key) == len(numbered) + 1):
                numbered.append(value)
            else:
                named[key] = value
        return show(Call(function or name, numbered, named))

    def _guess(self, pairs: Sequence[tuple[str | None, Any]]) -> str:
        """A template that isn't known: its first argument, to be shown only where a sentence would else have a gap."""
        if not pairs or pairs[0][0] is not None:
            return ""
        nodes = pairs[0][1]
        value = (nodes if isinstance(nodes, str) else self.show(nodes)).strip()
        return f"{GUESS}{value}{GUESS_END}" if 0 < len(value) <= 60 and "\n" not in value and GUESS not in value else ""


def _link(target: str, label: str | None) -> str:
    """What a link shows: pictures, categories and links to the page in other languages show nothing."""
    if ":" in target and (_DROPPED_LINK.match(target) or _INTERLANGUAGE.match(target)):
        return " "  # a picture parts the words around it
    if label is None:
        return target.strip().lstrip(": ")
    return label if label.strip() else re.sub(r"^.*?:|\s*\(.*\)$", "", target)


def _flat_tags(text: str) -> str:
    if "<" in text:
        text = _SUPERSCRIPT.sub(lambda match: superscript(match[1]), text)
        text = _INLINE_TAG.sub("", _ITEM_TAG.sub("\n", _BLOCK_TAG.sub("\n\n", text)))
    return _FLAT_WEB_LINK.sub(r"\1", text) if "[" in text else text


def _without_hidden_parts(text: str) -> str:
    """Wikitext without comments, references, pictures and tables that are well formed; entities decoded."""
    if "<nowiki" in text or "<pre" in text:
        text = _NOWIKI.sub(lambda match: (match[1] or match[2] or "").translate(_PROTECT), text)
    if "<!--" in text:
        text = _COMMENT.sub("", _COMMENT_LINE.sub("", text))
    if "<math" in text or "<ce" in text or "<chem" in text:
        text = _MATH.sub(lambda match: _formula(match[2]), text)
    text = _ENTITY.sub(lambda match: html.unescape(match[0]).translate(_PROTECT), text)
    if "<ref" in text:
        text = _REFERENCE_START.sub("", _REFERENCE.sub("", text))
    if "<" in text:
        text = _HTML_TABLE.sub("", _DROPPED_CONTENT.sub("", text))
    return _without_tables(_SIMPLE_LINK.sub(lambda match: match[2] or match[1], text))


def _formula(tex: str) -> str:
    """A formula's TeX, without double braces and with its signs protected; nothing of a long one."""
    plain = re.sub(r"([{}])(?=\1)", r"\1 ", " ".join(tex.split()))
    return plain.translate(_PROTECT) if len(plain) <= MAX_FORMULA else ""


def _without_tables(text: str) -> str:
    """Text without its tables; of one that isn't closed, only the lines go that are plainly the table's."""
    kept: list[str] = []
    open_at: list[int] = []
    done = 0
    for edge in _TABLE_EDGE.finditer(text):
        if edge[0].endswith("{|"):
            open_at.append(edge.start())
        elif open_at:
            start = open_at.pop()
            if not open_at and start >= done:
                kept.append(text[done:start])
                done = edge.end()
    if open_at and open_at[0] >= done:
        kept.append(text[done : open_at[0]])
        done = open_at[0]
        rest = re.sub(r"^[ \t:*#]*\{\|[^\n]*", "", text[done:], count=0, flags=re.M)
        return "".join(kept) + _TABLE_LINE.sub("\n", "\n" + rest)
    return "".join([*kept, text[done:]])


def _without_link_sections(text: str) -> str:
    """Text without the sections (with their subsections) that a page has for links and references."""
    kept: list[str] = []
    start, hidden_level = 0, 0
    for heading in _HEADING_LINE.finditer(text):
        level = len(heading[1])
        if hidden_level and level > hidden_level:
            continue
        if not hidden_level:
            kept.append(text[start : heading.start()])
        start = heading.start()
        hidden_level = level if heading[2].strip(" ':").lower() in _LINK_SECTIONS else 0
    return "".join(kept) + ("" if hidden_level else text[start:])


def _paragraphs(text: str) -> str:
    """Clean lines, one a paragraph, heading or list item, with the gaps closed that dropped parts left."""
    if GUESS in text:
        text = _GUESSED.sub(_guessed, text)
    if any(sign in text for sign in _STRAY_SIGNS):
        text = _STRAY_MARKUP.sub("", text)
    text = _RULE.sub("\n\n", _LIST_START.sub("\n\n", _QUOTE_MARKS.sub(_apostrophes, _ZERO_WIDTH.sub("", text))))
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    text = "\n".join([block for block in blocks if block])
    if MISSING in text:
        text = _MISSING_SENTENCE.sub("", _MISSING_IN_BRACKETS.sub("", text)).replace(MISSING, "")
    previous = None
    while previous != text:
        previous = text
        text = _BRACKET_END.sub(")", _BRACKET_START.sub("(", _EMPTY_BRACKETS.sub("", text)))
    text = _SPACED_STOP.sub(".", _DOUBLED_COMMA.sub(r"\1", text))
    for spaced, closed in (("( ", "("), (" )", ")"), ("[ ", "["), (" ]", "]"), (" ,", ","), (" ;", ";"), ("  ", " ")):
        text = text.replace(spaced, closed)
    lines = [line for line in map(str.strip, text.split("\n")) if line.strip(" .,;:·•–—-|")]
    return _PROTECTED.sub(_restored, "\n\n".join(_without_empty_sections(lines)))


def _restored(match: re.Match[str]) -> str:
    return chr(ord(match[0]) - _PROTECTED_FROM)


def _guessed(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 40) : match.start()]
    return match[1] if _WANTS_VALUE.search(before) else ""


def _apostrophes(match: re.Match[str]) -> str:
    """Marks of italic and bold go; what is over is an apostrophe."""
    return "'" if len(match[0]) in (4, 6) else ""


def _without_empty_sections(lines: list[str]) -> list[str]:
    """Lines without the headings under which nothing is left."""
    kept: list[str] = []
    level = 0  # of the heading that has to be followed by more, from below
    for line in reversed(lines):
        if not line.startswith(_HEADING):
            level = 7
        elif int(line[1]) >= level or len(line) == 2 or level == 0:
            continue
        else:
            level, line = int(line[1]), line[2:]
        kept.append(line)
    return kept[::-1]
