"""The source tree of a built archive: its digest, and where it is not the folder that it was built from."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

from wander.wire.source_tree import TreeEntry, is_source


def source_tree(sdist: Path) -> list[TreeEntry]:
    """Return the files of a source archive as a hub counts them."""
    entries = []
    with tarfile.open(sdist) as archive:
        for member in archive:
            if not member.isfile():
                continue
            path = member.name.partition("/")[2]
            content = archive.extractfile(member)
            if content is None or not is_source(path):
                continue
            digest = hashlib.file_digest(content, "sha256").digest()  # type: ignore[arg-type]
            entries.append(TreeEntry(path, bool(member.mode & 0o100), digest))
    return entries


def made_by_the_build(folder: Path, entries: list[TreeEntry]) -> list[str]:
    """Return the files of an archive that the folder lacks or has with other bytes.

    A `.gitignore` that the folder lacks is the repository's, which build backends put into the archive.
    """
    made = [one.path for one in entries if _digest(folder / one.path) != one.sha256]
    return [path for path in made if path != ".gitignore" or (folder / path).exists()]


def _digest(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()
