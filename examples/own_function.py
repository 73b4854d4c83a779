"""A classifier of handwritten digits in PyTorch, from the training function to a confirmed study."""

import rekindle
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

IMAGES, LABELS = (torch.tensor(data) for data in load_digits(return_X_y=True))
TRAINED, TESTED = torch.arange(1437), torch.arange(1437, 1797)
SPACE = rekindle.Space(lr=rekindle.log_real(1e-3, 1.0, default=0.1), momentum=rekindle.real(0.0, 0.99, default=0.9))


@rekindle.task(space=SPACE, objective="accuracy", bounds=(0, 1))
def train(hp, state, seed):
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=hp.lr, momentum=hp.momentum)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state["moments"]})  # with this trial's lr
    for batch in TRAINED[torch.randperm(1437)].split(64):
        optimizer.zero_grad()
        cross_entropy(model(IMAGES[batch].float() / 16), LABELS[batch]).backward()
        optimizer.step()
    accuracy = (model(IMAGES[TESTED].float() / 16).argmax(1) == LABELS[TESTED]).float().mean()
    return {"model": model.state_dict(), "moments": optimizer.state_dict()["state"]}, {"accuracy": accuracy}


if __name__ == "__main__":
    study = rekindle.tune(train, trials=16, epochs=(1, 27))
    print(study.confirm(top=2, seeds=5))
