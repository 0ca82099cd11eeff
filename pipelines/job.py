"""What all jobs share: a run folder with its settings, the names of its stages, the command line."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ragray import artifacts
from ragray.artifacts import Artifact, ArtifactError, InputRef
from ragray.config import EncoderConfig, GeneratorConfig, RunConfig, load_recipe
from ragray.console import Console
from ragray.demo import packages, tiny
from ragray.records import InputError, RagrayError
from ragray.storage import cache_folder, is_local, local_copy, location

RECIPES = Path(__file__).parent / "recipes"
FOLDERS = {
    "demo": "0-demo",
    "passages": "1-passages",
    "embeddings": "2-embeddings",
    "index": "3-index",
    "model": "4-model",
    "report": "5-report",
}
QUESTION_SETTINGS = {"question_template", "max_question_tokens", "temperature"}
_FOREIGN_FILES = ["*.h5", "*.msgpack", "*.ot", "*.onnx", "onnx/*"]
FROZEN_MODEL = "4-model-frozen"
ABLATION_REPORT = "5-report-ablation"


@dataclass(frozen=True)
class Run:
    """A run folder, its settings, and where its jobs print."""

    folder: Path
    config: RunConfig
    console: Console = field(default_factory=Console)
    verbose: bool = False
    recipe: str = "quickstart"  # as given, for the commands that are shown

    def path(self, kind: str) -> Path:
        return self.folder / FOLDERS[kind]

    def open(self, kind: str) -> Artifact:
        """A finished stage of this run.

        Raises:
            ArtifactError: if it isn't there or isn't whole.
        """
        return artifacts.open_artifact(self.path(kind), kind)

    def file(self, name: str) -> Path:
        """A corpus or questions file: a path, or ``demo:NAME`` for one that get_demo left in this run."""
        if not name.startswith("demo:"):
            return location(name)
        part = name.removeprefix("demo:")
        demo = self.open("demo").folder
        if part == "documents":
            return next(file for file in demo.iterdir() if file.name.startswith("documents."))
        return demo / "questions" / f"{part}.jsonl"

    def towers(self) -> tuple[str, str]:
        """Folders of the models of questions and of passages: the same one, unless ``encoder.passage_model`` is set.

        Raises:
            InputError: if there is no such model, or the vectors of the two have different dimensions.
        """
        config = self.config.encoder
        question, passage = self.model(config.model), self.model(config.of_passages)
        if config.passage_model is not None:
            from ragray.encoders import check_towers

            check_towers(question, passage)
        return question, passage

    def model(self, name: str) -> str:
        """The folder of a model: a path, a hub name, or ``demo:minilm`` and its like; fetched once and cached.

        Raises:
            InputError: if there is no such model, or it can't be fetched.
        """
        if not name.startswith("demo:"):
            if not is_local(location(name)):
                return str(local_copy(name))
            return name if Path(name).exists() else _from_hub(name)
        makers: dict[str, Callable[[Path], Path]] = {
            "demo:minilm": packages.minilm,
            "demo:smollm2": packages.smollm2,
            "demo:tiny-encoder": tiny.encoder,
            "demo:tiny-generator": tiny.generator,
        }
        if name not in makers:
            raise InputError(f"no demo model {name!r}; there are {', '.join(makers)}")
        return str(makers[name](cache_folder()))


def _from_hub(name: str) -> str:
    from huggingface_hub import snapshot_download

    try:
        folder = str(snapshot_download(name, ignore_patterns=[*_FOREIGN_FILES, "*.bin"]))
        if not has_weights(os.listdir(folder)):
            folder = str(snapshot_download(name, ignore_patterns=_FOREIGN_FILES))
        return folder
    except (OSError, ValueError) as error:  # its own errors are of these two families
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"no model folder {name}, and no such model on the hub: {reason}") from error


def has_weights(files: Iterable[str]) -> bool:
    """Whether a snapshot without ``*.bin`` has weights; one of facebook/dpr-* and other old repositories has none."""
    return any(file.endswith(".safetensors") for file in files)


def model_ref(kind: str, folder: str, settings: dict[str, object] | None = None) -> InputRef:
    """Identity of a model: the content of its folder, and how texts are prepared for it."""
    identity = json.dumps([artifacts.content_fingerprint(Path(folder)), settings], sort_keys=True)
    return InputRef(kind=kind, fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16])


def encoder_ref(folder: str, config: EncoderConfig) -> InputRef:
    """Identity of the passage encoder, of this folder: an index and a model fit together if they name the same one.

    What concerns questions alone isn't part of it: changing it needs no new index.
    """
    names = {"model", "passage_model"}
    return model_ref("encoder", folder, config.model_dump(mode="json", exclude=names | QUESTION_SETTINGS))


def question_encoder_ref(folder: str) -> InputRef:
    """Identity of the model that the question encoder starts from."""
    return model_ref("question encoder", folder)


def generator_ref(folder: str, config: GeneratorConfig) -> InputRef:
    """Identity of a generator with its prompt."""
    return model_ref("generator", folder, config.model_dump(mode="json", exclude={"model"}))


def question_settings(config: EncoderConfig) -> dict[str, object]:
    """The settings of the encoder that vectors of passages don't depend on."""
    return config.model_dump(mode="json", include=QUESTION_SETTINGS)


def file_ref(kind: str, path: Path) -> InputRef:
    """Identity of an outside file or folder.

    Raises:
        InputError: if it doesn't exist.
    """
    if not path.exists():
        raise InputError(f"no {kind} at {path}")
    return InputRef(kind=kind, fingerprint=artifacts.content_fingerprint(path))


def check_same_encoder(index: Artifact, encoder: InputRef, owner: str) -> None:
    """Refuse an index whose vectors another encoder made.

    Raises:
        ArtifactError: naming both encoders.
    """
    built_with = index.input_fingerprint("encoder")
    if built_with != encoder.fingerprint:
        raise ArtifactError(
            f"{index.folder} was built with passage encoder {built_with}, but {owner} needs {encoder.fingerprint}: "
            "their vectors can't be compared. Embed and index the corpus with that encoder, or use the model of that "
            "index"
        )


def run_job(description: str, job: Callable[[Run], object], argv: list[str] | None = None) -> int:
    """The command line of a job: ``--recipe``, ``--run``, ``--set``; a user's error ends in one line and exit 1."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart", help="name of a recipe, or path of a YAML file")
    parser.add_argument("--run", help="the run folder, a path or a URI (default: runs/RECIPE)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one setting")
    parser.add_argument("--verbose", action="store_true", help="let Ray talk")
    options = parser.parse_args(argv)
    return guarded(lambda: job(open_run(options.recipe, options.run, options.set, options.verbose)), options.verbose)


def open_run(recipe: str, folder: str | None, overrides: list[str], verbose: bool = False) -> Run:
    """The run of a recipe, given by name or as a YAML file.

    Raises:
        InputError: if there is no such recipe or a setting is wrong.
    """
    path = Path(recipe) if recipe.endswith((".yaml", ".yml")) else RECIPES / f"{recipe}.yaml"
    config = load_recipe(path, overrides)
    return Run(location(folder or Path("runs") / path.stem), config, verbose=verbose, recipe=recipe)


def guarded(action: Callable[[], object], verbose: bool = False) -> int:
    """Run it; a user's error becomes one line on stderr and exit code 1, Ctrl-C exit code 130."""
    try:
        action()
    except RagrayError as error:
        if verbose:
            raise
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0
