"""Evaluation: returns of episodes on seeds that training never uses.

By default, all tasks are measured on the same seeds and in their own environment. Evaluation changes no state.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from .base_learner import BaseLearner
from .envs import Envs, EnvSpec, StepResult, allows_one, make_envs, spaces_of, steps_all_at_once, time_limit
from .envs.base.encode import Observations
from .errors import Diverged, UnsupportedSpace
from .learner import Contest, Learner
from .rng import streams
from .runtime import EVALUATION_EPISODES, EVALUATION_SEED
from .signals.demonstrations import Demonstrations


class Measured(NamedTuple):
    """Measurements of evaluation episodes.

    Attributes:
        returns: undiscounted returns, (P, E); NaN for episodes that were not played.
        info: each entry of info that the environment's spec names, (P, E); NaN for episodes without it.
        lengths: steps of each episode, (P, E); 0 for those that were not played.
    """

    returns: np.ndarray
    info: dict[str, np.ndarray]
    lengths: np.ndarray


class Evaluated(NamedTuple):
    """Objective of a member, and the episodes and steps that measured it.

    For particles these are the episodes of each, and the steps of all. `error` is the standard error over episodes;
    None for fewer than two.
    """

    value: float
    episodes: int
    steps: int
    error: float | None = None


OnStep = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
Seeds = int | Sequence[int]  # of evaluation episodes: one for all members, or one for each
EVALUATION_STEPS = 100_000  # longest episode, for environments without a time limit
LONG = 10_000  # steps of an episode at which a warning tells that it may be endless


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside this context.

    On several threads, sums of large arrays round differently. Use processes to use more cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluation_keys(members: int, purpose: str, seed: Seeds = EVALUATION_SEED) -> streams.Bits:
    """Return the keys (P,) of a random stream that only evaluation uses.

    Members with one seed get the same key, so they are measured on the same episodes.
    """
    return streams.keys(_by_member(seed, members), "evaluation", purpose)


def _by_member(seed: Seeds, members: int, players: int = 1) -> list[int]:
    """Return the seed of each member's players, (P * players,)."""
    of_members = [seed] * members if isinstance(seed, int) else seed
    return [of_member for of_member in of_members for _ in range(players)]


@one_thread()
def evaluate(
    learner: BaseLearner,
    episodes: int | None = None,
    env: EnvSpec | None = None,
    seed: int = EVALUATION_SEED,
    on_step: OnStep | None = None,
) -> np.ndarray:
    """Return each member's objective, (P,).

    The objective is the mean return of greedy episodes unless the learner measures another one. For particles it is the
    mean over their means. The arguments are those of `measure_episodes`; `episodes` is by default the learner's.
    """
    if (score := learner.score()) is not None:
        return score
    episodes = episodes or learner.eval_episodes
    returns = measure_episodes(learner, episodes, on_step=on_step, env=env, seed=seed).returns.reshape(-1, episodes)
    means: np.ndarray = returns.mean(1).reshape(learner.members, -1).mean(1)
    return means


@one_thread()
def evaluate_within(
    learner: BaseLearner,
    steps: float | None,
    seed: Seeds = EVALUATION_SEED,
    on_step: OnStep | None = None,
    most: int = 0,
    whole: bool = False,
) -> list[Evaluated]:
    """Return each member's objective, measured by the first of its episodes.

    A member plays at least one episode, and further ones, up to the learner's `eval_episodes`, while `steps` last. As
    many follow again and again, until there are `most`, unless all returns are equal. Its own episodes decide that, so
    the result is a function of its state, `steps` and `most`.

    Args:
        learner: learner whose members act.
        steps: environment steps of each member; None for all of the learner's `eval_episodes`.
        seed: see `measure_episodes`.
        on_step: see `measure_episodes`.
        most: number of episodes from which no further ones follow.
        whole: whether all of the learner's `eval_episodes` are played even if `steps` end earlier.
    """
    episodes = learner.eval_episodes
    if (score := learner.score()) is not None:
        return [Evaluated(value, episodes, 0) for value in score.tolist()]
    parts, shape = list[Measured](), (learner.members, -1, episodes)  # members, particles, episodes
    left = np.full(learner.members, math.inf if steps is None or whole else max(steps, 1.0))
    for first in range(0, max(most, 1), episodes):
        if not left.any():
            break
        parts.append(measure_episodes(learner, episodes, on_step=on_step, seed=seed, steps=left, first=first))
        returns = np.concatenate([part.returns.reshape(shape) for part in parts], -1)
        lengths = np.concatenate([part.lengths.reshape(shape) for part in parts], -1)
        left = _left(returns, lengths, steps or 0.0)
    return [_evaluated(*of_member) for of_member in zip(returns, lengths, strict=True)]


