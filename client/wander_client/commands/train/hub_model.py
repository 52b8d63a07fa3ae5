"""`wander model push`, `yank`, `delete`, `visibility`: models on the hub."""

from __future__ import annotations

from typing import Annotated, get_args

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.names import model_path
from wander_client.terminal.command import Argument, Option, Yes


def push(
    name: Annotated[str, Argument(help="owner/name on the hub, or hf:owner/name on Hugging Face")],
    model: Annotated[str, Argument(help="folder of a checkpoint, or a training run")],
    private: Annotated[
        bool | None,
        Option("--private/--public", help="visibility of a new model; default: the owner's setting"),
    ] = None,
    internal: Annotated[
        bool, Option("--internal", help="make a new model visible to all signed-in users")
    ] = False,
) -> None:
    """Push a trained model to the hub. Run the command again to resume an interrupted upload.

    \b
    wander model push acme/ttt runs/RUN
    wander model push acme/ttt ./sft/model --private
    wander model push hf:acme/ttt runs/RUN

    Sends weights (safetensors only), JSON and text files. Leaves out optimizer states and other files that
    only training needs, and rejects pickled weights and code. If the folder has no README.md, Wander writes a
    model card with settings and results of its runs. Runs and leaderboard rows with the same weights link to
    the model. `hf:` pushes to a Hugging Face repository, with the token that `hf auth login` stored.
    """
    from wander.wire.environments import wanted_visibility
    from wander.wire.models import parse_model

    from wander_client.models.reference import HF_SCHEME
    from wander_client.training.hugging_face import push_to_hugging_face
    from wander_client.training.pushing import push_model

    here = current()
    if internal and (private is not None or name.startswith(HF_SCHEME)):
        hint = f"on {HF_SCHEME} pass `--private`" if private is None else "pass one of them"
        raise UsageError(
            "`--internal` cannot be used with `--private`, `--public` or Hugging Face", hint=hint
        )
    if name.startswith(HF_SCHEME):
        pushed = push_to_hugging_face(here, model, name, private=private)
        here.output.answer(pushed, f"pushed {HF_SCHEME}{pushed.name}@{pushed.revision[:12]}\n{pushed.url}")
        here.output.next(f"wander model pull {HF_SCHEME}{pushed.name}")
        return
    visibility = wanted_visibility(private, internal=internal)
    sent = push_model(here, model, parse_model(name), visibility=visibility)
    revision, output = sent.made, here.output
    status = "pushed" if sent.sent else "already on the hub:"
    data = {**revision.model_dump(mode="json"), "sent": sorted(sent.sent)}
    output.answer(data, f"{status} {revision}\n{revision.url}")
    output.next(f"wander model pull {revision}")


def yank(
    model: Annotated[str, Argument(help="owner/name@revision")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    undo: Annotated[bool, Option("--undo", help="remove the yank")] = False,
) -> None:
    """Withdraw a revision. `wander model pull` no longer chooses it as the newest, but accepts its name.

    \b
    wander model yank acme/ttt@9c1f03a2b4d5 --reason "trained on the test split"
    wander model yank acme/ttt@9c1f03a2b4d5 --undo
    """
    from wander.wire.changes import Reason
    from wander.wire.models import ModelRevision, parse_model

    here, wanted = current(), parse_model(model)
    if wanted.revision is None:
        raise UsageError(f"`{model}` does not name a revision", hint=f"run `wander model list {wanted}`")
    if undo and reason is not None:
        raise UsageError(
            "`--undo` does not accept `--reason`", hint=f"run `wander model yank {wanted} --undo`"
        )
    with here.hub(login=True) as hub:
        path = model_path(wanted.owner, wanted.name, "revisions", wanted.revision, "yank")
        method, body = ("DELETE", None) if undo else ("PUT", Reason(reason=reason))
        revision = hub.change(method, path, ModelRevision, body)
    here.output.answer(revision, f"{'yanked' if revision.yanked else 'no longer yanked'}: {revision}")


def delete(
    model: Annotated[str, Argument(help="owner/name@revision, or owner/name for the whole model")],
    reason: Annotated[str | None, Option(help="reason, shown to everybody")] = None,
    yes: Yes = False,
) -> None:
    """Delete the files of a revision or of a whole model from the hub. The name cannot be used again.

    \b
    wander model delete acme/ttt@9c1f03a2b4d5 --reason "held private data"
    wander model delete acme/ttt --yes
    """
    from wander.wire.models import parse_model

    here, wanted = current(), parse_model(model)
    here.output.confirm(str(wanted), "delete this permanently", yes=yes)
    with here.hub(login=True) as hub:
        below = () if wanted.revision is None else ("revisions", wanted.revision)
        hub.change("DELETE", model_path(wanted.owner, wanted.name, *below), None, params={"reason": reason})
    here.output.answer({"deleted": str(wanted), "reason": reason}, f"deleted {wanted}")


def visibility(
    model: Annotated[str, Argument(help="owner/name")],
    choice: Annotated[str, Argument(help="public, internal or private")],
) -> None:
    """Make a model public, internal (all signed-in users) or private (members of its owner).

    \b
    wander model visibility acme/ttt public
    """
    from wander.wire.changes import NewVisibility
    from wander.wire.environments import Visibility, marks_of
    from wander.wire.models import ModelRevisions, parse_model

    from wander_client.terminal.suggestions import choose

    here, wanted = current(), parse_model(model)
    seen_by = choose("CHOICE", choice, get_args(Visibility))
    private, internal = marks_of(seen_by)
    body = NewVisibility(private=private, internal=internal)
    with here.hub(login=True) as hub:
        revisions = hub.change(
            "PUT", model_path(wanted.owner, wanted.name, "visibility"), ModelRevisions, body
        )
    here.output.answer(revisions, f"{revisions.owner}/{revisions.name} is now {seen_by}")
