"""Every question of every system gets its row, in order, and finished blocks are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.job import open_run
from ragray.config import DecodingConfig, Resources
from ragray.distributed.evaluation import EvaluationJob, System, evaluate
from ragray.distributed.retrieval import ClusterRetriever
from ragray.priors import PriorSource
from ragray.questions import read_questions
from ragray.records import Passage, Question
from ragray.scoring import is_hit


@pytest.mark.parametrize(
    ("title", "text", "hit"),
    [
        ("Peru", "The capital is Lima.", True),
        ("Peru", "The capital is far.", False),
        ("Chile", "Not Lima but Santiago.", False),
    ],
    ids=["both", "no-answer", "another-title"],
)
def test_a_hit_needs_the_answer_and_the_title(title, text, hit):
    question = Question("q", "What is the capital of Peru?", ("Lima",), title="Peru")
    assert is_hit(Passage("p", title, text), question) is hit


def test_without_a_title_the_answer_is_enough():
    assert is_hit(Passage("p", "Chile", "Not Lima but Santiago."), Question("q", "Where?", ("Lima",)))


@pytest.fixture(scope="module")
def evaluation(ray_cluster, debug_run):
    """The debug run's job, three systems and 20 questions in an order of their own."""
    run = open_run("debug", debug_run.folder, [])
    config = run.config
    index = run.open("index")
    retriever = ClusterRetriever.start(index)
    job = EvaluationJob(
        config=config.evaluate,
        decoding=DecodingConfig(num_beams=2, max_new_tokens=6),
        encoder=config.encoder,
        generator=config.generator,
        variant="rag_sequence",
        threads=1,
        resources=Resources(),
    )
    folders = (run.model("demo:tiny-encoder"), run.model("demo:tiny-generator"))
    kinds = {"open": "dense", "lexical": "bm25", "closed": "closed_book"}
    systems = [
        System(name, *folders, PriorSource.of(kind, retriever, index.folder, ())) for name, kind in kinds.items()
    ]
    questions = [
        replace(question, id=f"{split}/{question.id}")
        for split in ("dev", "dev_wording")
        for question in read_questions(run.file(f"demo:{split}"))[::-1][:10]
    ]
    yield job, systems, questions
    retriever.stop()


@pytest.mark.ray
def test_rows_come_in_the_order_of_the_questions_and_finished_blocks_are_kept(evaluation, tmp_path):
    job, systems, questions = evaluation
    answered = [position < 15 for position in range(len(questions))]

    def run():
        return evaluate(
            job,
            systems,
            questions,
            answered,
            tmp_path,
            num_actors=2,
            gpus_per_actor=0,
            progress=lambda done, total: None,
        )

    rows = run()
    assert set(rows) == {"open", "lexical", "closed"}
    for part in rows.values():
        assert [row["id"] for row in part] == [question.id for question in questions]
        assert all(row["log_prob"] < 0 and 0 <= row["f1"] <= 1 for row in part[:15])
        assert not any("text" in row for row in part[15:])
    for name in ("open", "lexical"):
        assert all(len(row["hits"]) == 20 for row in rows[name])
        assert all(len(row["answer"]["passages"]) == 3 for row in rows[name][:15])
    assert rows["open"] != rows["lexical"]
    assert not any("hits" in row for row in rows["closed"])

    first, *others = sorted(tmp_path.rglob("*.jsonl"))
    assert len(others) == 4
    kept = {block: block.stat().st_mtime_ns for block in others}
    first.unlink()
    assert run() == rows
    assert {block: block.stat().st_mtime_ns for block in others} == kept