def _evaluated(returns: np.ndarray, lengths: np.ndarray) -> Evaluated:
    """Return a member's objective for episodes (particles, episodes)."""
    played = [row[row_lengths > 0] for row, row_lengths in zip(returns, lengths, strict=True)]
    mean = float(np.array([row.mean() for row in played]).mean())
    counts, error = [len(row) for row in played], None
    if min(counts) > 1:
        error = math.hypot(*(row.std(ddof=1) / math.sqrt(len(row)) for row in played)) / len(played)
    return Evaluated(mean, max(counts), int(lengths.sum()), error)


def _left(returns: np.ndarray, lengths: np.ndarray, steps: float) -> np.ndarray:
    """Return the steps (members,) of further episodes.

    There are none for a member whose returns are all equal, that has not played all episodes so far, or whose steps do
    not last for another one of each particle.

    Args:
        returns: (members, particles, episodes), NaN where none was played.
        lengths: of the same shape, 0 where none was played.
        steps: of all of a member's episodes together.
    """
    left = steps - lengths.sum((1, 2))
    differ = np.nanmax(returns, axis=(1, 2)) > np.nanmin(returns, axis=(1, 2))
    goes_on = differ & (lengths > 0).all((1, 2)) & (left >= lengths.mean(-1).sum(-1))
    return np.where(goes_on, left, 0.0)


