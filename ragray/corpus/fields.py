"""The fields of a record in the forms in which corpora are published, and the document that they make."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ragray.records import Document, InputError

MAX_TEXT_CHARACTERS = 10_000_000
KNOWN_FIELDS = ("id", "_id", "title", "section", "text", "contents", "wikipedia_id", "wikipedia_title")

_WANTED = (
    "id, title, text (Atlas and Contriever: also section), or id, contents (FlashRAG), or _id, text, often title "
    "(BEIR), or wikipedia_id, wikipedia_title, text (KILT)"
)
_SHOWN_FIELDS = 12
_KILT_HEADING, _KILT_ITEM = "Section::::", "BULLET::::"


def document(record: Mapping[str, Any]) -> Document:
    """The document of a record, whose fields say in which form it is.

    Raises:
        InputError: if fields are missing or of another type, or the text is empty, too long or no text.
    """
    check_fields(record)
    if _is_kilt(record):
        title = _string(record, "wikipedia_title")
        return checked_document(_identifier(record, "wikipedia_id"), title, _kilt_text(record["text"], title))
    if _is_flashrag(record):
        return checked_document(_identifier(record, "id"), *_title_and_text(_string(record, "contents")))
    if _is_beir(record):
        title = "" if record.get("title") is None else _string(record, "title")
        return checked_document(_identifier(record, "_id"), title, _string(record, "text"))
    title, section = _string(record, "title"), record.get("section")
    if section:
        title = f"{title}: {_string(record, 'section')}"
    return checked_document(_identifier(record, "id"), title, _string(record, "text"))


def check_fields(names: Collection[str]) -> None:
    """Check that the fields are those of a form.

    Raises:
        InputError: naming the first that is missing, those found and those known.
    """
    if _is_kilt(names):
        wanted = ["wikipedia_id", "wikipedia_title", "text"]
    elif _is_flashrag(names):
        wanted = ["id"]
    elif _is_beir(names):
        wanted = ["text"]
    else:
        wanted = ["id", "title", "text"]
    missing = next((name for name in wanted if name not in names), None)
    if missing:
        found = sorted(names)
        shown = f"{found[:_SHOWN_FIELDS]}{' and more' if len(found) > _SHOWN_FIELDS else ''}"
        raise InputError(f"no {missing!r} among {shown}; a document has the fields {_WANTED}")


def checked_document(name: str, title: str, text: str) -> Document:
    """A document that can be stored and retrieved.

    Raises:
        InputError: if its id or its text is empty, its text has more than ``MAX_TEXT_CHARACTERS`` characters, or any of
            the three holds what is no character: a NUL or half a surrogate pair.
    """
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InputError(f"the text has {len(text):,} characters, the limit is {MAX_TEXT_CHARACTERS:,}: split it")
    for field, value in (("id", name), ("title", title), ("text", text)):
        if field != "title" and not value.strip():
            raise InputError(f"the {field} is empty")
        if "\0" in value:
            raise InputError(f"the {field} holds a NUL, which is no character of a text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = value[error.start]
            raise InputError(f"the {field} holds {half!r}, half a surrogate pair, which is no character") from None
    return Document(name, title, text)


def _is_kilt(names: Collection[str]) -> bool:
    return "wikipedia_title" in names or "wikipedia_id" in names


def _is_flashrag(names: Collection[str]) -> bool:
    return "contents" in names and "text" not in names


def _is_beir(names: Collection[str]) -> bool:
    return "_id" in names and "id" not in names


def _string(record: Mapping[str, Any], field: str) -> str:
    value = record[field]
    if not isinstance(value, str):
        raise InputError(f"{field!r} must be a text, but it is {type(value).__name__}")
    return value


def _identifier(record: Mapping[str, Any], field: str) -> str:
    value = record[field]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"{field!r} must be a text or a whole number, but it is {type(value).__name__}")
    return str(value)


def _title_and_text(contents: str) -> tuple[str, str]:
    """FlashRAG's contents: a line with the title, in quotes as in a CSV file, then the text; or the text alone."""
    head, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    title = head.strip()
    if len(title) > 1 and title.startswith('"') and title.endswith('"'):
        title = title[1:-1].replace('""', '"')
    return title, text


def _kilt_text(paragraphs: Any, title: str) -> str:
    """KILT's list of paragraphs, the first of which repeats the title, as one text.

    The Hub's copy of it, kilt_wikipedia, has the list in a field ``paragraph`` of ``text``.
    """
    if isinstance(paragraphs, Mapping):
        paragraphs = paragraphs.get("paragraph")
    if not isinstance(paragraphs, list) or not all(isinstance(paragraph, str) for paragraph in paragraphs):
        raise InputError("'text' must be a list of paragraphs, as in KILT's knowledge source, but it isn't")
    if paragraphs and paragraphs[0].strip() == title.strip():
        paragraphs = paragraphs[1:]
    return "".join(_rendered(paragraphs))


def _rendered(paragraphs: Iterable[str]) -> Iterable[str]:
    """Paragraphs after blank lines, list items on lines of their own, headings as ``History: Early years``."""
    after_item = None
    for paragraph in paragraphs:
        is_item = paragraph.startswith(_KILT_ITEM)
        content = paragraph.removeprefix(_KILT_ITEM).removeprefix(_KILT_HEADING).strip()
        if paragraph.startswith(_KILT_HEADING):  # the parts end in full stops unless in "!" or "?"
            content = ": ".join(part.removesuffix(".") for part in re.split(r"(?<=[.!?]):+(?=\S)", content))
        if not content:
            continue
        if after_item is not None:
            yield "\n" if after_item and is_item else "\n\n"
        yield content
        after_item = is_item
