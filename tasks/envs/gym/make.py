"""Creation of one Gymnasium environment, with errors that name the remedy."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import parse_env_id
from gymnasium.wrappers import TimeLimit

from ...errors import EnvironmentFailed, TaskError, text_of
from ...runtime.warning_filters import changed_filters
from ..agents.adapter import is_joint, make_joint
from ..base.curriculum import KWARGS
from ..base.failures import attribute, check_reset, close_env, refusal
from ..base.images import with_scale
from ..base.joined import CHOICES, JoinedActions, can_join
from ..base.masks import MaskInObservation, has_mask, has_method
from ..base.spec import IN_INFO, EnvSpec, EnvSpecError, reset_result, with_arrays
from .chance import OwnGenerators, first_constructor, first_import
from .packages import advice, cure, module_advice, register
from .restarts import RestartOnError
from .restore import generator_of
from .rewards import WeightedReward

Env = gym.Env[Any, Any]

# Warnings that do not concern the user's program.
IGNORED = {
    # Box2D's bindings on import; turned into an error it crashes the interpreter.
    "builtin type .* has no __module__ attribute": DeprecationWarning,
    # The spec names a version on purpose.
    ".*The environment .* is out of date": DeprecationWarning,
    # An error says what to write instead.
    ".*Using the latest versioned environment": UserWarning,
}
# The extra with the packages of an environment, by the module of its entry point.
EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco", "ale_py": "atari"}


def make_env(spec: EnvSpec, generators: Sequence[str] = ()) -> Env:
    """Create an environment with its wrappers; hybrid actions become rows.

    Args:
        spec: the environment.
        generators: global generators that it has to itself, see `chance`.

    Raises:
        EnvSpecError: the id, an argument or a package is missing, or the environment lacks Gymnasium's interface.
        EnvironmentFailed: the constructor raised another exception.
    """
    if spec.on_error:
        return RestartOnError(spec, partial(make_env, replace(spec, on_error="", info={}), generators))
    if spec.id.startswith("ALE/") or "NoFrameskip-" in spec.id:
        register_atari(spec)
    with first_import(spec.modules), first_constructor(spec.id):
        return _made(spec, generators)


def _made(spec: EnvSpec, generators: Sequence[str]) -> Env:
    """Create an environment, as `make_env` does."""
    with changed_filters(IGNORED), _deprecations_untold(spec):
        with _clear_errors(spec):
            register(spec)
            env = _constructed(spec)
        try:
            if not is_joint(spec):
                _check_version(env, spec)
            for wrapper in spec.wrappers:
                env = _wrap(env, wrapper, spec)
            _check_spaces(env, spec)
            _check_resets(env, spec)
        except BaseException:
            with suppress(EnvironmentFailed):  # the first error counts
                close_env(env, spec)
            raise
    _own_spaces(env.unwrapped)
    if spec.scale is not None:
        env = Scaled(env, spec)
    if spec.reward_weights:
        env = WeightedReward(env, spec)
    if generators:
        env = OwnGenerators(env, generators)
    env = _with_mask(env, spec)
    return JoinedActions(env) if can_join(env.action_space) else env


def _constructed(spec: EnvSpec) -> Env:
    """Create an environment without its wrappers."""
    limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
    if is_joint(spec):
        env: Env = make_joint(spec)
        return TimeLimit(env, **limit) if limit else env
    # The checker's warnings are for authors, not users, and it costs a third of the speed.
    return gym.make(spec.id, disable_env_checker=True, **limit, **with_arrays(deepcopy(spec.kwargs)))


@contextmanager
def _clear_errors(spec: EnvSpec) -> Iterator[None]:
    """Raise a constructor's errors again, with environment and cure."""
    try:
        yield
    except EnvSpecError:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise EnvSpecError(f"{spec.id} needs a package that is not installed ({error}){_cure(spec)}") from error
    except ImportError as error:
        why = str(error).rstrip(".")
        raise EnvSpecError(f"{spec.id} needs a module that cannot be imported: {why}{_cure(spec)}") from error
    except gym.error.Error as error:
        why = str(error).rstrip(".")
        raise EnvSpecError(f"{spec.id} must be an environment that Gymnasium knows: {why}{advice(spec)}") from error
    except Exception as error:
        failure = f"{spec.id} cannot be made with kwargs {dict(spec.kwargs)}"
        raise refusal(failure, error, spec.kwargs, cure(spec, error)) from error


