"""CrossQ: Bhatt et al. (2024), arXiv:1902.05605.

It is SAC without target networks: policy and critics have batch renormalization, whose moments in the critics are those
of a batch and its next observations together. Policy and entropy coefficients move once in `policy_delay` gradient
steps. Default values are those of sb3-contrib, except for `learning_starts` (100 there).
"""

from __future__ import annotations

from ....spaces import ordinal
from ...networks.optimizers import optimizer_space
from ...task import Task
from .actions import SoftNumbers
from .entropy import entropy_space
from .learner import UNSEARCHED, actor_critic_space, delay_choice, model_space
from .renorm_networks import RenormActorCritics
from .sac import SACLearner


class CrossQLearner(SACLearner):
    """P members of CrossQ."""

    networks, action_form = RenormActorCritics, SoftNumbers
    only_vectors = "batch renormalization has neither memory nor encoder"
    hyperparameters = actor_critic_space(
        lr=1e-3,
        optimizer=optimizer_space(lr=1e-3, eps=1e-8, beta1=0.5),
        model=model_space(
            critic_width=ordinal(
                *(256, 512, 1024, 2048),
                default=1024,
                accept=(2, 65536),
                when={"critic_hidden": None},
                help="width of the critics' layers",
                **UNSEARCHED,
            )
        ).without(block="its policy has batch renormalization alone; use sac"),
        critic="its critics have batch renormalization alone; use sac",
        entropy=entropy_space(),
        policy_delay=delay_choice(3, 4, "the actor"),
        **dict.fromkeys(("tau", "target_update_interval"), "it has no target networks; use sac"),
        use_sde="it has no state-dependent exploration; use sac or tqc",
    )


class CrossQ(Task):
    """CrossQ, soft actor-critic without target networks, for bounded Boxes.

    Bhatt et al. (2024), arXiv:1902.05605. It acts in Dicts and Tuples of Boxes, too. Prioritized replay, n-step
    targets, a running reward scale, signals and cloning are options, as in SAC. It has no memory, and takes no images.
    """

    name = "crossq"
    version = 3
    learner = CrossQLearner
