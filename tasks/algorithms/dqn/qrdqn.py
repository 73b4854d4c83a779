"""Quantile regression deep Q-learning (QR-DQN): Dabney et al. (2018), arXiv:1710.10044.

It is DQN with `distribution` "quantile". Default values are those of sb3-contrib, except that the
exploration's length does not depend on that of the training.
"""

from __future__ import annotations

from ....spaces import categorical, integer, log_real, maybe, ordinal
from ...networks.optimizers import optimizer_space
from ...task import Task
from ..off_policy import updates_choice
from .distributions import Quantiles, quantiles_choice
from .dqn import DQNLearner, dqn_space


class QRDQNLearner(DQNLearner):
    """P members of QR-DQN."""

    hyperparameters = dqn_space(
        lr=5e-5,
        optimizer=optimizer_space(lr=5e-5, eps=3.125e-4),  # 0.01 / batch_size
        n_step=ordinal(1, 3, 5, default=1, accept=(1, 1000), structural=True),
        quantiles=quantiles_choice(),
        double=categorical(False, True, default=False, structural=True),
        target_interval=integer(1, 5000, log=True, default=2500, accept=(1, 10**9)),  # 10,000 environment steps
        tau=log_real(0.003, 1.0, default=1.0, accept=(0.0, 1.0)),
        critic_loss=None,  # always Huber's
        max_grad_norm=maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=None),
        batch_size=ordinal(32, 64, 128, 256, default=32, accept=(1, 65536), structural=True),
        learning_starts=integer(1, 10**9, default=100, structural=True, search=False),
        num_updates=updates_choice(1),
    )
    distribution_of = classmethod(lambda cls, hp: Quantiles(hp))


class QRDQN(Task):
    """Deep Q-learning whose values are quantiles of returns, on Discrete actions.

    Dabney et al. (2018), arXiv:1710.10044. Double Q-learning, dueling and noisy networks, prioritized replay, n-step
    returns, memories and hindsight are options, as in DQN.
    """

    name = "qrdqn"
    version = 2
    learner = QRDQNLearner
