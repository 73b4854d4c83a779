"""What an algorithm needs beside its file and its line in the catalog."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import test_exactness
from rekindle.tasks.catalog import ALGORITHMS, INSTRUMENTS

ROOT = Path(__file__).parents[2]


def missing(algorithms: dict[str, str]) -> list[str]:
    """What is still to be written for these algorithms."""
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = [path for path in (ROOT / "docs" / "algorithms").glob("*.md") if f"algorithms/{path.name}" in nav]
    documented = "".join(path.read_text() for path in pages)
    suites = "".join(path.read_text() for path in (ROOT / "tests" / "tasks" / "algorithms").glob("test_*.py"))
    (typed, *_) = [node for node in ast.parse((ROOT / "__init__.py").read_text()).body if isinstance(node, ast.If)]
    lines = []
    for name, home in algorithms.items():
        module, _, class_name = home.partition(":")
        family = "|".join(other.partition(":")[2] for other in algorithms.values() if other.startswith(f"{module}:"))
        if f"`{name}`" not in (ROOT / "README.md").read_text():
            lines.append(f"{name}: a row of the table in README.md")
        if name in INSTRUMENTS:
            continue
        if not re.search(rf"`{name}`|<!-- hyperparameters: {name} ", documented):
            lines.append(f"{name}: its table of hyperparameters on a page of docs/algorithms, in the nav of mkdocs.yml")
        if not re.search(rf"^    task = ({family})$", suites, re.MULTILINE):
            lines.append(f"{name}: an ExactnessSuite with task = {class_name} in tests/tasks/algorithms")
        if name not in test_exactness.ALGORITHMS:
            lines.append(f"{name}: an entry of ALGORITHMS in tests/tasks/test_exactness.py")
        if f"import {class_name} as {class_name}\n" not in ast.unparse(typed) + "\n":
            lines.append(f"{name}: `import {class_name} as {class_name}` for type checkers in __init__.py")
    return lines


def test_every_algorithm_is_complete() -> None:
    lines = missing({**ALGORITHMS, **INSTRUMENTS})
    assert not lines, "\n".join(["still to be written:", *lines])


def test_all_that_a_new_algorithm_lacks_is_named() -> None:
    lines = missing({"new": ".tasks.algorithms.new:New"})
    places = ("README.md", "docs/algorithms", "ExactnessSuite", "tests/tasks/test_exactness.py", "__init__.py")
    assert [place in line for place, line in zip(places, lines, strict=True)] == [True] * 5
