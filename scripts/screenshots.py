"""Draws every page of a hub and checks its layout: `make screenshots`.

The script starts a hub in ./screenshots-output, which makes a proof of learning of one environment. It then
publishes bundled environments, plays them with their scripted players, seals two task sets, and trains a
small model. Each page is drawn at three widths, light and dark. It fails if a table has columns outside the
screen, a row is taller than 80 pixels, a chart cuts off letters, a page is wider than its window, the
browser reports an error, or axe-core finds a serious fault. `--again` draws the previous hub again, `--only
NAME...` draws only some pages, and `--quick` leaves out the proof of learning and the training, which take
most of the time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from workplace import StepFailed, Workplace

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "screenshots-output"
sys.path.append(str(ROOT / "tests" / "harness"))

WEBHOOKS = {"WANDER_HUB_WEBHOOK_HTTP": "true", "WANDER_HUB_WEBHOOK_NETWORKS": '["127.0.0.0/8"]'}
"""Settings of the hub, whose webhook calls this script."""
WIDTHS = (390, 1280, 1920)
SEALED_EXAMPLES = ("the sea is calm", "three red apples", "winter came early", "a quiet street")
SCHEMES = ("light", "dark")
_PAGE_SECONDS = 180
"""Time limit for each step of drawing. The longest page is 64,000 pixels tall, and a machine may be busy."""
PLAYED = (
    ("tictactoe", "optimal", 40),
    ("tictactoe", "careless", 40),
    ("tictactoe", "random", 40),
    ("countdown", "expert", 20),
    ("reverse_text", "random", 20),
    ("terminal_tasks", "expert", 4),
)
"""Environment, player, and number of examples."""
TRAINING = """
[batch]
rollouts = 32
group_size = 8
[sampling]
max_tokens = 16
[schedule]
steps = 12
learning_rate = 3e-4
[stopping]
collapse = false
[evaluation]
every = 4
examples = 12
[[evaluation.cells]]
name = "optimal"
arguments = { min_random_move_prob = 0.0, max_random_move_prob = 0.0 }
[[evaluation.cells]]
name = "random"
arguments = { min_random_move_prob = 1.0, max_random_move_prob = 1.0 }
"""
"""Settings of short training runs with few rollouts, which collapse sometimes. Their pages then show an
alert."""
TRAINED = (
    ("fast", "sft/model", "3e-4"),
    ("slow", "sft/model", "5e-5"),
    ("further", "runs/fast/model", "1e-4"),
)
"""Run, the model that it starts from, and its learning rate."""


def fill_hub(place: Workplace) -> None:
    """Publish environments and post runs, as users would."""
    for name in dict.fromkeys(name for name, _, _ in PLAYED):
        place.type(f"wander publish {ROOT / 'environments' / name} --no-check")
        place.type(f"wander install admin/{name.replace('_', '-')}")
    for name, player, examples in PLAYED:
        run = f"runs/{name}-{player}"
        place.type(
            f"wander eval admin/{name.replace('_', '-')} -m scripted:{name}.players:{player} "
            f"-n {examples} -r 2 --out {run}"
        )
        place.type(f"wander post {run}")


def publish_another_version(place: Workplace) -> None:
    """Publish a second version of an environment that differs from the first in a few lines."""
    with tempfile.TemporaryDirectory() as outside:  # git ignores the folder of screenshots
        folder = Path(outside) / "reverse_text"
        shutil.copytree(
            ROOT / "environments" / "reverse_text", folder, ignore=shutil.ignore_patterns("build", "dist")
        )
        for file, old, new in (
            ("pyproject.toml", 'version = "0.1.0"', 'version = "0.1.1"'),
            ("README.md", "\n## ", "\nVersion 0.1.1 says more of itself.\n\n## "),
        ):
            text = (folder / file).read_text()
            (folder / file).write_text(text.replace(old, new, 1))
        place.type(f"wander publish {folder} --no-check")


def allow_sealing(place: Workplace) -> None:
    """Let the hub keep sealed sets, and play them against endpoints of this machine."""
    place.environment |= {
        "WANDER_HUB_SEAL_KEY_FILE": str(place.folder / "seal.key"),
        "WANDER_HUB_SEAL_NETWORKS": '["127.0.0.0/8"]',
    }


def seal_sets(place: Workplace) -> None:
    """Seal two task sets and play each once. The first one is opened, the second one stays sealed."""
    from chat_endpoint import chat_endpoint

    def reverse(messages: list[dict[str, Any]]) -> str:
        return f"<reversed_text>{messages[-1]['content'][::-1]}</reversed_text>"

    opens = datetime.now(UTC).date() + timedelta(days=30)
    halves = (SEALED_EXAMPLES[:2], SEALED_EXAMPLES[2:])
    for texts in halves:
        rows = [json.dumps({"question": text, "answer": text[::-1]}) for text in texts]
        (place.folder / "hidden.jsonl").write_text("\n".join(rows) + "\n")
        place.type(f"wander seal create admin/reverse-text hidden.jsonl --opens {opens}")
        with chat_endpoint(reverse) as endpoint:
            place.type(f"wander seal play admin/reverse-text -m reverser -b {endpoint.base_url}")
        if texts is halves[0]:
            place.type("wander seal open admin/reverse-text")


def prove_learning(place: Workplace) -> None:
    """Let the hub make a proof of learning of one environment. Each takes minutes, so it makes no other."""
    place.environment["WANDER_HUB_LEARNING"] = "true"
    place.start_hub()
    place.type(f"wander publish {ROOT / 'environments' / 'reverse_text'} --no-check")
    state = "missing"
    for _ in range(1800):
        with suppress(HTTPError):  # until the hub has found the new version
            state = place.ask("environments/admin/reverse-text/versions/0.1.0/learning")["state"]
        if state == "done":
            break
        time.sleep(1)
    else:
        raise StepFailed(f"the proof of learning is {state} after half an hour")
    place.stop_hub()
    del place.environment["WANDER_HUB_LEARNING"]


def train_model(place: Workplace) -> None:
    """Train a small model in two ways, continue one of them, and push it to the hub."""
    environment = "admin/tictactoe"
    (place.folder / "train.toml").write_text(TRAINING)
    teacher = "-m scripted:tictactoe.players:careless --split train -n 60 --out runs/teacher"
    place.type(f"wander eval {environment} {teacher}")
    place.type("wander runs data runs/teacher --min-reward 0.5 --out rows.jsonl")
    place.type("wander model new tiny --transcripts runs/teacher --out tiny")
    place.type(
        "wander model sft rows.jsonl --model tiny --out sft --steps 80 --set schedule.learning_rate=2e-3"
    )
    for name, model, rate in TRAINED:
        run = f"runs/{name}"
        place.type(
            f"wander train {environment} train.toml --model {model} --out {run} "
            f"--set schedule.learning_rate={rate}"
        )
        place.type(f"wander post {run} --name '{name}, learning rate {rate}'")
    place.type("wander model push admin/player runs/fast/model")
    place.type(f"wander eval {environment} -m runs/fast/model -n 40 -r 2 --max-tokens 16 --out runs/trained")
    place.type("wander post runs/trained")


class Receiver(BaseHTTPRequestHandler):
    """Receives webhook calls."""

    def do_POST(self) -> None:
        """Accept any request."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *said: object) -> None:
        """Log nothing."""


