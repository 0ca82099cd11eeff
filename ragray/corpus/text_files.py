"""Reading files that are one document each: plain text, Markdown, HTML and PDF."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, BinaryIO

from ragray.corpus.fields import MAX_TEXT_CHARACTERS, checked_document
from ragray.corpus.files import Bad, Span, open_file
from ragray.records import Document, InputError
from ragray.storage import location

_MAX_BYTES = 4 * MAX_TEXT_CHARACTERS
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n[\w-]+[ \t]*:.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TAG_OR_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)|</?[a-zA-Z!?][^>]*>", re.DOTALL)
_UNSEEN = {"script", "style", "noscript", "template", "nav", "svg", "iframe"}
_SEPARATORS = dict.fromkeys(["td", "th"], " ")
_SEPARATORS |= dict.fromkeys(["br", "dd", "dt", "li", "option", "tr"], "\n")
_SEPARATORS |= dict.fromkeys(["address", "article", "aside", "blockquote", "body", "caption", "center"], "\n\n")
_SEPARATORS |= dict.fromkeys(["details", "dialog", "div", "dl", "fieldset", "figcaption", "figure"], "\n\n")
_SEPARATORS |= dict.fromkeys(["footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup"], "\n\n")
_SEPARATORS |= dict.fromkeys(["hr", "legend", "main", "menu", "ol", "p", "pre", "section", "summary"], "\n\n")
_SEPARATORS |= dict.fromkeys(["table", "title", "ul"], "\n\n")

_TitleAndText = tuple[str, str]


def spans(file: Path, span_bytes: int) -> list[Span]:
    """One span, whatever the size."""
    return [Span(str(file), "text", size_bytes=file.stat().st_size)]


def read(span: Span) -> Iterator[Document | Bad]:
    """The document of a file, with paragraphs between blank lines.

    Its id is the file's path from the span's root.  Its title is the first heading of Markdown, the ``<title>`` or the
    first ``<h1>`` of HTML, the title in a PDF's metadata, and where there is none, the file's name without its suffix.

    Raises:
        InputError: if the file is missing, or the library for its kind is.
    """
    file = location(span.path)
    name = span.path.removeprefix(span.root.rstrip("/") + "/") if span.root else file.name
    title_and_text = _parser(file.suffix.lower())
    with open_file(span.path) as handle:
        try:
            title, text = title_and_text(handle)
            document = checked_document(name, _one_line(title) or file.stem, _tidy(text))
        except InputError as error:
            yield Bad(span.path, str(error))
            return
    yield document


def _parser(suffix: str) -> Callable[[BinaryIO], _TitleAndText]:
    try:
        if suffix in (".md", ".markdown"):
            from markdown_it import MarkdownIt

            return partial(_markdown, MarkdownIt("commonmark").enable(["table", "strikethrough"]))
        if suffix in (".html", ".htm"):
            return _html
        if suffix == ".pdf":
            from pypdf import PdfReader

            return partial(_pdf, PdfReader)
    except ImportError as error:
        raise InputError(
            f"reading {suffix} needs a library that isn't installed ({error}): pip install 'ragray[documents]'"
        ) from None
    return lambda handle: ("", _decoded(handle))


def _decoded(handle: BinaryIO) -> str:
    content = handle.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise InputError(f"the file has more than {_MAX_BYTES:,} bytes: split it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error.reason} at byte {error.start + 1}): convert it") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _markdown(parser: Any, handle: BinaryIO) -> _TitleAndText:
    tokens = parser.parse(_FRONT_MATTER.sub("", _decoded(handle)))
    title, parts = "", []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "inline":
            parts.append(_inline_text(token.children))
            if before is not None and before.type == "heading_open":
                title = title or parts[-1]
        elif token.type in ("fence", "code_block"):
            parts.append(f"\n\n{token.content}\n\n")
        elif token.type == "html_block":
            parts.append(f"\n\n{html.unescape(_TAG_OR_COMMENT.sub('', token.content))}\n\n")
        elif token.nesting < 1 and token.type != "list_item_close":  # hidden: a paragraph of a list without blank lines
            parts.append("\n" if token.hidden else _SEPARATORS.get(token.tag, ""))
    return title, "".join(parts)


def _inline_text(tokens: list[Any]) -> str:
    """Text of a paragraph: link texts and the alternatives of pictures stay, marks and tags don't."""
    breaks = {"softbreak": " ", "hardbreak": "\n", "html_inline": ""}
    return "".join(breaks.get(token.type, token.content) for token in tokens)


def _html(handle: BinaryIO) -> _TitleAndText:
    page = _HtmlText()
    page.feed(_decoded(handle))
    page.close()
    return page.heading("title") or page.heading("h1"), re.sub(r" *\n *", "\n", re.sub(r" {2,}", " ", page.text()))


class _HtmlText(HTMLParser):
    """What a reader sees of a page: no scripts, styles or navigation; lines and paragraphs apart."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._headings: dict[str, list[str]] = {}
        self._open_heading = ""
        self._unseen, self._depth = "", 0  # the outermost element that isn't seen, and how many of its kind are open
        self._verbatim = 0

    def text(self) -> str:
        return "".join(self._parts)

    def heading(self, tag: str) -> str:
        return "".join(self._headings.get(tag, []))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._unseen and tag in _UNSEEN:
            self._unseen = tag
        if self._unseen:
            self._depth += tag == self._unseen
            return
        if tag in ("title", "h1") and tag not in self._headings:
            self._headings[tag] = []
            self._open_heading = tag
        self._verbatim += tag == "pre"
        self._parts.append(_SEPARATORS.get(tag, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._unseen:
            self._parts.append(_SEPARATORS.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            self._depth -= tag == self._unseen
            self._unseen = self._unseen if self._depth else ""
            return
        if tag == self._open_heading:
            self._open_heading = ""
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        if _SEPARATORS.get(tag) != "\n":  # what follows on a line begins one
            self._parts.append(_SEPARATORS.get(tag, ""))

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        if self._open_heading:
            self._headings[self._open_heading].append(data)
        if self._open_heading != "title":
            self._parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))


def _pdf(parser: Any, handle: BinaryIO) -> _TitleAndText:
    try:
        reader = parser(handle)
        locked = reader.is_encrypted and not reader.decrypt("")
        title = "" if locked else reader.metadata and reader.metadata.title
        text = "" if locked else "\n\n".join(page.extract_text() for page in reader.pages)
    except Exception as error:  # on broken files pypdf raises errors of many kinds
        raise InputError(f"pypdf can't read it ({type(error).__name__}: {error})") from None
    if locked:
        raise InputError("it is locked with a password: unlock it")
    if not text.strip():
        raise InputError("it holds no text, perhaps only pictures of one: run OCR on it")
    return title if isinstance(title, str) else "", text


def _one_line(title: str) -> str:
    return " ".join(title.split())


def _tidy(text: str) -> str:
    """Without white space at the ends of lines, and with one blank line between paragraphs."""
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[^\S\n]+\n", "\n", text)).strip()
