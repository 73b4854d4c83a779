"""Ways to restore environments, judged by episodes on a test bench."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import gymnasium as gym

from ..base.spec import EnvSpecError
from ..gym import snapshot
from ..gym.chance import note_kept, noted_reads
from ..gym.layers import is_of_environment
from ..gym.make import Env
from ..gym.restore import Restore, cure_of_chance, generator_of
from .bench import Bench, Refuted
from .clock import SHIFT, clock_ahead
from .episodes import LONG, SHORT, Episode, Record, difference, first_difference, plan_of
from .kept_state import instance_state, shared_state

TRACES, PAST, SEEN = 120, 2, 3  # pairs of episodes where a reset leaves something: steps of the first, of the second
SNAPSHOTS_AT = (1, 4, 16)  # steps after which a snapshot is tried
NOT_ZERO = 2**30  # a seed
UNPLAYED = 9973  # distance to seeds that no test has played; a prime, since levels may be seed % 10
OTHER_SEEDS = 8  # of an episode, which may begin in few ways
CALL_SEED = ", or if its method seed(seed) seeds it, let reset or a wrapper of it call that"


class Pair(NamedTuple):
    """An episode, and its records after different pasts."""

    episode: Episode
    one: list[Record]
    other: list[Record]


def declared_way(bench: Bench, draw: int) -> Restore:
    """Return the declared way to restore, after one step, which is checked."""
    env, spec, mode = bench.new(), bench.spec, bench.spec.restore
    if mode == "snapshot" and not snapshot.has_snapshot(env):
        raise EnvSpecError(f"{spec.id}: snapshots are those of MuJoCo and Atari; declare restore as 'replay'")
    episode = plan_of(env, spec, draw)[0]
    bench.play(env, episode._replace(actions=episode.actions[:1]))
    renew, cure = mode == "renew", "leave restore out, and the self-test finds the exact way, if there is one"
    return Restore("replay" if renew else mode, False, "this was not tested", renew, cure=cure)


def exact_way(bench: Bench, draw: int) -> Restore:
    """Return the most convenient exact way to restore, if there is one.

    Two environments play the same episodes in opposite orders, step by step in turns, and new ones play some of them
    alone. If an episode differs, then chance has a part in it, or environments share what it depends on, or it depends
    on earlier episodes.

    Raises:
        Refuted: a premise of the test is wrong.
    """
    used, spec = bench.new(), bench.spec
    plan = plan_of(used, spec, draw + bench.premises.zero_is_none)
    if spec.draws_arguments:
        return _of_drawn(bench, plan[:LONG])
    kept = shared_state(used)
    with noted_reads() as first_reads:
        ahead, reverse = bench.in_turns(plan, plan[::-1])
    ages = "process" if shared_state(used) != kept else ""
    with noted_reads() as later_reads:
        alone = [bench.alone(episode) for episode in plan[:LONG]]
    note_kept(spec.id, spec.modules, first_reads, later_reads)
    pairs = [Pair(*played) for played in zip(plan, ahead, reverse[::-1], strict=True)]
    differing = [pair for pair in pairs if difference(pair.one, pair.other) is not None]
    differing += [pair for pair, new in zip(pairs, alone, strict=False) if difference(pair.one, new) is not None]
    way = _of_dependent(bench, used, pairs, differing) if differing else _of_independent(bench, plan, ahead[0])
    played = sha256(repr(alone).encode()).hexdigest()[:12] if way.exact else ""
    return replace(way, played=played, ages=ages or way.ages)


def _of_drawn(bench: Bench, plan: list[Episode]) -> Restore:
    """Return the way to restore environments whose arguments are drawn per episode."""
    for episode in plan:
        if (differs := bench.chance(episode)) is not None:
            return _by_chance(differs, cure_of_chance(bench.spec.id))
    return Restore("replay", True, "each episode has a new environment, whose arguments are drawn", renew=True)


def _by_chance(differs: str, cure: str) -> Restore:
    reason = f"two new environments with the same seed and actions differ in {differs}"
    return Restore("restart", False, reason, cure=cure)


def _of_independent(bench: Bench, plan: list[Episode], records: list[Record]) -> Restore:
    """Return the way to restore an environment with equal episodes.

    They may still depend on the time, or on what a reset leaves. The records are those of the first episode.
    """
    used = bench.new()
    with clock_ahead(used):
        later = bench.play(used, plan[0])
    if (differs := difference(records, later)) is not None:
        reason = f"it depends on the time: {SHIFT.days} days later it differs in {differs}"
        return Restore("restart", False, reason, cure="count steps, and read neither time nor datetime")
    leaves = _leaves_state(bench, used, plan)
    way = replace(_clean(bench, used, plan[0]), ages="instance" if leaves else "")
    if leaves and way.mode != "snapshot" and not way.renew and (trace := _trace(bench, used, plan)) is not None:
        return replace(_of_remembering(bench, used, [trace]), ages="instance")
    return way


def _clean(bench: Bench, env: Env, episode: Episode) -> Restore:
    """Return the way to restore an environment with independent episodes."""
    if snapshot.has_snapshot(env) and not bench.spec.on_error and _snapshots_hold(bench, env, episode):
        return Restore("snapshot", True, "its simulator's state, loaded into a new environment, continues alike")
    if snapshot.keeps_world(env):
        # Box2D reuses freed memory, so the order of contacts can depend on earlier episodes.
        reason = "its Box2D world outlives an episode, so each episode has a new environment"
        return Restore("replay", True, reason, renew=True)
    return Restore("replay", True, "the same seed and actions give the same episode in used and in new environments")


def _snapshots_hold(bench: Bench, env: Env, episode: Episode) -> bool:
    """Return whether snapshots, loaded into another environment, continue alike."""
    bench.begin(env, episode._replace(seed=1))
    records, shots = list[Record](), dict[int, Any]()
    for steps, record in enumerate(bench.steps(env, episode.actions), 1):
        records.append(record)
        if steps in SNAPSHOTS_AT and not (record.terminated or record.truncated):
            shots[steps] = snapshot.take(env)
    other = bench.new()
    for steps, shot in shots.items():
        bench.begin(other, episode._replace(seed=2))
        snapshot.put(other, shot, steps)
        if difference(records[steps:], [*bench.steps(other, episode.actions[steps:])]) is not None:
            return False
    return bool(shots)


def _leaves_state(bench: Bench, used: Env, plan: list[Episode]) -> bool:
    """Return whether a reset leaves something of earlier episodes.

    What several of them leave is compared, since the last action, for example, may be the one that a new environment
    begins with.
    """
    if bench.premises.single_instance:
        return False

    def state(env: Env) -> list[str]:
        bench.begin(env, plan[0])
        return instance_state(env)

    untouched = state(bench.new())
    if state(used) != untouched:
        return True
    for episode in plan[LONG : LONG + SHORT // 4]:
        bench.play(used, episode)
        if state(used) != untouched:
            return True
    return False


def _trace(bench: Bench, used: Env, plan: list[Episode]) -> Pair | None:
    """Return an episode that differs after different pasts, if there is one.

    A trace may show rarely: of the last action, where an environment repeats it with a small probability. Many
    beginnings are compared for this, in two environments that have played something else before.
    """
    other, pasts = bench.new(), plan[LONG:]
    for k in range(TRACES):
        for env, past in ((used, pasts[k % SHORT]), (other, pasts[(k + 1 + k // SHORT) % SHORT])):
            bench.play(env, past._replace(actions=past.actions[:PAST]))
        episode = pasts[(k + SHORT // 2) % SHORT]
        episode = episode._replace(seed=plan[-1].seed + 1 + k, actions=episode.actions[:SEEN])
        pair = Pair(episode, bench.play(used, episode), bench.play(other, episode))
        if difference(pair.one, pair.other) is not None:
            return pair
    return None


def _of_dependent(bench: Bench, used: Env, pairs: list[Pair], differing: list[Pair]) -> Restore:
    """Return the way to restore an environment some of whose episodes differ.

    Args:
        bench: the bench.
        used: an environment.
        pairs: all episodes, played beside another environment in both orders.
        differing: those that differ between these, or from those in a new environment alone.
    """
    cure = cure_of_chance(bench.spec.id)
    for episode in (pairs[0].episode, differing[0].episode):
        if (differs := bench.chance(episode)) is not None:
            # A training's episodes have seeds up to 2**31, so that one has seed 0 hardly ever.
            if episode.seed == 0 and bench.chance(episode._replace(seed=NOT_ZERO)) is None:
                raise Refuted(bench.premises._replace(zero_is_none=True))
            return _by_chance(differs, cure + (CALL_SEED if hasattr(used.unwrapped, "seed") else ""))
    plan = [pair.episode for pair in pairs]
    [in_order], [again] = bench.in_turns(plan), bench.in_turns(plan)
    if (differs := first_difference(in_order, again)) is not None:
        reason = f"two new environments with the same seeds and actions differ in {differs}"
        return Restore("restart", False, reason, cure=cure)
    [backwards] = bench.in_turns(plan[::-1])
    beside = [*(pair.one for pair in pairs), *(pair.other for pair in reversed(pairs))]
    if (differs := first_difference([*in_order, *backwards], beside)) is not None:
        reason = f"environments of one process share what they depend on: stepped in turns, they differ in {differs}"
        return Restore("restart", False, reason, cure="keep all state in self, not in a class, a module or a file")
    return _of_remembering(bench, used, differing)


def _of_remembering(bench: Bench, env: Env, pairs: list[Pair]) -> Restore:
    """Return the way to restore environments that remember episodes.

    These episodes differ after their pasts, or from those of a new environment.
    """
    alone = [bench.alone(pair.episode) for pair in pairs]
    differs = first_difference([*(pair.one for pair in pairs), *(pair.other for pair in pairs)], [*alone, *alone])
    remembered = f"an earlier episode shows in {differs}"
    equal_starts = all(pair.one[0] == pair.other[0] == new[0] for pair, new in zip(pairs, alone, strict=True))
    if equal_starts and snapshot.only_transparent(env):
        # Episodes start equal, but a trace of earlier ones survives in the simulator.
        reason = f"{remembered}, so each episode has a new environment"
        lost = (
            f"{bench.spec.id}: {reason}, and nothing lasts from one to the next, such as a curriculum; let reset clear "
            'what should not last, or keep all within an epoch: {"id": ..., "restore": "restart"}'
        )
        is_known = not is_of_environment(type(env.unwrapped).__module__)  # a simulator that nobody mends
        return Restore("replay", True, reason, renew=True, advice=() if is_known else (lost,))
    # The memory may be intended (running statistics, a curriculum), so the environment keeps it within an epoch.
    forgotten = "this memory starts again in each epoch and in evaluation, so returns may differ; let reset clear it"
    id, episode = bench.spec.id, pairs[0].episode
    advice = [_advice_on_statistics(env, id) or f"{id}: {remembered}, and {forgotten}"]
    others = (episode._replace(seed=episode.seed + n * UNPLAYED) for n in range(1, OTHER_SEEDS + 1))
    if all(difference(alone[0], bench.alone(other)) is None for other in others):
        repeated = f"each epoch repeats the same episodes, since the seed has no effect; draw from {generator_of(id)}"
        advice.append(f"{id}: {repeated}")
    reason = f"{remembered}, so each epoch begins with new environments"
    return Restore("restart", True, reason, advice=tuple(advice))


def _advice_on_statistics(env: Env, id: str) -> str | None:
    """Return advice about a wrapper with running statistics, or None."""
    while isinstance(env, gym.Wrapper):
        for name, value in vars(env).items():
            if type(value).__name__ == "RunningMeanStd":
                cure = "normalize_obs" if "obs" in name else "normalize_reward"
                return (
                    f"{id}: the running statistics of the wrapper {type(env).__name__} start again in each epoch "
                    f"and in evaluation, so returns are wrong; leave it out, and set {cure}=true"
                )
        env = env.env
    return None
