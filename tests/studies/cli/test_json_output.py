"""Results as views: what reads them, and what commands print of them as JSON."""

from __future__ import annotations

import ast
from pathlib import Path

STUDIES = Path(__file__).resolve().parents[3] / "studies"
READERS = ("report", "cli", "engine", "live")
SUBSCRIPTS = 133  # into options, run files, stored forms and rows of tables, but into no result


def test_results_are_views_and_not_read_by_string_subscripts() -> None:
    """Mypy checks the fields of a view, but no key of a dict."""
    nodes = [
        node
        for package in READERS
        for path in (STUDIES / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    keys = [node.slice for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)]
    assert len(nodes) > 50_000
    assert sum(isinstance(key.value, str) for key in keys) <= SUBSCRIPTS
