"""Fetches models from a hub to where `hub:owner/name` finds them, and goes on where an attempt broke off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wander.models.pulled import LATEST, PulledModel, model_root
from wander.wire.models import HubModel, ModelRevision, may_be_sent, revision_of, weights_of
from wander.wire.postings import file_digest

from wander_client.errors import ClientError
from wander_client.hub.api import HubApi
from wander_client.hub.transfer import GO_ON, PATIENCE, Sender
from wander_client.names import model_path
from wander_client.packages.virtualenvs import hold_lock
from wander_client.paths import path_below

if TYPE_CHECKING:
    from wander.wire.models import ModelFileInfo

    from wander_client.context import Invocation

_KIB = 1024
_PART = ".part"
"""How the name of a file ends of which some bytes are here."""


def pull_model(context: Invocation, name: HubModel) -> tuple[PulledModel, int]:
    """Fetch a model unless it is here; return it, and how many bytes came over the network.

    Every file is held against its digest, and all digests against the revision.
    """
    output = context.output
    with context.hub() as hub:
        record = hub.read(
            model_path(name.owner, name.name, "revisions", name.revision or LATEST), ModelRevision
        )
        _require_honest(record, name)
        if record.yanked:
            reason = f": {record.yanked_reason}" if record.yanked_reason else ""
            output.warn(f"`{record}` was yanked{reason}")
        hubs = model_root(record.owner, record.name).parent.parent
        folder = path_below(hubs, record.owner, record.name, record.revision)
        with hold_lock(folder.parent, record.revision):
            model = PulledModel(folder, record)
            if model.folder.is_dir() and model.fault() is None:
                _note(model)
                return model, 0
            output.note(f"fetching {record} from {context.settings.hub}")
            with output.progress("fetching", -(-record.size // _KIB), unit="KiB") as bar:
                fetched = _fetch(hub, model, lambda done: bar.update(-(-done // _KIB)), output.warn)
            _note(model)
    return model, fetched


def _require_honest(record: ModelRevision, name: HubModel) -> None:
    """Raise for an answer that is not what was asked for: a revision says what its files are."""
    digests = {file.filename: file.sha256 for file in record.files}
    sound = (
        (record.owner, record.name) == (name.owner, name.name)
        and record.revision.startswith(name.revision or "")
        and revision_of(digests) == record.revision
        and weights_of(digests) == record.weights_sha256
        and all(may_be_sent(filename) for filename in digests)
    )
    if not sound:
        hint = "tell whoever runs the hub: something on the way changes its answers"
        raise ClientError(f"the hub's answer does not fit `{name}`", hint=hint, code="digest_mismatch")


def _fetch(
    hub: HubApi, model: PulledModel, told: Callable[[int], None], trouble: Callable[[str], None]
) -> int:
    """Bring the files of a revision together in a folder beside its place, then move that there."""
    sender = Sender(hub, PATIENCE, GO_ON, trouble=trouble)
    work = model.folder.with_name(f".{model.record.revision}")
    if model.folder.is_dir():  # something in it is wrong, and the rest need not come again
        model.folder.rename(work)
    work.mkdir(parents=True, exist_ok=True)
    wanted = {file.filename for file in model.record.files}
    for path in work.iterdir():
        if path.name.removesuffix(_PART) not in wanted:
            path.unlink()
    done = fetched = 0
    for file in model.record.files:
        before = done
        size = _fetch_file(sender, file, work, lambda here, before=before: told(before + here))  # type: ignore[misc]
        fetched, done = fetched + size, done + file.size
        told(done)
    work.rename(model.folder)
    return fetched


def _fetch_file(sender: Sender, file: ModelFileInfo, work: Path, told: Callable[[int], None]) -> int:
    """Bring a file here unless it is; return how many bytes came."""
    target, part = path_below(work, file.filename), path_below(work, f"{file.filename}{_PART}")
    if target.is_file() and target.stat().st_size == file.size and file_digest(target) == file.sha256:
        return 0
    if part.is_file() and part.stat().st_size >= file.size:
        part.unlink()
    there = part.stat().st_size if part.is_file() else 0
    fetch = partial(sender.hub.download, file.url, target, file.sha256, size=file.size)
    sender.persist(partial(fetch, partial=part, told=told))
    return file.size - there


def _note(model: PulledModel) -> None:
    """Keep what the files are, and that this revision was pulled last."""
    for place, text in (
        (model.folder.with_suffix(".json"), model.record.model_dump_json(indent=1) + "\n"),
        (model.folder.with_name(LATEST), f"{model.record.revision}\n"),
    ):
        fresh = place.with_name(f".{place.name}.{model.record.revision[:12]}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(place)
