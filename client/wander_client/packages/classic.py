"""Published environments that ask for `verifiers`: they get the hub's package of that name.

It serves the classic API (0.1.3 to 0.3.1) and nothing of upstream, whose newest releases lack it. Whatever
range or pin a package or its dependencies give, the resolver is told to take that wheel. A package whose
code is written for `verifiers.v1`, or which asks for a release after 0.3.1, keeps upstream's.

`wander-compat` holds that API and plays task sets. It goes beside the SDK wherever a package names
the library.
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
"""The distribution that holds the API; `verifiers` only leads to it."""
NEWEST = Version("0.3.1")
"""The last release of the API that is served."""
FIRST_OF_TASKSETS = Version("0.3.0")
"""The release of `verifiers.v1` that a package is given at least, where nothing tells that it is older."""
_MINORS = {
    "0.1": ("==0.1.14", "0.1.13.dev0", "0.1.15.dev0"),
    "0.2": (">=0.2.0,<0.3", "0.2.0.dev0", "0.3.0.dev0"),
    "0.3": (">=0.3.0,<0.4", "0.3.0.dev0", "0.4.0.dev0"),
}
"""The published releases of each minor before the newest, and between which bounds a package asks for it."""
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


def requirements_of_programs(wheel: Path) -> list[str]:
    """Return the packages of the scripts in a wheel (PEP 723), which the library would fetch at a rollout."""
    found: dict[str, None] = {}
    with zipfile.ZipFile(wheel) as archive:
        names = [each.filename for each in archive.infolist() if each.file_size <= LARGEST_SOURCE]
        for name in (each for each in names if each.endswith(".py")):
            for block in script_blocks(archive.read(name).decode("utf-8", "replace")):
                try:
                    stated = tomllib.loads(block).get("dependencies", [])
                    if not isinstance(stated, list):
                        continue
                    found |= dict.fromkeys(str(Requirement(str(each))) for each in stated)
                except (tomllib.TOMLDecodeError, InvalidRequirement):
                    continue  # the program says so itself, if it is ever run
    return list(found)


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


def upstream_requirements(wheel: Path, requires_dist: list[str]) -> list[str]:
    """Return what the real library is required as, for the resolver to choose before anything else.

    Each minor release of `verifiers.v1` broke the one before, and packages state no upper bound. So a package
    gets the minor of the lowest release that it asks for, else the last one that has all that its code uses,
    else the newest. Raises `ClientError` where only releases fit that were never published.
    """
    stated = requirement_of(requires_dist) or Requirement(PROJECT)
    extras = f"[{','.join(sorted(stated.extras))}]" if stated.extras else ""
    if stated.url is not None:  # a wheel, which is brought here and takes the place of any release
        return [f"{PROJECT}{extras}"]
    minor = _choose_minor(wheel, stated.specifier)
    if minor is None:
        return [f"{PROJECT}{extras}{stated.specifier & SpecifierSet(f'>={FIRST_OF_TASKSETS}')}"]
    within = SpecifierSet(_MINORS[minor][0])
    if minor == "0.1" and not stated.specifier.contains("0.1.14", prereleases=True):
        raise ClientError(
            f"it asks for `{PROJECT}{stated.specifier}`, and its code is for releases before 0.2, of which "
            "0.1.14 is the last that was published",
            hint="ask its author for a version for a published release, or require a wheel of the library "
            f'by its address (`"{PROJECT} @ https://..."`)',
            code="unpublished_release",
        )
    # These releases let any mcp in and cannot use its second.
    older = ["mcp<2"] if minor in ("0.1", "0.2") else []
    return [f"{PROJECT}{extras}{stated.specifier & within}", *older]


def _choose_minor(wheel: Path, specifier: SpecifierSet) -> str | None:
    """Return the minor release that a package is for, of those before the newest; None for the newest."""
    lowest = max((bound for bound, _ in lower_bounds(specifier)), default=Version("0"))
    if wants_later(specifier):
        return None
    for minor, (_, first, end) in _MINORS.items():
        if Version(first) <= lowest < Version(end):
            return minor
    used = minor_of_tasksets(sources_of_wheel(wheel))
    reaches_newest = any(specifier.contains(each) for each in (FIRST_OF_TASKSETS, NEWEST, "0.4.0", "1.0"))
    return used or (None if reaches_newest else "0.2")


def override(wheel: Path, requirement: Requirement | None) -> str:
    """Return the line that makes the resolver take the wheel, with the extras that are asked for."""
    extras = sorted(requirement.extras & EXTRAS) if requirement is not None else []
    shown = f"[{','.join(extras)}]" if extras else ""
    return f"{PROJECT}{shown} @ {wheel.as_uri()}\n"
