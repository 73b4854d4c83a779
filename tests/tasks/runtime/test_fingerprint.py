"""Dependencies of last bits: the user's own code, but not a matrix's place in memory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rekindle import PPO, EnvSpec, Store
from rekindle.tasks.runtime.fingerprint import InexactWarning, code_of, products_are_exact

PLACES = """
import rekindle
import torch
torch.set_num_threads(1)
for batch in (2, 3, 8, 33, 64):
    for inputs in (2, 5, 10, 17, 33, 64):
        for outputs in (2, 5, 7, 17, 33, 64):
            x, weight = torch.randn(6, batch, inputs), torch.randn(6, inputs, outputs)
            together = torch.bmm(x, weight)
            for i in range(6):
                alone = torch.bmm(x[i : i + 1].clone(), weight[i : i + 1].clone())
                assert torch.equal(alone[0], together[i]), (batch, inputs, outputs, i)
"""


TRAIN = """
import sys
from rekindle import PPO, EnvSpec, Store
spec = EnvSpec("CartPole-v1", wrappers=[{"entry_point": "my_wrapper:Same"}])
task = PPO(spec, storage=Store(sys.argv[1])).init(epoch_steps=64, num_steps=16, num_envs=2)
task.fit(task.epochs + 1)
print(task.epochs, task.inexact, task.digest)
"""


@pytest.mark.slow
def test_edited_code_of_an_environment_is_said_when_a_task_resumes(tmp_path: Path) -> None:
    file = tmp_path / "my_wrapper.py"
    file.write_text("import gymnasium\nclass Same(gymnasium.Wrapper):\n    pass\n")
    before = hashlib.sha256(file.read_bytes()).hexdigest()[:12]

    def train() -> str:
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, "sqlite:///x.db"], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout

    assert train().startswith("1 [] ")
    assert train().startswith("2 [] ")
    file.write_text(file.read_text() + "    reward = 2\n")
    after = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    assert train().startswith(f"3 ['code of my_wrapper {before} -> {after}'] ")


def test_a_task_that_resumes_with_other_code_is_not_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_wrapper.py").write_text("import gymnasium\nclass Same(gymnasium.Wrapper):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = EnvSpec("CartPole-v1", wrappers=[{"entry_point": "own_wrapper:Same"}])
    with Store(f"sqlite:///{tmp_path}/db") as store:
        for changes, digest in (([], "a"), ([], "a"), (["code of own_wrapper a -> b"], "b")):
            monkeypatch.setattr("rekindle.tasks.runtime.fingerprint._digest", lambda _, digest=digest: digest)
            task = PPO(spec, storage=store).init(epoch_steps=64, num_steps=16, num_envs=2)
            assert task.inexact == changes
            task.fit(task.epochs + 1)
            task.close()


def test_the_recorded_code_is_that_of_the_users_modules(tmp_path: Path) -> None:
    assert code_of([__name__, "rekindle.tasks", "gymnasium.envs", "__main__", "not.imported", "sys"]) == {
        f"code of {__name__}": hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    }
    assert EnvSpec("vector/my.envs:ns/Walk-v0", wrappers=[{"entry_point": "my.wraps:Same"}]).modules == {
        "my.envs",
        "my.wraps",
    }
    assert EnvSpec.none().modules == set()


def test_products_do_not_depend_on_the_place_in_memory_once_the_package_is_imported() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MKL")}
    subprocess.run([sys.executable, "-c", PLACES], env=clean, check=True)


def test_products_that_depend_on_the_place_in_memory_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    product = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda x, y: product(x, y) * (1 + 1e-6 * (len(x) > 1)))
    products_are_exact.cache_clear()
    with pytest.warns(InexactWarning, match="import rekindle before torch computes anything"):
        assert not products_are_exact()
    products_are_exact.cache_clear()
