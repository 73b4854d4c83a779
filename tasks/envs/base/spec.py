"""Specs of environments: descriptions as JSON, part of a trial's identity."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any

import gymnasium
import numpy as np

from ....plugins import PluginError, Registry
from ....spaces.errors import near
from ....spaces.values import plain, whole_number
from ...errors import EnvSpecError as EnvSpecError
from .curriculum import KWARGS, parse
from .info import REDUCTIONS, as_dict

IN_INFO = "info"
RESTORES = ("restart", "replay", "renew", "snapshot")
RAISED = "raised"  # entry of info: 1 in an episode whose environment raised, see `gym.restarts`
JOINT = "pettingzoo/"  # prefix of the ids of environments of several agents
OF_AGENTS = ("behaviours", "teams", "players", "opponents", "all_act", "state")  # attributes that only these have


def _problem(name: str, offered: Any, origin: str) -> str:
    bases = (gymnasium.Env, gymnasium.vector.VectorEnv)
    if not callable(offered) or (isinstance(offered, type) and not issubclass(offered, bases)):
        return f"an environment must be a class derived from gymnasium.Env, but {origin} is {offered!r}"
    if name in gymnasium.registry and gymnasium.registry[name].entry_point != origin.partition(" ")[0]:
        return f"environments must have ids of their own, but {name!r} is Gymnasium's; give {origin} another one"
    try:
        gymnasium.envs.registration.parse_env_id(name)
    except gymnasium.error.Error:
        return f"the id of an environment is written Name-v0, but that of {origin} is {name!r}; give it another one"
    return ""


OF_ENVIRONMENTS = Registry("environment", "rekindle.environments", {}, _problem)


@dataclass(frozen=True)
class EnvSpec:
    """The description of one environment.

    Attributes:
        id: Gymnasium id. ``"package.module:Name-v0"`` imports the module first, which may register the id. A package
            may also offer a class under an id, as an entry point of the group ``rekindle.environments``. The prefix
            ``envpool/`` selects EnvPool's environment, ``vector/`` the id's vector entry point, and ``pettingzoo/`` one
            of several agents. "" means no environment, and then all other attributes must be empty.
        kwargs: arguments of the environment, as JSON values. ``{"array": [0.5, 0.5]}`` becomes a NumPy array, with a
            "dtype" if it is given, also in arguments of wrappers.
        wrappers: ``{"entry_point": "package.module:Class", "kwargs": {...}}``, innermost first.
        max_episode_steps: time limit; None keeps the registered one.
        parameters: options of every reset, by name: numbers, samplers or lessons, see `curriculum`.
        masks: "info" if an action mask stands in `info`; "" if it stands in the observation, or a method
            ``action_masks()`` tells it. See `masks`.
        info: entries of the environment's `info` to report, with the reduction of an episode's values: "last", "mean",
            "sum", "min" or "max". A list of names means "last". See `info`.
        single_instance: whether only one such environment can exist at a time, since its simulator uses a fixed port
            for instance. The self-test finds this out where a second one fails; say so where that takes long.
        behaviours: agents of each behaviour that is trained, by its name.
        behaviour: name of the behaviour that this task trains.
        teams: agents of each team, by its name, for self-play.
        all_act: whether all agents act in every step until the episode ends for all, which torch learns from faster. An
            environment in which one is absent or waits then fails.
        players: by behaviour, ``random`` or a policy, which plays it without learning, see `algorithms.players`.
        opponents: policies against which evaluation measures those that learn, in the same form.
        state: whether observations contain what the environment's `state()` returns; a central critic that sees it says
            so by itself.
        scale: largest value of its uint8 images, where their space says 255 but the values are codes, as in MiniGrid's
            grids (10). Values are divided by it. None trusts the bounds of the space.
        restore: how its state is restored, declared instead of tested, for simulators whose steps take long: "restart"
            begins each epoch with new environments; "replay" repeats the running episode's actions, "renew" in a new
            environment for each episode; "snapshot" is for MuJoCo and Atari. "" leaves it to the self-test.
        on_error: "restart" to end an episode as truncated where the environment's code raises, and to continue with a
            new one; "" to fail. At most 5% of a training's episodes may raise, and three beside. See `gym.restarts`.
        reward_weights: weights of the parts of a reward that is a vector, as in MO-Gymnasium; their sums over an
            episode are reported as `return.0`, `return.1` and so on. See `gym.rewards`.

    Raises:
        EnvSpecError: a value is malformed.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Mapping[str, Any]] = ()
    max_episode_steps: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    single_instance: bool = False
    masks: str = ""
    behaviours: Mapping[str, Sequence[str]] = field(default_factory=dict)
    behaviour: str = ""
    teams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    players: Mapping[str, str] = field(default_factory=dict)
    opponents: Sequence[str] = ()
    all_act: bool = False
    state: bool = False
    scale: int | None = None
    reward_weights: Sequence[float] = ()
    restore: str = ""
    on_error: str = ""

    def __post_init__(self) -> None:
        others = self.kwargs or self.wrappers or self.max_episode_steps is not None or self.parameters
        if not isinstance(self.id, str) or (not self.id and others):
            raise EnvSpecError(f"an environment's id must be a string like 'CartPole-v1', but got {self.id!r}")
        self._check_switches()
        self._register()
        for name, value in self._stored_form().items():
            object.__setattr__(self, name, value)
        if not self.id.startswith(JOINT) and (named := [name for name in OF_AGENTS if getattr(self, name)]):
            raise EnvSpecError(
                f"{self.id}: {', '.join(named)} belong to an environment of several agents, such as "
                f"{JOINT}mpe2:simple_spread_v3; leave them out"
            )
        try:
            parse(self.parameters, tuple(self.info))
        except ValueError as error:
            raise EnvSpecError(f"{self.id}: {error}") from None

    def _check_switches(self) -> None:
        """Raise EnvSpecError for a value that is none of a few."""
        for name in ("single_instance", "all_act", "state"):
            if not isinstance(getattr(self, name), bool):
                raise EnvSpecError(f"{self.id}: {name} must be true or false, but got {getattr(self, name)!r}")
        whole = isinstance(self.scale, int) and not isinstance(self.scale, bool)
        if self.scale is not None and not (whole and 1 <= self.scale <= 255):
            raise EnvSpecError(f"{self.id}: scale must be an integer from 1 to 255 or None, but got {self.scale!r}")
        if self.restore not in ("", *RESTORES):
            raise EnvSpecError(
                f"{self.id}: restore must be {', '.join(RESTORES)}, or be left out for a self-test, but got "
                f"{self.restore!r}"
            )
        if self.on_error not in ("", "restart") or (self.on_error and self.id.startswith(JOINT)):
            raise EnvSpecError(
                f"{self.id}: on_error must be 'restart', or be left out, as it must be for several agents, but got "
                f"{self.on_error!r}"
            )
        if self.masks not in ("", IN_INFO):
            raise EnvSpecError(f"{self.id}: masks must be {IN_INFO!r}, or be left out, but got {self.masks!r}")

    def _stored_form(self) -> dict[str, Any]:
        """Return fields in the form that JSON gives back.

        Tuples become lists, so that equal specs compare equal.
        """
        limit, players, opponents, wrappers = self.max_episode_steps, self.players, self.opponents, self.wrappers
        steps = whole_number(limit)
        if limit is not None and (steps is None or steps < 1):
            raise EnvSpecError(f"{self.id}: max_episode_steps must be a positive integer or None, but got {limit!r}")
        if not isinstance(players, Mapping) or not all(isinstance(x, str) for pair in players.items() for x in pair):
            raise EnvSpecError(f"{self.id}: players must be a dict of behaviours and policies, but got {players!r}")
        if not isinstance(opponents, list | tuple) or not all(isinstance(x, str) for x in opponents):
            raise EnvSpecError(f"{self.id}: opponents must be a list of policies, but got {opponents!r}")
        if not isinstance(wrappers, list | tuple):
            raise EnvSpecError(f"{self.id}: wrappers must be a list, but got {wrappers!r}")
        weights = _weights(self.reward_weights, f"{self.id}: reward_weights")
        info = {f"return.{part}": "sum" for part in range(len(weights))} | ({RAISED: "max"} if self.on_error else {})
        return {
            "kwargs": _plain(self.kwargs, f"{self.id}: kwargs"),
            "wrappers": [self._wrapper(wrapper, i) for i, wrapper in enumerate(wrappers)],
            "max_episode_steps": steps,
            "parameters": _plain(self.parameters, f"{self.id}: parameters"),
            "info": info | _reductions(self.info, f"{self.id}: info"),
            "behaviours": _groups(self.behaviours, f"{self.id}: behaviours"),
            "teams": _groups(self.teams, f"{self.id}: teams"),
            "players": dict(players),
            "opponents": list(dict.fromkeys(opponents)),
            "reward_weights": weights,
        }

    def _register(self) -> None:
        """Tell Gymnasium of the class that a package offers under this id."""
        if not self.id or ":" in self.id or self.id in gymnasium.registry:
            return
        try:
            target = OF_ENVIRONMENTS.target(self.id)
        except PluginError as error:
            raise EnvSpecError(str(error)) from None
        if target is not None:
            gymnasium.register(self.id, entry_point=target)

    def _wrapper(self, wrapper: Any, i: int) -> dict[str, Any]:
        subject = f"{self.id}: wrappers[{i}]"
        if not isinstance(wrapper, Mapping) or not {"entry_point"} <= wrapper.keys() <= {"entry_point", "kwargs"}:
            form = "{'entry_point': 'module:Class', 'kwargs': {...}}"
            module, point, name = wrapper.replace(":", ".").rpartition(".") if isinstance(wrapper, str) else ("",) * 3
            written = f"; write {{'entry_point': '{module}:{name}'}}" if point else ""
            raise EnvSpecError(f"{subject} must be {form}, but got {wrapper!r}{written}")
        entry_point = wrapper["entry_point"]
        if not isinstance(entry_point, str) or not all(entry_point.partition(":")):
            raise EnvSpecError(f"{subject}: entry_point must be a string 'module:Class', but got {entry_point!r}")
        return {"entry_point": entry_point, "kwargs": _plain(wrapper.get("kwargs") or {}, f"{subject}: kwargs")}

    @classmethod
    def none(cls) -> EnvSpec:
        """Return the spec of no environment, which is falsy."""
        return cls("")

    def __bool__(self) -> bool:
        return bool(self.id)

    def __hash__(self) -> int:
        return hash(self.canonical)

    @property
    def canonical(self) -> str:
        """Canonical text of this spec; equal specs have equal texts."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def draws_arguments(self) -> bool:
        """True if each episode has arguments, and so an environment, anew."""
        return any(name.startswith(KWARGS) for name in self.parameters)

    @property
    def modules(self) -> set[str]:
        """Names of the modules of its id, entry points and wrappers."""
        before, _, name = self.id.rpartition(":")
        registered = gymnasium.registry.get(name.removeprefix("vector/"))
        points = [getattr(registered, attribute, None) for attribute in ("entry_point", "vector_entry_point")]
        points += [wrapper["entry_point"] for wrapper in self.wrappers]
        named = [point.partition(":")[0] if isinstance(point, str) else point.__module__ for point in points if point]
        return {*filter(None, [*named, before.rpartition("/")[2]])}

    def to_json(self) -> dict[str, Any]:
        """Return the spec as a JSON object, for ``from_json``."""
        if not self:
            return {}
        content = {
            "id": self.id,
            "kwargs": deepcopy(self.kwargs),
            "wrappers": deepcopy(self.wrappers),
            "max_episode_steps": self.max_episode_steps,
        }
        # Omitted if empty, so that specs from before these fields existed keep their text, and tasks their uids.
        later: dict[str, Any] = {
            "parameters": deepcopy(self.parameters),
            "info": dict(self.info),
            "single_instance": self.single_instance,
            "masks": self.masks,
            "behaviours": deepcopy(self.behaviours),
            "behaviour": self.behaviour,
            "teams": deepcopy(self.teams),
            "players": dict(self.players),
            "opponents": list(self.opponents),
            "all_act": self.all_act,
            "state": self.state,
            "scale": self.scale,
            "reward_weights": list(self.reward_weights),
            "restore": self.restore,
            "on_error": self.on_error,
        }
        return content | {name: value for name, value in later.items() if value}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EnvSpec:
        """Create a spec from a JSON object.

        Raises:
            EnvSpecError: a name is unknown, or the id is missing.
        """
        keys = {f.name for f in fields(cls)}
        if unknown := sorted(content.keys() - keys):
            cure = near(unknown[0], keys) or "; arguments of its constructor belong into its kwargs"
            raise EnvSpecError(f"an environment has {', '.join(sorted(keys))}, but got {', '.join(unknown)}{cure}")
        if "id" not in content:
            raise EnvSpecError(f"an environment must have an id, but got {dict(content)!r}")
        return cls(**content)

    @classmethod
    def of(cls, env: str | Mapping[str, Any] | EnvSpec | None) -> EnvSpec:
        """Return the spec for an id, a JSON object or a spec.

        None and {} give the spec of no environment.

        Raises:
            EnvSpecError: the argument is none of these, or malformed.
        """
        if env is None or env == {}:
            return cls.none()
        if isinstance(env, EnvSpec):
            return env
        if isinstance(env, str):
            return cls(env)
        if isinstance(env, Mapping):
            return cls.from_json(env)
        raise EnvSpecError(
            f"an environment must be an id, an EnvSpec or its JSON, but got {env!r}; other processes must be able to "
            "create it by name: register it (gymnasium.register), and give its id"
        )


def reset_result(result: Any, id: str) -> tuple[Any, Any]:
    """Return what a reset has returned: observation and info.

    Raises:
        EnvSpecError: it returned something else.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        cure = "return an info, {} for instance, beside the observation"
        if isinstance(result, list) and len(result) == 2:
            cure = "return a tuple in place of a list"
        elif isinstance(result, tuple | list):
            cure = f"return a tuple of these two in place of {len(result)} parts"
        raise EnvSpecError(
            f"{id}: reset returns (observation, info), as Gymnasium's does, but it returned {reprlib.repr(result)}; "
            f"{cure}"
        )
    return result[0], as_dict(result[1], id)


