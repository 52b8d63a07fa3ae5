"""Run four journeys through the code and write docs/api/walks.md: the files that each enters, in order.

    .venv/bin/python scripts/walks.py [--check]

A profile hook in every process of a journey records the first function that is called in each file. Code that
runs during an import does not count. `--check` writes nothing, and fails if a journey enters more files than
its bound. A bound may only be lowered.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from workplace import Workplace

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/api/walks.md"
HOOK = ROOT / "scripts" / "walks_hook"
CUTS = ("sdk/wander/evals/run/runner.py:evaluate", "sdk/wander/train/step_trainer.py:play_step")


@dataclass
class Walk:
    """A journey: the number of files that it may enter, and the files that it entered."""

    title: str
    told: str
    bound: int
    files: dict[str, str]


class Traces:
    """The folder that holds the trace of each process."""

    def __init__(self, folder: Path, place: Workplace) -> None:
        self.folder = folder / "traces"
        self.folder.mkdir()
        place.environment |= {
            "PYTHONPATH": str(HOOK),
            "WALKS_ROOT": str(ROOT),
            "WALKS_FOLDER": str(self.folder),
            "WALKS_CUTS": " ".join(CUTS),
        }

    def parts(self, command: str) -> list[dict[str, str]]:
        """Return the files that the process of a command entered, a part for each cut between them."""
        for trace in sorted(self.folder.iterdir()):
            line, *entries = trace.read_text().splitlines()
            if command in line:
                parts: list[dict[str, str]] = [{}]
                for entry in entries:
                    if entry == "--":
                        parts.append({})
                    else:
                        path, function = entry.split(" ", 1)
                        parts[-1].setdefault(path, function)
                return parts
        raise SystemExit(f"error: no process noted `{command}`")


def walk(folder: Path) -> list[Walk]:
    """Run the journeys on a hub of their own."""
    place = Workplace(folder)
    traces = Traces(folder, place)
    place.environment["WANDER_HUB_SERVE_JOBS"] = "false"  # jobs run at any time, and belong to no journey
    place.start_hub()
    hub = place.hub_process()
    assert hub is not None
    try:
        place.type(f"wander publish {ROOT}/environments/two_levers --build")
        read(place, "docs/search?q=rubric")  # creates the index of the docs, which a hub does once
        os.kill(hub, signal.SIGUSR2)
        place.type(f"wander publish {ROOT}/environments/reverse_text --build")
        read(place, "admin/simple/reverse-text/")
        os.kill(hub, signal.SIGUSR2)
        player = "scripted:reverse_text.players:careful"
        place.type(f"wander eval admin/reverse-text -m {player} -n 4 --no-sandbox --out one")
        os.kill(hub, signal.SIGUSR2)
        place.type("wander post one")
        read(place, "api/v1/environments/admin/reverse-text/leaderboard")
        os.kill(hub, signal.SIGUSR2)
        place.type("wander model new tiny --transcripts one --out tiny")
        place.type(
            "wander train admin/reverse-text --model tiny --no-sandbox --out trained --set schedule.steps=1 "
            "--set batch.rollouts=4 --set batch.group_size=2 --set sampling.max_tokens=8"
        )
    finally:
        place.stop_hub()
    _, published, _, posted, *_ = traces.parts("wander-hub serve")
    opened, played = traces.parts("wander eval")
    *_, stepped = traces.parts("wander train")
    return [
        Walk(
            "From a name on the command line to an environment in its worker",
            "`wander eval OWNER/NAME` in the process of the command, until the evaluation begins.",
            63,
            opened,
        ),
        Walk(
            "From a completion to a row of a leaderboard",
            "The evaluation, `wander post`, and the hub until it answers with the leaderboard.",
            140,
            played | traces.parts("wander post")[0] | posted,
        ),
        Walk("One training step", "One step of `wander train`, and the end of its run.", 80, stepped),
        Walk(
            "From `wander publish` to a page of the index",
            "`wander publish`, and the hub until it answers with the package's page.",
            124,
            traces.parts(f"wander publish {ROOT}/environments/reverse_text")[0] | published,
        ),
    ]


def read(place: Workplace, path: str) -> None:
    """Request a page from the hub."""
    urllib.request.urlopen(f"{place.hub}/{path}", timeout=60).read()  # noqa: S310 - our own hub


def render(walks: list[Walk]) -> str:
    """Return the page."""
    lines = [
        "# Four walks through the code",
        "",
        "Each table lists the files that a journey enters, in order, with the first function that it calls",
        "there. A file counts if one of its functions runs; imports do not count. `scripts/walks.py` runs",
        "the journeys and writes this page.",
    ]
    for journey in walks:
        lines += ["", f"## {journey.title}", "", f"{journey.told} {len(journey.files)} files.", ""]
        lines += ["| File | First function |", "|---|---|"]
        lines += [f"| `{path}` | `{function}` |" for path, function in journey.files.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the journeys, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the bounds and write nothing")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory(prefix="walks-") as folder:
        walks = walk(Path(folder))
    for journey in walks:
        print(f"{len(journey.files):3d} of at most {journey.bound} files: {journey.title}")
    if check:
        return int(any(len(journey.files) > journey.bound for journey in walks))
    PAGE.write_text(render(walks))
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
