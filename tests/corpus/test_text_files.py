"""Files that are one document each: what a reader sees of them, with paragraphs apart."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from ragray.corpus.fields import MAX_TEXT_CHARACTERS
from ragray.corpus.files import Bad
from ragray.corpus.text_files import read, spans
from ragray.records import Document, InputError

MARKDOWN = """\
---
title: not this
---
Before the heading.

## The *first* heading

A [link](https://example.org "tip") and `code`
go on, **bold** <b>tag</b> &amp; ![a mill](mill.png).

- item one
- item two
  - nested

1. loose

2. second

| a | b |
|---|---|
| 1 | 2 |

```py
def turn():
    return 1
```

<details><summary>More</summary>
of it <!-- not this --></details>

> quoted
"""

HTML = """\
<!doctype html><html><head><title> The  mill
</title><style>p {color: red}</style><script>if (a < b) write("<p>not this")</script>
<body><nav><ul><li>Home</ul><nav>Deep</nav>Up</nav><svg><title>Icon</title></svg><h1>A mill</h1>
<p>One
line<p>Two <b>bold</b> &amp; caf&eacute;<br>next&nbsp;line
<ul><li>a<li>b</li>
 <li>c</li></ul><table><tr><td>1<td>2<tr><td>3</td><td>4</td></tr></table><!-- not this -->
<pre>x
  y</pre><div>in<div>deep</div>out</div><svg/>after</body></html>
"""
LONG = "the text has 10,000,001 characters, the limit is 10,000,000: split it"


def only(path, root=None):
    [span] = spans(path, 1)
    [record] = read(span if root is None else replace(span, root=root))
    return record


def pdf(text="", title="", password=None):
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    for line in text.split("\f"):
        page = writer.add_blank_page(200, 200)
        font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
        font = DictionaryObject({NameObject(key): NameObject(value) for key, value in font.items()})
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 10 100 Td ({line}) Tj ET".encode())
        page[NameObject("/Contents")] = content
    if title:
        writer.add_metadata({"/Title": title})
    if password is not None:
        writer.encrypt(password, "owner", algorithm="RC4-128")
    content = io.BytesIO()
    writer.write(content)
    return content.getvalue()


def test_a_plain_text_keeps_its_paragraphs(tmp_path):
    (tmp_path / "a b.txt").write_bytes(b"\xef\xbb\xbfOne \r\nline.\r\n\r\n\t\r\n\r\n  Two.\n")
    assert only(tmp_path / "a b.txt") == Document("a b.txt", "a b", "One\nline.\n\n  Two.")


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_id_is_the_path_from_the_root(tmp_path, slash):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "er.txt").write_text("x")
    assert only(tmp_path / "deep" / "er.txt", f"{tmp_path}{slash}") == Document("deep/er.txt", "er", "x")


def test_markdown_loses_its_marks(tmp_path):
    (tmp_path / "mill.md").write_text(MARKDOWN)
    document = only(tmp_path / "mill.md")
    assert document.title == "The first heading"
    assert document.text.split("\n\n") == [
        "Before the heading.",
        "The first heading",
        "A link and code go on, bold tag & a mill.",
        "item one\nitem two\nnested",
        "loose",
        "second",
        "a b\n1 2",
        "def turn():\n    return 1",
        "More\nof it",
        "quoted",
    ]


def test_a_rule_at_the_beginning_of_markdown_begins_no_front_matter(tmp_path):
    (tmp_path / "mill.md").write_text("---\n\nOne.\n\n---\n\nTwo.\n")
    assert only(tmp_path / "mill.md") == Document("mill.md", "mill", "One.\n\nTwo.")


def test_html_loses_what_a_reader_does_not_see(tmp_path):
    (tmp_path / "mill.html").write_text(HTML)
    document = only(tmp_path / "mill.html")
    assert document.title == "The mill"
    assert document.text.split("\n\n") == [
        "A mill",
        "One line",
        "Two bold & café\nnext line",
        "a\nb\nc",
        "1 2\n3 4",
        "x\ny",
        "in",
        "deep",
        "out",
        "after",
    ]


@pytest.mark.parametrize(("html", "title"), [("<h1>A <i>mill</i></h1>x<h1>B</h1>", "A mill"), ("<p>x", "page")])
def test_html_without_a_title_is_named_by_its_heading_or_file(tmp_path, html, title):
    (tmp_path / "page.HTM").write_text(html)
    assert only(tmp_path / "page.HTM").title == title


def test_deep_html_is_read(tmp_path):
    (tmp_path / "deep.html").write_text("<div>" * 20_000 + "core" + "</div>" * 20_000)
    assert only(tmp_path / "deep.html") == Document("deep.html", "deep", "core")


def test_a_pdf_is_read_page_by_page(tmp_path):
    pytest.importorskip("pypdf")
    (tmp_path / "mill.pdf").write_bytes(pdf("It grinds.\fIt turns.", title="The mill"))
    assert only(tmp_path / "mill.pdf") == Document("mill.pdf", "The mill", "It grinds.\n\nIt turns.")
    (tmp_path / "open.pdf").write_bytes(pdf("It grinds.", password=""))
    assert only(tmp_path / "open.pdf") == Document("open.pdf", "open", "It grinds.")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: pdf("x", password="secret"), "it is locked with a password: unlock it"),
        (lambda: pdf(""), "it holds no text, perhaps only pictures of one: run OCR on it"),
        (lambda: b"", "pypdf can't read it (EmptyFileError: "),
        (lambda: b"%PDF-1.4\n" + b"\xff\0<<" * 50, "pypdf can't read it ("),
        (lambda: pdf("x")[:300], "pypdf can't read it ("),
    ],
    ids=["locked", "pictures", "empty", "junk", "cut"],
)
def test_a_pdf_without_text_to_read_is_bad(tmp_path, content, reason):
    pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(content())
    bad = only(tmp_path / "a.pdf")
    assert bad.position == f"{tmp_path}/a.pdf"
    assert bad.reason.startswith(reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"caf\xe9 au lait", "not UTF-8 (invalid continuation byte at byte 4): convert it"),
        ("a.md", b"# \xff", "not UTF-8 (invalid start byte at byte 3): convert it"),
        ("a.html", b"<p>\xff", "not UTF-8 (invalid start byte at byte 4): convert it"),
        ("a.html", b"<p></p>", "the text is empty"),
        ("a.txt", b" \n", "the text is empty"),
        ("a.txt", b"a\0b", "the text holds a NUL, which is no character of a text"),
        ("a.txt", b"x" * (MAX_TEXT_CHARACTERS + 1), LONG),
        ("a.txt", b"x" * (4 * MAX_TEXT_CHARACTERS + 1), "the file has more than 40,000,000 bytes: split it"),
    ],
    ids=["txt", "md", "html", "tags", "blank", "nul", "long", "huge"],
)
def test_a_file_that_can_not_be_used_is_bad(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    assert only(tmp_path / name) == Bad(f"{tmp_path}/{name}", reason)


@pytest.mark.parametrize(("name", "library"), [("a.pdf", "pypdf"), ("a.md", "markdown_it")])
def test_a_missing_library_is_named(tmp_path, monkeypatch, name, library):
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / name).write_text("x")
    with pytest.raises(
        InputError, match=rf"reading {name[1:]} needs a library .*{library}.*: pip install 'ragray\[docum"
    ):
        only(tmp_path / name)


def test_a_missing_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    found = spans(tmp_path / "a.txt", 1)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError, match=r"no file .*a.txt"):
        list(read(found[0]))
