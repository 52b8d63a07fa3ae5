"""A sealed task set on a real hub: from the commitment to opened and replayed rows.

Every hidden question and answer contains a marker. Before the opening, it is searched in every route of the
hub for every kind of reader, in the files of the hub, in its logs and in a backup.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from chat_endpoint import ChatEndpoint, chat_endpoint
from command_line import HubRoom, make_wheel
from fastapi.routing import iter_route_contexts
from judging_hub import Record, awaited, judging_hub, settled
from live_hub import LiveHub, make_token, request, run_hub
from machine import Machine
from sandboxes import needs_sandbox
from wander_hub.app import _routes

pytestmark = [pytest.mark.full, needs_sandbox, pytest.mark.timeout(1800)]

MARKER, OTHER_MARKER = "zyzzyva", "quagga"
"""Words of the hidden examples. The second set has its own, because the first one is opened."""
KEY = "sk-quokka-of-the-submitter"


def hidden_rows(marker: str) -> list[Record]:
    return [{"question": f"say {marker}{n}", "answer": f"{marker}{n}"} for n in range(6)]


ROWS = hidden_rows(MARKER)
READERS = ("nobody", "other", "submitter")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ChatEndpoint]:
    """Answers every question but one."""
    with chat_endpoint(lambda messages: messages[-1]["content"].removeprefix("say ").replace("5", "x")) as up:
        yield up


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, mirror: str) -> Iterator[LiveHub]:
    """A hub that keeps sealed sets, with one environment."""
    data, cache = tmp_path_factory.mktemp("sealing"), tmp_path_factory.getbasetemp() / "uv-cache"
    settings = {
        "WANDER_HUB_SEAL_KEY_FILE": str(tmp_path_factory.mktemp("keys") / "seal.key"),
        "WANDER_HUB_SEAL_NETWORKS": '["127.0.0.0/8"]',
        "WANDER_HUB_CHECK_VERSIONS": "false",
    }
    with judging_hub(data, mirror, cache, **settings) as running:
        for user in READERS[1:]:
            run_hub(data, "user", "add", user)
        with httpx.Client(base_url=running.url) as http:
            HubRoom(cast(Any, http), running.token, cast(Any, None)).publish(make_wheel(data, "say-env"))
        yield running


@pytest.fixture(scope="module")
def owner(hub: LiveHub, mirror: str, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine of the environment's owner."""
    cache = str(tmp_path_factory.getbasetemp() / "uv-cache")
    return Machine(tmp_path_factory.mktemp("owner"), hub, mirror, {"UV_CACHE_DIR": cache})


