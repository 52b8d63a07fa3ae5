"""Publishes a checked file: store the object, then rows and index pages in one transaction."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session
from wander.wire import CheckSummary

from wander_hub import names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import rights
from wander_hub.accounts.models import Owner
from wander_hub.accounts.schemas import HUB, Identity
from wander_hub.database import now
from wander_hub.environments import repository as environments
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import Environment, File, FormerName, Version
from wander_hub.environments.readme import rendered
from wander_hub.index import service as index
from wander_hub.problems import HubProblem
from wander_hub.upload.schemas import Package, Upload, refused

VISIBILITY_FIELD = "wander_visibility"


@dataclass(frozen=True)
class Published:
    """The outcome of an upload."""

    environment: Environment
    version: Version
    created: bool
    """False when the hub already had these very bytes."""


def stated_visibility(upload: Upload) -> bool | None:
    """Return whether the publisher wants a new environment to be private; None where nothing is said."""
    stated = upload.fields.get(VISIBILITY_FIELD)
    if not stated:
        return None
    if stated not in ("private", "public"):
        raise refused("bad_form", f"`{VISIBILITY_FIELD}` is `private` or `public`", status=400)
    return stated == "private"


def publish(
    session: Session,
    owner: Owner,
    package: Package,
    caller: Identity,
    *,
    listed: bool = True,
    replace: bool = False,
    check: CheckSummary | None = None,
    private: bool | None = None,
    open_days: int | None = None,
) -> Published:
    """Record a file whose object is stored. Other bytes under a known file name are a 409, unless `replace`.

    `check` is what the publisher states; that of a version's first wheel is kept. A version that is older
    than `open_days` takes no new file. `replace` is for the hub's own packages, which are rebuilt under one
    version while they are developed.
    """
    accounts.lock_owner(session, owner)  # the index pages are rendered from all of the owner's rows
    environment = _environment_for(session, owner, package, caller, listed=listed, private=private)
    known = environments.file_of(session, environment, package.filename)
    version = environments.version_of(session, environment, package.version)
    if version is not None and version.deleted_at is not None:
        raise _deleted(environment, version)
    if known is not None and known.sha256 == package.sha256:
        assert version is not None
        return Published(environment, version, created=False)
    named_otherwise = version is not None and any(
        names.distribution_of(file.filename) != package.name for file in version.files
    )
    if (known is not None and not replace) or named_otherwise:
        raise _taken(environment, package)
    if version is not None and not replace and _is_closed(version, open_days):
        raise _closed(environment, version)
    user_id = caller.user_id if caller is not HUB else None
    version, described = _version_for(session, environment, version, package, user_id, replace=replace)
    if described and package.kind == "wheel":
        version.check_summary = check.model_dump(mode="json") if check is not None else None
    _put_file(session, environment, version, package, known)
    session.flush()
    session.expire(version, ["files"])
    environment_service.refresh(session, environment)
    environment.updated_at = now()
    index.write_pages(session, environment)
    return Published(
        environment, environment_service.find_version(session, environment, package.version), created=True
    )


def _environment_for(
    session: Session,
    owner: Owner,
    package: Package,
    caller: Identity,
    *,
    listed: bool,
    private: bool | None,
) -> Environment:
    """Return the environment that a package belongs to, made when the name is new; refuse who may not."""
    held = environments.taken(session, owner.id, package.name)
    if not (isinstance(held, Environment) and rights.may(caller, "publish", held)):
        # Whoever has no right to the name learns nothing about it: new, private and moved are refused alike.
        rights.owner_for(session, caller, "publish", owner.name)
    if isinstance(held, FormerName):
        raise _moved(session, owner, package, held)
    if held is None:
        return _add_environment(session, owner, package, listed, private)
    label = f"{owner.name}/{held.name}"
    if held.deleted_at is not None:
        hint = "choose another name"
        raise HubProblem(
            409, "name_deleted", f"`{label}` was deleted; its name is not given again", hint=hint
        )
    status = environment_service.status_of(held)
    if status in ("archived", "quarantined"):
        hint = None if status == "quarantined" else f"`wander deprecate {label} --undo` opens it again"
        raise HubProblem(
            409, f"environment_{status}", f"`{label}` is {status}: it takes no uploads", hint=hint
        )
    if private is not None and private != held.private:
        word = "private" if held.private else "public"
        hint = f"`wander owner visibility {label}` changes that"
        raise HubProblem(409, "visibility_differs", f"`{label}` is {word} already", hint=hint)
    return held


def _add_environment(
    session: Session, owner: Owner, package: Package, listed: bool, private: bool | None
) -> Environment:
    environment = Environment(
        owner=owner,
        owner_id=owner.id,
        name=package.name,
        listed=listed,
        private=owner.private_by_default if private is None else private,
        latest_version=package.version,
        summary="",
        tags=[],
        search_text="",
        version_count=0,
        run_count=0,
        created_at=now(),
        updated_at=now(),
    )
    session.add(environment)
    session.flush()
    return environment


def _version_for(
    session: Session,
    environment: Environment,
    version: Version | None,
    package: Package,
    user_id: int | None,
    *,
    replace: bool,
) -> tuple[Version, bool]:
    """Return the version's row, made when it is new, and whether this package describes it."""
    if version is None:
        version = Version(
            environment_id=environment.id,
            version=package.version,
            yanked=False,
            uploaded_at=now(),
            uploaded_by_id=user_id,
        )
        _describe(version, package)
        session.add(version)
        session.flush()
        return version, True
    if replace or (package.kind == "wheel" and all(one.kind != "wheel" for one in version.files)):
        _describe(version, package)  # a wheel knows more than the source archive that came before it
        return version, True
    return version, False


