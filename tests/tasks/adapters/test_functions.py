"""Functions as tasks: exactness, names, and answers to what a function does wrong."""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import own_functions
import pytest
import rekindle
import torch
from own_functions import SPACE, collect, descend
from rekindle import Space, Store, Task, real, tune
from rekindle.tasks import load
from rekindle.tasks.adapters.functions import Hyperparameters
from rekindle.tasks.checkpoint.state import pack
from rekindle.tasks.compiled import loading
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.errors import BadResume, Diverged, NotData, NotInitialized
from rekindle.tasks.runtime.fingerprint import fingerprint
from rekindle.tasks.testing import ExactnessSuite
from support_path import SUPPORT

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "own_function.py"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rekindle.db'}"


class TestAFunction(ExactnessSuite):
    task = descend
    env = None
    path: ClassVar[list[str]] = [str(Path(own_functions.__file__).parent)]


class TestTheExample(ExactnessSuite):
    env = None
    path: ClassVar[list[str]] = [str(EXAMPLE.parent)]

    @pytest.fixture(autouse=True)
    def imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(EXAMPLE.parent)
        type(self).task = importlib.import_module("own_function").train


def test_the_example_has_at_most_25_lines_from_classifier_to_confirmed_study() -> None:
    (docstring, *code) = ast.parse(EXAMPLE.read_text()).body
    lines = EXAMPLE.read_text().splitlines()[docstring.end_lineno :]
    assert "confirm(" in ast.unparse(code[-1])
    assert len([line for line in lines if line.strip()]) <= 25


@pytest.mark.slow
def test_the_example_runs_as_a_script_whose_study_other_processes_share(tmp_path: Path) -> None:
    script = EXAMPLE.read_text().replace("trials=16, epochs=(1, 27)", "trials=3, epochs=(1, 2), progress=False")
    script = script.replace("top=2, seeds=5", "top=1, seeds=3, progress=False")
    (tmp_path / "digits_script.py").write_text(script)

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        environment = {**os.environ, "REKINDLE_STORAGE": f"sqlite:///{tmp_path / 'digits.db'}"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "'winner':" in run("digits_script.py")
    assert "digits_script:train" in run("-m", "rekindle", "trials", "digits_script:train")
    run("-m", "rekindle", "extend", "digits_script:train", "--trials", "4")
    run("-m", "rekindle", "worker", "--study", "digits_script:train")
    with Store(f"sqlite:///{tmp_path / 'digits.db'}") as store:
        rows = store.trials("digits_script:train")
        assert [row.state for row in rows].count("complete") >= 1
        assert len(rows) == 4
        assert all(row.state in ("complete", "pruned") for row in rows)


def test_global_generators_are_seeded_by_seed_and_epoch() -> None:
    drawn: list[tuple[float, ...]] = []

    @rekindle.task(space=Space(), objective="x")
    def draw(hp: Any, state: Any, seed: int) -> tuple[None, dict[str, float]]:
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1)), rekindle.rng(seed).random()))
        return None, {"x": 0.0}

    for seed in (1, 1, 2):
        draw(seed=seed).init().fit(2)
    first, second, again, _, other, _ = drawn
    assert first == again
    assert first[:3] != second[:3]
    assert first[3] == second[3]  # its path has no epoch
    assert len({*first, *second, *other}) == 11


def test_seeds_of_confirmations_fit_generators_of_31_bits() -> None:
    seeds: list[int] = []

    @rekindle.task(space=Space(lr=rekindle.log_real(1e-4, 1.0)), objective="x")
    def draw(hp: Any, state: Any, seed: int) -> tuple[None, dict[str, float]]:
        np.random.seed(seed)
        seeds.append(seed)
        return None, {"x": hp.lr}

    for seed in (2**31 - 1, 2**31, 2**63 - 1):
        assert draw(seed=seed).init().fit(1)["x"] == pytest.approx(0.01)  # the median, where there is no default
    assert seeds[0] == 2**31 - 1
    assert len({*seeds}) == 3
    assert max(seeds) < 2**31


