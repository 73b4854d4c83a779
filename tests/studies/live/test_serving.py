"""Served pages of running studies: content, access, and no way to write."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import quote

import pytest
from rekindle import tune
from rekindle.studies.engine.study_views import study_json
from rekindle.studies.errors import UnknownStudy
from rekindle.studies.live import serving
from rekindle.studies.live.fragments import fragment
from rekindle.studies.live.serving import COOKIE, LOOPBACK, Server, Studies
from rekindle.studies.live.views import LiveStudy
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import page
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.rows import Segment
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.deleting import delete
from sample_study import ALL, NAME, RUNGS, fill, hold, uid
from studying import run, surrogate

EVIL = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path_factory.mktemp('serve') / 's.db'}", keep=ALL) as store:
        fill(store)
        store.add_rows(NAME, segments=[Segment(2, 1, RUNGS[1])])
        hold(store, uid(2), str(Owner.current()), 60.0)
        store.change_study(EVIL, lambda _: store.study(NAME).config)
        yield store


@contextmanager
def served(store: Store, token: str = "", host: str = LOOPBACK[0]) -> Iterator[Server]:
    with Server(store, host, token=token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and text of an answer."""
    address = f"http://127.0.0.1:{server.server_address[1]}{path}"
    request = urllib.request.Request(address, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_pace_is_told_once_it_is_known(storage: Store) -> None:
    view = LiveStudy(storage, NAME).look()
    assert "epochs.</p>" in fragment(view.replace(epochs_per_second=0.0))
    fast = view.replace(env_steps_per_second=12345.6, epochs_per_second=2.0)
    paced = fragment(fast.replace(seconds_left=65.0))
    assert " epochs, 12,346 steps and 2 epochs a second, about 1:05 left.</p>" in paced
    assert ", 12,346 steps and 2 epochs a second.</p>" in fragment(fast.replace(seconds_left=None))


def test_a_study_that_was_made_anew_is_shown_and_not_the_one_before(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "AT_MOST_EVERY", -1.0)
    with Store(sqlite_url) as store:
        run(sqlite_url, surrogate(4))
        studies = Studies(store)
        studies.report("s")
        assert studies.view("s").state == "complete"
        delete(store, "s", dry_run=False)
        run(sqlite_url, surrogate(2, seed=1))
        assert sum(studies.view("s").counts.values()) == 2
        assert studies.report("s") == page([report_view(store, "s")])
        delete(store, "s", dry_run=False)
        with pytest.raises(UnknownStudy, match="there is no study 's'"):
            studies.view("s")


HOLDER = "from rekindle.studies.storage.locks.owner import Owner; print(Owner.current(), flush=True); input()"


def test_a_report_shows_that_a_worker_has_died(sqlite_url: str) -> None:
    """Its death changes no row."""
    with Store(sqlite_url, keep=ALL) as store:
        fill(store)
        store.add_rows(NAME, segments=[Segment(2, 1, RUNGS[1])])
        studies = Studies(store)
        waiting = studies.report(NAME)
        with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=PIPE, stdout=PIPE, text=True) as worker:
            assert worker.stdout is not None
            hold(store, uid(2), worker.stdout.readline().strip(), 600.0)
            running = studies.report(NAME)
            assert running == studies.report(NAME) == page([report_view(store, NAME)])
            worker.kill()
        assert "<td>running</td>" in running
        assert "<td>running</td>" not in waiting
        assert studies.report(NAME) == waiting


