"""MediaWiki dumps: every article once whatever the spans, and faults that are named and passed over."""

from __future__ import annotations

import bz2
import gzip
from html import escape
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragray.corpus import mediawiki
from ragray.corpus.files import Bad, Span
from ragray.records import Document, InputError

HEAD = '<mediawiki xml:lang="en">\n  <siteinfo>\n    <sitename>Kilns</sitename>\n  </siteinfo>\n'
TAIL = "</mediawiki>\n"
KINDS = [".xml", ".xml.bz2", ".xml.gz", ".xml.zst"]


def page(number, text="Clay is burnt.", title=None, namespace=0, extra=""):
    return (
        f"  <page>\n    <title>{escape(title or f'Kiln {number}')}</title>\n    <ns>{namespace}</ns>\n"
        f"    <id>{number}</id>\n{extra}"
        f"    <revision>\n      <id>9{number}</id>\n      <model>wikitext</model>\n"
        f'      <text xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


def write(file, content):
    data = content.encode() if isinstance(content, str) else content
    if file.suffix == ".zst":
        with pa.output_stream(str(file), compression="zstd") as stream:
            stream.write(data)
    else:
        file.write_bytes({".bz2": bz2.compress, ".gz": gzip.compress}.get(file.suffix, bytes)(data))
    return file


def read(file, span_bytes=1 << 30):
    return [item for span in mediawiki.spans(file, span_bytes) for item in mediawiki.read(span)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dumps")


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    lengths=st.lists(st.integers(1, 40), max_size=8),
    span_bytes=st.integers(16, 700),
    block_bytes=st.integers(1, 300),
)
def test_every_page_comes_once_and_in_order_whatever_the_spans(folder, kind, lengths, span_bytes, block_bytes):
    expected = [Document(str(n), f"Kiln {n}", "ü" * length) for n, length in enumerate(lengths, 1)]
    content = HEAD + "".join(page(int(d.id), d.text) for d in expected) + TAIL
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mediawiki, "_BLOCK_BYTES", block_bytes)
        assert read(write(folder / f"dump{kind}", content), span_bytes) == expected


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    span_bytes=st.integers(1, 900),
    block_bytes=st.sampled_from([11, 64, 1 << 20]),
)
def test_a_page_that_crosses_streams_comes_once(folder, cuts, span_bytes, block_bytes):
    expected = [Document(str(n), f"Kiln {n}", "Clay is burnt.") for n in range(1, 7)]
    data = (HEAD + "".join(page(int(document.id)) for document in expected) + TAIL).encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    file = folder / "multistream.xml.bz2"
    file.write_bytes(b"".join(bz2.compress(data[a:b]) for a, b in pairwise(edges)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mediawiki, "_BLOCK_BYTES", block_bytes)
        assert read(file, span_bytes) == expected


def test_streams_are_read_in_the_spans_where_they_start(tmp_path):
    parts = [HEAD, page(1) + page(2), page(3), TAIL]
    streams = [bz2.compress(part.encode()) for part in parts]
    file = tmp_path / "d.xml.bz2"
    file.write_bytes(b"".join(streams))
    second = len(streams[0]) + 1  # inside of the first stream with pages
    stop = len(streams[0]) + len(streams[1]) + 1
    assert [d.id for d in mediawiki.read(Span(str(file), "mediawiki", 0, second))] == ["1", "2"]
    assert [d.id for d in mediawiki.read(Span(str(file), "mediawiki", second, stop))] == ["3"]
    assert list(mediawiki.read(Span(str(file), "mediawiki", stop, None))) == []


@pytest.mark.parametrize(
    "other",
    [
        page(2, namespace=1, title="Talk:Kiln"),
        page(2, extra='    <redirect title="Kiln" />\n'),
        page(2, "#redirect [[Kiln]]"),
        page(2, "'''Kiln''' may be:\n* [[Oven]]\n{{disambig}}"),
        page(2, "'''Kiln''' may be:\n* [[Oven]]\n{{Place name disambiguation|x}}"),
        page(2, "{{hndis|Kiln, A}}"),
        page(2, "{{geodis}}"),
        page(2, "Or an oven. __DISAMBIG__"),
        page(2, "Kilns:\n* [[Oven]]", title="Kiln (disambiguation)"),
        page(2, ""),
        page(2, "{{only a box}}"),
        page(2).replace("<model>wikitext", "<model>css"),
        page(2).replace(">Clay is burnt.</text>", " />"),
    ],
    ids=[
        "talk",
        "redirect",
        "redirect-text",
        "disambig",
        "kin",
        "hndis",
        "geodis",
        "word",
        "title",
        "empty",
        "box",
        "css",
        "deleted",
    ],
)
def test_what_is_no_article_gives_no_document(tmp_path, other):
    found = read(write(tmp_path / "d.xml", HEAD + page(1) + other + page(3) + TAIL))
    assert [item.id for item in found] == ["1", "3"]


def test_an_article_that_mentions_disambiguation_is_kept(tmp_path):
    text = "{{about|the oven|others|Kiln (disambiguation)}}Clay{{disambiguation needed|date=May}} is burnt."
    assert read(write(tmp_path / "d.xml", HEAD + page(1, text) + TAIL)) == [Document("1", "Kiln 1", "Clay is burnt.")]


def test_entities_are_decoded_once(tmp_path):
    found = read(write(tmp_path / "d.xml", HEAD + page(1, "A &amp; B &lt; C", title="Q & A") + TAIL))
    assert found == [Document("1", "Q & A", "A & B < C")]


def test_of_a_history_the_last_revision_is_read(tmp_path):
    both = page(1, "Old.").replace("  </page>\n", "") + page(1, "New.").partition("<id>1</id>\n")[2]
    assert read(write(tmp_path / "d.xml", HEAD + both + TAIL)) == [Document("1", "Kiln 1", "New.")]


@pytest.mark.parametrize("span_bytes", [50, 1 << 30])
def test_a_page_of_broken_xml_is_named_and_the_others_are_read(tmp_path, span_bytes):
    broken = page(2).replace("Clay", "<b>Clay")
    unclosed = page(3).replace("  </page>\n", "")
    nameless = page(4).replace("<title>Kiln 4</title>", "")
    found = read(write(tmp_path / "d.xml", HEAD + page(1) + broken + unclosed + nameless + page(5) + TAIL), span_bytes)
    assert [item.id for item in found if isinstance(item, Document)] == ["1", "5"]
    bad = [item for item in found if isinstance(item, Bad)]
    assert [item.position for item in bad] == [
        f"{tmp_path}/d.xml, page 'Kiln 2' (id 2)",
        f"{tmp_path}/d.xml, page 'Kiln 3' (id 3)",
        f"{tmp_path}/d.xml, a page without a title (id 4)",
    ]
    assert [item.reason.split(" (")[0] for item in bad] == [
        "broken XML", "the page has no end", "the page has no id or no title",
    ]  # fmt: skip


def test_a_cut_dump_names_the_page_in_which_it_ends(tmp_path):
    content = (HEAD + page(1) + page(2))[:-40]
    found = read(write(tmp_path / "d.xml", content))
    assert found == [
        Document("1", "Kiln 1", "Clay is burnt."),
        Bad(f"{tmp_path}/d.xml, page 'Kiln 2' (id 2)", "the dump ends inside of the page: fetch it again"),
    ]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_cut_compressed_dump_is_bad_and_what_is_whole_before_is_read(tmp_path, kind):
    content = HEAD + "".join(page(n) for n in range(1, 9)) + TAIL
    file = write(tmp_path / f"d{kind}", content)
    file.write_bytes(file.read_bytes()[:-30])
    found = read(file)
    assert isinstance(found[-1], Bad)
    assert str(file) in found[-1].position


def test_after_a_damaged_stream_the_next_is_read(tmp_path):
    streams = [bz2.compress(part.encode()) for part in (HEAD, page(1), page(2), page(3), TAIL)]
    streams[2] = streams[2][:40] + bytes([streams[2][40] ^ 0xFF]) + streams[2][41:]
    file = tmp_path / "d.xml.bz2"
    file.write_bytes(b"".join(streams))
    for span_bytes in (100, 1 << 30):
        found = read(file, span_bytes)
        assert [item.id for item in found if isinstance(item, Document)] == ["1", "3"]
        bad = [item for item in found if isinstance(item, Bad)]
        assert [item.position for item in bad] == [f"{file}, byte {len(streams[0]) + len(streams[1])}"]
        assert "a damaged bz2 stream" in bad[0].reason


def test_a_page_over_the_limit_is_bad_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(mediawiki, "MAX_PAGE_BYTES", 2000)
    monkeypatch.setattr(mediawiki, "_BLOCK_BYTES", 500)
    found = read(write(tmp_path / "d.xml", HEAD + page(1, "x" * 9000) + page(2) + TAIL))
    assert [type(item) for item in found] == [Bad, Document]
    assert "longer than" in found[0].reason


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_no_dump_is_refused(tmp_path, kind):
    with pytest.raises(InputError, match="is not a MediaWiki dump: no <mediawiki> among its first 13 bytes"):
        mediawiki.spans(write(tmp_path / f"d{kind}", "<html></html>"), 100)


def test_a_file_that_is_gone_is_refused(tmp_path):
    for name in ("d.xml", "d.xml.bz2"):
        with pytest.raises(InputError, match="no file "):
            list(mediawiki.read(Span(str(tmp_path / name), "mediawiki", 0, 10)))
