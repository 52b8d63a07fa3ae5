"""Environments and versions as the API shows them."""

from __future__ import annotations

from functools import lru_cache

from packaging.version import Version as Number
from sqlalchemy.orm import Session
from wander.wire import (
    CheckSummary,
    EnvironmentDetail,
    EnvironmentPage,
    EnvironmentSummary,
    FileInfo,
    LockInfo,
    ProjectStatus,
    UploadWarning,
    VersionDetail,
)
from wander.wire.source_tree import SourceInfo

from wander_hub import names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner
from wander_hub.database import READER, fill
from wander_hub.environments import browse, repository
from wander_hub.environments.models import Environment, File, Version
from wander_hub.environments.repository import ListedVersion
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.problems import HubProblem, Moved
from wander_hub.identity import Identity

_parsed = lru_cache(8192)(Number)
"""Cached parser of versions, because every upload sorts all versions of its environment."""
_MOST_NAMED = 8
"""Maximum number of versions in the error for an unknown version."""
HUB_ITSELF = "the hub"
"""Name of the publisher of the hub's own packages."""


def list_page(session: Session, wanted: EnvironmentFilter) -> EnvironmentPage:
    """Return one page of environments."""
    rows, following = browse.page(session, wanted)
    return EnvironmentPage(data=[summary_of(row) for row in rows], next=following)


def detail(session: Session, owner: str, name: str, base_url: str) -> EnvironmentDetail:
    """Return one environment with its newest version."""
    environment = find(session, owner, name)
    versions = list_versions(session, environment)
    numbers = [version.version for version in versions]  # a job's token sees only its own version
    newest = environment.latest_version if environment.latest_version in numbers else numbers[0]
    latest = find_version(session, environment, newest)
    return EnvironmentDetail(
        **summary_of(environment).model_dump(),
        created_at=environment.created_at,
        readme=latest.readme,
        latest=version_detail(environment, latest, base_url),
        all_versions=[version.version for version in versions if version.deleted_at is None],
        yanked_versions=[
            version.version for version in versions if version.deleted_at is None and version.yanked
        ],
        status_reason=reason_of(environment),
        successor=successor_of(environment),
    )


def may_inspect(session: Session) -> bool:
    """Return whether the session's reader may download files in quarantine."""
    reader: Identity | None = session.info.get(READER)
    return reader is not None and reader.administers


def status_of(environment: Environment) -> ProjectStatus:
    """Return the status as in PEP 792; a quarantine takes precedence."""
    if environment.quarantine_reason is not None:
        return "quarantined"
    status: ProjectStatus = environment.status  # type: ignore[assignment]
    return status


def reason_of(environment: Environment) -> str | None:
    """Return the reason for the environment's status."""
    reason = environment.quarantine_reason
    return environment.status_reason if reason is None else reason


def successor_of(environment: Environment) -> str | None:
    """Return the replacement of a deprecated environment as `owner/name`, or None."""
    return environment.successor if environment.status == "deprecated" else None


def find(session: Session, owner: str, name: str) -> Environment:
    """Return an environment; a former name is redirected, and a deleted environment is a 410 problem."""
    environment = resolve(session, owner, name)
    if environment.deleted_at is not None:
        label = environment.label
        hint = "its name cannot be used again; runs that used it are kept"
        raise HubProblem(410, "environment_deleted", f"`{label}` was deleted", hint=hint)
    present = (environment.owner.name, environment.name)
    if present != (names.normalize_owner(owner), names.normalize_environment(name)):
        raise Moved(*present)
    return environment


def resolve(session: Session, owner: str, name: str) -> Environment:
    """Return an environment by its current or former name, even if deleted; raise a 404 problem if
    unknown."""
    owner, name = names.normalize_owner(owner), names.normalize_environment(name)
    environment = repository.environment_named(session, owner, name)
    environment = environment or repository.environment_once_named(session, owner, name)
    if environment is not None:
        return environment
    hint = _hint(suggestions(session, owner, name))
    raise HubProblem(404, "environment_not_found", f"there is no environment `{owner}/{name}`", hint=hint)


