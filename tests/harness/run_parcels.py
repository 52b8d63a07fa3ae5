"""A run as a client sends it in parts: manifest, chunks of lines, digests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from wander.wire.postings import ROLLOUTS, RolloutsDigest, line_digest, run_digest


@dataclass(frozen=True)
class Parcel:
    """A run divided into chunks."""

    manifest: bytes
    chunks: list[bytes]
    sha256: str
    rollouts_sha256: str | None = None
    artifacts: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        manifest: dict[str, Any],
        rollouts: list[dict[str, Any]],
        *,
        per_chunk: int = 1000,
        artifacts: dict[str, bytes] | None = None,
    ) -> Parcel:
        """Return the parcel of a run whose rollouts are in the manifest's order."""
        text = json.dumps(manifest).encode()
        lines = [json.dumps(one).encode() + b"\n" for one in rollouts]
        digest = RolloutsDigest()
        for line in lines:
            digest.add(line_digest(line))
        files = {name: hashlib.sha256(body).hexdigest() for name, body in (artifacts or {}).items()}
        chunks = [b"".join(lines[start : start + per_chunk]) for start in range(0, len(lines), per_chunk)]
        sha256 = run_digest(text, digest.hexdigest(), files)
        return cls(text, chunks, sha256, digest.hexdigest(), artifacts or {})

    def announced(self, **stated: Any) -> dict[str, Any]:
        """Return the body of the request that announces the run."""
        files: list[dict[str, Any]] = [
            {"filename": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for name, body in self.artifacts.items()
        ]
        if self.rollouts_sha256 is not None:
            size = sum(map(len, self.chunks))
            files.append({"filename": ROLLOUTS, "size": size, "sha256": self.rollouts_sha256})
        return {"manifest": self.manifest.decode(), "files": files} | stated

    @property
    def lines(self) -> bytes:
        """The first chunk."""
        return self.chunks[0]

    @property
    def chunk_sha256(self) -> str:
        """Digest of the first chunk."""
        return hashlib.sha256(self.lines).hexdigest()