def call_webhook(place: Workplace) -> None:
    """Create a webhook that receives a test twice: with a running receiver, and with a stopped one."""

    def ask(path: str, body: dict[str, Any] | None = None, *, method: str = "POST") -> Any:
        head = {"Authorization": f"Bearer {place.environment['WANDER_TOKEN']}"}
        head |= {"Content-Type": "application/json"}
        sent = None if body is None else json.dumps(body).encode()
        address = f"{place.hub}/api/v1/webhooks{path}"
        request = urllib.request.Request(address, sent, head, method=method)  # noqa: S310 - our own hub
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own hub
            return json.load(answer)

    def wait(number: int) -> None:
        for _ in range(3000):
            deliveries = ask(f"/{made}/deliveries", method="GET")["data"]
            if len(deliveries) == number and all(delivery["attempts"] for delivery in deliveries):
                return
            time.sleep(0.1)
        raise StepFailed(f"webhook {made} has no {number} deliveries")

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/events"
        made = ask("", {"url": url, "owner": "admin"})["webhook"]["id"]
        ask(f"/{made}/test")
        wait(1)
        server.shutdown()
    ask(f"/{made}/test")
    wait(2)


def list_pages(page: Any, hub: str, *, training: bool) -> dict[str, str]:
    """Return the address of one page of each kind, by its name; with `training`, also the pages of training
    runs and of the trained model."""
    base = f"{hub}/api/v1"
    environment = page.request.get(f"{base}/environments?sort=runs&limit=1").json()["data"][0]
    label = f"{environment['owner']}/{environment['name']}"
    every = page.request.get(f"{base}/runs?environment={label}&limit=100").json()["data"]
    runs = [run["run_id"] for run in every if run["manifest"]["kind"] == "evaluation"]
    trained = [run["run_id"] for run in every if run["manifest"]["kind"] == "training"][::-1]
    boxes = page.request.get(f"{base}/runs?environment=admin/terminal-tasks&limit=1").json()["data"]
    sealed = page.request.get(f"{base}/environments/admin/reverse-text/sealed").json()["data"]
    run = f"/runs/{runs[0]}"
    training_pages = {}
    if training:
        training_pages = {
            "training": f"/runs/{trained[-1]}",
            "training-diff": f"/runs/compare?run={trained[0]}&run={trained[1]}",
            "training-overlay": "/runs/compare?" + "&".join(f"run={one}" for one in trained),
            "training-phases": f"/runs/compare?run={trained[0]}&run={trained[-1]}&joined=true",
            "model": "/models/admin/player",
            "tokens": f"{run}/rollouts/0/turns/0",  # the newest run is the trained model's
        }
    return {
        **training_pages,
        "home": "/",
        "search": f"/?q={environment['name']}",
        "nothing-found": "/?q=qwertyzxcv",
        "environment": f"/{label}",
        "environment-sealed": "/admin/reverse-text",
        "sealed": f"/sealed/{sealed[0]['commitment']}",
        "sealed-opened": f"/sealed/{sealed[1]['commitment']}",
        "leaderboard": f"/{label}/leaderboard",
        "leaderboard-metrics": f"/{label}/leaderboard?column=rank&column=metrics",
        "leaderboard-cost": f"/{label}/leaderboard?column=model&column=reward&column=tokens&column=cost",
        "source": f"/{label}/versions/latest/source",
        "version": "/admin/reverse-text/versions/0.1.0",
        "owner": f"/{environment['owner']}",
        "runs": "/runs",
        "run": run,
        "rollout": f"{run}/rollouts/0",
        "box-rollout": f"/runs/{boxes[0]['run_id']}/rollouts/0",
        "search-rollouts": "/runs/search?text=move",
        "search-rollouts-empty": "/runs/search",
        "compare": "/runs/compare?" + "&".join(f"run={one}" for one in runs[-3:]),
        "models": "/models",
        "docs": "/docs",
        "docs-page": "/docs/verification",
        "docs-search": "/docs/search?q=interval",
        "docs-api": "/docs/api/http",
        "docs-python": "/docs/api/writing",
        "openapi": "/openapi",
        "docs-commands": "/docs/api/commands",
        "login": "/login",
        "password": "/login/password",
        "missing": f"/{label}x",
        "account": "/account",
        **{
            f"account-{part}": f"/account/{part}"
            for part in ("tokens", "keys", "password", "second-factor", "browsers")
        },
        "owner-settings": f"/{environment['owner']}/settings",
        **{
            f"owner-settings-{part}": f"/{environment['owner']}/settings/{part}"
            for part in ("new-environments", "jobs", "quota", "publishers", "webhooks", "audit")
        },
        "environment-settings": f"/{label}/settings",
        **{
            f"environment-settings-{part}": f"/{label}/settings/{part}"
            for part in ("versions", "jobs", "members", "visibility", "webhooks", "move")
        },
        "webhook": "/account/webhooks/1",
        "webhook-delivery": "/account/webhooks/1/deliveries/1",
        "system": "/system",
        **{f"system-{part}": f"/system/{part}" for part in ("jobs", "users", "organizations", "audit")},
    }


