"""Bytes and milliseconds per checkpoint of a replay memory of a million transitions, beside Stable-Baselines3.

    python benchmarks/replay.py [--steps 4096]

DQN on CartPole-v1 with a full memory. A checkpoint of Rekindle is of the whole task, in one transaction of a SQLite
database; Stable-Baselines3 writes the memory alone, by `save_replay_buffer`. Between two checkpoints `--steps` new
transitions were written. What a system takes to its disk is not counted apart: both write to the same folder.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import rekindle
import torch
from rekindle.tasks.algorithms.dqn.dqn import DQNLearner

TRANSITIONS = 1_000_000
Cost = tuple[float, float]  # megabytes, milliseconds


def show(name: str, costs: list[Cost]) -> None:
    size, took = (statistics.median(column) for column in zip(*costs, strict=True))
    print(f"{name:44}{size:12.2f} MB{took:12.1f} ms", flush=True)


def ours(folder: Path, steps: int, repeat: int) -> None:
    """Checkpoints through the store, and what of them is the packing alone."""
    task = rekindle.DQN("CartPole-v1", storage=rekindle.Store(f"sqlite:///{folder / 'studies.db'}"))
    task.init(buffer_size=TRANSITIONS, epoch_steps=steps, learning_starts=min(1000, steps))
    task.fit(1)
    assert task.ref is not None
    learner = task.ref.learner
    assert isinstance(learner, DQNLearner)
    rng = np.random.default_rng(0)
    learner.replay.numbers[:] = rng.standard_normal(learner.replay.numbers.shape, dtype=np.float32)
    learner.replay.steps += TRANSITIONS
    packing: list[Cost] = []
    storing: list[Cost] = []
    for epoch in range(repeat + 1):
        for _ in range(steps // learner.hp.num_steps if epoch else 0):
            learner.collect()
        start = time.perf_counter()
        write = task.pending_write()
        packed = time.perf_counter()
        assert task.stored.storage is not None
        task.stored.storage.save([write])
        done = time.perf_counter()
        new = sum(map(len, getattr(write.blobs, "created", write.blobs).values())) / 1e6
        packing.append((new, 1e3 * (packed - start)))
        storing.append((new, 1e3 * (done - start)))
    show("Rekindle, the first checkpoint", storing[:1])
    show(f"Rekindle, after {steps} transitions more", storing[1:])
    show("  of which hashing and copying", packing[1:])
    task.finish()


def stable_baselines(folder: Path, repeat: int) -> None:
    """The whole memory, each time."""
    from stable_baselines3 import DQN

    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=TRANSITIONS, device="cpu")
    buffer = model.replay_buffer
    assert buffer is not None
    rng = np.random.default_rng(0)
    for name in ("observations", "next_observations"):
        getattr(buffer, name)[:] = rng.standard_normal(getattr(buffer, name).shape, dtype=np.float32)
    buffer.full = True
    costs: list[Cost] = []
    for _ in range(repeat):
        path = folder / "replay.pkl"
        start = time.perf_counter()
        model.save_replay_buffer(path)
        costs.append((path.stat().st_size / 1e6, 1e3 * (time.perf_counter() - start)))
    show("Stable-Baselines3 save_replay_buffer", costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ours(Path(folder), options.steps, options.repeat)
        stable_baselines(Path(folder), options.repeat)


if __name__ == "__main__":
    main()
