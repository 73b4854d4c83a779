"""Shared environments as one behaviour sees them.

Each of its agents is an environment of its own.

Notation: P members, N shared environments of each, A agents of a behaviour, B its environments, N * A.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ...errors import StateMismatch
from ..base.envs import Array, Envs, StepResult, Tree, to_tensor
from ..base.images import MixedShape
from ..base.joined import Joined, can_join, leaves
from ..base.masks import CentralShape, MaskedShape, mask_in
from ..base.observations import Observations
from ..base.spec import EnvSpecError
from ..base.writers import size_of
from .adapter import ACTS, AGENTS, OUTCOME, PRESENT, REWARD, STATE, TERMINATED, TRUNCATED
from .roster import Behaviour, Roster

Space = spaces.Space[Any]


NONE, OF_ALL, OF_STATE = "none", "joint", "state"  # what a central critic sees


def learner_space(space: Space) -> Space:
    """Return an agent's action space as a learner sees it.

    Hybrid actions are rows.
    """
    return Joined(space) if can_join(space) else space


class Extras(NamedTuple):
    """Further parts of a behaviour's observations.

    Attributes:
        ids: which of the behaviour's agents it is, one-hot.
        central: what a central critic sees: "joint", the observations of all agents, "state", the environment's state,
            or "none".
    """

    ids: bool = False
    central: str = NONE


PLAIN = Extras()


class Rows(NamedTuple):
    """Joint observations, and what they say of A agents.

    Attributes:
        flat: the observations, (P * N, ...).
        numbers: their numbers, (P * N, D).
        outcomes: outcomes of the step, (P, N, A, 5).
    """

    flat: Array
    numbers: Array
    outcomes: NDArray[np.float32]


class JointForm:
    """Conversion between joint observations and actions and those of each behaviour.

    Joint arrays are (P, N, ...), a behaviour's (P, N * A, ...).
    """

    def __init__(self, roster: Roster, envs: Envs, extras: Mapping[str, Extras] = MappingProxyType({})) -> None:
        """Find each agent's part of a joint row.

        Args:
            roster: agents and behaviours.
            envs: the joint environments.
            extras: what each behaviour's observations have besides; nothing if absent.
        """
        observation, action, name = envs.obs_space, envs.action_space, envs.spec.id
        assert isinstance(action, Joined)
        self.extras = {name: x for name, x in extras.items() if x != PLAIN}
        self.encoder = Observations(observation, name)
        self.encoders = {b.name: Observations(b.observation, name) for b in roster.behaviours.values()}
        self.numbers, self.images = self._parts(observation, len(roster.agents))
        self.columns: list[slice] = []  # of each agent's action in a joint row
        for path, _, part in action.parts:
            if path[0] == len(self.columns):
                self.columns.append(part)
            else:
                self.columns[-1] = slice(self.columns[-1].start, part.stop)
        self.width = len(action.low)
        end, state = self.numbers[-1].stop, sum(size_of(leaf) for path, leaf in leaves(observation) if path[0] == STATE)
        self.central = {NONE: slice(0, 0), OF_ALL: slice(0, end), OF_STATE: slice(end, end + state)}
        # where each behaviour's numbers and actions lie in joint rows
        self.places = {b.name: _places([self.numbers[slot] for slot in b.slots]) for b in roster.behaviours.values()}
        self.acted = {b.name: _places([self.columns[slot] for slot in b.slots]) for b in roster.behaviours.values()}

    def _parts(self, observation: Space, agents: int) -> tuple[list[slice], list[list[int]]]:
        """Return the numbers of each agent, and the indices of its images."""
        numbers, end, count = [[0, 0] for _ in range(agents)], 0, 0
        images: list[list[int]] = [[] for _ in range(agents)]
        for (entry, *path), leaf in leaves(observation):
            if entry != AGENTS:
                continue
            agent = int(path[0])
            if Observations(leaf, "").kind == "image":
                images[agent].append(count)
                count += 1
                continue
            begin, end = end, end + size_of(leaf)
            numbers[agent] = [begin if numbers[agent][1] == 0 else numbers[agent][0], end]
        return [slice(*span) for span in numbers], images

    def shape_of(self, behaviour: Behaviour) -> tuple[int, ...]:
        """Return the shape of a behaviour's observations."""
        shape, extras = self.encoders[behaviour.name].shape, self.extras.get(behaviour.name, PLAIN)
        if extras == PLAIN:
            return shape
        width = shape[0] + extras.ids * len(behaviour.slots)
        if extras.central != NONE:
            central = self.central[extras.central]
            return CentralShape(width + central.stop - central.start, mask_in(shape), slice(0, width))
        mask = mask_in(shape)
        return (width,) if mask is None else MaskedShape(width, mask)

    def read(self, joint: Array) -> Rows:
        """Return what joint observations (P, N, ...) hold."""
        flat = joint.reshape(-1, *self.encoder.shape)
        numbers = self.encoder.numbers(flat)
        assert numbers is not None
        agents = len(self.numbers)
        return Rows(flat, numbers, numbers[:, -agents * OUTCOME :].reshape(*joint.shape[:2], agents, OUTCOME))

    def observed(self, behaviour: Behaviour, joint: Rows) -> Array:
        """Return a behaviour's observations (P, N * A, ...)."""
        flat, numbers, members = joint.flat, joint.numbers, len(joint.outcomes)
        encoder, form = self.encoders[behaviour.name], (len(flat), len(behaviour.slots))
        if encoder.kind == "vector":
            out = numbers[:, self.places[behaviour.name]].copy()
            if behaviour.name not in self.extras:
                return out.reshape(members, -1, *encoder.shape)
            return self._seen(behaviour, out.reshape(*form, *encoder.shape), numbers, members)
        out = np.zeros((*form, *encoder.shape), encoder.dtype)
        for index, slot in enumerate(behaviour.slots):
            columns = self.numbers[slot]
            assert isinstance(self.encoder.shape, MixedShape)
            pictures = [flat[:, 0, self.encoder.shape.images[image][1]] for image in self.images[slot]]
            if encoder.kind == "image":
                out[:, index] = pictures[0].reshape(len(flat), *encoder.shape)
                continue
            row = np.concatenate([np.ascontiguousarray(numbers[:, columns]).view(np.uint8), *pictures], 1)
            out[:, index, 0, : row.shape[1]] = row
        return self._seen(behaviour, out, numbers, members)

    def _seen(self, behaviour: Behaviour, observations: Array, numbers: Array, members: int) -> Array:
        """Return observations (P, N * A, ...) with their extras."""
        extended = self._extended(observations, numbers, self.extras.get(behaviour.name, PLAIN))
        return extended.reshape(members, -1, *self.shape_of(behaviour))

    def with_extras(self, behaviour: Behaviour, obs: Array, extras: Extras) -> Array:
        """Return observations with the extras of another policy.

        What only a central critic sees is zeros.
        """
        if extras == self.extras.get(behaviour.name, PLAIN):
            return obs
        rows = obs.reshape(-1, len(behaviour.slots), obs.shape[-1])[..., : self.encoders[behaviour.name].shape[0]]
        numbers = np.zeros((len(rows), self.central[OF_STATE].stop), np.float32)
        return self._extended(rows, numbers, extras).reshape(*obs.shape[:2], -1)

    def _extended(self, observations: Array, numbers: Array, extras: Extras) -> Array:
        """Return observations (rows, A, ...) with extras."""
        form, parts = observations.shape[:2], [observations]
        if extras.ids:
            parts.append(np.broadcast_to(np.eye(form[1], dtype=np.float32), (*form, form[1])))
        if extras.central != NONE:
            central = numbers[:, None, self.central[extras.central]]
            parts.append(np.broadcast_to(central, (*form, central.shape[-1])))
        return np.concatenate(parts, -1) if len(parts) > 1 else observations

    def joined(self, actions: Mapping[str, Array], form: tuple[int, int]) -> NDArray[np.float32]:
        """Return joint actions (P, N, k).

        The behaviours' actions are (P, N * A, ...), `form` is (P, N).
        """
        rows = np.empty((*form, self.width), np.float32)
        for name, actions_of in actions.items():
            rows[..., self.acted[name]] = actions_of.reshape(*form, -1)
        return rows


