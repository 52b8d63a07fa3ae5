"""The very installation that a run used: its version, and the lock that its packages came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander_client.context import current
from wander_client.environments.location import ensure_installed, installed_here
from wander_client.errors import ClientError
from wander_client.names import EnvironmentName

if TYPE_CHECKING:
    from wander.wire import EnvironmentPin

    from wander_client.packages.store import Installed


def pinned_installation(pin: EnvironmentPin, *, no_lock: bool = False) -> Installed:
    """Return the installed environment that a run's pin means, installing it when it is absent.

    A run that used its version's lock gets that lock or `ClientError`, unless `no_lock` leaves it aside. Of
    other runs the packages are looked for here; where others run in their place, a warning says so.
    """
    assert pin.owner is not None
    name = EnvironmentName(pin.owner, pin.name, pin.version)
    installed = _installed(name, pin, no_lock=no_lock)
    record, here = installed.record, current()
    if pin.wheel_sha256 is not None and record.wheel_sha256 != pin.wheel_sha256:
        raise ClientError(
            f"`{name}` is another file here than the run used: sha256 {record.wheel_sha256[:16]}..., "
            f"the run's is {pin.wheel_sha256[:16]}...",
            hint="the run belongs to another hub, or its record was changed",
            code="other_environment",
        )
    if not _is_locked(pin):
        if pin.packages_sha256 not in (None, record.packages_sha256):
            here.output.warn(f"the run used no lock, and `{name}` has other packages here than it had")
    elif no_lock:
        same = record.packages_sha256 == pin.packages_sha256
        found = "the same as it used" if same else "others than it used"
        here.output.warn(
            f"the run's lock is left aside: the packages are {found}, at least by their versions"
        )
    elif record.lock_sha256 != pin.lock_sha256:
        raise _other_lock(name, pin, record.lock_sha256)
    return installed


def _installed(name: EnvironmentName, pin: EnvironmentPin, *, no_lock: bool) -> Installed:
    if no_lock:
        return ensure_installed(name, no_lock=True)
    present = installed_here(name)
    if _is_locked(pin):
        same = [one for one in present if one.record.lock_sha256 == pin.lock_sha256]
        return same[-1] if same else ensure_installed(name, no_lock=False)
    same = [one for one in present if pin.packages_sha256 in (None, one.record.packages_sha256)]
    return same[-1] if same else ensure_installed(name, no_lock=True)


def _is_locked(pin: EnvironmentPin) -> bool:
    """Tell whether a run used its version's lock; older records name what was resolved in its place."""
    return pin.lock_sha256 is not None and pin.packages_sha256 is not None


def _other_lock(name: EnvironmentName, pin: EnvironmentPin, found: str | None) -> ClientError:
    has = f"has sha256 {found[:16]}... as its lock" if found else "has no lock"
    return ClientError(
        f"`{name}` {has} here, the run's is {str(pin.lock_sha256)[:16]}...",
        hint="the run belongs to another hub, or its record was changed; `--no-lock` leaves the lock aside",
        code="other_lock",
    )
