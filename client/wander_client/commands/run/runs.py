"""`wander runs`: list, show, compare, export and report on runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wander_client.context import current
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.names import run_path
from wander_client.terminal.command import Argument, Option, Yes
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from wander.wire import RunDetail

    from wander_client.hub.api import HubApi
    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Cell

Across = Literal["step", "rollouts", "hours"]
Level = Literal["claimed", "unverifiable", "complete", "rescored", "replayed"]


def list_runs(
    folder: Annotated[Path | None, Argument(help="folder with runs  [default: your runs folder]")] = None,
    environment: Annotated[
        str | None,
        Option(
            "--environment",
            "-e",
            help="only this environment: owner/name, a name, or a pattern such as `acme/*`",
        ),
    ] = None,
    model: Annotated[
        str | None, Option("--model", "-m", help="only this model: part of its name, or a pattern")
    ] = None,
    since: Annotated[
        str | None, Option(help="only runs since then: 7d, 36h, 2w, or a day such as 2026-01-31")
    ] = None,
    posted: Annotated[bool, Option("--posted", help="list the runs on the hub instead")] = False,
    level: Annotated[
        list[Level] | None, Option(help="with --posted: only runs of this verification level; repeatable")
    ] = None,
    sort: Annotated[
        str,
        Option(
            metavar="started|reward|model|environment|rollouts",
            help="order of the rows; `-reward` sorts the highest reward first, and so on",
        ),
    ] = "-started",
    limit: Annotated[int | None, Option(min=1, help="rows to show")] = None,
) -> None:
    """List the runs on this machine, or with `--posted` the runs on the hub. The newest run is first.

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
        sort_runs,
    )

    here = current()
    posted = posted or bool(level)
    if folder is not None and posted:
        raise UsageError(
            "`--posted` lists runs of the hub, not of a folder", hint="remove the folder or `--posted`"
        )
    if folder is not None and not folder.is_dir():
        raise NotFound(f"there is no folder `{folder}`", hint="run `wander runs` to list your runs folder")
    wanted = RunFilter(environment, model, moment(since) if since else None, frozenset(level or []))
    if sort.removeprefix("-") not in SORTED_BY:
        sort_runs([], sort)  # raises the error before any run is read
    runs_dir = folder or here.settings.runs_dir
    all_rows = list_posted(here, environment) if posted else local_rows(runs_dir, here.output)
    rows = (row for row in all_rows if wanted.takes(row))
    data = list(islice(rows, limit)) if sort == "-started" else sort_runs(list(rows), sort)[:limit]
    if not data and here.output.human:
        here.output.note("no run on the hub matches" if posted else f"no run in `{runs_dir}`")
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
            # A training keeps only a few sample rollouts, so their counts and mean reward are meaningless.
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


Run = Annotated[str | None, Argument(help="folder or run ID  [default: the newest run]")]
Runs = Annotated[list[str], Argument(help="folders or run IDs")]
PassThreshold = Annotated[
    float | None, Option(help="smallest reward that counts as a pass, for pass@k and pass^k")
]


