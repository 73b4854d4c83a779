"""Rules of language: first lines of docstrings are short and plain, and names are nouns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 12  # words of a first line
OPENINGS = re.compile(r"(What|How|Who|Which|Whether|Those|So many|All that|As|There is|There are)\b")
PHRASES = re.compile(
    r"\b(carr(y|ies|ied) on|comes? to be|beg[iau]ns? anew|once more|so many|go(es)? on|takes? over|shall)\b", re.I
)
PRONOUNS = re.compile(
    r"asked|each|found|given|here|kind|known|made|own|said|same|seen|taken|there|told|what|where|which|who"
)
# Names that are stored, shown in JSON or written by users, and one of torch's.
EXCEPTIONS = {
    ("plugins.py", "kind"): "field of JSON output",
    ("studies/analysis/comparing.py", "kind"): "field of JSON output",
    ("studies/cli/commands/report.py", "kind"): "field of JSON output",
    ("studies/cli/commands/upkeep.py", "kind"): "field of JSON output",
    ("studies/cli/commands/upkeep.py", "what"): "field of JSON output",
    ("studies/live/views.py", "kind"): "field of JSON output",
    ("studies/report/content.py", "kind"): "field of JSON output",
    ("studies/upkeep/findings.py", "kind"): "copied into JSON output",
    ("studies/upkeep/findings.py", "what"): "copied into JSON output",
    ("studies/failures.py", "kind"): "field of a stored event",
    ("studies/storage/rows.py", "kind"): "column of stored events",
    ("studies/storage/commands.py", "kind"): "column of stored commands",
    ("studies/storage/commands.py", "who"): "column of stored commands",
    ("studies/engine/bounds.py", "who"): "column of stored commands",
    ("studies/steering/steering.py", "who"): "keyword of users",
    ("studies/report/pictures.py", "kind"): "keyword of users",
    ("studies/tuning.py", "known"): "keyword of users",
    ("studies/engine/tune_options.py", "known"): "keyword of users",
    ("studies/study/plan.py", "seen"): "field that schedulers of other packages set",
    ("tasks/networks/optimizers.py", "where"): "method of torch's name",
}


@cache
def modules(folder: str) -> list[tuple[str, ast.Module]]:
    """Return (path, syntax tree) of every module in a folder, or of one module."""
    paths = sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


@cache
def docstrings(folder: str) -> list[tuple[str, str]]:
    """Return (place, text) of every docstring in a folder."""
    results = []
    for path, module in modules(folder):
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    results.append((f"{path}:{node.body[0].lineno}", text))
    return results


def names_in(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of variables, fields, parameters, functions and classes."""
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


@pytest.mark.parametrize("folder", ["spaces", "tasks", "studies"])
def test_first_lines_of_docstrings_are_short(folder: str) -> None:
    lines = [(place, text.splitlines()[0]) for place, text in docstrings(folder)]
    assert len(lines) > 100
    assert [f"{place}: {line}" for place, line in lines if len(line.split()) > LONGEST] == []


@pytest.mark.parametrize("folder", ["spaces", "tasks", "studies"])
def test_docstrings_are_in_plain_english(folder: str) -> None:
    wrong = [
        f"{place}: {match.group()}"
        for place, text in docstrings(folder)
        for match in [OPENINGS.match(text) or PHRASES.search(text)]
        if match
    ]
    assert wrong == []


def test_names_are_nouns() -> None:
    folders = ("spaces", "tasks", "studies", "plugins.py", "docs/tools", "examples", "benchmarks")
    names = [(path, *name) for folder in folders for path, module in modules(folder) for name in names_in(module)]
    assert len(names) > 10_000
    wrong = [(path, line, name) for path, line, name in names if PRONOUNS.fullmatch(name)]
    assert [f"{path}:{line}: {name}" for path, line, name in wrong if (path, name) not in EXCEPTIONS] == []
    assert EXCEPTIONS.keys() - {(path, name) for path, _, name in wrong} == set()


def test_names_within_tests_are_nouns() -> None:
    names = [(path, *name) for path, module in modules("tests") for name in names_in(module)]
    assert len(names) > 10_000
    wrong = {"each", "found", "kind", "own", "where"}  # the most frequent ones
    assert [f"{path}:{line}: {name}" for path, line, name in names if name in wrong] == []


def test_names_of_tests_have_a_subject() -> None:
    names = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"def (test_\w+)", path.read_text())
    ]
    assert len(names) > 1000
    assert [name for name in names if re.search(r": test_(what|who|whoever)_", name)] == []
