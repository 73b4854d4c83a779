"""Goals of studies: returns that must be confirmed by fresh episodes.

A single result that reaches the goal may be luck, especially as the best of many. The policy therefore plays episodes
that were used for no training and no comparison, until a test either establishes that their mean exceeds the goal or
fails. The k-th test of a study has error probability ERROR / (k (k + 1)); the sum over all tests is at most ERROR. The
test assumes that no episode has a lower return than the worst of the untrained agent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..engine.bounds import stop_at
from ..errors import CommandRefused
from ..statistics.betting import wealth
from ..storage.commands import CHECK, STOP, Command, add, commands, hold_of
from ..storage.studies import revise
from ..study.number_text import in_digits
from ..study.objectives import RETURN

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ...tasks.evaluation.episodes import OnStep
    from ...tasks.task import Task
    from ..storage.rows import Segment
    from ..storage.store import Store

WHO = "goal"  # recorded as the author of the stop command
ERROR = 0.05  # maximum probability that a study declares its goal by luck
BATCHES = tuple(20 * 2**n for n in range(6))  # episodes per batch
SEED = 0x60A1  # evaluation seeds of the tests start here
Returns = Callable[[int, int], Sequence[float]]  # (episodes, seed) -> returns


def check_goal(
    store: Store,
    study: str,
    segment: Segment,
    score: float,
    task: Task,
    untrained: Callable[[], Task],
    on_step: OnStep | None = None,
) -> None:
    """Test a result that reaches the goal; if confirmed, stop the study.

    A result is tested once; the test is recorded as a command.

    Args:
        store: store with the study.
        study: name of the study.
        segment: segment that gave the result.
        score: the result.
        task: the trained task.
        untrained: creates the same task without training.
        on_step: function called at each step of an episode; it may raise to stop.
    """
    goal = store.study(study).config.get("options", {}).get("goal", {}).get(RETURN)  # as it is now
    if goal is None or score < goal:
        return
    seed = {"seed": task.seed} if segment.seeds > 1 else {}
    subject = {"goal": {RETURN: goal}, "trial": segment.configuration, **seed, "epochs": segment.epochs}
    steering = store.commands(study)
    holding, tests = hold_of(steering), [command.data for command in steering if command.kind == CHECK]
    if (holding is not None and holding.kind == STOP) or any(subject.items() <= test.items() for test in tests):
        return
    returns: Returns = lambda episodes, seed: task.returns(episodes, seed=seed, on_step=on_step)  # noqa: E731
    least = min(goal, *untrained().returns(seed=SEED, on_step=on_step))
    outcome, reached = play(returns, goal, least, len(tests) + 1)

    def work(connection: Connection) -> Command:
        revise(connection, study)
        before = [command for command in commands(connection, study) if command.kind == CHECK]
        error = error_of(len(before) + 1)
        mean = statistics.fmean(outcome)
        data: dict[str, Any] = {**subject, "episodes": len(outcome), "mean": mean, "least": least, "wealth": reached}
        data |= {"error": error, "confirmed": reached >= 1 / error}
        measured, aim = in_digits([mean, goal])
        label = f"trial {segment.configuration}" + (f", seed {task.seed}," if seed else "")
        why = f"{label} at epoch {segment.epochs} has a return of {measured} in {len(outcome)} fresh episodes"
        checked = add(connection, study, CHECK, data, WHO, why)
        if data["confirmed"]:
            why += f", which confirms {aim}; a study errs in that with a probability of {ERROR:g} at most"
            stop = {"goal": subject["goal"], "check": checked.number}
            with suppress(CommandRefused):  # it was stopped already, or has another goal
                stop_at(connection, study, WHO, why, stop)
        return checked

    store.command(work)


def error_of(test: int) -> float:
    """Return the error probability of a study's n-th test."""
    return ERROR / (test * (test + 1))


def play(returns: Returns, goal: float, least: float, test: int) -> tuple[list[float], float]:
    """Return the returns of fresh episodes, and the bettor's wealth.

    It ends early when the wealth suffices or the mean does not exceed the goal.

    Args:
        returns: plays episodes.
        goal: return to be exceeded.
        least: lower bound of the returns.
        test: number of the test in the study, from 1.
    """
    results: list[float] = []
    reached = 1.0
    for batch, episodes in enumerate(BATCHES):
        results += returns(episodes, SEED + 1000 * test + batch)
        reached = wealth(results, goal, least)
        if reached >= 1 / error_of(test) or statistics.fmean(results) <= goal:
            break
    return results, reached