def suggestions(session: Session, owner: str, name: str) -> list[str]:
    """Return up to three environments with similar names."""
    same_name = [f"{holder}/{name}" for holder in repository.owners_of(session, name)]
    # Compare owner and name separately, so that a correct owner does not make other names look similar.
    held = {
        candidate: repository.names_around(session, candidate, name)
        for candidate in dict.fromkeys((owner, *names.near(owner, accounts.owners_around(session, owner))))
    }
    similar = names.near(name, {known for group in held.values() for known in group})
    close = [f"{holder}/{known}" for known in similar for holder, group in held.items() if known in group]
    return list(dict.fromkeys(same_name + close))[:3]


def find_version(session: Session, environment: Environment, version: str) -> Version:
    """Return a version (`latest` means the newest); raise a 404 problem if it does not exist."""
    wanted = environment.latest_version if version == "latest" else version
    if existing := repository.version_of(session, environment, wanted):
        return existing
    label = environment.label
    present = [row.version for row in list_versions(session, environment) if row.deleted_at is None]
    listed = ", ".join(f"`{number}`" for number in present[:_MOST_NAMED])
    listed += " ..." if present[_MOST_NAMED:] else ""
    raise HubProblem(
        404,
        "version_not_found",
        f"`{label}` has no version `{version}`",
        hint=f"the newest version is `{label}@{environment.latest_version}`"
        + (f"; available: {listed}" if present else ""),
    )


def require_owner(session: Session, owner: str) -> Owner:
    """Return the owner of that name; raise a 404 problem if it does not exist."""
    namespace = accounts.owner_named(session, owner)
    if namespace is None:
        hint = _hint(names.near(owner, accounts.owners_around(session, owner)))
        raise HubProblem(404, "owner_not_found", f"there is no owner `{owner}`", hint=hint)
    return namespace


def _hint(close: list[str]) -> str | None:
    return f"did you mean {' or '.join(f'`{name}`' for name in close)}?" if close else None


def list_versions(session: Session, environment: Environment) -> list[ListedVersion]:
    """Return all versions of an environment, newest first in the order of PEP 440."""
    versions = repository.versions_of(session, environment)
    return sorted(versions, key=lambda row: _parsed(row.version), reverse=True)


def latest_of(versions: list[ListedVersion]) -> ListedVersion:
    """Return the version that `latest` means: the newest that is not deleted, not yanked and not a
    pre-release.

    `versions` must have the newest first. If no version qualifies, pre-releases are allowed first, then
    yanked versions, then deleted ones.
    """
    present = [row for row in versions if row.deleted_at is None] or versions
    live = [row for row in present if not row.yanked] or present
    final = [row for row in live if not _parsed(row.version).is_prerelease]
    return (final or live)[0]


def summary_of(environment: Environment) -> EnvironmentSummary:
    """Return an environment's row of a listing."""
    return fill(
        EnvironmentSummary,
        environment,
        owner=environment.owner.name,
        versions=environment.version_count,
        runs=environment.run_count,
        downloads=environment.download_count,
        status=status_of(environment),
    )


def version_detail(environment: Environment, version: Version, base_url: str) -> VersionDetail:
    """Return a version with the addresses of its files and of its lock, if they may be downloaded."""
    owner, name = environment.owner.name, environment.name
    files = list_offered_files(environment, version)
    locks = [document for document in version.documents if document.kind == "lock" and files]
    lock = f"{base_url}/api/v1/environments/{owner}/{name}/versions/{version.version}/pylock.toml"
    return fill(
        VersionDetail,
        version,
        owner=owner,
        name=name,
        uploaded_by=version.uploaded_by.name if version.uploaded_by else HUB_ITSELF,
        files=[
            fill(FileInfo, file, url=f"{base_url}/{owner}/files/{name}/{file.filename}") for file in files
        ],
        lock=fill(LockInfo, locks[0], url=lock, attached_at=locks[0].created_at) if locks else None,
        check=CheckSummary.model_validate(version.check_summary) if version.check_summary else None,
        warnings=[
            UploadWarning.model_validate({**warning, "filename": file.filename})
            for file in files
            for warning in file.warnings or ()
        ],
        source=SourceInfo.model_validate(version.source) if version.source else None,
    )


def list_offered_files(environment: Environment, version: Version) -> list[File]:
    """Return the downloadable files of a version: none if it is deleted or in quarantine."""
    if version.deleted_at is not None or environment.quarantine_reason is not None:
        return []
    return version.files
