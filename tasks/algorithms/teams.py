"""Teams: agents that play against those of the other teams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..envs import EnvSpec
from ..envs.agents.roster import roster_of
from ..errors import UnsupportedSpace
from .behaviour_space import SELF_PLAY
from .self_play import check_self_play


def competing_teams(env: EnvSpec, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the slots of each team whose agents learn by self-play."""
    return teams_of(env, [name for name in roster_of(env).learning if values[name][SELF_PLAY]["use"]])


def teams_of(env: EnvSpec, behaviours: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the slots of these behaviours in each team that has some."""
    roster = roster_of(env)
    slots = {slot for name in behaviours for slot in roster.behaviours[name].slots}
    teams = {name: tuple(slot for slot in team if slot in slots) for name, team in roster.teams.items()}
    return {name: team for name, team in teams.items() if team}


def rival_teams(env: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Return the slots of each team that opponents can play against.

    They are those of agents that learn.

    Raises:
        UnsupportedSpace: there are fewer than two.
    """
    learning = roster_of(env).learning
    if len(teams := teams_of(env, learning)) < 2:
        raise UnsupportedSpace(
            f"{env.id}: opponents need two teams or more that learn, but the agents of {', '.join(learning)} are in "
            "one; give the environment's `teams`"
        )
    return teams


def check_teams(env: EnvSpec, values: Mapping[str, Any]) -> None:
    """Raise ValueError unless self-play has two teams that change together."""
    playing = {name: values[name][SELF_PLAY] for name in roster_of(env).learning if values[name][SELF_PLAY]["use"]}
    for name, options in playing.items():
        check_self_play(name, options)
    if playing and len(teams := competing_teams(env, values)) < 2:
        raise ValueError(
            f"{env.id}: self-play is played between two teams or more, but the agents of {', '.join(playing)} are in "
            f"one, {next(iter(teams))}; set self_play.use of the others, or give the environment's `teams`"
        )
    if env.opponents:
        rival_teams(env)
    changes = {name: options["team_change"] for name, options in playing.items()}
    if len({*changes.values()}) > 1:
        raise ValueError(
            f"{env.id}: all behaviours change the learning team together, but team_change is "
            f"{', '.join(f'{x} for {name}' for name, x in changes.items())}; give them the same"
        )
