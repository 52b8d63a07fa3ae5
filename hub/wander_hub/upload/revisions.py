"""Takes models in: a revision's files are announced, come in chunks, and become visible together.

Weights are read from their chunks as a stream, once, to be hashed and stored, so no copy of them lies in a
temporary folder and no more than a few chunks are in memory.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.orm import Session
from wander.errors import ConfigError
from wander.wire.environments import Visibility, wanted_visibility
from wander.wire.models import (
    CARD,
    CheckpointFacts,
    ModelRevision,
    NewModel,
    may_be_sent,
    read_checkpoint,
    revision_of,
    weights_of,
)
from wander.wire.uploads import UploadSession as SessionInfo

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner, User
from wander_hub.database import now
from wander_hub.environments.readme import render
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.models import repository as model_repository
from wander_hub.models import service as models
from wander_hub.models.models import Model, Revision, RevisionFile
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.runs.objects import discard
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.upload import finalize as finishing
from wander_hub.upload import session_repository as repository
from wander_hub.upload import sessions
from wander_hub.upload.models import StagedFile, UploadSession


def begin(context: Context, wanted: NewModel) -> tuple[SessionInfo, bool]:
    """Open a session for the files of a revision, or return the caller's open one; tell which.

    Files that the model has in another revision are not sent again.
    """
    caller, name = context.caller, names.normalise_environment(wanted.name)
    _check_files(wanted, context.settings)
    revision = revision_of({one.filename: one.sha256 for one in wanted.files})
    stated = {"private": wanted.private, "internal": wanted.internal}
    visibility = wanted_visibility(wanted.private, internal=wanted.internal)

    def record(session: Session) -> tuple[SessionInfo, bool]:
        owner = rights.find_owner(session, caller, wanted.owner)
        _, there = _place_for(session, context, owner, name, revision, visibility)
        sessions.foresee(session, context, owner, wanted.files, fresh=there is None)
        for known in repository.open_sessions(session, caller.user_id, owner.id, name, revision):
            if known.of_model:  # the revision says that its files are the same
                known.stated = stated
                known.expires_at = now() + timedelta(hours=context.settings.upload_hours)
                return sessions.describe_session(known, context), False
        held = model_repository.held_files(session, owner.id, name)
        files = [
            sessions.stage(one, "model", published=held.get((one.filename, one.sha256)) == one.size)
            for one in wanted.files
        ]
        return sessions.open_session(session, context, owner, (name, revision), stated, files), True

    return context.commit(record)


def finalize(context: Context, session_id: str) -> tuple[ModelRevision, bool]:
    """Make a revision of a session whose files are whole; tell whether the hub had not got it before."""
    with context.read() as session:
        found = sessions.find(session, context.caller, session_id)
        if found.status == "published":
            return _describe(session, found, context), False
        finishing.require_whole(found)
        _, there = _place_for(session, context, found.owner, found.name, found.version, found.visibility)
        sessions.foresee(session, context, found.owner, found.files, fresh=there is None)
    try:
        for file in found.files:
            finishing.check_digest(context, file, _keep(context.storage, file))
        facts, card = _read(context, found)
    except FileNotFoundError:
        return _without_bytes(context, found), False
    except HubProblem:
        discard(context.database, context.storage, [file.sha256 for file in found.files])
        raise
    outcome = _record(context, session_id, facts, card)
    finishing.drop_staged(context.storage, session_id)
    return outcome


def _check_files(wanted: NewModel, settings: Settings) -> None:
    """Refuse at once what can be said of files whose bytes are still to come."""
    if len({one.filename.lower() for one in wanted.files}) != len(wanted.files):
        raise HubProblem(422, "invalid_request", "a file is named twice")
    for file in wanted.files:
        if not may_be_sent(file.filename):
            detail = f"`{file.filename}` is no file of a model"
            hint = "safetensors, JSON and text alone: nothing that runs code when it is read"
            raise HubProblem(422, "bad_model", detail, hint=hint)
        if file.filename == CARD and file.size > settings.max_readme_bytes:
            detail = f"`{CARD}` is over this hub's {settings.max_readme_bytes:,} bytes"
            raise HubProblem(413, "too_large", detail)
    if (size := sum(one.size for one in wanted.files)) > settings.max_model_bytes:
        detail = f"the model has {size:,} bytes, and this hub takes {settings.max_model_bytes:,}"
        raise HubProblem(413, "too_large", detail, hint="its operator can raise `WANDER_HUB_MAX_MODEL_BYTES`")


def _place_for(
    session: Session,
    context: Context,
    owner: Owner,
    name: str,
    revision: str,
    visibility: Visibility | None,
) -> tuple[Model | None, Revision | None]:
    """Return the model and the revision that are there; refuse what must not be pushed to."""
    model = models.require_pusher(session, context.caller, owner, name, visibility)
    if model is None:
        return None, None
    rows = model_repository.revisions_of(session, model)
    known = next((one for one in rows if one.revision == revision), None)
    if known is not None and known.deleted_at is not None:
        detail = f"`{owner.name}/{name}@{revision[:12]}` was deleted; these very files are not taken again"
        raise HubProblem(409, "revision_deleted", detail, hint="push them under another name")
    return model, known


def _keep(storage: Storage, file: StagedFile) -> str:
    """Store a file that was sent and return its SHA-256; one that the model had is there."""
    if file.published and storage.exists(file.sha256):
        return file.sha256
    return storage.keep_pieces(finishing.pieces(storage, file), file.sha256, file.size)


def _read(context: Context, found: UploadSession) -> tuple[CheckpointFacts, str]:
    """Return what the files say, and the page that is made of the model's card."""
    files = {one.filename: one for one in found.files}

    def read(name: str, start: int, length: int) -> bytes:
        return finishing.read_part(context.storage, files[name], start, length)

    try:
        facts = read_checkpoint({name: one.size for name, one in files.items()}, read)
    except ConfigError as error:
        raise HubProblem(422, "bad_model", str(error), hint=error.hint) from error
    if CARD not in files:
        return facts, ""
    text = read(CARD, 0, files[CARD].size).decode("utf-8", "replace")
    if text.startswith("---\n"):  # what Hugging Face reads of a card stands before it
        text = text.partition("\n---\n")[2]
    return facts, render(text, "text/markdown")


