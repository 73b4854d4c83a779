"""Self-play: agents of one team learn against past policies of the others.

Names and meanings are those of ML-Agents' `self_play`. Steps of training take place in blocks, see `BehavioursLearner`,
and everything here happens between two blocks.

    save_steps      steps of the learning agents between two copies of their policy that enter the pool
    window          copies that the pool holds; a new one replaces the oldest
    swap_steps      steps of the other agents between two draws of the policy that plays them
    play_against_latest_model_ratio     probability that it is the latest policy instead of one of the pool
    initial_ratio   probability that it is the initial policy, which then never leaves the pool; not ML-Agents'
    team_change     steps of the learning agents after which the next team learns
    initial_elo     rating at the beginning, see `SelfPlay.rate`

A policy that meets only recent ones gets weaker against others: Bansal et al. (2018), arXiv:1710.03748.
Steps are those of agents: with two agents in a team, a step of the environment counts as two.

Notation: P members, B rows of a behaviour: its agents in all environments of a member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Space, categorical, integer, real
from ..checkpoint.chunks import Chunked
from ..checkpoint.state import Tree
from ..envs import StepResult
from ..envs.agents.views import BehaviourView, SharedEnvs
from ..learner import Learner
from ..rng import streams
from .contest import Act, Array

USED: dict[str, Any] = {"use": True}
INITIAL_HELP = "probability of the initial policy as the opponent, so that a policy still wins against weak ones"


def self_play_space() -> Space:
    """Return the hyperparameters of self-play, with ML-Agents' defaults."""

    def steps(default: int, text: str) -> Any:
        return integer(1, 10**9, default=default, structural=True, search=False, when=USED, help=text)

    def number(low: float, high: float, default: float, text: str) -> Any:
        return real(low, high, default=default, structural=True, search=False, when=USED, help=text)

    learn, latest = "learn against past policies of the other teams", "probability of the latest policy as the opponent"
    return Space(
        use=categorical(False, True, default=False, structural=True, search=False, help=learn),
        save_steps=steps(20_000, "steps of the learning agents between two copies in the pool"),
        team_change=steps(100_000, "steps of the learning agents after which the next team learns"),
        swap_steps=steps(2_000, "steps of the opponents between two draws of their policy"),
        window=steps(10, "past policies in the pool; raise it for more varied opponents"),
        play_against_latest_model_ratio=number(0.0, 1.0, 0.5, latest),
        initial_ratio=real(
            0.0, 1.0, default=0.0, structural=True, search=False, silent=True, when=USED, help=INITIAL_HELP
        ),
        initial_elo=number(-1e6, 1e6, 1200.0, "rating before the first game"),
    )


