"""Reports and served pages in a real browser: they load nothing, show no errors, and react to clicks."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rekindle import Store, tune
from rekindle.studies.live.serving import Server
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import page
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.sql.schema import segment, task, trial
from sample_study import execute, hold

pytestmark = pytest.mark.browser
EVIL = "<script>document.title='x'</script><img src=x onerror=\"document.title='y'\">"
NAMES = ("halved", "bred", EVIL, "seeded")
PARTS = {
    *("Side by side", "Confirmation", "Health checks", "Learning curves", "Promotions", "Genealogy", "Statistics"),
    *(
        "Importance of hyperparameters",
        "Marginals",
        "Pairs of hyperparameters",
        "Agreement of rungs",
        "Parallel coordinates",
        "Slices",
        "Pareto front",
    ),
    *("Workers", "Method", "Search space", "Trials"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Studies with all that a report can show, under names that hold HTML."""
    with Store(f"sqlite:///{tmp_path_factory.mktemp('browser') / 'b.db'}") as store:
        same: dict[str, Any] = {"storage": store, "progress": False, "sampler": "random", "fixed": {"noise": 2.0}}
        tune("surrogate", study="halved", trials=18, epochs=(1, 9), scheduler="halving", **same).confirm(
            2, 4, progress=False
        )
        tune("surrogate", study="bred", scheduler="pbt", population=4, interval=1, epochs=4, **same)
        objectives = ["return", "env_steps:minimize"]
        tune("surrogate", study=EVIL, trials=6, epochs=2, scheduler="none", objective=objectives, **same)
        tune("surrogate", study="seeded", trials=4, seeds=3, epochs=(1, 3), scheduler="halving", **same)
        yield store


@pytest.fixture(scope="module")
def report(store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a file."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page([report_view(store, name) for name in NAMES]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright import sync_api  # an extra that only these tests need

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "make browser says how Chromium is installed"
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Any, address: str, width: int = 1280, **more: Any) -> Iterator[tuple[Any, list[str], list[str]]]:
    """A page, its requests, and its errors; offline if it is a file."""
    offline = address.startswith("file:")
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=offline, **more)
    tab, requests, errors = context.new_page(), list[str](), list[str]()
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(address)
    try:
        yield tab, requests, errors
        pictures = os.environ.get("PICTURES")  # a folder, for who wants to look
        if pictures:
            scheme = more.get("color_scheme", "light")
            name = f"{re.sub(r'[^a-z]+', '-', address.rpartition('/')[2])}-{width}-{scheme}.png"
            tab.screenshot(path=str(Path(pictures) / name), full_page=True)
    finally:
        context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_whole_readable_and_asks_for_nothing(browser: Any, report: str, width: int, scheme: str) -> None:
    with opened(browser, report, width, color_scheme=scheme) as (tab, requests, errors):
        assert {*tab.locator("h3").all_text_contents()} >= PARTS
        sizes = tab.locator("figure svg").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
        assert len(sizes) > 20
        assert min(sizes) > 60
        assert tab.evaluate("document.documentElement.scrollWidth") <= width  # what is wider scrolls by itself
        small = "all => all.filter(e => e.getBoundingClientRect().height < 7 && e.textContent).length"
        assert tab.eval_on_selector_all("svg text", small) == 0
        text, ground = (
            tab.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
        )
        light, dark = (sum(map(int, re.findall(r"\d+", color)[:3])) for color in (text, ground))
        assert abs(light - dark) > 450
        assert tab.title() == f"Report on {', '.join(NAMES)}"  # no script of a name has run
        assert tab.locator("main img, main script").count() == 0
    assert requests == [report]
    assert errors == []


