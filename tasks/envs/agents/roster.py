"""Behaviours: groups of agents that share one policy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from gymnasium import spaces

from ....spaces.errors import near
from ...errors import UnsupportedSpace
from ..base.failures import close_env
from ..base.spec import EnvSpec, EnvSpecError
from .adapter import make_joint
from .grouping import grouped

Space = spaces.Space[Any]


class Behaviour(NamedTuple):
    """A group of agents with equal spaces.

    Attributes:
        name: name of the behaviour.
        slots: indices of its agents among all agents of the environment.
        agents: their names.
        observation, action: spaces of one agent.
    """

    name: str
    slots: tuple[int, ...]
    agents: tuple[str, ...]
    observation: Space
    action: Space


class Roster(NamedTuple):
    """The agents of an environment, and their behaviours by name.

    Attributes:
        agents: names of all agents.
        behaviours: the behaviours.
        turns: whether agents act one after another.
        learning: the behaviours that no fixed policy plays.
        teams: indices of each team's agents. Unless the spec has teams, each behaviour is one, or if there is a single
            behaviour, each agent.
    """

    agents: tuple[str, ...]
    behaviours: dict[str, Behaviour]
    turns: bool
    teams: dict[str, tuple[int, ...]]
    learning: dict[str, Behaviour]


@lru_cache(maxsize=64)
def roster_of(spec: EnvSpec) -> Roster:
    """Return the behaviours of an environment.

    Raises:
        EnvSpecError: it cannot be made, or its table of behaviours does not fit its agents.
        UnsupportedSpace: agents of one behaviour have different spaces.
    """
    env = make_joint(spec)
    try:
        behaviours = {}
        for name, agents in env.groups.items():
            slots = tuple(env.agents.index(agent) for agent in agents)
            first = slots[0]
            for space_name, of_agents in (("observation_space", env.observed), ("action_space", env.acted)):
                for slot in slots[1:]:
                    if of_agents[slot] != of_agents[first]:
                        raise UnsupportedSpace(
                            f"{spec.id}: agents of one behaviour have equal spaces, but in {name} the {space_name} of "
                            f"{env.agents[first]} is {of_agents[first]} and that of {env.agents[slot]} is "
                            f"{of_agents[slot]}; give them behaviours of their own in the environment's `behaviours`"
                        )
            behaviours[name] = Behaviour(name, slots, tuple(agents), env.observed[first], env.acted[first])
        alone = env.groups if len(behaviours) > 1 else {agent: [agent] for agent in env.agents}
        teams = grouped(env.agents, spec.teams, spec.id, "team") if spec.teams else alone
        slots_of = {name: tuple(map(env.agents.index, agents)) for name, agents in teams.items()}
        for name in spec.players:
            if name not in behaviours:
                raise EnvSpecError(
                    f"{spec.id}: players are policies of its behaviours, {', '.join(behaviours)}, but one is of {name}"
                    f"{near(name, behaviours) or '; name one of them'}"
                )
        learning = {name: behaviour for name, behaviour in behaviours.items() if name not in spec.players}
        if not learning:
            raise EnvSpecError(
                f"{spec.id}: at least one behaviour learns, but players play {', '.join(behaviours)}; leave one out"
            )
        return Roster(env.agents, behaviours, env.turns, slots_of, learning)
    finally:
        close_env(env, spec)
