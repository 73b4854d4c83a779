"""Exported files, configurations and specs that somebody else may have written: refused before anything is stored."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sample_study as sample
from rekindle.spaces import SpaceError
from rekindle.studies.errors import StoreError
from rekindle.studies.storage.sql import schema
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.upkeep.transfer import BadArchive, export_study, import_study
from rekindle.tasks.envs import EnvSpec, make_envs
from rekindle.tasks.envs.base.spec import EnvSpecError
from sample_study import DEEP, MIB, NESTED, bounded
from sample_study import templates as templates


@pytest.fixture
def file(templates: dict[str, str], tmp_path: Path) -> Path:
    with Store(templates["sqlite"]) as store:
        export_study(store, sample.NAME, tmp_path / "study.rekindle")
    return tmp_path / "study.rekindle"


def parts(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def write(file: Path, content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as opened:
        for name, data in content.items():
            opened.writestr(name, data)
    return file


def with_digests(content: dict[str, bytes]) -> dict[str, bytes]:
    """The parts with an index that agrees with them."""
    index = json.loads(content["study.json"])
    for part in index["parts"]:
        index["parts"][part] = hashlib.sha256(content[f"{part}.jsonl"]).hexdigest()
    return {**content, "study.json": json.dumps(index).encode()}


def refused(store: Store, file: Path, match: str = ".") -> None:
    with bounded(), pytest.raises(BadArchive, match=match) as caught:
        import_study(store, file)
    assert len(str(caught.value)) < 1000
    assert (store.studies(), store.tasks()) == ([], [])


def test_flipped_bits_of_a_file_are_found(file: Path, sqlite_url: str, tmp_path: Path) -> None:
    rng, source, path = random.Random(0), file.read_bytes(), tmp_path / "flipped"
    with Store(sqlite_url) as store, bounded(60):
        for _ in range(150):
            data = bytearray(source)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            try:
                import_study(store, path)
            except BadArchive:
                assert store.studies() == []
                continue
            export_study(store, sample.NAME, tmp_path / "again")  # a bit of no meaning, such as a part's date
            assert (tmp_path / "again").read_bytes() == source
            for table in reversed(schema.metadata.sorted_tables):
                if table is not schema.schema:
                    sample.execute(store, table.delete())


def test_a_file_that_was_cut_short_is_refused(file: Path, sqlite_url: str, tmp_path: Path) -> None:
    source = file.read_bytes()
    with Store(sqlite_url) as store:
        for cut in (0, 1, 22, len(source) // 2, len(source) - 1):
            (tmp_path / "cut").write_bytes(source[:cut])
            refused(store, tmp_path / "cut")
        refused(store, tmp_path / "nothing", "cannot read")
        refused(store, tmp_path, "cannot read")


NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "blobs/../../x",
    "blobs/" + "0" * 63,
    "blobs/" + "A" * 64,
    "blobs\\x",
    "trials.jsonl/x",
    "C:x",
    "blobs/" + "0" * 64 + "/x",
    "__init__.py",
    "x" * 60_000,
    "blobs/" + "\u0660" * 64,
]


def test_names_that_lead_elsewhere_are_refused(file: Path, store: Store, tmp_path: Path) -> None:
    content = parts(file)
    for name in NAMES:
        refused(store, write(tmp_path / "bad", {**content, name: b"x"}), "has a part|cannot be opened")
    assert not Path("/etc/passwd").read_bytes().startswith(b"x")


def test_bombs_are_refused_before_they_unfold(file: Path, sqlite_url: str, tmp_path: Path) -> None:
    content = parts(file)
    with Store(sqlite_url) as store:
        bomb = {**content, "blobs/" + "0" * 64: bytes(512 * MIB)}
        refused(store, write(tmp_path / "bomb", bomb, zipfile.ZIP_DEFLATED), "compressed")
        del bomb
        for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            refused(store, write(tmp_path / "bomb", content, kind), "compressed")
        refused(store, overlapping(file, tmp_path / "bomb"), "larger than the file|cannot be|not the same|together")
        refused(store, claiming(file, tmp_path / "bomb", 2**31), "compressed|bytes|larger|cannot be")


def central(data: bytes) -> list[int]:
    """Where the entries of a zip's directory are."""
    places, at = [], data.find(b"PK\x01\x02")
    while at >= 0:
        places.append(at)
        at = data.find(b"PK\x01\x02", at + 1)
    return places


def claiming(source: Path, target: Path, size: int) -> Path:
    """A file whose every part says that it is of this size."""
    data = bytearray(source.read_bytes())
    for at in central(data):
        struct.pack_into("<II", data, at + 20, size, size)
    target.write_bytes(data)
    return target


