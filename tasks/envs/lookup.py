"""What an environment is like, whoever makes it: one by one, or a pool of them."""

from __future__ import annotations

from functools import lru_cache

from .encode import Observations
from .gym.make import Spaces, make_env
from .gym.selftest import Restore, self_test
from .pools.makers import is_pool
from .pools.pool import pool_spaces, pool_test
from .spec import EnvSpec


@lru_cache(maxsize=64)
def spaces_of(spec: EnvSpec) -> Spaces:
    """The spaces before any training; EnvSpecError if it cannot be made, UnsupportedSpace if it cannot be seen."""
    if is_pool(spec):
        spaces = pool_spaces(spec)
    else:
        env = make_env(spec)
        spaces = Spaces(env.observation_space, env.action_space)
        env.close()
    Observations(spaces.observation, spec.id)
    return spaces


def restore_of(spec: EnvSpec) -> Restore:
    """The best exact way to restore it; tried once per process."""
    return pool_test(spec) if is_pool(spec) else self_test(spec)
