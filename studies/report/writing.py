"""Writing of reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..engine.json_views import Json
from .page import page


def write_report(studies: Sequence[Json], path: Path) -> None:
    """Write a report on studies to a file.

    Args:
        studies: see `data.report_json`.
        path: of the file.

    Raises:
        ValueError: the file cannot be written.
    """
    html = page(studies)
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"a report is written to a file, but {path} cannot be: {why}; give another -o") from None
