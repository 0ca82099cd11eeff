"""Records in the forms of published corpora become documents; what can't be used is said."""

from __future__ import annotations

import pytest

from ragray.corpus.fields import MAX_TEXT_CHARACTERS, document
from ragray.records import Document, InputError

KILT = {"_id": "7", "wikipedia_id": "7", "wikipedia_title": "Mill", "categories": "Mills", "anchors": []}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"id": "a", "title": "A", "text": "x", "url": "u"}, Document("a", "A", "x")),
        ({"id": 12, "title": "", "text": "x"}, Document("12", "", "x")),
        ({"id": "a", "title": "Mill", "section": "History", "text": "x"}, Document("a", "Mill: History", "x")),
        ({"id": "a", "title": "Mill", "section": "", "text": "x"}, Document("a", "Mill", "x")),
        ({"id": "a", "title": "Mill", "section": None, "text": "x"}, Document("a", "Mill", "x")),
        ({"id": "0", "contents": '"Mill"\nIt grinds.\nIt turns.'}, Document("0", "Mill", "It grinds.\nIt turns.")),
        ({"id": "0", "contents": '"The ""Red"" Mill"\nx'}, Document("0", 'The "Red" Mill', "x")),
        ({"id": "0", "contents": "Mill\nx"}, Document("0", "Mill", "x")),
        ({"id": "0", "contents": '"It" grinds.'}, Document("0", "", '"It" grinds.')),
        ({"id": "0", "title": "T", "text": "x", "contents": '"T"\nx'}, Document("0", "T", "x")),
        ({"_id": "d1", "title": "T", "text": "x", "metadata": {}}, Document("d1", "T", "x")),
        ({"_id": "d1", "text": "x"}, Document("d1", "", "x")),
        ({"_id": "d1", "title": None, "text": "x"}, Document("d1", "", "x")),
        ({**KILT, "text": ["Mill\n", "It grinds.\n"]}, Document("7", "Mill", "It grinds.")),
        ({**KILT, "wikipedia_id": 7, "text": {"paragraph": ["Mill\n", "x\n"]}}, Document("7", "Mill", "x")),
    ],
)
def test_the_fields_decide_the_form(record, expected):
    assert document(record) == expected


def test_kilts_headings_and_lists_lose_their_marks():
    paragraphs = [
        "Mill\n",
        "It grinds.\n",
        "Section::::History.\n",
        "Section::::History.:Early years.\n",
        "It was of wood.\n",
        "BULLET::::- oak\n",
        "BULLET::::- pine\n",
        "Section::::Why?:At Washington, D.C..\n",
        "BULLET::::1. first\n",
        "\n",
        "The end.",
    ]
    assert document({**KILT, "text": paragraphs}).text.split("\n\n") == [
        "It grinds.",
        "History",
        "History: Early years",
        "It was of wood.",
        "- oak\n- pine",
        "Why?: At Washington, D.C.",
        "1. first",
        "The end.",
    ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": "b"}, r"no 'title' among \['id'\]; a document has the fields id, title, text"),
        ({"id": "b", "text": "x"}, r"no 'title' among \['id', 'text'\]"),
        ({"contents": "x"}, r"no 'id' among \['contents'\]; .*FlashRAG"),
        ({"_id": "b", "body": "x"}, r"no 'text' among \['_id', 'body'\]; .*BEIR"),
        ({"wikipedia_title": "b"}, r"no 'wikipedia_id' among \['wikipedia_title'\]; .*KILT"),
        ({str(n): n for n in range(30)}, r"no 'id' among \['0', .*'19'\] and more; "),
        ({"id": "b", "title": "B", "text": ["x"]}, "'text' must be a text, but it is list"),
        ({"id": "b", "title": None, "text": "x"}, "'title' must be a text, but it is NoneType"),
        ({"id": "b", "title": "B", "section": 3, "text": "x"}, "'section' must be a text, but it is int"),
        ({"id": 1.5, "title": "B", "text": "x"}, "'id' must be a text or a whole number, but it is float"),
        ({"id": True, "title": "B", "text": "x"}, "'id' must be a text or a whole number, but it is bool"),
        ({"id": " ", "title": "B", "text": "x"}, "the id is empty"),
        ({"id": "b", "title": "B", "text": " \n"}, "the text is empty"),
        ({"id": "b", "title": "B", "text": "x\0"}, "the text holds a NUL"),
        ({"id": "b", "title": "\ud800", "text": "x"}, r"the title holds '\\ud800', half a surrogate pair"),
        ({"id": "b", "title": "B", "text": "x" * (MAX_TEXT_CHARACTERS + 1)}, "has 10,000,001 characters, the limit"),
        ({**KILT, "text": "x"}, "'text' must be a list of paragraphs"),
        ({**KILT, "text": ["Mill", 3]}, "'text' must be a list of paragraphs"),
        ({**KILT, "text": ["Mill"]}, "the text is empty"),
    ],
)
def test_what_is_no_document_is_refused(record, message):
    with pytest.raises(InputError, match=message):
        document(record)


def test_a_text_of_the_greatest_length_is_taken():
    assert len(document({"id": "b", "title": "B", "text": "x" * MAX_TEXT_CHARACTERS}).text) == MAX_TEXT_CHARACTERS
