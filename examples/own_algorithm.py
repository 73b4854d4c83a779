"""REINFORCE with a learned baseline: Williams (1992), doi:10.1007/BF00992696."""

from rekindle import Task, log_real
from rekindle.tasks.algorithms.on_policy import on_policy_space
from rekindle.tasks.algorithms.on_policy_learner import OnPolicyLearner
from rekindle.tasks.experience.returns import average


class REINFORCELearner(OnPolicyLearner):
    hyperparameters = on_policy_space(
        lr=3e-3,
        advantage_clip=log_real(1.0, 10.0, default=5.0, help="largest size of an advantage"),  # name, prior, default
    )

    def policy_loss(self, log_probs, advantages, batch):
        clipped = advantages.clamp(-self.hp.advantage_clip, self.hp.advantage_clip)
        return -average(log_probs * clipped, batch.get("weights")), {}  # the second are further metrics


class REINFORCE(Task):
    """REINFORCE with a learned baseline, for every action space of Gymnasium."""

    name = "reinforce"
    learner = REINFORCELearner
