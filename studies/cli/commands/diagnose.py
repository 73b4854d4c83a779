"""``rekindle diagnose``: a study's importances and defects."""

from __future__ import annotations

import argparse

from ...analysis.health import diagnose as diagnosis
from ...analysis.importance import CLEAR, FEWEST
from ...study.number_text import counted
from ..output import tables
from ..output.terminal import new_console, note, print_json
from .storage import existing_store

LEAST = 0.005  # upper end of a share's interval that rounds to more than 0%


def diagnose(arguments: argparse.Namespace) -> int:
    """Print a study's importances, and its defects with cures."""
    with existing_store(arguments) as store:
        result = diagnosis(store, arguments.study)
    if arguments.json:
        return print_json(result)
    out = new_console()
    if result.importances:
        rows = [
            {"hyperparameter": share.name, "share": f"{share.estimate:.0%}"}
            | {"95% interval": f"{share.low:.0%} to {share.high:.0%}"}
            for share in result.importances
            if share.high >= LEAST
        ]
        title = f"what explains {result.objective}, of {result.configurations} configurations"
        if rows:
            out.print(tables.rows_table(title, rows, ("hyperparameter", "share", "95% interval")))
        if others := len(result.importances) - len(rows):
            note(out, f"0% (0% to 0%) is explained by each of {counted(others, 'other hyperparameter')}")
        for pair in result.pairs:
            if pair.low >= CLEAR:
                share = f"{pair.estimate:.0%} ({pair.low:.0%} to {pair.high:.0%})"
                note(out, f"together, beyond each: {' and '.join(pair.names)} {share}")
    elif result.configurations < FEWEST:
        note(out, f"importances need {FEWEST} configurations with results, but there are {result.configurations}")
    elif result.unlearned:
        note(out, "importances need results that are better than those of an untrained policy, beyond chance")
    else:
        note(out, "importances need results and hyperparameters that vary, but all are equal on each rung")
    for finding in result.findings:
        tables.print_finding(out, finding)
    if not result.findings:
        judged = f", but whether its trials learned anything takes {FEWEST} configurations to judge"
        note(out, f"no defects were found in this study{judged if result.configurations < FEWEST else ''}")
    return 0
