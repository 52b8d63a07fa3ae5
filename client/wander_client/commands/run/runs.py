"""`wander runs`: list runs, show one, tell two apart, export and report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from wander_client.context import current
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.names import run_path
from wander_client.terminal.command import Argument, Option, Yes
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.wire import RunDetail

    from wander_client.hub.api import HubApi
    from wander_client.runs.diff import MessageDifference, RunDiff
    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Cell


def list_runs(
    folder: Annotated[Path | None, Argument(help="another folder of runs")] = None,
    environment: Annotated[
        str | None, Option("--environment", "-e", help="owner/name, a name, or a pattern: `acme/*`")
    ] = None,
    model: Annotated[str | None, Option("--model", "-m", help="part of its name, or a pattern")] = None,
    since: Annotated[str | None, Option(help="7d, 36h, 2w, or a day: 2026-01-31")] = None,
    posted: Annotated[bool, Option("--posted", help="list the runs on the hub instead")] = False,
    level: Annotated[
        list[str] | None, Option(help="with --posted: only of this verification level; repeatable")
    ] = None,
    sort: Annotated[
        str, Option(help="started, reward, model, environment, rollouts; -reward: highest first")
    ] = "-started",
    limit: Annotated[int | None, Option(min=1, help="rows of the list")] = None,
) -> None:
    """List runs of this machine, or with `--posted` of the hub, the newest first.

    \b
    wander runs
    wander runs -e acme/wordle -m smollm2 --since 7d --sort -reward
    wander runs --posted --level replayed --json
    """
    from itertools import islice

    from wander_client.runs.listing import (
        SORTED_BY,
        RunFilter,
        list_posted,
        local_rows,
        moment,
        require_level,
        sort_runs,
    )

    here = current()
    posted = posted or bool(level)
    if folder is not None and posted:
        raise UsageError(
            "`--posted` lists runs of the hub, not of a folder", hint="leave the folder or `--posted` out"
        )
    if folder is not None and not folder.is_dir():
        raise NotFound(f"there is no folder `{folder}`", hint="`wander runs` lists those of this folder")
    wanted = RunFilter(
        environment, model, moment(since) if since else None, frozenset(map(require_level, level or []))
    )
    if sort.removeprefix("-") not in SORTED_BY:
        sort_runs([], sort)  # says so before anything is read
    place = folder or here.settings.runs_dir
    every = list_posted(here, environment) if posted else local_rows(place, here.output)
    rows = (row for row in every if wanted.takes(row))
    data = list(islice(rows, limit)) if sort == "-started" else sort_runs(list(rows), sort)[:limit]
    if not data and here.output.human:
        here.output.note("no run on the hub matches" if posted else f"there is no run in `{place}`")
        if wanted == RunFilter():
            here.output.next("wander eval OWNER/NAME -m MODEL")
        return
    here.output.answer(data, lambda: _show_list(data, posted))
    if data:
        here.output.next(f"wander view {data[0]['run_id']}")


def _show_list(data: list[dict[str, Any]], posted: bool) -> None:
    from wander_client.runs.lookup import short_ids

    output = current().output
    shown = [str(row["run_id"]) for row in data]
    ids = short_ids(shown) if output.human else shown
    last = "level" if posted else "run_dir"
    rows: list[list[Cell]] = [
        [
            run_id,
            f"{row['started_at']:%Y-%m-%d %H:%M}",
            row["environment"],
            row["model"],
            # The few rollouts that training keeps to be read say nothing of how it came out.
            "training" if row["kind"] == "training" else f"{played}/{row['expected']}",
            None if row["kind"] == "training" else row["reward_mean"],
            row[last],
        ]
        for run_id, row in zip(ids, data, strict=True)
        for played in ["?" if row["rollouts"] is None else row["rollouts"]]
    ]
    columns = ["run", "started", "environment", "model", "rollouts", "reward"]
    columns.append("level" if posted else "folder")
    if any(row.get("name") for row in data):
        columns.insert(4, "name")
        for cells, row in zip(rows, data, strict=True):
            cells.insert(4, row["name"])
    drop = ["started"] if posted else ["folder", "started"]
    output.table(columns, rows, shrink=["model", "name"] if "name" in columns else ["model"], drop=drop)


Run = Annotated[str | None, Argument(help="folder, run id, or nothing for the newest run")]
Runs = Annotated[list[str], Argument(help="folders or run ids")]
PassThreshold = Annotated[
    float | None, Option(help="least reward of a rollout that passes, for pass@k and pass^k")
]


def show(run: Run = None, pass_threshold: PassThreshold = None) -> None:
    """Show one run: what it pinned, how it came out, its files and digests.

    \b
    wander runs show
    wander runs show RUN --pass-threshold 0.5
    wander runs show RUN_ID --json
    """
    from wander.evals.stats.breakdown import break_down

    from wander_client.runs.details import describe_standing, file_rows, files_of, list_pinned
    from wander_client.runs.found import LocalRun
    from wander_client.runs.lookup import find_run
    from wander_client.training.text import evaluation_rows, format_facts, read_facts

    output = current().output
    found = find_run(current(), run)
    training = None
    if found.manifest.kind == "training" and isinstance(found, LocalRun):
        training = read_facts(Path(found.place))
    breakdown = break_down(found.manifest, found.rollouts(), pass_threshold=pass_threshold, shown=0)
    facts, files = describe_standing(found), files_of(found)
    data = {
        "run_id": found.manifest.run_id,
        **facts,
        "manifest": found.manifest.model_dump(mode="json", by_alias=True),
        "breakdown": breakdown.model_dump(mode="json"),
        "training": training,
        "files": files,
    }

    def lines() -> None:
        from wander.evals.report.document import run_lines

        if training is None:
            for line in run_lines(found.manifest, breakdown):
                output.line(line)
        else:
            for line in format_facts(found.manifest, training):
                output.line(line)
            if training["evaluations"]:
                output.line()
                output.table(*evaluation_rows(training))
        output.line()
        for name, value in list_pinned(found.manifest):
            output.line(f"{name:<12} {value}")
        output.line()
        for name, value in facts.items():
            if value:
                output.line(f"{name.replace('_', ' '):<12} {value}")
        output.line()
        output.table(["file", "bytes", "sha256"], file_rows(files), shrink=["sha256"])

    output.answer(data, lines)
    if training is not None:
        output.next(f"wander runs plot {run or found.place}")
    output.next(f"wander view {run or found.place}")


def diff(
    before: Annotated[str, Argument(help="folder or run id")],
    after: Annotated[str, Argument(help="folder or run id")],
    example: Annotated[
        str | None, Option(help="EXAMPLE or EXAMPLE/INDEX: where its messages first differ")
    ] = None,
    limit: Annotated[int, Option(min=0, help="changed rollouts to list")] = 20,
) -> None:
    """Tell how two runs differ: what they pinned, which rewards changed, what was first said otherwise.

    \b
    wander runs diff runs/before runs/after
    wander runs diff RUN_ID runs/mine --example 17/0
    wander runs diff runs/before runs/after --json

    Whether the one does better than the other is for `wander runs compare` to say.
    """
    from wander_client.runs.diff import diff_runs, first_difference
    from wander_client.runs.lookup import find_run

    output = current().output
    first, second = find_run(current(), before), find_run(current(), after)
    found = diff_runs(first, second)
    key = _key(example) if example is not None else found.first_key
    message = first_difference(first, second, key) if key is not None else None
    data = {
        "before_run": first.manifest.run_id,
        "after_run": second.manifest.run_id,
        **asdict(found),
        "first_difference": None if message is None else vars(message),
    }
    if found.other_questions:
        differ = " and ".join(found.other_questions)
        output.warn(f"the runs differ in {differ}: examples of the same id may differ")
    output.answer(data, lambda: _show_diff(found, message, example, limit))


def _key(word: str) -> tuple[str, int]:
    example, slash, index = word.rpartition("/")
    return (example, int(index)) if slash and index.isdecimal() else (word, 0)


def _show_diff(found: RunDiff, message: MessageDifference | None, example: str | None, limit: int) -> None:
    from wander_client.runs.diff import message_difference_lines
    from wander_client.runs.text import shorten
    from wander_client.terminal.output import counted

    output = current().output
    if found.manifest:
        fields: list[list[Cell]] = [
            [one.field, shorten(str(one.before)), shorten(str(one.after))] for one in found.manifest
        ]
        output.table(["field", "before", "after"], fields, shrink=["before", "after"])
    else:
        output.line("both runs pinned the same")
    output.line()
    output.line(
        f"{counted(found.same, 'rollout')} the same, {found.said_otherwise:,} with other messages and the "
        f"same reward, {len(found.changed):,} with another reward"
    )
    if found.only_before or found.only_after:
        output.line(f"{found.only_before:,} only in the first run, {found.only_after:,} only in the second")
    if found.changed[:limit]:
        rows: list[list[Cell]] = [
            [one.example_id, one.index, one.failed_before or one.before, one.failed_after or one.after]
            for one in found.changed[:limit]
        ]
        output.line()
        output.table(["example", "index", "before", "after"], rows, shrink=["example"])
    if message is not None:
        output.line()
        for line, style in message_difference_lines(message):
            output.line(line, style=style)
    elif example is not None:
        output.line(f"the messages of `{example}` are the same in both runs")


def export_runs(
    runs: Runs,
    out: Annotated[
        Path, Option("--out", "-o", help="a `.jsonl` or `.parquet` file, or a new folder for a dataset")
    ],
    format: Annotated[str | None, Option(help="jsonl, parquet or hf  [default: by the file name]")] = None,
    tokens: Annotated[bool, Option("--tokens", help="include token ids and log-probabilities")] = False,
) -> None:
    """Write rollouts as rows for other tools: JSON Lines, Parquet, or a Hugging Face dataset folder.

    \b
    wander runs export RUN -o rollouts.jsonl
    wander runs export RUN RUN -o rollouts.parquet
    wander runs export RUN -o dataset        then datasets.load_dataset("dataset")

    `messages`, `prompt` and `completion` are conversations, as TRL takes them. `wander runs data` selects and
    cleans rows to train on instead.
    """
    from wander.evals.export import Format, export_runs, format_of

    from wander_client.runs.lookup import find_run
    from wander_client.terminal.output import counted

    output = current().output
    kind = choose("--format", format, get_args(Format)) if format else format_of(out)
    found = [find_run(current(), one) for one in runs]
    total = sum(one.summary.rollouts for one in found)
    rows = 0
    with output.progress("exporting", total, unit="rollouts") as progress:
        for rows in export_runs(found, out, kind, tokens=tokens):
            progress.update(rows)
    data = {
        "path": str(out),
        "format": kind,
        "rows": rows,
        "runs": [one.manifest.run_id for one in found],
    }
    output.answer(data, f"wrote {counted(rows, 'row')} to {out}")


def report(
    runs: Runs,
    html: Annotated[Path | None, Option(help="write a page with charts that needs no network")] = None,
    markdown: Annotated[bool, Option("--markdown", help="print Markdown")] = False,
    examples: Annotated[int, Option(min=0, help="best and worst rollouts to show on the page")] = 3,
    pass_threshold: PassThreshold = None,
) -> None:
    """Report on runs, or on a suite: side by side, each compared with the first of its environment.

    \b
    wander runs report RUN
    wander runs report runs/nightly --html report.html
    wander runs report RUN RUN --html report.html
    wander runs report RUN --markdown > report.md
    """
    from wander.evals.report.contents import report_of
    from wander.evals.report.document import report_lines, report_markdown

    from wander_client.runs.lookup import find_run
    from wander_client.suites.folder import expand_suites

    output = current().output
    words = expand_suites(current().settings.runs_dir, runs, incomplete=True)
    found: list[FoundRun] = [find_run(current(), one) for one in words]
    made = report_of(found, pass_threshold=pass_threshold, shown=examples if html else 0)
    data = made.model_dump(mode="json", by_alias=True)
    if html is not None:
        from wander.evals.report.page import html_report
        from wander.evals.store.jsonl import write_whole

        write_whole(html, html_report(made).encode("utf-8", "backslashreplace"))
        output.answer({**data, "html": str(html)}, f"wrote {html}")
        return
    text = report_markdown(made) if markdown else "\n".join(report_lines(made))
    output.answer(data, text.rstrip("\n"))


def schema(
    part: Annotated[str, Argument(help="run, rollout or summary")] = "run",
) -> None:
    """Print the JSON Schema of a file of the run folder; a hub publishes the same at `/schemas`.

    \b
    wander runs schema > run.schema.json
    wander runs schema rollout
    """
    import json

    from wander.evals.store.schema import PARTS, record_schema

    if part not in PARTS:
        raise UsageError(f"no file of a run is called `{part}`", hint=f"write one of {', '.join(PARTS)}")
    found = record_schema(part)
    current().output.answer(found, json.dumps(found, indent=2, ensure_ascii=False))


def plot(
    runs: Annotated[list[str], Argument(help="folders or ids of training runs, or NAME=RUN")],
    out: Annotated[
        list[Path] | None, Option("-o", "--out", help="a .svg, .png, .html or .json file; repeatable")
    ] = None,
    metric: Annotated[
        list[str] | None, Option(help="draw only this metric, such as `rewards/won`; repeatable")
    ] = None,
    across: Annotated[str, Option("-x", help="step, rollouts or hours")] = "step",
) -> None:
    """Draw the curves of training runs: one in detail, or several on the same axes.

    \b
    wander runs plot runs/RUN
    wander runs plot small=runs/A large=runs/B -o comparison.html
    wander runs plot runs/A runs/B --metric reward --metric entropy -x rollouts -o two.png
    """
    from wander.train.watch.plots import Across, draw_runs, read_plotted

    from wander_client.runs.lookup import run_folder

    output = current().output
    axis = choose("-x", across, get_args(Across))
    plotted, folders = [], []
    for word in runs:
        name, named, place = word.partition("=")
        folder = run_folder(current(), place if named else word).path
        folders.append(folder)
        plotted.append(read_plotted(folder, name if named else None))
    names = [one.name for one in plotted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two runs are called `{twice[0]}`", hint="name them: `first=RUN second=RUN`")
    files = out or [folders[0] / "learning_curve.svg" if len(runs) == 1 else Path("comparison.svg")]
    title = f"training run {names[0]}" if len(names) == 1 else f"{len(names)} training runs"
    drawn = draw_runs(plotted, files, title=title, across=axis, metrics=metric or [])
    if not drawn:
        output.note("there is nothing to draw yet: a curve needs two steps")
    output.answer(
        {"runs": names, "plots": [str(file) for file in drawn]},
        "\n".join(str(file) for file in drawn) if drawn else None,
    )


def evidence(
    run: Annotated[str, Argument(help="a run on the hub: its id, or the folder here")],
) -> None:
    """Tell what the hub proved of a posted run, level by level, and what nobody can.

    \b
    wander runs evidence RUN
    wander runs evidence RUN --json

    Manifest, rollouts and artifacts of a folder must be the posted ones, else nothing is told.
    """
    here = current()
    with here.hub() as hub:
        run_id = resolve_posted_id(hub, run)
        if Path(run).is_dir():
            _require_posted(hub.run(run_id), Path(run))
        found = hub.evidence(run_id)

    def lines() -> None:
        here.output.line(f"{found.level}: {found.level_reason}")
        for one in found.proofs:
            here.output.line()
            here.output.line(f"{one.level:<10} {one.proof}: {one.told}")
            here.output.line(f"{'':<10} the hub {one.did}")
            if one.proof == "proved":
                here.output.line(f"{'':<10} not proved: {one.unproven}")
        for each in found.reruns:
            counted = f"does not count: {each.note}" if each.note else "agrees"
            here.output.line(f"repeated by {each.posted_by} in {each.run_id} ({each.level}): {counted}")
        here.output.line()
        if found.tokens is not None:
            here.output.line(f"tokens: {found.tokens.told}")
        here.output.line(f"as its submitter states it: {found.stated}")

    here.output.answer(found, lines)


def _require_posted(posted: RunDetail, folder: Path) -> None:
    """Raise `ClientError` unless a folder's manifest, rollouts and artifacts are those that were posted."""
    import shlex

    from wander.evals.store.folder import RunFolder

    from wander_client.hub.posting import files_of, pack_run

    with pack_run(RunFolder.open(folder).manifest, files_of(folder)) as parcel:
        if parcel.sha256 != posted.sha256:
            raise ClientError(
                f"`{folder}` is not what was posted as `{posted.run_id}`: sha256:{parcel.sha256} here, "
                f"sha256:{posted.sha256} there",
                hint=f"run `wander runs diff {shlex.quote(str(folder))} {posted.run_id}` to see where they "
                f"differ; `wander runs evidence {posted.run_id}` tells of the posted one",
                code="not_as_posted",
            )