SIGNED_IN = ("account", "owner-settings", "environment-settings", "webhook", "system")
"""Prefixes of names of pages that are drawn for an administrator. All others are drawn without a login."""


_LOAD_IMAGES = """() => Promise.all([...document.images].map((image) => {
  image.loading = "eager";
  return image.decode().catch(() => 0);
}))"""
"""Loads all images, because a screenshot of the whole page includes images that a reader would have scrolled
to."""


def draw_pages(hub: str, folder: Path, token: str, only: list[str], *, training: bool) -> Iterator[str]:
    """Draw each page at each width in each color scheme. Yields the faults."""
    from chromium import CHROMIUM, FLAGS
    from page_faults import find_faults
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, "--no-sandbox"])
        for scheme in SCHEMES:
            for width in WIDTHS:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                page.set_default_timeout(_PAGE_SECONDS * 1000)
                said: list[str] = []
                page.on("console", lambda one, said=said: said.append(one.text) if one.type == "error" else 0)
                page.on("pageerror", lambda error, said=said: said.append(str(error)))
                for name, path in list_pages(page, hub, training=training).items():
                    if only and name not in only:
                        continue
                    said.clear()
                    header = {"Authorization": f"Bearer {token}"} if name.startswith(SIGNED_IN) else {}
                    context.set_extra_http_headers(header)
                    answer = page.goto(f"{hub}{path}")
                    if answer is None or answer.status != (404 if name == "missing" else 200):
                        yield f"{name} at {width} pixels, {scheme}: {path} does not respond"
                        continue
                    if name == "openapi":
                        page.locator(".opblock").first.wait_for()
                    page.evaluate(_LOAD_IMAGES)
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
                    faults = find_faults(page, axe=width < WIDTHS[-1])
                    faults += [one for one in said if name != "missing"]
                    yield from (f"{name} at {width} pixels, {scheme}: {fault}" for fault in faults)
                context.close()
        browser.close()


def main() -> int:
    """Return 1 if a page has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="draw the previous hub again")
    parser.add_argument("--only", nargs="+", default=[], help="draw only these pages")
    parser.add_argument("--quick", action="store_true", help="leave out the training and its pages")
    given = parser.parse_args()
    place = Workplace(OUTPUT)
    place.stop_hub()
    if not given.again:
        shutil.rmtree(OUTPUT, ignore_errors=True)
        place = Workplace(OUTPUT)
    place.environment |= WEBHOOKS
    allow_sealing(place)
    try:
        if not given.again and not given.quick:
            prove_learning(place)
        place.start_hub()
        if not given.again:
            fill_hub(place)
            seal_sets(place)
            publish_another_version(place)
            call_webhook(place)
            if not given.quick:
                train_model(place)
        faults, token = 0, place.environment["WANDER_TOKEN"]
        for fault in draw_pages(place.hub, OUTPUT, token, given.only, training=not given.quick):
            faults += 1
            print(fault, flush=True)
    finally:
        place.stop_hub()
    print(f"{faults} faults; the screenshots are in {OUTPUT}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
