"""Publishes the checked files of a version: first the objects, then rows and index pages in one
transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value
from wander.wire import CheckSummary
from wander.wire.environments import Visibility
from wander.wire.source_tree import SourceInfo

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner, User
from wander_hub.attestations import verification as attestations
from wander_hub.attestations.verification import CheckedAttestations
from wander_hub.database import now
from wander_hub.environments import repository as environments
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import Environment, File, FormerName, Version
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB, Identity
from wander_hub.index import service as index
from wander_hub.leaderboards import environment_listing
from wander_hub.rights import rights
from wander_hub.upload.findings import refusal
from wander_hub.upload.schemas import Package, Upload
from wander_hub.visibility import LEVELS
from wander_hub.webhooks import outbox
from wander_hub.webhooks.events import describe_version

VISIBILITY_FIELD = "wander_visibility"


@dataclass(frozen=True)
class UploadTarget:
    """The environment and version that files are added to; both are None for a new name."""

    environment: Environment | None = None
    version: Version | None = None
    known: Mapping[str, File] = field(default_factory=dict)
    """Files of the upload that exist already, with the same bytes unless `replace` is set."""


@dataclass(frozen=True)
class Published:
    """The result of an upload."""

    environment: Environment
    version: Version
    created: bool
    """False if the hub already had the same bytes."""


def read_visibility(upload: Upload) -> Visibility | None:
    """Return the requested visibility of a new environment, or None if the publisher does not set it."""
    stated = upload.fields.get(VISIBILITY_FIELD)
    if not stated:
        return None
    visibility = next((level for level in LEVELS if level == stated), None)
    if visibility is None:
        raise refusal("bad_form", f"`{VISIBILITY_FIELD}` must be `public`, `internal` or `private`")
    return visibility


def publish(
    session: Session,
    owner: Owner,
    packages: Sequence[Package],
    caller: Identity,
    *,
    listed: bool = True,
    replace: bool = False,
    check: CheckSummary | None = None,
    visibility: Visibility | None = None,
    open_days: int | None = None,
    compared: Mapping[str, Sequence[str]] | None = None,
    attested: Mapping[str, CheckedAttestations] | None = None,
) -> Published:
    """Record files of a version whose objects are stored: all of them, or none if any has a fault.

    Different bytes under an existing file name are a 409, except with `replace`, which is for the hub's own
    packages: they are rebuilt under the same version during development. `check` is the publisher's claim; it
    is kept from a version's first wheel. A version older than `open_days` does not accept new files.
    `compared` has the wheels that were compared with the source archive, each with the files that only its
    build produced. `attested` has the attestations of the files, including files that the hub already had.
    """
    accounts.lock_owner(session, owner)  # the index pages are rendered from all of the owner's rows
    wheels_first = sorted(packages, key=lambda package: package.kind != "wheel")
    first = wheels_first[0]
    digests = {package.filename: package.sha256 for package in packages}
    place = place_for(
        *(session, owner, first.name, first.version, digests, caller),
        visibility=visibility,
        open_days=open_days,
        replace=replace,
    )
    if place.environment is not None:
        environments.lock_environment(session, place.environment)
    environment = place.environment or environments.add_environment(
        *(session, owner, first.name),
        latest_version=first.version,
        listed=listed,
        visibility=visibility or owner.default_visibility,
    )
    fresh = [package for package in wheels_first if not _is_there(place, package.filename, package.sha256)]
    label = f"{owner.name}/{environment.name}@{first.version}"
    files = {package.filename: package.sha256 for package in fresh}
    audit.about(session, owner=owner.name, target=label, files=files)
    if not fresh:
        audit.nothing_done(session)
        assert place.version is not None
        _note_source(place.version, packages, compared or {})
        if attestations.keep_provenance(session, environment, attested or {}):
            index.write_pages(session, environment)
        return Published(environment, place.version, created=False)
    version, described = _version_for(session, environment, place.version, fresh[0], caller, replace=replace)
    if described and fresh[0].kind == "wheel":
        version.check_summary = check.model_dump(mode="json") if check is not None else None
    for package in fresh:
        _put_file(environment, version, package, place.known.get(package.filename))
    session.add_all(version.files)
    version.files.sort(key=lambda file: file.filename, reverse=True)  # as the database returns them
    _note_source(version, packages, compared or {})
    session.flush()
    attestations.keep_provenance(session, environment, attested or {})
    environment_listing.refresh(session, environment, without_runs=None if place.version else version)
    index.write_pages(session, environment, as_listed=place.environment is not None)
    outbox.tell(
        session,
        environment,
        "version.published",
        lambda: describe_version(session, environment, version, files),
    )
    return Published(environment, version, created=True)


def place_for(
    session: Session,
    owner: Owner,
    name: str,
    version: str,
    files: Mapping[str, str],
    caller: Identity,
    *,
    visibility: Visibility | None = None,
    open_days: int | None = None,
    replace: bool = False,
) -> UploadTarget:
    """Return the destination of a version's files, which are given by name and digest.

    Rejects the files for any reason that can be found without reading their content.
    """
    environment = _environment_for(session, owner, name, caller, visibility)
    if environment is None:
        return UploadTarget()
    existing = environments.version_of(session, environment, version)
    if existing is None:
        return UploadTarget(environment)
    label = f"{environment.label}@{existing.version}"
    if existing.deleted_at is not None:
        hint = "publish a higher version"
        raise HubProblem(
            409, "version_deleted", f"`{label}` was deleted and cannot be published again", hint=hint
        )
    if existing.version != version:
        raise HubProblem(
            409,
            "version_exists",
            f"`{version}` is another spelling of the existing version `{label}`",
            hint=f"raise the version above {environment.latest_version}, or build `{existing.version}`",
        )
    place = UploadTarget(
        environment, existing, {file.filename: file for file in existing.files if file.filename in files}
    )
    if all(_is_there(place, filename, sha256) for filename, sha256 in files.items()):
        return place
    if any(names.distribution_of(file.filename) != name for file in existing.files):
        raise _refuse_taken(environment, next(iter(files)))
    for filename in files:
        if filename in place.known and not replace and not _is_there(place, filename, files[filename]):
            raise _refuse_taken(environment, filename)
    if open_days is not None and now() - existing.uploaded_at > timedelta(days=open_days) and not replace:
        detail = f"`{label}` was published on {existing.uploaded_at:%Y-%m-%d} and no longer accepts files"
        raise HubProblem(409, "version_closed", detail, hint="publish a new version")
    return place


def _is_there(place: UploadTarget, filename: str, sha256: str) -> bool:
    known = place.known.get(filename)
    return known is not None and known.sha256 == sha256


def require_publisher(
    session: Session, owner: Owner, name: str, caller: Identity
) -> Environment | FormerName | None:
    """Return the environment or former name that holds a name; refuse a caller who cannot publish under
    it."""
    held = environments.find_taken(session, owner.id, name)
    if not (isinstance(held, Environment) and rights.may(caller, "publish", held)):
        # Callers without a right to the name learn nothing about it: new, private and moved names get the
        # same response.
        rights.require_new(session, caller, owner, name)
    return held


def _environment_for(
    session: Session, owner: Owner, name: str, caller: Identity, visibility: Visibility | None
) -> Environment | None:
    """Return the environment of a name, or None for a new name; refuse a caller who cannot publish there."""
    held = require_publisher(session, owner, name, caller)
    if isinstance(held, FormerName):
        moved = environments.environment_numbered(session, held.environment_id)
        detail = f"`{owner.name}/{name}` is a former name and cannot be used again"
        hint = "choose another name"
        if moved is not None:
            hint = f"publish to `{moved.label}`, the environment's current name"
        raise HubProblem(409, "environment_moved", detail, hint=hint)
    if held is None:
        return None
    label = f"{owner.name}/{held.name}"
    if held.deleted_at is not None:
        detail = f"`{label}` was deleted; its name cannot be used again"
        raise HubProblem(409, "name_deleted", detail, hint="choose another name")
    status = environment_service.status_of(held)
    if status in ("quarantined", "archived"):
        undo = None if status == "quarantined" else f"reopen it with `wander env deprecate {label} --undo`"
        detail = f"`{label}` is {status} and does not accept uploads"
        raise HubProblem(409, f"environment_{status}", detail, hint=undo)
    if visibility not in (None, held.visibility):
        hint = f"change it with `wander env owner visibility {label} {visibility}`"
        raise HubProblem(409, "visibility_differs", f"`{label}` is already {held.visibility}", hint=hint)
    return held


def _version_for(
    session: Session,
    environment: Environment,
    version: Version | None,
    package: Package,
    caller: Identity,
    *,
    replace: bool,
) -> tuple[Version, bool]:
    """Return the version, created if it is new, and whether this package's metadata describes it."""
    if version is None:
        user = session.get_one(User, caller.user_id) if caller is not HUB else None
        version = Version(
            environment_id=environment.id,
            version=package.version,
            check_summary=None,
            yanked=False,
            uploaded_at=now(),
            uploaded_by=user,
            files=[],
        )
        set_committed_value(version, "documents", [])
        session.add(version)
    # A wheel has more reliable metadata than a source archive published before it.
    elif not replace and (package.kind != "wheel" or any(file.kind == "wheel" for file in version.files)):
        return version, False
    version.summary = package.summary
    version.requires_python = package.requires_python
    version.requires_dist = package.requires_dist
    version.license = package.license
    version.tags = package.tags
    version.entry_point = package.contents.entry_point
    version.readme = package.readme
    version.readme_html = package.readme_html
    return version, True


