"""``rekindle report``: one HTML file about studies."""

from __future__ import annotations

import argparse

from ....report.data import report_json
from ....report.writing import write_report
from ...output.terminal import new_console, note, print_json
from ..storage import existing_store


def report(arguments: argparse.Namespace) -> int:
    """Write a report on studies."""
    names = list(dict.fromkeys(arguments.study))
    with existing_store(arguments) as store:
        shown = [report_json(store, name) for name in names]
    write_report(shown, arguments.output)
    if arguments.json:
        return print_json({"file": str(arguments.output), "studies": shown})
    note(new_console(), f"{arguments.output}: a report on {', '.join(names)}")
    return 0
