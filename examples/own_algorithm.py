"""REINFORCE with a learned baseline: Williams (1992), doi:10.1007/BF00992696."""

from rekindle import Task, log_real
from rekindle.tasks.algorithms.on_policy import make_agent, on_policy_space
from rekindle.tasks.experience.returns import standardize
from rekindle.tasks.learner import Learner
from rekindle.tasks.networks.optimizers import Optimizer, coefficient, descend, learning_rates


class REINFORCELearner(Learner):
    hyperparameters = on_policy_space(lr=3e-3, advantage_clip=log_real(1.0, 10.0, default=5.0))  # name, prior, default
    parts = ("optimizer",)  # state beside the agent's

    def build(self):
        self.agent = make_agent(self)
        self.optimizer = Optimizer(self.agent.policy.parameters.vector, self.hp.optimizer)

    def iterate(self):
        hp, lr = self.hp, learning_rates(self.hp, self.env_steps, self.agent.policy.parameters)
        rollout = self.agent.collect(self.envs, self.iterations)
        self.env_steps += hp.num_steps * hp.num_envs
        losses, metrics = self.loss(self.agent.advantages(rollout, hp.gamma, hp.gae_lambda))
        descend(self.agent.policy.parameters, self.optimizer, losses, lr.parameters, hp.max_grad_norm)
        return {**metrics, **lr.metrics}

    def loss(self, batch):
        hp, policy = self.hp, self.agent.policy
        params, values = policy(batch)
        log_probs, entropy = policy.distribution.log_prob_and_entropy(params, batch["actions"])
        advantages = standardize(batch["advantages"]).clamp(-hp.advantage_clip, hp.advantage_clip)
        policy_loss, value_loss = -(log_probs * advantages).mean(1), (values - batch["returns"]).square().mean(1)
        ent_coef = coefficient(hp.ent_coef, hp.ent_coef_schedule, self.env_steps)
        losses = policy_loss + coefficient(hp.vf_coef) * value_loss - ent_coef * entropy.mean(1)
        return losses, {"policy_loss": policy_loss, "value_loss": value_loss}


class REINFORCE(Task):
    """REINFORCE with a learned baseline, for every action space of Gymnasium."""

    name = "reinforce"
    learner = REINFORCELearner
