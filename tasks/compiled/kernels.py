"""All kernels, which importing this module compiles or loads."""

from __future__ import annotations

from .control import cosine_and_sine, play, step
from .descent import clip, descend, optimize
from .off_policy import find_children, n_step_batch, set_children, store
from .policies import act, differentiate, log_probs, values
from .renorm import infer
from .replay_descent import descend_actor_critic, descend_q

__all__ = [
    "act",
    "clip",
    "cosine_and_sine",
    "descend",
    "descend_actor_critic",
    "descend_q",
    "differentiate",
    "find_children",
    "infer",
    "log_probs",
    "n_step_batch",
    "optimize",
    "play",
    "set_children",
    "step",
    "store",
    "values",
]
