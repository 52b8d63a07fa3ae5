"""Published environments that ask for `verifiers`: they get the hub's package of that name.

It serves the classic API (0.1.3 to 0.3.1) and nothing of upstream, whose newest releases lack it. Whatever
range or pin a package or its dependencies give, the resolver is told to take that wheel. A package whose
code is written for `verifiers.v1`, or which asks for a release after 0.3.1, keeps upstream's.

`wander-compat` holds that API and plays task sets. It goes beside the SDK wherever a package names
the library.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from wander_client.packages.library_use import LARGEST_SOURCE, library_of, sources_of_wheel

PROJECT = "verifiers"
COMPAT = "wander-compat"
"""The distribution that holds the API; `verifiers` only leads to it."""
NEWEST = Version("0.3.1")
"""The last release of the API that is served."""
FIRST_OF_TASKSETS = (Version("0.3.0"), Version("0.2.0"))
"""The first releases with `verifiers.v1`: what a package is given at least, and what it may ask for."""
EXTRAS = frozenset({"rg", "ta"})
"""Extras of upstream that bring what an environment imports."""
_LOWER_BOUNDS = (">=", "==", "~=", ">", "===")


def requirement_of(requires_dist: list[str]) -> Requirement | None:
    """Return what a package says about `verifiers`, or None."""
    for text in requires_dist:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == PROJECT:
            return requirement
    return None


def names_library(wheel: Path) -> bool:
    """Tell whether anything in a wheel names the library: an import however it is written, a requirement."""
    with zipfile.ZipFile(wheel) as archive:
        members = (item for item in archive.infolist() if item.file_size <= LARGEST_SOURCE)
        return any(PROJECT.encode() in archive.read(item) for item in members)


def lower_bounds(specifier: SpecifierSet) -> list[tuple[Version, str]]:
    """Return the versions, each with its operator, of which nothing older fits."""
    return [
        (Version(each.version.removesuffix(".*")), each.operator)
        for each in specifier
        if each.operator in _LOWER_BOUNDS
    ]


def wants_later(specifier: SpecifierSet) -> bool:
    """Tell whether only releases after the classic API will do."""
    lowest = lower_bounds(specifier)
    return any(bound > NEWEST or (bound == NEWEST and operator == ">") for bound, operator in lowest)


def keeps_upstream(wheel: Path, requires_dist: list[str]) -> bool:
    """Tell whether a package needs the real library: by its code, and by the releases that it asks for."""
    requirement = requirement_of(requires_dist)
    if requirement is not None and wants_later(requirement.specifier):
        return True
    return library_of(sources_of_wheel(wheel)) == "verifiers.v1"


def upstream_requirement(requires_dist: list[str]) -> str:
    """Return the requirement of the real library, for the resolver to choose before anything else.

    A package that states no bound would else get a release that has no `verifiers.v1`: other packages'
    newest releases come first, and the library's older ones fit beside them.
    """
    stated = requirement_of(requires_dist)
    specifier = SpecifierSet() if stated is None else stated.specifier
    extras = "" if stated is None or not stated.extras else f"[{','.join(sorted(stated.extras))}]"
    first, earlier = FIRST_OF_TASKSETS
    later = any(specifier.contains(version) for version in (first, NEWEST, "0.4.0", "1.0")) or any(
        bound > NEWEST for bound, _ in lower_bounds(specifier)
    )
    return f"{PROJECT}{extras}{specifier & SpecifierSet(f'>={first if later else earlier}')}"


def override(wheel: Path, requirement: Requirement | None) -> str:
    """Return the line that makes the resolver take the wheel, with the extras that are asked for."""
    extras = sorted(requirement.extras & EXTRAS) if requirement is not None else []
    shown = f"[{','.join(extras)}]" if extras else ""
    return f"{PROJECT}{shown} @ {wheel.as_uri()}\n"
