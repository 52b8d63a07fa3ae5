"""Models uploaded in parts: the files of a revision are announced, arrive, and become visible together.

Weights are read once from their parts as a stream, to be hashed and stored, so they are not copied to a
temporary folder and only a few parts are in memory at a time.
"""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.errors import ConfigError
from wander.wire.environments import wanted_visibility
from wander.wire.models import (
    CARD,
    CheckpointFacts,
    ModelRevision,
    NewModel,
    is_model_file_name,
    read_checkpoint,
    revision_of,
    weights_of,
)
from wander.wire.transfers import TransferFile, TransferInfo

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner, User
from wander_hub.database import fill, now
from wander_hub.environments.readme import render
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.models import repository
from wander_hub.models import service as models
from wander_hub.models.models import Model, Revision, RevisionFile
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.transfers import service as transfers
from wander_hub.transfers.models import Transfer
from wander_hub.upload.archives import limits


def announce(context: Context, wanted: NewModel) -> tuple[TransferInfo, bool]:
    """Open the transfer of a revision's files; files that the model already has are not sent again."""
    wanted = wanted.model_copy(update={"name": names.normalize_environment(wanted.name)})
    _check_files(wanted, context.settings)

    def record(session: Session) -> tuple[TransferInfo, bool]:
        owner = rights.find_owner(session, context.caller, wanted.owner)
        _place_for(session, context, owner, wanted)
        held = repository.held_files(session, owner.id, wanted.name)
        announcement = transfers.Announcement(
            digest=transfers.digest_of_text(f"{owner.name}/{wanted.name}@{_revision_of(wanted)}"),
            files=[
                fill(TransferFile, file, there=held.get((file.filename, file.sha256)) == file.size)
                for file in wanted.files
            ],
            stated=wanted.model_dump(mode="json"),
        )
        return transfers.announce(session, context, MODELS, announcement)

    return context.commit(record)


def _admit(session: Session, transfer: Transfer, caller: Identity) -> NewModel:
    wanted = NewModel.model_validate(transfer.stated)
    models.require_pusher(session, caller, rights.find_owner(session, caller, wanted.owner), wanted.name)
    return wanted


def _finish(context: Context, arrived: transfers.Arrived) -> transfers.MakeVisible:
    """Store the files and read the facts about the checkpoint."""
    wanted: NewModel = arrived.subject
    with context.read() as session:
        owner = rights.find_owner(session, context.caller, wanted.owner)
        _place_for(session, context, owner, wanted)
    for file in arrived.transfer.files:
        if not (file.there and context.storage.exists(file.sha256)):
            arrived.store(context.storage, file)
    facts, card = _read(context.storage, wanted)

    def record(session: Session) -> tuple[ModelRevision, bool]:
        owner = rights.find_owner(session, context.caller, wanted.owner)
        accounts.lock_owner(session, owner)
        model, known = _place_for(session, context, owner, wanted)
        # Deleting another revision may have removed a file.
        arrived.ensure(context.storage, arrived.transfer.files)
        if model is None:
            visibility = wanted_visibility(wanted.private, internal=wanted.internal)
            visibility = visibility or owner.default_visibility
            model = Model(owner=owner, name=wanted.name, visibility=visibility, created_at=now())
            session.add(model)
            session.flush()
        if known is None:
            session.add(_revision(session, context, model, wanted, facts, card))
            quotas.require_room(session, context.settings, owner, quotas.OF_VERSIONS)
        label = f"{owner.name}/{wanted.name}@{_revision_of(wanted)}"
        audit.about(session, owner=owner.name, target=label, kind="model")
        session.flush()
        return _describe(session, arrived.transfer, context.base_url), known is None

    return record


def _describe(session: Session, transfer: Transfer, base_url: str) -> ModelRevision:
    """Return the revision that a transfer created."""
    wanted = NewModel.model_validate(transfer.stated)
    model = models.find(session, wanted.owner, wanted.name)
    revision = models.find_revision(session, model, _revision_of(wanted))
    return models.describe_revision(revision, base_url)


