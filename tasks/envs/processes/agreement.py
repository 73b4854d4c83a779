"""A short episode that shows whether processes play alike.

The self-test runs in this process alone. A module that draws values when it is imported has others in each process.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import numpy as np

from ...rng import streams
from ..base.curriculum import Curriculum
from ..base.encode import Actions
from ..base.spec import EnvSpec
from ..gym.backend import InProcess
from ..gym.envs import twice
from ..gym.surroundings import guards_of

STEPS = 8


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
