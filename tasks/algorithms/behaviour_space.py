"""Hyperparameters of a behaviour besides those of its algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...spaces import Space, categorical, flatten
from ...spaces.variants import without
from ..envs import EnvSpec
from ..envs.agents.roster import roster_of
from ..envs.agents.views import NONE, OF_ALL, OF_STATE, Extras
from ..envs.base.observations import Observations
from ..errors import UnsupportedSpace
from ..networks.encoders import ENCODERS
from ..registry import load

ALGORITHM, SELF_PLAY, CRITIC, CENTRAL, IDS = "algorithm", "self_play", "critic", "central", "agent_ids"
CENTRAL_HELP = "the critic also sees the observations of all agents (joint) or the environment's state(), as in MAPPO"
IDS_HELP = "add to observations which of the behaviour's agents it is"
# What the shared environments decide for all behaviours, and what would need environments of a behaviour's own.
SHARED = ("num_envs", "epoch_steps", "eval_interval")
# What does not know yet that an agent may be absent, or abandons episodes that others share: name -> the value without.
UNSHARED = {
    "min_rollouts": None,
    "min_steps": None,
    "overlap": False,
    "critic.name": "joint",
    "replay.name": "uniform",
    "demonstrated_steps": 0,
    "cloning.use": False,
    "gail.use": False,
}


def behaviour_space(space: Space) -> dict[str, Any]:
    """Return an algorithm's hyperparameters in an environment that agents share."""
    entries = dict(without(space, SHARED).items())
    critic = entries.get(CRITIC)
    if "vf_coef" in space:  # it learns a critic v(s)
        central = categorical(NONE, OF_ALL, OF_STATE, default=NONE, structural=True, search=False, help=CENTRAL_HELP)
        entries[CRITIC] = critic.extend(central=central) if isinstance(critic, Space) else Space(central=central)
    return entries | {IDS: categorical(False, True, default=False, structural=True, search=False, help=IDS_HELP)}


def extras_of(values: Mapping[str, Any]) -> Extras:
    """Return what the observations of a behaviour have besides."""
    return Extras(values[IDS], values.get(CRITIC, {}).get(CENTRAL, NONE))


def check_extras(env: EnvSpec, name: str, values: Mapping[str, Any]) -> None:
    """Raise an error unless observations can have what they should.

    Raises:
        UnsupportedSpace: observations or networks are of another kind.
        EnvSpecError: the environment has no state that is a vector.
    """
    extras, model, roster = extras_of(values), values["model"], roster_of(env)
    central = extras.central != NONE
    if extras.central == OF_STATE:
        roster_of(replace(env, state=True))
    sources = roster.behaviours if extras.central == OF_ALL else [name] if extras != Extras() else []
    for behaviour in sources:
        if Observations(roster.behaviours[behaviour].observation, behaviour).kind != "vector":
            raise UnsupportedSpace(
                f"{name}: {IDS} and {CRITIC}.{CENTRAL} are for observations that are vectors, but those of {behaviour} "
                "have images; leave them out"
            )
    if central and model["encoder"] not in ENCODERS:
        raise UnsupportedSpace(
            f"{name}: a central critic sees more than the actor, but model.encoder {model['encoder']!r} serves both; "
            "leave one of them out"
        )
    plain = {"memory": "none", "shared_critic": False, "goal_conditioning": "none"}
    for option, value in plain.items():
        if central and model.get(option, value) != value:
            raise UnsupportedSpace(
                f"{name}: a central critic sees more than the actor, so model.{option} must be {value!r}, but got "
                f"{model[option]!r}; leave one of them out"
            )


def algorithm_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a behaviour that are its algorithm's."""
    hyperparameters = {key: value for key, value in values.items() if key not in (ALGORITHM, SELF_PLAY, IDS)}
    if critic := {key: value for key, value in hyperparameters.pop(CRITIC, {}).items() if key != CENTRAL}:
        hyperparameters[CRITIC] = critic
    return hyperparameters


def learner_values(values: Mapping[str, Any], name: str, agents: int) -> dict[str, Any]:
    """Return the hyperparameters of a behaviour's learner.

    Its environments are its agents.
    """
    settings = algorithm_values(values[name])
    settings |= {"num_envs": values["num_envs"] * agents, "epoch_steps": values["epoch_steps"] * agents}
    space = load(values[name][ALGORITHM]).learner.hyperparameters
    return settings | ({"eval_interval": 0} if "eval_interval" in space else {})


def check_behaviour(env: EnvSpec, name: str, values: Mapping[str, Any]) -> None:
    """Raise ValueError unless a behaviour can learn by these values."""
    roster, num_envs, epoch_steps = roster_of(env), values["num_envs"], values["epoch_steps"]
    learner, spec = load(values[name][ALGORITHM]).learner, replace(env, behaviour=name)
    settings = learner_values(values, name, len(roster.behaviours[name].slots))
    flat = flatten(settings)
    for option, without_it in UNSHARED.items():
        if flat.get(option, without_it) != without_it:
            raise UnsupportedSpace(
                f"{name}.{option} must be {without_it!r} where agents share environments, since it knows no "
                f"absent agents, but got {flat[option]!r}; leave it out"
            )
    if "replay" in settings and settings["model"]["memory"] != "none":
        raise UnsupportedSpace(
            f"{name}.model.memory must be 'none' where {learner.algorithm()} replays steps of agents that "
            f"share environments, but got {settings['model']['memory']!r}; use ppo for a memory"
        )
    check_extras(env, name, values[name])
    try:
        learner.check(settings)
        learner.check_env(spec)
        learner.check_values_in_env(spec, settings)
    except ValueError as error:
        raise type(error)(f"behaviour {name}: {error}") from None
    rollout = settings["num_steps"] * num_envs
    if len(roster.learning) > 1 and epoch_steps % rollout:
        best = max(1, epoch_steps // rollout) * rollout
        raise ValueError(
            f"behaviours end an epoch together, so epoch_steps ({epoch_steps}) must be divisible by "
            f"{name}.num_steps * num_envs ({rollout}); try epoch_steps={best}"
        )
