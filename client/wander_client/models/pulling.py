"""Download models from a hub for `hub:owner/name`, and resume interrupted downloads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wander.models.pulled import LATEST, PulledModel, model_root
from wander.wire.models import HubModel, ModelRevision, is_model_file_name, revision_of, weights_of
from wander.wire.postings import file_digest

from wander_client.errors import ClientError
from wander_client.hub.api import HubApi
from wander_client.hub.transfer import GO_ON, PATIENCE, TransferSender
from wander_client.names import model_path
from wander_client.packages.virtualenvs import hold_lock
from wander_client.paths import path_below

if TYPE_CHECKING:
    from wander.wire.models import ModelFileInfo

    from wander_client.context import Invocation

_KIB = 1024
_PART = ".part"
"""Suffix of files that are incomplete."""


def pull_model(context: Invocation, name: HubModel) -> tuple[PulledModel, int]:
    """Download a model unless it is cached. Returns the model and the number of downloaded bytes.

    Every file is checked against its digest, and the digests against the revision.
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
            output.note(f"downloading {record} from {context.settings.hub}")
            with output.progress("downloading", -(-record.size // _KIB), unit="KiB") as bar:
                fetched = _fetch(hub, model, lambda done: bar.update(-(-done // _KIB)), output.warn)
            _note(model)
    return model, fetched


def _require_honest(record: ModelRevision, name: HubModel) -> None:
    """Raise `ClientError` if the response does not match the name, which contains the digest of the files."""
    digests = {file.filename: file.sha256 for file in record.files}
    is_valid = (
        (record.owner, record.name) == (name.owner, name.name)
        and record.revision.startswith(name.revision or "")
        and revision_of(digests) == record.revision
        and weights_of(digests) == record.weights_sha256
        and all(is_model_file_name(filename) for filename in digests)
    )
    if not is_valid:
        hint = "tell the hub's operator: its responses are wrong, or changed in transit"
        raise ClientError(f"the hub's response does not match `{name}`", hint=hint, code="digest_mismatch")


def _fetch(
    hub: HubApi, model: PulledModel, told: Callable[[int], None], trouble: Callable[[str], None]
) -> int:
    """Download the files of a revision into a temporary folder, then rename the folder."""
    sender = TransferSender(hub, PATIENCE, GO_ON, trouble=trouble)
    work = model.folder.with_name(f".{model.record.revision}")
    if model.folder.is_dir():  # a file in it is damaged; the others are reused
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


def _fetch_file(sender: TransferSender, file: ModelFileInfo, work: Path, told: Callable[[int], None]) -> int:
    """Download a file unless it is here. Returns the number of downloaded bytes."""
    target, part = path_below(work, file.filename), path_below(work, f"{file.filename}{_PART}")
    if target.is_file() and target.stat().st_size == file.size and file_digest(target) == file.sha256:
        return 0
    if part.is_file() and part.stat().st_size >= file.size:
        part.unlink()
    present = part.stat().st_size if part.is_file() else 0
    fetch = partial(sender.hub.download, file.url, target, file.sha256, size=file.size)
    sender.persist(partial(fetch, partial=part, told=told))
    return file.size - present


def _note(model: PulledModel) -> None:
    """Save the record of the revision, and that it was pulled last."""
    for path, text in (
        (model.folder.with_suffix(".json"), model.record.model_dump_json(indent=1) + "\n"),
        (model.folder.with_name(LATEST), f"{model.record.revision}\n"),
    ):
        temporary = path.with_name(f".{path.name}.{model.record.revision[:12]}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
