"""Import many packages, each in a `wander env import path` process. A report makes the batch resumable."""

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
    """A line of the report: the result of importing one package."""

    source: str
    sha256: str
    hub: str
    owner: str | None
    dry_run: bool
    outcome: Literal["published", "there already", "would be published", "failed"]
    seconds: float
    answer: dict[str, Any] | None = None
    """Output of `wander env import path --json`, or None if it failed."""
    error: dict[str, Any] | None = None
    """Error as `--json` prints it, with the `step` that failed."""
    warnings: list[str] = Field(default_factory=list)


_PLAYS = {"load.works", "dataset.rows", "rollout.faults", "rollout.stops"}
"""Checks that an environment must pass to be playable. Failures of other checks are left to its author."""
_REPEATS = ("determinism.", "dataset.stable", "dataset.access")
"""Checks that fail if an environment is not deterministic."""


@dataclass(frozen=True)
class PackageToImport:
    """A package to import."""

    source: str
    """Name of the package in the report."""
    sha256: str
    """Digest of the package's files. Packages with a digest in the report are not imported again."""
    path: Path


def candidates_in(folder: Path) -> list[PackageToImport]:
    """Return the projects, sdists and wheels in a folder.

    Raises `NotFound` if the folder contains only other files.
    """
    from wander_client.packages.origins.source import folder_digest

    if not folder.expanduser().is_dir():
        raise NotFound(f"`{folder}` is not a folder", hint="pass the folder that contains the packages")
    candidates = []
    for path in sorted(folder.expanduser().resolve().glob("[!.]*")):
        if path.name.endswith((".whl", ".tar.gz")) and path.is_file():
            candidates.append(PackageToImport(path.name, file_digest(path), path))
        elif (path / "pyproject.toml").is_file() or (path / "setup.py").is_file():
            candidates.append(PackageToImport(path.name, folder_digest(path), path))
    if not candidates:
        raise NotFound(f"no packages in `{folder}`", hint="pass the folder that contains the packages")
    return candidates


def import_many(
    candidates: Sequence[PackageToImport], owner: str | None, options: Sequence[str], report: Path, jobs: int
) -> int:
    """Import the packages that the report does not list yet, print the results, and return the exit status.

    Each line of the report is written as soon as an import ends. Failed imports are tried again.
    Raises `Unavailable` as soon as the hub does not respond; the report then has no line for that package.
    """
    here = current()
    target = {"hub": here.settings.hub, "owner": owner, "dry_run": "--dry-run" in options}
    earlier = [
        row
        for row in jsonl.read_records(report, ImportRow)
        if row.outcome != "failed" and target == {name: getattr(row, name) for name in target}
    ]
    known = {(row.source, row.sha256): row for row in earlier}
    rows = [known[key] for package in candidates if (key := (package.source, package.sha256)) in known]
    todo = [package for package in candidates if (package.source, package.sha256) not in known]
    if rows:
        here.output.note(f"{counted(len(rows), 'package')} of {len(candidates)} already in `{report}`")
    words = [*options, *(["--owner", owner] if owner else [])]
    running: set[subprocess.Popen[str]] = set()
    if report.exists() and (
        partial_line := jsonl.tail_after_newline(report)
    ):  # the last line is incomplete after a kill
        os.truncate(report, report.stat().st_size - len(partial_line))
    pool = ThreadPoolExecutor(jobs)
    try:
        with (
            report.open("a", encoding="utf-8") as file,
            here.output.progress("importing", len(todo), unit="packages") as bar,
        ):
            waiting = [pool.submit(_import_one, package, words, running) for package in todo]
            for number, future in enumerate(as_completed(waiting), start=1):
                row = ImportRow.model_validate({**future.result(), **target})
                if (
                    row.error is not None and row.error["code"] == "hub_unreachable"
                ):  # every other import would fail, too
                    raise Unavailable(
                        f"{row.error['message']}: {len(todo) - number + 1} of {len(todo)} were not imported",
                        hint="start the hub and run the same command again to continue",
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
    package: PackageToImport, options: Sequence[str], running: set[subprocess.Popen[str]]
) -> dict[str, Any]:
    """Import a package in its own process, and return the fields of its row."""
    here = current()
    own = [name for name in os.environ if name.startswith(("WANDER_", "UV_", "PIP_", "PRIME_", "XDG_"))]
    variable_names = [*own, *NETWORK, *(word for word in options if word in os.environ)]
    variables = child_environ(*LOCALE, asked=variable_names, WANDER_HUB=here.settings.hub)
    if (credential := here.credential()) is not None:
        variables["WANDER_TOKEN"] = credential.token
    started = monotonic()

    def row(outcome: str, **more: Any) -> dict[str, Any]:
        seconds = round(monotonic() - started, 1)
        return {
            "source": package.source,
            "sha256": package.sha256,
            "outcome": outcome,
            "seconds": seconds,
            **more,
        }

    words = ["env", "import", "path", str(package.path), *options, "--json"]
    with subprocess.Popen(  # noqa: S603 - this command itself, no shell
        [sys.executable, "-m", "wander_client", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    ) as process:
        running.add(process)
        stdout, stderr = process.communicate()
        running.discard(process)
    try:
        answer = json.loads(stdout)
    except ValueError:
        message = f"the process exited with status {process.returncode}"
        return row("failed", error={"code": "ended", "message": message, "detail": stderr[-2000:]})
    if "error" in answer:
        return row("failed", error=answer["error"])
    data = answer["data"]
    outcome = "would be published" if data["dry_run"] else "published" if data["sent"] else "there already"
    return row(outcome, answer=data, warnings=answer["warnings"])


def _answer(rows: list[ImportRow], report: Path) -> None:
    output = current().output
    outcomes = Counter(row.outcome for row in rows)
    steps = Counter(row.error.get("step", "start") for row in rows if row.error is not None)

    def show() -> None:
        columns = ("source", "outcome", "as", "plays", "error")
        output.table(columns, [_cells(row) for row in rows], shrink=("error", "source"), drop=("plays",))
        output.line(", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items())))
        if steps:
            output.line(f"failed at: {', '.join(f'{step} {number}' for step, number in steps.most_common())}")

    listed = [row.model_dump(mode="json") for row in rows]
    output.answer({"report": str(report), "outcomes": outcomes, "failed_at": steps, "packages": listed}, show)
    if steps:
        output.next(f"less {report}")


def _cells(row: ImportRow) -> tuple[str, str, str, str, str]:
    if row.error is not None:
        return row.source, f"failed at {row.error.get('step', 'start')}", "", "", row.error["message"]
    assert row.answer is not None
    check = row.answer["check"]
    failed = (
        []
        if check is None
        else [finding["id"] for finding in check["findings"] if finding["status"] == "fail"]
    )
    if check is None:
        plays = "not checked"
    elif _PLAYS & set(failed):
        plays = "no"
    else:
        varies = not row.answer["deterministic"] or any(check_id.startswith(_REPEATS) for check_id in failed)
        plays = "not deterministic" if varies else "yes"
    name = f"{row.answer['environment']} {row.answer['version']}"
    return row.source, row.outcome, name, plays, ", ".join(failed)
