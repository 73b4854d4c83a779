"""Several behaviours in one environment, each with an algorithm of its own.

Every behaviour is a group of agents that share a policy. Its learner is that of an ordinary task, which sees each agent
as an environment. The learners act and learn side by side, and meet at every step of the shared environments. With one
algorithm this is independent learning with shared parameters, such as IPPO: de Witt et al. (2020), arXiv:2011.09533.
With a central critic it is MAPPO: Yu et al. (2022), arXiv:2103.01955.

Notation: P members, N shared environments of each, A agents of a behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ...spaces.arguments import at_least, checked
from ..envs.agents.adapter import AGENTS, blank
from ..envs.agents.roster import roster_of
from ..envs.base.observations import Observations
from ..errors import UnsupportedSpace
from ..evaluation.measuring import measure_episodes
from ..evaluation.objective import check_finite
from ..evaluation.players import playing
from ..learner import Learner
from ..networks.recurrent import States
from ..task import Task
from .behaviours_learner import BehavioursLearner
from .contest import OPPONENTS
from .players import check_player


class Behaviours(Task):
    """Several behaviours in one environment, each with an algorithm of its own.

    The environment is one of PettingZoo's, such as ``pettingzoo/mpe2:simple_tag_v3``. Agents that share a name up to a
    last ``_`` and number share a behaviour, or the environment's `behaviours` says which do. The hyperparameters are
    nested by behaviour, and `NAME.algorithm` chooses its algorithm. The return is the sum of all agents' returns.
    """

    name = "behaviours"
    version = 5
    learner: ClassVar[type[Learner]] = BehavioursLearner

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Return the agents' actions by name, and None.

        Args:
            observation: observations of the present agents by name, as PettingZoo's environments give them.
            state: None, since `player` keeps the memory of recurrent policies.
            episode_start: None.
            deterministic: greedy actions; False samples them as in training.

        Raises:
            UnsupportedSpace: a behaviour has a memory.
        """
        learner = playing(self.member_ref().learner)
        if any(memory for memory in learner.acting_memory(1).values() if isinstance(memory, States)):
            raise UnsupportedSpace(f"{self} has a memory, which player() keeps; use it instead of predict")
        joint, of_agents = self._joint(observation)
        with self._named(observation):
            return of_agents(super().predict(joint, deterministic=deterministic)[0]), None

    def value(self, observation: Any, state: Any = None) -> Any:
        """Raise UnsupportedSpace: there is a value for each agent."""
        return super().value(self._joint(observation)[0], state)

    def player(self) -> Callable[[Any], Any]:
        """Return a function that plays one episode greedily.

        It maps observations by agent to actions by agent. For a recurrent policy it keeps the memory between calls, so
        use a new one for each episode.
        """
        play = super().player()

        def act(observation: Mapping[str, Any]) -> dict[str, Any]:
            joint, of_agents = self._joint(observation)
            with self._named(observation):
                return of_agents(play(joint))

        return act

    @checked()
    def match(self, other: Task | str, games: int = 200, seed: int | None = None) -> list[int]:
        """Play games against other policies, and return the results.

        Actions are sampled as in training. The policies play each team in turn. A result is 1 where this task's agents
        had the higher return, 0 for equal ones, and -1.

        Args:
            other: a task in an environment with the same agents and spaces, or a policy's name, see `players`.
            games: number of games.
            seed: seed of the games; None for that of evaluation.

        Raises:
            ValueError: no policy has this name.
            UnsupportedSpace: the agents or their spaces differ, or all that learn are in one team.
        """
        learner, games = self._learner(), at_least(str(self), "games", games, 1)
        opponent = self._opponent(other)
        before, learner.contest = learner.contest, learner.contest_with(opponent)
        try:
            measured = measure_episodes(learner, games, deterministic=False, **self._elsewhere(None, seed))
        finally:
            learner.contest = before
        check_finite(learner, 0, measured.returns[0].tolist(), str(self))
        return np.sign(measured.returns[0] - measured.info[OPPONENTS][0]).astype(int).tolist()

    def _learner(self) -> BehavioursLearner:
        learner = self.member_ref().learner
        assert isinstance(learner, BehavioursLearner)
        return learner

    def _opponent(self, other: Task | str) -> BehavioursLearner | str:
        """Return a task's learner or a policy's name, if its agents fit."""
        roster = roster_of(self.env)
        if not isinstance(other, Task):
            for name in roster.learning:
                check_player(self.env, name, other)
            return other
        if not isinstance(other, Behaviours):
            raise UnsupportedSpace(
                f"{self} plays against policies of the same agents, but {other} has one policy for all; name a task of "
                "behaviours"
            )
        other_roster = roster_of(other.env)
        forms = [(x.agents, x.behaviours, {*x.learning}) for x in (roster, other_roster)]
        if forms[0] != forms[1]:
            raise UnsupportedSpace(
                f"{self} plays against policies of the same agents with the same spaces, but {other} has "
                f"{', '.join(other_roster.agents)} in {', '.join(other_roster.learning)}; name a task of {self.env.id}"
            )
        return other._learner()

    @contextmanager
    def _named(self, observation: Mapping[str, Any]) -> Iterator[None]:
        """Name the agent whose observation is refused."""
        try:
            yield
        except ValueError:
            for behaviour in roster_of(self.env).behaviours.values():
                for agent in observation.keys() & {*behaviour.agents}:
                    encoder = Observations(behaviour.observation, f"{self}: {agent}")
                    encoder.write(observation[agent], np.zeros(encoder.shape, encoder.dtype), "the caller")
            raise

    def _joint(self, observation: Any) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]:
        """Return a joint observation, and a function for its action.

        The function names the parts of a joint action.

        Raises:
            ValueError: the observations are of unknown agents.
        """
        roster = roster_of(self.env)
        if not isinstance(observation, Mapping) or (unknown := observation.keys() - {*roster.agents}):
            named = f"of {', '.join(map(str, sorted(unknown)))}" if isinstance(observation, Mapping) else "unnamed"
            raise ValueError(
                f"{self}: observations are by agent, of {', '.join(roster.agents)}, but some are {named}; "
                "name these agents"
            )
        observation_spaces = {slot: b.observation for b in roster.behaviours.values() for slot in b.slots}
        observations = tuple(
            observation[agent] if agent in observation else blank(observation_spaces[slot])
            for slot, agent in enumerate(roster.agents)
        )
        parts = self._learner().envs.obs_space
        assert isinstance(parts, spaces.Dict)
        unseen = {name: blank(space) for name, space in parts.items() if name != AGENTS}  # by policies
        return {AGENTS: observations, **unseen}, lambda action: {
            agent: one for agent, one in zip(roster.agents, action, strict=True) if agent in observation
        }
