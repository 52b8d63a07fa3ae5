"""Locks of versions: a `pylock.toml` (PEP 751) that pins every package of a version by its digest.

A lock includes the version's own wheels, the hub's packages and all of their requirements. Anyone who may
publish can attach it, once, and it cannot be changed. Its digest identifies the resulting installation.
Installers verify the digests in any case, so this module rejects locks that would not work elsewhere (local
paths), that would leak credentials, or that belong to another version.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy.orm import Session
from wander.system.addresses import is_inner
from wander.wire import VersionDetail
from wander.wire.package_index import hub_file, origin_of, parse_file_address
from wander.wire.untrusted_text import LOCK, RefusedText, read_toml

from wander_hub.environments import documents, service
from wander_hub.environments.models import Environment, Version, VersionDocument
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.storage import Storage, digest_of

if TYPE_CHECKING:
    from packaging.pylock import Package

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HINT = "publish with `wander publish`, which creates a valid lock"


@lru_cache(128)
def list_packages(storage: Storage, sha256: str, size: int) -> tuple[tuple[str, str], ...]:
    """Return the packages of a stored lock with their versions; empty if the lock is too large."""
    if size > LOCK.most_bytes:
        return ()
    packages = read_toml(storage.read(sha256), LOCK).get("packages", ())
    return tuple(sorted((str(package["name"]), str(package.get("version", ""))) for package in packages))


@dataclass(frozen=True)
class LockedVersion:
    """The version that a lock must match."""

    name: str
    """Normalized name of the environment's distribution."""
    version: str
    requires_dist: list[str]
    wheels: Mapping[str, str]
    """Digests of its wheels, by file name."""


def check(content: bytes, wanted: LockedVersion, context: Context) -> None:
    """Raise if others could not install from a lock, or if it belongs to another version."""
    from packaging.pylock import Pylock, PylockValidationError

    try:
        lock = Pylock.from_dict(read_toml(content, LOCK))
    except RefusedText as error:
        raise _refusal(str(error), status=413 if error.too_large else 422) from error
    except (PylockValidationError, ValueError, RecursionError) as error:
        raise _refusal(f"it is not a valid lock (PEP 751): {error!s:.300}") from error
    if lock.extras or lock.dependency_groups:
        raise _refusal("it has extras or dependency groups, but the lock of a version must be a single set")
    own = [package for package in lock.packages if package.name == wanted.name]
    if not own:
        label = f"{wanted.name} {wanted.version}"
        raise _refusal(f"it does not include `{label}`, to which it should belong", code="lock_mismatch")
    home = {
        origin_of(wheel.url) for package in own for wheel in package.wheels or [] if wheel.url is not None
    }
    _check_own(own, wanted)
    for package in lock.packages:
        _check_package(package, home, context)
    held = {package.name for package in lock.packages}
    for text in wanted.requires_dist:
        requirement = Requirement(text)
        # Requirements with a marker are skipped, because the marker depends on the installer's platform.
        if requirement.marker is None and canonicalize_name(requirement.name) not in held:
            detail = f"the version requires `{text}`, which the lock does not include"
            raise _refusal(detail, code="lock_mismatch")


def _check_package(package: Package, home: Collection[str], context: Context) -> None:
    """Raise if a package does not consist of files with digests at public addresses.

    `home` has the hub's origins when the lock was made.
    """
    name = package.name
    if package.directory is not None:
        raise _refusal(f"`{name}` is in a local folder of the machine that made the lock")
    if package.vcs is not None:
        raise _refusal(f"`{name}` comes from a repository, which provides no digests of its files")
    if package.version is None and package.archive is None:
        raise _refusal(f"`{name}` has no version")
    for where, path, url, hashes in _files(package):
        if path is not None or url is None:
            raise _refusal(f"`{where}` of `{name}` is a local path of the machine that made the lock")
        if not _SHA256.fullmatch(str(hashes.get("sha256", ""))):
            raise _refusal(f"`{where}` of `{name}` has no SHA-256")
        _check_address(where, name, url, home, context)


def _files(package: Package) -> Iterator[tuple[str, str | None, str | None, Mapping[str, str]]]:
    """Yield name, path, address and digests of each of a package's files."""
    for wheel in package.wheels or []:
        yield wheel.filename, wheel.path, wheel.url, wheel.hashes
    if package.sdist is not None:
        yield package.sdist.filename, package.sdist.path, package.sdist.url, package.sdist.hashes
    if package.archive is not None:
        yield "archive", package.archive.path, package.archive.url, package.archive.hashes


