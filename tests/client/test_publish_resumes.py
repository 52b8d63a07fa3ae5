"""An upload goes on where it was, whatever request or answer was lost on the way."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable

import httpx
import pytest
from archive_forge import MODULE, PROJECT, SDIST_NAME, WHEEL_NAME, metadata, sdist_of, wheel_of
from command_line import HubRoom
from wander.wire.transfers import NewUpload, UploadFile
from wander_client.errors import ClientError, Unavailable
from wander_client.hub import transfer
from wander_client.hub.api import HubApi
from wander_client.hub.transfer import Publication, publish_files

KIB = 1024
DATA = hashlib.shake_256(b"data").digest(500 * KIB)
PROJECT_FILES = {"PKG-INFO": metadata(), "pyproject.toml": PROJECT, "good_env.py": MODULE}
FILES = {WHEEL_NAME: wheel_of({"data.bin": DATA}), SDIST_NAME: sdist_of(files=PROJECT_FILES)}


class Flaky(httpx.BaseTransport):
    """Loses what `loses` says: `request` before the hub sees it, or its `answer`."""

    def __init__(self, transport: httpx.BaseTransport, loses: Callable[[str, int], str | None]) -> None:
        self._transport = transport
        self._loses = loses
        self.seen: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        what = "finish" if request.url.path.endswith("/finish") else request.method
        self.seen.append(what)
        lost = self._loses(what, self.seen.count(what))
        if lost == "request":
            raise httpx.ConnectError("no route", request=request)
        answer = self._transport.handle_request(request)
        if lost == "answer":
            raise httpx.ReadError("the connection ended", request=request)
        return answer


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 100 * KIB)


def published(
    hub: HubRoom, loses: Callable[[str, int], str | None], files: dict[str, bytes] = FILES
) -> tuple[Publication, list[str], list[int]]:
    """Publish over a flaky network; return what came out, the requests, and the progress that was told."""
    transport = Flaky(hub.transport, loses)
    api = HubApi("https://testserver", hub.token, transport=transport)
    listed = [
        UploadFile(
            filename=name,
            kind="wheel" if name.endswith(".whl") else "sdist",
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
        )
        for name, body in files.items()
    ]
    told: list[int] = []
    outcome = publish_files(
        api,
        NewUpload(owner="admin", name="good-env", version="1.0", files=listed),
        {name: io.BytesIO(body) for name, body in files.items()},
        told=lambda done, total: told.append(done),
        sleep=lambda seconds: None,
    )
    return outcome, transport.seen, told


@pytest.mark.parametrize("what", ["PUT", "finish"])
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_lost_parts_are_sent_again(hub: HubRoom, what: str, lost: str) -> None:
    outcome, _, told = published(
        hub, lambda each, number: lost if each == what and number in (2, 3) else None
    )
    assert {one.filename: one.sha256 for one in outcome.version.files} == {
        name: hashlib.sha256(body).hexdigest() for name, body in FILES.items()
    }
    assert outcome.sent == set(FILES)
    assert told == sorted(told)
    assert told[-1] == sum(map(len, FILES.values()))


def test_the_next_command_resumes_a_failed_upload(hub: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PATIENCE", 0.1)
    with pytest.raises(Unavailable) as caught:
        published(hub, lambda each, number: "request" if each == "PUT" and number > 3 else None)
    assert "run the same command again" in (caught.value.hint or "")
    outcome, seen, told = published(hub, lambda each, number: None)
    assert outcome.resumed_bytes == 300 * KIB
    assert 300 * KIB in told
    assert seen.count("PUT") == 4


def test_a_rejected_upload_is_canceled(hub: HubRoom) -> None:
    bad = {WHEEL_NAME: wheel_of({"only_here.py": b""}), SDIST_NAME: FILES[SDIST_NAME]}
    with pytest.raises(ClientError) as caught:
        published(hub, lambda each, number: None, bad)
    assert caught.value.code == "wheel_differs_from_source"
    outcome, _, _ = published(hub, lambda each, number: None)
    assert outcome.version.source is not None
    assert outcome.version.source.compared == [WHEEL_NAME]


def test_publishing_again_uploads_nothing(hub: HubRoom) -> None:
    published(hub, lambda each, number: None)
    outcome, seen, _ = published(hub, lambda each, number: None)
    assert (outcome.sent, outcome.resumed_bytes, seen) == (set(), 0, ["POST", "finish"])


def test_info_shows_the_source_and_the_warnings(hub: HubRoom) -> None:
    flagged = {"start.pth": b"import x\n"}
    files = {WHEEL_NAME: wheel_of(flagged), SDIST_NAME: sdist_of(files=PROJECT_FILES | flagged)}
    outcome, _, _ = published(hub, lambda each, number: None, files)
    assert outcome.version.source is not None
    shown = hub.wander("env", "info", "admin/good-env").out
    assert f"sha256:{outcome.version.source.tree_sha256}; the wheel has the same Python files" in shown
    assert f"startup_file: `start.pth` runs when Python starts ({WHEEL_NAME})" in shown
    data = hub.wander("env", "info", "admin/good-env", "--json").data["version"]
    assert data["source"]["compared"] == [WHEEL_NAME]
    assert [each["code"] for each in data["warnings"]] == ["startup_file"]
