"""Commands that look at studies and answer questions about them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .shared import SINKS, TASK, add_uid
from .values import MANY, command, option, port

PICTURES = (
    "curves, promotions, genealogy, profiles, importance, marginals, pairs, ranks, parallel, slice, pareto or workers"
)


def add_readers(commands: Any) -> None:
    """Add the commands that show what is in a storage now."""
    parser = command(commands, "status", "all studies of a storage, and who trains them", "look.status")
    option(parser, "--prometheus", "print metrics as a Prometheus scraper reads them")
    text = "what happens in a study now: rungs, trials in training, workers, failures; reads only, ends at q"
    parser = command(commands, "watch", text, "live.watch.watch")
    parser.add_argument("study", metavar="STUDY", nargs="?", help="the study (default: the youngest one)")
    option(parser, "--every SECONDS", "how often to look", default=1.0)
    parser = command(commands, "trials", "the trials of a study, rung by rung", "look.trials")
    parser.add_argument("study", metavar="STUDY")
    text = "one trial: hyperparameters, metrics, checkpoints, digests, every start and resume"
    parser = command(commands, "show", text, "look.show")
    add_uid(parser)
    option(parser, "--config", "print the run file that trains it again")
    command(commands, "tasks", "the trainings of a storage that are in no study", "look.tasks")
    text = "show studies as they train, and their reports, as read-only pages in a browser"
    parser = command(commands, "serve", text, "live.serve.serve")
    option(parser, "--host HOST", "address to listen at; any but loopback needs --token", default="127.0.0.1")
    option(parser, "--port N", "port to listen at; 0 for any free one", type=port, default=8765)
    option(parser, "--token TEXT", "what browsers must know; the printed address holds it", default="")


def add_answers(commands: Any) -> None:
    """Add the commands that answer questions about studies."""
    text = "which hyperparameters of a study mattered, with intervals, and what ails it, with a cure each"
    parser = command(commands, "diagnose", text, "answers.diagnose.diagnose")
    parser.add_argument("study", metavar="STUDY")
    text = "studies and other runs beside one another: IQM, median and mean with 95% intervals, and who beats whom"
    parser = command(commands, "compare", text, "answers.compare.compare")
    parser.add_argument(
        "source",
        metavar="STUDY",
        nargs="+",
        help="a study, whose runs are its confirmation's fresh seeds, or else its best configuration's seeds; "
        "evaluations.npz of Stable-Baselines3, one run; or a CSV file with a column return (or score), and maybe env. "
        "LABEL=STUDY and LABEL@ENV=FILE: what has the same label is one side",
    )
    option(
        parser,
        "--scale ENV=LOW:HIGH",
        "results that count as 0 and as 1, for scores over several environments and the optimality gap; may be "
        "repeated (default: the worst and the best run of any side)",
        **MANY,
    )
    text = "write a report on studies: one HTML file to keep and send, without links to elsewhere"
    parser = command(commands, "report", text, "answers.report.report")
    parser.add_argument("study", metavar="STUDY", nargs="+")
    text = "the file (default: %(default)s)"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help=text)
    text = "write a picture of a study, one of the report's figures (extra plot)"
    parser = command(commands, "plot", text, "answers.report.plot")
    parser.add_argument("study", metavar="STUDY")
    option(parser, "--kind NAME", f"{PICTURES} (default: %(default)s)", default="curves")
    text = "the file, a .png, .svg or .pdf (default: KIND.png)"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=text)


def add_space(commands: Any) -> None:
    parser = command(
        commands, "space", "the hyperparameters of a task: what is searched over what, and defaults", "look.space"
    )
    parser.add_argument("task", metavar="TASK", help=TASK)
    parser.add_argument("env", metavar="ENV", nargs="?", help="leave out what has no effect in this environment")


def add_other_tools(commands: Any) -> None:
    """Add the commands that read and write files of other tools."""
    text = "convert an ML-Agents configuration into a run file, and list what has no counterpart"
    parser = command(commands, "import-config", text, "look.import_config")
    parser.add_argument("file", type=Path, metavar="FILE", help="such as mlagents.yaml")
    parser.add_argument("env", metavar="ENV", nargs="?", help="as of tune; ML-Agents' configurations name none")
    option(parser, "--behavior NAME", "which behavior, if the file has several")
    option(parser, "--output RUN.TOML", "write the run file here (default: stdout)", type=Path)
    text = "copy the learning curves of a study or a task for other tools; again, to add what is new"
    parser = command(commands, "export-curves", text, "live.curves.export_curves")
    parser.add_argument("name", metavar="STUDY|UID")
    option(parser, "--to KIND:PLACE", f"{SINKS}; may be repeated", required=True, **MANY)
    text = "names of metrics: sb3, ml-agents, metabox or rekindle (default: sb3, and rekindle in tables)"
    option(parser, "--names NAMES", text)
    option(parser, "--follow", "go on until the study is complete")
    option(parser, "--with-parent", argparse.SUPPRESS)  # go on until stdin ends
