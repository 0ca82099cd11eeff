"""Tables: every row once whatever the spans, bad rows are named, damaged files are refused."""

from __future__ import annotations

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.corpus import tables
from ragray.corpus.files import Bad
from ragray.records import Document, InputError

HEADER = "id\ttext\ttitle\n"
ROWS = [{"id": n, "title": f"T{n}", "text": f"text {n}"} for n in range(10)]
DOCUMENTS = [Document(str(n), f"T{n}", f"text {n}") for n in range(10)]


def dpr(path, span_bytes=1 << 20):
    return [record for span in tables.dpr_spans(path, span_bytes) for record in tables.read_dpr(span)]


def parquet(path, span_bytes=1 << 20):
    return [record for span in tables.parquet_spans(path, span_bytes) for record in tables.read_parquet(span)]


def arrow(path):
    return [record for span in tables.arrow_spans(path, 1) for record in tables.read_arrow(span)]


def write_stream(path, rows, rows_a_batch=3):
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_a_batch)


def save_dataset(folder, shards, **state):
    """The layout of datasets' save_to_disk."""
    folder.mkdir()
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        write_stream(folder / name, rows)
    content = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "5c78", "_split": None, **state}
    (folder / "state.json").write_text(json.dumps(content, indent=2))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"id": {"dtype": "int64", "_type": "Value"}}}))
    return folder / "state.json"


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "psgs_w100.tsv"


WORDS = st.text(alphabet='ab"\t é', min_size=1, max_size=8).filter(str.strip)


@given(
    rows=st.lists(st.tuples(WORDS, WORDS), max_size=6),
    span_bytes=st.integers(1, 80),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_dprs_passages_are_read_as_they_were_written(tsv, rows, span_bytes, end):
    content = io.StringIO(newline="")
    writer = csv.writer(content, delimiter="\t", lineterminator=end)
    writer.writerows([("id", "text", "title"), *((number, *row) for number, row in enumerate(rows))])
    tsv.write_bytes(content.getvalue().encode())
    expected = [Document(str(number), title, text) for number, (text, title) in enumerate(rows)]
    assert dpr(tsv, span_bytes) == expected
    gzipped = tsv.with_name("psgs_w100.tsv.gz")
    gzipped.write_bytes(gzip.compress(tsv.read_bytes()))
    assert dpr(gzipped, span_bytes) == expected


@pytest.mark.parametrize("span_bytes", [1, 20, 1000])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"7\tonly two", "three fields are wanted, id, text and title, got 2: b'7"),
        (b"7\ta\tb\tc", "three fields are wanted, id, text and title, got 4: b'7"),
        (b'7\t"never closed\tT', 'not quoted like "a ""quoted"" word" (unexpected end of data): b\'7'),
        (b'7\t"Mill" grinds\tT', 'not quoted like "a ""quoted"" word" (\'\\t\' expected after \'"\'): b\'7'),
        (b"7\t\xff\tT", "not UTF-8 (invalid start byte at byte 3 of the line): b'7"),
        (b"7\t \tT", "the text is empty"),
        (b"7\ta\0\tT", "the text holds a NUL"),
    ],
)
def test_a_bad_line_of_dprs_passages_is_named(tsv, line, reason, span_bytes):
    tsv.write_bytes(HEADER.encode() + b"1\ta\tA\n\n" + line + b"\n2\tb\tB\n")
    first, bad, last = dpr(tsv, span_bytes)
    assert (first, last) == (Document("1", "A", "a"), Document("2", "B", "b"))
    assert bad.position == f"{tsv}, line 4"
    assert bad.reason.startswith(reason)


@pytest.mark.parametrize("content", ["", "1\ttext\ttitle\n", "question\tanswer\n"])
def test_a_tsv_without_dprs_header_is_refused(tsv, content):
    tsv.write_text(content)
    with pytest.raises(
        InputError, match=r"psgs_w100.tsv begins with b'.*'; DPR's passages begin with the line id<TAB>"
    ):
        dpr(tsv)


