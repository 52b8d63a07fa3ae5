"""`wander env publisher`: CI workflows that can publish without a stored token."""

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
    help="""Manage CI workflows that can publish without a stored token (trusted publishing).

    \b
    A GitHub Actions or GitLab CI job has a signed identity token that names its repository and workflow. The
    hub exchanges this token for an API token that is valid for 15 minutes. `wander publish` and `uv publish`
    request the API token automatically. For other tools, `wander env publisher token` prints it.""",
)


@app.command()
def add(
    target: Annotated[str, Argument(help="owner, or owner/name (which may be a new name)")],
    repository: Annotated[str, Argument(help="owner/repository; for `oidc`, the complete `sub` claim")],
    workflow: Annotated[
        str | None, Option(help="workflow file, such as release.yml (for GitLab, its path)")
    ] = None,
    kind: Annotated[str, Option(help="github, gitlab or oidc")] = "github",
    deployment: Annotated[str | None, Option(help="required deployment environment of the job")] = None,
    issuer: Annotated[str | None, Option(help="token issuer, if it is not github.com or gitlab.com")] = None,
) -> None:
    """Trust a workflow to publish an environment, or all environments of an owner.

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
    wanted = validate(NewPublisher, body, "run `wander env publisher add --help` for examples", options)
    with here.hub(login=True) as hub:
        added = hub.change("POST", target_path(owner, "publishers"), PublisherInfo, wanted)
    here.output.answer(added, f"trusted: {_describe(added)}")


@app.command("list")
def list_publishers(owner: Annotated[str, Argument(help="owner")]) -> None:
    """List the workflows that can publish for an owner.

    \b
    wander env publisher list acme
    """
    from wander.wire.people import PublisherList

    here = current()
    with here.hub(login=True) as hub:
        publishers = hub.read(target_path(owner, "publishers"), PublisherList).data
    columns = ["number", "for", "kind", "repository", "workflow", "deployment", "added by", "last used"]
    rows = [
        [
            str(publisher.id),
            f"{publisher.owner}/{publisher.name or '*'}",
            publisher.kind,
            publisher.subject,
            publisher.workflow or "",
            publisher.deployment or "",
            publisher.created_by,
            f"{publisher.last_used_at:%Y-%m-%d}" if publisher.last_used_at else "never",
        ]
        for publisher in publishers
    ]
    shrink = ["for", "repository", "workflow", "deployment"]
    here.output.answer(publishers, lambda: here.output.table(columns, rows, shrink=shrink))


@app.command()
def remove(
    owner: Annotated[str, Argument(help="owner")],
    number: Annotated[int, Argument(min=1, help="number of the workflow (see `wander env publisher list`)")],
) -> None:
    """Stop trusting a workflow. Its current tokens are revoked immediately.

    \b
    wander env publisher remove acme 3
    """
    from wander.wire.people import PublisherInfo

    here = current()
    with here.hub(login=True) as hub:
        removed = hub.change("DELETE", target_path(owner, "publishers", str(number)), PublisherInfo)
    here.output.answer(removed, f"no longer trusted: {_describe(removed)}")


@app.command()
def token(
    target: Annotated[
        str | None,
        Argument(
            help="owner/name or owner to publish for  [default: everything that the workflow is trusted for]"
        ),
    ] = None,
) -> None:
    """Print a token that is valid for 15 minutes. Run this in a trusted workflow, for tools other than
    `wander publish` and `uv publish`.

    \b
    TWINE_PASSWORD=$(wander env publisher token acme/wordle) twine upload -u __token__ ...
    """
    here = current()
    owner, _, name = (target or "").partition("/")
    credential = here.workflow_credential(owner or None, name or None)
    if credential is None:
        hint = "run this in a CI job, or create a token with `wander auth token new`"
        raise UsageError(
            "not running in a CI workflow, or the hub does not support trusted publishing", hint=hint
        )
    here.output.answer({"token": credential.token}, credential.token)


def _describe(publisher: PublisherInfo) -> str:
    deployment = f" in `{publisher.deployment}`" if publisher.deployment else ""
    workflow = f" {publisher.workflow}" if publisher.workflow else ""
    target = f"{publisher.owner}/{publisher.name or '*'}"
    return f"{publisher.kind} {publisher.subject}{workflow}{deployment} for {target}"
