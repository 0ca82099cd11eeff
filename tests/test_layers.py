"""Imports go one way, names say what things are, files stay small, and README's map is complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up: a module imports from its own layer and from those above it in this list.
LAYERS = [
    {"ragray"},
    {"ragray.records"},
    {"ragray.config", "ragray.formulas", "ragray.storage"},
    {
        "ragray.artifacts",
        "ragray.batching",
        "ragray.console",
        "ragray.corpus",
        "ragray.demo",
        "ragray.parquet_files",
        "ragray.precision",
        "ragray.questions",
        "ragray.web",
    },
    {"ragray.huggingface_rag", "ragray.sentence_transformers_folder"},
    {"ragray.encoders", "ragray.generators", "ragray.index_shard", "ragray.lexical"},
    {"ragray.rag", "ragray.decoding", "ragray.priors", "ragray.report", "ragray.scoring", "ragray.planner"},
    {"ragray.distributed"},
    {"ragray.cli", "pipelines"},
]
# The whole of what these may import, beyond their own folder.
ONLY = {
    "ragray.records": {"numpy", "pyarrow"},
    "ragray.config": {"ragray.records", "pydantic", "yaml"},
    "ragray.artifacts": {"ragray", "ragray.records", "ragray.config", "ragray.storage", "pydantic"},
    "ragray.storage": {"ragray.records", "upath"},
    "ragray.formulas": {"numpy", "torch"},
}
RAY_IS_IMPORTED_IN = {"ragray.distributed", "pipelines"}
MAX_LINES = 400


def source_files() -> Iterator[Path]:
    for folder in ("ragray", "pipelines"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in source_files()}


def imported(name: str) -> set[str]:
    """Modules and packages that a module imports, wherever the statement stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively, line {node.lineno}: write the full name"
            whole = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found.update(whole or {node.module or ""})
    return found


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def layer(name: str) -> int:
    if name == "ragray":
        return 0
    for number, packages in enumerate(LAYERS[1:], start=1):
        if any(is_in(name, package) for package in packages):
            return number
    pytest.fail(f"{name} has no place in LAYERS yet: give it one")


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_the_layers(name):
    ours = {other for other in imported(name) if other.split(".")[0] in ("ragray", "pipelines")}
    assert {other for other in ours if layer(other) > layer(name)} == set()


def test_there_is_no_import_cycle():
    graph = {name: (imported(name) & MODULES.keys()) - {name} for name in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", ONLY)
def test_the_ground_layers_import_little(package):
    for name in (name for name in MODULES if is_in(name, package)):
        outside = {other for other in imported(name) if not is_in(other, package)}
        outside = {other for other in outside if other in MODULES or not _is_standard(other)}
        assert {other if other in MODULES else other.split(".")[0] for other in outside} <= ONLY[package], name


def _is_standard(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("name", MODULES)
def test_ray_stays_in_its_place(name):
    uses_ray = any(is_in(other, "ray") for other in imported(name))
    assert not uses_ray or any(is_in(name, package) for package in RAY_IS_IMPORTED_IN)


def test_no_file_is_a_drawer():
    drawers = {"util", "utils", "helper", "helpers", "common", "misc"}
    assert [file for file in source_files() if drawers & set(file.relative_to(ROOT).with_suffix("").parts)] == []


def test_files_stay_small():
    files = [*source_files(), *(ROOT / "tests").rglob("*.py")]
    lines = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {file: count for file, count in lines.items() if count > MAX_LINES} == {}


# README's map: the first fenced block of README.md that has a line starting with "ragray/".  One file or folder a line,
# folders with a "/" at the end, what is inside indented (by spaces or by the lines of `tree`), then any explanation.

MAP_LINE = re.compile(r"^(?P<indent>[\s│├└─]*)(?P<name>[\w.-]+/?)(\s|$)")


def mapped_paths(readme: str) -> set[str]:
    """Paths of the map; folders end with "/"."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    block = next((block for block in blocks if re.search(r"^[\s│├└─]*ragray/", block, flags=re.MULTILINE)), "")
    paths: set[str] = set()
    parents: list[tuple[int, str]] = []
    for match in filter(None, map(MAP_LINE.match, block.splitlines())):
        depth, name = len(match["indent"]), match["name"]
        parents = [(indent, folder) for indent, folder in parents if indent < depth]
        path = (parents[-1][1] if parents else "") + name
        paths.add(path)
        if name.endswith("/"):
            parents.append((depth, path))
    return paths


def test_the_map_is_read_in_both_notations():
    plain = "```\nMakefile\nragray/\n  records.py   Document\n  formulas/    pure math\n    topk.py\ntests/\n```\n"
    drawn = "```text\n├── Makefile\n├── ragray/\n│   ├── records.py\n│   └── formulas/\n"
    drawn += "│       └── topk.py\n└── tests/\n```\n"
    expected = {"Makefile", "ragray/", "ragray/records.py", "ragray/formulas/", "ragray/formulas/topk.py", "tests/"}
    assert mapped_paths(plain) == mapped_paths(drawn) == expected


def test_readmes_map_lists_every_python_file():
    """A folder that is listed without anything inside stands for all that it holds."""
    paths = mapped_paths((ROOT / "README.md").read_text(encoding="utf-8"))
    leaves = {path for path in paths if not any(other != path and other.startswith(path) for other in paths)}
    command = ["git", "-C", str(ROOT), "ls-files", "*.py"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    files = [file for file in tracked if not file.endswith("__init__.py")]
    assert [file for file in files if file not in paths and not file.startswith(tuple(leaves))] == []


def test_readmes_map_lists_nothing_that_is_gone():
    paths = mapped_paths((ROOT / "README.md").read_text(encoding="utf-8"))
    assert paths, "README.md has no map"
    assert [path for path in paths if not (ROOT / path).exists() and not path.startswith("runs/")] == []
