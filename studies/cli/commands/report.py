"""``rekindle report`` and ``plot``: a report in HTML, and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ...engine.views import View
from ...report.content import ReportView
from ...report.data import report_view
from ...report.page import write_report
from ...report.pictures import ENDINGS, check_ending, save
from ...report.pictures import plot as picture
from ...shell import in_storage
from ..output.terminal import new_console, note, print_json
from .storage import existing_store


class ReportsView(View):
    """A written report."""

    file: Annotated[str, "path"]
    studies: Annotated[Sequence[ReportView], "content"]


class PlotView(View):
    """A written picture."""

    file: Annotated[str, "path"]
    study: Annotated[str, "name of the study"]
    kind: Annotated[str, "kind of picture"]


def report(arguments: argparse.Namespace) -> int:
    """Write a report on studies."""
    names = list(dict.fromkeys(arguments.study))
    if arguments.output.suffix in ENDINGS:
        raise ValueError(f"a report is a page of HTML, but -o is {arguments.output}; rekindle plot makes pictures")
    with existing_store(arguments) as store, in_storage(None):  # a report may be read elsewhere
        reports = [report_view(store, name) for name in names]
        write_report(reports, arguments.output)
    if arguments.json:
        return print_json(ReportsView(file=str(arguments.output), studies=reports))
    note(new_console(), f"{arguments.output}: a report on {', '.join(names)}")
    return 0


def plot(arguments: argparse.Namespace) -> int:
    """Write a picture of a study."""
    path = arguments.output or Path(f"{arguments.kind}.png")
    check_ending(path)
    with existing_store(arguments) as store:
        save(picture(store, arguments.study, arguments.kind), path)
    if arguments.json:
        return print_json(PlotView(file=str(path), study=arguments.study, kind=arguments.kind))
    note(new_console(), f"{path}: {arguments.kind} of {arguments.study}")
    return 0
