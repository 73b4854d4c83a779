"""Several agents and self-play, killed at any step, have the bits of a training that nobody disturbs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PPO = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2, "target_kl": None}
DQN = {"algorithm": "dqn", "learning_starts": 32, "batch_size": 16}
SELF_PLAY = {"use": True, "save_steps": 24, "swap_steps": 16, "team_change": 48, "window": 3, "initial_ratio": 0.25}
SMALL_PURSUIT = {"x_size": 6, "y_size": 6, "n_evaders": 2, "n_pursuers": 3, "max_cycles": 12, "n_catch": 1}
HUNT, NIM, STORED = "pettingzoo/hunt_env:Hunt", "pettingzoo/hunt_env:Nim", "stored"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "agents that leave": ({"id": HUNT}, {"hunter": PPO, "deer": DQN}),
    "self-play": ({"id": NIM}, {"player": {**PPO, "self_play": SELF_PLAY}}),
    "stored opponent": ({"id": NIM, "opponents": ["random", STORED]}, {"player": {**PPO, "self_play": SELF_PLAY}}),
    "stored player": ({"id": HUNT, "players": {"deer": STORED}}, {"hunter": PPO}),
    "tag": ({"id": "pettingzoo/mpe2:simple_tag_v3"}, {"adversary": PPO, "agent": DQN}),
    "pursuit": ({"id": "pettingzoo/sisl:pursuit_v5", "kwargs": SMALL_PURSUIT}, {"pursuer": PPO}),
}
# The parent trains undisturbed, then one child after the other carries the stored task on until it is killed.
PROGRAM = """
import itertools, json, os, signal, sys, traceback
from contextlib import nullcontext
import torch
from rekindle import Behaviours, Store
from rekindle.studies.engine.players import with_stored_policies
from rekindle.tasks.algorithms.players import player
from rekindle.tasks.checkpoint.named_policies import named_policy
from rekindle.tasks.envs.agents.adapter import JointEnv
url, env, values, epochs, kills = sys.argv[1], *map(json.loads, sys.argv[2:])
step = JointEnv.step
torch.set_num_threads(1)

def make(**options):
    return Behaviours(env, seed=3, **options).init(epoch_steps=64, num_envs=2, **values)

def result(task):
    return task.digest, json.dumps(task.metrics), json.dumps(task.history), task.measure(8)

def carry_on(last):
    steps = itertools.count(1)
    def counted(self, action):
        if next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, action)
    JointEnv.step = counted
    named_policy.cache_clear()
    player.cache_clear()
    with Store(url) as store:
        task = make(storage=store)
        task.fit(epochs)
        print(*result(task), flush=True)
        task.finish()

def life(last):
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        carry_on(last)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

if "stored" in json.dumps(env):  # a policy of another seed, which was trained before
    with Store(url) as store:
        both = {**dict.fromkeys(env.get("players", ()), next(iter(values.values()))), **values}
        other = Behaviours({"id": env["id"]}, seed=1, storage=store).init(epoch_steps=64, num_envs=2, **both)
        other.fit(1)
        other.finish()
        env = with_stored_policies(json.loads(json.dumps(env).replace("stored", other.uid)), lambda: nullcontext(store))
whole = make()
whole.fit(epochs)
print(*result(whole), flush=True)
print([life(last) for last in kills], life(0), flush=True)
"""


def check(url: str, case: str, epochs: int, kills: list[int]) -> None:
    """Check a training whose processes are killed at these steps, counted from the beginning of each."""
    env, values = CASES[case]
    command = [sys.executable, "-c", PROGRAM, url, *map(json.dumps, (env, values, epochs, kills))]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    undisturbed, after_kills, statuses = done.stdout.splitlines()
    assert statuses == f"{[-9] * len(kills)} 0", done.stderr
    assert after_kills == undisturbed


@pytest.mark.parametrize(
    "case", [case if case == "self-play" else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_agents_whose_process_was_killed_within_a_rollout_end_the_same(case: str, tmp_path: Path) -> None:
    check(f"sqlite:///{tmp_path}/s.db", case, 3, [90, 45])  # in the second epoch, whose first half is lost both times


@pytest.mark.chaos
@pytest.mark.parametrize("case", CASES)
def test_ten_kills_of_agents_change_no_bit(case: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("REKINDLE_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"REKINDLE_CHAOS_SEED={seed}")
    draws = random.Random(seed)
    # An epoch has 64 steps, so that a process may end one of them before it is killed, and ten of them not twelve.
    check(f"sqlite:///{tmp_path}/s.db", case, 12, [draws.randint(1, 120) for _ in range(10)])
