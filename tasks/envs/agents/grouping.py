"""Grouping of agents into behaviours, by their names or by a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....spaces.errors import near
from ..base.spec import EnvSpecError


def behaviour_of(agent: str) -> str:
    """Return the behaviour that an agent is named after.

    Its name ends before a last ``_`` and a number.
    """
    name, _, number = agent.rpartition("_")
    return name if name and number.isdigit() else agent


def grouped(
    agents: Sequence[str], table: Mapping[str, Sequence[str]], subject: str, noun: str = "behaviour"
) -> dict[str, list[str]]:
    """Return the agents of each behaviour or team, in the environment's order.

    Args:
        agents: names of all agents.
        table: agents of each behaviour; empty for `behaviour_of`.
        subject: name of the environment in error messages.
        noun: what the table groups agents into.

    Raises:
        EnvSpecError: the table names an unknown agent, one twice, or leaves one out; or a name is no identifier.
    """
    groups = _by_table(agents, table, subject, noun) if table else _by_name(agents)
    for name in groups:
        if not name.isidentifier():
            raise EnvSpecError(
                f"{subject}: the name of a {noun} is an identifier, since hyperparameters are named after it, but got "
                f"{name!r}; name it in the environment's `{noun}s`"
            )
    return groups


def _by_name(agents: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for agent in agents:
        groups.setdefault(behaviour_of(agent), []).append(agent)
    return groups


def _by_table(
    agents: Sequence[str], table: Mapping[str, Sequence[str]], subject: str, noun: str
) -> dict[str, list[str]]:
    owner: dict[str, str] = {}
    for name, members in table.items():
        for agent in members:
            if agent not in agents:
                raise EnvSpecError(
                    f"{subject}: {noun}s name agents of the environment, but {name} names {agent!r}, and there are "
                    f"{', '.join(agents)}{near(agent, agents) or '; name some of these'}"
                )
            if agent in owner:
                raise EnvSpecError(
                    f"{subject}: an agent has one {noun}, but {agent!r} is in {owner[agent]} and in {name}; leave it "
                    "out of one"
                )
            owner[agent] = name
    if left := [agent for agent in agents if agent not in owner]:
        raise EnvSpecError(f"{subject}: every agent has a {noun}, but {', '.join(left)} is in none; add it to one")
    return {name: [agent for agent in agents if owner[agent] == name] for name in table}
