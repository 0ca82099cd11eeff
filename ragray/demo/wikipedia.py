"""An excerpt of English Wikipedia, 98 articles of a real dump, with questions that were written for this project.

A question's ``relation`` is its style: plain, or indirect, which describes what it asks for in other words.
"""

from __future__ import annotations

import shutil
from pathlib import Path

DUMP = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_QUESTIONS = Path(__file__).parent / "wikipedia_questions"


def write_demo(package: Path, folder: Path) -> dict[str, int]:
    """Write ``documents.xml.bz2`` and ``questions/{train,dev}.jsonl``; returns the number of questions by file.

    Args:
        package: the unpacked wheel that holds the dump.
    """
    shutil.copyfile(package / DUMP, folder / "documents.xml.bz2")
    (folder / "questions").mkdir(exist_ok=True)
    rows = {}
    for name in ("train", "dev"):
        text = (_QUESTIONS / f"{name}.jsonl").read_text(encoding="utf-8")
        (folder / "questions" / f"{name}.jsonl").write_text(text, encoding="utf-8")
        rows[f"questions/{name}.jsonl"] = len(text.splitlines())
    return rows
