"""index + model -> HTTP: a Ray Serve app in two deployments.

``Ingress`` speaks HTTP and knows no model; ``Reader`` holds question encoder and generator, batches concurrent
questions into one pass, and asks the retrieval actors.

    POST /ask      {"question": "..."} -> Answer.as_dict()
    GET  /about    what is served
    GET  /healthz  200 once every deployment is up
    GET  /         the page
"""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

import ray
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from ragray.config import DecodingConfig, EncoderConfig, GeneratorConfig, Resources, ServeConfig
from ragray.formulas.marginal import Variant
from ragray.priors import PriorSource
from ragray.records import Answer

APP_NAME = "ragray"
_MAX_QUESTION_CHARACTERS = 2000
_CONTROLLER, _SERVE_NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
_STOP_TIMEOUT_S = 30.0


class AskRequest(BaseModel):
    """The body of ``POST /ask``."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    question: str = Field(min_length=1, max_length=_MAX_QUESTION_CHARACTERS)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a reader loads."""

    encoder_folder: str
    generator_folder: str
    encoder: EncoderConfig
    generator: GeneratorConfig
    variant: Variant
    prior: PriorSource
    decoding: DecodingConfig
    passages_per_question: int
    threads: int
    resources: Resources


@serve.deployment(max_ongoing_requests=32, max_queued_requests=128)
class Reader:
    """Question encoder, retrieval and generator."""

    def __init__(self, model: ServedModel) -> None:
        from ragray.encoders import Encoder
        from ragray.generators.loading import load_generator
        from ragray.precision import compute_device, resolve_dtype, set_threads
        from ragray.rag import Rag

        set_threads(model.threads)
        device, attention = compute_device(), model.resources.attention
        encoder = Encoder.load(model.encoder_folder, model.encoder).to(device)
        self._rag = Rag(
            model.prior.build(encoder),
            load_generator(model.generator_folder, model.generator, resolve_dtype("auto"), attention).to(device),
            model.variant,
            model.passages_per_question,
            decoding=model.decoding,
            tokens_per_batch=model.resources.tokens_per_batch,
        )

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.01)
    async def answer(self, questions: list[str]) -> list[Answer]:
        """Answers in the order of the questions; Serve gathers single calls into the list."""
        import asyncio

        predictions = await asyncio.to_thread(self._rag.answer, questions)
        return [prediction.answer for prediction in predictions]


_http = FastAPI(title="ragray", docs_url="/docs")


@serve.deployment(max_ongoing_requests=256)
@serve.ingress(_http)
class Ingress:
    """HTTP in front of the reader."""

    def __init__(self, reader: DeploymentHandle, about: dict[str, Any]) -> None:
        self._reader = reader
        self._about = about
        self._page = resources.files("ragray.web").joinpath("index.html").read_text(encoding="utf-8")

    @_http.post("/ask")
    async def ask(self, request: AskRequest) -> dict[str, Any]:
        try:
            answer: Answer = await self._reader.answer.remote(request.question)
        except BackPressureError:
            raise HTTPException(503, "busy: too many questions are waiting, ask again in a moment") from None
        return answer.as_dict()

    @_http.get("/about")
    async def about(self) -> dict[str, Any]:
        return self._about

    @_http.get("/healthz")
    async def healthz(self) -> dict[str, str]:
        return {"status": "ok"}

    @_http.get("/", response_class=HTMLResponse)
    async def page(self) -> str:
        return self._page


def start_app(model: ServedModel, config: ServeConfig, about: dict[str, Any], verbose: bool = False) -> str:
    """Start HTTP and the app, wait until it answers, and return its address."""
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    if not verbose:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # of this process; importing Serve had set its own
    serve.start(http_options={"host": config.host, "port": config.port}, logging_config=None if verbose else quiet)
    autoscaling = {"min_replicas": 1, "max_replicas": config.max_replicas, "target_ongoing_requests": 8}
    reader = cast(Any, Reader).options(ray_actor_options={"num_cpus": model.threads}, autoscaling_config=autoscaling)
    app = cast(Any, Ingress).options(ray_actor_options={"num_cpus": 0}).bind(reader.bind(model), about)
    serve.run(app, name=APP_NAME, route_prefix="/", logging_config=None if verbose else quiet)
    return f"http://{config.host}:{config.port}"


def stop_app() -> None:
    """Stop the app and its HTTP server.

    ``serve.shutdown`` alone would wait in a call to the controller until that has ended itself, and Ray would tell the
    user that the call failed.
    """
    with suppress(ValueError):  # no controller any more
        ray.get(ray.get_actor(_CONTROLLER, _SERVE_NAMESPACE).graceful_shutdown.remote(wait=False))
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            ray.get_actor(_CONTROLLER, _SERVE_NAMESPACE)
            time.sleep(0.1)
    serve.shutdown()  # forgets what this process remembers of the app