def show(run: Run = None, pass_threshold: PassThreshold = None) -> None:
    """Show a run: its pinned inputs, results, files and digests.

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
    source = find_run(current(), run)
    training = None
    if source.manifest.kind == "training" and isinstance(source, LocalRun):
        training = read_facts(Path(source.location))
    breakdown = break_down(source.manifest, source.rollouts(), pass_threshold=pass_threshold)
    facts, files = describe_standing(source), files_of(source)
    data = {
        "run_id": source.manifest.run_id,
        **facts,
        "manifest": source.manifest.model_dump(mode="json", by_alias=True),
        "breakdown": breakdown.model_dump(mode="json"),
        "training": training,
        "files": files,
    }

    def lines() -> None:
        from wander.evals.report.document import run_lines

        if training is None:
            for line in run_lines(source.manifest, breakdown):
                output.line(line)
        else:
            for line in format_facts(source.manifest, training):
                output.line(line)
            if training["evaluations"]:
                output.line()
                output.table(*evaluation_rows(training))
        output.line()
        for name, value in list_pinned(source.manifest):
            output.line(f"{name:<12} {value}")
        output.line()
        for name, value in facts.items():
            if value:
                output.line(f"{name.replace('_', ' '):<12} {value}")
        output.line()
        output.table(["file", "bytes", "sha256"], file_rows(files), shrink=["sha256"])

    output.answer(data, lines)
    if training is not None:
        output.next(f"wander runs plot {shell_word(run or source.location)}")
    output.next(f"wander view {shell_word(run or source.location)}")


def export_runs(
    runs: Runs,
    out: Annotated[
        Path,
        Option("--out", "-o", help="output: a file, or a new folder"),
    ],
    format: Annotated[
        Literal["jsonl", "parquet", "hf", "atif", "every-eval-ever", "eval-results", "inspect"] | None,
        Option(help="format of the output  [default: from the name]"),
    ] = None,
    tokens: Annotated[bool, Option("--tokens", help="include token ids and log-probabilities")] = False,
) -> None:
    """Export runs as JSON Lines, Parquet, a dataset folder, or in the format of another tool.

    \b
    wander runs export RUN -o rollouts.jsonl
    wander runs export RUN RUN -o rollouts.parquet
    wander runs export RUN -o dataset        then datasets.load_dataset("dataset")
    wander runs export RUN -o trajectories --format atif

    `messages`, `prompt` and `completion` are conversations in the format of TRL. To select and clean rows for
    training, use `wander runs data` instead.
    """
    from wander_client.runs.exporting import start_export
    from wander_client.runs.lookup import find_run
    from wander_client.terminal.output import counted

    output = current().output
    sources = [find_run(current(), word) for word in runs]
    total = sum(source.summary.rollouts for source in sources)
    rows = 0
    kind, export = start_export(sources, out, format, tokens=tokens)
    with output.progress("exporting", total, unit="rollouts") as progress:
        for rows in export:
            progress.update(rows)
    data = {
        "path": str(out),
        "format": kind,
        "rows": rows,
        "runs": [source.manifest.run_id for source in sources],
    }
    output.answer(data, f"wrote {counted(rows, 'row')} to {out}")


def report(
    runs: Runs,
    markdown: Annotated[bool, Option("--markdown", help="print Markdown")] = False,
    pass_threshold: PassThreshold = None,
) -> None:
    """Report on runs or on a suite. Each run is compared with the first run of its environment.

    \b
    wander runs report RUN
    wander runs report runs/nightly
    wander runs report RUN --markdown > report.md
    """
    from wander.evals.report.contents import report_of
    from wander.evals.report.document import report_lines, report_markdown

    from wander_client.runs.lookup import find_run
    from wander_client.suites.folder import expand_suites

    output = current().output
    words = expand_suites(current().settings.runs_dir, runs, incomplete=True)
    sources: list[FoundRun] = [find_run(current(), word) for word in words]
    contents = report_of(sources, pass_threshold=pass_threshold)
    text = report_markdown(contents) if markdown else "\n".join(report_lines(contents))
    output.answer(contents.model_dump(mode="json", by_alias=True), text.rstrip("\n"))


def schema(
    part: Annotated[str, Argument(help="run, rollout or summary")] = "run",
) -> None:
    """Print the JSON Schema of a file in a run's folder.

    \b
    wander runs schema > run.schema.json
    wander runs schema rollout
    """
    import json

    from wander.evals.store.schema import PARTS, record_schema

    if part not in PARTS:
        raise UsageError(f"a run has no file `{part}`", hint=f"choose one of {', '.join(PARTS)}")
    schema = record_schema(part)
    current().output.answer(schema, json.dumps(schema, indent=2, ensure_ascii=False))


def plot(
    runs: Annotated[list[str], Argument(help="folders or IDs of training runs, or NAME=RUN")],
    out: Annotated[
        list[Path] | None, Option("-o", "--out", help="output: a .svg, .png, .html or .json file; repeatable")
    ] = None,
    metric: Annotated[
        list[str] | None, Option(help="draw only this metric, such as `rewards/won`; repeatable")
    ] = None,
    across: Annotated[Across, Option("-x", help="x-axis")] = "step",
) -> None:
    """Plot the curves of a training run, or of several training runs on the same axes.

    \b
    wander runs plot runs/RUN
    wander runs plot small=runs/A large=runs/B -o comparison.html
    wander runs plot runs/A runs/B --metric reward --metric entropy -x rollouts -o two.png
    """
    from wander.train.watch.plots import draw_runs, read_plotted

    from wander_client.runs.lookup import run_folder

    output = current().output
    plotted, folders = [], []
    for word in runs:
        name, named, path = word.partition("=")
        folder = run_folder(current(), path if named else word).path
        folders.append(folder)
        plotted.append(read_plotted(folder, name if named else None))
    names = [run.name for run in plotted]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"two runs have the name `{duplicates[0]}`", hint="give them names: `first=RUN second=RUN`"
        )
    files = out or [folders[0] / "learning_curve.svg" if len(runs) == 1 else Path("comparison.svg")]
    title = f"training run {names[0]}" if len(names) == 1 else f"{len(names)} training runs"
    drawn = draw_runs(plotted, files, title=title, across=across, metrics=metric or [])
    if not drawn:
        output.note("nothing to plot yet: a curve needs two steps")
    output.answer(
        {"runs": names, "plots": [str(file) for file in drawn]},
        "\n".join(str(file) for file in drawn) if drawn else None,
    )


def evidence(
    run: Annotated[str, Argument(help="ID of a posted run, or the run's folder")],
) -> None:
    """Show what the hub verified about a posted run at each level, and what cannot be verified.

    \b
    wander runs evidence RUN
    wander runs evidence RUN --json

    If you pass a folder, its manifest, rollouts and artifacts must be identical to the posted run.
    """
    here = current()
    with here.hub() as hub:
        run_id = resolve_posted_id(hub, run)
        if Path(run).is_dir():
            _require_posted(hub.run(run_id), Path(run))
        evidence = hub.evidence(run_id)

    def lines() -> None:
        here.output.line(f"{evidence.level}: {evidence.level_reason}")
        for proof in evidence.proofs:
            here.output.line()
            here.output.line(f"{proof.level:<10} {proof.proof}: {proof.told}")
            here.output.line(f"{'':<10} the hub {proof.did}")
            if proof.proof == "proved":
                here.output.line(f"{'':<10} not proved: {proof.unproven}")
        for rerun in evidence.reruns:
            counted = f"does not count: {rerun.note}" if rerun.note else "agrees"
            here.output.line(f"repeated by {rerun.posted_by} in {rerun.run_id} ({rerun.level}): {counted}")
        here.output.line()
        if evidence.tokens is not None:
            here.output.line(f"tokens: {evidence.tokens.told}")
        here.output.line(f"self-reported: {evidence.stated}")

    here.output.answer(evidence, lines)


def _require_posted(posted: RunDetail, folder: Path) -> None:
    """Raise `ClientError` if a folder's manifest, rollouts or artifacts differ from the posted run."""
    import shlex

    from wander.evals.store.folder import RunFolder

    from wander_client.hub.posting import files_of, pack_run

    with pack_run(RunFolder.open(folder).manifest, files_of(folder)) as parcel:
        if parcel.sha256 != posted.sha256:
            raise ClientError(
                f"`{folder}` differs from the posted run `{posted.run_id}`: sha256:{parcel.sha256} here, "
                f"sha256:{posted.sha256} on the hub",
                hint=f"compare them with `wander runs compare {shlex.quote(str(folder))} {posted.run_id}`, "
                f"or show the posted run with `wander runs evidence {posted.run_id}`",
                code="not_as_posted",
            )


