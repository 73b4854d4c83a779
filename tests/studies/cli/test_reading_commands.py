"""Commands that read rows start fast: they import neither torch nor optuna, nor what these bring."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.storage.store import Store
from rekindle.studies.tuning import Study
from rekindle.tasks import load
from studying import run, surrogate, tiny

HEAVY = ("torch", "optuna", "gymnasium", "numba", "scipy", "sklearn", "pandas", "tqdm", "ray", "matplotlib", "psutil")
STUDIES = ("searched", "population", "several")
CODE = f"""
import json, sys
from rekindle.studies.cli import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0
    assert "tiny" not in words or "numpy" not in sys.modules  # which intervals need, and nothing else
    print("imported", *[name for name in (*{HEAVY}, "rekindle.spaces.space") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A searched and confirmed study, a population, and a study with several environments, as far as they are known."""
    url = f"sqlite:///{tmp_path_factory.mktemp('reading')}/db"
    run(url, surrogate(2, epochs=(1, 3, 3)), "searched")
    Study("searched", url).confirm(top=1, seeds=3, progress=False)
    members = {"scheduler": "pbt", "population": 2, "explore": "pb2", "epochs": 6}
    several = study_config(load("ppo"), ["CartPole-v1", "Acrobot-v1"], across="iqm", seeds=2, epochs=(1, 4))
    population = study_config(load("ppo"), "CartPole-v1", **members)  # type: ignore[arg-type]
    with Store(url) as store:
        for name, config in (("population", population), ("several", several), ("tiny", tiny(2))):
            start_study(store, name, config)
            StudyRunner(store, name).advance()
    return url


def test_a_command_that_reads_rows_imports_nothing_slow(url: str) -> None:
    with Store(url) as store:
        uid = store.tasks()[0].uid
    lines = [[command, name] for name in ("tiny", *STUDIES) for command in ("trials", "watch")] + [
        ["status"],
        ["show", uid],
        ["tasks"],
    ]
    words = [[*line, *form, "--storage", url] for line in lines for form in ([], ["--json"])]
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(words)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert [line for line in result.stdout.splitlines() if line.startswith("imported")] == ["imported"] * len(words)
