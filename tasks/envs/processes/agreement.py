"""Episodes that show whether processes play alike.

The self-test runs in this process alone. A module that draws values when it is imported has others in each process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from hashlib import sha256

import numpy as np

from ...errors import TaskError, other_episodes
from ...rng import streams
from ..base.actions import Actions
from ..base.curriculum import Curriculum
from ..base.failures import endless
from ..base.spec import EnvSpec
from ..gym.backend import InProcess
from ..gym.chance import suspects
from ..gym.checks import twice
from ..gym.restore import Restore
from ..gym.single_instance import take_turn
from ..gym.surroundings import guards_of
from ..pools.makers import is_pool
from ..pools.pool import pool_test
from ..selftest.attempts import self_test
from .wire import Child, Layout, arrays_in, memory_file

STEPS = 8
TICKS: Layout = [("ticks", "<i8", (2,))]  # memory of a process that only runs the self-test


def tested(spec: EnvSpec) -> Restore:
    """Return the result of the self-test, which runs once per process."""
    return pool_test(spec) if is_pool(spec) else self_test(spec)


@cache
def compared(spec: EnvSpec) -> Restore:
    """Return the result of the self-test, and whether another process plays alike.

    A new process runs the test, too, if a module may depend on what differs between them. If it fails there, nothing is
    known.
    """
    restore, answer = tested(spec), None
    if not restore.played or suspects.isdisjoint(spec.modules):
        return restore
    take_turn()
    memory = memory_file(TICKS)
    child = Child({"spec": spec.to_json(), "tests": True, "endless": [*endless]}, memory)
    try:
        with suppress(TaskError):
            answer = child.receive(arrays_in(memory, TICKS)["ticks"])
    finally:
        child.release()
        child.wait()
        os.close(memory)
    differs = answer is not None and answer[0].get("played", "") not in ("", restore.played)
    return replace(restore, elsewhere=other_episodes(spec.id, "in another process") if differs else "")


def play(backend: InProcess, spec: EnvSpec) -> str:
    """Return a digest of a short episode of the first environment.

    It is "" if that raises again. If some actions may be forbidden, there is the first observation alone.
    """
    codec, options = Actions(backend.envs[0].action_space, spec.id), None
    width = int(np.prod(codec.learner_shape))
    draws = streams.uniform(streams.key("agreement"), np.arange(STEPS * width)).reshape(STEPS, width)
    actions = codec.decode(codec.pick(draws, beyond=0.5))
    if spec.parameters:
        options = Curriculum(spec.parameters, [0], "self-test", tuple(spec.info)).options(0, 0)

    def results() -> bytes:
        parts: list[object] = [backend.begin([0], [0], [options], True)]
        if backend.encoder.mask is None:
            parts += (part for outcome in backend.replay([0], [actions]) for part in outcome)
        return b"".join(np.asarray(part).tobytes() for part in parts)

    played = twice(results)
    return sha256(played).hexdigest() if isinstance(played, bytes) else ""


@lru_cache(maxsize=64)
def played_here(spec: EnvSpec, generators: tuple[str, ...]) -> str:
    """Return what `play` returns in this process."""
    backend = InProcess(spec, 1, generators, guards_of(spec.id))
    try:
        return play(backend, spec)
    finally:
        backend.close()
