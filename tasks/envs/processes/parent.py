"""A backend of several processes, with the results of one.

A process that dies is replaced, and its environments are restored. The parent keeps the seeds of their episodes and the
actions since; the same seeds and actions lead to the same episodes.
"""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import EnvironmentFailed, Hung, TaskError, other_episodes
from ..base.envs import Array
from ..base.observations import Observations
from ..base.space_rules import Spaces
from ..base.spec import EnvSpec, EnvSpecError
from ..gym.backend import FlatStep, Options, Outcome
from ..gym.restore import Restore
from .agreement import played_here
from .wire import STEP, Answer, Child, Layout, arrays_in, memory_file

MAX_DEATHS = 3  # deaths of one process, without an answer in between, after which it fails
MAX_HANGS = 2  # the same for hangs, since each takes long
T = TypeVar("T")
Request = tuple[dict[str, Any], Sequence[Array]]


class EnvProcessFailed(EnvironmentFailed):
    """An environment process raised an exception, or died repeatedly."""


@dataclass
class _Episode:
    """Record of an episode: start, loaded snapshot, and actions since."""

    seed: int
    options: Options
    fresh: bool
    snapshot: tuple[Array, int] | None = None  # the simulator's state, and the steps before it
    actions: list[Array] = field(default_factory=list)


