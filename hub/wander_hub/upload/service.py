"""Publishes checked files of one version: objects first, then rows and index pages in one transaction."""

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
from wander_hub.leaderboards import listing
from wander_hub.rights import rights
from wander_hub.upload.schemas import Package, Upload, refusal
from wander_hub.visibility import LEVELS
from wander_hub.webhooks import outbox
from wander_hub.webhooks.events import describe_version

VISIBILITY_FIELD = "wander_visibility"


@dataclass(frozen=True)
class Place:
    """The environment and version that files are added to; both None for a new name."""

    environment: Environment | None = None
    version: Version | None = None
    known: Mapping[str, File] = field(default_factory=dict)
    """Those of the files that are there already, with the same bytes unless they are to be replaced."""


@dataclass(frozen=True)
class Published:
    """The outcome of an upload."""

    environment: Environment
    version: Version
    created: bool
    """False when the hub already had these very bytes."""


def read_visibility(upload: Upload) -> Visibility | None:
    """Return who is to see a new environment; None where the publisher says nothing."""
    stated = upload.fields.get(VISIBILITY_FIELD)
    if not stated:
        return None
    found = next((one for one in LEVELS if one == stated), None)
    if found is None:
        raise refusal("bad_form", f"`{VISIBILITY_FIELD}` is `public`, `internal` or `private`")
    return found


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
    """Record files of one version whose objects are stored: all, or none for the fault of one.

    Other bytes under a known file name are a 409, unless `replace`, which is for the hub's own packages: they
    are rebuilt under one version while they are developed. `check` is what the publisher states; that of a
    version's first wheel is kept. A version that is older than `open_days` takes no new file. `compared` has
    the wheels that were held against the source archive, each with the files that only its build made.
    `attested` has what was attested of the files, those that the hub already had included.
    """
    accounts.lock_owner(session, owner)  # the index pages are rendered from all of the owner's rows
    wheels_first = sorted(packages, key=lambda one: one.kind != "wheel")
    first = wheels_first[0]
    place = place_for(
        *(session, owner, first.name, first.version, {one.filename: one.sha256 for one in packages}, caller),
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
    fresh = [one for one in wheels_first if not _is_there(place, one.filename, one.sha256)]
    label = f"{owner.name}/{environment.name}@{first.version}"
    files = {one.filename: one.sha256 for one in fresh}
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
    version.files.sort(key=lambda one: one.filename, reverse=True)  # as they are loaded
    _note_source(version, packages, compared or {})
    session.flush()
    attestations.keep_provenance(session, environment, attested or {})
    listing.refresh(session, environment, without_runs=None if place.version else version)
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
) -> Place:
    """Return where files of a version would go, given by name and digest.

    Refuses them for all that can be said before their bytes are known.
    """
    environment = _environment_for(session, owner, name, caller, visibility)
    if environment is None:
        return Place()
    found = environments.version_of(session, environment, version)
    if found is None:
        return Place(environment)
    label = f"{environment.label}@{found.version}"
    if found.deleted_at is not None:
        hint = "publish a higher version"
        raise HubProblem(409, "version_deleted", f"`{label}` was deleted; it is not given again", hint=hint)
    if found.version != version:
        raise HubProblem(
            409,
            "version_exists",
            f"`{version}` is the release `{label}`, spelled differently",
            hint=f"raise the version above {environment.latest_version}, or build `{found.version}`",
        )
    place = Place(environment, found, {one.filename: one for one in found.files if one.filename in files})
    if all(_is_there(place, filename, sha256) for filename, sha256 in files.items()):
        return place
    if any(names.distribution_of(one.filename) != name for one in found.files):
        raise _refuse_taken(environment, next(iter(files)))
    for filename in files:
        if filename in place.known and not replace and not _is_there(place, filename, files[filename]):
            raise _refuse_taken(environment, filename)
    if open_days is not None and now() - found.uploaded_at > timedelta(days=open_days) and not replace:
        detail = f"`{label}` is of {found.uploaded_at:%Y-%m-%d} and takes no more files"
        raise HubProblem(409, "version_closed", detail, hint="publish a new version")
    return place


def _is_there(place: Place, filename: str, sha256: str) -> bool:
    known = place.known.get(filename)
    return known is not None and known.sha256 == sha256


def require_publisher(
    session: Session, owner: Owner, name: str, caller: Identity
) -> Environment | FormerName | None:
    """Return what holds a name; refuse who may not publish under it."""
    held = environments.find_taken(session, owner.id, name)
    if not (isinstance(held, Environment) and rights.may(caller, "publish", held)):
        # Whoever has no right to the name learns nothing about it: new, private and moved are refused alike.
        rights.require_new(session, caller, owner, name)
    return held


def _environment_for(
    session: Session, owner: Owner, name: str, caller: Identity, visibility: Visibility | None
) -> Environment | None:
    """Return the environment of a name, None for a new one; refuse who may not publish there."""
    held = require_publisher(session, owner, name, caller)
    if isinstance(held, FormerName):
        moved = environments.environment_numbered(session, held.environment_id)
        detail = f"`{owner.name}/{name}` is a former name; former names are not given again"
        hint = "choose another name"
        if moved is not None:
            hint = f"publish to `{moved.label}`, which it has become"
        raise HubProblem(409, "environment_moved", detail, hint=hint)
    if held is None:
        return None
    label = f"{owner.name}/{held.name}"
    if held.deleted_at is not None:
        detail = f"`{label}` was deleted; its name is not given again"
        raise HubProblem(409, "name_deleted", detail, hint="choose another name")
    status = environment_service.status_of(held)
    if status in ("quarantined", "archived"):
        undo = None if status == "quarantined" else f"`wander env deprecate {label} --undo` opens it again"
        detail = f"`{label}` is {status}: it takes no uploads"
        raise HubProblem(409, f"environment_{status}", detail, hint=undo)
    if visibility not in (None, held.visibility):
        hint = f"`wander env owner visibility {label} {visibility}` changes that"
        raise HubProblem(409, "visibility_differs", f"`{label}` is {held.visibility} already", hint=hint)
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
    """Return the version, made when it is new, and whether this package describes it."""
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
    # A wheel knows more than a source archive that came before it.
    elif not replace and (package.kind != "wheel" or any(one.kind == "wheel" for one in version.files)):
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
    file.warnings = [one.model_dump(mode="json") for one in package.warnings] or None
    file.core_metadata_sha256 = hashlib.sha256(core).hexdigest() if core is not None else None
    file.uploaded_at = now()


def _note_source(
    version: Version, packages: Sequence[Package], compared: Mapping[str, Sequence[str]]
) -> None:
    """Keep the digest of the source tree, and which wheels were found to be made of it."""
    trees = (one.contents.tree_sha256 for one in packages)
    tree = next((one for one in trees if one is not None), None)
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
        hint=f"versions never change: raise it above {environment.latest_version} and publish again",
    )
