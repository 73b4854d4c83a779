"""The prose of docstrings: short first lines, and none of the phrases that a reader stumbles over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spaces", "tasks", "studies")
MOST_WORDS = 12
OPENINGS = re.compile(r"(What|How|Who|Whose|Which|Whether|Those|So many|All that|As|There (is|are))\b")
PHRASES = re.compile(
    r"\b((what|who|which|whose)( \w+)? shall|carr(y|ies|ied|ying) on|takes? over|took over|(go|goes|going|went) on|"
    r"(come|comes|came) to|(begin|begins|begun) anew|of (its|their) own|so many|once more)\b",
    re.IGNORECASE,
)


def docstrings(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (file:line, text) of every docstring of a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", text


def faults(text: str) -> list[str]:
    """Return what is wrong with a docstring."""
    first = text.split("\n\n")[0].splitlines()[0]
    long = len(first.split()) > MOST_WORDS
    return [
        *([f"a first line of {len(first.split())} words"] if long else []),
        *([f"opens with {opening[0]}"] if (opening := OPENINGS.match(text)) else []),
        *(f"says {found[0]!r}" for found in PHRASES.finditer(text)),
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_are_plain(folder: str) -> None:
    texts = list(docstrings(folder))
    assert texts
    assert [f"{place}: {fault}" for place, text in texts for fault in faults(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Return the mean return of the last episodes.", 0),
        ("Minibatches of a rollout, as the paper draws them.", 0),
        ("What the learner learns.", 1),
        ("Return the value, so that whoever reads it later has one line of thirteen words.", 1),
        ("Those that carry on.", 2),
    ],
)
def test_faults_are_found(text: str, found: int) -> None:
    assert len(faults(text)) == found
