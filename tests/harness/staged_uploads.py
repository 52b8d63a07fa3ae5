"""Uploads of versions, models and runs, with the client's requests: announce, send parts, finish."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import httpx
from run_parcels import Parcel
from wander.wire.postings import ROLLOUTS

PATH = "/api/v1/transfers"
VERSIONS, MODELS, RUNS = f"{PATH}/versions", f"{PATH}/models", f"{PATH}/runs"
KINDS = {".whl": "wheel", ".gz": "sdist", ".toml": "lock"}


def announced(files: dict[str, bytes], **stated: Any) -> dict[str, Any]:
    """Return the body that announces the files of a version, by default of alice's good-env 1.0."""
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
    """One transfer of a user."""

    client: httpx.AsyncClient
    headers: dict[str, str]
    files: dict[str, list[bytes]]
    """The parts of each file."""
    path: str
    id: str
    opened: httpx.Response

    @classmethod
    async def _begin(
        cls,
        client: httpx.AsyncClient,
        headers: dict[str, str],
        path: str,
        files: dict[str, list[bytes]],
        body: dict[str, Any],
    ) -> StagedUpload:
        answer = await client.post(path, json=body, headers=headers)
        return cls(client, headers, files, path, answer.json().get("id", ""), answer)

    @classmethod
    async def begin(
        cls, client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
    ) -> StagedUpload:
        """Announce a version; `opened` is the answer, also a refusal."""
        whole = {name: [body] for name, body in files.items()}
        return await cls._begin(client, headers, VERSIONS, whole, announced(files, **stated))

    @classmethod
    async def begin_model(
        cls, client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
    ) -> StagedUpload:
        """Announce a model, by default alice's ttt."""
        listed = [
            {"filename": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for name, body in files.items()
        ]
        body = {"owner": "alice", "name": "ttt", "files": listed} | stated
        return await cls._begin(client, headers, MODELS, {name: [body] for name, body in files.items()}, body)

    @classmethod
    async def begin_run(
        cls, client: httpx.AsyncClient, headers: dict[str, str], parcel: Parcel, **stated: Any
    ) -> StagedUpload:
        """Announce a run."""
        files = {name: [body] for name, body in parcel.artifacts.items()} | {ROLLOUTS: parcel.chunks}
        return await cls._begin(client, headers, RUNS, files, parcel.announced(**stated))

    @property
    def place(self) -> str:
        """The address of the transfer."""
        return f"{self.path}/{self.id}"

    async def send(
        self, filename: str, content: bytes, offset: int = 0, digest: str | None = None
    ) -> httpx.Response:
        """Send one part."""
        return await self.client.put(
            f"{self.place}/files/{filename}",
            params={"offset": offset, "digest": digest or hashlib.sha256(content).hexdigest()},
            content=content,
            headers=self.headers,
        )

    async def send_chunk(self, number: int, body: bytes | None = None) -> httpx.Response:
        """Send one part of the rollouts, or these bytes instead."""
        chunks = self.files[ROLLOUTS]
        content = chunks[number] if body is None else body
        return await self.send(ROLLOUTS, content, sum(map(len, chunks[:number])))

    async def send_all(self) -> None:
        """Send every file that the hub lacks."""
        assert self.opened.status_code in (200, 201), self.opened.text
        info = self.opened.json()
        present = {(part["filename"], part["offset"]) for part in info["parts"]}
        for file in info["files"]:
            offset = 0
            for part in [] if file["there"] or info["finished"] else self.files[file["filename"]]:
                if part and (file["filename"], offset) not in present:
                    answer = await self.send(file["filename"], part, offset)
                    assert answer.status_code == 200, answer.text
                offset += len(part)

    async def finalize(self) -> httpx.Response:
        return await self.client.post(f"{self.place}/finish", headers=self.headers)

    async def complete(self) -> httpx.Response:
        """Send everything and finish; return the first refusal or the last answer."""
        if self.opened.is_error:
            return self.opened
        await self.send_all()
        return await self.finalize()

    async def show(self) -> httpx.Response:
        return await self.client.get(self.place, headers=self.headers)

    async def cancel(self) -> httpx.Response:
        return await self.client.delete(self.place, headers=self.headers)


async def pushed(
    client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
) -> httpx.Response:
    """Send a model; return the first refusal or the last answer."""
    return await (await StagedUpload.begin_model(client, headers, files, **stated)).complete()


async def published(
    client: httpx.AsyncClient, headers: dict[str, str], files: dict[str, bytes], **stated: Any
) -> httpx.Response:
    """Send a version; return the first refusal or the last answer."""
    return await (await StagedUpload.begin(client, headers, files, **stated)).complete()


async def posted(
    client: httpx.AsyncClient, headers: dict[str, str], parcel: Parcel, **stated: Any
) -> httpx.Response:
    """Send a run; return the first refusal or the last answer."""
    return await (await StagedUpload.begin_run(client, headers, parcel, **stated)).complete()
