"""Compares the files of one version: what Python runs from the wheel is what the source archive holds.

Who reads the source of a version reads what will run. A wheel's file may lie deeper in the source (`src/`,
`lib/`), never under another name; what a build makes (a version module) is declared in the source itself,
under `generated` of `[tool.wander]`, and listed with the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from wander_hub.upload.schemas import Package, refusal

MOST_GENERATED = 200


def compare(packages: Sequence[Package], stated_tree: str | None = None) -> dict[str, list[str]]:
    """Hold the wheels of a version against its source archive, and that against the digest stated for it.

    Returns the wheels that were compared, each with the files that only its build made; none without an
    archive. Raises a `HubProblem` for what does not fit.
    """
    source = next((one for one in packages if one.kind == "sdist"), None)
    if source is None:
        return {}
    if stated_tree is not None and stated_tree != source.tree_sha256:
        detail = (
            f"the files in `{source.filename}` have the tree digest {source.tree_sha256}, not {stated_tree}"
        )
        raise refusal("source_tree_mismatch", detail)
    return {one.filename: find_generated_files(one, source) for one in packages if one.kind == "wheel"}


def find_generated_files(wheel: Package, source: Package) -> list[str]:
    """Return the files that only the wheel has; refuse those that the source does not declare."""
    made: list[str] = []
    lying = _places(wheel, source)
    for path, digest in sorted(wheel.code):
        places = lying.get(path, {})
        if digest in places.values():
            continue
        if any(fnmatchcase(path, pattern) for pattern in source.generated):
            made.append(path)
            continue
        where = f"has other bytes than `{min(places)}` of" if places else "is not in"
        detail = f"`{path}` of `{wheel.filename}` {where} `{source.filename}`"
        raise refusal("wheel_differs_from_source", detail)
    if len(made) > MOST_GENERATED:
        raise refusal("bad_generated", f"`{wheel.filename}` has {len(made):,} files that its source lacks")
    return made


def _places(wheel: Package, source: Package) -> dict[str, dict[str, bytes]]:
    """Return where the source has a wheel's files: under the same path, or that with folders before it."""
    wanted = {path for path, _ in wheel.code}
    found: dict[str, dict[str, bytes]] = {}
    for path, digest in source.code:
        parts = path.split("/")
        for start in range(len(parts)):
            ending = "/".join(parts[start:])
            if ending in wanted:
                found.setdefault(ending, {})[path] = digest
    return found