def publish(
    run: Annotated[str, Argument(help="ID of a private run on the hub, or the run's folder")],
) -> None:
    """Make one of your private runs public, and list it on its leaderboard. This cannot be undone.

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
    run: Annotated[str, Argument(help="ID of a posted run, or the run's folder")],
    name: Annotated[str, Argument(help='name in lists and on leaderboards; `""` removes the name')],
) -> None:
    """Give a posted run a name. Its record, its digest and its rank do not change.

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
    text = f"named {detail.name}" if detail.name else "without a name"
    here.output.answer(detail, f"{text}: {detail.url}")


def withdraw(
    run: Annotated[str, Argument(help="ID of a posted run, or the run's folder")],
    reason: Annotated[str, Option(help="reason, shown to everybody")],
    yes: Yes = False,
) -> None:
    """Delete the rollouts of a posted run permanently. Its manifest, its digests and the reason stay public.

    \b
    wander runs withdraw RUN --reason "evaluated with the wrong prompt"
    """
    from wander.wire import RunDetail

    here = current()
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        here.output.confirm(run_id, "withdraw this run permanently", yes=yes)
        detail = hub.change("DELETE", run_path(run_id), RunDetail, params={"reason": reason})
    here.output.answer(detail, f"withdrawn: {detail.url}")


def resolve_posted_id(hub: HubApi, word: str) -> str:
    """Return the full ID of a posted run, given its ID, the beginning of its ID, or the run's folder."""
    from wander.evals.store.folder import RunFolder

    known = RunFolder.open(Path(word)).manifest.run_id if Path(word).is_dir() else word
    return hub.run(known).run_id