def test_a_report_shows_a_confirmation_that_came_later(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a study of its own, and changes no row of the one that it confirms."""
    monkeypatch.setattr(serving, "AT_MOST_EVERY", -1.0)
    with Store(sqlite_url) as store:
        same: dict[str, Any] = {"storage": store, "progress": False, "fixed": {"noise": 2.0}, "seed": 3}
        study = tune("surrogate", study="s", trials=6, epochs=1, scheduler="none", **same)
        studies = Studies(store)
        assert "s:confirmation" not in studies.report("s")
        study.confirm(2, 3, progress=False)
        assert studies.report("s") == page([report_view(store, "s")])
        assert "s:confirmation" in studies.report("s")


def test_a_browser_that_is_closed_before_it_has_its_answer_is_no_error(
    storage: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(storage) as server:
        with socket.create_connection(server.server_address[:2]) as browser:  # type: ignore[arg-type]
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets the connection
            browser.sendall(b"GET /")
        assert get(server, "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_pages_show_what_watch_and_report_show(storage: Store) -> None:
    with served(storage) as server:
        status, text = get(server, f"/live.json?study={NAME}")
        view = json.loads(text)
        assert (status, view["study"], view["running"][0]["curve"]) == (200, NAME, [1.0, 4.0, 3.0])
        status, html = get(server, f"/study?study={NAME}")
        assert status == 200
        assert "<p>Running: 1 complete, 1 pruned, 1 failed, 1 running.</p><p>Best 3, trial 0 at epoch 3.</p>" in html
        fragment = get(server, f"/live?study={NAME}")[1]
        assert '<td class="n">2</td><td class="n">3/3</td>' in fragment
        assert get(server, f"/report?study={NAME}")[1] == page([report_view(storage, NAME)])
        index = get(server, "/")[1]
    assert f"/study?study={quote(EVIL, safe='')}" in index
    assert "<img" not in index
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in index


def test_nothing_can_be_written_and_nobody_else_reads(storage: Store) -> None:
    before = study_json(storage, NAME)
    with served(storage) as server:
        assert get(server, "/study?study=nobody")[0] == 404
        assert get(server, "/other")[0] == 404
        assert [get(server, "/", method)[0] for method in ("POST", "PUT", "DELETE")] == [501, 501, 501]
        assert get(server, "/", Host="evil.example")[0] == 403  # a name of theirs that leads here
    assert study_json(storage, NAME) == before


def test_other_addresses_need_a_token(storage: Store) -> None:
    with pytest.raises(ValueError, match=r"a server that other machines reach needs a token, but --host is 0\.0\.0\.0"):
        Server(storage, "0.0.0.0")
    with served(storage, "s;cret") as server:
        assert server.url.endswith("?token=s%3Bcret")
        assert get(server, "/")[0] == get(server, "/?token=wrong")[0] == 403
        assert get(server, "/?token=s%3Bcret", Host="any.example")[0] == 200
        assert get(server, "/", Cookie=f"{COOKIE}=s%3Bcret")[0] == 200


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_command_serves_until_ctrl_c(storage: Store, cli: Callable[..., Any], form: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answers: list[int] = []

    def look() -> None:
        deadline = time.monotonic() + 60
        while not answers and time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/") as page:
                answers.append(page.status)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    thread = threading.Thread(target=look)
    try:
        thread.start()
        status, out, _ = cli("serve", "--storage", storage.url, "--port", str(port), *form)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (status, answers) == (0, [200])
    url = f"http://127.0.0.1:{port}/"
    if form:
        assert json.loads(out)["url"] == url
    else:
        assert f"{url} (Ctrl-C ends it)" in out
        assert "the server has stopped; no study was changed" in out


def test_a_bad_address_is_refused_in_one_line(storage: Store, cli: Callable[..., tuple[int, str, str]]) -> None:
    with served(storage) as server:
        port = str(server.server_address[1])
        status, _, err = cli("serve", "--storage", storage.url, "--port", port)
    assert status == 2
    assert f"a server needs a free address, but 127.0.0.1:{port} is not: Address already in use; try another" in err
    assert cli("serve", "--storage", storage.url, "--port", "99999")[0] == 2
    assert cli("serve", "--storage", f"sqlite:///{Path('no') / 'no.db'}")[0] == 2


def test_a_server_listens_on_an_address_of_ip_6(storage: Store) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")  # as in some containers; nothing can listen there
    with served(storage, host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        with urllib.request.urlopen(server.url) as answer:
            assert b"<h1>Studies</h1>" in answer.read()
