"""A multi-agent environment of PettingZoo as one Gymnasium environment.

An observation has one entry per agent, and the outcome of the step for each of them. So everything that steps, records
and restores Gymnasium environments does the same for these.
"""

from __future__ import annotations

import inspect
import reprlib
from array import array
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import reduce
from importlib import import_module
from operator import add
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ....spaces.errors import near
from ...errors import class_and_text
from ...runtime.warning_filters import changed_filters
from ..base.arrays import ENDS, NUMBERS, is_number
from ..base.failures import attribute, check_reset, refusal
from ..base.info import as_dict, find, number
from ..base.joined import CHOICES
from ..base.masks import ALLOWS, MASK, OBSERVATION, beside_mask, flat, legal, told_mask, without_choice
from ..base.observations import Observations
from ..base.spec import IN_INFO, JOINT, EnvSpec, EnvSpecError, with_arrays
from ..base.writers import size_of
from .grouping import grouped

# Columns of an outcome: the agent's reward, whether its episode terminated or was truncated, whether it is present
# afterwards, and whether its next action counts (in a turn-based game, that of one agent at a time).
REWARD, TERMINATED, TRUNCATED, PRESENT, ACTS = range(5)
OUTCOME = 5
AGENTS, STATE, OUTCOMES = "agents", "global_state", "outcomes"  # the entries of an observation, in their order
RETURN = "return"  # entry of info: returns of behaviours
RETURNS = "returns"  # entry of info: returns of agents
OWN_INFO = (f"{RETURN}.", f"{RETURNS}.")  # beginnings of their names
# Warnings for the authors of environments.
IGNORED = {
    "The old environment creation API has been deprecated": DeprecationWarning,
    "pkg_resources is deprecated as an API": UserWarning,
}
ENTRIES = ("parallel_env", "env")  # functions of PettingZoo's modules
RESET = "PettingZoo's reset(seed=None, options=None)"

Space = spaces.Space[Any]
Observation = dict[str, Any]


