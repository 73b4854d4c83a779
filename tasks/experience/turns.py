"""Games of turns, in which agents wait between their actions.

The outcome of an action is known at the agent's next turn: the rewards until then, or until the end of its episode, and
the observation that follows. So steps at which it waits are no transitions.

Notation: T steps, P members, N environments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..checkpoint.member_state import Stacked
from ..envs import StepResult
from .replay_buffer import PRESENT, Field

Bools = NDArray[np.bool_]


class Outcomes(NamedTuple):
    """Outcomes of the actions of a rollout, each (T, P, N).

    Attributes:
        rewards: sums of rewards until the agent acts again or its episode ends; 0 where it did not act.
        terminated, ended: whether the episode did so by then.
        counted: actions whose outcome is known at the end of the rollout.
        last: the last step before the agent acts again.
    """

    rewards: NDArray[np.float32]
    terminated: Bools
    ended: Bools
    counted: Bools
    last: NDArray[np.int64]


def outcomes_of(
    rewards: NDArray[np.float32], terminated: Bools, ended: Bools, acts: Bools, acts_next: Bools
) -> Outcomes:
    """Return the outcomes of a rollout's actions.

    An action is not counted if its agent still waits when the rollout ends: neither its rewards nor a value of what
    follows are known.

    Args:
        rewards: rewards of the steps, (T, P, N).
        terminated: episodes that terminated in them, (T, P, N).
        ended: episodes that terminated or were truncated, (T, P, N).
        acts: agents that act at each step, (T, P, N).
        acts_next: those that act after the last one, (P, N).
    """
    total, last = rewards.copy(), np.empty(rewards.shape, np.int64)
    following = np.concatenate([acts[1:], acts_next[None]])
    over = ended | following
    over[-1] = True
    complete = over.reshape(len(over), -1).all(1)
    for t in reversed(range(len(rewards))):
        last[t] = t
        if not complete[t]:
            last[t] = np.where(over[t], t, last[t + 1])
            total[t] += np.where(over[t], np.float32(0), total[t + 1])

    def at_last(x: Bools) -> Bools:
        return np.take_along_axis(x, last, 0)

    total[~acts] = 0
    return Outcomes(total, at_last(terminated), at_last(ended), acts & at_last(ended | following), last)


class OpenTransitions(Stacked):
    """Transitions whose agents wait for their next turn, one for each environment."""

    def __init__(self, members: int, num_envs: int, obs: Field, action: Field) -> None:
        """Start with none.

        Args:
            members: P.
            num_envs: N.
            obs: field of the observations.
            action: field of the actions.
        """
        form = (members, num_envs)
        self.tensors = {
            "obs": torch.zeros(*form, *obs.shape, dtype=obs.type),
            "action": torch.zeros(*form, *action.shape, dtype=action.type),
            "reward": torch.zeros(form),
            "open": torch.zeros(form, dtype=torch.bool),
        }
        self.obs, self.action, self.reward, self.open = (x.numpy() for x in self.tensors.values())

    def step(
        self, obs: NDArray[Any], acts: Bools, action: NDArray[Any], step: StepResult, acts_next: Bools
    ) -> dict[str, NDArray[Any]]:
        """Return the fields of the transitions that a step completes.

        The other rows have 0 in the field `PRESENT`.

        Args:
            obs: observations before the step, (P, N, ...).
            acts: agents whose actions count, (P, N).
            action: actions, (P, N, ...).
            step: results of the step.
            acts_next: agents that act next, (P, N).
        """
        self.obs[acts], self.action[acts], self.reward[acts] = obs[acts], action[acts], 0
        self.open |= acts
        self.reward[self.open] += step.reward[self.open]
        ended = step.terminated | step.truncated
        complete = self.open & (ended | acts_next)
        self.open &= ~(complete | ended)
        return {
            "obs": self.obs,
            "next_obs": step.next_obs,
            "action": self.action,
            "reward": np.where(complete, self.reward, np.float32(0)),
            "terminated": complete & step.terminated,
            "truncated": complete & step.truncated,
            PRESENT: complete,
        }

    def clear(self) -> None:
        """Drop all, since their episodes are abandoned."""
        self.open[:] = False