@contextmanager
def _deprecations_untold(spec: EnvSpec) -> Iterator[None]:
    """Keep MuJoCo from printing deprecations in Gymnasium's own models.

    It would do so for every environment that is created. Other warnings are printed, and a handler that you have set
    stays.
    """
    point = getattr(gym.registry.get(spec.id), "entry_point", None)
    made_of = str(point).startswith("gymnasium.envs.mujoco") and find_spec("mujoco") is not None
    mujoco: Any = import_module("mujoco") if made_of else None
    if not hasattr(mujoco, "get_mju_user_warning") or mujoco.get_mju_user_warning() is not None:
        yield
        return

    def tell(text: str) -> None:
        if "deprecated" not in text:
            print(f"WARNING: {text}", file=sys.stderr)

    mujoco.set_mju_user_warning(tell)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def _with_mask(env: Env, spec: EnvSpec) -> Env:
    """Put an action mask into the observations, if there is one.

    A method or info may tell it.
    """
    if is_joint(spec) or has_mask(env) or not isinstance(env.action_space, CHOICES):
        return env
    if spec.masks == IN_INFO or has_method(env):
        return MaskInObservation(env, spec, method=spec.masks != IN_INFO)
    return env


def make_for_episode(spec: EnvSpec, generators: Sequence[str], parameters: Mapping[str, Any], like: Env | None) -> Env:
    """Create an environment for an episode.

    The episode's parameters may have arguments of the constructor.

    Raises:
        EnvSpecError: it cannot be made, or arguments give it other spaces than those of `like`.
    """
    drawn = {name.removeprefix(KWARGS): value for name, value in parameters.items() if name.startswith(KWARGS)}
    if not drawn:
        return make_env(spec, generators)
    env = make_env(replace(spec, kwargs={**spec.kwargs, **drawn}, parameters={}), generators)
    for space in ("observation_space", "action_space"):
        if like is not None and getattr(env, space) != getattr(like, space):
            raise EnvSpecError(
                f"{spec.id}: all episodes have the same spaces, but with {drawn} {space} is {getattr(env, space)} "
                f"instead of {getattr(like, space)}; vary other arguments"
            )
    return env


