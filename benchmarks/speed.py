"""Environment steps per second beside Stable-Baselines3, in one run, on one thread, with the same settings.

    python benchmarks/speed.py [ppo] [a2c] [dqn] [sac] [memory] [--repeat 3] [--jax PYTHON] [--against CHECKOUT]

PPO, A2C: CartPole-v1, 8 environments, two networks of 64-64; PPO 128 steps, Adam, 4 epochs x 4 minibatches, and 10
epochs x 16 minibatches, the defaults; A2C 5 steps, one gradient step, RMSprop. PPO also on HalfCheetah-v5, where the
share of time is shown that the environments take, which nothing here makes faster. DQN: CartPole-v1, one environment,
64-64, 4 steps per gradient step on a batch of 64. SAC: Pendulum-v1, one environment, a gradient step per step on a
batch of 256, networks of 64-64 and of 256-256; how fast it would be if nothing but its matrix products took time, by
torch, is shown beside it.

All take turns, and the median of each is compared. A cohort's figure is the sum over its members. Steps are divided by
seconds of processor time, so that other work on the machine counts less.

With --jax two peers that JAX compiles take turns as well: SBX, and PPO in PureJaxRL's form, where the environment is
compiled, too. PYTHON is of an environment with both, see `jax_peers.py`.

`memory` is the resident size, at its most, of a worker that trains one trial of PPO on CartPole-v1, and 32 as a cohort.

With --against the other side is Rekindle in another checkout, of an older version for example, row by row; `memory` is
left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import rekindle
import torch
from rekindle.spaces import flatten, unflatten
from rekindle.tasks import load


@dataclass(frozen=True)
class Setting:
    """One comparison: `steps` of a peer and of one task, and as many in all of a cohort.

    `simulated`: whether to show the share of time that environments take.
    """

    title: str
    task: str
    env: str
    steps: int
    cohorts: Sequence[int]
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    simulated: bool = False


def _replayed(task: str, width: int, batch: int, cohorts: Sequence[int]) -> Setting:
    values = {"model.width": width, "batch_size": batch, "learning_starts": 256, "buffer_size": 50_000}
    values |= {"epoch_steps": 256, **({"model.critic_width": width} if task == "crossq" else {})}
    return Setting(f"{task.upper()} {width}-{width}, batch {batch}", task, "Pendulum-v1", 512, cohorts, values)


PLAIN = {"normalize_reward": False}  # as Stable-Baselines3 by default
PPO = {**PLAIN, "epoch_steps": 1024, "update_epochs": 4, "num_minibatches": 4, "target_kl": None}
OFTEN = {**PPO, "update_epochs": 10, "num_minibatches": 16}
A2C = {**PLAIN, "epoch_steps": 1000, "num_steps": 5}
SETTINGS: dict[str, list[Setting]] = {
    "ppo": [
        Setting("PPO", "ppo", "CartPole-v1", 20_480, (1, 8, 32), PPO),
        Setting("PPO, 10 x 16", "ppo", "CartPole-v1", 20_480, (1, 8, 32), OFTEN),
        Setting("PPO on HalfCheetah-v5", "ppo", "HalfCheetah-v5", 10_240, (1,), PPO, simulated=True),
    ],
    "a2c": [Setting("A2C", "a2c", "CartPole-v1", 20_000, (1, 8, 16), A2C)],
    "dqn": [
        Setting(
            "DQN",
            "dqn",
            "CartPole-v1",
            8192,
            (1, 16),
            {
                "num_steps": 4,
                "num_updates": 1,
                "double": False,
                "n_step": 1,
                "target_interval": 250,
                "tau": 1.0,
                "buffer_size": 100_000,
                "epoch_steps": 2048,
            },
        )
    ],
    "sac": [
        _replayed("sac", *form) for form in ((64, 256, (1, 16)), (64, 64, (1, 16)), (256, 256, (1,)), (256, 64, (1,)))
    ],
    **{
        task: [_replayed(task, 64, 256, (1, 16)), _replayed(task, 256, 256, (1, 16))]
        for task in ("td3", "tqc", "crossq")
    },
}


def their_speed(setting: Setting) -> float:
    """Steps per second of Stable-Baselines3, once it has begun to learn."""
    from rekindle.benchmarks.peers import stable_baselines

    task = load(setting.task)(setting.env).init(**unflatten(setting.hyperparameters))
    assert task.hyperparameters is not None
    hp = flatten(task.hyperparameters)
    model = stable_baselines(setting.task, setting.env, 0, hp, setting.steps)
    model.learn(2 * hp["epoch_steps"])
    start, before = time.process_time(), model.num_timesteps
    model.learn(setting.steps, reset_num_timesteps=False)
    return float(model.num_timesteps - before) / (time.process_time() - start)


def our_speed(setting: Setting, members: int) -> float:
    """Steps per second, summed over the members, of a cohort that has begun to learn."""
    values = unflatten(setting.hyperparameters)
    tasks = [load(setting.task)(setting.env, seed=seed).init(**values) for seed in range(members)]
    group = rekindle.Cohort(tasks)
    group.fit(2)
    start, before = time.process_time(), tasks[0].env_steps
    share = setting.steps * 4 // members if members > 1 else setting.steps
    group.fit(2 + max(1, share // setting.hyperparameters["epoch_steps"]))
    return members * (tasks[0].env_steps - before) / (time.process_time() - start)


def share_of_environments(setting: Setting) -> float:
    """The share of one task's processor time that its environments' steps take."""
    task = load(setting.task)(setting.env).init(**unflatten(setting.hyperparameters))
    task.fit(2)
    assert task.ref is not None
    learner: Any = task.ref.learner
    step, took = learner.envs.step, 0.0

    def timed(actions: Any) -> Any:
        nonlocal took
        start = time.process_time()
        try:
            return step(actions)
        finally:
            took += time.process_time() - start

    learner.envs.step = timed
    start = time.process_time()
    task.fit(2 + setting.steps // setting.hyperparameters["epoch_steps"])
    return took / (time.process_time() - start)


MEMORY = "memory"
STRUCTURE = ["model.width=64", "model.layers=2", "model.activation='tanh'", "num_steps=128"]  # of all trials
STRUCTURE += ["num_minibatches=4", "update_epochs=4"]


def train_as_worker(trials: int) -> None:
    """Train a study of one cohort in this process, and print its resident size at its most, in bytes."""
    from rekindle.studies.cli import main

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        study = ["--study", "memory", "--storage", f"sqlite:///{folder}/memory.db"]
        structure = [word for text in STRUCTURE for word in ("--set", text)]
        command = ["create", "ppo", "CartPole-v1", "--trials", str(trials), "--epochs", "3", *structure, *study]
        status = main(command) or main(["worker", "--quiet", *study])
    if status:
        raise SystemExit(status)
    used = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())  # unlike rusage's, of this program
    assert used is not None
    print(int(used[1]) * 1024)


def show_memory() -> None:
    """Print the resident sizes of workers."""
    print(f"{'PPO, resident size of a worker':32}{'MB':>12}{'ratio':>8}")
    sizes: list[int] = []
    for trials in (1, 32):
        program = f"from rekindle.benchmarks.speed import train_as_worker; train_as_worker({trials})"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        sizes.append(int(subprocess.check_output([sys.executable, "-c", program], env=environment)))
        name = "one task" if trials == 1 else f"a cohort of {trials}"
        print(f"  {name:30}{sizes[-1] / 1e6:12,.0f}{sizes[-1] / sizes[0]:8.2f}", flush=True)


@contextmanager
def speed_in(checkout: Path) -> Iterator[Callable[[str, int, int], float]]:
    """A function (algorithm, index of its setting, members) -> steps per second of another checkout."""
    from rekindle.benchmarks.checkouts import importable

    command = [sys.executable, "-c", "import speed; speed.answer()"]
    with (
        importable(checkout, __file__) as environment,
        subprocess.Popen(
            command, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None

        def measure(algorithm: str, index: int, members: int) -> float:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{algorithm} {index} {members}\n")
            child.stdin.flush()
            return float(child.stdout.readline())

        yield measure
        child.stdin.close()


def answer() -> None:
    """Measure what each line of stdin asks for; see `speed_in`."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        algorithm, index, members = line.split()
        print(our_speed(SETTINGS[algorithm][int(index)], int(members)), flush=True)


