"""`wander auth workflow-token`: a token for a CI workflow that the hub trusts."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import Argument


def print_token(
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
    TWINE_PASSWORD=$(wander auth workflow-token acme/wordle) twine upload -u __token__ ...
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
