"""Small HTML tables that represent objects in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

LEFT = "style='text-align:left'"


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a table of names and values, with all texts escaped."""
    lines = "".join(
        f"<tr><th {LEFT}>{escape(name)}</th><td {LEFT}>{escape(_text(value))}</td></tr>" for name, value in rows.items()
    )
    return f"<div><b>{escape(title)}</b><table>{lines}</table></div>"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