@one_thread()
def measure_episodes(
    learner: BaseLearner,
    episodes: int = EVALUATION_EPISODES,
    deterministic: bool = True,
    on_step: OnStep | None = None,
    env: EnvSpec | None = None,
    seed: Seeds = EVALUATION_SEED,
    steps: np.ndarray | float | None = None,
    first: int = 0,
) -> Measured:
    """Measure evaluation episodes, and return arrays of shape (P, episodes).

    With particles the shape is (P, num_particles * episodes).

    Args:
        learner: learner whose members act.
        episodes: number of episodes per member or particle; `eval_envs` of the learner limits how many are played at
            the same time, which changes no bit.
        deterministic: greedy actions; False samples them as in training.
        on_step: function called at each step with observations (P, N, ...), actions (P, N, ...), and a mask (P, N) of
            the episodes that are still running.
        env: another environment with the same spaces; None for the learner's own.
        seed: seed of the episodes and of random actions, the same for every member, or one for each.
        steps: steps of each member (P,) after which it begins no further episode, see `evaluate_within`; 0 for no
            episode at all, None to play all.
        first: number of the first episode.

    Raises:
        UnsupportedSpace: the learner has neither episodes nor a score.
    """
    if (score := learner.score()) is not None:
        returns = np.repeat(score[:, None], episodes, 1)
        return Measured(returns, {}, np.zeros(returns.shape, np.int64))
    owner = playing(learner)
    players = owner.particles or owner
    contest = players.contest if isinstance(players, Learner) else None
    spec = players.env if env is None else replace(env, state=players.env.state)
    spec = spec if contest is None else contest.reported(spec)
    seeds = tuple(_by_member(seed, owner.members, players.members // owner.members))
    envs = _open_envs(players, spec, seeds, episodes, owner.eval_envs)
    if not first:
        envs.faults.clear()  # of an earlier evaluation
    tally = _EpisodeTally(owner.members, players.members, episodes, envs)
    left = tally.by_player(None if contest else steps)  # sides of a contest take turns
    keys = partial(evaluation_keys, players.members, seed=seeds)

    def see(*arrays: np.ndarray) -> None:
        if on_step is not None:
            on_step(*(x.reshape(owner.members, -1, *x.shape[2:]) for x in arrays))

    try:
        while (due := due_episodes(tally.lengths, left, time_limit(spec))).any():
            for begin in range(0, episodes, envs.num_envs):
                if due[:, begin : begin + envs.num_envs].any():
                    act = (contest or players).actor(episodes, deterministic, keys)
                    for columns, running, step in played_steps(envs, begin, act, due, see, first):
                        tally.add(columns, running, step)
    except BaseException:
        envs.close()  # a process may be amid an answer
        raise
    return tally.measured(contest)


class _EpisodeTally:
    """Measurements of the episodes so far, of P members' players.

    Attributes:
        returns, lengths: returns and steps of each episode, (players, episodes).
        info: last reported info of each episode, (players, episodes, entries).
    """

    def __init__(self, members: int, players: int, episodes: int, envs: Envs):
        """Tally no steps; a member has a player for each particle."""
        self.members, self.envs = members, envs
        self.returns = np.zeros((players, episodes))
        self.lengths = np.zeros((players, episodes), np.int64)
        self.info = np.full((players, episodes, len(envs.info.names)), np.nan)

    def by_player(self, steps: np.ndarray | float | None) -> np.ndarray:
        """Return each player's share of its member's steps; None has no end."""
        particles = len(self.returns) // self.members
        of_members = np.broadcast_to(math.inf if steps is None else steps, self.members)
        return np.repeat(of_members / particles, particles)

    def add(self, columns: slice, running: np.ndarray, step: StepResult) -> None:
        """Add a step of the episodes in these columns, and end episodes.

        Args:
            columns: the episodes.
            running: mask (players, episodes) of those that took the step; those that ended leave it.
            step: results in the environments, (players, N), of which the first ones play these episodes.
        """
        count, active = columns.stop - columns.start, running[:, columns]
        self.lengths[:, columns] += active
        self.returns[:, columns] += step.reward[:, :count] * active
        ended = active & (step.terminated | step.truncated)[:, :count]
        self.info[:, columns][ended] = self.envs.info.last.reshape(*step.reward.shape, -1)[:, :count][ended]
        active &= ~ended

    def measured(self, contest: Contest | None) -> Measured:
        """Return the measurements by member, as a contest credits them."""
        returns = np.where(self.lengths == 0, np.nan, self.returns)
        entries = {name: self.info[:, :, k] for k, name in enumerate(self.envs.info.names)}
        if contest is not None:
            returns, entries = contest.credited(returns, entries)
        shape = (self.members, -1)
        entries = {name: x.reshape(shape) for name, x in entries.items()}
        return Measured(returns.reshape(shape), entries, self.lengths.reshape(shape))


def check_finite(learner: BaseLearner, member: int, returns: Sequence[float], subject: str) -> None:
    """Check what a member's environments gave in an evaluation.

    Args:
        learner: learner that was evaluated.
        member: index of the member.
        returns: its returns, or their mean.
        subject: name of the task in error messages.

    Raises:
        Diverged: a return is not finite. If only observations were not, a warning says so.
    """
    if not plays_episodes(type(learner)):
        return
    players = playing(learner)
    envs = (players.particles or players).evaluation_envs
    faults = {} if envs is None else envs.faults
    of_member = len(envs.seeds) // players.members if envs is not None else 0
    fault = next((faults[i] for i in range(member * of_member, (member + 1) * of_member) if i in faults), None)
    if not np.isfinite(returns).all():
        raise Diverged(f"{subject}: a return of its evaluation is not finite" + (f", since {fault}" if fault else ""))
    if fault:
        warnings.warn(f"{subject}: in its evaluation, {fault}", stacklevel=3)


def due_episodes(lengths: np.ndarray, steps: np.ndarray, longest: int | None) -> np.ndarray:
    """Return a mask (P, E) of the episodes to play next.

    The first are as many as surely fit; later ones as many as fit if they are as long as those before, but no more than
    these, whose mean may mislead.

    Args:
        lengths: steps of each episode so far (P, E), which are played in order; 0 for those to come.
        steps: steps of all episodes of each member together (P,); 0 for none.
        longest: the environment's time limit, if it is known.
    """
    total = lengths.shape[1]
    due = np.zeros(lengths.shape, bool)
    for row, used, most in zip(due, lengths, steps, strict=True):
        played, spent = np.count_nonzero(used), used.sum()
        if math.isinf(most):
            more = total - played
        elif played == 0:
            more = max(int(most > 0), int(most // longest) if longest else 0)
        else:
            more = min(int((most - spent) * played // spent), played)
        row[played : played + max(0, more)] = True
    return due


def played_steps(
    envs: Envs, first: int, act: Callable[[np.ndarray], np.ndarray], due: np.ndarray, see: OnStep, earlier: int = 0
) -> Iterator[tuple[slice, np.ndarray, StepResult]]:
    """Play the due episodes from `first` on, one in each environment.

    The policy always gets observations of all episodes, zeros for those that are not played: the last bits of its
    products depend on their number.

    Args:
        envs: environments of (P, N) episodes.
        first: index of the first episode.
        act: function of observations (P, E, ...) that returns actions (P, E, ...).
        due: mask of the episodes to play among all of the members' (P, E).
        see: called before each step with observations, actions (P, E, ...) and running episodes (P, E).
        earlier: number of episodes before those of `due`.

    Yields:
        The episodes that are played, a mask (P, E) of those that are running, which the caller updates, and the result
        of the step (P, N).
    """
    (members, episodes), running = due.shape, np.zeros_like(due)
    rows = slice(first, min(first + envs.num_envs, episodes))
    rows_of_member = slice(0, rows.stop - first)
    envs.first = earlier + first
    envs.reset()
    envs.begin_epoch(np.zeros(members, dtype=np.int64))
    running[:, rows] = due[:, rows]
    envs.leave_out(~_resized(running, rows, rows_of_member, envs.num_envs))
    for count in range(EVALUATION_STEPS):
        if not running.any():
            return
        if count == LONG:
            warnings.warn(
                f"{envs.spec.id}: {running.sum()} evaluation episodes take longer than {LONG:,} steps, and end after "
                f"{EVALUATION_STEPS:,}; set max_episode_steps, or evaluate fewer episodes (--eval-episodes)",
                stacklevel=2,
            )
        obs = _resized(envs.obs, rows_of_member, rows, episodes)
        actions = act(obs)
        see(obs, actions, running)
        yield rows, running, envs.step(_resized(actions, rows, rows_of_member, envs.num_envs))


def _resized(array: np.ndarray, take: slice, put: slice, count: int) -> np.ndarray:
    """Return columns of an array (P, N, ...) among `count` zeros."""
    if array.shape[1] == count:
        return array
    resized = np.zeros((len(array), count, *array.shape[2:]), array.dtype)
    resized[:, put] = array[:, take]
    return resized


def _open_envs(learner: Learner, spec: EnvSpec, seeds: tuple[int, ...], episodes: int, most: int) -> Envs:
    """Return environments for evaluation, those of the last one if they fit."""
    width = _side_by_side(spec, len(seeds), episodes, most)
    envs = learner.evaluation_envs
    if envs is None or (envs.spec, envs.seeds, envs.num_envs) != (spec, seeds, width):
        if envs is not None:
            envs.close()
        envs = make_envs(spec, seeds, width, "evaluation", learner.env_processes, single_episodes=True)
    learner.evaluation_envs = envs
    return envs


def _side_by_side(spec: EnvSpec, members: int, episodes: int, most: int) -> int:
    """Return the number of each member's episodes that are played at once."""
    if steps_all_at_once(spec):
        return episodes
    count = 1 if allows_one(spec) else max(1, min(most // members, episodes))
    rounds = -(-episodes // count)
    return -(-episodes // rounds)


def other_env(env: EnvSpec, other: str | Mapping[str, Any] | EnvSpec, subject: str) -> EnvSpec:
    """Return another environment's spec, checked to suit a trained policy.

    Args:
        env: environment that the policy was trained in.
        other: another environment; a mapping without an id changes entries of `env`.
        subject: name of the task in error messages.

    Raises:
        UnsupportedSpace: its observations or actions differ from those of `env`.
    """
    if not env:
        raise UnsupportedSpace(f"{subject} learns without an environment, but got {other!r}; leave it out")
    whole = {**env.to_json(), **other} if isinstance(other, Mapping) and "id" not in other else other
    spec = EnvSpec.of(whole)
    need, have = spaces_of(env), spaces_of(spec)
    forms = [(obs.kind, obs.shape) for obs in (Observations(spaces.observation, subject) for spaces in (need, have))]
    for part, equal in (("observation", forms[0] == forms[1]), ("action", need.action == have.action)):
        if not equal:
            raise UnsupportedSpace(
                f"{subject} is evaluated in environments of the same {part} space, {getattr(need, part)}, but "
                f"{spec.id} has {getattr(have, part)}; name another environment, or add a wrapper that makes them equal"
            )
    return spec


def playing(learner: BaseLearner) -> Learner:
    """Return the learner if it plays episodes, else raise UnsupportedSpace.

    It is a `Learner`, or one of another library with the same methods.
    """
    if not hasattr(learner, "actor"):
        raise UnsupportedSpace(f"{learner.algorithm()} has no episodes; evaluate() measures its {learner.objective}")
    return cast("Learner", learner)


def plays_episodes(learner: type[BaseLearner]) -> bool:
    """Return whether learners of a class are measured in episodes."""
    return hasattr(learner, "actor") and (learner.score is Learner.score or not issubclass(learner, Learner))


def record(learner: BaseLearner, member: int, episodes: int, deterministic: bool, **elsewhere: Any) -> Demonstrations:
    """Record one member's evaluation episodes, with actions as the environment takes them."""
    learner = playing(learner)
    steps: list[list[np.ndarray]] = []
    keep: OnStep = lambda *step: steps.append([x[member].copy() for x in step])  # noqa: E731
    measure_episodes(learner, episodes, deterministic, keep, **elsewhere)
    obs, actions, running = (np.stack(x, 1) for x in zip(*steps, strict=True))  # (N, T, ...)
    begins = (running & (running.cumsum(1) == 1)).astype(np.float32)
    return Demonstrations.of_envs(learner.envs, obs[running], actions[running], begins[running])
