"""Several behaviours in one environment, each with an algorithm of its own.

Every behaviour is a group of agents that share a policy. Its learner is that of an ordinary task, which sees each agent
as an environment. The learners act and learn side by side, and meet at every step of the shared environments. With one
algorithm this is independent learning with shared parameters, such as IPPO: de Witt et al. (2020), arXiv:2011.09533.
With a central critic it is MAPPO: Yu et al. (2022), arXiv:2103.01955.

Notation: P members, N shared environments of each, A agents of a behaviour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space, categorical, integer
from ...spaces.choices import Choice
from ...spaces.values import under
from ...spaces.variants import Variants
from ..checkpoint.member_state import Part
from ..checkpoint.state import Tree, check_same_form
from ..checkpoint.storage import Metrics
from ..envs import Envs, EnvSpec, StepResult, make_envs
from ..envs.agents.adapter import RETURN, REWARD, is_joint
from ..envs.agents.roster import roster_of
from ..envs.agents.views import OF_STATE, Extras, JointForm, SharedEnvs
from ..envs.base.masks import mask_in
from ..envs.base.spec import JOINT, EnvSpecError
from ..errors import StateMismatch, UnsupportedSpace
from ..evaluation.seeds import evaluation_keys
from ..learner import Learner
from ..learner_state import check_counters
from ..registry import load
from ..rng import streams
from ..runtime import INFO
from ..runtime.lockstep import Lockstep
from ..runtime.metric_means import Tally
from .behaviour_space import ALGORITHM, SELF_PLAY, behaviour_space, check_behaviour, extras_of, learner_values
from .contest import Act, Around, Contest, Opponent, random_actor
from .players import RANDOM, PlayerActor, check_players, frozen, player_actor, player_extras
from .self_play import SelfPlay, Sides, self_play_space
from .teams import check_teams, competing_teams, rival_teams

ALGORITHMS = ("ppo", "ppo2", "a2c", "dqn", "qrdqn", "sac", "td3", "ddpg", "tqc", "crossq")
ALGORITHM_HELP = "Algorithm that the behaviour learns by; its hyperparameters follow."


class BehavioursLearner(Learner):
    """P members, each with a learner for every behaviour.

    Attributes:
        shared: the shared environments.
        learners: the learners, by behaviour.
        players: functions that make fixed policies act, by behaviour.
        lockstep: runs the learners side by side.
        block: steps of each shared environment after which all learners are between two iterations.
        self_play: the behaviours that play against past policies.
    """

    hyperparameters = Space(
        num_envs=integer(1, 65536, default=8, structural=True, search=False),
        epoch_steps=integer(1, 10**9, default=4096, structural=True, search=False),
    )

    scratch = (*Learner.scratch, "lockstep", "players", "contest")

    @classmethod
    def space_in(cls, env: EnvSpec) -> Space:
        if not env:
            return cls.hyperparameters
        cls.check_env(env)
        return _space(env)

    @classmethod
    def further_objectives(cls, env: EnvSpec) -> list[str]:
        return [f"{RETURN}.{name}" for name in roster_of(env).behaviours]

    @classmethod
    def rewards_in(cls, envs: Envs) -> Callable[[StepResult], np.ndarray]:
        form = JointForm(roster_of(envs.spec), envs)
        return lambda step: form.read(step.next_obs).outcomes[..., REWARD]

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        if not is_joint(env):
            raise UnsupportedSpace(
                f"behaviours learn in an environment of several agents, such as {JOINT}mpe2:simple_spread_v3, but got "
                f"{env.id}; name one{f' ({JOINT}{env.id}, if it is of PettingZoo)' if ':' in env.id else ''}, or use "
                "an algorithm of one agent, such as ppo"
            )

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        check_teams(env, values)
        check_players(env)
        for name in roster_of(env).learning:
            check_behaviour(env, name, values)

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        names = []
        for name in roster_of(env).learning:
            learner = load(fixed.get(f"{name}.{ALGORITHM}", ALGORITHMS[0])).learner
            without = learner.without_effect(replace(env, behaviour=name), under(name, fixed))
            names += [f"{name}.{path}" for path in without]
        return names

    # --- training ---

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        roster, teams = roster_of(self.env), competing_teams(self.env, values[0])
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
            self.shared = SharedEnvs(self.envs, roster, extras, bool(teams))
            self._share(values, teams)
        except BaseException:
            self.envs.close()
            raise

    def _share(self, values: Sequence[Mapping[str, Any]], teams: Mapping[str, tuple[int, ...]]) -> None:
        """Let learners, players and past policies share the environments.

        Args:
            values: complete hyperparameters of each member.
            teams: slots of each team that learns by self-play, by name.
        """
        roster = self.shared.roster
        self.self_play = Sides(self.shared, teams)
        self.learners: dict[str, Learner] = {}
        self.players: dict[str, PlayerActor] = {}
        for name, view in self.shared.views.items():
            alone = len(roster.behaviours) == 1
            seeds = self.seeds if alone else [behaviour_seed(seed, name) for seed in self.seeds]
            if name in self.env.players:
                self.players[name] = player_actor(view, self.env, self.env.players[name], seeds, self.device)
                continue
            of_members = [learner_values(member, name, view.agents) for member in values]
            algorithm: type[Learner] = load(values[0][name][ALGORITHM]).learner
            learner = self.learners[name] = algorithm(view.spec, seeds, of_members, self.device, envs=view)
            if teams and (hp := getattr(self.hp, name).self_play).use:
                past = frozen(algorithm, view, seeds, of_members, self.device)
                self.self_play.add(name, SelfPlay(learner, past, hp))
        name, self.first = next(iter(self.learners.items()))
        self.agents = self.shared.views[name].agents
        self.block = math.lcm(*(learner.hp.num_steps for learner in self.learners.values()))
        self.lockstep = Lockstep(self.shared.exchange)
        self.shared.meet = self.lockstep.meet if len(self.learners) > 1 else None
        self.tally = Tally(self.members)
        self.self_play.take(self.env_steps)
        if rivals := teams or (rival_teams(self.env) if self.env.opponents else {}):
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

    def begin_epoch(self) -> None:
        super().begin_epoch()
        if self.envs.mode == "restart":
            for view in self.shared.views.values():
                view.begin_episodes()
            self.self_play.truncate_all()

    def run_block(self) -> list[list[Metrics]]:
        """Train all learners for one block, or end their epoch.

        Return each learner's metrics of the epoch if it ended, else empty lists.
        """
        before = self.env_steps
        target = before + self.block * self.hp.num_envs
        self.self_play.begin_block(before)
        for name, player in self.players.items():  # its random numbers depend on the block alone
            self.shared.players[name] = player(self.shared.views[name].num_envs, partial(self._keys, name, before))
        jobs = {
            name: partial(learner.run_epoch, partial(self.reached, name, target))
            for name, learner in self.learners.items()
        }
        results = self.lockstep.run(jobs) if len(jobs) > 1 else {name: job() for name, job in jobs.items()}
        for name in self.self_play.end_block(before, self.env_steps):
            self.learners[name].truncate_all()
        return [results[name] or [] for name in self.learners]

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
            row = {"env_steps": float(self.env_steps)} | episodes.metrics(member)
            for name, of_members in rows.items():
                row |= {f"{metric}.{name}": value for metric, value in of_members[member].items()}
            row |= {f"elo.{name}": float(pool.ratings[member, -1]) for name, pool in self.self_play.pools.items()}
            reported = {name: value for name, value in infos[member].items() if name not in self.returns}
            merged.append(row | reported | self.envs.member_metrics(member))
        return merged

    @property
    def within_epoch(self) -> bool:
        return self.first.within_epoch

    def truncate_all(self) -> None:
        for learner in self.learners.values():
            learner.truncate_all()
        self.self_play.truncate_all()

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
        memory, actors, keys = memory or {}, {}, keys or partial(evaluation_keys, self.members)
        counts = {name: episodes * view.agents for name, view in self.shared.views.items()}
        for name, learner in self.learners.items():
            drawn = partial(_prefixed, keys, name) if len(self.learners) > 1 else keys
            actors[name] = learner.actor(counts[name], deterministic, drawn, memory.get(name))
            if around is not None:
                actors[name] = around(name, actors[name], drawn)
        for name, player in self.players.items():
            actors[name] = player(counts[name], partial(_prefixed, keys, name))

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

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        raise UnsupportedSpace(f"{self.env.id} has a loss for each behaviour that learns; ask a behaviour's learner")

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
        pools = {name: pool.member_state(member) for name, pool in self.self_play.pools.items()}
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
        for name, pool in self.self_play.pools.items():
            state = pool.member_state(member)
            check_same_form(state, tree.get(SELF_PLAY, {}).get(name, {}), f"{self.algorithm()}: {SELF_PLAY}/{name}")
            pool.load_member(member, tree[SELF_PLAY][name])
        self.self_play.take(self.env_steps)

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
        for pool in self.self_play.pools.values():
            pool.start(member)

    def close(self) -> None:
        super().close()
        for learner in self.learners.values():
            learner.close()


@lru_cache(maxsize=64)
def _space(env: EnvSpec) -> Space:
    """Return the hyperparameters in an environment, nested by behaviour."""
    names = list(roster_of(env).learning)
    if clashes := [name for name in names if name in BehavioursLearner.hyperparameters]:
        raise EnvSpecError(
            f"{env.id}: a behaviour has another name than hyperparameters of all, but one is {clashes[0]!r}; name it "
            "in the environment's `behaviours`"
        )
    choice = categorical(*ALGORITHMS, default=ALGORITHMS[0], structural=True, search=False, help=ALGORITHM_HELP)
    assert isinstance(choice, Choice)

    selectors = {f"{name}.{ALGORITHM}": choice for name in names}
    return Variants(partial(_selected, env, names, choice), selectors)


def _selected(env: EnvSpec, names: Sequence[str], choice: Choice, chosen: Mapping[str, Any]) -> Space:
    """Return the hyperparameters of chosen algorithms, by behaviour."""
    nested = {}
    for name in names:
        space = load(chosen[f"{name}.{ALGORITHM}"]).learner.space_in(replace(env, behaviour=name))
        nested[name] = Space(**{ALGORITHM: choice}, **behaviour_space(space), **{SELF_PLAY: self_play_space()})
    return BehavioursLearner.hyperparameters.extend(**nested)


def behaviour_seed(seed: int, name: str) -> int:
    """Return the seed of a behaviour's learner.

    Behaviours draw different random numbers.
    """
    return int(streams.key(seed, "behaviour", name) >> np.uint64(1))


def _prefixed(keys: streams.Keys, name: str, purpose: str) -> streams.Bits:
    """Return the keys of a stream that only one behaviour uses."""
    return keys(f"{name}.{purpose}")
