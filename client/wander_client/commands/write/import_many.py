"""Many imports side by side, each a `wander env import path` of its own; their report lets them resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from pydantic import Field
from wander.evals.store import jsonl
from wander.system.child_environ import LOCALE, NETWORK, child_environ
from wander.types import Record
from wander.wire.postings import file_digest

from wander_client.context import current
from wander_client.errors import OK, PARTIAL, NotFound, Unavailable
from wander_client.terminal.output import counted


class ImportRow(Record):
    """A line of the report: how one import ended."""

    source: str
    sha256: str
    hub: str
    owner: str | None
    dry_run: bool
    outcome: Literal["published", "there already", "would be published", "failed"]
    seconds: float
    answer: dict[str, Any] | None = None
    """What `wander env import path --json` says; None where it failed."""
    error: dict[str, Any] | None = None
    """As `--json` has it, with the `step` at which it came."""
    warnings: list[str] = Field(default_factory=list)


_PLAYS = {"load.works", "dataset.rows", "rollout.faults", "rollout.stops"}
"""Checks of an environment that does not play, if one of them fails; other faults belong to its author."""
_REPEATS = ("determinism.", "dataset.stable", "dataset.access")
"""Checks of one that does not play the same way twice."""


@dataclass(frozen=True)
class Candidate:
    """One package to import."""

    source: str
    """What the report calls it."""
    sha256: str
    """Of its files: one that is as it was is not imported again."""
    path: Path


def candidates_in(folder: Path) -> list[Candidate]:
    """Return the projects, sdists and wheels in a folder; raises `NotFound` where there is none."""
    from wander_client.packages.origins.source import folder_digest

    if not folder.expanduser().is_dir():
        raise NotFound(f"`{folder}` is no folder", hint="give the folder in which the packages lie")
    found = []
    for each in sorted(folder.expanduser().resolve().glob("[!.]*")):
        if each.name.endswith((".whl", ".tar.gz")) and each.is_file():
            found.append(Candidate(each.name, file_digest(each), each))
        elif (each / "pyproject.toml").is_file() or (each / "setup.py").is_file():
            found.append(Candidate(each.name, folder_digest(each), each))
    if not found:
        raise NotFound(f"`{folder}` holds no packages", hint="give the folder in which their folders lie")
    return found


def import_many(
    candidates: Sequence[Candidate], owner: str | None, options: Sequence[str], report: Path, jobs: int
) -> int:
    """Import what the report does not have yet, tell how each ended, and return the exit status.

    Each line of the report is written as soon as an import ends; those that failed are tried again.
    Raises `Unavailable` at the first one for which the hub does not answer; the report has no line of it.
    """
    here = current()
    target = {"hub": here.settings.hub, "owner": owner, "dry_run": "--dry-run" in options}
    earlier = [
        row
        for row in jsonl.read_records(report, ImportRow)
        if row.outcome != "failed" and target == {name: getattr(row, name) for name in target}
    ]
    known = {(row.source, row.sha256): row for row in earlier}
    rows = [known[key] for one in candidates if (key := (one.source, one.sha256)) in known]
    todo = [one for one in candidates if (one.source, one.sha256) not in known]
    if rows:
        here.output.note(f"{counted(len(rows), 'package')} of {len(candidates)} in `{report}` already")
    words = [*options, *(["--owner", owner] if owner else [])]
    running: set[subprocess.Popen[str]] = set()
    if report.exists() and (torn := jsonl.tail_after_newline(report)):  # a kill cut it short
        os.truncate(report, report.stat().st_size - len(torn))
    pool = ThreadPoolExecutor(jobs)
    try:
        with (
            report.open("a", encoding="utf-8") as file,
            here.output.progress("importing", len(todo), unit="packages") as bar,
        ):
            waiting = [pool.submit(_import_one, one, words, running) for one in todo]
            for number, future in enumerate(as_completed(waiting), start=1):
                row = ImportRow.model_validate({**future.result(), **target})
                if row.error is not None and row.error["code"] == "hub_unreachable":  # so will the others
                    raise Unavailable(
                        f"{row.error['message']}: {len(todo) - number + 1} of {len(todo)} are not imported",
                        hint="start the hub and give the same command again: it goes on from the report",
                        code="hub_unreachable",
                    )
                rows.append(row)
                file.write(row.model_dump_json() + "\n")
                file.flush()
                bar.update(number, f"{row.source}: {row.outcome}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            process.terminate()
    _answer(sorted(rows, key=lambda row: row.source), report)
    return PARTIAL if any(row.outcome == "failed" for row in rows) else OK


def _import_one(
    one: Candidate, options: Sequence[str], running: set[subprocess.Popen[str]]
) -> dict[str, Any]:
    """Return the fields of a package's row that tell how its import ended."""
    here = current()
    own = [name for name in os.environ if name.startswith(("WANDER_", "UV_", "PIP_", "PRIME_", "XDG_"))]
    asked = [*own, *NETWORK, *(word for word in options if word in os.environ)]
    variables = child_environ(*LOCALE, asked=asked, WANDER_HUB=here.settings.hub)
    if (credential := here.credential()) is not None:
        variables["WANDER_TOKEN"] = credential.token
    began = monotonic()

    def ended(outcome: str, **more: Any) -> dict[str, Any]:
        seconds = round(monotonic() - began, 1)
        return {"source": one.source, "sha256": one.sha256, "outcome": outcome, "seconds": seconds, **more}

    words = ["env", "import", "path", str(one.path), *options, "--json"]
    with subprocess.Popen(  # noqa: S603 - this command itself, no shell
        [sys.executable, "-m", "wander_client", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    ) as process:
        running.add(process)
        said, failed = process.communicate()
        running.discard(process)
    try:
        answer = json.loads(said)
    except ValueError:
        message = f"it ended with status {process.returncode}"
        return ended("failed", error={"code": "ended", "message": message, "detail": failed[-2000:]})
    if "error" in answer:
        return ended("failed", error=answer["error"])
    data = answer["data"]
    outcome = "would be published" if data["dry_run"] else "published" if data["sent"] else "there already"
    return ended(outcome, answer=data, warnings=answer["warnings"])


def _answer(rows: list[ImportRow], report: Path) -> None:
    output = current().output
    ends = Counter(row.outcome for row in rows)
    steps = Counter(row.error.get("step", "start") for row in rows if row.error is not None)

    def show() -> None:
        columns = ("source", "outcome", "as", "plays", "why")
        output.table(columns, [_cells(row) for row in rows], shrink=("why", "source"), drop=("plays",))
        output.line(", ".join(f"{number} {outcome}" for outcome, number in sorted(ends.items())))
        if steps:
            output.line(f"failed at: {', '.join(f'{step} {number}' for step, number in steps.most_common())}")

    listed = [row.model_dump(mode="json") for row in rows]
    output.answer({"report": str(report), "outcomes": ends, "failed_at": steps, "packages": listed}, show)
    if steps:
        output.next(f"less {report}")


def _cells(row: ImportRow) -> tuple[str, str, str, str, str]:
    if row.error is not None:
        return row.source, f"failed at {row.error.get('step', 'start')}", "", "", row.error["message"]
    assert row.answer is not None
    check = row.answer["check"]
    failed = [] if check is None else [each["id"] for each in check["findings"] if each["status"] == "fail"]
    if check is None:
        plays = "not checked"
    elif _PLAYS & set(failed):
        plays = "no"
    else:
        varies = not row.answer["deterministic"] or any(each.startswith(_REPEATS) for each in failed)
        plays = "by chance" if varies else "yes"
    name = f"{row.answer['environment']} {row.answer['version']}"
    return row.source, row.outcome, name, plays, ", ".join(failed)
