"""Environments as the outside sees them."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
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
from wander.wire.environments import DayOfDownloads, DownloadHistory
from wander.wire.source_tree import SourceInfo

from wander_hub import names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner
from wander_hub.database import READER, fill, now
from wander_hub.environments import browse, repository
from wander_hub.environments.models import Environment, File, Version
from wander_hub.environments.repository import ListedVersion
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.problems import HubProblem, Moved
from wander_hub.identity import Identity

_parsed = lru_cache(8192)(Number)
"""Every upload orders all versions of its environment."""
_MOST_NAMED = 8
"""Versions, where one is asked for that is not there."""
HUB_ITSELF = "the hub"
"""Who published what no user did."""


def list_page(session: Session, wanted: EnvironmentFilter) -> EnvironmentPage:
    """Return one page of environments."""
    rows, following = browse.page(session, wanted)
    return EnvironmentPage(data=[summary_of(one) for one in rows], next=following)


def detail(session: Session, owner: str, name: str, base_url: str) -> EnvironmentDetail:
    """Return one environment with its newest version."""
    environment = find(session, owner, name)
    versions = list_versions(session, environment)
    numbers = [one.version for one in versions]  # a token of one version sees no other
    newest = environment.latest_version if environment.latest_version in numbers else numbers[0]
    latest = find_version(session, environment, newest)
    return EnvironmentDetail(
        **summary_of(environment).model_dump(),
        created_at=environment.created_at,
        readme=latest.readme,
        latest=version_detail(environment, latest, base_url),
        all_versions=[one.version for one in versions if one.deleted_at is None],
        yanked_versions=[one.version for one in versions if one.deleted_at is None and one.yanked],
        status_reason=reason_of(environment),
        successor=successor_of(environment),
        parent=parent_of(session, environment),
    )


def downloads(session: Session, owner: str, name: str, days: int) -> DownloadHistory:
    """Return how often files of an environment were sent: of all time, and the last days by version."""
    environment = find(session, owner, name)
    found = repository.downloads_of(session, environment, now().date() - timedelta(days=days - 1))
    return DownloadHistory(
        total=environment.download_count,
        days=[DayOfDownloads(day=day, version=version, downloads=count) for day, version, count in found],
    )


def may_inspect(session: Session) -> bool:
    """Tell whether the session's reader may take files that are in quarantine."""
    reader: Identity | None = session.info.get(READER)
    return reader is not None and reader.administers


def status_of(environment: Environment) -> ProjectStatus:
    """Return the status in the words of PEP 792; what an administrator imposes goes before."""
    if environment.quarantine_reason is not None:
        return "quarantined"
    status: ProjectStatus = environment.status  # type: ignore[assignment]
    return status


def reason_of(environment: Environment) -> str | None:
    """Return why the environment has its status."""
    reason = environment.quarantine_reason
    return environment.status_reason if reason is None else reason


def successor_of(environment: Environment) -> str | None:
    """Return `owner/name` of what to use instead of a deprecated environment."""
    return environment.successor if environment.status == "deprecated" else None


def parent_of(session: Session, environment: Environment) -> str | None:
    """Return `owner/name@version` that an environment was forked from, where the reader may see it."""
    if environment.parent_id is None:
        return None
    parent = repository.environment_numbered(session, environment.parent_id)
    return f"{parent.label}@{environment.parent_version}" if parent else None


def find(session: Session, owner: str, name: str) -> Environment:
    """Return an environment; a former name is answered with a redirect, a deleted one with a 410."""
    environment = resolve(session, owner, name)
    if environment.deleted_at is not None:
        label = environment.label
        hint = "its name is never given again; runs that used it are kept"
        raise HubProblem(410, "environment_deleted", f"`{label}` was deleted", hint=hint)
    present = (environment.owner.name, environment.name)
    if present != (names.normalize_owner(owner), names.normalize_environment(name)):
        raise Moved(*present)
    return environment


def resolve(session: Session, owner: str, name: str) -> Environment:
    """Return an environment by a present or former name, even a deleted one, or raise a 404."""
    owner, name = names.normalize_owner(owner), names.normalize_environment(name)
    environment = repository.environment_named(session, owner, name)
    environment = environment or repository.environment_once_named(session, owner, name)
    if environment is not None:
        return environment
    hint = _hint(suggestions(session, owner, name))
    raise HubProblem(404, "environment_not_found", f"there is no environment `{owner}/{name}`", hint=hint)


