"""`wander model push`, `yank`, `delete`, `visibility`: models on the hub."""

from __future__ import annotations

from typing import Annotated, get_args

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.names import model_path
from wander_client.terminal.command import Argument, Option, Yes


def push(
    name: Annotated[str, Argument(help="owner/name on the hub, or hf:owner/name on Hugging Face")],
    model: Annotated[str, Argument(help="a checkpoint's folder, or a training run")],
    private: Annotated[
        bool | None, Option("--private/--public", help="of a new model; default: the owner's setting")
    ] = None,
    internal: Annotated[bool, Option("--internal", help="of a new model: for whoever is signed in")] = False,
) -> None:
    """Put a trained model on the hub, so that anybody can play its runs again; goes on after a break.

    \b
    wander model push acme/ttt runs/RUN
    wander model push acme/ttt ./sft/model --private
    wander model push hf:acme/ttt runs/RUN

    Weights as safetensors, JSON and text are sent; what only training needs stays here, and pickled weights
    and code are refused. A folder without a README.md gets one from its runs: settings, evaluations, results
    of these very weights. Leaderboard rows and runs whose manifest names weights of this digest link here.
    `hf:` means a repository of Hugging Face, with the token that its own tools use.
    """
    from wander.wire.environments import wanted_visibility
    from wander.wire.models import parse_model

    from wander_client.models.reference import HF_SCHEME
    from wander_client.training.hugging_face import push_to_hugging_face
    from wander_client.training.pushing import push_model

    here = current()
    if internal and (private is not None or name.startswith(HF_SCHEME)):
        hint = f"on {HF_SCHEME} pass `--private`" if private is None else "pass one of them"
        raise UsageError("`--internal` goes with neither `--private`, `--public` nor Hugging Face", hint=hint)
    if name.startswith(HF_SCHEME):
        made = push_to_hugging_face(here, model, name, private=private)
        here.output.answer(made, f"pushed {HF_SCHEME}{made.name}@{made.revision[:12]}\n{made.url}")
        here.output.next(f"wander model pull {HF_SCHEME}{made.name}")
        return
    visibility = wanted_visibility(private, internal=internal)
    sent = push_model(here, model, parse_model(name), visibility=visibility)
    revision, output = sent.made, here.output
    said = "pushed" if sent.sent else "is there already:"
    data = {**revision.model_dump(mode="json"), "sent": sorted(sent.sent)}
    output.answer(data, f"{said} {revision}\n{revision.url}")
    output.next(f"wander model pull {revision}")


def yank(
    model: Annotated[str, Argument(help="owner/name@revision")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    undo: Annotated[bool, Option("--undo", help="undo: offer the revision again")] = False,
) -> None:
    """Have a revision passed over unless it is asked for by its digest.

    \b
    wander model yank acme/ttt@9c1f03a2b4d5 --reason "trained on the test split"
    wander model yank acme/ttt@9c1f03a2b4d5 --undo
    """
    from wander.wire.changes import Reason
    from wander.wire.models import ModelRevision, parse_model

    here, wanted = current(), parse_model(model)
    if wanted.revision is None:
        raise UsageError(f"`{model}` names no revision", hint=f"`wander model list {wanted}` shows them")
    if undo and reason is not None:
        raise UsageError("`--undo` takes no `--reason`", hint=f"run `wander model yank {wanted} --undo`")
    with here.hub(login=True) as hub:
        path = model_path(wanted.owner, wanted.name, "revisions", wanted.revision, "yank")
        method, body = ("DELETE", None) if undo else ("PUT", Reason(reason=reason))
        revision = hub.change(method, path, ModelRevision, body)
    here.output.answer(revision, f"{'yanked' if revision.yanked else 'offered again'}: {revision}")


def delete(
    model: Annotated[str, Argument(help="owner/name@revision, or owner/name for all of it")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    yes: Yes = False,
) -> None:
    """Delete a revision's files from the hub, or a whole model; its name does not come back.

    \b
    wander model delete acme/ttt@9c1f03a2b4d5 --reason "held private data"
    wander model delete acme/ttt --yes
    """
    from wander.wire.models import parse_model

    here, wanted = current(), parse_model(model)
    here.output.confirm(str(wanted), "delete it for good", yes=yes)
    with here.hub(login=True) as hub:
        below = () if wanted.revision is None else ("revisions", wanted.revision)
        hub.change("DELETE", model_path(wanted.owner, wanted.name, *below), None, params={"reason": reason})
    here.output.answer({"deleted": str(wanted), "reason": reason}, f"deleted {wanted}")


def visibility(
    model: Annotated[str, Argument(help="owner/name")],
    choice: Annotated[str, Argument(help="public, internal or private")],
) -> None:
    """Make a model public, internal (for all who are signed in) or private (for roles on its owner alone).

    \b
    wander model visibility acme/ttt public
    """
    from wander.wire.changes import NewVisibility
    from wander.wire.environments import Visibility, marks_of
    from wander.wire.models import ModelRevisions, parse_model

    from wander_client.terminal.suggestions import choose

    here, wanted = current(), parse_model(model)
    seen_by = choose("visibility", choice, get_args(Visibility))
    private, internal = marks_of(seen_by)
    body = NewVisibility(private=private, internal=internal)
    with here.hub(login=True) as hub:
        found = hub.change("PUT", model_path(wanted.owner, wanted.name, "visibility"), ModelRevisions, body)
    here.output.answer(found, f"{found.owner}/{found.name} is {seen_by}")
