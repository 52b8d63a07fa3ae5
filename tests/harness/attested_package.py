"""A source archive published with attestations, from the test data of `pypi-attestations`."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

RELEASE = "pypi-attestations==0.0.30"
FOLDER = "pypi_attestations-0.0.30/test/assets"
FILE = "pypi_attestations-0.0.19.tar.gz"


@dataclass(frozen=True)
class AttestedPackage:
    """The bytes of the archive and its signed attestation."""

    filename: str
    body: bytes
    publish: str
    """The attestation of PyPI's publish predicate, as JSON."""
    slsa: str


def attested_package(folder: Path) -> AttestedPackage | None:
    """Download the test data from pip's configured package index; return None if it is unavailable."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", ":all:", "--dest", str(folder), RELEASE]
    if subprocess.run(command, capture_output=True, timeout=120).returncode != 0:
        return None
    (archive,) = folder.glob("pypi_attestations-*.tar.gz")
    with tarfile.open(archive) as members:

        def read(name: str) -> bytes:
            found = members.extractfile(f"{FOLDER}/{name}")
            assert found is not None
            return found.read()

        return AttestedPackage(
            FILE,
            read(FILE),
            read(f"{FILE}.publish.attestation").decode(),
            read(f"{FILE}.slsa.attestation").decode(),
        )