def overlapping(source: Path, target: Path) -> Path:
    """A file whose every blob is the same bytes."""
    data = bytearray(source.read_bytes())
    places = central(data)
    first = data[places[-1] + 42 : places[-1] + 46]
    for at in places[:-1]:
        data[at + 42 : at + 46] = first
    target.write_bytes(data)
    return target


def test_encrypted_and_doubled_parts_are_refused(file: Path, store: Store, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    for at in central(data):
        data[at + 8] |= 1
    (tmp_path / "bad").write_bytes(data)
    refused(store, tmp_path / "bad", "encrypted")
    content = parts(file)
    write(tmp_path / "bad", content)
    with zipfile.ZipFile(tmp_path / "bad", "a") as opened, pytest.warns(UserWarning, match="Duplicate name"):
        opened.writestr("trials.jsonl", b"")
    refused(store, tmp_path / "bad", "two parts")
    for name in ("study.json", "metrics.jsonl"):
        refused(store, write(tmp_path / "bad", {k: v for k, v in content.items() if k != name}), f"lacks {name}")


TRIAL = {
    "number": 9,
    "uid": "u",
    "params": {},
    "attrs": {},
    "state": "running",
    "error": None,
    "created": 1.0,
    "finished": None,
}
CHECKPOINT = {"uid": "uid-3", "epochs": 9, "digest": "0" * 64, "created": 1.0}
BAD_LINES: list[tuple[str, Any]] = [
    *(
        ("trials", {**TRIAL, **change})
        for change in (
            {"number": -1},
            {"number": 2**31},
            {"number": True},
            {"number": 1.5},
            {"number": "1"},
            {"number": None},
            {"uid": ""},
            {"uid": "x" * 2000},
            {"uid": "a\0b"},
            {"uid": 1},
            {"params": []},
            {"params": None},
            {"state": "x"},
            {"state": ["running"]},
            {"error": 1},
            {"error": "\0"},
            {"created": "now"},
            {"created": None},
            {"created": {"float": "inf"}},
            {"more": 1},
            {"number": 0},
        )
    ),
    ("trials", []),
    ("trials", None),
    ("trials", "x"),
    ("trials", {}),
    ("segments", {"number": 77, "rung": 0, "epochs": 1, "state": "ready", "score": None, "digest": None}),
    ("segments", {"number": 3, "rung": 9, "epochs": 1, "state": "ready", "score": {"float": "nan"}, "digest": None}),
    ("tasks", {"uid": "uid-9", "identity": {}, "created": 1.0}),
    ("tasks", {"uid": "uid-3", "identity": {}, "created": 1.0}),
    ("checkpoints", CHECKPOINT),
    ("checkpoints", {**CHECKPOINT, "digest": "../x"}),
    ("checkpoints", {**CHECKPOINT, "uid": "uid-9"}),
    ("metrics", {"uid": "uid-3", "epoch": 1, "data": {}}),
    ("metrics", {"uid": "uid-9", "epoch": 1, "data": {}}),
    ("events", {"uid": "uid-9", "created": 1.0, "kind": "x", "data": {}}),
    ("events", {"uid": "uid-3", "created": 1.0, "kind": "x", "data": "x"}),
]


def test_lines_of_another_form_are_refused(file: Path, sqlite_url: str, tmp_path: Path) -> None:
    content = parts(file)
    with Store(sqlite_url) as store:
        for part, row in BAD_LINES:
            bad = {**content, f"{part}.jsonl": content[f"{part}.jsonl"] + json.dumps(row).encode() + b"\n"}
            refused(store, write(tmp_path / "bad", bad), "sha256")
            refused(store, write(tmp_path / "bad", with_digests(bad)))


def test_text_that_is_no_json_is_refused(file: Path, sqlite_url: str, tmp_path: Path) -> None:
    content = parts(file)
    lines = [b"\xff\n", b"{}", b"\n", DEEP.encode() + b"\n", NESTED.encode() + b"\n", b"9" * 5000 + b"\n", b"NaN\n"]
    lines.append(json.dumps({**TRIAL, "params": json.loads(NESTED[450:550])}).encode() + b"\n")
    lines.append(json.dumps({**TRIAL, "uid": "\ud800"}).encode() + b"\n")
    with Store(sqlite_url) as store:
        for line in lines:
            bad = with_digests({**content, "trials.jsonl": content["trials.jsonl"] + line})
            refused(store, write(tmp_path / "bad", bad))
        for index in (b"", b"[]", b"{}", DEEP.encode(), b"\xff", content["study.json"].replace(b"rekindle", b"other")):
            refused(store, write(tmp_path / "bad", {**content, "study.json": index}))


def test_files_of_other_versions_and_studies_are_refused(file: Path, store: Store, tmp_path: Path) -> None:
    content = parts(file)
    index = json.loads(content["study.json"])
    refused(
        store,
        write(tmp_path / "bad", {**content, "study.json": json.dumps({**index, "version": 2}).encode()}),
        "version is 2, and this Rekindle reads version 1",
    )
    for study in ({}, {**index["study"], "name": ""}, {**index["study"], "config": []}):
        refused(
            store, write(tmp_path / "bad", {**content, "study.json": json.dumps({**index, "study": study}).encode()})
        )
    config = {**index["study"], "config": {**sample.CONFIG, "trials": [10**12]}}
    bad = {**content, "study.json": json.dumps({**index, "study": config}).encode()}
    with pytest.raises(StoreError, match="trials is"):
        import_study(store, write(tmp_path / "bad", bad))
    assert (store.studies(), store.tasks()) == ([], [])


def test_states_that_do_not_belong_together_are_refused(file: Path, store: Store, tmp_path: Path) -> None:
    content = parts(file)
    blobs = [name for name in content if name.startswith("blobs/")]
    manifests = [name for name in content if name.startswith("manifests/")]
    for change in (
        {blobs[0]: b"other"},
        {blobs[0]: content[blobs[1]]},
        {manifests[0]: content[manifests[1]]},
        {"blobs/" + "0" * 64: b""},
        {"manifests/" + hashlib.sha256(b"{}").hexdigest(): b"{}"},
    ):
        refused(store, write(tmp_path / "bad", {**content, **change}))
    for name in (blobs[0], manifests[0]):
        refused(store, write(tmp_path / "bad", {each: data for each, data in content.items() if each != name}))


# Configurations and environments


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": [1, 10, 0]},
        {"epochs": [1, 10, -2]},
        {"epochs": [1, 10**7, 1]},
        {"epochs": [1, 10**18, 2]},
        {"epochs": [10, 1, 3]},
        {"epochs": [1]},
        {"epochs": "123"},
        {"epochs": None},
        {"trials": [10**12]},
        {"trials": []},
        {"trials": [8, 4]},
        {"trials": 8},
        {"generation": 0},
        {"generation": 0.5},
        {"cohort": True},
        {"seed": -1},
        {"seed": 2**70},
        {"space": []},
        {"space": {"a." * 2000 + "b": "uniform(0, 1)"}},
        {"env": {}},
        {"env": "x"},
        {"task": 7},
        {"options": []},
        {"nonsense": 1},
        {"version": 2},
        {"version": None},
        {"version": "x" * 10_000},
    ],
    ids=lambda change: str(change)[:40],
)
def test_configurations_that_no_study_has_are_refused(change: dict[str, Any]) -> None:
    with bounded(), pytest.raises(StoreError) as caught:
        Config.from_json({**sample.CONFIG, **change}, "study")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("form", [[], None, 1, "x", [["version", 1]]])