def _places(parts: list[slice]) -> slice | NDArray[np.int64]:
    """Return the columns of parts, one part after the other."""
    columns = np.concatenate([np.arange(part.start, part.stop) for part in parts])
    ordered = len(columns) > 0 and (np.diff(columns) == 1).all()
    return slice(int(columns[0]), int(columns[-1]) + 1) if ordered else columns


class BehaviourView(Envs):
    """The B = N * A environments of one behaviour.

    Environment n * A + a is agent a of shared environment n.

    An agent that has left is absent until the next episode: its rewards are zeros, its observations constant, and no
    end is reported. The state of the shared environments is not part of a view's.

    Attributes:
        extras: what the observations have besides.
        ghosts: rows (B,) that another policy plays, so that nothing is learned from them; None if there are none.
        on_step: function called with the results of each step and the episodes that ended in it, (P, B).
    """

    ghosts: NDArray[np.bool_] | None = None
    on_step: Callable[[StepResult, NDArray[np.bool_]], None] | None = None

    def __init__(self, shared: SharedEnvs, behaviour: Behaviour) -> None:
        envs, self.shared, self.behaviour = shared.envs, shared, behaviour
        self.agents = len(behaviour.slots)
        spec = replace(envs.spec, info={}, behaviour=behaviour.name)
        super().__init__(spec, envs.seeds, envs.num_envs * self.agents, envs.purpose)
        self.mode, self.exact, self.reason, self.played = envs.mode, envs.exact, envs.reason, envs.played
        self.obs_space, self.action_space = behaviour.observation, learner_space(behaviour.action)
        encoder = shared.form.encoders[behaviour.name]
        self.obs_kind, self.obs_shape = encoder.kind, shared.form.shape_of(behaviour)
        self.slots = _places([slice(slot, slot + 1) for slot in behaviour.slots])
        self.extras = shared.form.extras.get(behaviour.name, PLAIN)
        self.alone = len(shared.roster.agents) == 1
        self.turns = shared.roster.turns
        self.reset()

    def reset(self) -> None:
        """Start again with empty tallies at the shared environments' current observations."""
        self._clear_episodes()
        self.begin_episodes()

    def begin_episodes(self) -> None:
        """Begin new episodes at the shared environments' current observations."""
        self.returns, self.elapsed = np.zeros(self.size), np.zeros(self.size, np.int64)
        self.see()

    def see(self) -> None:
        """Read the shared environments' current observations."""
        joint = self.shared.form.read(self.shared.envs.obs)
        self.shared.running = b""
        self._look(self.shared.form.observed(self.behaviour, joint), self._flags(joint))

    def _look(self, obs: Array, flags: NDArray[np.bool_]) -> None:
        """Take in observations (P, B, ...) and flags (P, B, 4)."""
        self.obs, self.presence, acts = obs, flags[..., PRESENT - TERMINATED], flags[..., ACTS - TERMINATED]
        if self.spec.all_act and not acts.all():
            raise EnvSpecError(
                f"{self.spec.id}: all_act says that all agents act in every step, but one of {self.behaviour.name} is "
                "absent or waits; leave it out"
            )
        always = self.alone or (self.spec.all_act and not self.shared.competing)
        self.present = None if always else acts if self.ghosts is None else acts & ~self.ghosts

    def give(self, ghosts: NDArray[np.bool_]) -> None:
        """Give rows (B,) to another policy."""
        self.ghosts, self.learns = ghosts, not ghosts.all()
        self.see()

    def _part(self, of_agents: Array) -> Array:
        """Return its agents' part of (P, N, A, ...), (P, B, ...)."""
        return of_agents[:, :, self.slots].reshape(self.num_members, self.num_envs, *of_agents.shape[3:])

    def step(self, actions: Array) -> StepResult:
        return self.shared.step(self, actions)

    def _flags(self, joint: Rows) -> NDArray[np.bool_]:
        """Return this behaviour's outcomes from TERMINATED on, (P, B, 4)."""
        return self._part(joint.outcomes[..., TERMINATED:]) > 0

    def receive(self, step: StepResult, joint: Rows, steady: bool) -> StepResult:
        """Return this behaviour's part of a joint step, and see what follows.

        In a `steady` step no agent came, left or took turns, and no episode ended.
        """
        reward = self._part(joint.outcomes[..., REWARD]).copy()
        next_obs = self.shared.form.observed(self.behaviour, joint)
        self.returns += reward.reshape(-1)
        self.elapsed += self.presence.reshape(-1)
        if self.ghosts is not None:
            reward[:, self.ghosts] = 0
        terminated, truncated = np.zeros((2, *self.presence.shape), np.bool_)
        over = terminated
        if steady:
            self.obs = next_obs
        else:
            flags = self._flags(joint)
            terminated = self.presence & flags[..., 0]
            # A time limit of the shared environment truncates the agents that are still there.
            cut = flags[..., TRUNCATED - TERMINATED] | np.repeat(step.terminated | step.truncated, self.agents, 1)
            truncated = self.presence & ~terminated & cut
            over = terminated | truncated
            if over.any():
                self._end(np.flatnonzero(over))
            if self.shared.envs.obs is step.next_obs:  # no episode ended, so the next step begins there
                self._look(next_obs, flags)
            else:
                self.see()
        step = StepResult(next_obs, reward, terminated, truncated)
        if self.on_step is not None:
            self.on_step(step, over)
        return step

    def _end(self, ended: NDArray[np.int64]) -> None:
        """Count the episodes that ended, of these environments."""
        counted = ended if self.ghosts is None else ended[~self.ghosts[ended % self.num_envs]]
        self._finished.append((counted, self.returns[counted].copy(), self.elapsed[counted].copy()))
        self.returns[ended], self.elapsed[ended] = 0, 0

    def abandon(self, mask: Array) -> None:
        raise NotImplementedError(f"{self.spec.id}: the agents of a shared environment cannot begin anew one by one")

    def member_state(self, i: int) -> Tree:
        rows = self._rows(i)
        tallies = {name: column[i].item() for name, column in vars(self.episodes).items()}
        return {"episodes": tallies, "returns": to_tensor(self.returns[rows]), "elapsed": to_tensor(self.elapsed[rows])}

    def load_member(self, i: int, tree: Tree) -> None:
        rows = self._rows(i)
        if len(tree["returns"]) != self.num_envs:
            raise StateMismatch(
                f"{self.spec.id}: a state of {len(tree['returns'])} agents does not fit {self.num_envs}"
            )
        for name, column in vars(self.episodes).items():
            column[i] = tree["episodes"][name]
        self.returns[rows], self.elapsed[rows] = tree["returns"].numpy(), tree["elapsed"].numpy()
        self.see()

    def inexact(self, i: int) -> list[str]:
        return self.shared.envs.inexact(i)