def test_a_call_gets_data_not_the_objects_that_the_last_call_returned() -> None:
    kept: list[Any] = []

    @rekindle.task(space=Space(), objective="x")
    def keep(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, float]]:
        kept.append(state)
        return {"array": torch.nn.Parameter(torch.ones(1)), "pair": (1, 2)}, {"x": 1}

    task = keep().init()
    task.fit(2)
    assert kept[0] is None
    assert type(kept[1]["array"]) is torch.Tensor
    assert kept[1]["pair"] == (1, 2)
    assert (task.evaluate(), task.metrics) == (1.0, {"iterations": 2.0, "x": 1.0})


@pytest.mark.parametrize(
    ("name", "env", "uses"),
    [
        ("own_functions:climb", None, False),
        ("command:" + '{"run":["true","{epochs}","{checkpoint}"],"space":[]}', None, False),
        ("sb3:PPO", "MountainCarContinuous-v0", True),
        ("sb3:PPO", "Taxi-v3", False),
        ("ppo", "Taxi-v3", True),
    ],
)
def test_kernels_are_only_loaded_for_what_they_compute(name: str, env: str | None, uses: bool) -> None:
    assert load(name).learner.uses_kernels(EnvSpec.of(env)) == uses
    assert ("kernels" in fingerprint(torch.device("cpu"), uses)) == uses