def _record(
    context: Context, session_id: str, facts: CheckpointFacts, card: str
) -> tuple[ModelRevision, bool]:
    """Write the rows and end the session, in one transaction."""

    def record(session: Session) -> tuple[ModelRevision, bool]:
        found = sessions.find(session, context.caller, session_id, lock=True)
        if found.status == "published":
            audit.nothing_done(session)
            return _describe(session, found, context), False
        sessions.require_open(found)
        owner = found.owner
        accounts.lock_owner(session, owner)
        model, known = _place_for(session, context, owner, found.name, found.version, found.visibility)
        context.database.lock_objects(session, exclusive=False)
        for file in found.files:  # one may have gone meanwhile, with the revision that had it
            if not context.storage.exists(file.sha256):
                _keep(context.storage, file)
        if model is None:
            visibility = found.visibility or owner.default_visibility
            model = Model(owner=owner, name=found.name, visibility=visibility, created_at=now())
            session.add(model)
            session.flush()
        if known is None:
            session.add(_revision(session, context, model, found, facts, card))
            quotas.require_room(session, context.settings, owner, quotas.OF_VERSIONS)
        found.status = "published"
        label = f"{owner.name}/{found.name}@{found.version}"
        audit.about(session, owner=owner.name, target=label, kind="model")
        repository.drop_chunks(session, found.files)
        session.flush()
        return _describe(session, found, context), known is None

    return context.commit(record)


def _revision(
    session: Session,
    context: Context,
    model: Model,
    found: UploadSession,
    facts: CheckpointFacts,
    card: str,
) -> Revision:
    weights = weights_of({one.filename: one.sha256 for one in found.files})
    assert weights is not None  # a checkpoint without any was refused
    return Revision(
        model=model,
        revision=found.version,
        weights_sha256=weights,
        architecture=facts.architecture,
        parameters=facts.parameters,
        card_html=card,
        pushed_at=now(),
        pushed_by=session.get_one(User, context.caller.user_id),
        files=[RevisionFile(filename=one.filename, size=one.size, sha256=one.sha256) for one in found.files],
    )


def _describe(session: Session, found: UploadSession, context: Context) -> ModelRevision:
    """Return the revision that a session became."""
    model = models.find(session, found.owner.name, found.name)
    revision = models.find_revision(session, model, found.version)
    return models.describe_revision(revision, context.base_url)


def _without_bytes(context: Context, found: UploadSession) -> ModelRevision:
    """Return the revision where the same request, sent twice, has just made it and dropped the chunks.

    Otherwise bytes were lost: the files go back to what is there of them, and the session is not whole.
    """
    for file in found.files:
        if not file.published or not context.storage.exists(file.sha256):
            finishing.count_again(context, file)
    with context.read() as session:
        again = sessions.find(session, context.caller, found.id)
        if again.status != "published":
            finishing.require_whole(again)
            raise HubProblem(503, "storage_unavailable", "the bytes of the files cannot be read")
        return _describe(session, again, context)
