from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ragray.batching import distinct_batches, pad_rows, token_budget_batches

lengths = st.lists(st.integers(0, 50), max_size=40)


@given(lengths, st.integers(1, 200))
def test_batches_hold_every_row_once_under_the_budget(lengths, budget):
    batches = token_budget_batches(lengths, budget)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[position] for position in batch) * len(batch) <= budget


@given(lengths, st.integers(1, 200))
def test_the_longest_come_first_so_that_memory_runs_out_at_once_or_never(lengths, budget):
    flat = [lengths[position] for batch in token_budget_batches(lengths, budget) for position in batch]
    assert flat == sorted(lengths, reverse=True)


@given(lengths, st.integers(1, 200))
def test_no_batch_leaves_room_for_the_next_row(lengths, budget):
    batches = token_budget_batches(lengths, budget)
    assert all(lengths[batch[0]] * (len(batch) + 1) > budget for batch in batches[:-1])


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=5))
def test_padding_is_to_the_right_and_masked(rows):
    ids, mask = pad_rows(rows, pad_id=0)
    assert ids.shape == mask.shape == (len(rows), max(map(len, rows)))
    assert [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)] == rows
    assert (ids[mask == 0] == 0).all()
    assert mask.sum(1).tolist() == [len(row) for row in rows]
    assert (mask.diff(dim=1) <= 0).all()


def test_no_rows_are_an_empty_batch():
    ids, mask = pad_rows([], pad_id=0)
    assert ids.shape == mask.shape == (0, 0)


@given(st.lists(st.lists(st.integers(0, 2), max_size=3).map(tuple), max_size=20), st.integers(1, 10))
def test_every_distinct_row_is_batched_once_and_found_again(rows, budget):
    batches, places = distinct_batches(rows, budget)
    in_order = [row for batch in batches for row in batch]
    assert sorted(in_order) == sorted(set(rows))
    assert [in_order[place] for place in places] == rows
