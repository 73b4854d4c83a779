"""Commands that show studies and answer questions about them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ....tasks.runtime.watcher import TRYING
from ...methods import sinks_described
from ...options.conversions import port, positive, seed
from ...options.worker_options import WORKER
from .parser import MANY, command, declare, option, weights
from .shared import TASK, add_uid

PICTURES = (
    "curves, promotions, genealogy, profiles, importance, marginals, pairs, ranks, parallel, slice, pareto or workers"
)


def add_readers(commands: Any) -> None:
    """Add the commands that show the present content of a storage."""
    parser = command(commands, "status", "show all studies of a storage, or one, and their workers", "look.status")
    parser.add_argument("study", metavar="STUDY", nargs="?", help="name of the study (default: all)")
    option(parser, "--prometheus", "print metrics in the text format of Prometheus")
    text = "show a study live: rungs, running trials, workers and failures; changes nothing; q quits"
    parser = command(commands, "watch", text, "watch.watch")
    parser.add_argument("study", metavar="STUDY", nargs="?", help="name of the study (default: the newest)")
    option(parser, "--every SECONDS", "time between updates", default=1.0)
    parser = command(commands, "trials", "show the trials of a study, rung by rung", "look.trials")
    parser.add_argument("study", metavar="STUDY")
    text = "show one trial: hyperparameters, metrics, checkpoints, digests, and every start and resume"
    parser = command(commands, "show", text, "look.show")
    add_uid(parser)
    option(parser, "--config", "print a run file that trains it again")
    text = "list what installed packages add: tasks, environments, schedulers, samplers, sinks and encoders"
    command(commands, "plugins", text, "plugins.plugins")
    command(commands, "tasks", "list the trainings of a storage that belong to no study", "look.tasks")
    text = "serve read-only pages of studies and their reports, which follow the training"
    parser = command(commands, "serve", text, "serve.serve")
    option(parser, "--host HOST", "address to listen on; any but loopback needs --token", default="127.0.0.1")
    option(parser, "--port N", "port to listen on; 0 for any free port", type=port, default=8765)
    option(parser, "--token TEXT", "secret that browsers need; the printed address contains it", default="")


def add_answers(commands: Any) -> None:
    """Add the commands that answer questions about studies."""
    text = "show how important a study's hyperparameters are, with intervals, and its defects, each with a cure"
    parser = command(commands, "diagnose", text, "diagnose.diagnose")
    parser.add_argument("study", metavar="STUDY")
    text = "compare studies and other runs: IQM, median and mean with 95% intervals, and probabilities of improvement"
    parser = command(commands, "compare", text, "compare.compare")
    parser.add_argument(
        "source",
        metavar="STUDY",
        nargs="+",
        help="a study, whose runs are its confirmation's fresh seeds, or else its best configuration's seeds; an "
        "evaluations.npz of Stable-Baselines3, one run; or a CSV file with a column return (or score) and, optionally, "
        "a column env. LABEL=STUDY or LABEL@ENV=FILE: sources with the same label form one side",
    )
    option(
        parser,
        "--scale ENV=LOW:HIGH",
        "results that count as 0 and as 1, for scores over several environments and for the optimality gap; may be "
        "repeated (default: the worst and the best run of any side)",
        **MANY,
    )
    text = "write a report on studies: one self-contained HTML file"
    parser = command(commands, "report", text, "report.report")
    parser.add_argument("study", metavar="STUDY", nargs="+")
    text = "file to write (default: %(default)s)"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help=text)
    text = "write one of the report's figures of a study as a picture (needs the extra `plot`)"
    parser = command(commands, "plot", text, "report.plot")
    parser.add_argument("study", metavar="STUDY")
    option(parser, "--kind NAME", f"{PICTURES} (default: %(default)s)", default="curves")
    text = "file to write: .png, .svg or .pdf (default: KIND.png)"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=text)


def add_space(commands: Any) -> None:
    parser = command(
        commands,
        "space",
        "show the hyperparameters of a task: searched ranges, defaults and conditions",
        "spaces.space",
        TRYING,
    )
    parser.add_argument("task", metavar="TASK", help=TASK)
    parser.add_argument(
        "env", metavar="ENV", nargs="?", help="leave out hyperparameters without an effect in this environment"
    )
    declare(parser, WORKER, "stuck")


def add_probe(commands: Any) -> None:
    text = "look at an environment: returns of random actions and untrained policies, episodes, rewards, observations"
    parser = command(commands, "probe", text, "spaces.probe", TRYING)
    parser.add_argument("env", metavar="ENV", help="environment, as for tune")
    option(parser, "--task TASK", "algorithm of the untrained policies (default: ppo; with several agents, behaviours)")
    option(parser, "--seed N", "seed of actions, policies and episodes", type=seed, default=0)
    option(
        parser, "--steps N", "largest number of steps (default: 2000, or 10000 where episodes are long)", type=positive
    )
    option(parser, "--reward-weights W,W", "see `rekindle train`", type=weights)
    declare(parser, WORKER, "stuck")


def add_other_tools(commands: Any) -> None:
    """Add the commands that read and write files of other tools."""
    text = "convert a configuration of ML-Agents or rl-zoo3 into a run file, and list settings without a counterpart"
    parser = command(commands, "import-config", text, "spaces.import_config")
    parser.add_argument("file", type=Path, metavar="FILE", help="configuration, such as mlagents.yaml or ppo.yml")
    parser.add_argument("env", metavar="ENV", nargs="?", help="environment, as for tune; ML-Agents' files name none")
    option(parser, "--env ENV", "the same as an option", dest="named_env")
    option(
        parser,
        "--behavior|--entry NAME",
        "behavior of ML-Agents, or entry of rl-zoo3, to convert; by default the only one, or that of ENV",
    )
    option(parser, "--algo NAME", "algorithm of a file of rl-zoo3 (default: its name)")
    option(parser, "--output RUN.TOML", "write the run file here (default: stdout)", type=Path)
    text = "copy the learning curves of a study or task to other tools; rerun to add new points"
    parser = command(commands, "export-curves", text, "curves.export_curves")
    parser.add_argument("name", metavar="STUDY|UID")
    option(parser, "--to KIND:PLACE", f"{sinks_described()}; may be repeated", required=True, **MANY)
    text = "names of metrics: sb3, ml-agents, metabox or rekindle (default: sb3, and rekindle in tables)"
    option(parser, "--names NAMES", text)
    option(parser, "--follow", "continue until the study is complete")
    option(parser, "--with-parent", argparse.SUPPRESS)  # continue until stdin ends
