"""Locks of versions: a `pylock.toml` (PEP 751) that pins each package a version runs with by its digest.

A lock holds the version's own wheels, the hub's packages and everything that these require. It is attached
once, by whoever may publish, and never changed; its digest names what installers make of it. They check the
digests in it whatever it says, so what is refused here is what would not work elsewhere (paths of the
publisher's machine), what would leak (credentials) and what belongs to another version.
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
from wander.wire import VersionDetail
from wander.wire.gate import LOCK, Refused, read_toml
from wander.wire.package_index import hub_file, origin_of, parse_file_address

from wander_hub.environments import documents, service
from wander_hub.environments.models import Environment, Version, VersionDocument
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.storage import Storage, digest_of
from wander_hub.webhooks.addresses import is_inner

if TYPE_CHECKING:
    from packaging.pylock import Package

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HINT = "`wander env lock` makes a lock that a hub takes"


@lru_cache(128)
def list_packages(storage: Storage, sha256: str, size: int) -> tuple[tuple[str, str], ...]:
    """Return the packages of a stored lock with their versions, empty for one that has none."""
    if size > LOCK.most_bytes:
        return ()
    found = read_toml(storage.read(sha256), LOCK).get("packages", ())
    return tuple(sorted((str(one["name"]), str(one.get("version", ""))) for one in found))


@dataclass(frozen=True)
class LockedVersion:
    """What a lock must fit."""

    name: str
    """Normalised name of the environment's distribution."""
    version: str
    requires_dist: list[str]
    wheels: Mapping[str, str]
    """Digests of its wheels by file name."""


def check(content: bytes, wanted: LockedVersion, context: Context) -> None:
    """Refuse a lock that nobody else could install from or that is another version's."""
    from packaging.pylock import Pylock, PylockValidationError

    try:
        lock = Pylock.from_dict(read_toml(content, LOCK))
    except Refused as error:
        raise _refusal(str(error), status=413 if error.too_large else 422) from error
    except (PylockValidationError, ValueError, RecursionError) as error:
        raise _refusal(f"it is no lock as PEP 751 has it: {error!s:.300}") from error
    if lock.extras or lock.dependency_groups:
        raise _refusal("it has extras or dependency groups; the lock of a version is one set of packages")
    own = [package for package in lock.packages if package.name == wanted.name]
    if not own:
        label = f"{wanted.name} {wanted.version}"
        raise _refusal(f"it does not hold `{label}`, whose lock it should be", code="lock_mismatch")
    home = {origin_of(wheel.url) for each in own for wheel in each.wheels or [] if wheel.url is not None}
    _check_own(own, wanted)
    for package in lock.packages:
        _check_package(package, home, context)
    held = {package.name for package in lock.packages}
    for text in wanted.requires_dist:
        requirement = Requirement(text)
        # Where a marker holds is for the installer to find out.
        if requirement.marker is None and canonicalize_name(requirement.name) not in held:
            detail = f"the version requires `{text}`, which the lock does not hold"
            raise _refusal(detail, code="lock_mismatch")


def _check_package(package: Package, home: Collection[str], context: Context) -> None:
    """Refuse a package that does not come as files with digests at addresses that anybody can ask.

    `home` are the origins of the hub when the lock was made.
    """
    name = package.name
    if package.directory is not None:
        raise _refusal(f"`{name}` lies in a folder of the machine that made the lock")
    if package.vcs is not None:
        raise _refusal(f"`{name}` comes from a repository, of whose files nothing states a digest")
    if package.version is None and package.archive is None:
        raise _refusal(f"`{name}` has no version")
    for where, path, url, hashes in _files(package):
        if path is not None or url is None:
            raise _refusal(f"`{where}` of `{name}` names a path, which only the machine that made it has")
        if not _SHA256.fullmatch(str(hashes.get("sha256", ""))):
            raise _refusal(f"`{where}` of `{name}` states no SHA-256")
        _check_address(where, name, url, home, context)


def _files(package: Package) -> Iterator[tuple[str, str | None, str | None, Mapping[str, str]]]:
    """Yield what a package's files are called, their paths, addresses and digests."""
    for wheel in package.wheels or []:
        yield wheel.filename, wheel.path, wheel.url, wheel.hashes
    if package.sdist is not None:
        yield package.sdist.filename, package.sdist.path, package.sdist.url, package.sdist.hashes
    if package.archive is not None:
        yield "archive", package.archive.path, package.archive.url, package.archive.hashes


