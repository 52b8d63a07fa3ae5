"""`wander env publisher`: which workflows may publish without a stored token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.failures import validate
from wander_client.names import target_path
from wander_client.terminal.command import Argument, CommandGroup, Option

if TYPE_CHECKING:
    from wander.wire.people import PublisherInfo

app = CommandGroup(
    help="""Workflows that may publish without a stored token (trusted publishing).

    \b
    A job of GitHub Actions or GitLab CI proves with a signed identity token which repository and workflow
    it runs in; the hub trades that for a token of fifteen minutes. `wander publish` and `uv publish` do it by
    themselves; for others `wander env publisher token` prints it.""",
)


@app.command()
def add(
    target: Annotated[str, Argument(help="owner/name, which need not exist yet, or an owner")],
    repository: Annotated[str, Argument(help="owner/repository; for `oidc` the whole `sub` claim")],
    workflow: Annotated[
        str | None, Option(help="file of the workflow, such as release.yml (GitLab: its path)")
    ] = None,
    kind: Annotated[str, Option(help="github, gitlab or oidc")] = "github",
    deployment: Annotated[str | None, Option(help="deployment environment that the job must run in")] = None,
    issuer: Annotated[str | None, Option(help="issuer, if it is not github.com or gitlab.com")] = None,
) -> None:
    """Trust a workflow to publish one environment, or all of an owner's.

    \b
    wander env publisher add acme/wordle acme/environments --workflow release.yml
    wander env publisher add acme acme/environments --workflow release.yml --deployment production
    wander env publisher add acme/wordle group/project --kind gitlab --workflow .gitlab-ci.yml
    """
    from wander.wire.people import NewPublisher, PublisherInfo

    here = current()
    owner, _, name = target.partition("/")
    body = {"name": name or None, "kind": kind, "subject": repository, "workflow": workflow}
    body |= {"deployment": deployment, "issuer": issuer}
    options = ("workflow", "kind", "deployment", "issuer")
    wanted = validate(NewPublisher, body, "`wander env publisher add --help` has examples", options)
    with here.hub(login=True) as hub:
        added = hub.change("POST", target_path(owner, "publishers"), PublisherInfo, wanted)
    here.output.answer(added, f"trusted: {_describe(added)}")


@app.command("list")
def list_publishers(owner: Annotated[str, Argument(help="owner")]) -> None:
    """List the workflows that may publish for an owner.

    \b
    wander env publisher list acme
    """
    from wander.wire.people import PublisherList

    here = current()
    with here.hub(login=True) as hub:
        found = hub.read(target_path(owner, "publishers"), PublisherList).data
    columns = ["number", "for", "kind", "repository", "workflow", "deployment", "added by", "last used"]
    rows = [
        [
            str(one.id),
            f"{one.owner}/{one.name or '*'}",
            one.kind,
            one.subject,
            one.workflow or "",
            one.deployment or "",
            one.created_by,
            f"{one.last_used_at:%Y-%m-%d}" if one.last_used_at else "never",
        ]
        for one in found
    ]
    shrink = ["for", "repository", "workflow", "deployment"]
    here.output.answer(found, lambda: here.output.table(columns, rows, shrink=shrink))


@app.command()
def remove(
    owner: Annotated[str, Argument(help="owner")],
    number: Annotated[int, Argument(min=1, help="as `wander env publisher list` shows it")],
) -> None:
    """Trust a workflow no more; tokens that it holds end at once.

    \b
    wander env publisher remove acme 3
    """
    from wander.wire.people import PublisherInfo

    here = current()
    with here.hub(login=True) as hub:
        ended = hub.change("DELETE", target_path(owner, "publishers", str(number)), PublisherInfo)
    here.output.answer(ended, f"no longer trusted: {_describe(ended)}")


@app.command()
def token(
    target: Annotated[
        str | None, Argument(help="owner/name or owner to publish  [default: what the workflow may]")
    ] = None,
) -> None:
    """In a trusted workflow: print a token of fifteen minutes, for tools that cannot ask for it.

    \b
    TWINE_PASSWORD=$(wander env publisher token acme/wordle) twine upload -u __token__ ...
    """
    here = current()
    owner, _, name = (target or "").partition("/")
    credential = here.workflow_credential(owner or None, name or None)
    if credential is None:
        hint = (
            "it runs in jobs of GitHub Actions, GitLab CI and others; `wander auth token new` makes a token"
        )
        raise UsageError("this is no workflow, or the hub has no trusted publishing", hint=hint)
    here.output.answer({"token": credential.token}, credential.token)


def _describe(one: PublisherInfo) -> str:
    where = f" in `{one.deployment}`" if one.deployment else ""
    workflow = f" {one.workflow}" if one.workflow else ""
    return f"{one.kind} {one.subject}{workflow}{where} for {one.owner}/{one.name or '*'}"
