"""Studies that commands and Python create from the same options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rekindle
from rekindle.spaces import unflatten
from rekindle.studies.analysis.learning import LEARNED
from studying import TINY

SHAPED = {"model.width": 8, "model.layers": 1, "model.activation": "relu", "normalize_obs": False}
FIXED = {name: value for name, value in TINY.items() if name not in SHAPED}


def test_a_study_learns_from_another_where_a_warm_start_decides_its_networks(
    sqlite_url: str, cli: Callable[..., Any]
) -> None:
    common: dict[str, Any] = {"storage": sqlite_url, "epochs": 1, "scheduler": "none", "progress": False}
    fixed = unflatten(FIXED)
    rekindle.tune("ppo", "CartPole-v1", study="old", trials=8, sampler="random", fixed=fixed, **common)
    with rekindle.Store(sqlite_url) as store:
        policy = rekindle.PPO("CartPole-v1", storage=store).init(**unflatten({**FIXED, **SHAPED}))
        policy.fit(1)
        options = {"trials": 1, "warm_start": policy, "learn_from": "old", "fixed": fixed}
        rekindle.tune("ppo", "CartPole-v1", study="python", **options, **common)
        words = [word for name, value in FIXED.items() for word in ("--set", f"{name}={value}")]
        words += ["--trials", "1", "--epochs", "1", "--scheduler", "none", "--warm-start", policy.uid]
        command = ["create", "ppo", "CartPole-v1", "--study", "command", *words, "--learn-from", "old"]
        status, _, errors = cli(*command, "--storage", sqlite_url)
        assert status == 0, errors
        by_command, by_python = (store.study(name).config for name in ("command", "python"))
    assert by_command == by_python
    assert len(by_command["options"][LEARNED]) == 1
    assert by_command["fixed"] == {**FIXED, **SHAPED}
