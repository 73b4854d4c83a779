r"""Command line ``rekindle``: its commands, exit statuses and JSON output.

This package parses options and prints results. `cli.commands` has a module for each command, and `cli.output` the
tables and the live progress. Other packages never import it.

Results go to stdout, progress and errors to stderr. Exit status: 0 done; 1 failed (a loss became NaN, the database
stopped answering, ...); 2 bad input; 130 and 143 stopped by SIGINT and SIGTERM, with everything saved.

With ``--json``, stdout is one JSON object. Its names are stable within one "format" (now 1); new names may be added.
docs/json.md documents them, and ``schema.json`` in this folder is their JSON schema; docs/tools/json_output.py makes
both from the views of results. ``live.json`` of ``rekindle serve`` is what ``rekindle watch --json`` prints.

``--set:NAME VALUE`` is another spelling of ``--set NAME=VALUE`` for Orion, whose parser takes priors by the names of
options, and each name only once:

    orion hunt -n cartpole rekindle train ppo CartPole-v1 --set:optimizer.lr~'loguniform(1e-5, 1e-2)' \
        --set:epoch_steps 1024 --epochs~'fidelity(1, 27, 3)'

Under Orion, ``rekindle train`` reports its result to Orion, resumes from the checkpoint of a lower rung, and drops
hyperparameters that do not apply. It stores checkpoints in Orion's database if ORION_DB_TYPE is rekindlesql and
ORION_DB_ADDRESS names the database; a trial of Orion's PBT then starts from the final state of its parent. A trial that
SIGTERM or SIGINT stops is interrupted and retried, and so is one whose process is killed, up to a limit. A trial that
fails is broken. --warm-start gives all trials of a hunt the same initial policy. With -vv, Orion itself logs
ORION_DB_ADDRESS: keep the password in ~/.pgpass or PGPASSWORD.

``return`` is the mean undiscounted return of greedy evaluation episodes, on seeds that no training uses. ``digest`` is
the sha256 of the canonical form of the whole training state. Times are seconds since 1970.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..shell import READING


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    if argv is None and not {*sys.argv[1:2]} & {*READING}:
        _order_sets()
    from .dispatch import main as run

    return run(argv)


def _order_sets() -> None:
    """Start Python again with fixed hashes of texts, unless they are.

    An environment, a function or a program may go through a set of texts, whose order depends on the hashes. By
    default each process draws others, and a trial that another process resumes would differ.
    """
    words = sys.argv[1:]
    if sys.orig_argv[len(sys.orig_argv) - len(words) :] != words:
        return  # a forked worker, whose process began with the command line of its parent
    if sys.executable and sys.flags.hash_randomization and os.environ.get("PYTHONHASHSEED", "random") == "random":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