def test_a_configuration_is_a_dict(form: Any) -> None:
    with pytest.raises(StoreError):
        Config.from_json(form, "study")


@pytest.mark.parametrize(
    "prior",
    [
        "(" * 100_000,
        "-" * 100_000 + "1",
        "__import__('os').system('true')",
        "uniform(0, 1e999)",
        "uniform(*[0]*10**9)",
        "choices(list(range(10**9)))",
        "uniform(0, 10**10**10)",
        "uniform(0, " + "9" * 5000 + ")",
        "\0",
        "",
        None,
        [],
        1.5,
        "choices([])",
        "fidelity(0, 0, 0)",
        "lambda: 1",
        "uniform(0, 1); 2",
    ],
    ids=lambda prior: repr(prior)[:30],
)
def test_priors_are_read_and_never_run(prior: Any) -> None:
    with bounded(), pytest.raises(SpaceError):
        Config(**{**sample.CONFIG, "space": {"x": prior}}).searched.sample(0)


CALLABLES = [
    "subprocess:call",
    "os:system",
    "builtins:exec",
    "timeit:timeit",
    "gymnasium:make",
    "unittest:main",
    "code:interact",
    ".x:Y",
    "gymnasium:Env",
    "builtins:dict",
]


@pytest.mark.parametrize("entry_point", CALLABLES)
def test_a_spec_calls_nothing_but_wrappers(entry_point: str) -> None:
    spec = EnvSpec("CartPole-v1", wrappers=[{"entry_point": entry_point, "kwargs": {}}])
    with bounded(), pytest.raises(EnvSpecError, match=r"derived from|cannot be imported"):
        make_envs(spec, [1], 1)
