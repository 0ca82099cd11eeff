"""The ``ragray`` command: a thin face of the pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Retrieval-augmented generation on Ray.", rich_markup_mode=None
)

RecipeOption = Annotated[str, typer.Option(help="name of a recipe, or path of a YAML file")]
RunOption = Annotated[str | None, typer.Option(help="the run folder, a path or a URI (default: runs/RECIPE)")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="change one setting")]
VerboseOption = Annotated[bool, typer.Option(help="let Ray talk; errors with their traceback")]


@app.command()
def quickstart(
    recipe: RecipeOption = "quickstart",
    run: RunOption = None,
    set_: SetOption = None,
    ablation: Annotated[bool, typer.Option(help="also train with a frozen question encoder, to compare")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Every stage, from documents to cited answers."""
    from pipelines.end_to_end import end_to_end

    _run(lambda r: end_to_end(r, ablation), recipe, run, set_, verbose)


def _stage(name: str, module: str, function: str, help_text: str) -> None:
    """Add a command that runs one stage."""

    def command(
        recipe: RecipeOption = "quickstart",
        run: RunOption = None,
        set_: SetOption = None,
        verbose: VerboseOption = False,
    ) -> None:
        from importlib import import_module

        _run(getattr(import_module(f"pipelines.{module}"), function), recipe, run, set_, verbose)

    app.command(name, help=help_text)(command)


_stage("demo", "get_demo", "get_demo", "Fetch the demo material: corpus, questions, models.")
_stage("chunk", "chunk_corpus", "chunk_corpus", "Documents to passages.")
_stage("embed", "embed_passages", "embed_passages", "Passages to embeddings.")
_stage("index", "index_embeddings", "index_embeddings", "Embeddings to index shards.")
_stage("train", "train_rag", "train_rag", "Train question encoder and generator together.")
_stage("evaluate", "evaluate_rag", "evaluate_rag", "Score the dev sets and write the report.")
_stage("serve", "serve_rag", "serve_rag", "Answer over HTTP until Ctrl-C.")


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="the question")],
    recipe: RecipeOption = "quickstart",
    run: RunOption = None,
    set_: SetOption = None,
    address: Annotated[
        str | None, typer.Option(help="ask the server at this URL instead of loading the models")
    ] = None,
    verbose: VerboseOption = False,
) -> None:
    """Answer one question, with the passages that it rests on."""
    from pipelines.answer_question import answer_question

    _run(lambda r: answer_question(r, question, address), recipe, run, set_, verbose)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def plan(context: typer.Context) -> None:
    """Hours, bytes, memory and shards of a corpus, before anything is run."""
    from pipelines.plan_run import main as plan_main

    raise typer.Exit(plan_main(context.args, prog="ragray plan"))


def _run(
    job: Callable[..., object], recipe: str, folder: str | None, overrides: list[str] | None, verbose: bool
) -> None:
    from pipelines.job import guarded, open_run

    raise typer.Exit(guarded(lambda: job(open_run(recipe, folder, overrides or [], verbose)), verbose))


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
