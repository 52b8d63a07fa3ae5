"""Draw every page of a hub and look for faults: `make screenshots`.

A hub is started in ./screenshots-output, bundled environments are published and played by their scripted
players, and each page is drawn at three widths, light and dark. It fails where a table has columns off the
screen, a row is taller than 80 pixels, a chart cuts its letters, a page is wider than its window, the browser
reports an error, or axe-core (from npm, where that can be reached) finds a serious fault. `--hub URL` looks
at a hub that runs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workplace import Workplace

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "screenshots-output"
sys.path.append(str(ROOT / "tests" / "harness"))

WIDTHS = (390, 1280, 1920)
SCHEMES = ("light", "dark")
PLAYED = (
    ("tictactoe", "optimal", 40),
    ("tictactoe", "careless", 40),
    ("tictactoe", "random", 40),
    ("countdown", "expert", 20),
    ("reverse_text", "random", 20),
)
"""Environment, player, and how many examples."""


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


def list_pages(page: Any, hub: str) -> dict[str, str]:
    """Return the address of a page of each kind by its name."""
    base = f"{hub}/api/v1"
    environment = page.request.get(f"{base}/environments?sort=runs&limit=1").json()["data"][0]
    label = f"{environment['owner']}/{environment['name']}"
    runs = page.request.get(f"{base}/runs?environment={label}&limit=3").json()["data"]
    run = f"/runs/{runs[0]['run_id']}"
    return {
        "home": "/",
        "search": f"/?q={environment['name']}",
        "nothing-found": "/?q=nothing-like-it",
        "environment": f"/{label}",
        "leaderboard": f"/{label}/leaderboard",
        "leaderboard-metrics": f"/{label}/leaderboard?column=rank&column=metrics",
        "source": f"/{label}/versions/latest/source",
        "changes": f"/{label}/changes",
        "owner": f"/{environment['owner']}",
        "runs": "/runs",
        "run": run,
        "rollout": f"{run}/rollouts/0",
        "compare": "/runs/compare?" + "&".join(f"run={one['run_id']}" for one in runs),
        "api": "/docs",
        "login": "/login",
        "missing": f"/{label}x",
    }


def draw_pages(hub: str, folder: Path) -> Iterator[str]:
    """Draw each page at each width in each scheme; yield what is wrong."""
    from chromium import CHROMIUM, FLAGS
    from page_faults import axe_source, find_faults
    from playwright.sync_api import sync_playwright

    axe = axe_source()
    if axe is None:
        print("axe-core could not be had from npm: pages are drawn without it")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, "--no-sandbox"])
        for scheme in SCHEMES:
            for width in WIDTHS:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                said: list[str] = []
                page.on("console", lambda one, said=said: said.append(one.text) if one.type == "error" else 0)
                page.on("pageerror", lambda error, said=said: said.append(str(error)))
                for name, path in list_pages(page, hub).items():
                    said.clear()
                    page.goto(f"{hub}{path}")
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
                    faults = find_faults(page, axe if width < WIDTHS[-1] else None)
                    faults += [one for one in said if name != "missing"]
                    yield from (f"{name} at {width} pixels, {scheme}: {fault}" for fault in faults)
                context.close()
        browser.close()


def main() -> int:
    """Return 1 where a page has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hub", help="address of a hub that runs, instead of one of its own")
    given = parser.parse_args()
    if given.hub:
        OUTPUT.mkdir(exist_ok=True)
        faults = list(draw_pages(given.hub.rstrip("/"), OUTPUT))
    else:
        Workplace(OUTPUT).stop_hub()
        shutil.rmtree(OUTPUT, ignore_errors=True)
        place = Workplace(OUTPUT)
        place.start_hub()
        try:
            fill_hub(place)
            faults = list(draw_pages(place.hub, OUTPUT))
        finally:
            place.stop_hub()
    print(*faults, sep="\n")
    print(f"{len(faults)} faults; the pictures are in {OUTPUT}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