@pytest.mark.parametrize("rows_a_group", [1, 3, 100])
@pytest.mark.parametrize("span_bytes", [1, 200, 1 << 20])
def test_parquet_gives_every_row_once_whatever_its_groups(tmp_path, rows_a_group, span_bytes):
    rows = [{**row, "vector": [0.5]} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=rows_a_group)
    assert parquet(tmp_path / "c.parquet", span_bytes) == DOCUMENTS
    spans = tables.parquet_spans(tmp_path / "c.parquet", span_bytes)
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
    assert all(span.size_bytes >= span_bytes for span in spans[:-1])
    metadata = pq.read_metadata(tmp_path / "c.parquet")
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    assert [span.size_bytes for span in spans] == [sum(sizes[span.start : span.stop]) for span in spans]
    assert len(spans) == (-(-len(ROWS) // rows_a_group) if span_bytes == 1 else len(spans))


def test_a_large_row_group_is_read_in_batches(tmp_path):
    many = [{"id": n, "contents": f'"T"\n{n}'} for n in range(2500)]
    pq.write_table(pa.Table.from_pylist(many), tmp_path / "c.parquet")
    assert parquet(tmp_path / "c.parquet") == [Document(str(n), "T", str(n)) for n in range(2500)]


def test_a_bad_row_of_parquet_is_named(tmp_path):
    text = pa.array([b"a", b"b", None, b"\xff", b" "]).view(pa.string())
    table = pa.table({"id": ["0", "1", "2", "3", "4"], "title": ["T"] * 5, "text": text})
    file = tmp_path / "c.parquet"
    pq.write_table(table, file, row_group_size=2)
    for span_bytes in (1, 1 << 20):
        assert parquet(file, span_bytes) == [
            Document("0", "T", "a"),
            Document("1", "T", "b"),
            Bad(f"{file}, row 3", "'text' must be a text, but it is NoneType"),
            Bad(f"{file}, row 4", "not UTF-8 (invalid start byte)"),
            Bad(f"{file}, row 5", "the text is empty"),
        ]


def test_parquet_without_the_columns_of_a_document_is_refused(tmp_path):
    pq.write_table(pa.table({"id": ["0"], "body": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet: no 'title' among \['body', 'id'\]; a document has the fields"):
        parquet(tmp_path / "c.parquet")


def test_a_damaged_parquet_file_is_refused(tmp_path):
    file = tmp_path / "c.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS * 100), file, compression="gzip")
    content = file.read_bytes()
    for damaged in (b"", b"text", content[:-20], content[:4] + b"\xff" * 400 + content[404:]):
        file.write_bytes(damaged)
        with pytest.raises(
            InputError, match=r"c.parquet is no Parquet file or is damaged \(.+\): fetch or make it again"
        ):
            parquet(file)


def test_a_saved_dataset_is_read_file_by_file(tmp_path):
    state = save_dataset(tmp_path / "saved", [ROWS[:4], ROWS[4:8], ROWS[8:]])
    assert arrow(state) == DOCUMENTS
    assert [span.path for span in tables.arrow_spans(state, 1)] == sorted(
        map(str, (tmp_path / "saved").glob("*.arrow"))
    )


def test_a_bad_row_of_a_saved_dataset_is_named(tmp_path):
    state = save_dataset(tmp_path / "saved", [[*ROWS[:4], {"id": 4, "title": "T", "text": ""}]])
    bad = Bad(f"{tmp_path}/saved/data-00000-of-00001.arrow, row 5", "the text is empty")
    assert arrow(state) == [*DOCUMENTS[:4], bad]


def test_kilts_copy_on_the_hub_is_read(tmp_path):
    row = {"wikipedia_id": "7", "wikipedia_title": "Mill", "text": {"paragraph": ["Mill\n", "It grinds.\n"]}}
    write_stream(tmp_path / "c.arrow", [row])
    assert arrow(tmp_path / "c.arrow") == [Document("7", "Mill", "It grinds.")]


def test_arrows_file_format_is_read_too(tmp_path):
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    assert arrow(tmp_path / "c.arrow") == DOCUMENTS


def test_an_arrow_file_cut_anywhere_is_refused(tmp_path):
    file = tmp_path / "c.arrow"
    write_stream(file, ROWS)
    content = file.read_bytes()
    for kept in range(0, len(content), 4):
        file.write_bytes(content[:kept])
        with pytest.raises(InputError, match=r"c.arrow is no Arrow file or is damaged \(.+\): fetch or make it again"):
            arrow(file)


def test_a_saved_dataset_without_one_of_its_files_is_refused(tmp_path):
    state = save_dataset(tmp_path / "saved", [ROWS[:4], ROWS[4:]])
    (tmp_path / "saved" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(InputError, match=r"no file .*/saved/data-00001-of-00002.arrow"):
        arrow(state)


def test_a_saved_dataset_with_an_index_of_its_rows_is_refused(tmp_path):
    state = save_dataset(tmp_path / "saved", [ROWS], _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(
        InputError, match=r"saved selects its rows by an index: call flatten_indices\(\) before save_to"
    ):
        arrow(state)