def _put_file(environment: Environment, version: Version, package: Package, known: File | None) -> None:
    core = package.core_metadata
    file = known or File(environment_id=environment.id, version=version, filename=package.filename)
    file.kind = package.kind
    file.size = package.size
    file.sha256 = package.sha256
    file.core_metadata = core.decode() if core is not None else None
    file.warnings = [warning.model_dump(mode="json") for warning in package.warnings] or None
    file.core_metadata_sha256 = hashlib.sha256(core).hexdigest() if core is not None else None
    file.uploaded_at = now()


def _note_source(
    version: Version, packages: Sequence[Package], compared: Mapping[str, Sequence[str]]
) -> None:
    """Record the digest of the source tree, and the wheels that match it."""
    trees = (package.contents.tree_sha256 for package in packages)
    tree = next((digest for digest in trees if digest is not None), None)
    before = SourceInfo.model_validate(version.source) if version.source else None
    if tree is None and before is None:
        return
    before = before or SourceInfo(tree_sha256=tree or "")
    made = {path for paths in compared.values() for path in paths}
    version.source = SourceInfo(
        tree_sha256=tree or before.tree_sha256,
        compared=sorted({*before.compared, *compared}),
        generated=sorted({*before.generated, *made}),
    ).model_dump(mode="json")


def _refuse_taken(environment: Environment, filename: str) -> HubProblem:
    label = environment.label
    return HubProblem(
        409,
        "version_exists",
        f"`{filename}` already exists in `{label}` with other bytes",
        hint=f"versions never change: raise the version above {environment.latest_version} and publish again",
    )