class SharedEnvs:
    """Environments of several behaviours, which step when all of them have acted.

    Attributes:
        envs: the joint environments.
        roster: agents and behaviours.
        competing: whether other policies play some agents at times, as in self-play.
        form: conversion between joint and single observations and actions.
        views: each behaviour's view.
        meet: function that a view calls when it has acted, and that returns once the joint step is made; None if a
            single behaviour steps alone.
        players: functions of observations (P, B, ...) that act for behaviours without a learner, by name.
        replace: functions of a behaviour's actions (P, B, ...), by its name, that replace those of other policies.
        running: who is present and acts, as bytes of the last outcomes; empty if that is not sure.
    """

    scratch = ("running",)  # it saves time only

    def __init__(
        self, envs: Envs, roster: Roster, extras: Mapping[str, Extras] = MappingProxyType({}), competing: bool = False
    ) -> None:
        self.envs, self.roster, self.competing = envs, roster, competing
        self.form = JointForm(roster, envs, extras)
        self.actions: dict[str, Array] = {}
        self.results: dict[str, StepResult] = {}
        self.meet: Callable[[str], None] | None = None
        self.running = b""
        self.replace: dict[str, Callable[[Array], Array]] = {}
        self.players: dict[str, Callable[[Array], Array]] = {}
        self.views = {name: BehaviourView(self, behaviour) for name, behaviour in roster.behaviours.items()}

    def step(self, view: BehaviourView, actions: Array) -> StepResult:
        """Act with one behaviour, and return its results of the joint step."""
        name = view.behaviour.name
        self.actions[name] = actions
        if self.meet is not None:
            self.meet(name)
        else:
            self.exchange()
        return self.results.pop(name)

    def exchange(self) -> None:
        """Step the joint environments with the actions of all behaviours."""
        actions, self.actions = self.actions, {}
        for name, replaced in self.replace.items():
            actions[name] = replaced(actions[name])
        for name, act in self.players.items():
            actions[name] = act(self.views[name].obs)
        step = self.envs.step(self.form.joined(actions, (self.envs.num_members, self.envs.num_envs)))
        joint = self.form.read(step.next_obs)
        goes_on, flags = self.envs.obs is step.next_obs, joint.outcomes[..., TERMINATED:]
        steady = goes_on and flags.tobytes() == self.running
        if not steady:
            self.running = b"" if flags[..., : PRESENT - TERMINATED].any() else flags.tobytes()
        self.results = {name: view.receive(step, joint, steady) for name, view in self.views.items()}
