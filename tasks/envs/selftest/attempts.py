"""Attempts of the self-test, and the search for its premises.

It compares used environments with new ones, with the same seeds and actions: every observation, reward and end, bit for
bit. The number of its steps is fixed, so its outcome does not depend on the machine's speed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache

from ...errors import EnvironmentFailed, TaskError, text_of
from ..base.spec import EnvSpec
from ..gym.chance import watched_generators
from ..gym.restore import Restore
from ..gym.single_instance import take_turn
from ..gym.surroundings import guards_of
from .bench import Bench, Premises, Refuted
from .ways import declared_way, exact_way

DRAWS = (0, 0, 1, 2)  # of seeds and actions, for each attempt; the second one tells failing always from failing once


@cache
def self_test(spec: EnvSpec) -> Restore:
    """Return the best exact way to restore this environment.

    The test runs once per process.
    """
    with guards_of(spec.id).always:
        return patiently(spec, lambda draw: _tested(spec, draw))


def patiently(spec: EnvSpec, test: Callable[[int], Restore]) -> Restore:
    """Return the result of a test, repeated if the environment's code raises.

    Training tolerates a simulator that fails rarely: a trial resumes from its last checkpoint, or one of many trials
    fails. The test therefore raises (its first error) only if every attempt fails, and warns otherwise.

    Args:
        spec: the environment's spec.
        test: called with the number of a draw of seeds and actions.
    """
    failed: list[Exception] = []
    for draw in DRAWS:
        try:
            restore = test(draw)
        except Exception as error:
            if isinstance(error, MemoryError | TaskError | Warning) and not isinstance(error, EnvironmentFailed):
                raise  # not a failure of the environment's code, or one that the program wants
            failed.append(error)
        else:
            if failed:
                _warn(spec, failed)
            return restore
    raise failed[0]


def _warn(spec: EnvSpec, failed: list[Exception]) -> None:
    again = "does not with the same" if len(failed) == 1 else "does so again with the same, but not with other"
    raised = f"raised {type(failed[0]).__name__} ({text_of(failed[0])}) in its self-test"
    warnings.warn(
        f"{spec.id}: the environment's own code {raised}, and {again} seeds and actions; a trial that meets this is "
        "retried from its last checkpoint, and fails if it happens again and again",
        stacklevel=4,
    )


def _tested(spec: EnvSpec, draw: int) -> Restore:
    """Return the best exact way to restore, tested with one draw.

    The test is repeated until its premises hold.
    """
    take_turn()
    premises = Premises(single_instance=spec.single_instance)
    while True:
        used: set[str] = set()
        try:
            with watched_generators(used):
                restore = _tested_under(premises, spec, draw)
        except Refuted as refuted:
            premises = refuted.premises
            continue
        if not used or premises.generators:
            return restore
        premises = Premises(tuple(sorted(used)), premises.single_instance)


def _tested_under(premises: Premises, spec: EnvSpec, draw: int) -> Restore:
    with closing(Bench(spec, premises)) as bench:
        restore = (declared_way if spec.restore else exact_way)(bench, draw)
        bench.check_parameters()
        return replace(
            restore,
            unreported=bench.unreported(),
            advice=(*restore.advice, *bench.advice()),
            generators=premises.generators,
            single_instance=premises.single_instance,
            played=restore.played if draw == 0 else "",
        )
