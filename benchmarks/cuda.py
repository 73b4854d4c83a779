"""Training on a GPU: whether its bits hold, and how fast cohorts are there.

    python benchmarks/cuda.py exact [--only PATTERN] [--jobs 8]   # 1 is the exit status if a digest differs
    python benchmarks/cuda.py speed [--members 1 8 64 512] [--device cuda]
    python benchmarks/cuda.py tune [--workers 16]
    python benchmarks/cuda.py profile [--members 64]

`exact` trains what compare_digests.py does, on CUDA: alone, as a member of cohorts of 4 and of 33, and resumed by a new
task from what was stored after the first epoch; all must have one digest. `speed` counts environment steps per second
of wall time, summed over the members, beside as many on one core of the processor. `tune` takes the time of a study of
64 trials of PPO as one cohort on the GPU, and by workers on the processor. `profile` names the functions and kernels
that a training spends its time in.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from typing import Any

import torch
from rekindle import Cohort, Task
from rekindle.benchmarks.compare_digests import TRAININGS, Training, demonstrations, initialized
from rekindle.spaces import unflatten
from rekindle.tasks import load
from rekindle.tasks.checkpoint.state import pack, unpack

COHORTS = (4, 33)
SPEED: dict[str, dict[str, Any]] = {
    "ppo CartPole-v1": {"epoch_steps": 1024},
    "ppo Pendulum-v1": {"epoch_steps": 1024},
    "a2c CartPole-v1": {"epoch_steps": 1024},
    "dqn CartPole-v1": {"epoch_steps": 2048},
    "sac Pendulum-v1": {"epoch_steps": 256, "learning_starts": 256, "model.width": 64},
}


# --- bits ---


def digests(training: Training, device: str) -> Iterator[tuple[str, str]]:
    """Digests of the first member, by the way that it was trained."""
    options: dict[str, Any] = {"device": device}
    if training.shown:
        options["demonstrations"] = demonstrations(training)
    if training.warm:
        options["warm_start"] = initialized(training, 5, **options)
        options["warm_start"].fit(1)
    alone = initialized(training, 0, **options)
    alone.fit(1)
    packed = pack(alone.state_dict())
    alone.fit(training.epochs)
    yield "alone", alone.digest
    again = initialized(training, 0, **options)
    again.load_state_dict(unpack(packed.manifest, packed.blobs.__getitem__))
    again.fit(training.epochs)
    yield "resumed", again.digest
    for size in COHORTS:
        others = [initialized(training, member % 4 + 1, **options, seed=member + 50) for member in range(size - 1)]
        task = initialized(training, 0, **options)
        Cohort([*others[: size // 2], task, *others[size // 2 :]]).fit(training.epochs)
        yield f"of {size}", task.digest


def exact(pattern: str, device: str, jobs: int) -> int:
    """Print how each training's digests differ, and return how many do."""
    names = [name for name in TRAININGS if fnmatch(name, f"*{pattern}*")]
    if not names:
        raise SystemExit(f"no training has {pattern!r} in its name")

    def answer(name: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "digests", "--only", name, "--device", device]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines and not done.returncode else {"error": done.stderr.strip()}

    differing = 0
    with ThreadPoolExecutor(jobs) as pool:
        for name, outcome in zip(names, pool.map(answer, names), strict=True):
            if "error" in outcome:
                verdict = "FAILED: " + " / ".join(outcome["error"].splitlines()[-7:])
            else:
                wrong = [how for how, digest in outcome.items() if digest != outcome["alone"]]
                verdict = f"DIFFERS: {', '.join(wrong)}" if wrong else "equal"
            differing += verdict != "equal"
            print(f"{name:42} {outcome.get('alone', '')[:12]:12}  {verdict}", flush=True)
    print(f"{len(names)} trainings, {differing} not the same in all ways", flush=True)
    return differing


# --- speed ---


