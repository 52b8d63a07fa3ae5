"""Sends the files of a version or of a model as the client does: a session, chunks, then finalize."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import httpx

PATH = "/api/v1/uploads"
KINDS = {".whl": "wheel", ".gz": "sdist", ".toml": "lock"}


def announced(files: dict[str, bytes], **stated: Any) -> dict[str, Any]:
    """Return the body that opens a session for files, by default of alice's good-env 1.0."""
    listed = [
        {
            "filename": filename,
            "kind": KINDS["." + filename.rpartition(".")[2]],
            "size": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        for filename, body in files.items()
    ]
    return {"owner": "alice", "name": "good-env", "version": "1.0", "files": listed} | stated


@dataclass
class StagedUpload:
    """One session of a user."""

    client: httpx.AsyncClient
    headers: dict[str, str]
    files: dict[str, bytes]
    id: str
    opened: httpx.Response

    @classmethod
    async def begin(
        cls, client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
    ) -> StagedUpload:
        """Open a session; `opened` is the answer, whatever it is."""
        answer = await client.post(PATH, json=announced(files, **stated), headers=headers)
        return cls(client, headers, files, answer.json().get("id", ""), answer)

    @classmethod
    async def begin_model(
        cls, client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
    ) -> StagedUpload:
        """Open a session for a model, by default alice's ttt."""
        listed = [
            {"filename": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for name, body in files.items()
        ]
        body = {"owner": "alice", "name": "ttt", "files": listed} | stated
        answer = await client.post("/api/v1/models", json=body, headers=headers)
        return cls(client, headers, files, answer.json().get("id", ""), answer)

    async def send(
        self, filename: str, content: bytes, offset: int = 0, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send one chunk."""
        return await self.client.put(
            f"{PATH}/{self.id}/files/{filename}",
            content=content,
            headers=self.headers | {"Upload-Offset": str(offset)} | (headers or {}),
        )

    async def send_all(self) -> None:
        """Send every file that the hub lacks, in one chunk each."""
        assert self.opened.status_code in (200, 201), self.opened.text
        for file in self.opened.json()["files"]:
            if file["offset"] < file["size"]:
                body = self.files[file["filename"]][file["offset"] :]
                answer = await self.send(file["filename"], body, file["offset"])
                assert answer.status_code == 200, answer.text

    async def finalize(self) -> httpx.Response:
        return await self.client.post(f"{PATH}/{self.id}/finalize", headers=self.headers)

    async def complete(self) -> httpx.Response:
        """Send everything and finalize; return the first answer that is a refusal, or the last."""
        if self.opened.is_error:
            return self.opened
        await self.send_all()
        return await self.finalize()

    async def show(self) -> httpx.Response:
        return await self.client.get(f"{PATH}/{self.id}", headers=self.headers)

    async def cancel(self) -> httpx.Response:
        return await self.client.delete(f"{PATH}/{self.id}", headers=self.headers)


async def pushed(
    client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
) -> httpx.Response:
    """Send a model; return the first answer that is a refusal, or the last."""
    return await (await StagedUpload.begin_model(client, headers, files, **stated)).complete()


async def published(
    client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
) -> httpx.Response:
    """Send everything and finalize; return the first answer that is a refusal, or the last."""
    return await (await StagedUpload.begin(client, headers, files, **stated)).complete()
