"""Number formats, threads and memory of a computing process, set on purpose."""

from __future__ import annotations

import ctypes
import math
import time

import faiss
import torch

from ragray.records import InputError


def resolve_dtype(name: str) -> torch.dtype:
    """``float32``, ``bfloat16``, ``float16``, or ``auto``: bfloat16 where the hardware multiplies it, else float32.

    Raises:
        InputError: for any other name.
    """
    if name == "auto":
        return torch.bfloat16 if _multiplies_bfloat16() else torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name in named:
        return named[name]
    raise InputError(f"dtype must be auto, float32, bfloat16 or float16, got {name!r}")


def compute_device() -> torch.device:
    """The GPU that Ray gave this process, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def set_threads(threads: int) -> None:
    """Threads of torch, OpenMP and FAISS in this process: processes that together have more than the CPUs crawl."""
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def matrix_flops(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP a second of this process in products of large square matrices: the best of a few, which is its peak."""
    size = 4096 if device.type == "cuda" else 1024
    a = torch.ones(size, size, dtype=dtype, device=device)
    best_s = math.inf
    for _ in range(8):
        started = time.perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * size**3 / best_s


def release_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc).

    Within a batch, keeping it is what makes allocation fast (see ``distributed/session.py``).  Over many batches of
    different shapes the heap would grow to more than twice of what is in use.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _multiplies_bfloat16() -> bool:
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))