def test_the_numbers_are_those_of_json(browser: Any, store: Store, report: str) -> None:
    view = report_view(store, "halved").to_json()
    with opened(browser, report) as (tab, _, _):
        for trial in view["study"]["trials"]:
            cells = tab.locator(f'#study-0 tr[data-trial="{trial["number"]}"] td')
            assert float(cells.nth(3).get_attribute("data-v")) == trial["return"]
            assert cells.nth(2).inner_text() == str(trial["epochs"])
        winner = view["confirmation"]["candidates"][view["confirmation"]["winner"]]["estimate"]
        verdict = tab.locator("#study-0 .verdict").inner_text()
        words = re.search(r"Expect (-?[\d.]+) .* between (-?[\d.]+) and (-?[\d.]+)\.", verdict)
        assert words is not None
        assert [*map(float, words.groups())] == pytest.approx(
            [winner[end] for end in ("value", "low", "high")], rel=0.02
        )


def test_tables_sort_and_parallel_coordinates_are_brushed(browser: Any, report: str) -> None:
    with opened(browser, report) as (tab, _, errors):
        part = tab.locator("#study-0")
        column = "rows => rows.map(row => Number(row.cells[3].dataset.v))"
        for expected in (sorted, lambda values: sorted(values, reverse=True)):
            part.locator("table.sortable thead button").nth(3).click()
            values = part.locator("table.sortable tbody tr").evaluate_all(column)
            assert values == expected(values)
        chart = part.locator("svg.parallel")
        chart.scroll_into_view_if_needed()
        axis = chart.locator("rect.brush").last.bounding_box()  # the returns
        x, top = axis["x"] + axis["width"] / 2, axis["y"]
        tab.mouse.move(x, top + 2)
        tab.mouse.down()
        tab.mouse.move(x, top + axis["height"] / 2, steps=4)
        tab.mouse.up()
        lines = chart.locator("polyline.line")
        chosen = lines.count() - chart.locator("polyline.line.out").count()
        assert 0 < chosen < lines.count()
        assert part.locator(".brush-count").inner_text().startswith(f"{chosen} of {lines.count()} trials are chosen")
        assert part.locator("tr[data-trial]:visible").count() == chosen
        axis = chart.locator("rect.brush").last.bounding_box()  # the page is shorter, and has moved
        tab.mouse.click(x, axis["y"] + 2)
        assert chart.locator("polyline.line.out").count() == 0
    assert errors == []


def test_words_and_tables_read_without_javascript(browser: Any, report: str) -> None:
    with opened(browser, report, java_script_enabled=False) as (tab, _, _):
        assert "Expect " in tab.locator("#study-0 .verdict").inner_text()
        assert tab.locator("#study-0 tr[data-trial]:visible").count() == 18


RESULT = ("score", "digest", "objectives", "eval_steps", "eval_error")  # columns of a finished segment


def unfinished(store: Store, study: str) -> str:
    """Take back the last result of a study's first trial, and return its uid."""
    first, s = store.trials(study)[0], segment.c
    last = max(row.rung for row in store.segments(study) if row.number == first.number)
    of_trial = (s.study == study) & (s.number == first.number) & (s.rung == last)
    execute(store, segment.update().where(of_trial).values(state="ready", **dict.fromkeys(RESULT)))
    execute(store, trial.update().where((trial.c.study == study) & (trial.c.number == 0)).values(state="running"))
    return first.uid


@pytest.mark.parametrize("width", [1280, 390])
def test_a_served_study_renews_itself(browser: Any, store: Store, width: int) -> None:
    uid = unfinished(store, "seeded")
    with Server(store) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with opened(browser, f"{server.url}study?study=seeded", width) as (tab, requests, errors):
                assert "In training" not in tab.locator("main").inner_text()
                hold(store, uid, str(Owner.current()), 60.0)
                tab.get_by_text("In training").wait_for()
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                execute(store, task.update().where(task.c.uid == uid).values(lease_owner=None))
                tab.get_by_text("In training").wait_for(state="detached")
                assert all(request.startswith(server.url) for request in requests)
                tab.get_by_role("link", name="report").click()
                assert tab.title() == "Report on seeded"
            assert errors == []
        finally:
            server.shutdown()
            thread.join()
