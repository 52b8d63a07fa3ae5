"""Resolve the dependency `verifiers` of published environments to the hub's package with that name.

The hub's package serves the classic API (0.1.3 to 0.3.1), which upstream's newest releases no longer have.
Whatever versions a package or its dependencies require, the resolver gets this wheel. Packages whose code
uses `verifiers.v1`, or which require a release after 0.3.1, keep upstream's package.
`wander-compat` contains the classic API and plays task sets. It is installed together with the SDK if a
package uses the library.
"""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from wander.modules import script_blocks

from wander_client.errors import ClientError
from wander_client.packages.library_use import (
    LARGEST_SOURCE,
    library_of,
    minor_of_tasksets,
    sources_of_wheel,
)

PROJECT = "verifiers"
COMPAT = "wander-compat"
"""Distribution with the classic API; `verifiers` only redirects to it."""
NEWEST = Version("0.3.1")
"""Last release whose API is served."""
FIRST_OF_TASKSETS = Version("0.3.0")
"""Oldest release of `verifiers.v1` that is installed if nothing indicates an older one."""
_MINORS = {
    "0.1": ("==0.1.14", "0.1.13.dev0", "0.1.15.dev0"),
    "0.2": (">=0.2.0,<0.3", "0.2.0.dev0", "0.3.0.dev0"),
    "0.3": (">=0.3.0,<0.4", "0.3.0.dev0", "0.4.0.dev0"),
}
"""Published releases of each older minor version, with the bounds of requirements that mean this minor."""
EXTRAS = frozenset({"rg", "ta"})
"""Extras of upstream with packages that environments import."""
_LOWER_BOUNDS = (">=", "==", "~=", ">", "===")


def requirement_of(requires_dist: list[str]) -> Requirement | None:
    """Return a package's requirement on `verifiers`, or None."""
    for text in requires_dist:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == PROJECT:
            return requirement
    return None


def names_library(wheel: Path) -> bool:
    """Return whether a wheel mentions the library anywhere, such as in an import or a requirement."""
    with zipfile.ZipFile(wheel) as archive:
        members = (item for item in archive.infolist() if item.file_size <= LARGEST_SOURCE)
        return any(PROJECT.encode() in archive.read(item) for item in members)


def requirements_of_programs(wheel: Path) -> list[str]:
    """Return the requirements of scripts in a wheel (PEP 723), which would be downloaded during a rollout."""
    requirements: dict[str, None] = {}
    with zipfile.ZipFile(wheel) as archive:
        names = [item.filename for item in archive.infolist() if item.file_size <= LARGEST_SOURCE]
        for name in (path for path in names if path.endswith(".py")):
            for block in script_blocks(archive.read(name).decode("utf-8", "replace")):
                try:
                    stated = tomllib.loads(block).get("dependencies", [])
                    if not isinstance(stated, list):
                        continue
                    requirements |= dict.fromkeys(str(Requirement(str(item))) for item in stated)
                except (tomllib.TOMLDecodeError, InvalidRequirement):
                    continue  # the script reports this itself when it runs
    return list(requirements)


def lower_bounds(specifier: SpecifierSet) -> list[tuple[Version, str]]:
    """Return the lower bounds of a specifier, each with its operator."""
    return [
        (Version(clause.version.removesuffix(".*")), clause.operator)
        for clause in specifier
        if clause.operator in _LOWER_BOUNDS
    ]


def wants_later(specifier: SpecifierSet) -> bool:
    """Return whether a specifier allows only releases after the classic API."""
    lowest = lower_bounds(specifier)
    return any(bound > NEWEST or (bound == NEWEST and operator == ">") for bound, operator in lowest)


def keeps_upstream(wheel: Path, requires_dist: list[str]) -> bool:
    """Return whether a package needs upstream's library, judging by its code and its requirements."""
    requirement = requirement_of(requires_dist)
    if requirement is not None and wants_later(requirement.specifier):
        return True
    return library_of(sources_of_wheel(wheel)) == "verifiers.v1"


def upstream_requirements(wheel: Path, requires_dist: list[str]) -> list[str]:
    """Return the requirements on upstream's library, which the resolver must choose first.

    Each minor release of `verifiers.v1` broke the previous one, and packages set no upper bound. So a package
    gets the minor release of its lower bound, else the last minor release with all names that its code uses,
    else the newest release. Raises `ClientError` if only unpublished releases match.
    """
    stated = requirement_of(requires_dist) or Requirement(PROJECT)
    extras = f"[{','.join(sorted(stated.extras))}]" if stated.extras else ""
    if stated.url is not None:  # the package names a wheel, which is installed instead of any release
        return [f"{PROJECT}{extras}"]
    minor = _choose_minor(wheel, stated.specifier)
    if minor is None:
        return [f"{PROJECT}{extras}{stated.specifier & SpecifierSet(f'>={FIRST_OF_TASKSETS}')}"]
    within = SpecifierSet(_MINORS[minor][0])
    if minor == "0.1" and not stated.specifier.contains("0.1.14", prereleases=True):
        raise ClientError(
            f"it requires `{PROJECT}{stated.specifier}`, but its code is for releases before 0.2, and the "
            "last published release of these is 0.1.14",
            hint="ask its author for a version that works with a published release, or that requires a wheel "
            f'of the library by URL (`"{PROJECT} @ https://..."`)',
            code="unpublished_release",
        )
    # These releases accept any version of mcp, but do not work with mcp 2.
    older = ["mcp<2"] if minor in ("0.1", "0.2") else []
    return [f"{PROJECT}{extras}{stated.specifier & within}", *older]


def _choose_minor(wheel: Path, specifier: SpecifierSet) -> str | None:
    """Return the older minor release that a package is for, or None for the newest."""
    lowest = max((bound for bound, _ in lower_bounds(specifier)), default=Version("0"))
    if wants_later(specifier):
        return None
    for minor, (_, first, end) in _MINORS.items():
        if Version(first) <= lowest < Version(end):
            return minor
    used = minor_of_tasksets(sources_of_wheel(wheel))
    reaches_newest = any(
        specifier.contains(release) for release in (FIRST_OF_TASKSETS, NEWEST, "0.4.0", "1.0")
    )
    return used or (None if reaches_newest else "0.2")


def override(wheel: Path, requirement: Requirement | None) -> str:
    """Return the resolver's override that selects the hub's wheel, with the requested extras."""
    extras = sorted(requirement.extras & EXTRAS) if requirement is not None else []
    shown = f"[{','.join(extras)}]" if extras else ""
    return f"{PROJECT}{shown} @ {wheel.as_uri()}\n"
