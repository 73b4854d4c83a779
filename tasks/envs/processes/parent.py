"""Environments in several processes, each with its share of the places; results are those of one process, bit for bit.

A process that dies is replaced, and its environments are brought back to where they were: the seeds of their episodes
and the actions since are known here, and the same seeds and actions give the same episodes.
"""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import TaskError
from ..base import Array
from ..encode import Observations
from ..gym.selftest import Restore
from ..gym.stage import Options, Shown
from ..spec import EnvSpec, EnvSpecError
from .wire import STEP, Answer, Child, Layout, arrays_in, memory_file

GIVE_UP = 3  # deaths of one process without an answer between them
Request = tuple[dict[str, Any], Sequence[Array]]


class EnvProcessFailed(TaskError):
    """An environment in a process of its own raised an exception, or its process dies again and again."""


@dataclass
class _Episode:
    """What leads an environment to where it is: an episode's beginning, a snapshot put into it, the actions since."""

    seed: int
    options: Options
    fresh: bool
    snapshot: tuple[Array, int] | None = None  # the simulator's state, and the steps until then
    actions: list[Array] = field(default_factory=list)


class Processes:
    """A stage whose environments run in ``count`` processes.

    Attributes:
        bounds: the places of process w are bounds[w] to bounds[w + 1] - 1.
        past: for every place, the episodes that lead to where it is: since the environment was new in restart mode,
            where it may remember the ones before, and the running one otherwise.
        shown: the last observation of every place.
    """

    def __init__(self, spec: EnvSpec, places: int, count: int, restore: Restore, encoder: Observations, action: Array):
        self.spec, self.restore = spec, restore
        self.remembers = restore.mode == "restart"
        count = min(count, places)
        self.bounds = [places * w // count for w in range(count + 1)]
        self.home = [w for w in range(count) for _ in range(self.bounds[w], self.bounds[w + 1])]
        empty = Shown.empty(1, encoder)
        layout: Layout = [
            (name, array.dtype.str, (places, *array.shape[1:]))
            for name, array in {**empty._asdict(), "actions": action[None]}.items()
        ]
        self.memory = memory_file(layout)
        arrays = arrays_in(self.memory, layout)
        self.actions, self.room = arrays["actions"], Shown(*(arrays[name] for name in Shown._fields))
        self.hello = {"spec": spec.to_json(), "layout": layout}
        self.past: list[list[_Episode]] = [[] for _ in range(places)]
        self.shown = np.zeros_like(self.room.obs)
        self.deaths = [0] * count
        self.children: list[Child] = []
        self.close = weakref.finalize(self, _close, self.children, self.memory, os.getpid())
        try:
            self.children += [self._start(w) for w in range(count)]
            for w in range(count):
                self._settle(w)
        except BaseException:
            self.close()
            raise

    def _start(self, w: int) -> Child:
        first = self.bounds[w]
        return Child({**self.hello, "first": first, "count": self.bounds[w + 1] - first}, self.memory)

    # --- the stage ---

    def begin(self, places: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        episodes = [_Episode(seed, chosen, fresh) for seed, chosen in zip(seeds, options, strict=True)]
        first = np.empty((len(places), *self.room.obs.shape[1:]), self.room.obs.dtype)
        for chosen, (_, (obs,)) in self._ask(places, lambda chosen: _beginning([episodes[j] for j in chosen])):
            first[chosen] = obs
        for place, episode in zip(places, episodes, strict=True):
            if fresh or not self.remembers:
                self.past[place] = []
            self.past[place].append(episode)
        self._show(places, first)
        return first

    def step(self, actions: Array) -> Shown:
        self.actions[...] = actions
        self._exchange(dict.fromkeys(range(len(self.children)), (STEP, ())))
        for past, action in zip(self.past, actions, strict=True):
            past[-1].actions.append(action)
        shown = self.room.copy()
        self.shown = shown.obs
        return shown

    def replay(self, places: Sequence[int], actions: Sequence[Array]) -> list[Array | None]:
        last: list[Array | None] = [None] * len(places)
        of_each = self._ask(places, lambda chosen: ({"kind": "replay"}, [actions[j] for j in chosen]))
        for chosen, (content, arrays) in of_each:
            seen = iter(arrays)
            for j, moved in zip(chosen, content["moved"], strict=True):
                last[j] = next(seen) if moved else None
        for place, each, obs in zip(places, actions, last, strict=True):
            self.past[place][-1].actions += list(each)
            if obs is not None:
                self._show([place], obs[None])
        return last

    def take(self, places: Sequence[int]) -> list[Array]:
        states: list[Array] = [np.empty(0)] * len(places)
        for chosen, (_, arrays) in self._ask(places, lambda chosen: ({"kind": "take"}, ())):
            for j, state in zip(chosen, arrays, strict=True):
                states[j] = state
        return states

    def put(self, places: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        shots = [(state, int(steps)) for state, steps in zip(states, elapsed, strict=True)]
        self._ask(places, lambda chosen: _putting([shots[j] for j in chosen]))
        for place, shot in zip(places, shots, strict=True):
            self.past[place][-1].snapshot = shot

    # --- talking to the processes ---

    def _ask(self, places: Sequence[int], make: Callable[[list[int]], Request]) -> list[tuple[list[int], Answer]]:
        """Asks every process of its places; ``make`` and the answers are of their indices in ``places``."""
        chosen = {w: [j for j, place in enumerate(places) if self.home[place] == w] for w in range(len(self.children))}
        requests: dict[int, tuple[bytes | dict[str, Any], Sequence[Array]]] = {}
        for w, mine in chosen.items():
            if mine:
                content, arrays = make(mine)
                requests[w] = {**content, "places": [int(places[j]) - self.bounds[w] for j in mine]}, arrays
        return [(chosen[w], answer) for w, answer in self._exchange(requests).items()]

    def _exchange(self, requests: Mapping[int, tuple[bytes | dict[str, Any], Sequence[Array]]]) -> dict[int, Answer]:
        """Every process's answer; one that died is replaced, brought back, and asked again."""
        for w, request in requests.items():
            self.children[w].say(*request)
        answers: dict[int, Answer] = {}
        errors = []
        for w, request in requests.items():
            try:
                while (answer := self._hear(w)) is None:
                    self._revive(w)
                    self.children[w].say(*request)
                answers[w] = answer
                self.deaths[w] = 0
            except TaskError as error:
                errors.append(error)  # raised when the others have answered, so that all can be asked again
        if errors:
            raise errors[0]
        return answers

    def _hear(self, w: int) -> Answer | None:
        """A process's answer, None if it died; what it raised is raised here."""
        answer = self.children[w].hear()
        if answer is None or "error" not in answer[0]:
            return answer
        content = answer[0]
        if content["spec"]:
            raise EnvSpecError(
                f"in a process of its own, {content['error']}; an environment that this program registers itself must "
                "be in a module that its id names, as in 'module:Name-v0'"
            )
        error = EnvProcessFailed(f"{self.spec.id}: an environment in a process of its own raised {content['error']}")
        error.add_note(content["trace"])
        raise error

    # --- deaths ---

    def _settle(self, w: int) -> None:
        """Waits until a new process has made its environments."""
        while self._hear(w) is None:
            self._replace(w)

    def _replace(self, w: int) -> None:
        """A new process in the place of one that died."""
        self.children[w].leave()
        status = self.children[w].wait()
        self.deaths[w] += 1
        if self.deaths[w] >= GIVE_UP:
            cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise EnvProcessFailed(
                f"{self.spec.id}: environment processes are replaced when they die, but {GIVE_UP} in a row did so in "
                f"the same step, the last one by {cause}; is there enough memory, or does the simulator crash?"
            )
        self.children[w] = self._start(w)

    def _revive(self, w: int) -> None:
        """A new process in the place of one that died, its environments brought to where they were."""
        while True:
            self._replace(w)
            self._settle(w)
            if all(self._lead_back(w, place) for place in range(self.bounds[w], self.bounds[w + 1])):
                return

    def _lead_back(self, w: int, place: int) -> bool:
        """Brings one environment to where it was; False if the process died over it."""
        obs: Array | None = None
        for episode in self.past[place]:
            steps = [_beginning([episode])]
            if episode.snapshot is not None:
                steps.append(_putting([episode.snapshot]))
            if episode.actions:
                steps.append(({"kind": "replay"}, [np.stack(episode.actions)]))
            for content, arrays in steps:
                self.children[w].say({**content, "places": [place - self.bounds[w]]}, arrays)
                if (answer := self._hear(w)) is None:
                    return False
                obs = answer[1][0] if answer[1] else None  # after a snapshot it shows nothing until its next step
        if obs is not None and obs.tobytes() != self.shown[place].tobytes():
            raise EnvProcessFailed(
                f"{self.spec.id}: a process died, and its environments must come back to where they were, but the same "
                f"seeds and actions lead elsewhere ({self.restore.why}); go on from the last checkpoint"
            )
        return True

    def _show(self, places: Sequence[int], obs: Array) -> None:
        self.shown = self.shown.copy()  # the learner has the old one
        self.shown[list(places)] = obs


def _beginning(episodes: Sequence[_Episode]) -> Request:
    return {
        "kind": "begin",
        "fresh": episodes[0].fresh,
        "seeds": [episode.seed for episode in episodes],
        "options": [None if episode.options is None else dict(episode.options) for episode in episodes],
    }, ()


def _putting(shots: Sequence[tuple[Array, int]]) -> Request:
    return {"kind": "put", "elapsed": [steps for _, steps in shots]}, [state for state, _ in shots]


def _close(children: list[Child], memory: int, owner: int) -> None:
    """Ends the processes and waits for them; a copy of the parent (a fork) leaves them alone."""
    if os.getpid() != owner:
        return
    for child in children:
        child.leave()
    for child in children:
        child.wait()
    children.clear()
    os.close(memory)
