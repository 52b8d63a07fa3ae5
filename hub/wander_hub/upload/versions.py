"""Versions that come in parts: all of their files pass the gate, then one transaction shows them.

What Python runs from a wheel must be what the source archive holds, so who reads the source of a version
reads what will run. A wheel's file may lie deeper in the source (`src/`, `lib/`), never under another name;
what a build makes (a version module) is declared in the source itself, under `generated` of `[tool.wander]`,
and listed with the version.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import BinaryIO, cast

from pydantic import BaseModel
from sqlalchemy.orm import Session
from wander.types import canonical_json
from wander.wire import VersionDetail
from wander.wire.environments import wanted_visibility
from wander.wire.gate import LOCK
from wander.wire.transfers import NewUpload, TransferFile, TransferInfo

from wander_hub import names
from wander_hub.accounts.models import Owner
from wander_hub.attestations import verification
from wander_hub.database import fill
from wander_hub.environments import documents
from wander_hub.environments import service as environment_service
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.lifecycle import locks
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.settings import Settings
from wander_hub.storage import IN_MEMORY, copy_pieces
from wander_hub.transfers import service as transfers
from wander_hub.transfers.models import Transfer
from wander_hub.upload import checks, service
from wander_hub.upload.schemas import Package, Upload, refusal

MOST_GENERATED = 200


def announce(context: Context, wanted: NewUpload) -> tuple[TransferInfo, bool]:
    """Open the transfer of a version's files, refusing what its announcement shows to be wrong.

    A lock may be another one every time; the other files tell one transfer from another.
    """
    name, version = check_names(wanted, context.settings)
    wanted = wanted.model_copy(update={"name": name, "version": version})
    _check_attestations({file.filename: file.sha256 for file in wanted.files}, wanted, context.caller)
    same = [[file.filename, file.size, file.sha256] for file in wanted.files if file.kind != "lock"]

    def record(session: Session) -> tuple[TransferInfo, bool]:
        _, place = _place_for(session, context, wanted)
        announcement = transfers.Announcement(
            digest=transfers.digest_of_text(canonical_json([wanted.owner, name, version, sorted(same)])),
            files=[fill(TransferFile, file, there=file.filename in place.known) for file in wanted.files],
            stated=wanted.model_dump(mode="json"),
        )
        return transfers.announce(session, context, VERSIONS, announcement)

    return context.commit(record)


def _admit(session: Session, transfer: Transfer, caller: Identity) -> NewUpload:
    wanted = NewUpload.model_validate(transfer.stated)
    owner = rights.find_uploading_owner(session, caller, wanted.owner)
    service.require_publisher(session, owner, wanted.name, caller)
    return wanted


def _place_for(session: Session, context: Context, wanted: NewUpload) -> tuple[Owner, service.Place]:
    """Return where the files would go; refuse them if that place is taken, or the owner has no room."""
    owner = rights.find_uploading_owner(session, context.caller, wanted.owner)
    files = {file.filename: file.sha256 for file in wanted.files if file.kind != "lock"}
    place = service.place_for(
        *(session, owner, wanted.name, wanted.version, files, context.caller),
        visibility=wanted_visibility(wanted.private, internal=wanted.internal),
        open_days=context.settings.version_open_days,
    )
    sizes = {file.sha256: file.size for file in wanted.files}
    quotas.foresee(session, context.settings, owner, files=sizes, versions=int(place.version is None))
    return owner, place


def _finish(context: Context, arrived: transfers.Arrived) -> transfers.MakeVisible:
    """Run the gate over each distribution file, and over all of them together."""
    wanted: NewUpload = arrived.subject
    with context.read() as session:
        _place_for(session, context, wanted)
    lock: bytes | None = None
    packages: list[Package] = []
    with ExitStack() as stack:
        for file in arrived.transfer.files:
            body = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY)))
            if copy_pieces(arrived.pieces(context.storage, file), body) != file.sha256:
                raise transfers.other_bytes(file)
            body.seek(0)
            if file.filename == documents.NAMES["lock"]:
                lock = body.read()
            else:
                upload = Upload(wanted.owner, file.filename, body, file.size, file.sha256)
                packages.append(checks.check(upload, context.settings))
    compared = compare(packages, wanted.source_sha256)
    if lock is not None:
        _check_lock(context, lock, packages)
    digests = {package.filename: package.sha256 for package in packages}
    attested = _check_attestations(digests, wanted, context.caller)
    arrived.ensure(context.storage, arrived.transfer.files)

    def record(session: Session) -> tuple[BaseModel, bool]:
        arrived.ensure(context.storage, arrived.transfer.files)
        owner = rights.find_uploading_owner(session, context.caller, wanted.owner)
        published = service.publish(
            *(session, owner, packages, context.caller),
            check=wanted.check,
            visibility=wanted_visibility(wanted.private, internal=wanted.internal),
            open_days=context.settings.version_open_days,
            compared=compared,
            attested=attested,
        )
        if lock is not None:
            place = (owner.name, published.environment.name, wanted.version)
            locks.attach(session, context.storage, context.caller, *place, lock)
        if published.created or lock is not None:
            quotas.require_room(session, context.settings, owner, quotas.OF_VERSIONS)
        detail = _describe(session, arrived.transfer, context.base_url)
        ignored = [
            warning.model_copy(update={"filename": filename})
            for filename, outcome in attested.items()
            for warning in outcome.warnings
        ]
        return detail.model_copy(update={"warnings": [*detail.warnings, *ignored]}), published.created

    return record


def _describe(session: Session, transfer: Transfer, base_url: str) -> VersionDetail:
    """Return the version that a transfer became."""
    stated = transfer.stated
    environment = environment_service.find(session, names.normalize_owner(stated["owner"]), stated["name"])
    version = environment_service.find_version(session, environment, stated["version"])
    return environment_service.version_detail(environment, version, base_url)


VERSIONS = transfers.TransferRules("versions", _admit, _finish, _describe)


def _check_lock(context: Context, lock: bytes, packages: Sequence[Package]) -> None:
    wheels = [package for package in packages if package.kind == "wheel"]
    if not wheels:
        hint = "send the wheel along, or attach the lock to the version: `wander env lock NAME --attach`"
        raise HubProblem(422, "lock_mismatch", "a lock comes with the wheel that it is of", hint=hint)
    first, held = wheels[0], {wheel.filename: wheel.sha256 for wheel in wheels}
    locks.check(lock, locks.LockedVersion(first.name, first.version, first.requires_dist, held), context)


def check_names(wanted: NewUpload, settings: Settings) -> tuple[str, str]:
    """Return name and version in their normal forms; refuse files that are not all of them."""
    name = names.normalize_environment(wanted.name)
    try:
        version = names.normalize_version(wanted.version)
    except ValueError as error:
        detail = f"`{wanted.version[:50]}` is no version as PEP 440 has it"
        raise HubProblem(422, "bad_version", detail) from error
    if len({file.filename for file in wanted.files}) != len(wanted.files):
        raise HubProblem(422, "invalid_request", "a file is named twice")
    if all(file.kind == "lock" for file in wanted.files):
        raise HubProblem(422, "invalid_request", "the upload has neither a wheel nor a source archive")
    for file in wanted.files:
        if file.kind == "lock":
            if file.filename != documents.NAMES["lock"]:
                raise refusal("bad_filename", f"a lock is called `{documents.NAMES['lock']}`")
            if file.size > LOCK.most_bytes:
                detail = f"`{file.filename}` is over {LOCK.most_bytes:,} bytes"
                raise refusal("too_large", detail)
            continue
        stated = checks.check_filename(file.filename)
        if (stated.kind, stated.name, stated.version) != (file.kind, name, version):
            detail = f"`{file.filename}` is not the name of a {file.kind} of `{name}` {version}"
            raise refusal("name_mismatch", detail)
        checks.check_size(file.filename, file.size, settings)
    return name, version


def _check_attestations(
    files: Mapping[str, str], wanted: NewUpload, caller: Identity
) -> dict[str, verification.CheckedAttestations]:
    """Check the attestations of files, given by their SHA-256; raise a 400 for a false one."""
    return {
        file.filename: verification.verify_attestations(
            json.dumps(file.attestations), file.filename, files[file.filename], caller.claims
        )
        for file in wanted.files
        if file.attestations and file.filename in files
    }


def compare(packages: Sequence[Package], stated_tree: str | None = None) -> dict[str, list[str]]:
    """Hold the wheels of a version against its source archive, and that against the digest stated for it.

    Returns the wheels that were compared, each with the files that only its build made; none without an
    archive. Raises a `HubProblem` for what does not fit.
    """
    source = next((one for one in packages if one.kind == "sdist"), None)
    if source is None:
        return {}
    tree = source.contents.tree_sha256
    if stated_tree is not None and stated_tree != tree:
        detail = f"the files in `{source.filename}` have the tree digest {tree}, not {stated_tree}"
        raise refusal("source_tree_mismatch", detail)
    return {one.filename: find_generated_files(one, source) for one in packages if one.kind == "wheel"}


def find_generated_files(wheel: Package, source: Package) -> list[str]:
    """Return the files that only the wheel has; refuse those that the source does not declare."""
    wanted = {path for path, _ in wheel.contents.code}
    lying: dict[str, dict[str, bytes]] = {}
    for path, digest in source.contents.code:
        parts = path.split("/")
        for start in range(len(parts)):  # it may lie below folders that the wheel does without
            ending = "/".join(parts[start:])
            if ending in wanted:
                lying.setdefault(ending, {})[path] = digest
    made: list[str] = []
    for path, digest in sorted(wheel.contents.code):
        places = lying.get(path, {})
        if digest in places.values():
            continue
        if any(fnmatchcase(path, pattern) for pattern in source.contents.generated):
            made.append(path)
            continue
        where = f"has other bytes than `{min(places)}` of" if places else "is not in"
        detail = f"`{path}` of `{wheel.filename}` {where} `{source.filename}`"
        raise refusal("wheel_differs_from_source", detail)
    if len(made) > MOST_GENERATED:
        raise refusal("bad_generated", f"`{wheel.filename}` has {len(made):,} files that its source lacks")
    return made
