"""Random settings of every option: resumed, alone and in a cohort they give the same training, or are refused.

Tests of single options do not try combinations; these tests find what fails only together.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import pytest
import torch
from rekindle import Cohort, EnvSpec, Task
from rekindle.spaces.choices import Categorical
from rekindle.spaces.dimension import Dimension, Maybe
from rekindle.tasks import load
from rekindle.tasks.checkpoint.state import pack, unpack
from rekindle.tasks.signals.demonstrations import Demonstrations

ENVIRONMENTS = {
    "choice": EnvSpec("CartPole-v1"),
    "numbers": EnvSpec("Pendulum-v1"),
    "hybrid": EnvSpec("own_envs:HybridWalk-v0"),
    "bits": EnvSpec("own_envs:BitsWalk-v0"),
    "image": EnvSpec("own_envs:ImageWalk-v0"),
    "image, numbers": EnvSpec("own_envs:Square-v0", {"side": 6, "box": True}),
    "image beside numbers": EnvSpec("own_envs:CameraWalk-v0"),
    "goals": EnvSpec("goal_envs:Rooms-v0"),
}
ALGORITHMS = ("ppo", "ppo2", "a2c", "svpg", "svpg-ppo", "dqn", "sac", "sac")
SMALL: dict[str, Any] = {
    **{"epoch_steps": 64, "num_steps": 16, "max_rollout_steps": 24, "num_minibatches": 2, "critic.num_minibatches": 2},
    **{"learning_starts": 32, "batch_size": 32, "buffer_size": 96, "num_particles": 2, "sde_sample_freq": 4},
    **{"model.width": 16, "model.sequence_length": 4, "model.burn_in": 2, "cloning.batch_size": 8},
    **{"icm.width": 16, "rnd.width": 16, "gail.width": 16, "gail.code_width": 8, "min_steps": None},
}


@lru_cache
def demonstrations(family: str) -> Demonstrations:
    """What a policy that has learned nothing sees and does."""
    encoder = {"encoder": "flat"} if "image" in family else {}
    task = load("ppo")(ENVIRONMENTS[family], seed=77).init(model={"width": 16, **encoder}, num_steps=16, num_envs=2)
    learner: Any = task.build_learner([task])
    rollout = learner.agent.collect(learner.envs, 0)
    obs, actions = (x[0].transpose(0, 1).flatten(0, 1).numpy() for x in (rollout.obs[:, :-1], rollout.actions))
    begins = torch.cat([torch.ones_like(rollout.ended[:1]), rollout.ended[:-1]])[:, 0].T.flatten().numpy()
    return Demonstrations(obs, actions, begins)


def settings(task: type[Task], family: str, draw: random.Random, shown: Demonstrations | None) -> dict[str, Any]:
    """Return values of all hyperparameters, most of them at their defaults."""
    often = draw.choice([0.15, 0.3, 0.5])

    def choose(path: str, dimension: Dimension) -> Any:
        changes = draw.random() < often
        if path in ("gail.use", "cloning.use"):
            return shown is not None and changes
        if path == "demonstrated_steps":
            return dimension.default if shown is None else shown.steps
        if path.endswith("encoder"):
            return draw.choice(["small", "flat", "impala"]) if "image" in family else dimension.default
        if path == "min_rollouts":
            return 2 if changes and draw.random() < 0.3 else None
        if path == "num_envs":
            return draw.choice([1, 2, 2])
        if path in SMALL:
            return SMALL[path]
        if isinstance(dimension, Maybe):
            return dimension.dimension.at(draw.random()) if changes else dimension.default
        if isinstance(dimension, Categorical):
            return dimension.at(draw.random()) if changes else dimension.default
        return dimension.default

    return dict(task.learner.space_in(ENVIRONMENTS[family]).decide(choose))


def drawn(number: int) -> list[Task]:
    """Return three seeds of settings that are not refused."""
    draw = random.Random(number)
    task, family = load(draw.choice(ALGORITHMS)), draw.choice(list(ENVIRONMENTS))
    while True:
        output = demonstrations(family) if draw.random() < 0.5 else None
        try:
            values = settings(task, family, draw, output)
            made = [task(ENVIRONMENTS[family], seed=seed, demonstrations=output).init(**values) for seed in range(3)]
        except ValueError:  # what does not go together is refused before anything is trained
            task = load(draw.choice(ALGORITHMS))
        else:
            return made


@pytest.mark.slow
@pytest.mark.parametrize("number", range(60))
def test_alone_resumed_and_in_company_it_is_one_training(number: int) -> None:
    (whole, *_), (again, *_), company = (drawn(number) for _ in range(3))
    whole.fit(1)
    packed = pack(whole.state_dict())
    whole.fit(3)
    again.load_state_dict(unpack(packed.manifest, packed.blobs.__getitem__))
    again.fit(3)
    Cohort(company[::-1]).fit(3)
    assert [again.digest, company[0].digest] == [whole.digest] * 2, whole.hyperparameters
    assert again.evaluate(2) == whole.evaluate(2)