class Processes:
    """M environments in several processes.

    Attributes:
        bounds: process w has the environments bounds[w] to bounds[w + 1] - 1.
        past: for every environment, the episodes that restore it. In restart mode, where it may remember earlier ones,
            these are all since it was new; otherwise only the running one.
        last_obs: last observation of every environment.
        elsewhere: why its processes play other episodes than this one; "" if they do not.
    """

    def __init__(self, spec: EnvSpec, count: int, processes: int, restore: Restore, spaces: Spaces):
        self.spec, self.restore = spec, restore
        self.remembers = restore.mode == "restart"
        digest = played_here(spec, tuple(restore.generators)) if restore.exact else ""
        processes = min(processes, count)
        self.bounds = [count * w // processes for w in range(processes + 1)]
        self.process_of = [w for w in range(processes) for _ in range(self.bounds[w], self.bounds[w + 1])]
        rows = FlatStep.empty(1, Observations(spaces.observation, spec.id), spec)._asdict()
        rows["actions"] = np.empty((1, *(spaces.action.shape or ())), spaces.action.dtype)
        rows["playing"], rows["ticks"] = np.ones(1, np.bool_), np.zeros(1, np.int64)
        layout: Layout = [(name, row.dtype.str, (count, *row.shape[1:])) for name, row in rows.items()]
        self.memory = memory_file(layout)
        arrays = arrays_in(self.memory, layout)
        self.actions, self.shared = arrays["actions"], FlatStep(*(arrays[name] for name in FlatStep._fields))
        self.playing = arrays["playing"]
        self.ticks = arrays["ticks"]  # of a process, at the place of its first environment
        self.hello = {"spec": spec.to_json(), "layout": layout, "generators": restore.generators}
        self.past: list[list[_Episode]] = [[] for _ in range(count)]
        self.last_obs = np.zeros_like(self.shared.obs)
        self.deaths = [0] * processes
        self.hung: dict[int, str] = {}  # error messages of processes that were killed because they hung
        self.children: list[Child] = []
        self.close = weakref.finalize(self, _close, self.children, self.memory, os.getpid())
        try:
            self.children += [self._start(w) for w in range(processes)]
            digests = {self._await_ready(w) for w in range(processes)}
        except BaseException:
            self.close()
            raise
        self.elsewhere = (
            other_episodes(spec.id, "in the process that trains") if digest and digests - {digest, ""} else ""
        )

    def _start(self, w: int) -> Child:
        first = self.bounds[w]
        rows = {"first": first, "count": self.bounds[w + 1] - first, "plays": self.restore.exact and not self.deaths[w]}
        return Child({**self.hello, **rows}, self.memory)

    # --- the backend ---

    def begin(self, indices: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        episodes = [_Episode(seed, chosen, fresh) for seed, chosen in zip(seeds, options, strict=True)]
        first = np.empty((len(indices), *self.shared.obs.shape[1:]), self.shared.obs.dtype)
        for rows, (_, (obs,)) in self._ask(indices, lambda rows: _begin_request([episodes[j] for j in rows])):
            first[rows] = obs
        for i, episode in zip(indices, episodes, strict=True):
            if fresh or not self.remembers:
                self.past[i] = []
            self.past[i].append(episode)
        self._update_last_obs(indices, first)
        return first

    def step(self, actions: Array, playing: NDArray[np.bool_]) -> FlatStep:
        self.actions[...], self.playing[...] = actions, playing
        at_work = [w for w in range(len(self.children)) if playing[self.bounds[w] : self.bounds[w + 1]].any()]
        self._exchange(dict.fromkeys(at_work, (STEP, ())))
        for past, action in compress(zip(self.past, actions, strict=True), playing):
            past[-1].actions.append(action)
        result = self.shared.copy()
        if not playing.all():
            for rows in result:
                rows[~playing] = 0
            result.obs[~playing] = self.last_obs[~playing]
        self.last_obs = result.obs
        return result

    def replay(self, indices: Sequence[int], actions: Sequence[Array]) -> list[Outcome]:
        answers = self._ask(indices, lambda rows: ({"kind": "replay"}, [actions[j] for j in rows]))
        outcomes = _in_order([(rows, _outcomes(answer)) for rows, answer in answers])
        for i, recorded, outcome in zip(indices, actions, outcomes, strict=True):
            self.past[i][-1].actions += list(recorded)
            self._update_last_obs([i], outcome.obs[None])
        return outcomes

    def play_again(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> Outcome:
        [(_, answer)] = self._ask_again("play_again", index, seed, options, actions, fresh)
        [outcome] = _outcomes(answer)
        return outcome

    def marks(self) -> Mapping[str, str]:
        answers = self._exchange(dict.fromkeys(range(len(self.children)), ({"kind": "marks", "indices": ()}, ())))
        return {f"{w} {name}": mark for w, (content, _) in answers.items() for name, mark in content["marks"].items()}

    def draws(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> list[str]:
        [(_, (content, _))] = self._ask_again("draws", index, seed, options, actions, fresh)
        names: list[str] = content["draws"]
        return names

    def take(self, indices: Sequence[int]) -> list[Array]:
        answers = self._ask(indices, lambda rows: ({"kind": "take"}, ()))
        return _in_order([(rows, arrays) for rows, (_, arrays) in answers])

    def put(self, indices: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        snapshots = [(state, int(steps)) for state, steps in zip(states, elapsed, strict=True)]
        self._ask(indices, lambda rows: _put_request([snapshots[j] for j in rows]))
        for i, snapshot in zip(indices, snapshots, strict=True):
            self.past[i][-1].snapshot = snapshot

    # --- messages ---

    def _ask_again(
        self, request: str, index: int, seed: int, options: Options, actions: Array, fresh: bool
    ) -> list[tuple[list[int], Answer]]:
        """Ask the process of an environment to play an episode again."""
        begin = {"seed": seed, "options": None if options is None else dict(options), "fresh": fresh}
        return self._ask([index], lambda rows: ({"kind": request, **begin}, [actions]))

    def _ask(self, indices: Sequence[int], make: Callable[[list[int]], Request]) -> list[tuple[list[int], Answer]]:
        """Ask each process about its environments.

        Returns:
            The answers, with the rows of ``indices`` that they belong to.
        """
        rows: dict[int, list[int]] = {}
        for j, i in enumerate(indices):
            rows.setdefault(self.process_of[i], []).append(j)
        requests: dict[int, tuple[bytes | dict[str, Any], Sequence[Array]]] = {}
        for w in sorted(rows):
            content, arrays = make(rows[w])
            requests[w] = {**content, "indices": [int(indices[j]) - self.bounds[w] for j in rows[w]]}, arrays
        return [(rows[w], answer) for w, answer in self._exchange(requests).items()]

    def _exchange(self, requests: Mapping[int, tuple[bytes | dict[str, Any], Sequence[Array]]]) -> dict[int, Answer]:
        """Return the processes' answers; restore those that died, and ask again."""
        for w, request in requests.items():
            self.children[w].send(*request)
        answers: dict[int, Answer] = {}
        errors = []
        for w, request in requests.items():
            try:
                while (answer := self._receive(w)) is None:
                    self._restore(w)
                    self.children[w].send(*request)
                answers[w] = answer
                self.deaths[w] = 0
            except TaskError as error:
                errors.append(error)  # raised after all have answered, so that all can be asked again
        if errors:
            raise errors[0]
        return answers

    def _receive(self, w: int) -> Answer | None:
        """Return a process's answer, None if it died; raise its exceptions here."""
        first = self.bounds[w]
        try:
            answer = self.children[w].receive(self.ticks[first : first + 1])
        except Hung as hung:
            self.hung[w] = str(hung)
            return None
        self.hung.pop(w, None)
        if answer is None or "error" not in answer[0]:
            return answer
        content = answer[0]
        if content["spec"]:
            unknown = "must be an environment that Gymnasium knows" in content["error"]
            cure = "an environment that this program registers itself must be in a module that its id names"
            raise EnvSpecError(
                f"the environment's process reports: {content['error']}" + f"; {cure}, as in 'module:Name-v0'" * unknown
            )
        error = EnvProcessFailed(f"{self.spec.id}: an environment in a process of its own raised {content['error']}")
        error.add_note(content["trace"])
        raise error

    # --- deaths ---

    def _await_ready(self, w: int) -> str:
        """Wait for a new process; return the digest of its short episode."""
        while (answer := self._receive(w)) is None:
            self._replace(w, "while they made their environments")
        return str(answer[0]["played"])

    def _replace(self, w: int, when: str = "in the same step") -> None:
        """Start a process in place of one that died."""
        self.children[w].release()
        status = self.children[w].wait()
        self.deaths[w] += 1
        if w in self.hung and self.deaths[w] >= MAX_HANGS:
            raise Hung(
                f"{self.spec.id}: an environment process that hangs is replaced, but {MAX_HANGS} in a row "
                f"{self.hung[w]} (--stuck); does the simulator wait for something?"
            )
        if self.deaths[w] >= MAX_DEATHS:
            cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise EnvProcessFailed(
                f"{self.spec.id}: environment processes are replaced when they die, but {MAX_DEATHS} in a row "
                f"did so {when}, the last one by {cause}; is memory short, or does the simulator crash?"
            )
        self.children[w] = self._start(w)

    def _restore(self, w: int) -> None:
        """Replace a process that died, and restore its environments."""
        while True:
            self._replace(w)
            self._await_ready(w)
            if all(self._restore_env(w, i) for i in range(self.bounds[w], self.bounds[w + 1])):
                return

    def _restore_env(self, w: int, i: int) -> bool:
        """Restore one environment; return False if the process died meanwhile."""
        obs: Array | None = None
        for episode in self.past[i]:
            requests = [_begin_request([episode])]
            if episode.snapshot is not None:
                requests.append(_put_request([episode.snapshot]))
            if episode.actions:
                requests.append(({"kind": "replay"}, [np.stack(episode.actions)]))
            for content, arrays in requests:
                self.children[w].send({**content, "indices": [i - self.bounds[w]]}, arrays)
                if (answer := self._receive(w)) is None:
                    return False
                obs = answer[1][0] if answer[1] else None  # after a snapshot, none until the next step
        if obs is not None and obs.tobytes() != self.last_obs[i].tobytes():
            raise EnvProcessFailed(
                f"{self.spec.id}: a process died, and its environments must be restored, but the same seeds and "
                f"actions lead elsewhere ({self.restore.reason}); resume from the last checkpoint"
            )
        return True

    def _update_last_obs(self, indices: Sequence[int], obs: Array) -> None:
        self.last_obs = self.last_obs.copy()  # the learner has the old one
        self.last_obs[list(indices)] = obs


def _outcomes(answer: Answer) -> list[Outcome]:
    """Return the outcomes in an answer."""
    content, obs = answer
    return [Outcome(*parts) for parts in zip(obs, content["totals"], content["steps"], strict=True)]


def _in_order(answers: list[tuple[list[int], Sequence[T]]]) -> list[T]:
    """Return the parts of all answers, in the order of their rows."""
    parts = {j: part for rows, parts in answers for j, part in zip(rows, parts, strict=True)}
    return [parts[j] for j in sorted(parts)]


def _begin_request(episodes: Sequence[_Episode]) -> Request:
    return {
        "kind": "begin",
        "fresh": episodes[0].fresh,
        "seeds": [episode.seed for episode in episodes],
        "options": [None if episode.options is None else dict(episode.options) for episode in episodes],
    }, ()


def _put_request(snapshots: Sequence[tuple[Array, int]]) -> Request:
    return {"kind": "put", "elapsed": [steps for _, steps in snapshots]}, [state for state, _ in snapshots]


def _close(children: list[Child], memory: int, owner: int) -> None:
    """End the processes and wait for them, except in a fork."""
    if os.getpid() != owner:
        return
    for child in children:
        child.release()
    for child in children:
        child.wait()
    children.clear()
    os.close(memory)
