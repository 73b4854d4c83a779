"""A training of its own, with PyTorch: it resumes from its checkpoint folder, and reports each epoch.

rekindle tune command --space space.toml --trials 16 --epochs 1:27 -- \
    python torch_file.py --lr {lr} --epochs {epochs} --seed {seed} --dir {checkpoint}
"""

import argparse
import os

import rekindle
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dir", required=True)
arguments = parser.parse_args()
file = os.path.join(arguments.dir, "checkpoint.pt")
torch.manual_seed(arguments.seed)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
truth = torch.arange(8.0)
first = 1
if os.path.exists(file):
    saved = torch.load(file)  # tensors and numbers: by default, it runs no code of the file
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
    first = saved["epoch"] + 1
for epoch in range(first, arguments.epochs + 1):
    for _ in range(50):
        x = torch.randn(32, 8)
        loss = (model(x).squeeze(1) - x @ truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state | {"random": torch.get_rng_state()}, file)
    rekindle.report(epoch, return_=-loss, loss=loss)