def _describe(version: Version, package: Package) -> None:
    version.summary = package.summary
    version.requires_python = package.requires_python
    version.requires_dist = package.requires_dist
    version.license = package.license
    version.tags = package.tags
    version.entry_point = package.entry_point
    version.readme = package.readme
    version.readme_html = rendered(package.readme, package.readme_type)


def _put_file(
    session: Session, environment: Environment, version: Version, package: Package, known: File | None
) -> None:
    core = package.core_metadata
    file = known or File(environment_id=environment.id, version_id=version.id, filename=package.filename)
    file.kind = package.kind
    file.size = package.size
    file.sha256 = package.sha256
    file.core_metadata = core.decode() if core is not None else None
    file.core_metadata_sha256 = hashlib.sha256(core).hexdigest() if core is not None else None
    file.uploaded_at = now()
    session.add(file)


def _taken(environment: Environment, package: Package) -> HubProblem:
    label = f"{environment.owner.name}/{environment.name}"
    return HubProblem(
        409,
        "version_exists",
        f"`{package.filename}` already exists in `{label}` with other bytes",
        hint=f"versions never change: raise it above {environment.latest_version} and publish again",
    )


def _is_closed(version: Version, open_days: int | None) -> bool:
    return open_days is not None and now() - version.uploaded_at > timedelta(days=open_days)


def _closed(environment: Environment, version: Version) -> HubProblem:
    label = f"{environment.owner.name}/{environment.name}@{version.version}"
    day = f"{version.uploaded_at:%Y-%m-%d}"
    hint = "publish a new version"
    return HubProblem(409, "version_closed", f"`{label}` is of {day} and takes no more files", hint=hint)


def _deleted(environment: Environment, version: Version) -> HubProblem:
    label = f"{environment.owner.name}/{environment.name}@{version.version}"
    hint = "publish a higher version"
    return HubProblem(409, "version_deleted", f"`{label}` was deleted; it is not given again", hint=hint)


def _moved(session: Session, owner: Owner, package: Package, former: FormerName) -> HubProblem:
    now_at = environments.environment_numbered(session, former.environment_id)
    detail = f"`{owner.name}/{package.name}` is a former name; former names are not given again"
    hint = "choose another name"
    if now_at is not None:
        hint = f"publish to `{now_at.owner.name}/{now_at.name}`, which it has become"
    return HubProblem(409, "environment_moved", detail, hint=hint)