def _check_address(where: str, name: str, url: str, home: Collection[str], context: Context) -> None:
    """Refuse an address that is not plain, holds secrets, or leads into a network that few machines reach.

    What can be told without a look-up is told here. The hub itself asks none of these addresses: its jobs
    fetch from the indexes that it is configured to use (`wander_hub.verification.program`).
    """
    try:
        # Whether it may come without TLS is decided below, where more is known.
        address = parse_file_address(url, {origin_of(url)})
    except ValueError as error:
        code = "lock_credentials" if "credentials:" in str(error) else "bad_lock"
        raise _refusal(f"the address of `{where}` of `{name}` is not taken: {error}", code=code) from error
    host, own = urlsplit(url).hostname, urlsplit(context.base_url).hostname
    networks = context.settings.webhook_networks
    if host is not None and host != own and is_inner(host, networks):
        raise _refusal(f"`{where}` of `{name}` is in a private network", code="lock_address")
    of_hub = address.origin in home and (hub_file(address) or ("", ""))[1] == name
    chosen = host is not None and is_inner(host, ()) and host != own
    index = origin_of(context.settings.upstream_index or "")
    # An index on the machine of a hub that has no TLS either is no weaker than that hub.
    beside = host == own and context.base_url.startswith("http:")
    if address.origin.startswith("http:") and not (of_hub or chosen or beside or address.origin == index):
        raise _refusal(f"the address of `{where}` of `{name}` begins with `http:`; files come over https")


def _check_own(own: Sequence[Package], wanted: LockedVersion) -> None:
    """Refuse a lock that is not of this version: it has to hold the version's wheel, by its digest."""
    label = f"{wanted.name} {wanted.version}"
    for package in own:
        if str(package.version) != wanted.version:
            raise _refusal(f"it is of `{wanted.name} {package.version}`, not `{label}`", code="lock_mismatch")
        if package.sdist is not None or package.archive is not None or not package.wheels:
            raise _refusal(f"it holds `{label}` as something else than wheels", code="lock_mismatch")
        for wheel in package.wheels:
            if wanted.wheels.get(wheel.filename) != wheel.hashes.get("sha256"):
                detail = f"it holds `{wheel.filename}` with other bytes than this hub's"
                raise _refusal(detail, code="lock_mismatch")


def offer(context: Context, owner: str, name: str, version: str, content: bytes) -> VersionDetail:
    """Give a version that was published without one its lock; refuse one that does not fit it.

    Reading a long one takes a second, so no connection to the database is held meanwhile.
    """
    with context.read() as session:
        environment = service.find(session, owner, name)
        if not rights.may(context.caller, "publish", environment):
            raise rights.refusal(context.caller, "publish", environment)
        found = service.find_version(session, environment, version)
        wheels = {file.filename: file.sha256 for file in found.files if file.kind == "wheel"}
        # An environment may have been renamed since; its files keep the name that they were built under.
        built_as = canonicalize_name(next(iter(wheels), environment.name).partition("-")[0])
        wanted = LockedVersion(built_as, found.version, found.requires_dist, wheels)
        files = {hashlib.sha256(content).hexdigest(): len(content)}
        quotas.foresee(session, context.settings, environment.owner, files=files)
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
    """Give a published version its lock, whose bytes are stored; the same again is fine, others are a 409."""
    environment = rights.environment_for(session, caller, "publish", owner, name)
    found = service.find_version(session, environment, version)
    if found.deleted_at is not None:
        raise HubProblem(409, "version_deleted", f"version {found.version} was deleted")
    body = io.BytesIO(content)
    sha256, size = digest_of(body)
    documents.attach(session, storage, found, "lock", body, sha256, size)
    session.expire(found, ["documents"])
    return environment, service.find_version(session, environment, found.version)


def find(session: Session, owner: str, name: str, version: str) -> VersionDocument:
    """Return the lock of a version; raise a 404 where it has none or its files may not be had."""
    environment = service.find(session, owner, name)
    found = service.find_version(session, environment, version)
    lock = next((one for one in found.documents if one.kind == "lock"), None)
    if lock is not None and service.list_offered_files(environment, found):
        return lock
    label = f"{environment.label}@{found.version}"
    hint = f"`wander env lock {label}` makes one, and `--attach` gives it to the version"
    raise HubProblem(404, "lock_not_found", f"`{label}` has no lock", hint=hint)


def _refusal(fault: str, *, code: str = "bad_lock", status: int = 422) -> HubProblem:
    return HubProblem(status, code, f"the lock is refused: {fault}", hint=_HINT)
