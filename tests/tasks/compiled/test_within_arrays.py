"""Kernels read and write within their arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import rekindle
for task, env in ((rekindle.PPO, "CartPole-v1"), (rekindle.A2C, "Pendulum-v1"), (rekindle.DQN, "CartPole-v1"),
                  (rekindle.SAC, "Pendulum-v1")):
    print(task(env, seed=0).init().fit(1), flush=True)
"""


@pytest.mark.slow
def test_kernels_pass_the_checks_of_numba(tmp_path: Path) -> None:
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", TRAIN], env=os.environ | checked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # an IndexError otherwise
    assert len(done.stdout.splitlines()) == 4
