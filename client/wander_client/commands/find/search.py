"""`wander search`, `wander env info`: the environments of the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from wander_client.context import current
from wander_client.names import parse_name
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander.wire import VersionDetail

    from wander_client.environments.published import PublishedEnvironment

Sort = Literal["relevance", "updated", "newest", "runs", "downloads"]


def search(
    query: Annotated[str, Argument(help="search words; without them, all environments are listed")] = "",
    owner: Annotated[str | None, Option(help="only environments of this owner")] = None,
    tag: Annotated[str | None, Option(help="only environments with this tag")] = None,
    kind: Annotated[
        str | None,
        Option(
            metavar="KIND",
            help="only environments of this kind: single-turn, multi-turn, tool, stateful-tool, mcp, rlm, "
            "shell, agent, group, or the kind of another class",
        ),
    ] = None,
    license: Annotated[str | None, Option(help="only environments with this license: MIT, ...")] = None,
    deterministic: Annotated[bool, Option("--deterministic", help="only deterministic environments")] = False,
    checked: Annotated[bool, Option("--checked", help="only environments that passed their checks")] = False,
    sort: Annotated[
        Sort | None, Option(help="sort order; default: relevance with search words, otherwise last update")
    ] = None,
    limit: Annotated[int, Option(min=1, max=200, help="rows to show")] = 50,
    cursor: Annotated[
        str | None, Option(help="start of the next page: `next` of the previous page's --json")
    ] = None,
) -> None:
    """Find environments on the hub.

    \b
    wander search
    wander search tic
    wander search --tag game --json
    wander search chess --checked --sort downloads
    """
    here = current()
    filters = {
        "kind": kind,
        "license": license,
        "deterministic": deterministic or None,
        "checked": checked or None,
        "sort": sort,
    }
    narrowed = bool(query or owner or tag or any(filters.values()))
    with here.hub() as hub:
        page = hub.environments(query, owner=owner, tag=tag, limit=limit, cursor=cursor, **filters)

    def show() -> None:
        columns = ["environment", "version", "best", "by", "runs", "updated", "status", "summary"]
        here.output.table(
            columns,
            [
                [
                    f"{row.owner}/{row.name}",
                    row.latest_version,
                    row.best_reward,
                    row.best_model,
                    row.runs,
                    f"{row.updated_at:%Y-%m-%d}",
                    "" if row.status == "active" else row.status,
                    row.summary,
                ]
                for row in page.data
            ],
            shrink=["summary", "by"],
            drop=["updated", "runs", "by"],
        )

    if page.data or not here.output.human:
        here.output.answer(page.data, show, next=page.next)
    if not page.data:
        here.output.note(
            f"no matching environments on {here.settings.hub}" if narrowed else "the hub is empty"
        )
        here.output.next("wander search" if narrowed else "wander new my-env")
    else:
        first = page.data[0]
        here.output.next(f"wander env info {first.owner}/{first.name}")


def info(
    environment: Annotated[str, Argument(help="owner/name or owner/name@version")],
    readme: Annotated[bool, Option("--readme", help="print only the README")] = False,
) -> None:
    """Show one environment or version.

    \b
    wander env info admin/tictactoe
    wander env info admin/tictactoe@0.1.0 --json
    wander env info admin/tictactoe --readme
    """
    from wander_client.environments.published import describe

    here = current()
    name = parse_name(environment)
    detail = describe(here, name)
    if readme:
        here.output.answer(detail, detail.readme)
        return
    here.output.answer(detail, lambda: _show(detail))
    exact = f"{name.owner}/{name.name}" + (f"@{name.version}" if name.version else "")
    here.output.next(f"wander eval {exact} -m MODEL")


def _show(detail: PublishedEnvironment) -> None:
    from wander_client.packages.install import status_words

    output, version = current().output, detail.version
    output.line(f"{detail.owner}/{detail.name} {version.version}", style="bold")
    if version.summary:
        output.line(version.summary)
    output.line()
    best = f"{detail.best_reward:.4g} by {detail.best_model}" if detail.best_reward is not None else ""
    facts: list[tuple[str, str]] = [
        ("status", "" if detail.status == "active" else status_words(detail)),
        ("tags", ", ".join(version.tags)),
        ("license", version.license or ""),
        ("python", version.requires_python or ""),
        ("requires", ", ".join(version.requires_dist)),
        ("published", f"{version.uploaded_at:%Y-%m-%d %H:%M} UTC by {version.uploaded_by}"),
        ("imported", detail.origin or ""),
        *_check(version),
        ("source", _source(version)),
        *(
            ("flagged", f"{warning.code}: {warning.detail} ({warning.filename})")
            for warning in version.warnings
        ),
        (
            "lock",
            f"sha256:{version.lock.sha256}"
            if version.lock
            else "no lock: packages are resolved at every installation",
        ),
        ("yanked", (version.yanked_reason or "yes") if version.yanked else ""),
        (
            "versions",
            ", ".join(
                number + " (yanked)" * (number in detail.yanked_versions) for number in detail.all_versions
            ),
        ),
        ("installed", ", ".join(detail.installed) or "no"),
        ("runs", str(detail.runs)),
        ("best", best),
    ]
    facts += [(file.kind, f"{file.filename}  sha256:{file.sha256}") for file in version.files]
    for label, text in facts:
        if text:
            output.line(f"{label:<10} {text}")


def _check(version: VersionDetail) -> list[tuple[str, str]]:
    """Return the publisher's check: first the counts, then a line for each failed or warned check."""
    check = version.check
    if check is None:
        return [("check", "not checked")]
    summary = f"checked by the publisher with wander {check.wander}: {check.counts}"
    findings = [finding for finding in check.findings if finding.status != "skip"]
    return [
        ("check", summary),
        *(("", f"{finding.status} {finding.id} {finding.message}".rstrip()) for finding in findings),
    ]


def _source(version: VersionDetail) -> str:
    """Return the digest of the source tree, and which wheels were compared with it."""
    source = version.source
    if source is None:
        return ""
    wheels = [file.filename for file in version.files if file.kind == "wheel"]
    others = [name for name in wheels if name not in source.compared]
    result = f"not compared: {', '.join(others)}" if others else "the wheel has the same Python files"
    if source.generated:
        result += f", except for generated files: {', '.join(source.generated)}"
    return f"sha256:{source.tree_sha256}; {result}"
