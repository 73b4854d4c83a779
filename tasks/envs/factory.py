"""Creation of environments from their spec, and of facts about a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import gymnasium as gym

from ..runtime.progress import at_work
from .agents.adapter import is_joint
from .agents.roster import roster_of
from .agents.views import learner_space
from .base.envs import Envs
from .base.failures import close_env
from .base.masks import check_mask
from .base.observations import Observations
from .base.space_rules import Spaces
from .base.spec import EnvSpec, EnvSpecError
from .classic.dynamics import MODELS
from .classic.envs import classic_envs, is_classic
from .gym.backend import Backend, InProcess
from .gym.envs import GymEnvs
from .gym.make import make_env
from .gym.single_instance import take_turn
from .gym.surroundings import guards_of
from .pools.makers import is_pool
from .pools.pool import Pool, pool_spaces
from .processes.agreement import compared, tested
from .processes.parent import Processes
from .selftest.attempts import self_test


def make_envs(
    spec: str | Mapping[str, Any] | EnvSpec,
    seeds: Sequence[int],
    num_envs: int,
    purpose: str = "train",
    processes: int = 0,
    single_episodes: bool = False,
) -> Envs:
    """Create environments for P = len(seeds) members, ``num_envs`` each.

    Args:
        spec: the environment.
        seeds: seeds of the members.
        num_envs: environments of each member.
        purpose: selects the random streams; training and evaluation have different ones.
        processes: number of processes that share the steps, 0 for this one alone; for a pool, its number of threads.
            Classic control ignores it. The number does not change the result.
        single_episodes: whether an environment need not be stepped after the end of its first episode. Classic control
            and pools ignore it.

    Raises:
        EnvSpecError: the environment cannot be made.
    """
    spec = EnvSpec.of(spec)
    for name in ("restore", "on_error", "masks"):
        if getattr(spec, name) and steps_all_at_once(spec):
            raise EnvSpecError(f"{spec.id}: {name} is for environments with steps of their own; leave it out here")
    if is_classic(spec):
        return classic_envs(spec, seeds, num_envs, purpose)
    with at_work():  # its episodes may hang, or end the process
        restore = tested(spec) if processes and not is_pool(spec) else compared(spec)
    spaces, size = spaces_of(spec), len(seeds) * num_envs
    if restore.single_instance and size > 1:
        raise EnvSpecError(
            f"{spec.id} allows one instance at a time, but {len(seeds)} x {num_envs} are needed; set num_envs=1, and "
            "train one task in a process"
        )

    def backend() -> Backend:
        if is_pool(spec):
            return Pool(spec, size, processes)
        if processes:
            return Processes(spec, size, processes, restore, spaces)
        return InProcess(spec, size, restore.generators, guards_of(spec.id))

    def young() -> Backend:
        return Processes(spec, 1, 1, restore, spaces)

    single_episodes = single_episodes and not is_pool(spec)
    return GymEnvs(spec, seeds, num_envs, purpose, backend, restore, spaces, single_episodes, young)


def steps_all_at_once(spec: EnvSpec) -> bool:
    """Return whether many environments cost hardly more than one."""
    return is_classic(spec) or is_pool(spec)


def time_limit(spec: EnvSpec) -> int | None:
    """Return the steps after which an environment's episodes end, if known."""
    if spec.max_episode_steps is not None or is_classic(spec):
        return spec.max_episode_steps or MODELS[spec.id].limit
    if is_pool(spec) or is_joint(spec):
        return None
    spaces_of(spec)  # registers the id
    registered = gym.registry.get(spec.id.rpartition(":")[2])
    return None if registered is None else registered.max_episode_steps


def numbers_episodes(spec: EnvSpec) -> bool:
    """Return whether an episode's number decides it, whatever was played before."""
    return not (is_pool(spec) or is_joint(spec))


def allows_one(spec: EnvSpec) -> bool:
    """Return whether only one environment can exist at a time."""
    if not spec or steps_all_at_once(spec):
        return False
    with at_work():
        return self_test(spec).single_instance


@lru_cache(maxsize=64)
def spaces_of(spec: EnvSpec) -> Spaces:
    """Return the spaces of one environment.

    Raises:
        EnvSpecError: it cannot be made.
        UnsupportedSpace: its observations cannot be encoded.
    """
    if spec.behaviour:
        behaviour = roster_of(replace(spec, behaviour="")).behaviours[spec.behaviour]
        spaces = Spaces(behaviour.observation, learner_space(behaviour.action))
    elif is_pool(spec):
        spaces = pool_spaces(spec)
    else:
        with at_work(), guards_of(spec.id).always:  # its code may hang, or end the process
            take_turn()
            env = make_env(spec)
            spaces = Spaces(env.observation_space, env.action_space)
            close_env(env, spec)
    encoder = Observations(spaces.observation, spec.id)
    if encoder.mask is not None:
        check_mask(encoder.mask.stop - encoder.mask.start, spaces.action, spec.id)
    return spaces
