"""Goals of studies: returns that fresh episodes confirm.

A result that reaches the goal may be luck, and the best of many results is. So its policy plays episodes that no
training and no comparison has seen, until a test is sure that their mean exceeds the goal, or does not get there. The
k-th such test of a study may err with a probability of ERROR / (k (k + 1)), so that all of them together declare a goal
by luck with a probability of ERROR at most. The test takes for granted that no episode is worse than the worst of the
untrained agent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import CommandRefused
from ..statistics.betting import wealth
from ..storage.commands import CHECK, STOP, Command, add, commands, hold, hold_of
from ..storage.studies import revise
from ..study.digits import in_digits
from ..study.objectives import RETURN

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ...tasks.task import Task
    from ..storage.rows import Segment
    from ..storage.store import Store
    from ..study.config import Config

WHO = "goal"  # gives the command
ERROR = 0.05  # probability that a study declares its goal by luck, at most
BATCHES = tuple(20 * 2**n for n in range(6))  # episodes
SEED = 0x60A1  # of the first batch of the first test
Returns = Callable[[int, int], Sequence[float]]  # of so many episodes of a seed


def check_goal(
    store: Store, study: str, config: Config, segment: Segment, score: float, task: Task, untrained: Callable[[], Task]
) -> None:
    """Test a result that reaches the goal; stop if confirmed.

    A result is tested once; the test and its figures are a row.

    Args:
        store: holds the study.
        study: its name.
        config: the study's.
        segment: whose result it is.
        score: the result.
        task: trained so far.
        untrained: makes the same task without any training.
    """
    goal = config.options.get("goal", {}).get(RETURN)
    if goal is None or score < goal:
        return
    place = {"goal": {RETURN: goal}, "trial": segment.number, "epochs": segment.epochs}
    given = store.commands(study)
    held, tests = hold_of(given), [each.data for each in given if each.kind == CHECK]
    if (held is not None and held.kind == STOP) or any(place.items() <= each.items() for each in tests):
        return
    returns: Returns = lambda episodes, seed: task.returns(episodes, seed=seed)  # noqa: E731
    least = min(goal, *untrained().returns(seed=SEED))
    found, reached = play(returns, goal, least, len(tests) + 1)

    def work(connection: Connection) -> Command:
        revise(connection, study)
        before = [each for each in commands(connection, study) if each.kind == CHECK]
        error = error_of(len(before) + 1)
        mean = statistics.fmean(found)
        data: dict[str, Any] = {**place, "episodes": len(found), "mean": mean, "least": least, "wealth": reached}
        data |= {"error": error, "confirmed": reached >= 1 / error}
        shown, aim = in_digits([mean, goal])
        why = f"trial {segment.number} at epoch {segment.epochs} has a return of {shown} in {len(found)} fresh episodes"
        checked = add(connection, study, CHECK, data, WHO, why)
        if data["confirmed"]:
            why += f", which confirms {aim}; a study errs in that with a probability of {ERROR:g} at most"
            with suppress(CommandRefused):  # it was stopped already
                hold(connection, study, STOP, WHO, why, {"goal": place["goal"], "check": checked.number})
        return checked

    store.command(work)


def error_of(test: int) -> float:
    """Return the probability of an error of a study's n-th test."""
    return ERROR / (test * (test + 1))


def play(returns: Returns, goal: float, least: float, test: int) -> tuple[list[float], float]:
    """Return fresh episodes' returns, and a bettor's wealth.

    It ends early when the wealth is enough, or when the mean does not exceed the goal.
    """
    found: list[float] = []
    reached = 1.0
    for batch, episodes in enumerate(BATCHES):
        found += returns(episodes, SEED + 1000 * test + batch)
        reached = wealth(found, goal, least)
        if reached >= 1 / error_of(test) or statistics.fmean(found) <= goal:
            break
    return found, reached
