"""A training run posted by the real command, and its page in a real browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_endpoint import chat_endpoint
from chromium import CHROMIUM, browser_page

pytestmark = pytest.mark.full

RUN_ID, OTHER_ID = "01TRAININGRUNFORTHEPAGE000", "01TRAININGRUNFORTHEPAGE001"


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def trained(bundled) -> str:
    """A posted run with the files that training leaves; returns its id."""
    bundled.wander("install", "admin/reverse-text")
    source: Path = bundled.home / "runs" / "before-training"
    with chat_endpoint(lambda messages: "<reversed_text>no</reversed_text>") as endpoint:
        model = ["-m", "policy", "-b", endpoint.base_url]
        bundled.wander("eval", "admin/reverse-text", *model, "-n", 2, "--out", source)
    folder = bundled.home / "runs" / "trained"
    shutil.copytree(source, folder)
    (folder / "summary.json").unlink(missing_ok=True)
    manifest = json.loads((folder / "run.json").read_text())
    manifest |= {"run_id": RUN_ID, "kind": "training", "split": "train", "endpoints": None}
    manifest["training"] = {"schedule": {"steps": 40}, "model": {"path": "policy"}}
    (folder / "run.json").write_text(json.dumps(manifest))
    times = {
        "seconds/generation": 3.0,
        "seconds/environment": 0.5,
        "seconds/update": 1.5,
        "seconds/step": 5.0,
    }
    steps = [{"step": n, "steps": 40, "reward": n / 40, "entropy": 2 / n, **times} for n in range(1, 41)]
    (folder / "metrics.jsonl").write_text(lines(*steps))
    (folder / "alerts.jsonl").write_text(
        lines({"step": 9, "rule": "truncated", "message": "40% were cut short"})
    )
    cell = {"cell": "eval", "examples": 50}
    evaluations = [{"step": n, "reward": n / 50, "interval": [n / 60, n / 45], **cell} for n in (0, 20, 40)]
    (folder / "evaluations.jsonl").write_text(lines(*evaluations))
    samples = [
        {
            "example_id": example,
            "index": 0,
            "seed": 1,
            "prompt": [{"role": "user", "content": "Turn it around. " + "long" * 200}],
            "completion": [{"role": "assistant", "content": f"{example} as known after {step}"}],
            "reward": step / 40,
            "step": step,
        }
        for step in (0, 20, 40)
        for example in ("one", "two")
    ]
    (folder / "samples.jsonl").write_text(lines(*samples))
    posted = str(bundled.wander("post", folder)["run_id"])
    manifest |= {"run_id": OTHER_ID, "training": {"schedule": {"steps": 20}, "model": {"path": "policy"}}}
    (folder / "run.json").write_text(json.dumps(manifest))
    bundled.wander("post", folder)
    return posted


def test_all_files_of_a_training_run_are_posted(hub, trained):
    with httpx.Client(base_url=hub.url, timeout=60) as client:
        names = {one["name"] for one in client.get(f"/api/v1/runs/{trained}").json()["artifacts"]}
        assert names >= {"metrics.jsonl", "alerts.jsonl", "evaluations.jsonl", "samples.jsonl"}
        page = client.get("/admin/reverse-text", headers={"Accept": "text/html"}).text
    assert f"/runs/{trained}" in page.partition("Training runs")[2]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; the page is tested without one")
@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_a_browser_reads_a_training_run(hub, trained, width):
    with browser_page(width) as page:
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        assert page.goto(f"{hub.url}/runs/{trained}").status == 200
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) <= 0
        assert page.get_by_role("listitem").get_by_text("step 9: 40% were cut short").is_visible()
        assert page.get_by_text("one as known after 40").is_visible()
        drawn = page.locator("figure svg.chart polyline.curve").first.bounding_box()
        assert drawn is not None
        assert drawn["width"] > 100
        table = page.locator("figure details").first
        assert not table.locator("table").is_visible()
        table.locator("summary").click()
        assert table.locator("table").is_visible()
        page.locator("#samples ~ div a", has_text="20").first.click()
        page.get_by_text("one as known after 20").wait_for(timeout=120_000)
        assert page.get_by_text("one as known after 40").count() == 0
        assert page.url.endswith("?step=20#samples")
        assert page.evaluate(wide) <= 0
        page.goto(f"{hub.url}/runs/compare?run={trained}&run={OTHER_ID}")
        figure = page.locator("figure", has=page.locator("svg[data-points]")).first
        figure.locator("svg").hover()
        figure.get_by_text("step ").first.wait_for()
        assert figure.locator(".curve:not(.raw)").count() == 2
        chart = figure.locator("svg")
        chart.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        assert str(chart.get_attribute("aria-valuetext")).startswith("step 2: ")
        page.keyboard.press("+")
        assert {"2", "4"} <= set(figure.locator("svg .tick").all_text_contents())
        page.get_by_role("button", name="Show all steps").click()
        assert {"20", "40"} <= set(figure.locator("svg .tick").all_text_contents())
        assert page.evaluate(wide) <= 0
        assert faults == []