def check_self_play(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError if options of self-play contradict each other."""
    latest, initial = options["play_against_latest_model_ratio"], options["initial_ratio"]
    if latest + initial > 1:
        raise ValueError(
            f"{name}.self_play: play_against_latest_model_ratio and initial_ratio are probabilities of two opponents, "
            f"which are at most 1 together, but got {latest:g} and {initial:g}; lower one of them"
        )
    if initial and options["window"] < 2:
        raise ValueError(
            f"{name}.self_play: with an initial_ratio the initial policy stays in the pool, so window must be 2 or "
            f"more, but got {options['window']}; raise it, or leave initial_ratio out"
        )


class SelfPlay:
    """The pool of a behaviour's past policies, and their ratings.

    Attributes:
        learner: the behaviour's learner.
        past: another one, which acts with a past policy and never learns.
        saved: number of copies made so far.
        policies: the pool, (P, window, bytes of a policy).
        ratings: ratings of the pool's policies, and of the latest one, (P, window + 1).
        opponent: index of the policy that plays, among the ratings, (P,).
        act: function that acts for all rows; None between two blocks.
    """

    scratch = ("digests", "act")

    def __init__(self, learner: Learner, past: Learner, hp: SimpleNamespace) -> None:
        """Start with one policy in the pool, the initial one.

        Args:
            learner: the behaviour's learner; its environments are a `BehaviourView`.
            past: see the attribute.
            hp: values of `self_play_space`.
        """
        assert isinstance(learner.envs, BehaviourView)
        self.learner, self.past, self.view, self.hp = learner, past, learner.envs, hp
        self.memory = past.acting_memory(self.view.num_envs)
        self.keys = learner.keys("self_play")
        size, members = len(packed(learner, 0)), learner.members
        self.policies = torch.zeros(members, hp.window, size, dtype=torch.uint8)
        self.digests: list[list[str | None]] = [[] for _ in range(members)]
        self.ratings = np.full((members, hp.window + 1), hp.initial_elo)
        self.opponent = np.zeros(members, np.int64)
        self.act: Act | None = None
        self.saved = 1
        for member in range(members):
            self.start(member)

    def start(self, member: int) -> None:
        """Make the current policy the only one in a new member's pool."""
        self._save(member, 0)
        self._play(member, 0)

    def begin_block(self, env_steps: int) -> None:
        """Prepare to act; random numbers depend on the block alone."""
        self.past.env_steps = self.learner.env_steps  # exploration follows them

        def keys(purpose: str) -> streams.Bits:
            return streams.keys(self.learner.seeds, "self_play", purpose, env_steps)

        self.act = self.past.actor(self.view.num_envs, False, keys, self.memory)

    def replaced(self, actions: Array) -> Array:
        """Return actions (P, B, ...) in which past policies replace others."""
        assert self.act is not None
        assert self.view.ghosts is not None
        theirs = self.act(self.view.obs)
        ghosts = self.view.ghosts.reshape(1, -1, *[1] * (actions.ndim - 2))
        return np.where(ghosts, theirs.astype(actions.dtype, copy=False), actions)

    def see(self, step: StepResult, ended: NDArray[np.bool_]) -> None:
        """Rate the policies where episodes ended, (P, B)."""
        if self.memory is not None:
            self.memory.reset(ended)
        assert self.view.ghosts is not None
        for member, row in zip(*np.nonzero(ended & ~self.view.ghosts), strict=True):
            self.rate(member, float(step.reward[member, row]))

    def truncate_all(self) -> None:
        """Reset the recurrent states, because the environments are rebuilt."""
        if self.memory is not None:
            self.memory.reset(np.ones((1, 1), np.bool_))

    def rate(self, member: int, reward: float) -> None:
        """Rate a game by the last reward of a learning agent.

        It is positive after a victory, 0 after a draw, and negative after a defeat. With the ratings r of the latest
        policy and r' of its opponent, both change by S - 1 / (1 + 10^((r' - r) / 400)): Elo (1978). S is 1, 1/2 or 0.
        """
        ratings, opponent = self.ratings[member], self.opponent[member]
        expected = 1 / (1 + 10 ** ((ratings[opponent] - ratings[-1]) / 400))
        change = (np.sign(reward) + 1) / 2 - expected
        ratings[opponent] -= change
        ratings[-1] += change

    def end_block(self, before: int, after: int, changed: bool) -> None:
        """Save and draw policies that are due after a block.

        Args:
            before: steps of the environments before the block.
            after: those after it.
            changed: whether another team learns from now on.
        """
        assert self.view.ghosts is not None
        hp, self.act, self.past.env_steps = self.hp, None, 0
        others = int(self.view.ghosts[: self.view.agents].sum())
        learning = self.view.agents - others
        if after * learning // hp.save_steps > before * learning // hp.save_steps:
            for member in range(self.learner.members):
                self._save(member, self.due_slot())
            self.saved += 1
        if changed or after * others // hp.swap_steps > before * others // hp.swap_steps:
            chance, uniform = streams.uniform(self.keys[:, None], np.arange(2) + 2 * after).T
            drawn = (uniform * min(self.saved, hp.window)).astype(np.int64)
            latest = chance < hp.play_against_latest_model_ratio
            initial = ~latest & (chance < hp.play_against_latest_model_ratio + hp.initial_ratio)
            for member, opponent in enumerate(np.where(latest, hp.window, np.where(initial, 0, drawn)).tolist()):
                self._play(member, opponent)

    def due_slot(self) -> int:
        """Return the slot of the oldest policy that a copy may replace."""
        kept = int(self.hp.initial_ratio > 0)
        return kept + (self.saved - kept) % (self.hp.window - kept)

    def _save(self, member: int, slot: int) -> None:
        """Copy a member's policy into its pool."""
        self.policies[member, slot] = packed(self.learner, member)
        self.ratings[member, slot] = self.ratings[member, -1]
        if self.digests[member]:
            Chunked(self.policies[member], self.digests[member], self.hp.window).changed(np.array([slot]))

    def _play(self, member: int, opponent: int) -> None:
        """Let a policy of the pool act, or the latest one."""
        self.opponent[member] = opponent
        latest = opponent == self.hp.window
        unpack(self.past, member, packed(self.learner, member) if latest else self.policies[member, opponent])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Recurrent states."""
        return getattr(self.memory, "tensors", {})

    def member_state(self, member: int) -> Tree:
        written = min(self.saved, self.hp.window)
        return {
            "policies": Chunked(self.policies[member], self.digests[member], written),
            "saved": self.saved,
            "ratings": torch.from_numpy(self.ratings[member].copy()),
            "opponent": int(self.opponent[member]),
            "playing": packed(self.past, member),
            "memory": {name: x[member].detach().to("cpu", copy=True) for name, x in self.tensors.items()},
        }

    @torch.no_grad()
    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        leaf = tree["policies"]
        self.policies[member] = leaf.tensor if isinstance(leaf, Chunked) else leaf
        self.digests[member] = list(leaf.digests) if isinstance(leaf, Chunked) else []
        self.saved, self.opponent[member] = tree["saved"], tree["opponent"]
        self.ratings[member] = tree["ratings"].numpy()
        unpack(self.past, member, tree["playing"])
        for name, tensor in self.tensors.items():
            tensor[member].copy_(tree["memory"][name])


class Sides:
    """The behaviours that learn by self-play.

    One team learns at a time, and past policies play the others.

    Attributes:
        shared: the shared environments.
        teams: slots of each team, by its name.
        pools: past policies of each behaviour, by its name.
    """

    def __init__(self, shared: SharedEnvs, teams: Mapping[str, tuple[int, ...]]) -> None:
        self.shared, self.teams = shared, teams
        self.pools: dict[str, SelfPlay] = {}

    def add(self, name: str, pool: SelfPlay) -> None:
        """Let a behaviour's past policies play."""
        self.pools[name] = pool
        self.shared.replace[name], pool.view.on_step = pool.replaced, pool.see

    def learning_team(self, env_steps: int) -> int:
        """Return the index of the team that learns then."""
        name, pool = next(iter(self.pools.items()))
        slots = {*self.shared.roster.behaviours[name].slots}
        agents = min(len(slots & {*team}) for team in self.teams.values() if slots & {*team})
        return env_steps * agents // pool.hp.team_change % len(self.teams)

    def take(self, env_steps: int) -> None:
        """Let the team learn whose turn it is then."""
        for pool in self.pools.values():
            team, view = [*self.teams.values()][self.learning_team(env_steps)], pool.view
            view.give(np.tile([slot not in team for slot in view.behaviour.slots], self.shared.envs.num_envs))

    def truncate_all(self) -> None:
        """Abandon the past policies' running episodes."""
        for pool in self.pools.values():
            pool.truncate_all()

    def begin_block(self, env_steps: int) -> None:
        """Prepare past policies to act."""
        for pool in self.pools.values():
            pool.begin_block(env_steps)

    def end_block(self, before: int, after: int) -> list[str]:
        """Save and draw policies, and change the team that learns.

        Return the behaviours of which other agents learn from now on.
        """
        changed = bool(self.pools) and self.learning_team(before) != self.learning_team(after)
        for pool in self.pools.values():
            pool.end_block(before, after, changed)
        if changed:
            self.take(after)
        return [*self.pools] if changed else []


def _views(learner: Learner, member: int) -> Iterator[Tensor]:
    """Yield the tensors of a policy in their order; views."""
    return iter(learner.policy_views(member).values())


def packed(learner: Learner, member: int) -> Tensor:
    """Return a copy of a member's policy as bytes."""
    parts = [x.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for x in _views(learner, member)]
    return torch.cat(parts)


@torch.no_grad()
def unpack(learner: Learner, member: int, policy: Tensor) -> None:
    """Load a policy's bytes into a member."""
    first = 0
    for view in _views(learner, member):
        size = view.nbytes
        view.copy_(policy[first : first + size].clone().view(view.dtype).view(view.shape))
        first += size
