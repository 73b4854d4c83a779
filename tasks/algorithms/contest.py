"""Episodes of a policy against opponents.

The policy plays each team in turn, and an opponent plays the others: with T teams and K opponents, episode e is that of
team e modulo T and of opponent (e / T) modulo K. The returns are those of the agents that the policy plays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from ..envs import EnvSpec
from ..envs.agents.adapter import RETURN, RETURNS
from ..envs.agents.roster import Roster
from ..experience.exploration import UniformActions
from ..rng.streams import Bits, Keys

Array = NDArray[Any]
Act = Callable[[Array], Array]
OPPONENTS = "opponents_return"  # entry of info
AGAINST = "return_against"  # entry of info: returns against one of several opponents
Around = Callable[[str, Act, Keys], Act]  # a behaviour, the function that acts for it, and random streams
Opponent = Callable[[str, int, Keys], Act]  # a behaviour, a number of episodes, and random streams


def random_actor(keys: Bits, space: gym.Space[Any], rows: int, subject: str, mask: slice | None) -> Act:
    """Return a function that plays uniformly among the allowed actions.

    Args:
        keys: random streams, (P,).
        space: action space of an agent.
        rows: B, rows of each member.
        subject: name of the task in error messages.
        mask: columns of an action mask in observations (P, B, D).
    """
    uniform, steps = UniformActions(keys, space, rows, subject), count()
    return lambda obs: uniform(next(steps), None if mask is None else obs[..., mask] > 0.5)


class Contest:
    """Evaluation against opponents, see `learner.Contest`."""

    def __init__(
        self,
        roster: Roster,
        teams: Mapping[str, tuple[int, ...]],
        acts: Callable[[int, bool, Keys, Around], Act],
        opponents: Mapping[str, Opponent],
    ) -> None:
        """Describe the teams and who plays them.

        Args:
            roster: agents and behaviours.
            teams: slots of each team, by name.
            acts: function that returns the function that acts, with another one around that of each behaviour.
            opponents: by name, functions that return the function that acts for all agents of a behaviour in episodes.
        """
        self.roster, self.teams, self.acts, self.opponents = roster, [*teams.values()], acts, dict(opponents)

    def reported(self, env: EnvSpec) -> EnvSpec:
        slots = [slot for team in self.teams for slot in team]
        names = [f"{RETURN}.{name}" for name in self.roster.behaviours]
        names += [f"{RETURNS}.{self.roster.agents[slot]}" for slot in slots]
        return replace(env, info={**dict.fromkeys(names, "last"), **env.info})

    def actor(self, episodes: int, deterministic: bool, keys: Keys) -> Act:
        def around(name: str, act: Act, own_keys: Keys) -> Act:
            slots, sides = self.roster.behaviours[name].slots, self.teams
            theirs = np.array([slot not in sides[e % len(sides)] for e in range(episodes) for slot in slots])
            if not {*slots} & {slot for team in sides for slot in team}:
                return act
            others = [opponent(name, episodes, own_keys) for opponent in self.opponents.values()]
            turn = np.repeat(np.arange(episodes) // len(sides) % len(others), len(slots))

            def acts(obs: Array) -> Array:
                actions = act(obs)
                for index, other in enumerate(others):
                    rows = (theirs & (turn == index)).reshape(1, -1, *[1] * (actions.ndim - 2))
                    actions = np.where(rows, other(obs).astype(actions.dtype, copy=False), actions)
                return actions

            return acts

        return self.acts(episodes, deterministic, keys, around)

    def credited(self, returns: Array, info: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        agents, sides = self.roster.agents, self.teams
        kept = {name: x.copy() for name, x in info.items() if not name.startswith(f"{RETURNS}.")}
        credited = np.empty_like(returns)
        for side, team in enumerate(sides):
            episodes = slice(side, None, len(sides))
            team_returns = {slot: info[f"{RETURNS}.{agents[slot]}"][:, episodes] for slot in team}
            credited[:, episodes] = np.mean([*team_returns.values()], 0)
            opponents = {slot for other in sides for slot in other} - {*team}
            others = [info[f"{RETURNS}.{agents[slot]}"][:, episodes] for slot in sorted(opponents)]
            kept.setdefault(OPPONENTS, np.empty_like(returns))[:, episodes] = np.mean(others, 0)
            for name, behaviour in self.roster.behaviours.items():
                played = [team_returns[slot] for slot in behaviour.slots if slot in team_returns]
                if played or any(slot in other for slot in behaviour.slots for other in sides):
                    kept[f"{RETURN}.{name}"][:, episodes] = np.mean(played, 0) if played else np.nan
        if len(self.opponents) > 1:
            turn = np.arange(returns.shape[1]) // len(sides) % len(self.opponents)
            kept |= {f"{AGAINST}.{x}": np.where(turn == i, credited, np.nan) for i, x in enumerate(self.opponents)}
        return credited, kept