def compare_checkouts(algorithms: Sequence[str], other: Path, repeat: int) -> None:
    """Print the speeds of this checkout and another one, which take turns."""
    root = Path(rekindle.__file__).resolve().parent
    print(f"{'env steps/s':44}{other.name:>12}{root.name:>12}{'ratio':>8}")
    with ExitStack() as stack:
        sides = [stack.enter_context(speed_in(checkout)) for checkout in (other, root)]
        for algorithm in algorithms:
            for index, setting in enumerate(SETTINGS[algorithm]):
                for members in setting.cohorts:
                    figures = [[side(algorithm, index, members) for side in sides] for _ in range(repeat)]
                    before, after = (statistics.median(column) for column in zip(*figures, strict=True))
                    ratio = statistics.median(new / old for old, new in figures)
                    print(f"{setting.title + f', {members}':44}{before:12,.0f}{after:12,.0f}{ratio:8.2f}", flush=True)


def products_of_sac(width: int, batch: int, obs: int = 3, actions: int = 1) -> list[tuple[int, int, int, int]]:
    """The (stacked, rows, inner, columns) of all matrix products of a gradient step with two hidden layers.

    The policy acts on the batch and on what followed, the twins and their targets judge both; the twins learn; they
    judge the policy's own actions, whose gradient goes through them into the policy. No product is done twice.
    """

    def forward(stacked: int, rows: int, sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
        return [(stacked, rows, inner, columns) for inner, columns in itertools.pairwise(sizes)]

    def weights(stacked: int, sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
        return [(stacked, inner, batch, columns) for inner, columns in itertools.pairwise(sizes)]

    def inputs(stacked: int, sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
        return [(stacked, batch, columns, inner) for inner, columns in itertools.pairwise(sizes)]

    pi, q = (obs, width, width, 2 * actions), (obs + actions, width, width, 1)
    learn_q = forward(4, batch, q) + weights(2, q) + inputs(2, q[1:])
    learn_pi = forward(2, batch, q) + inputs(2, q) + weights(1, pi) + inputs(1, pi[1:])
    return forward(1, 2 * batch, pi) + learn_q + learn_pi


def speed_of_products(setting: Setting) -> float:
    """Gradient steps per second, and so env steps, if only the matrix products of SAC, by torch, took time."""
    values = setting.hyperparameters
    pairs = [
        (torch.randn(stacked, rows, inner), torch.randn(stacked, inner, columns))
        for stacked, rows, inner, columns in products_of_sac(values["model.width"], values["batch_size"])
    ]
    with torch.inference_mode():
        for repeats in (20, 200):  # the first ones warm up
            start = time.process_time()
            for _ in range(repeats):
                for left, right in pairs:
                    torch.bmm(left, right)
    return repeats / (time.process_time() - start)


JaxPeer = Callable[[str, Setting, int], float]  # (name, setting, members) -> steps per second


@contextmanager
def jax_peers(python: Path) -> Iterator[JaxPeer]:
    """A function that measures what JAX compiles, in a process of another Python."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), str(Path(__file__).with_name("jax_peers.py"))]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def measure(peer: str, setting: Setting, members: int) -> float:
            assert child.stdin is not None
            assert child.stdout is not None
            task = load(setting.task)(setting.env).init(**unflatten(setting.hyperparameters))
            assert task.hyperparameters is not None
            question = {"peer": peer, "task": setting.task, "env": setting.env, "members": members}
            question |= {"steps": setting.steps * (4 if members > 1 else 1), "hp": flatten(task.hyperparameters)}
            child.stdin.write(json.dumps(question) + "\n")
            child.stdin.flush()
            if not (answer := child.stdout.readline()):
                raise SystemExit(f"{python} must have jax and sbx-rl, but {peer} failed there; see its error above")
            return float(answer)

        yield measure
        child.stdin.close()


def peers_of(setting: Setting, jax: JaxPeer | None) -> dict[str, Callable[[], float]]:
    """The compiled peers of a setting, by name."""
    if jax is None or setting.task == "a2c":
        return {}
    runs: dict[str, Callable[[], float]] = {"SBX, one task": partial(jax, "sbx", setting, 1)}
    for members in setting.cohorts if setting.task == "ppo" else ():
        runs[f"PureJaxRL's form, {members}"] = partial(jax, "purejaxrl", setting, members)
    return runs


def compare(setting: Setting, repeat: int, jax: JaxPeer | None = None) -> None:
    """Print the figures of one setting."""
    base = "Stable-Baselines3"
    runs: dict[str, Callable[[], float]] = {base: partial(their_speed, setting)}
    for members in setting.cohorts:
        name = "one task" if members == 1 else f"a cohort of {members} (sum)"
        runs[f"Rekindle, {name}"] = partial(our_speed, setting, members)
    if setting.task == "sac":
        runs["torch's matrix products alone"] = partial(speed_of_products, setting)
    runs |= peers_of(setting, jax)
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            figures[name].append(run())
    reference = statistics.median(figures[base])
    print(f"{setting.title:32}{'env steps/s':>12}{'ratio':>8}")
    for name, values in figures.items():
        print(f"  {name:30}{statistics.median(values):12,.0f}{statistics.median(values) / reference:8.2f}", flush=True)
    if setting.simulated:
        share = statistics.median(share_of_environments(setting) for _ in range(repeat))
        print(f"  {'of its time, the environments':30}{share:12.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = [*SETTINGS, MEMORY]
    parser.add_argument("algorithms", nargs="*", default=rows, help=f"{', '.join(rows)} (all)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--jax", type=Path, metavar="PYTHON", help="measure SBX and PureJaxRL's form as well")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with another checkout instead")
    options = parser.parse_args()
    if unknown := [name for name in options.algorithms if name not in rows]:
        parser.error(f"there are {', '.join(rows)}, but got {', '.join(unknown)}")
    algorithms = [name for name in options.algorithms if name != MEMORY]
    torch.set_num_threads(1)
    if options.against is not None:
        return compare_checkouts(algorithms, options.against, options.repeat)
    with ExitStack() as stack:
        jax = None if options.jax is None else stack.enter_context(jax_peers(options.jax))
        for algorithm in algorithms:
            for setting in SETTINGS[algorithm]:
                compare(setting, options.repeat, jax)
    if MEMORY in options.algorithms:
        show_memory()


if __name__ == "__main__":
    main()