def _check_address(where: str, name: str, url: str, home: Collection[str], context: Context) -> None:
    """Raise if an address is malformed, contains secrets, or is in a private network.

    This check uses no DNS lookup. The hub never requests these addresses itself: its jobs download from the
    configured indexes (`wander_hub.verification.program`).
    """
    try:
        # The code below decides whether the address may use plain http.
        address = parse_file_address(url, {origin_of(url)})
    except ValueError as error:
        code = "lock_credentials" if "credentials:" in str(error) else "bad_lock"
        raise _refusal(f"the address of `{where}` of `{name}` is not allowed: {error}", code=code) from error
    host, own = urlsplit(url).hostname, urlsplit(context.base_url).hostname
    networks = context.settings.webhook_networks
    if host is not None and host != own and is_inner(host, networks):
        raise _refusal(f"`{where}` of `{name}` is in a private network", code="lock_address")
    of_hub = address.origin in home and (hub_file(address) or ("", ""))[1] == name
    chosen = host is not None and is_inner(host, ()) and host != own
    index = origin_of(context.settings.upstream_index or "")
    # An index on the same host as a hub without TLS is as secure as that hub.
    same_host = host == own and context.base_url.startswith("http:")
    if address.origin.startswith("http:") and not (of_hub or chosen or same_host or address.origin == index):
        raise _refusal(f"the address of `{where}` of `{name}` must use https")


def _check_own(own: Sequence[Package], wanted: LockedVersion) -> None:
    """Raise if a lock does not include the version's own wheels with their digests."""
    label = f"{wanted.name} {wanted.version}"
    for package in own:
        if str(package.version) != wanted.version:
            raise _refusal(
                f"it is for `{wanted.name} {package.version}`, not `{label}`", code="lock_mismatch"
            )
        if package.sdist is not None or package.archive is not None or not package.wheels:
            raise _refusal(f"it must include `{label}` as wheels", code="lock_mismatch")
        for wheel in package.wheels:
            if wanted.wheels.get(wheel.filename) != wheel.hashes.get("sha256"):
                detail = f"its `{wheel.filename}` differs from the one on this hub"
                raise _refusal(detail, code="lock_mismatch")


def offer(context: Context, owner: str, name: str, version: str, content: bytes) -> VersionDetail:
    """Attach a lock to a published version without a lock; raise if it does not belong to the version.

    Parsing a long lock takes a second, so no database connection is held during that time.
    """
    with context.read() as session:
        environment = service.find(session, owner, name)
        if not rights.may(context.caller, "publish", environment):
            raise rights.refusal(context.caller, "publish", environment)
        published = service.find_version(session, environment, version)
        wheels = {file.filename: file.sha256 for file in published.files if file.kind == "wheel"}
        # After a renaming, the files still have the name under which they were built.
        built_as = canonicalize_name(next(iter(wheels), environment.name).partition("-")[0])
        wanted = LockedVersion(built_as, published.version, published.requires_dist, wheels)
        files = {hashlib.sha256(content).hexdigest(): len(content)}
        quotas.require_quota(session, context.settings, environment.owner, files=files)
    check(content, wanted, context)
    context.storage.put(io.BytesIO(content))

    def record(session: Session) -> VersionDetail:
        context.database.lock_objects(session, exclusive=False)
        attached = attach(session, context.storage, context.caller, owner, name, version, content)
        quotas.require_room(session, context.settings, attached[0].owner, quotas.OF_VERSIONS[:1])
        return service.version_detail(*attached, context.base_url)

    return context.commit(record)


def attach(
    session: Session, storage: Storage, caller: Identity, owner: str, name: str, version: str, content: bytes
) -> tuple[Environment, Version]:
    """Attach a stored lock to a published version. The same lock again is accepted; another lock is a 409
    problem."""
    environment = rights.environment_for(session, caller, "publish", owner, name)
    published = service.find_version(session, environment, version)
    if published.deleted_at is not None:
        raise HubProblem(409, "version_deleted", f"version {published.version} was deleted")
    body = io.BytesIO(content)
    sha256, size = digest_of(body)
    documents.attach(session, storage, published, "lock", body, sha256, size)
    session.expire(published, ["documents"])
    return environment, service.find_version(session, environment, published.version)


def find(session: Session, owner: str, name: str, version: str) -> VersionDocument:
    """Return the lock of a version; raise a 404 if the version has no lock or its files are unavailable."""
    environment = service.find(session, owner, name)
    locked = service.find_version(session, environment, version)
    lock = next((document for document in locked.documents if document.kind == "lock"), None)
    if lock is not None and service.list_offered_files(environment, locked):
        return lock
    label = f"{environment.label}@{locked.version}"
    hint = "publish the next version with `wander publish`, which creates a lock"
    raise HubProblem(404, "lock_not_found", f"`{label}` has no lock", hint=hint)


def _refusal(fault: str, *, code: str = "bad_lock", status: int = 422) -> HubProblem:
    return HubProblem(status, code, f"the lock was rejected: {fault}", hint=_HINT)