def cohort(setting: str, members: int, device: str) -> tuple[Cohort, Task]:
    """A cohort that has begun to learn, and its first task."""
    task, env = setting.split()
    values = unflatten(SPEED[setting])
    tasks = [load(task)(env, seed=seed, device=device).init(**values) for seed in range(members)]
    group = Cohort(tasks)
    group.fit(2)
    return group, tasks[0]


def trained(setting: str, members: int, device: str, epochs: int) -> tuple[float, float]:
    """Environment steps and seconds of a cohort that has begun to learn."""
    group, first = cohort(setting, members, device)
    before, start = first.env_steps, time.perf_counter()
    group.fit(2 + epochs)
    return members * (first.env_steps - before), time.perf_counter() - start


def speed(settings: Sequence[str], sizes: Sequence[int], device: str, epochs: int) -> None:
    """Print a row of each setting and cohort."""
    print(f"{'env steps/s':20}{'members':>8}{device:>12}{'of one':>8}{'cpu':>12}{'ratio':>8}{'s/epoch':>9}", flush=True)
    for setting in settings:
        one = 0.0
        for members in sizes:
            steps, seconds = trained(setting, members, device, epochs)
            rate = steps / seconds
            one = one or seconds
            row = f"{setting:20}{members:8}{rate:12,.0f}{seconds / one:8.2f}"
            if members <= 8:
                steps, beside = trained(setting, members, "cpu", epochs)
                row += f"{steps / beside:12,.0f}{rate * beside / steps:8.2f}"
            else:
                row += f"{'':20}"
            print(f"{row}{seconds / epochs:9.3f}", flush=True)


def tune(device: str, workers: int, verbose: bool) -> None:
    """Print the seconds of a study of 64 trials on the device, and by workers on the processor."""
    searched = ["--search", "optimizer.lr", "--search", "gamma", "--search", "ent_coef"]
    for name, options in {
        f"one cohort on {device}": ["--device", device, "--workers", "1", "--cohort", "64"],
        f"{workers} workers": ["--workers", str(workers), "--cohort", str(max(1, 64 // workers))],
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            study = ["--trials", "64", "--generation", "64", "--epochs", "27", "--storage", f"sqlite:///{folder}/s.db"]
            command = [sys.executable, "-m", "rekindle", "tune", "ppo", "CartPole-v1", "--study", "s", *study]
            start = time.perf_counter()
            done = subprocess.run([*command, *searched, *options], capture_output=True, text=True)
            seconds = time.perf_counter() - start
        print(f"64 trials, {name:24}{seconds:8.1f} s  {done.stderr[-300:] if done.returncode else ''}", flush=True)
        if verbose:
            print(done.stdout, flush=True)


def profile(setting: str, members: int, device: str) -> None:
    """Print where the time of one epoch goes."""
    group, _ = cohort(setting, members, device)
    import cProfile
    import pstats

    with cProfile.Profile() as python_profile:
        group.fit(4)
    pstats.Stats(python_profile).sort_stats("tottime").print_stats(35)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as torch_profile:
        group.fit(5)
    order = "self_cpu_time_total" if device == "cpu" else "self_cuda_time_total"
    print(torch_profile.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("exact", "speed", "tune", "profile", "digests"))
    parser.add_argument("--only", default="", metavar="PATTERN", help="trainings whose names have this in them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=8, help="trainings at a time")
    parser.add_argument("--workers", type=int, default=16, help="on the processor")
    parser.add_argument("--verbose", action="store_true", help="print what studies print")
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--epochs", type=int, default=4, help="that are timed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.do == "exact":
        sys.exit(bool(exact(options.only, options.device, options.jobs)))
    settings = [name for name in SPEED if fnmatch(name, f"*{options.only}*")]
    if options.do == "digests":
        print(json.dumps(dict(digests(TRAININGS[options.only], options.device))))
    elif options.do == "tune":
        tune(options.device, options.workers, options.verbose)
    elif options.do == "speed":
        speed(settings, options.members, options.device, options.epochs)
    else:
        for members in options.members:
            profile(settings[0], members, options.device)


if __name__ == "__main__":
    main()
