"""Many imports side by side, each a `wander env import path` of its own; their report lets them resume."""

from __future__ import annotations

import hashlib
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
from typing import Any

from wander_client.context import current
from wander_client.errors import OK, PARTIAL, ClientError, NotFound
from wander_client.terminal.output import counted

Row = dict[str, Any]
"""A line of the report: `source`, `sha256`, `outcome`, `seconds`, and what the import answered or why not."""


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

    found = []
    for each in sorted(folder.expanduser().resolve().glob("[!.]*")):
        if each.name.endswith((".whl", ".tar.gz")):
            found.append(Candidate(each.name, hashlib.sha256(each.read_bytes()).hexdigest(), each))
        elif (each / "pyproject.toml").is_file() or (each / "setup.py").is_file():
            found.append(Candidate(each.name, folder_digest(each), each))
    if not found:
        raise NotFound(f"`{folder}` holds no packages", hint="give the folder in which their folders lie")
    return found


def candidates_of(url: str, query: str, work: Path) -> list[Candidate]:
    """Fetch the newest source archive of each environment that another hub lists and that is in use."""
    here = current()
    found = []
    with here.hub_at(url) as hub:
        for one in hub.every_environment(query):
            if one.status != "active":
                continue
            version = hub.version(one.owner, one.name, one.latest_version)
            file = next((each for each in version.files if each.kind == "sdist"), None)
            source = f"{one.owner}/{one.name}@{version.version}"
            if file is None:
                here.output.warn(f"`{source}` is passed over: it has no source archive")
                continue
            place = work / one.owner / file.filename
            place.parent.mkdir(exist_ok=True)
            hub.download(file.url, place, file.sha256)
            found.append(Candidate(source, file.sha256, place))
    if not found:
        raise NotFound(f"`{url}` lists no environment that can be imported", hint="`wander login --hub URL`?")
    return found


def import_many(candidates: Sequence[Candidate], options: Sequence[str], report: Path, jobs: int) -> int:
    """Import what the report does not have yet, tell how each ended, and return the exit status.

    Each line of the report is written as soon as an import ends; those that failed are tried again.
    """
    here = current()
    known = {(row["source"], row["sha256"], row["dry_run"]): row for row in read_report(report)}
    dry_run = "--dry-run" in options
    ended = [known.get((one.source, one.sha256, dry_run)) for one in candidates]
    rows = [row for row in ended if row is not None and row["outcome"] != "failed"]
    done = {row["source"] for row in rows}
    todo = [one for one in candidates if one.source not in done]
    if rows:
        here.output.note(f"{counted(len(rows), 'package')} of {len(candidates)} in `{report}` already")
    running: set[subprocess.Popen[str]] = set()
    pool = ThreadPoolExecutor(jobs)
    try:
        with (
            report.open("a", encoding="utf-8") as file,
            here.output.progress("importing", len(todo), unit="packages") as bar,
        ):
            waiting = [pool.submit(_import_one, one, options, running) for one in todo]
            for number, future in enumerate(as_completed(waiting), start=1):
                row = {**future.result(), "dry_run": dry_run}
                rows.append(row)
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                bar.update(number, f"{row['source']}: {row['outcome']}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            process.terminate()
    rows.sort(key=lambda row: str(row["source"]))
    _answer(rows, report)
    return PARTIAL if any(row["outcome"] == "failed" for row in rows) else OK


def read_report(path: Path) -> list[Row]:
    """Return the lines of a report; raises `ClientError` for a file that is none."""
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else [], start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if not {"source", "sha256", "dry_run", "outcome"} <= row.keys():
                raise ValueError("a field is missing")
            rows.append(row)
        except (ValueError, AttributeError) as error:
            raise ClientError(
                f"line {number} of `{path}` is no line of a report", hint="choose another `--report`"
            ) from error
    return rows


def _import_one(one: Candidate, options: Sequence[str], running: set[subprocess.Popen[str]]) -> Row:
    here = current()
    variables = {**os.environ, "WANDER_HUB": here.settings.hub}
    if (credential := here.credential()) is not None:
        variables["WANDER_TOKEN"] = credential.token
    began = monotonic()
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
    row: Row = {"source": one.source, "sha256": one.sha256, "seconds": round(monotonic() - began, 1)}
    try:
        answer = json.loads(said)
    except ValueError:
        message = f"it ended with status {process.returncode}"
        why = {"code": "ended", "message": message, "detail": failed[-2000:]}
        return {**row, "outcome": "failed", "error": why}
    if "error" in answer:
        return {**row, "outcome": "failed", "error": answer["error"]}
    data = answer["data"]
    outcome = "would be published" if data["dry_run"] else "published" if data["sent"] else "there already"
    return {**row, "outcome": outcome, **data, "warnings": answer["warnings"]}


def _answer(rows: list[Row], report: Path) -> None:
    output = current().output
    ends = Counter(row["outcome"] for row in rows)
    steps = Counter(row["error"].get("step", "start") for row in rows if row["outcome"] == "failed")

    def show() -> None:
        output.table(
            ("source", "outcome", "as", "plays", "why"),
            [_cells(row) for row in rows],
            shrink=("why", "source"),
            drop=("plays",),
        )
        output.line(", ".join(f"{number} {outcome}" for outcome, number in sorted(ends.items())))
        if steps:
            output.line(f"failed at: {', '.join(f'{step} {number}' for step, number in steps.most_common())}")

    output.answer({"report": str(report), "outcomes": ends, "failed_at": steps, "packages": rows}, show)
    if steps:
        output.next(f"less {report}")


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    if row["outcome"] == "failed":
        error = row["error"]
        return row["source"], f"failed at {error.get('step', 'start')}", "", "", error["message"]
    check = row["check"]
    failed = [] if check is None else [each["id"] for each in check["findings"] if each["status"] == "fail"]
    plays = "yes" if row["deterministic"] else "by chance"
    if check is None or failed:
        plays = "not checked" if check is None else "no"
    return row["source"], row["outcome"], f"{row['environment']} {row['version']}", plays, ", ".join(failed)