def suggestions(session: Session, owner: str, name: str) -> list[str]:
    """Return up to three environments whose names look like the given one."""
    same_name = [f"{one}/{name}" for one in repository.owners_of(session, name)]
    # Each part by itself: an owner that is right makes no other name of theirs a near one.
    held = {
        one: repository.names_around(session, one, name)
        for one in dict.fromkeys((owner, *names.near(owner, accounts.owners_around(session, owner))))
    }
    near = names.near(name, {each for some in held.values() for each in some})
    close = [f"{one}/{each}" for each in near for one, some in held.items() if each in some]
    return list(dict.fromkeys(same_name + close))[:3]


def find_version(session: Session, environment: Environment, version: str) -> Version:
    """Return a version (`latest` means the newest), or raise a 404."""
    wanted = environment.latest_version if version == "latest" else version
    if found := repository.version_of(session, environment, wanted):
        return found
    label = environment.label
    some = [one.version for one in list_versions(session, environment) if one.deleted_at is None]
    there = ", ".join(f"`{one}`" for one in some[:_MOST_NAMED]) + (" ..." if some[_MOST_NAMED:] else "")
    raise HubProblem(
        404,
        "version_not_found",
        f"`{label}` has no version `{version}`",
        hint=f"the newest is `{label}@{environment.latest_version}`"
        + (f"; there are {there}" if some else ""),
    )


def require_owner(session: Session, owner: str) -> Owner:
    """Return the owner of that name; raise a 404 when there is none."""
    found = accounts.owner_named(session, owner)
    if found is None:
        hint = _hint(names.near(owner, accounts.owners_around(session, owner)))
        raise HubProblem(404, "owner_not_found", f"there is no owner `{owner}`", hint=hint)
    return found


def _hint(close: list[str]) -> str | None:
    return f"did you mean {' or '.join(f'`{one}`' for one in close)}?" if close else None


def list_versions(session: Session, environment: Environment) -> list[ListedVersion]:
    """Return every version of an environment, newest first as PEP 440 orders them."""
    versions = repository.versions_of(session, environment)
    return sorted(versions, key=lambda one: _parsed(one.version), reverse=True)


def latest_of(versions: list[ListedVersion]) -> ListedVersion:
    """Return the version that `latest` means: the newest that is neither deleted, yanked nor a pre-release.

    `versions` has the newest first. Where no version is all of that, the last demand is dropped first, and
    the first last.
    """
    present = [one for one in versions if one.deleted_at is None] or versions
    live = [one for one in present if not one.yanked] or present
    final = [one for one in live if not _parsed(one.version).is_prerelease]
    return (final or live)[0]


def summary_of(environment: Environment) -> EnvironmentSummary:
    """Return the row of a listing."""
    return fill(
        EnvironmentSummary,
        environment,
        owner=environment.owner.name,
        versions=environment.version_count,
        runs=environment.run_count,
        downloads=environment.download_count,
        stars=environment.star_count,
        status=status_of(environment),
    )


def version_detail(environment: Environment, version: Version, base_url: str) -> VersionDetail:
    """Return a version with the addresses of its files and of its lock, where they may be had."""
    owner, name = environment.owner.name, environment.name
    files = list_offered_files(environment, version)
    locks = [one for one in version.documents if one.kind == "lock" and files]
    lock = f"{base_url}/api/v1/environments/{owner}/{name}/versions/{version.version}/pylock.toml"
    return fill(
        VersionDetail,
        version,
        owner=owner,
        name=name,
        uploaded_by=version.uploaded_by.name if version.uploaded_by else HUB_ITSELF,
        files=[fill(FileInfo, one, url=f"{base_url}/{owner}/files/{name}/{one.filename}") for one in files],
        lock=fill(LockInfo, locks[0], url=lock, attached_at=locks[0].created_at) if locks else None,
        check=CheckSummary.model_validate(version.check_summary) if version.check_summary else None,
        warnings=[
            UploadWarning.model_validate({**warning, "filename": one.filename})
            for one in files
            for warning in one.warnings or ()
        ],
        source=SourceInfo.model_validate(version.source) if version.source else None,
    )


def list_offered_files(environment: Environment, version: Version) -> list[File]:
    """Return the files of a version that may be had: none of a deleted one, none under quarantine."""
    if version.deleted_at is not None or environment.quarantine_reason is not None:
        return []
    return version.files


def required_names(version: Version) -> list[str]:
    """Return the names of the distributions that a version requires, without those of its extras."""
    found = (Requirement(one) for one in version.requires_dist)
    return sorted({canonicalize_name(one.name) for one in found if "extra" not in str(one.marker)})
