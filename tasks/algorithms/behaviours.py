"""Several behaviours in one environment, each with an algorithm of its own.

Every behaviour is a group of agents that share a policy. Its learner is that of an ordinary task, which sees each agent
as an environment. The learners act and learn side by side, and meet at every step of the shared environments. With one
algorithm this is independent learning with shared parameters, such as IPPO: de Witt et al. (2020), arXiv:2011.09533.
With a central critic it is MAPPO: Yu et al. (2022), arXiv:2103.01955.

Notation: P members, N shared environments of each, A agents of a behaviour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ...spaces import Space, categorical, flatten, integer
from ...spaces.choices import Choice
from ...spaces.variants import Variants
from ..base_learner import check_counters
from ..checkpoint.member_state import Part
from ..checkpoint.state import Tree, check_same_form
from ..checkpoint.storage import Metrics
from ..envs import EnvSpec, make_envs
from ..envs.agents.adapter import AGENTS, RETURN, blank, is_joint
from ..envs.agents.roster import roster_of
from ..envs.agents.views import OF_STATE, Extras, SharedEnvs
from ..envs.base.masks import mask_in
from ..envs.base.spec import JOINT
from ..errors import StateMismatch, UnsupportedSpace
from ..evaluation import acting, evaluation_keys, measure_episodes
from ..learner import Learner
from ..networks.recurrent import States
from ..registry import load
from ..rng import streams
from ..runtime import INFO
from ..runtime.lockstep import Lockstep
from ..runtime.metric_means import Tally
from ..task import Task
from .contest import OPPONENTS, Act, Around, Contest, Opponent, random_actor
from .players import RANDOM, PlayerActor, check_player, frozen, player_actor, player_extras
from .self_play import SelfPlay, check_self_play, self_play_space
from .sharing import ALGORITHM, SELF_PLAY, algorithm_values, check_extras, extended, extras_of

ALGORITHMS = ("ppo", "ppo2", "a2c", "dqn", "qrdqn", "sac", "td3", "ddpg", "tqc", "crossq")
ALGORITHM_HELP = "Algorithm that the behaviour learns by; its hyperparameters follow."
# What does not know yet that an agent may be absent, or abandons episodes that others share: name -> the value without.
UNSHARED = {
    "min_rollouts": None,
    "min_steps": None,
    "overlap": False,
    "critic.name": "joint",
    "replay.name": "uniform",
    "demonstrated_steps": 0,
}


class BehavioursLearner(Learner):
    """P members, each with a learner for every behaviour.

    Attributes:
        shared: the shared environments.
        learners: the learners, by behaviour.
        players: functions that make fixed policies act, by behaviour.
        lockstep: runs the learners side by side.
        block: steps of each shared environment after which all learners are between two iterations.
        self_play: pools of past policies, by behaviour, of those that play against themselves.
        teams: slots of each team that plays against the others, by name.
    """

    hyperparameters = Space(
        num_envs=integer(1, 65536, default=8, structural=True, search=False),
        epoch_steps=integer(1, 10**9, default=4096, structural=True, search=False),
    )

    scratch = (*Learner.scratch, "lockstep", "players", "contest")

    @classmethod
    def space_in(cls, env: EnvSpec) -> Space:
        return _space(env) if is_joint(env) else cls.hyperparameters

    @classmethod
    def further_objectives(cls, env: EnvSpec) -> list[str]:
        return [f"{RETURN}.{name}" for name in roster_of(env).behaviours]

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        if not is_joint(env):
            raise UnsupportedSpace(
                f"behaviours learn in an environment of several agents, such as {JOINT}mpe2:simple_spread_v3, but got "
                f"{env.id}"
            )

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        num_envs, epoch_steps = values["num_envs"], values["epoch_steps"]
        roster = roster_of(env)
        _check_teams(env, values)
        for name, text in env.players.items():
            check_player(env, name, text)
        if env.opponents:
            rival_teams(env)
        for name, text in product(roster.learning, env.opponents):
            check_player(env, name, text)
        for name, behaviour in roster.learning.items():
            learner, spec = load(values[name][ALGORITHM]).learner, replace(env, behaviour=name)
            own = _own_values(values, name, len(behaviour.slots))
            flat = flatten(own)
            for option, without_it in UNSHARED.items():
                if flat.get(option, without_it) != without_it:
                    raise UnsupportedSpace(
                        f"{name}.{option} must be {without_it!r} where agents share environments, since it knows no "
                        f"absent agents, but got {flat[option]!r}; leave it out"
                    )
            if "replay" in own and own["model"]["memory"] != "none":
                raise UnsupportedSpace(
                    f"{name}.model.memory must be 'none' where {learner.algorithm()} replays steps of agents that "
                    f"share environments, but got {own['model']['memory']!r}; use ppo for a memory"
                )
            check_extras(env, name, values[name])
            try:
                learner.check(own)
                learner.check_env(spec)
                learner.check_values_in_env(spec, own)
            except ValueError as error:
                raise type(error)(f"behaviour {name}: {error}") from None
            rollout = own["num_steps"] * num_envs
            if len(roster.learning) > 1 and epoch_steps % rollout:
                best = max(1, epoch_steps // rollout) * rollout
                raise ValueError(
                    f"behaviours end an epoch together, so epoch_steps ({epoch_steps}) must be divisible by "
                    f"{name}.num_steps * num_envs ({rollout}); try epoch_steps={best}"
                )

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        names = []
        for name in roster_of(env).learning:
            learner = load(fixed.get(f"{name}.{ALGORITHM}", ALGORITHMS[0])).learner
            own = {path.removeprefix(f"{name}."): value for path, value in fixed.items() if path.startswith(f"{name}.")}
            names += [f"{name}.{path}" for path in learner.without_effect(replace(env, behaviour=name), own)]
        return names

    # --- training ---

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        roster = roster_of(self.env)
        self.teams = competing_teams(self.env, values[0])
        returns = self.further_objectives(self.env)
        self.returns = {f"{INFO}{name}" for name in returns}  # training reports them as episode_return.NAME
        trained, self.env = self.env, replace(self.env, info={**dict.fromkeys(returns, "last"), **self.env.info})
        extras = {name: extras_of(values[0][name]) for name in roster.learning}
        extras |= {name: player_extras(self.env, name, text) for name, text in self.env.players.items()}
        against = [player_extras(self.env, name, text) for name, text in product(roster.learning, self.env.opponents)]
        if any(x.central == OF_STATE for x in (*extras.values(), *against)):
            trained, self.env = replace(trained, state=True), replace(self.env, state=True)
        if self.env.parameters:  # a curriculum may follow them
            trained = self.env
        self.envs = make_envs(trained, self.seeds, self.hp.num_envs, processes=self.env_processes)
        self.window = None
        try:
            self.shared = SharedEnvs(self.envs, roster, extras, bool(self.teams))
            self.learners: dict[str, Learner] = {}
            self.players: dict[str, PlayerActor] = {}
            for name, view in self.shared.views.items():
                alone = len(roster.behaviours) == 1
                seeds = self.seeds if alone else [behaviour_seed(seed, name) for seed in self.seeds]
                if name in self.env.players:
                    self.players[name] = player_actor(view, self.env, self.env.players[name], seeds, self.device)
                    continue
                own = [_own_values(member, name, view.agents) for member in values]
                learner = load(values[0][name][ALGORITHM]).learner
                self.learners[name] = learner(view.spec, seeds, own, self.device, envs=view)
        except BaseException:
            self.envs.close()
            raise
        self.self_play: dict[str, SelfPlay] = {}
        for name, learner in self.learners.items() if self.teams else ():
            if (hp := getattr(self.hp, name).self_play).use:
                view = self.shared.views[name]
                own = [_own_values(member, name, view.agents) for member in values]
                past = frozen(type(learner), view, learner.seeds, own, self.device)
                pool = self.self_play[name] = SelfPlay(learner, past, hp)
                self.shared.replace[name], view.on_step = pool.replaced, pool.see
        name, self.first = next(iter(self.learners.items()))
        self.agents = self.shared.views[name].agents
        self.block = math.lcm(*(learner.hp.num_steps for learner in self.learners.values()))
        self.lockstep = Lockstep(self.shared.exchange)
        self.shared.meet = self.lockstep.meet if len(self.learners) > 1 else None
        self.tally = Tally(self.members)
        self.take_sides()
        if rivals := self.teams or (rival_teams(self.env) if self.env.opponents else {}):
            opponents = {text: self._opponent(text) for text in self.env.opponents or [RANDOM]}
            self.contest = Contest(roster, rivals, self.opposed, opponents)

    # Counters are those of the first behaviour's learner; all are at the same step between two blocks.
    env_steps = property(lambda self: self.first.env_steps // self.agents)
    iterations = property(lambda self: self.first.iterations)
    epochs = property(lambda self: self.first.epochs)

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        if not self.within_epoch:
            self.begin_epoch()
        while not all(results := self.run_block()):
            if stop() and self.is_whole():
                return None
        return self.merged(dict(zip(self.learners, results, strict=True)))

    def iterate(self) -> dict[str, Tensor]:
        """Train one block; each learner counts its own metrics."""
        self.run_block()
        return {}

    def run_block(self) -> list[list[Metrics]]:
        """Train all learners for one block, or end their epoch.

        Return each learner's metrics of the epoch if it ended, else empty lists.
        """
        before = self.env_steps
        target = before + self.block * self.hp.num_envs
        for pool in self.self_play.values():
            pool.begin_block(before)
        for name, player in self.players.items():  # its random numbers depend on the block alone
            self.shared.players[name] = player(self.shared.views[name].num_envs, partial(self._keys, name, before))
        jobs = {
            name: partial(learner.run_epoch, partial(self.reached, name, target))
            for name, learner in self.learners.items()
        }
        results = self.lockstep.run(jobs) if len(jobs) > 1 else {name: job() for name, job in jobs.items()}
        if self.self_play:
            self.end_block(before)
        return [results[name] or [] for name in self.learners]

    # --- self-play ---

    def learning_team(self, env_steps: int) -> int:
        """Return the index of the team that learns then."""
        name, pool = next(iter(self.self_play.items()))
        slots = {*self.shared.roster.behaviours[name].slots}
        agents = min(len(slots & {*team}) for team in self.teams.values() if slots & {*team})
        return env_steps * agents // pool.hp.team_change % len(self.teams)

    def take_sides(self) -> None:
        """Let one team learn, and past policies play the others."""
        if not self.self_play:
            return
        team = [*self.teams.values()][self.learning_team(self.env_steps)]
        for name in self.self_play:
            view = self.shared.views[name]
            view.give(np.tile([slot not in team for slot in view.behaviour.slots], self.hp.num_envs))

    def end_block(self, before: int) -> None:
        """Save and draw policies, and change the team that learns."""
        after = self.env_steps
        changed = self.learning_team(before) != self.learning_team(after)
        for pool in self.self_play.values():
            pool.end_block(before, after, changed)
        if changed:
            self.take_sides()
            for name in self.self_play:
                self.learners[name].truncate_all()

    def _keys(self, name: str, env_steps: int, purpose: str) -> streams.Bits:
        """Return the keys of a player's stream in a block."""
        return streams.keys(self.seeds, "player", name, purpose, env_steps)

    def reached(self, name: str, env_steps: int) -> bool:
        """Return whether a behaviour's learner has done these steps.

        They are steps of the shared environments.
        """
        return self.learners[name].env_steps >= env_steps * self.shared.views[name].agents

    def merged(self, rows: Mapping[str, Sequence[Metrics]]) -> list[Metrics]:
        """Return each member's metrics of an epoch.

        They are the environment's, then `METRIC.BEHAVIOUR` of each behaviour.
        """
        episodes, infos, merged = self.envs.take_episodes(), self.envs.info.take_metrics(), []
        for member in range(self.members):
            row = {"env_steps": float(self.env_steps)}
            if count := int(episodes.count[member]):
                row |= {
                    "episodes": float(count),
                    "episode_return": float(episodes.return_sum[member]) / count,
                    "episode_length": float(episodes.length_sum[member]) / count,
                }
            for name, of_members in rows.items():
                row |= {f"{metric}.{name}": value for metric, value in of_members[member].items()}
            row |= {f"elo.{name}": float(pool.ratings[member, -1]) for name, pool in self.self_play.items()}
            reported = {name: value for name, value in infos[member].items() if name not in self.returns}
            merged.append(row | reported | self.envs.member_metrics(member))
        return merged

    @property
    def within_epoch(self) -> bool:
        return self.first.within_epoch

    def truncate_all(self) -> None:
        for learner in self.learners.values():
            learner.truncate_all()

    def updates(self) -> list[int]:
        of_learners = [learner.updates() or [0] * self.members for learner in self.learners.values()]
        return [sum(counts) for counts in zip(*of_learners, strict=True)]

    # --- acting ---

    def actor(
        self,
        episodes: int,
        deterministic: bool = True,
        keys: streams.Keys | None = None,
        memory: Any = None,
        around: Around | None = None,
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that acts, see `Learner.actor`.

        `around` replaces the function of each behaviour, see `Contest`.
        """
        memory, actors = memory or {}, {}
        for name, learner in self.learners.items():
            count, drawn = episodes * self.shared.views[name].agents, keys or partial(evaluation_keys, self.members)
            if len(self.learners) > 1:
                drawn = partial(_prefixed, drawn, name)
            actors[name] = learner.actor(count, deterministic, drawn, memory.get(name))
            if around is not None:
                actors[name] = around(name, actors[name], drawn)

        for name, player in self.players.items():
            count, drawn = episodes * self.shared.views[name].agents, keys or partial(evaluation_keys, self.members)
            actors[name] = player(count, partial(_prefixed, drawn, name))

        def act(obs: np.ndarray) -> np.ndarray:
            form, roster = self.shared.form, self.shared.roster
            joint = form.read(obs)
            actions = {name: act(form.observed(roster.behaviours[name], joint)) for name, act in actors.items()}
            return form.joined(actions, (self.members, episodes))

        return act

    def opposed(self, episodes: int, deterministic: bool, keys: streams.Keys, around: Around) -> Act:
        """Return a function that acts, with another one around each behaviour's."""
        return self.actor(episodes, deterministic, keys, around=around)

    def _opponent(self, text: str) -> Opponent:
        """Return the function that makes a named policy act as an opponent."""
        views = self.shared.views
        if text == RANDOM:

            def at_random(name: str, episodes: int, keys: streams.Keys) -> Act:
                view, mask = views[name], mask_in(views[name].obs_shape)
                return random_actor(keys("opponent"), view.action_space, episodes * view.agents, self.env.id, mask)

            return at_random

        @lru_cache
        def player_of(name: str) -> tuple[PlayerActor, Extras]:
            extras = player_extras(self.env, name, text)
            view = SharedEnvs(self.envs, self.shared.roster, {name: extras}).views[name]
            return player_actor(view, self.env, text, self.seeds, self.device), extras

        def opponent(name: str, episodes: int, keys: streams.Keys) -> Act:
            acts, extras = player_of(name)
            act = acts(episodes * views[name].agents, lambda purpose: keys(f"opponent.{text}.{purpose}"))
            return self._as_seen(name, act, extras)

        return opponent

    def _as_seen(self, name: str, act: Act, extras: Extras) -> Act:
        """Return what acts for a policy with other extras."""
        form, behaviour = self.shared.form, self.shared.roster.behaviours[name]
        return lambda obs: act(form.with_extras(behaviour, obs, extras))

    def acting_memory(self, episodes: int) -> Any:
        views = self.shared.views
        return {name: x.acting_memory(episodes * views[name].agents) for name, x in self.learners.items()}

    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        raise UnsupportedSpace(f"{self.env.id} has a value for each of its agents, not one; ask a behaviour's learner")

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        raise UnsupportedSpace(f"{self.env.id} has a policy for each behaviour; ask a behaviour's learner")

    def of_behaviour(self, name: str | None) -> Learner:
        if name is None and len(self.learners) == 1:
            return self.first
        if name not in self.learners:
            raise ValueError(
                f"{self.env.id} has a policy for each behaviour that learns, so one of {', '.join(self.learners)} must "
                f"be named (--behaviour), but got {name or 'none'}"
            )
        return self.learners[name]

    def contest_with(self, other: BehavioursLearner | str) -> Contest:
        """Return the contest with another learner or a named policy."""

        def opponent(name: str, episodes: int, keys: streams.Keys) -> Act:
            assert isinstance(other, BehavioursLearner)
            count, extras = episodes * self.shared.views[name].agents, other.shared.form.extras.get(name, Extras())
            act = other.learners[name].actor(count, False, lambda purpose: keys(f"opponent.{purpose}"))
            return self._as_seen(name, act, extras)

        pool = {"other": self._opponent(other) if isinstance(other, str) else opponent}
        return Contest(self.shared.roster, rival_teams(self.env), self.opposed, pool)

    # --- state ---

    @property
    def live_parts(self) -> dict[str, Part]:
        return {}

    def member_state(self, member: int) -> Tree:
        counters = {name: getattr(self, name) for name in self.counters()}
        behaviours = {name: learner.member_state(member) for name, learner in self.learners.items()}
        # `tally` says whether the state lies within an epoch
        tally = {"count": self.first.tally.count}
        pools = {name: pool.member_state(member) for name, pool in self.self_play.items()}
        tree = {"counters": counters, "tally": tally, **self.surroundings(member), "behaviours": behaviours}
        return {**tree, SELF_PLAY: pools} if pools else tree

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        check_counters(tree, self.algorithm(), self.counters())
        states = tree.get("behaviours", {})
        if states.keys() != self.learners.keys():
            raise StateMismatch(
                f"{self.algorithm()}: a state must have the behaviours {', '.join(self.learners)}, but has "
                f"{', '.join(sorted(states)) or 'none'}"
            )
        self.load_surroundings(member, tree)
        for name, learner in self.learners.items():
            learner.load_member(member, states[name])
        for name, pool in self.self_play.items():
            own = pool.member_state(member)
            check_same_form(own, tree.get(SELF_PLAY, {}).get(name, {}), f"{self.algorithm()}: {SELF_PLAY}/{name}")
            pool.load_member(member, tree[SELF_PLAY][name])
        self.take_sides()

    def find_nonfinite(self, metrics: Sequence[Metrics]) -> list[str | None]:
        reasons = super().find_nonfinite(metrics)
        for name, learner in self.learners.items():
            for member, reason in enumerate(learner.find_nonfinite([{}] * self.members)):
                reasons[member] = reasons[member] or (reason and f"{name}.{reason}")
        return reasons

    def network_views(self, member: int) -> dict[str, Tensor]:
        return self._by_behaviour(lambda learner: learner.network_views(member))

    def policy_views(self, member: int) -> dict[str, Tensor]:
        return self._by_behaviour(lambda learner: learner.policy_views(member))

    def _by_behaviour(self, views: Callable[[Learner], dict[str, Tensor]]) -> dict[str, Tensor]:
        named = ((name, views(learner)) for name, learner in self.learners.items())
        return {f"{name}.{path}": view for name, of_learner in named for path, view in of_learner.items()}

    @torch.no_grad()
    def adopt(self, member: int, policy: Mapping[str, Tensor]) -> None:
        for name, learner in self.learners.items():
            prefix = f"{name}."
            learner.adopt(member, {k.removeprefix(prefix): v for k, v in policy.items() if k.startswith(prefix)})
        for pool in self.self_play.values():
            pool.start(member)

    def close(self) -> None:
        super().close()
        for learner in self.learners.values():
            learner.close()


@lru_cache(maxsize=64)
def _space(env: EnvSpec) -> Space:
    """Return the hyperparameters in an environment, nested by behaviour."""
    names = list(roster_of(env).learning)
    choice = categorical(*ALGORITHMS, default=ALGORITHMS[0], structural=True, search=False, help=ALGORITHM_HELP)
    assert isinstance(choice, Choice)

    def select(chosen: Mapping[str, Any]) -> Space:
        nested = {}
        for name in names:
            space = load(chosen[f"{name}.{ALGORITHM}"]).learner.space_in(replace(env, behaviour=name))
            nested[name] = Space(**{ALGORITHM: choice}, **extended(space), **{SELF_PLAY: self_play_space()})
        return BehavioursLearner.hyperparameters.extend(**nested)

    return Variants(select, {f"{name}.{ALGORITHM}": choice for name in names})


def _own_values(values: Mapping[str, Any], name: str, agents: int) -> dict[str, Any]:
    """Return the hyperparameters of a behaviour's learner.

    Its environments are its agents.
    """
    own = algorithm_values(values[name])
    own |= {"num_envs": values["num_envs"] * agents, "epoch_steps": values["epoch_steps"] * agents}
    space = load(values[name][ALGORITHM]).learner.hyperparameters
    return own | ({"eval_interval": 0} if "eval_interval" in space else {})


def competing_teams(env: EnvSpec, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the slots of each team whose agents learn by self-play."""
    return teams_of(env, [name for name in roster_of(env).learning if values[name][SELF_PLAY]["use"]])


def teams_of(env: EnvSpec, behaviours: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the slots of these behaviours in each team that has some."""
    roster = roster_of(env)
    slots = {slot for name in behaviours for slot in roster.behaviours[name].slots}
    teams = {name: tuple(slot for slot in team if slot in slots) for name, team in roster.teams.items()}
    return {name: team for name, team in teams.items() if team}


def rival_teams(env: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Return the slots of each team that opponents can play against.

    They are those of agents that learn.

    Raises:
        UnsupportedSpace: there are fewer than two.
    """
    learning = roster_of(env).learning
    if len(teams := teams_of(env, learning)) < 2:
        raise UnsupportedSpace(
            f"{env.id}: opponents need two teams or more that learn, but the agents of {', '.join(learning)} are in "
            "one; give the environment's `teams`"
        )
    return teams


def _check_teams(env: EnvSpec, values: Mapping[str, Any]) -> None:
    """Raise ValueError unless self-play has two teams that change together."""
    playing = {name: values[name][SELF_PLAY] for name in roster_of(env).learning if values[name][SELF_PLAY]["use"]}
    for name, options in playing.items():
        check_self_play(name, options)
    if playing and len(teams := competing_teams(env, values)) < 2:
        raise ValueError(
            f"{env.id}: self-play is played between two teams or more, but the agents of {', '.join(playing)} are in "
            f"one, {next(iter(teams))}; set self_play.use of the others, or give the environment's `teams`"
        )
    changes = {name: options["team_change"] for name, options in playing.items()}
    if len({*changes.values()}) > 1:
        raise ValueError(
            f"{env.id}: all behaviours change the learning team together, but team_change is "
            f"{', '.join(f'{x} for {name}' for name, x in changes.items())}; give them the same"
        )


def behaviour_seed(seed: int, name: str) -> int:
    """Return the seed of a behaviour's learner.

    Behaviours draw different random numbers.
    """
    return int(streams.key(seed, "behaviour", name) >> np.uint64(1))


def _prefixed(keys: streams.Keys, name: str, purpose: str) -> streams.Bits:
    """Return the keys of a stream that only one behaviour uses."""
    return keys(f"{name}.{purpose}")


class Behaviours(Task):
    """Several behaviours in one environment, each with an algorithm of its own.

    The environment is one of PettingZoo's, such as ``pettingzoo/mpe2:simple_tag_v3``. Agents that share a name up to a
    last ``_`` and number share a behaviour, or the environment's `behaviours` says which do. The hyperparameters are
    nested by behaviour, and `NAME.algorithm` chooses its algorithm. The return is the sum of all agents' returns.
    """

    name = "behaviours"
    version = 3
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
        learner = acting(self.member_ref().learner)
        if any(memory for memory in learner.acting_memory(1).values() if isinstance(memory, States)):
            raise UnsupportedSpace(f"{self} has a memory, which player() keeps; use it instead of predict")
        joint, of_agents = self._joint(observation)
        return of_agents(super().predict(joint, deterministic=deterministic)[0]), None

    def player(self) -> Callable[[Any], Any]:
        """Return a function that plays one episode greedily.

        It maps observations by agent to actions by agent. For a recurrent policy it keeps the memory between calls, so
        use a new one for each episode.
        """
        play = super().player()

        def act(observation: Mapping[str, Any]) -> dict[str, Any]:
            joint, of_agents = self._joint(observation)
            return of_agents(play(joint))

        return act

    def match(self, other: Behaviours | str, games: int = 200, seed: int | None = None) -> list[int]:
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
        own, learner = roster_of(self.env), self.member_ref().learner
        assert isinstance(learner, BehavioursLearner)
        opponents: Any = other
        if isinstance(other, Behaviours):
            theirs, opponents = roster_of(other.env), other.member_ref().learner
            if (own.agents, own.behaviours, {*own.learning}) != (theirs.agents, theirs.behaviours, {*theirs.learning}):
                raise UnsupportedSpace(
                    f"{self} plays against policies of the same agents with the same spaces, but {other} has "
                    f"{', '.join(theirs.agents)} in {', '.join(theirs.learning)}; name a task of {self.env.id}"
                )
        else:
            for name in own.learning:
                check_player(self.env, name, other)
        before, learner.contest = learner.contest, learner.contest_with(opponents)
        try:
            measured = measure_episodes(learner, games, deterministic=False, **self._elsewhere(None, seed))
        finally:
            learner.contest = before
        return np.sign(measured.returns[0] - measured.info[OPPONENTS][0]).astype(int).tolist()

    def _joint(self, observation: Any) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]:
        """Return a joint observation, and a function for its action.

        The function names the parts of a joint action.

        Raises:
            ValueError: the observations are of unknown agents.
        """
        roster = roster_of(self.env)
        if not isinstance(observation, Mapping) or (unknown := observation.keys() - {*roster.agents}):
            named = f"of {', '.join(map(str, sorted(unknown)))}" if isinstance(observation, Mapping) else "unnamed"
            raise ValueError(f"{self}: observations are by agent, of {', '.join(roster.agents)}, but some are {named}")
        observed = {slot: b.observation for b in roster.behaviours.values() for slot in b.slots}
        seen = tuple(
            observation[agent] if agent in observation else blank(observed[slot])
            for slot, agent in enumerate(roster.agents)
        )
        learner = acting(self.member_ref().learner)
        assert isinstance(learner, BehavioursLearner)
        parts = learner.envs.obs_space
        assert isinstance(parts, spaces.Dict)
        unseen = {name: blank(space) for name, space in parts.items() if name != AGENTS}  # by policies
        return {AGENTS: seen, **unseen}, lambda action: {
            agent: one for agent, one in zip(roster.agents, action, strict=True) if agent in observation
        }
