"""``rekindle match``: two policies play against each other."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from ....tasks.algorithms.behaviours import Behaviours
from ....tasks.algorithms.players import RANDOM
from ....tasks.checkpoint.named_policies import is_named
from ...engine.players import stored_policy
from ...engine.views import View
from ...statistics.intervals import wilson
from ..output import tables
from ..output.terminal import new_console, print_json
from .policy import stored_task
from .storage import existing_store


class MatchView(View):
    """Result of games between two policies."""

    uids: Annotated[Sequence[str], "uids of both tasks; for random actions or a file, as it was named"]
    epochs: Annotated[Sequence[int | None], "epochs of both checkpoints"]
    games: Annotated[int, "number of games"]
    wins: Annotated[int, "games that the first won"]
    draws: Annotated[int, "games that nobody won"]
    losses: Annotated[int, "games that the second won"]
    score: Annotated[float, "wins and half of the draws, as a share"]
    interval: Annotated[tuple[float, float], "95% interval of the score"]
    winner: Annotated[
        str | None, "the winner among `uids`, UID@EPOCH if both are of one task; null if the interval contains 1/2"
    ]
    digests: Annotated[Sequence[str | None], "digests of both states"]


def match(arguments: argparse.Namespace) -> int:
    """Print who wins between two policies."""
    names = arguments.checkpoint, arguments.other
    one, other = _player(arguments, names[0]), _opponent(arguments, names[1])
    rival = other if isinstance(other, Behaviours) else None
    results = Counter(one.match(other, arguments.games, arguments.seed))
    score, low, high = wilson(results[1] + results[0] / 2, arguments.games)
    uids = [one.uid, rival.uid if rival else names[1]]
    epochs = [one.epochs, rival and rival.epochs]
    sides = uids if uids[0] != uids[1] else [f"{uid}@{epoch}" for uid, epoch in zip(uids, epochs, strict=True)]
    winner = sides[0] if low > 0.5 else sides[1] if high < 0.5 else None
    counts: dict[str, Any] = {
        "games": arguments.games,
        "wins": results[1],
        "draws": results[0],
        "losses": results[-1],
        "score": score,
    }
    if arguments.json:
        result = {"uids": uids, "epochs": epochs, **counts}
        result |= {"interval": (low, high), "winner": winner, "digests": [one.digest, rival and rival.digest]}
        return print_json(MatchView(**result))
    out = new_console()
    out.print(tables.pairs_table(" against ".join(names), counts | {"95% interval": f"{low:.3f} to {high:.3f}"}))
    unknown = "the games do not tell which policy is stronger; play more --games"
    out.print(unknown if winner is None else f"{winner} is stronger", soft_wrap=True)
    return 0


def _opponent(arguments: argparse.Namespace, name: str) -> Behaviours | str:
    """Return the task of a checkpoint, or the name of another policy."""
    if _is_no_task(name):
        return stored_policy(name, partial(existing_store, arguments))
    return _player(arguments, name)


def _is_no_task(name: str) -> bool:
    return name == RANDOM or "." in name or is_named(name)


def _player(arguments: argparse.Namespace, name: str) -> Behaviours:
    """Return the task in the state of a checkpoint.

    Raises:
        ValueError: it has a single agent.
    """
    if _is_no_task(name):
        raise ValueError(
            f"a match is played in the environment of its first policy, which is a task (UID, UID@EPOCH), but got "
            f"{name}; name it second"
        )
    task = stored_task(argparse.Namespace(**{**vars(arguments), "checkpoint": name}))
    if not isinstance(task, Behaviours):
        raise ValueError(
            f"a match is played by tasks of several agents, but {name} is {task}; train behaviours in an environment "
            "with teams"
        )
    return task