def publish(
    run: Annotated[str, Argument(help="a private run on the hub: its id, or the folder here")],
) -> None:
    """Make a private run of yours public, on its leaderboard too. This cannot be undone.

    \b
    wander runs publish RUN
    """
    from wander.wire import RunDetail

    here = current()
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        detail = hub.change("POST", run_path(run_id, "publish"), RunDetail)
    here.output.answer(detail, f"public: {detail.url}")


def rename(
    run: Annotated[str, Argument(help="a run on the hub: its id, or the folder here")],
    name: Annotated[str, Argument(help='what it is called in lists and on boards; `""` takes the name away')],
) -> None:
    """Name a run that you posted. Its record, its digest and its place on the leaderboard stay as they are.

    \b
    wander runs rename RUN "longer prompt"
    wander runs rename RUN ""
    """
    from wander.wire import RunDetail

    from wander_client.names import parse_run_name

    here = current()
    wanted = parse_run_name(name)
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        detail = hub.change("PUT", run_path(run_id, "name"), RunDetail, wanted)
    said = f"named {detail.name}" if detail.name else "without a name"
    here.output.answer(detail, f"{said}: {detail.url}")


def withdraw(
    run: Annotated[str, Argument(help="a run on the hub: its id, or the folder here")],
    reason: Annotated[str, Option(help="reason, shown to everybody")],
    yes: Yes = False,
) -> None:
    """Remove the rollouts of a run you posted for good; its manifest, its digests and the reason stay.

    \b
    wander runs withdraw RUN --reason "evaluated with the wrong prompt"
    """
    from wander.wire import RunDetail

    here = current()
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        here.output.confirm(run_id, "withdraw it for good", yes=yes)
        detail = hub.change("DELETE", run_path(run_id), RunDetail, params={"reason": reason})
    here.output.answer(detail, f"withdrawn: {detail.url}")


def resolve_posted_id(hub: HubApi, word: str) -> str:
    """Return the whole id of the posted run that a word means: its id, the beginning, or the folder here."""
    from wander.evals.store.folder import RunFolder

    known = RunFolder.open(Path(word)).manifest.run_id if Path(word).is_dir() else word
    return hub.run(known).run_id
