"""Checks in training: some episodes are played again, in other environments.

A self-test is short, and a difference may come late: after many episodes, or as a process grows old. A member whose
episode differs is labelled from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import TaskError, is_lack_of_memory, text_of
from ..base.envs import Array, Tree, to_tensor
from ..base.spec import EnvSpec
from .backend import Backend, Options, Outcome
from .restore import Restore, cure_of_chance

Result = TypeVar("Result")
CLEAN = "keep what episodes depend on in the environment, and set it in every reset"
CHECKED = 100  # one of so many episodes is played again in training, so checks take a hundredth of its steps
CHECKED_IF_IT_AGES = 20  # the same where the age of an environment or of a process may have an effect
LONGEST = 3  # episodes of an epoch that are played again if somebody drew from a global generator meanwhile


def twice(play: Callable[[], Result]) -> Result | str:
    """Play episodes, again if that raises, since simulators fail rarely.

    Returns:
        The result, or a description of the second error.
    """
    for _ in range(2):
        try:
            return play()
        except Exception as error:  # simulators may raise anything
            if is_lack_of_memory(error):
                raise
            failed = f"raised {type(error).__name__} ({text_of(error)})"
    return failed


class Ended(NamedTuple):
    """An episode that has ended, and the environment that played it.

    Attributes:
        at: index of the environment, on the flat axis.
        number: number of the episode.
        seed, options: arguments of its reset.
        actions: its actions.
        outcome: how it ended.
    """

    at: int
    number: int
    seed: int
    options: Options
    actions: Sequence[Array]
    outcome: Outcome


class Checks:
    """Checks of the episodes of P members, with N environments each.

    These are one of `CHECKED` episodes, or more, and those in which an environment raised. The choice depends on their
    seeds and outcomes alone, so it is the same after a resume. Where age may have an effect, the last episode of an
    epoch is among them, since the effect may have just begun.

    The self-test's episodes are short and their actions random, so an environment may draw from a global generator in
    the later parts of episodes only. If such a generator has moved in an epoch, the longest episodes show whether that
    was the environment.

    Attributes:
        steps: steps of each member in this epoch, (P,).
        last: each member's last episode that ended in this epoch, where age may have an effect.
        longest: each member's longest episodes that ended in this epoch, the longest first.
        marks: digests of the global generators' states at the epoch's first step; None before it.
    """

    def __init__(
        self,
        spec: EnvSpec,
        restore: Restore,
        members: int,
        num_envs: int,
        reasons: dict[int, list[str]],
        make_young: Callable[[], Backend] | None,
    ) -> None:
        """Check nothing yet.

        Args:
            spec: spec of the environments.
            restore: how they are restored.
            members: P.
            num_envs: N.
            reasons: gets reasons why a member is not exact.
            make_young: creates an environment in a process that plays little, which is used if the age of a process may
                have an effect.
        """
        self.spec, self.renew, self.ages = spec, restore.renew, bool(restore.ages)
        self.members, self.num_envs, self.reasons = members, num_envs, reasons
        self.make_young = make_young if restore.ages == "process" else None
        self._young: Backend | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the epoch."""
        self.steps: NDArray[np.int64] = np.zeros(self.members, np.int64)
        self.last: dict[int, Ended] = {}
        self.longest: dict[int, list[Ended]] = {}
        self.marks: Mapping[str, str] | None = None

    def count_step(self, backend: Backend) -> None:
        """Count a step of all environments."""
        if self.marks is None:
            self.marks = backend.marks()
        self.steps += 1

    def add(self, episode: Ended, raised: bool, backend: Backend) -> None:
        """Check an episode now, if it is chosen, or later."""
        p = episode.at // self.num_envs
        if self.ages:
            self.last[p] = episode
        longest = self.longest.setdefault(p, [])
        if len(longest) < LONGEST or episode.outcome.steps > longest[-1].outcome.steps:
            longest.append(episode)
            longest.sort(key=lambda ended: -ended.outcome.steps)
            del longest[LONGEST:]
        if self._is_chosen(episode.seed, raised):
            self._compare(episode, lambda: backend)

    def end_epoch(self, backend: Callable[[], Backend]) -> None:
        """Check the last episodes, and begin another epoch.

        They are left out if they took more than a small share of the epoch's steps.

        Args:
            backend: returns open environments.
        """
        for p, episode in self.last.items():
            if CHECKED_IF_IT_AGES * episode.outcome.steps <= self.steps[p] * self.num_envs:
                self._compare(episode, backend)
        if self.longest and self.marks != backend().marks():
            for p in self.longest:
                self._find_draws(p, backend)
        self.last.clear()
        self.longest.clear()
        self.steps[:], self.marks = 0, None

    def _find_draws(self, p: int, backend: Callable[[], Backend]) -> None:
        """Note if a member's longest episodes draw from a global generator."""
        for episode in self.longest[p]:
            if self.reasons.get(p):
                return
            used = twice(partial(backend().draws, episode.at, *_arguments(episode), self.renew))
            if used and not isinstance(used, str):
                self.reasons.setdefault(p, []).append(
                    f"{self.spec.id}: episode {episode.number} of environment {episode.at % self.num_envs} draws from "
                    f"the global generator of {' and '.join(used)}, which the self-test's short episodes do "
                    f"not; {cure_of_chance(self.spec.id)}"
                )

    def member_state(self, i: int) -> Tree | None:
        """Return what the epoch's end checks for a member; None for nothing."""
        if i not in self.last:
            return None
        episode = self.last[i]
        return {
            "steps": int(self.steps[i]),
            "at": episode.at % self.num_envs,
            "number": episode.number,
            "seed": episode.seed,
            "options": None if episode.options is None else {**episode.options},
            "actions": to_tensor(np.stack(episode.actions)),
            "obs": to_tensor(np.asarray(episode.outcome.obs)),
            "total": float(episode.outcome.total),
        }

    def load_member(self, i: int, tree: Tree | None) -> None:
        """Load what `member_state` returned."""
        self.last.pop(i, None)
        self.steps[i] = 0 if tree is None else tree["steps"]
        if tree is not None and self.ages:
            actions = tree["actions"].numpy().copy()
            outcome = Outcome(tree["obs"].numpy().copy(), tree["total"], len(actions))
            at = i * self.num_envs + tree["at"]
            self.last[i] = Ended(at, tree["number"], tree["seed"], tree["options"], actions, outcome)

    def close(self) -> None:
        """End the process that plays episodes again."""
        young, self._young = self._young, None
        if young is not None:
            young.close()

    def _is_chosen(self, seed: int, raised: bool) -> bool:
        return raised or seed // 2 % (CHECKED_IF_IT_AGES if self.ages else CHECKED) == 0

    def _compare(self, episode: Ended, backend: Callable[[], Backend]) -> None:
        """Play an episode again, and note a difference unless there was one."""
        p, n = divmod(episode.at, self.num_envs)
        if self.reasons.get(p):
            return
        again, outcome = twice(partial(self._play_again, episode, backend)), episode.outcome
        if isinstance(again, Outcome):
            if outcome.equals(again):
                return
            again = (
                f"ended differently (step {again.steps}, return {again.total:g}; before step {outcome.steps}, "
                f"return {outcome.total:g})"
            )
        other = "process" if self._young else "one"
        self.reasons.setdefault(p, []).append(
            f"{self.spec.id}: episode {episode.number} of environment {n}, played again in another {other}, "
            f"{again}, though the self-test found no difference; {CLEAN}"
        )

    def _play_again(self, episode: Ended, backend: Callable[[], Backend]) -> Outcome:
        """Play an episode of an environment again, in another one.

        If the age of a process may have an effect, that is in a process which only does this, if it can be started.
        """
        how = _arguments(episode)
        if self.make_young is not None and self._young is None:
            try:
                self._young = self.make_young()
            except TaskError:  # this program may have registered the environment itself
                self.make_young = None
        if self._young is not None:
            return self._young.play_again(0, *how, self.renew)
        return backend().play_again(episode.at, *how, self.renew)


def _arguments(episode: Ended) -> tuple[int, Options, Array]:
    """Return what repeats an episode."""
    return episode.seed, episode.options, np.stack(episode.actions)
