"""``rekindle match``: two policies play against each other.

With ``--json`` stdout is one JSON object: format, uids [UID, UID], epochs [N, N], games, wins, draws, losses (of the
first), score (wins and half of the draws, as a share), interval [low, high] (of the score, at 95%), winner (UID; null
if the interval contains 1/2), digests [digest, digest].
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from ....tasks.algorithms.behaviours import Behaviours
from ...statistics.intervals import wilson
from ..output import tables
from ..output.terminal import new_console, print_json
from .policy import stored_task


def match(arguments: argparse.Namespace) -> int:
    """Print who wins between two policies."""
    names = arguments.checkpoint, arguments.other
    one, other = (_player(arguments, name) for name in names)
    results = Counter(one.match(other, arguments.games, arguments.seed))
    score, *interval = wilson(results[1] + results[0] / 2, arguments.games)
    winner = one.uid if interval[0] > 0.5 else other.uid if interval[1] < 0.5 else None
    counts = {"games": arguments.games, "wins": results[1], "draws": results[0], "losses": results[-1], "score": score}
    if arguments.json:
        found: dict[str, Any] = {"uids": [one.uid, other.uid], "epochs": [one.epochs, other.epochs], **counts}
        digests = [one.digest, other.digest]
        return print_json(found | {"interval": interval, "winner": winner, "digests": digests})
    out, (low, high) = new_console(), interval
    out.print(tables.pairs_table(" against ".join(names), counts | {"95% interval": f"{low:.3f} to {high:.3f}"}))
    unknown = "the games do not tell which policy is stronger; play more --games"
    out.print(unknown if winner is None else f"{winner} is stronger", soft_wrap=True)
    return 0


def _player(arguments: argparse.Namespace, name: str) -> Behaviours:
    """Return the task in the state of a checkpoint.

    Raises:
        ValueError: it has a single agent.
    """
    task = stored_task(argparse.Namespace(**{**vars(arguments), "checkpoint": name}))
    if not isinstance(task, Behaviours):
        raise ValueError(
            f"a match is played by tasks of several agents, but {name} is {task}; train behaviours in an environment "
            "with teams"
        )
    return task
