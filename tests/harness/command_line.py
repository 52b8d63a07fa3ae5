"""The `wander` command in the test's process, a small environment and its wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

ENVIRONMENT = """
from typing import Any

from wander import Messages, Rubric, SingleTurnEnv


def right(completion: Messages, answer: str) -> float:
    if completion[-1]["content"] == "break":
        raise ValueError("the reward function broke")
    return float(completion[-1]["content"] == answer)


def load_environment(size: int = 8) -> SingleTurnEnv:
    rows = [{"question": f"say {n}", "answer": str(n)} for n in range(size)]
    return SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=Rubric([right]), summary="Say a number.")


def solver(request: Any) -> str:
    return request.messages[-1]["content"].removeprefix("say ")


def wrong(request: Any) -> str:
    return "x"


def breaks_on_three(request: Any) -> str:
    number = solver(request)
    return "break" if number == "3" else number


def raises(request: Any) -> str:
    raise RuntimeError("no idea")


def slow(request: Any) -> str:
    import time

    time.sleep(0.3)
    return solver(request)
"""


@dataclass
class Result:
    """The result of one command line."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object on stdout; fails on any other output."""
        return json.loads(self.out)

    @property
    def data(self) -> Any:
        return self.json["data"]


Wander = Callable[..., Result]


class HubTransport(httpx.BaseTransport):
    """Carries httpx requests to an application under test, without a socket."""

    def __init__(self, client: TestClient) -> None:
        self._client = client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._client.request(
            request.method,
            str(request.url),
            headers=list(request.headers.multi_items()),
            content=request.read(),
            follow_redirects=False,
        )
        # The test client has already decoded the content.
        headers = [(k, v) for k, v in answer.headers.multi_items() if k.lower() != "content-encoding"]
        return httpx.Response(answer.status_code, headers=headers, content=answer.content)


@dataclass
class HubRoom:
    """The hub application over ASGI, with an administrator's token."""

    http: TestClient
    token: str
    wander: Wander

    @property
    def transport(self) -> HubTransport:
        return HubTransport(self.http)

    def note_requests(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return a list that records the address of every later request."""
        asked: list[str] = []
        request = self.http.request

        def note(method: str, url: str, **options: Any) -> Any:
            asked.append(url)
            return request(method, url, **options)

        monkeypatch.setattr(self.http, "request", note)
        return asked

    def publish(self, wheel: Path, owner: str = "admin") -> None:
        """Upload a wheel through the endpoint for package tools."""
        content = wheel.read_bytes()
        name, version = wheel.name.split("-")[:2]
        fields = {
            ":action": "file_upload",
            "protocol_version": "1",
            "metadata_version": "2.4",
            "name": name,
            "version": version,
            "filetype": "bdist_wheel",
            "pyversion": "py3",
            "sha256_digest": hashlib.sha256(content).hexdigest(),
        }
        answer = self.http.post(
            f"/{owner}/legacy/",
            data=fields,
            files={"content": (wheel.name, content)},
            headers={"Authorization": f"Bearer {self.token}"},
        )
        assert answer.status_code == 200, answer.text


def make_wheel(
    place: Path,
    name: str = "say-env",
    version: str = "0.1.0",
    module: str = ENVIRONMENT,
    *,
    requires_python: str = ">=3.11",
    tags: str = "py3-none-any",
) -> Path:
    """Write a small but complete wheel."""
    stem, package = f"{name.replace('-', '_')}-{version}", name.replace("-", "_")
    members = {
        f"{package}.py": module,
        f"{stem}.dist-info/METADATA": (
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nSummary: Say a number.\n"
            f"Requires-Python: {requires_python}\nRequires-Dist: wander-sdk\nLicense-Expression: MIT\n"
            "Keywords: game\nDescription-Content-Type: text/markdown\n\n# Say\n\nSay it.\n"
        ),
        f"{stem}.dist-info/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tags}\n"
        ),
        f"{stem}.dist-info/entry_points.txt": (
            f"[wander.environments]\n{name} = {package}:load_environment\n"
        ),
    }
    record = []
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text.encode())}")
    members[f"{stem}.dist-info/RECORD"] = "\n".join([*record, f"{stem}.dist-info/RECORD,,"]) + "\n"
    wheel = place / f"{stem}-{tags}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in members.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return wheel
