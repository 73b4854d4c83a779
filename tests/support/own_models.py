"""An algorithm of Stable-Baselines3 with a policy of the user's own."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.policies import ActorCriticPolicy


class Tanhless(ActorCriticPolicy):
    """A policy with rectifiers."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{**options, "net_arch": [24], "activation_fn": torch.nn.ReLU})


class Wide(A2C):
    """A2C with that policy."""

    def __init__(self, policy: Any, env: Any, **options: Any):
        super().__init__(Tanhless, env, **options)


def nothing() -> None:
    """Be no algorithm."""