@pytest.fixture(scope="module")
def submitter(hub: LiveHub, owner: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine of a user without a role on the environment."""
    extra = {**owner.extra, "WANDER_TOKEN": make_token(hub.data, "submitter"), "OPENAI_API_KEY": KEY}
    return Machine(tmp_path_factory.mktemp("submitter"), hub, owner.mirror, extra)


def a_week() -> str:
    return (datetime.now(UTC) + timedelta(days=7)).isoformat()


def write_rows(machine: Machine, rows: list[Record]) -> Path:
    path = machine.home / "hidden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pages_and_routes(commitment: str, play: int, marker: str) -> list[str]:
    """Return the addresses of every readable route of the hub, with the names that exist filled in."""
    known = {"owner": "admin", "name": "say-env", "version": "0.1.0", "commitment": commitment}
    known |= {"number": "1", "run_id": str(play), "user": "submitter", "kind": "inspect"}
    paths = []
    for route in iter_route_contexts(list(_routes())):
        path = route.path or ""
        if "GET" not in (route.methods or ()):
            continue
        for part in [part for part in path.split("{")[1:]]:
            name = part.partition("}")[0]
            path = path.replace("{" + name + "}", known.get(name.partition(":")[0], "1"))
        paths.append(path)
    searched = marker[:-1]  # the log of the hub has it
    return [*paths, *(f"{path}?q={searched}" for path in ("/api/v1/environments", "/", "/runs/search"))]


def files_with(folder: Path, *words: str) -> list[tuple[str, str]]:
    """Return the files below a folder that contain one of the words."""
    return [
        (str(path), word)
        for path in folder.rglob("*")
        if path.is_file()
        for word in words
        if word.encode() in path.read_bytes()
    ]


def require_unseen(hub: LiveHub, commitment: str, backup: Path, marker: str) -> None:
    """Fail if a reader, a file of the hub, its log or a backup shows a hidden example or the key."""
    tokens = {user: make_token(hub.data, user) for user in READERS[1:]}
    seen, statuses = [], set()
    for reader in READERS:
        headers = {"Authorization": f"Bearer {tokens[reader]}"} if reader in tokens else {}
        for path in pages_and_routes(commitment, 1, marker):
            for accept in ("application/json", "text/html"):
                answer = request("GET", hub.url + path, headers={**headers, "Accept": accept}, timeout=60)
                statuses.add(answer.status_code)
                if KEY in answer.text or marker in answer.text:
                    seen.append((reader, path))
    assert seen == []
    assert 200 in statuses, "the walk reads something"
    assert not any(status >= 500 for status in statuses), statuses
    run_hub(hub.data, "backup", str(backup))
    for folder in (hub.data, backup):
        assert files_with(folder, marker, KEY) == []
    assert not any(files_with(path, marker, KEY) for path in Path("/dev/shm").glob("wander-play-*"))


def test_a_set_is_hidden_then_opened_and_its_rows_are_replayed(
    hub: LiveHub, owner: Machine, submitter: Machine, endpoint: ChatEndpoint, tmp_path: Path
) -> None:
    made = owner.wander("seal", "create", "admin/say-env", write_rows(owner, ROWS), "--opens", a_week())
    commitment = made["commitment"]
    assert (made["state"], made["examples"], made["exposures"]) == ("sealed", 6, 0)
    played = submitter.wander("seal", "play", "admin/say-env", "-m", "echo", "-b", endpoint.base_url)
    assert (played["level"], played["run_id"], played["rollouts"]) == ("sealed", None, 6)
    assert played["reward_mean"] == 0.8333
    assert endpoint.keys == {f"Bearer {KEY}"}
    shown = owner.wander("seal", "show", commitment)
    assert shown["exposures"] == 1
    assert [(play["submitted_by"], play["host"]) for play in shown["plays"]] == [
        ("submitter", endpoint.base_url.split("/")[2])
    ]
    require_unseen(hub, commitment, tmp_path / "backup", MARKER)
    assert "may not publish" in submitter.refused(4, "seal", "open", commitment)

    owner.wander("seal", "open", commitment)

    def opened() -> Record | None:
        found: Record = hub.get(f"/api/v1/sealed/{commitment}").json()
        return found if found["state"] == "opened" else None

    (play,) = awaited(hub, opened)["plays"]
    file = hub.get(f"/api/v1/sealed/{commitment}/examples.jsonl").content
    assert hashlib.sha256(file).hexdigest() == commitment
    assert [json.loads(line) for line in file.splitlines()[1:]] == ROWS
    run = settled(hub, play["run_id"])
    assert (run["level"], run["posted_by"]) == ("replayed", "submitter")
    assert run["manifest"]["environment"]["sealed"] == commitment
    shown = owner.wander("seal", "show", commitment)
    assert shown["plays"][0]["level"] == "replayed"
    again = owner.wander("runs", "replay", play["run_id"])
    assert (again["same"], again["differing"]) == (6, 0)
    said = submitter.refused(1, "seal", "play", commitment, "-m", "echo", "-b", endpoint.base_url)
    assert "the set is open" in said


def test_what_cannot_be_sealed_or_played(
    hub: LiveHub, owner: Machine, submitter: Machine, tmp_path: Path
) -> None:
    hidden = hidden_rows(OTHER_MARKER)
    rows = [*hidden[:2], {"answer": f"{OTHER_MARKER} without a question"}]
    create = ("seal", "create", "admin/say-env")
    said = owner.refused(1, *create, write_rows(owner, rows), "--opens", a_week())
    assert "cannot play 1 of the examples (rows 3)" in said
    broken = owner.home / "broken.jsonl"
    broken.write_text(f"{OTHER_MARKER}\n")
    assert "line 1: it is not JSON" in owner.refused(2, *create, broken, "--opens", a_week())
    said = owner.refused(1, *create, write_rows(owner, hidden), "--opens", "2020-01-01")
    assert "is in the past" in said
    commitment = owner.wander(*create, write_rows(owner, hidden), "--opens", a_week())["commitment"]
    play = ("seal", "play", commitment, "-m", "echo", "-b")
    assert "must start with" in submitter.refused(1, *play, "ftp://127.0.0.1/v1")
    assert "private network" in submitter.refused(1, *play, "https://10.1.2.3/v1")
    with chat_endpoint(lambda messages: "x") as gone:
        url = gone.base_url
    said = submitter.refused(1, *play, url)
    assert "the endpoint could not be reached" in said
    found = owner.wander("seal", "show", commitment)
    assert found["exposures"] == 0, "no question was sent"
    later = (datetime.now(UTC) + timedelta(days=30)).isoformat()
    assert "only open earlier" in owner.refused(1, "seal", "open", commitment, "--at", later)
    require_unseen(hub, commitment, tmp_path / "backup", OTHER_MARKER)