def _reductions(info: Any, subject: str) -> dict[str, str]:
    """Return the reduction of each entry of `info`, or raise EnvSpecError."""
    named = dict.fromkeys(info, "last") if isinstance(info, list | tuple) else info
    if not isinstance(named, Mapping) or not all(isinstance(name, str) and name for name in named):
        raise EnvSpecError(f"{subject} must be a list of names, or a dict of names and reductions, but got {info!r}")
    for name, reduction in named.items():
        if reduction not in REDUCTIONS:
            raise EnvSpecError(f"{subject}: {name} must be reduced by {', '.join(REDUCTIONS)}, but got {reduction!r}")
    return dict(named)


def _weights(weights: Any, subject: str) -> list[float]:
    """Return weights as floats, or raise EnvSpecError."""
    weights = plain(weights)
    numbers = isinstance(weights, list | tuple) and all(isinstance(x, int | float) for x in weights)
    if not numbers or not all(math.isfinite(x) for x in weights):
        raise EnvSpecError(
            f"{subject} must be a list of finite numbers, one for each part of a reward, but got {weights!r}"
        )
    return [float(x) for x in weights]


def with_arrays(value: Any) -> Any:
    """Return JSON with NumPy arrays in place of ``{"array": ...}``."""
    if isinstance(value, Mapping):
        if "array" in value and value.keys() <= {"array", "dtype"}:
            return np.array(value["array"], value.get("dtype"))
        return {name: with_arrays(part) for name, part in value.items()}
    return [with_arrays(part) for part in value] if isinstance(value, list) else value


def _groups(table: Any, subject: str) -> dict[str, list[str]]:
    """Return the agents of each behaviour or team, or raise EnvSpecError."""
    groups: dict[str, list[str]] = {}
    for name, agents in table.items() if isinstance(table, Mapping) else [("", ())]:
        names = isinstance(agents, list | tuple) and agents and all(isinstance(agent, str) for agent in agents)
        if not (isinstance(name, str) and names):
            raise EnvSpecError(f"{subject} must be a dict of names and lists of agents, but got {table!r}")
        groups[name] = list(agents)
    return groups


def _plain(value: Mapping[str, Any], subject: str) -> dict[str, Any]:
    """Return the mapping after a round trip through JSON, or raise EnvSpecError."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise EnvSpecError(f"{subject} must be a dict with string keys, but got {value!r}")
    try:
        read: dict[str, Any] = json.loads(json.dumps(plain(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise EnvSpecError(f"{subject} must hold JSON values only, as part of a trial's identity: {error}") from None
    return read
