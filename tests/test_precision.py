"""Number formats are chosen by name, threads on purpose."""

from __future__ import annotations

import faiss
import pytest
import torch

from ragray.precision import resolve_dtype, set_threads
from ragray.records import InputError


def test_names_give_formats():
    assert resolve_dtype("float32") is torch.float32
    assert resolve_dtype("bfloat16") is torch.bfloat16
    assert resolve_dtype("float16") is torch.float16
    assert resolve_dtype("auto") in (torch.float32, torch.bfloat16)


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="dtype must be auto, float32, bfloat16 or float16, got 'half'"):
        resolve_dtype("half")


def test_threads_reach_torch_and_faiss():
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    try:
        set_threads(1)
        assert torch.get_num_threads() == faiss.omp_get_max_threads() == 1
    finally:
        torch.set_num_threads(before[0])
        faiss.omp_set_num_threads(before[1])
