"""The page of a report in a real browser: charts are drawn under its own policy, and nothing else acts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

import pytest
from saved_runs import write_run
from wander.evals.report.contents import report_of
from wander.evals.report.page import html_report
from wander.evals.store.folder import RunFolder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two runs whose model says what would like to act."""
    place = tmp_path_factory.mktemp("report")
    runs = [
        write_run(place / "runs" / name, rewards=rewards, model=HOSTILE + name, said=HOSTILE)
        for name, rewards in (("one", [0.0, 0.5, 1.0, 0.25]), ("two", [1.0, 0.5, 1.0, 0.5]))
    ]
    page = place / "report.html"
    page.write_text(html_report(report_of([RunFolder.open(run) for run in runs])), encoding="utf-8")
    return page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("scheme", "width"),
    [("dark", 1280), pytest.param("light", 390, marks=pytest.mark.full)],
    ids=["desk", "phone"],
)
def test_a_browser_draws_every_chart_and_runs_nothing_else(
    page_file: Path, scheme: Literal["light", "dark"], width: int
) -> None:
    from playwright.sync_api import sync_playwright

    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    faults: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
            page.on("console", lambda message: faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "request", lambda request: faults.append(request.url) if "report" not in request.url else None
            )
            page.goto(page_file.as_uri())
            charts = page.locator(".chart")
            assert charts.count() == 3, "equal turns are a number, not a chart"
            for number in range(charts.count()):
                charts.nth(number).locator("svg").wait_for(state="attached", timeout=60_000)
            assert page.title() == "2 runs on admin/say-env 0.1.0"
            page.locator("details").first.click()
            assert page.get_by_text("onerror=").first.is_visible()
            wide = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0
        finally:
            browser.close()
    assert faults == []