class JointEnv(gym.Env[Observation, tuple[Any, ...]]):
    """All agents of a PettingZoo environment in one Gymnasium environment.

    - An observation is ``{"agents": (one per agent, ...), "outcomes": (A, 5)}``; an absent agent's is a constant. With
      the spec's `state` it also has ``"global_state"``, the numbers of the environment's `state()`.
    - An action is a tuple with one per agent; those of absent agents, and of others' turns, are ignored. One that the
      agent's action mask forbids is replaced, see `masks.legal`.
    - The reward is the sum of all agents' rewards, added in their order.
    - If the spec names some, ``info["return"]`` has the return so far of each behaviour, the mean over its agents, and
      ``info["returns"]`` that of each agent; ``info[BEHAVIOUR]`` has means of entries over its agents that report them.
    - An episode ends when no agent is left. It is truncated if an agent's last step was, and else terminated.

    Attributes:
        agents: names of all agents that may appear, in PettingZoo's order.
        observed, acted: observation and action space of each agent.
        groups: agents of each behaviour.
        turns: whether the agents act one after another.
    """

    def __init__(self, env: Any, spec: EnvSpec, turns: bool) -> None:
        """Wrap an environment.

        Args:
            env: environment with PettingZoo's parallel interface.
            spec: its spec.
            turns: whether one agent acts at a time, as `turn_based_aec_to_parallel` has it.

        Raises:
            EnvSpecError: the agents are not known beforehand, or one lacks a space.
        """
        check_reset(env.unwrapped, spec, RESET, "draw all random numbers from np.random.default_rng(seed)")
        self.env, self.name, self.turns = env, spec.id, turns
        self.metadata = dict(attribute(env, "metadata") or {})
        self.render_mode = attribute(env, "render_mode")
        self.agents = self._possible_agents()
        self.all_agents, self.agent_names = [*self.agents], frozenset(self.agents)
        self.groups = grouped(self.agents, spec.behaviours, self.name)
        self.observed = [self._space("observation_space", agent) for agent in self.agents]
        self.acted = [self._space("action_space", agent) for agent in self.agents]
        self.masks_in_info: set[str] = set()  # agents whose masks stand in info
        for slot, (agent, space) in enumerate(zip(self.agents, self.acted, strict=True)):
            if spec.masks == IN_INFO and isinstance(space, CHOICES) and not masked(self.observed[slot]):
                self.observed[slot] = beside_mask(self.observed[slot], space)
                self.masks_in_info.add(agent)
        self.blanks = [blank(space) for space in self.observed]
        self.masked = {agent for agent, space in zip(self.agents, self.observed, strict=True) if masked(space)}
        self.has_state, self.reports = spec.state, any(name.startswith(OWN_INFO) for name in spec.info)
        self.averaged = [(name, entry) for name, entry in map(self._entry, spec.info) if name in self.groups]
        self.all_act = np.zeros((len(self.agents), OUTCOME), np.float32)  # outcomes of a step without ends
        self.all_act[:, PRESENT:] = 1
        entries = {AGENTS: spaces.Tuple(self.observed), OUTCOMES: _unbounded(len(self.agents), OUTCOME)}
        self.observation_space = spaces.Dict(entries | ({STATE: self._state_space()} if spec.state else {}))
        self.action_space = spaces.Tuple(self.acted)

    def _possible_agents(self) -> tuple[str, ...]:
        """Return the names of all agents that may appear."""
        agents = tuple(attribute(self.env, "possible_agents") or ())
        if not agents:
            raise EnvSpecError(
                f"{self.name}: agents are known beforehand, but possible_agents is empty; list all that may appear"
            )
        if any(not isinstance(agent, str) for agent in agents) or len({*agents}) < len(agents):
            raise EnvSpecError(
                f"{self.name}: agents have names, each one another string, but possible_agents is "
                f"{reprlib.repr([*agents])}; name them as in walker_0, walker_1"
            )
        return agents

    def _entry(self, name: str) -> tuple[str, str]:
        """Return the agent or behaviour in an entry's name, and the rest."""
        owner, dot, entry = name.partition(".")
        if not (owner and dot and entry):
            raise EnvSpecError(
                f"{self.name}: info has entries of each agent, so one is named BEHAVIOUR.ENTRY, such as "
                f"{next(iter(self.groups))}.{name}, or AGENT.ENTRY, but got {name!r}"
            )
        owners = dict.fromkeys((*self.groups, *self.agents, RETURN, RETURNS))
        if not name.startswith(tuple(f"{owner}." for owner in owners)):
            raise EnvSpecError(
                f"{self.name}: info has entries of behaviours and agents, which are {reprlib.repr([*owners][:-2])}, "
                f"but got {name!r}{near(owner, owners) or '; name one of these'}"
            )
        return owner, entry

    def _space(self, method: str, agent: str) -> Space:
        try:
            space = getattr(self.env, method)(agent)
        except Exception as error:
            raise EnvSpecError(
                f"{self.name}: {method}(agent) returns the space of each of possible_agents, but failed for {agent!r}: "
                f"{class_and_text(error)}; return one for each, or list only agents that have one"
            ) from error
        if not isinstance(space, gym.Space):
            raise EnvSpecError(
                f"{self.name}: {method}(agent) must return a Gymnasium space, but for {agent!r} got {space!r}; return "
                "one, such as gymnasium.spaces.Discrete(2)"
            )
        return space

    def _state_space(self) -> Space:
        """Return the space of the environment's state as numbers."""
        space = attribute(self.env, "state_space")
        if not isinstance(space, spaces.Box):
            self.env.reset(seed=0)
            state = self._state()
            space = spaces.Box(0, 255, state.shape, np.uint8) if state.dtype == np.uint8 else _unbounded(*state.shape)
        if Observations(space, self.name).kind != "vector":
            raise EnvSpecError(
                f"{self.name}: a central critic sees a state of numbers, but state() returns images of the shape "
                f"{space.shape}; use critic.central=joint"
            )
        return _unbounded(size_of(space))

    def _state(self) -> NDArray[Any]:
        """Return the environment's state."""
        try:
            state = np.asarray(self.env.state())
            return state if state.dtype == np.uint8 else state.astype(np.float32)
        except (NotImplementedError, AttributeError, TypeError, ValueError) as error:
            raise EnvSpecError(
                f"{self.name}: a central critic of the state needs state() to return numbers, but it failed: {error!r};"
                " use critic.central=joint"
            ) from error

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        result = self.env.reset(seed=seed, options=None if options is None else dict(options))
        observations, infos = self._checked("reset", ("observations", "infos"), result)
        self.returns, self.steps = dict.fromkeys(self.agents, 0.0), 0
        if not attribute(self.env, "agents"):
            raise EnvSpecError(
                f"{self.name}: an episode begins with one agent or more, but after reset there is none in agents; list "
                "those that are present"
            )
        first = self._outcomes((), [0.0] * len(self.agents), {}, {})
        return self._observation(observations, infos, first), self._with_returns(infos)

    def _checked(self, method: str, parts: Sequence[str], result: Any) -> Sequence[Mapping[str, Any]]:
        """Return a result, checked to have a dict for each part."""
        whole = isinstance(result, tuple) and len(result) == len(parts)
        if not (whole and ({*map(type, result)} == {dict} or all(isinstance(part, Mapping) for part in result))):
            raise EnvSpecError(
                f"{self.name}: {method} returns ({', '.join(parts)}), each a dict by agent, as PettingZoo's parallel "
                f"environments do, but it returned {reprlib.repr(result)}; fix it"
            )
        checked: Sequence[Mapping[str, Any]] = result
        return checked

    def _check_types(self, rewards: Mapping[str, Any], *ends: Mapping[str, Any]) -> None:
        """Raise EnvSpecError for rewards and ends of other types."""
        for part, usual, types, rule in (
            (rewards, NUMBERS, "buif", "a reward is a number"),
            *((part, ENDS, "bui", "terminations and truncations are booleans") for part in ends),
        ):
            if usual.issuperset(map(type, part.values())):
                continue
            for agent, value in part.items():
                if not is_number(value, types):
                    text = f"{self.name}: {rule}, but that of {agent!r} is {reprlib.repr(value)}; fix it"
                    raise EnvSpecError(text)

    def _legal(self, slot: int, action: Any) -> Any:
        """Return an agent's action, or an allowed one in its place."""
        agent, space = self.agents[slot], self.acted[slot]
        mask = flat(self.last_observations[slot][MASK])
        if len(without_choice(mask[None], space)):
            raise EnvSpecError(
                f"{self.name}: {ALLOWS}, but that of {agent} allows none; fix it, or end the episode there"
            )
        return legal(action, mask, space)

    def step(self, action: tuple[Any, ...]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        before = self._present()
        acting = self._acting() if self.turns else before
        # Each agent's own action, since an environment may change what it gets.
        actions = dict(zip(self.agents, action, strict=True))
        if self.masked or len(acting) < len(self.agents):
            actions = {
                agent: self._legal(slot, actions[agent]) if agent in self.masked else actions[agent]
                for slot, agent in enumerate(self.agents)
                if agent in acting
            }
        parts = ("observations", "rewards", "terminations", "truncations", "infos")
        result = self._stepped(actions)
        observations, rewards, terminated, truncated, infos = self._checked("step", parts, result)
        self._check_types(rewards, terminated, truncated)
        numbers = self._numbers(rewards)
        if lacking := {*before}.difference(rewards):
            agent = next(agent for agent in self.agents if agent in lacking)
            raise EnvSpecError(
                f"{self.name}: every agent that was present before a step gets a reward for it, but {agent!r} got none "
                f"at step {self.steps} of an episode; give 0.0 where there is nothing to reward"
            )
        if len(before) < len(self.agents):
            self._check_absent(before, numbers)
        if self.reports:
            for agent, reward in zip(self.agents, numbers, strict=True):
                self.returns[agent] += reward
        total = reduce(add, numbers, 0.0)  # sum() rounds otherwise since Python 3.12
        outcomes = self._outcomes(before, numbers, terminated, truncated)
        over = not self.env.agents
        cut = over and bool(outcomes[:, TRUNCATED].any())
        observation = self._observation(observations, infos, outcomes)
        return observation, total, over and not cut, cut, self._with_returns(infos)

    def _stepped(self, actions: Mapping[str, Any]) -> Any:
        """Step the environment.

        Raises:
            EnvSpecError: in a game of turns, it is the turn of nobody there.
        """
        self.steps += 1
        try:
            return self.env.step(actions)
        except LookupError:
            game = attribute(self.env, "aec_env")
            turn, agents = attribute(game, "agent_selection"), attribute(game, "agents")
            if not agents or turn in agents:
                raise
            raise EnvSpecError(
                f"{self.name}: agent_selection is one of agents, whose turn it is, but at step {self.steps} of an "
                f"episode it is {turn!r}, and agents is {reprlib.repr(agents)}; select one of these"
            ) from None

    def _check_absent(self, before: Sequence[str], rewards: Sequence[float]) -> None:
        """Raise EnvSpecError if an agent got a reward in its absence."""
        for agent, reward in zip(self.agents, rewards, strict=True):
            if reward and agent not in before:
                raise EnvSpecError(
                    f"{self.name}: only agents that were present before a step get a reward for it, but {agent!r}, "
                    f"which was absent, got {reward:g}; give it in the step in which the agent leaves"
                )

    def _numbers(self, rewards: Mapping[str, Any]) -> list[float]:
        """Return the rewards of all agents; those of absent ones are 0."""
        self._check_names("rewards", rewards)
        try:
            return [float(rewards.get(agent, 0.0)) for agent in self.agents]
        except OverflowError as error:
            raise EnvSpecError(
                f"{self.name}: rewards must be below 1e308, but at step {self.steps} of an episode they are "
                f"{reprlib.repr(rewards)}; scale them down"
            ) from error

    def _with_returns(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return the agents' info, and the returns that the spec names."""
        if self.averaged:
            infos = {**infos, **self._means(infos)}
        if not self.reports:
            return dict(infos)
        of_behaviours = {
            name: sum(self.returns[agent] for agent in agents) / len(agents) for name, agents in self.groups.items()
        }
        return {**infos, RETURN: of_behaviours, RETURNS: dict(self.returns)}

    def _means(self, infos: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the means of entries over the agents of a behaviour."""
        means: dict[str, dict[str, Any]] = {}
        for name, entry in self.averaged:
            values = (find(infos, f"{agent}.{entry}") for agent in self.groups[name])
            entries = [x for x in values if x is not None]
            numbers = [value for x in entries if (value := number(x)) is not None]
            if len(numbers) < len(entries):  # named as wrong where all entries are read
                means.setdefault(name, {})[entry] = next(x for x in entries if number(x) is None)
            elif numbers:
                means.setdefault(name, {})[entry] = reduce(add, numbers) / len(numbers)
        return means

    def _acting(self) -> list[str]:
        """Return the agents whose actions count now."""
        return [self.env.aec_env.agent_selection] if self.turns and self.env.agents else self._present()

    def _present(self) -> list[str]:
        """Return the agents whose episodes have not ended.

        In a game of turns an agent may be listed until its turn comes.
        """
        if not self.turns:
            return list(self.env.agents)
        game = self.env.aec_env
        return [agent for agent in self.env.agents if not (game.terminations[agent] or game.truncations[agent])]

    def _outcomes(
        self,
        before: Sequence[str],
        rewards: Sequence[float],
        terminated: Mapping[str, Any],
        truncated: Mapping[str, Any],
    ) -> NDArray[np.float32]:
        """Return outcomes (A, 5) of a step, with current presence and turns."""
        outcomes = self.all_act.copy()
        outcomes[:, REWARD] = array("f", rewards)  # a reward above 3e38 becomes infinite
        all_stay = not self.turns and [*self.env.agents] == self.all_agents
        if not all_stay or any(terminated.values()) or any(truncated.values()):
            self._check_names("agents", self.env.agents)
            present = self._present()
            if len({*present}) < len(present):
                raise EnvSpecError(
                    f"{self.name}: agents lists each present agent once, but it is {reprlib.repr(present)}; remove the "
                    "second of each"
                )
            for agent in before:
                ended = bool(terminated.get(agent) or truncated.get(agent))
                if ended == (agent in present):
                    fault = "has left agents without either; set one of them"
                    if ended:
                        fault = "has done so and is still listed; remove it"
                    raise EnvSpecError(
                        f"{self.name}: an agent leaves in the step in which it terminates or is truncated, but "
                        f"{agent!r} {fault}"
                    )
            acting = self._acting() if self.turns else present
            outcomes[:, TERMINATED:] = [
                (bool(terminated.get(agent)), bool(truncated.get(agent)), agent in present, agent in acting)
                for agent in self.agents
            ]
        return outcomes

    def _observation(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any], outcomes: NDArray[np.float32]
    ) -> Observation:
        if missing := [agent for agent in self.env.agents if agent not in observations]:
            raise EnvSpecError(
                f"{self.name}: every present agent gets an observation, but {missing[0]!r} got none at step "
                f"{self.steps} of an episode; give it one, or remove it from agents"
            )
        if self.masks_in_info:
            observations = self._beside_masks(observations, infos)
        self.last_observations = tuple(map(observations.get, self.agents, self.blanks))
        joint = {AGENTS: self.last_observations, OUTCOMES: outcomes}
        return joint | {STATE: self._state().reshape(-1)} if self.has_state else joint

    def _beside_masks(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return observations beside the masks that infos tell.

        Agents that have left, or wait for their turns, need none.
        """
        joined, acting = dict(observations), self._acting()
        for slot, agent in enumerate(self.agents):
            if agent not in self.masks_in_info or agent not in observations:
                continue
            mask = as_dict(infos.get(agent), self.name).get(MASK)
            if mask is None and agent in acting:
                raise EnvSpecError(
                    f"{self.name}: the info of an agent that acts has an {MASK} after every reset and step, but that "
                    f'of {agent!r} has none; add it, or leave out "masks"'
                )
            subject = f"{self.name}, {agent}"
            mask_row = self.blanks[slot][MASK] if mask is None else told_mask(mask, self.acted[slot], subject)
            joined[agent] = {MASK: mask_row, OBSERVATION: observations[agent]}
        return joined

    def _check_names(self, entry: str, names: Any) -> None:
        if not self.agent_names.issuperset(names):
            unknown = [name for name in names if name not in self.agent_names]
            raise EnvSpecError(
                f"{self.name}: possible_agents lists all agents, but {entry} has {unknown[0]!r} at step {self.steps} "
                f"of an episode, and there are only {', '.join(self.agents)}; list it there, or leave it out of {entry}"
            )

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _unbounded(*shape: int) -> spaces.Box:
    """Return the space of float32 arrays of a shape."""
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def blank(space: Space) -> Any:
    """Return the observation of an absent agent, a constant."""
    if isinstance(space, spaces.Dict):
        return {name: blank(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(blank(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.copy()
    zeros = np.zeros(space.shape or (), space.dtype)
    return np.clip(zeros, space.low, space.high).astype(space.dtype) if isinstance(space, spaces.Box) else zeros


def masked(space: Space) -> bool:
    """Return whether an agent's observations have an action mask."""
    return isinstance(space, spaces.Dict) and MASK in space.spaces


def is_joint(spec: EnvSpec) -> bool:
    """Return whether a spec names an environment of several agents."""
    return spec.id.startswith(JOINT)


def make_joint(spec: EnvSpec) -> JointEnv:
    """Create the environment of all agents.

    ``pettingzoo/mpe2:simple_spread_v3`` names the module ``mpe2.simple_spread_v3``, ``pettingzoo/sisl:pursuit_v4`` one
    of PettingZoo's own, and ``pettingzoo/my_module:MyEnv`` a class or a function of yours.

    Raises:
        EnvSpecError: there is no such environment.
    """
    try:
        from pettingzoo import AECEnv, ParallelEnv
        from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel
    except ImportError as error:
        raise EnvSpecError(f"{spec.id} needs PettingZoo: pip install 'rekindle-rl[pettingzoo]' ({error})") from error
    try:
        with changed_filters(IGNORED):
            env = _maker(spec, (ParallelEnv, AECEnv))(**with_arrays(deepcopy(spec.kwargs)))
    except EnvSpecError:
        raise
    except ImportError as error:
        raise EnvSpecError(f"{spec.id} needs a module that cannot be imported: {_why(error)}") from error
    except Exception as error:
        raise refusal(f"{spec.id} cannot be made with kwargs {dict(spec.kwargs)}", error, spec.kwargs) from error
    if isinstance(env, ParallelEnv):
        return JointEnv(env, spec, turns=False)
    if not isinstance(env, AECEnv):
        raise EnvSpecError(
            f"{spec.id} must make PettingZoo's ParallelEnv or AECEnv, but made {env!r}; derive it from one"
        )
    if env.metadata.get("is_parallelizable"):
        return JointEnv(aec_to_parallel(env), spec, turns=False)
    return JointEnv(turn_based_aec_to_parallel(env), spec, turns=True)


def _maker(spec: EnvSpec, bases: tuple[type, ...]) -> Any:
    """Return the function or class that makes an environment.

    A spec may come from a shared database, so it must not be able to call arbitrary functions: a function of a module
    that is not one of PettingZoo's form says in its annotation that it returns an environment.

    Raises:
        EnvSpecError: nothing of that name makes one.
    """
    module, colon, name = spec.id.removeprefix(JOINT).partition(":")
    if not (module and colon and name):
        raise EnvSpecError(
            f"an environment of several agents is named {JOINT}MODULE:NAME, such as {JOINT}mpe2:simple_spread_v3, "
            f"but got {spec.id}"
        )
    target = _imported(module, name, spec)
    if isinstance(target, ModuleType):
        for entry in ENTRIES:
            if callable(factory := getattr(target, entry, None)):
                return factory
        raise EnvSpecError(
            f"{spec.id}: the module {target.__name__} must have parallel_env or env, but has neither; name a class or "
            f"a function of it, as in {spec.id}:MyEnv, or add one of them"
        )
    if isinstance(target, type) and issubclass(target, bases):
        return target
    returned = inspect.signature(target).return_annotation if inspect.isfunction(target) else None
    names = {base.__name__ for base in bases}
    if returned is not None and str(getattr(returned, "__name__", returned)).split("[")[0].split(".")[-1] in names:
        return target
    raise EnvSpecError(
        f"{spec.id} must name a module with parallel_env or env, a class derived from ParallelEnv or AECEnv, or a "
        f"function annotated to return one, but {name} is {target!r}; write def {name}(...) -> ParallelEnv"
    )


def _why(error: ImportError) -> str:
    """Return why an import failed, and what to do about it."""
    return f"{error}; install it" if isinstance(error, ModuleNotFoundError) else str(error).rstrip(".")


def _imported(module: str, name: str, spec: EnvSpec) -> Any:
    """Return the module or the attribute that an id names."""
    missing: Exception | None = None
    for package in (module, f"pettingzoo.{module}"):
        try:
            return import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            # its own import may have failed: then that is the cause to name
            if not (error.name and f"{package}.{name}".startswith(error.name)):
                raise EnvSpecError(f"{spec.id} needs a module that cannot be imported: {_why(error)}") from error
            missing = missing or error
        except ImportError as error:
            raise EnvSpecError(f"{spec.id} needs a module that cannot be imported: {_why(error)}") from error
        try:
            return getattr(import_module(package), name)
        except (ModuleNotFoundError, AttributeError) as error:
            missing = error if isinstance(error, AttributeError) else missing
    raise EnvSpecError(
        f"{spec.id} must name an environment that can be imported, but {missing}; mend the name, or install its package"
    ) from missing