def of_reset(parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return copies of the options of a reset, or None."""
    options = {name: value for name, value in (parameters or {}).items() if not name.startswith(KWARGS)}
    return deepcopy(options) or None


def _refuses(env: Env, seed: int, more: Mapping[str, Any]) -> bool:
    """Return whether resets fail with a seed again, and not without."""
    with suppress(Exception):
        env.reset(seed=seed, **more)
        return False  # it failed by accident
    with suppress(Exception):
        env.reset(**more)
        return True
    return False


def action_space_of(env: Env, spec: EnvSpec) -> gym.Space[Any] | None:
    """Return an environment's action space; None if parameters may choose it.

    It is a copy, which an environment that changes its space in place does not change.
    """
    space = _present_actions(env, spec)
    try:
        return copy.deepcopy(space)
    except Exception:  # noqa: BLE001 - a space of the user's own may hold anything
        return space


def _present_actions(env: Env, spec: EnvSpec) -> gym.Space[Any] | None:
    """Return the innermost action space; None if only a wrapper has one."""
    return None if spec.draws_arguments else attribute(env.unwrapped, "action_space")


def _is_other(space: Any, before: Any) -> bool:
    """Return whether an action space is another, as far as comparable."""
    comparison: Any = type(space).__eq__
    return bool(space != before) and (type(space) is not type(before) or comparison is not object.__eq__)


def check_actions(env: Env, spec: EnvSpec, actions: gym.Space[Any] | None) -> None:
    """Raise EnvSpecError if an environment's action space is another one than `actions`."""
    if _is_other(space := _present_actions(env, spec), actions):
        raise EnvSpecError(
            f"{spec.id}: all episodes and instances of an environment have one action_space, but at first it was "
            f"{actions} and now it is {space}; make it as large as the largest, and tell by an action mask what is "
            "allowed"
        )


def begin_episode(
    env: Env, spec: EnvSpec, seed: int, options: Mapping[str, Any] | None, actions: gym.Space[Any] | None
) -> Any:
    """Reset an environment with a seed, and return the first observation.

    Args:
        env: the environment.
        spec: its spec.
        seed: seed of the episode.
        options: options of the reset, None for none.
        actions: what `action_space_of` returned for the first environment.

    Raises:
        EnvSpecError: it refuses seeds, returns something else than an observation and info, or has other actions.
    """
    more: dict[str, Any] = {} if options is None else {"options": options}
    try:
        result = env.reset(seed=seed, **more)
    except (AssertionError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, TaskError) or not _refuses(env, seed, more):
            raise
        raise EnvSpecError(
            f"{spec.id}: an environment's reset takes any seed from 0 to 2**31 - 1, which makes episodes repeatable, "
            f"but reset(seed={seed}) raised {type(error).__name__} ({text_of(error)}), and without a seed it does "
            f"not; let it take all, {'' if is_joint(spec) else 'by super().reset(seed=seed) '}and draw from "
            f"{generator_of(spec.id)}"
        ) from error
    check_actions(env, spec, actions)
    return reset_result(result, spec.id)[0]


def _check_version(env: Env, spec: EnvSpec) -> None:
    """Raise EnvSpecError if Gymnasium chose the version.

    It chooses the latest, which may be another one tomorrow.
    """
    full_id = env.spec.id if env.spec is not None else spec.id
    module, colon, name = spec.id.rpartition(":")
    if parse_env_id(name)[2] is None and parse_env_id(full_id)[2] is not None:
        rule = "an environment is named with its version, as results depend on it"
        raise EnvSpecError(f"{rule}, but got {spec.id}; write {module}{colon}{full_id.rpartition(':')[2]}")


def _check_spaces(env: Any, spec: EnvSpec) -> None:
    """Raise EnvSpecError unless the environment has Gymnasium's spaces."""
    for name in ("observation_space", "action_space"):
        space = attribute(env, name)
        if not isinstance(space, gym.Space):
            has = "no" if space is None else f"a {type(space).__module__}.{type(space).__name__} as"
            raise EnvSpecError(
                f"{spec.id}: environments have Gymnasium's observation_space and action_space, but "
                f"{type(env.unwrapped).__name__} has {has} {name}; set it in its __init__"
            )


class Scaled(gym.Wrapper[Any, Any, Any, Any]):
    """A stateless wrapper that announces the largest value of images."""

    def __init__(self, env: Env, spec: EnvSpec) -> None:
        super().__init__(env)
        self.observation_space = with_scale(env.observation_space, spec.scale, spec.id)


def _own_spaces(env: Any) -> None:
    """Give an environment copies of its class's spaces.

    A space has a generator, which all environments of the class would share.
    """
    for name in ("observation_space", "action_space"):
        if name not in vars(env) and isinstance(space := getattr(type(env), name, None), gym.Space):
            setattr(env, name, deepcopy(space))


def _check_resets(env: Any, spec: EnvSpec) -> None:
    """Raise EnvSpecError unless environment and wrappers have Gymnasium's reset."""
    while True:
        check_reset(env, spec, "Gymnasium's reset(*, seed=None, options=None)", "begin with super().reset(seed=seed)")
        if not isinstance(env, gym.Wrapper):
            return
        env = env.env


def _wrap(env: Env, wrapper: Any, spec: EnvSpec) -> Env:
    module, _, name = wrapper["entry_point"].partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise EnvSpecError(f"{spec.id}: wrapper {wrapper['entry_point']} cannot be imported: {error}") from error
    if not (isinstance(make, type) and issubclass(make, gym.Wrapper)):
        # A spec may come from a shared database, so it must not be able to call arbitrary functions.
        raise EnvSpecError(
            f"{spec.id}: a wrapper must be a class derived from gymnasium.Wrapper, "
            f"but {wrapper['entry_point']} is not; derive it or wrap within it"
        )
    try:
        wrapped: Env = make(env, **with_arrays(deepcopy(wrapper["kwargs"])))
    except Exception as error:
        failure = f"{spec.id}: the wrapper {name} cannot be made with {wrapper['kwargs']}"
        raise refusal(failure, error, wrapper["kwargs"]) from error
    if is_joint(spec):
        _check_around_agents(wrapped, env, name, spec)
    return wrapped


def _check_around_agents(wrapped: Env, env: Env, name: str, spec: EnvSpec) -> None:
    """Raise EnvSpecError if a wrapper changes what agents see, do or get."""
    changed = [
        space for space in ("observation_space", "action_space") if getattr(wrapped, space) != getattr(env, space)
    ]
    if isinstance(wrapped, gym.RewardWrapper):
        changed.append("the sum of rewards, while each agent learns from its own")
    if changed:
        raise EnvSpecError(
            f"{spec.id}: a wrapper around all agents leaves what each sees, does and gets, but {name} changes "
            f"{changed[0]}; name a function of yours that wraps the environment itself"
        )


def register_atari(spec: EnvSpec) -> None:
    """Register the ids of Atari games; raise EnvSpecError without ale-py."""
    try:
        gym.register_envs(import_module("ale_py"))
    except ImportError as error:
        raise EnvSpecError(f"{spec.id} needs ale-py; pip install 'rekindle-rl[atari]'") from error


def _cure(spec: EnvSpec) -> str:
    entry_point = getattr(gym.registry.get(spec.id), "entry_point", "")
    for module, extra in EXTRAS.items():
        if isinstance(entry_point, str) and entry_point.startswith(module):
            return f"; pip install 'rekindle-rl[{extra}]'"
    if ":" not in spec.id:
        return ""
    return module_advice(spec) or "; install its package, or run where its file is"
