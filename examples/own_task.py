"""A line fitted to noisy points: a task of one's own, without an environment."""

import torch
from rekindle import Space, Task, log_real, real
from rekindle.tasks import BaseLearner


class LineLearner(BaseLearner):
    """Slope and intercept, learned by stochastic gradient descent."""

    hyperparameters = Space(lr=log_real(1e-3, 1.0, default=0.1), momentum=real(0.0, 0.99, default=0.5))
    parts, objective, direction, unit = ("network", "optimizer"), "error", "minimize", "points"
    batched = False  # members are trained one by one
    points: int  # how many were seen

    def build(self):
        self.epoch_size = 320  # points
        with self.torch_seed("weights"):
            self.network = torch.nn.Linear(1, 1)
        lr, momentum = float(self.hp.lr), float(self.hp.momentum)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=lr, momentum=momentum)

    def iterate(self):
        with self.torch_seed("points", self.points):
            x = torch.rand(32, 1)
            y = 3 * x - 1 + 0.1 * torch.randn(32, 1)
        loss = (self.network(x) - y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.points += len(x)
        return {"loss": loss.detach()[None]}

    @torch.no_grad()
    def score(self):
        x = torch.linspace(0, 1, 50)[:, None]
        return (self.network(x) - (3 * x - 1)).square().mean()[None].double().numpy()


class Line(Task):
    """A line fitted to noisy points."""

    name = "line"
    learner = LineLearner
