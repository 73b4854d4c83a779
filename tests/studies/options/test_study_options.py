"""Options: one declaration gives the command's option, the run file's key, the keyword and the stored entry."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import rekindle
from rekindle.studies.cli.parsers import make_parser
from rekindle.studies.cli.run_files.reading import expand, places
from rekindle.studies.engine.runner import MUTABLE
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig
from rekindle.studies.options.entries import count
from rekindle.studies.options.option import Group, Option, words
from rekindle.studies.options.study_options import BOUNDS, EXTENDED, STUDY, StudyOptions, entries_of
from rekindle.studies.options.worker_options import WORKER
from rekindle.studies.study.stored_form import invalid_field
from rekindle.tasks import load

GIVEN = {  # a value as a keyword takes it, and its entry in a stored configuration; the others are counts
    "constraint": ("episode_length <= 400", ["episode_length<=400"]),
    "budget": ("2h", {"seconds": 7200}),
    "goal": ("return:475", {"return": 475.0}),
    "plateau": (20, 20),
    "trial_time": ("30m", 1800.0),
    "weight": ("3", 3.0),
    "grid_points": (4, 4),
    "snapshots": ("best:5", "best:5"),
}


def same(one: Any, other: Any) -> bool:
    return list(one) == list(other) if isinstance(one, list | tuple) else bool(one == other)


@pytest.mark.parametrize("name", STUDY)
def test_an_option_has_one_name_and_one_default(name: str) -> None:
    option = STUDY[name]
    for command in ("tune", "create"):
        parser = make_parser().commands[command]
        path = f"{option.group.section}.{name}" if option.group.section else name
        action = places(parser)[path]
        assert (action.dest, action.option_strings) == (name, [f"--{name.replace('_', '-')}"])
        assert same(action.default, option.default) or (action.default, option.default) == ([], ())
        assert action.metavar == (option.placeholder or None)
        assert option.group.title in {group.title for group in parser._action_groups if action in group._group_actions}
    for function in (rekindle.tune, study_config):
        assert same(signature(function).parameters[name].default, option.default)


@pytest.mark.parametrize("name", [name for name, option in STUDY.items() if option.entry])
def test_an_entry_is_stored_and_checked(name: str) -> None:
    value, entry = GIVEN.get(name, (5, 5))
    sampler = {"sampler": "grid", "search": ["gamma"]} if name == "grid_points" else {}
    config = study_config(load("ppo"), "CartPole-v1", epochs=(1, 4), **sampler, **{name: value})  # type: ignore[arg-type]
    assert config.options[name] == entry
    form = json.loads(json.dumps(config.to_json()))
    assert invalid_field(form) == ""
    form["options"][name] = [object]
    assert invalid_field(form).startswith(f"its options.{name} is ")


@pytest.mark.parametrize(
    "name", [name for name, hint in get_type_hints(StudyOptions).items() if hint in (int, int | None)]
)
def test_a_number_that_is_no_integer_is_refused_by_name(name: str) -> None:
    more: dict[str, Any] = {"scheduler": "pbt"} if STUDY[name].group is Group.POPULATION else {}
    for value in ("5x", True):
        with pytest.raises(ValueError, match=rf"{name} must be a\w* (non-negative )?(integer|number)"):
            study_config(load("surrogate"), "CartPole-v1", **{**more, name: value})


@pytest.mark.parametrize("name", ["search", "constraint", "budget", "goal", "trial_time", "snapshots"])
def test_an_option_of_another_type_is_refused_by_name(name: str) -> None:
    for value in ([1], {}, b"2h"):
        with pytest.raises((TypeError, BadConfig), match=rf"tune: {name} is a .*, but got"):
            rekindle.tune("surrogate", "CartPole-v1", study="", progress=False, **{name: value})  # type: ignore[arg-type]
        if name != "search":
            with pytest.raises(BadConfig, match=rf"a study: {name} is a .*, but got"):
                entries_of({name: value or [0]})


def test_extend_takes_what_is_declared_for_it() -> None:
    actions = {action.dest: action for action in make_parser().commands["extend"]._actions}
    for name, option in EXTENDED.items():
        assert (actions[name].help, actions[name].metavar) == (option.extend, option.placeholder)
    assert set(BOUNDS) <= EXTENDED.keys() <= MUTABLE


def test_a_new_option_needs_its_declaration_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"entry": count("nap_after"), "extend": "naps; off: none"}
    option = Option("N", "trials after which the study naps", Group.SIZE, **stored)
    for table in (STUDY, EXTENDED):
        monkeypatch.setitem(table, "nap_after", option)
    parser = make_parser()
    assert parser.parse_args(["extend", "s", "--nap-after", "3"]).nap_after == 3
    assert "--nap-after N         trials after which the study naps" in parser.commands["tune"].format_help()
    (tmp_path / "run.toml").write_text('task = "ppo"\nenv = "CartPole-v1"\nepochs = "1:4"\n[study]\nnap_after = 20\n')
    line = expand(parser.commands, ["create", str(tmp_path / "run.toml")])
    assert "--nap-after=20" in line
    given = vars(parser.commands["create"].parse_args(line[1:]))
    keywords = {name: given[name] for name in STUDY}
    assert study_config(load("ppo"), "CartPole-v1", epochs=4, **keywords).options["nap_after"] == 20


def test_a_worker_reads_the_words_that_it_is_given() -> None:
    parser = make_parser().commands["worker"]
    values = {"device": "cuda:1", "env_processes": 2, "stuck": None, "lease": 7.5, "grace": 10, "patience": 1e6}
    values |= {"use_previous": True, "eval_envs": 4}
    assert values.keys() == WORKER.keys()
    for given in (values, {name: option.default for name, option in WORKER.items()}):
        read = vars(parser.parse_args(words(WORKER, given)))
        assert {name: read[name] for name in WORKER} == given