def test_a_function_trains_without_kernels(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    monkeypatch.delattr(loading, "_load")
    study = tune(own_functions.climb, trials=1, epochs=1, storage=sqlite_url, study="s", progress=False)
    assert study.best is not None


@pytest.mark.slow
def test_a_new_machine_compiles_no_kernels_for_a_function(sqlite_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rekindle", "tune", "own_functions:climb", "--trials", "2", "--epochs", "1"]
    settings = {"PYTHONPATH": SUPPORT, "NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "REKINDLE_STORAGE": sqlite_url}
    subprocess.run(command, env=os.environ | settings, cwd=tmp_path, capture_output=True, check=True)
    assert not (tmp_path / "kernels").exists()


def test_a_study_in_this_process_finds_a_function_defined_anywhere(sqlite_url: str) -> None:
    @rekindle.task(space=SPACE, objective="x")
    def local(hp: Any, state: Any, seed: int) -> tuple[None, dict[str, float]]:
        return None, {"x": hp.lr}

    study = tune(local, trials=3, epochs=1, storage=sqlite_url, study="s", progress=False)
    assert study.best is not None
    assert study.best.value == study.best.hyperparameters["lr"]
    assert study.config.task == f"{__name__}:{local.learner.definition.__qualname__}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("__main__:train", "must be at the top level of a module, but __main__:train was defined in a notebook, at a"),
        (
            "own_functions:outer.<locals>.train",
            "defined in a notebook, at a prompt or inside a function; write it into",
        ),
        ("own_functions:SPACE", "but own_functions:SPACE is Space"),
        ("ast:parse", r"ast:parse is <function parse.*>; decorate the function with @rekindle.task\(...\)"),
        ("train.py", r"`rekindle tune command --space FILE -- python train.py ...`; a function in train.py is train:F"),
        ("../own_functions.py:train", "names a file, not a module; write own_functions:train, in the folder"),
        ("own_functions:descent", "the task 'own_functions:descent' cannot be imported"),
    ],
)
def test_a_function_that_another_process_cannot_find_is_explained(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("raise SystemExit(3)", r"cannot be imported: SystemExit\(3\)"),
        ("raise RuntimeError('no licence')", r"cannot be imported: RuntimeError\('no licence'\)"),
        ("import no_such_module", "cannot be imported: No module named 'no_such_module'$"),
        ("", "No module named 'my_training'; run this in the folder that has it, or add that to PYTHONPATH"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, message: str
) -> None:
    if content:
        (tmp_path / "my_training.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=message):
        load("my_training:train")


def test_functions_are_found_by_module_and_name() -> None:
    assert load("own_functions:descend") is descend
    assert descend.name == "own_functions:descend"
    assert descend.__doc__ == "Descend to 3 with noise from every generator there is."
    assert (descend.learner.objective, descend.learner.direction) == ("error", "minimize")


def test_changed_code_is_noted_when_a_task_resumes(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        for digest in ("a1", "b2"):
            monkeypatch.setattr(descend.learner, "files", lambda digest=digest: {"script:train": digest})
            task = descend(storage=store).init()
            task.fit(task.epochs + 1)
            task.release()
    assert task.inexact == ["code of script:train a1 -> b2"]


def returning(value: Any) -> type[Task]:
    @rekindle.task(space=SPACE, objective="accuracy")
    def train(hp: Any, state: Any, seed: int) -> Any:
        return value(hp) if callable(value) else value

    return train


def test_hyperparameters_are_also_entries() -> None:
    hp = Hyperparameters.of(Space(lr=real(0, 1), net=Space(width=real(1, 8))), {"lr": 0.2, "net": {"width": 4}})
    assert (hp["lr"], hp["net"]["width"], {**hp}) == (0.2, 4, {"lr": 0.2, "net": hp.net})


FORM = r"must return its state and its metrics, such as \(state, \{'accuracy': 0.9\}\)"


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, NotData, FORM + ", but returned NoneType"),
        ({"accuracy": 1.0}, NotData, FORM + ", but returned dict"),
        ((None, 0.5), NotData, FORM + r", but returned \(NoneType, float\)"),
        ((None, {"accuracy": [1.0]}), NotData, FORM + "; a metric is one number, but 'accuracy' is a list"),
        ((None, {"loss": 1.0}), NotData, FORM + "; its objective is 'accuracy', but it returned 'loss'"),
        (lambda hp: sys.exit(3), NotData, FORM + r", but called sys.exit\(3\)"),
        ((None, {}), NotData, "but it returned no metric"),
        ((None, {"accuracy": float("nan")}), Diverged, "accuracy became nan in epoch 1; try other hyperparameters"),
        (({"net": torch.nn.Linear(1, 1)}, {"accuracy": 1}), NotData, r"the state\['net'\] is a Linear"),
        (lambda hp: hp["lrr"], AttributeError, "the space has no hyperparameter 'lrr'; did you mean lr?"),
        (lambda hp: hp.lrr, AttributeError, "the space has no hyperparameter 'lrr'; did you mean lr?"),
        (lambda hp: hp.noise.scal, AttributeError, "no hyperparameter 'scal'; did you mean scale?"),
    ],
)
def test_returned_values_are_checked(value: Any, error: type[Exception], message: str, sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        task = returning(value)(storage=store).init()
        with pytest.raises(error, match=message):
            task.fit(1)
        with pytest.raises(BadResume):
            task.fit(1)


@pytest.mark.parametrize(
    ("state", "part"),
    [
        ({"log": [np.zeros(300)] * 3, "weights": np.zeros(500)}, "log"),
        ({"log": {"loss": np.zeros(900)}, "weights": np.zeros(500)}, "log.loss"),
        ([np.zeros(500)] * 3, "many arrays"),
        ({"log": [1.5] * 5000}, "lists and numbers"),
    ],
)
def test_a_state_that_is_too_large_names_the_part_with_most_of_its_bytes(state: Any, part: str) -> None:
    task = returning((state, {"accuracy": 1.0}))
    task.learner.largest = 1000
    with pytest.raises(NotData, match=f"most of them in {part}; keep less"):
        task().init().fit(1)


def test_a_state_that_grows_without_end_is_refused_and_its_last_checkpoint_stays(
    monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    monkeypatch.setattr(collect.learner, "largest", 20_000)
    with Store(sqlite_url) as store:
        task = collect(storage=store).init()
        task.fit(2)
        digest = task.digest
        message = (
            "the state of own_functions:collect may have 20,000 bytes, but after epoch 3 it has 2.*, most of them in "
            "rows; keep less there, or give the task a higher largest="
        )
        with pytest.raises(NotData, match=message):
            task.fit(3)
        resumed = collect(storage=store).init()
        assert (resumed.epochs, resumed.digest) == (2, digest)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: rekindle.task(space=SPACE, objective="a:max"), ValueError, "NAME:maximize or NAME:minimize, but got"),
        (lambda: rekindle.task(space={"lr": real(0, 1)}, objective="a"), ValueError, "space must be a Space"),  # type: ignore[arg-type]
        (
            lambda: rekindle.task(space=Space(), objective="a", version=0),
            ValueError,
            "version must be an integer of at",
        ),
        (
            lambda: rekindle.task(space=Space(), objective="a", largest=-1),
            ValueError,
            "largest must be an integer of at",
        ),
        (lambda: rekindle.task(space=Space(), objective="a", bounds=("0", 1)), ValueError, r"but got \('0', 1\)"),  # type: ignore[arg-type]
        (lambda: rekindle.task(space=Space(), objective="a")(3), TypeError, "makes a function a task, but got 3"),  # type: ignore[arg-type]
        (
            lambda: rekindle.task(space=SPACE, objective="a")(lambda hp: (None, {})),
            TypeError,
            r"takes hp, state, seed, and epoch and device if it names them, but .*\(hp\): too many positional",
        ),
        (lambda: descend().init().evaluate(), NotInitialized, "measures error as it trains; train at least one epoch"),
    ],
)
def test_errors_of_a_definition_say_what_is_wrong(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_equal_states_have_equal_digests_in_a_cohort_and_alone() -> None:
    tasks = [descend(seed=seed).init(lr=0.2) for seed in (1, 2)]
    rekindle.Cohort(tasks).fit(3)
    alone = descend(seed=2).init(lr=0.2)
    alone.fit(3)
    assert pack(alone.state_dict()).digest == tasks[1].digest


@rekindle.task(space=SPACE, objective="threads")
def count_threads(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the number of threads that JAX would start with."""
    return None, {"threads": float(os.environ.get("NPROC", "nan"))}


def test_jax_starts_with_one_thread_in_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "7")
    task = count_threads().init()
    task.fit(1)
    assert (task.evaluate(), os.environ["NPROC"]) == (1.0, "7")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux restricts a process to some processors")
def test_a_function_that_uses_jax_has_the_same_bits_on_any_number_of_processors() -> None:
    train = """if True:
    import os, sys
    os.sched_setaffinity(0, {*sorted(os.sched_getaffinity(0))[:int(sys.argv[1])]})
    from own_jax_functions import regress
    task = regress(seed=1).init()
    task.fit(2)
    print(task.digest)
    """
    digests = {
        subprocess.run(
            [sys.executable, "-c", train, number], cwd=SUPPORT, check=True, capture_output=True, text=True
        ).stdout
        for number in ("1", "2", "4")
    }
    assert len(digests) == 1


def test_settings_and_lists_that_a_function_changes_stay_with_it() -> None:
    task, folder = own_functions.disturb(seed=1).init(), Path.cwd()
    task.fit(3)
    assert [metrics["sizes"] for _, metrics in task.history] == [3, 3, 3]
    assert task.hyperparameters == {"sizes": [8, 8]}
    assert torch.get_default_dtype() is torch.float32
    assert (Path.cwd(), "DISTURBED" in os.environ) == (folder, False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "count_digits",
            r"whole numbers have at most 4000 digits, but the state\['number'\] has more; store its bytes",
        ),
        ("measure_digits", "a metric is one number, but 'digits' is a int"),
    ],
)
def test_numbers_beyond_what_is_stored_are_named(name: str, words: str) -> None:
    with pytest.raises(NotData, match=words):
        getattr(own_functions, name)(seed=1).init().fit(1)
