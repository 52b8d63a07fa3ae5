"""Publishes a checked file: store the object, then rows and index pages in one transaction."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy.orm import Session
from wander.wire import CheckSummary

from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner
from wander_hub.database import now
from wander_hub.environments import repository as environments
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import Environment, File, Version
from wander_hub.environments.readme import rendered
from wander_hub.index import service as index
from wander_hub.problems import HubProblem
from wander_hub.upload.schemas import Package


@dataclass(frozen=True)
class Published:
    """The outcome of an upload."""

    environment: Environment
    version: Version
    created: bool
    """False when the hub already had these very bytes."""


def publish(
    session: Session,
    owner: Owner,
    package: Package,
    *,
    user_id: int | None,
    listed: bool = True,
    replace: bool = False,
    check: CheckSummary | None = None,
) -> Published:
    """Record a file whose object is stored. Other bytes under a known file name are a 409, unless `replace`.

    `check` is what the publisher states; that of a version's first wheel is kept.
    `replace` is for the hub's own packages, which are rebuilt under one version while they are developed.
    """
    accounts.lock_owner(session, owner)  # the index pages are rendered from all of the owner's rows
    environment = environments.environment_named(session, owner.name, package.name)
    new = environment is None
    if environment is None:
        environment = _add_environment(session, owner, package, listed)
    known = environments.file_named(session, owner.name, package.name, package.filename)
    if known is not None and known.sha256 == package.sha256:
        version = environment_service.find_version(session, environment, package.version)
        return Published(environment, version, created=False)
    if known is not None and not replace:
        raise _taken(environment, package)
    version, described = _version_for(session, environment, package, user_id, replace=replace)
    if described and package.kind == "wheel":
        version.check_summary = check.model_dump(mode="json") if check is not None else None
    _put_file(session, environment, version, package, known)
    session.flush()
    session.expire(version, ["files"])
    _refresh(session, environment)
    index.write_pages(session, environment, new=new)
    return Published(
        environment, environment_service.find_version(session, environment, package.version), created=True
    )


def _add_environment(session: Session, owner: Owner, package: Package, listed: bool) -> Environment:
    environment = Environment(
        owner=owner,
        owner_id=owner.id,
        name=package.name,
        listed=listed,
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
    session: Session, environment: Environment, package: Package, user_id: int | None, *, replace: bool
) -> tuple[Version, bool]:
    """Return the version's row, and whether this package describes it."""
    version = environments.version_of(session, environment, package.version)
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


def _refresh(session: Session, environment: Environment) -> None:
    """Bring what listings show up to date with the versions."""
    versions = list(environments.versions_of(session, environment))
    latest = environment_service.latest_of(versions)
    environment.latest_version = latest.version
    environment.summary = latest.summary
    environment.tags = latest.tags
    environment.version_count = len(versions)
    environment.updated_at = now()
    words = [
        f"{environment.owner.name}/{environment.name}",
        environment.name.replace("-", " "),
        latest.summary,
    ]
    tags = " ".join(f"#{tag}" for tag in latest.tags)
    environment.search_text = f" {' '.join(words)} {tags} ".lower()


def _taken(environment: Environment, package: Package) -> HubProblem:
    label = f"{environment.owner.name}/{environment.name}"
    return HubProblem(
        409,
        "version_exists",
        f"`{package.filename}` already exists in `{label}` with other bytes",
        hint=f"versions never change: raise it above {environment.latest_version} and publish again",
    )
