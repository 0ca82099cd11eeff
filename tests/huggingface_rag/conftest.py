from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.huggingface_rag.peer import (
    save_rag,
)


@pytest.fixture(scope="module")
def rag_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(kind, variant, seed) -> a RAG folder; read only, T5 under RAG-Sequence with the setting that theirs needs."""
    made: dict[tuple[str, str, int], Path] = {}

    def get(kind: str, variant: str = "rag_token", seed: int = 0) -> Path:
        key = (kind, variant, seed)
        if key not in made:
            settings = {"bos_token_id": 1} if kind == "t5" and variant == "rag_sequence" else {}
            made[key] = save_rag(tmp_path_factory.mktemp("rag"), kind, variant, seed, **settings)
        return made[key]

    return get
