"""3-index + 4-model -> answers over HTTP.

python -m pipelines.serve_rag --run runs/quickstart       # stays up until Ctrl-C
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.job import Run, check_same_encoder, run_job
from ragray.artifacts import InputRef
from ragray.distributed.session import ray_session
from ragray.records import InputError, RagrayError

_ANSWER_TIMEOUT_S = 120


@contextmanager
def serving(run: Run) -> Iterator[str]:
    """The app's address, while the app is up.

    Raises:
        ArtifactError: if index and model don't belong together.
        InputError: if the port is taken.
    """
    index, model = run.open("index"), run.open("model")
    check_same_encoder(
        index, InputRef(kind="encoder", fingerprint=model.input_fingerprint("encoder")), str(model.folder)
    )
    _check_port(run.config.serve.host, run.config.serve.port)
    with ray_session(run.verbose):
        from ragray.distributed.retrieval import ClusterRetriever
        from ragray.distributed.serving import ServedModel, start_app, stop_app
        from ragray.priors import PriorSource

        config, folder = run.config, model.folder.resolve()
        served = ServedModel(
            encoder_folder=str(folder / "question_encoder"),
            generator_folder=str(folder / "generator"),
            encoder=config.encoder,
            generator=config.generator,
            variant=model.manifest.config["variant"],
            prior=PriorSource.of(model.manifest.config["prior"], ClusterRetriever.start(index), index.folder, []),
            decoding=config.decoding,
            passages_per_question=config.serve.passages_per_question,
            threads=config.resources.threads_per_worker or 1,
            resources=config.resources,
        )
        about = {
            "run": run.folder.name,
            "variant": served.variant,
            "index_version": index.fingerprint,
            "passages": index.manifest.summary["num_passages"],
            "encoder": config.encoder.model,
            "generator": config.generator.model,
            "examples": list(config.serve.demo_questions),
        }
        try:
            yield start_app(served, config.serve, about, run.verbose)
        finally:
            stop_app()


def demonstrate(run: Run) -> None:
    """Start the app, ask the demo questions over HTTP, show the answers with their passages, and stop."""
    with run.console.stage("serve_rag") as stage, serving(run) as address:
        answers = [ask(address, question) for question in run.config.serve.demo_questions]
        stage.outcome = f"{len(answers)} questions answered over HTTP"
    for answer in answers:
        show_answer(run, answer)


def serve_rag(run: Run) -> None:
    """Keep the app up until Ctrl-C."""
    with serving(run) as address:
        run.console.line(f"serving {run.folder} at {address} (Ctrl-C stops it)")
        run.console.line(f"""  curl -s {address}/ask -H 'content-type: application/json' -d '{{"question": "…"}}'""")
        while True:
            time.sleep(3600)


def ask(address: str, question: str) -> dict[str, Any]:
    """POST one question.

    Raises:
        RagrayError: nobody answers there, or the server refuses the question; the message says what it said.
    """
    body = json.dumps({"question": question}).encode()
    try:
        request = urllib.request.Request(f"{address}/ask", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise RagrayError(f"{address} refused the question ({error.code}): {error.read().decode()[:300]}") from None
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise RagrayError(
            f"no answer from {address} ({error}): give the URL that `ragray serve` shows, such as "
            "http://127.0.0.1:8000, while it runs"
        ) from None


def show_answer(run: Run, answer: dict[str, Any]) -> None:
    """Print an answer with its cited passages, the one that explains it best first."""
    run.console.line()
    run.console.line(f"Q  {answer['question']}")
    run.console.line(f"A  {answer['answer']}")
    passages = sorted(answer["passages"], key=lambda passage: -passage["posterior"])
    for passage in passages:
        text = passage["text"] if passage is passages[0] else f"{passage['text'][:90]}…"
        run.console.line(
            f"   prior {passage['prior']:.2f}  posterior {passage['posterior']:.2f}  [{passage['id']}] "
            f"{passage['title']}: {text}"
        )


def _check_port(host: str, port: int) -> None:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(
                f"can't listen on {host}:{port} ({error.strerror}): choose another with --set serve.port=…"
            ) from None


if __name__ == "__main__":
    raise SystemExit(run_job(__doc__ or "", serve_rag))