MODELS = transfers.TransferRules("models", _admit, _finish, _describe)


def _revision_of(wanted: NewModel) -> str:
    return revision_of({file.filename: file.sha256 for file in wanted.files})


def _check_files(wanted: NewModel, settings: Settings) -> None:
    """Check the announced files as far as possible before their bytes arrive."""
    if len({file.filename.lower() for file in wanted.files}) != len(wanted.files):
        raise HubProblem(422, "invalid_request", "two files have the same name")
    for file in wanted.files:
        if not is_model_file_name(file.filename):
            detail = f"models cannot contain files such as `{file.filename}`"
            hint = "only safetensors, JSON and text files: formats that do not run code when loaded"
            raise HubProblem(422, "bad_model", detail, hint=hint)
        if file.filename == CARD and file.size > limits.MAX_README_BYTES:
            detail = f"`{CARD}` exceeds this hub's limit of {limits.MAX_README_BYTES:,} bytes"
            raise HubProblem(413, "too_large", detail)
    if (size := sum(file.size for file in wanted.files)) > settings.max_model_bytes:
        detail = f"the model has {size:,} bytes; this hub accepts up to {settings.max_model_bytes:,}"
        raise HubProblem(413, "too_large", detail, hint="the operator can raise `WANDER_HUB_MAX_MODEL_BYTES`")


def _place_for(
    session: Session, context: Context, owner: Owner, wanted: NewModel
) -> tuple[Model | None, Revision | None]:
    """Return the existing model and revision; refuse a push that is not allowed or exceeds a quota."""
    visibility = wanted_visibility(wanted.private, internal=wanted.internal)
    model, known = models.require_pusher(session, context.caller, owner, wanted.name, visibility), None
    name, revision = wanted.name, _revision_of(wanted)
    if model is not None:
        rows = repository.revisions_of(session, model)
        known = next((row for row in rows if row.revision == revision), None)
    if known is not None and known.deleted_at is not None:
        detail = f"`{owner.name}/{name}@{revision[:12]}` was deleted; the same files cannot be pushed again"
        raise HubProblem(409, "revision_deleted", detail, hint="push them under another name")
    sizes = {file.sha256: file.size for file in wanted.files}
    quotas.require_quota(session, context.settings, owner, files=sizes, versions=int(known is None))
    return model, known


def _read(storage: Storage, wanted: NewModel) -> tuple[CheckpointFacts, str]:
    """Return the facts in the stored files, and the rendered model card."""
    files = {file.filename: file for file in wanted.files}

    def read(name: str, start: int, length: int) -> bytes:
        return storage.read(files[name].sha256, start, length)

    try:
        facts = read_checkpoint({name: file.size for name, file in files.items()}, read)
    except ConfigError as error:
        raise HubProblem(422, "bad_model", str(error), hint=error.hint) from error
    if CARD not in files:
        return facts, ""
    text = read(CARD, 0, files[CARD].size).decode("utf-8", "replace")
    if text.startswith("---\n"):  # the front matter that Hugging Face reads
        text = text.partition("\n---\n")[2]
    return facts, render(text, "text/markdown")


def _revision(
    session: Session, context: Context, model: Model, wanted: NewModel, facts: CheckpointFacts, card: str
) -> Revision:
    weights = weights_of({file.filename: file.sha256 for file in wanted.files})
    assert weights is not None  # checkpoints without weights were refused
    return Revision(
        model=model,
        revision=_revision_of(wanted),
        weights_sha256=weights,
        architecture=facts.architecture,
        parameters=facts.parameters,
        card_html=card,
        pushed_at=now(),
        pushed_by=session.get_one(User, context.caller.user_id),
        files=[
            RevisionFile(filename=file.filename, size=file.size, sha256=file.sha256) for file in wanted.files
        ],
    )
