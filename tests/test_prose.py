"""Rules of language: the first line of a docstring is short and plain."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 12  # words of a first line
OPENINGS = re.compile(r"(What|How|Who|Which|Whether|Those|So many|All that|As|There is|There are)\b")
PHRASES = re.compile(
    r"\b(carr(y|ies|ied) on|comes? to be|beg[iau]ns? anew|once more|so many|go(es)? on|takes? over|shall)\b", re.I
)


@cache
def docstrings(folder: str) -> list[tuple[str, str]]:
    """Return (place, text) of every docstring in a folder."""
    results = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    results.append((f"{path.relative_to(ROOT)}:{node.body[0].lineno}", text))
    return results


@pytest.mark.parametrize("folder", ["spaces", "tasks", "studies"])
def test_first_lines_of_docstrings_are_short(folder: str) -> None:
    lines = [(place, text.splitlines()[0]) for place, text in docstrings(folder)]
    assert len(lines) > 100
    assert [f"{place}: {line}" for place, line in lines if len(line.split()) > LONGEST] == []


@pytest.mark.parametrize("folder", ["spaces", "tasks", "studies"])
def test_docstrings_are_in_plain_english(folder: str) -> None:
    wrong = [
        f"{place}: {found.group()}"
        for place, text in docstrings(folder)
        for found in [OPENINGS.match(text) or PHRASES.search(text)]
        if found
    ]
    assert wrong == []


def test_names_of_tests_have_a_subject() -> None:
    names = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"def (test_\w+)", path.read_text())
    ]
    assert len(names) > 1000
    assert [name for name in names if re.search(r": test_(what|who|whoever)_", name)] == []
