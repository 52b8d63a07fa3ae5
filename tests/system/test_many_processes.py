"""A hub as many: what its servers and workers have to agree on, and an upgrade while requests come."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from command_line import make_wheel
from hub_cluster import SECONDS, Cluster, Part, hub_cluster
from live_hub import BIN, clean_environment
from saved_runs import write_run
from webhook_receiver import webhook_receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
ROOT = Path(__file__).resolve().parents[2]
BEFORE = "e4085548~1"
"""The last commit of a release that did not know the newest migration."""
SETTINGS = {"WANDER_HUB_VERIFICATION": "off", "WANDER_HUB_BUNDLED_PACKAGES": "false"}
PASSWORD = "correct horse battery"
OPEN: list[httpx.Client] = []
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


@contextmanager
def place() -> Iterator[Path]:
    """Give a folder where another user may come to the database: pytest's own are closed to all others."""
    with tempfile.TemporaryDirectory(prefix="wander-many-") as folder:
        yield Path(folder) / "hub"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three servers that start at once on an empty database, and two workers."""
    hook = {"WANDER_HUB_WEBHOOK_HTTP": "true", "WANDER_HUB_WEBHOOK_NETWORKS": '["127.0.0.1/32"]'}
    more = {"WANDER_HUB_QUOTA_RUNS": "8", "WANDER_HUB_WRITES_PER_MINUTE": "40"}
    with place() as folder, hub_cluster(folder, servers=3, **SETTINGS, **hook, **more) as started:
        yield started


@pytest.fixture(autouse=True)
def clients() -> Iterator[None]:
    """Close what a test asked with."""
    yield
    while OPEN:
        OPEN.pop().close()


def ask(cluster: Cluster, part: Part | None = None, user: str | None = "admin") -> httpx.Client:
    """Return a client of one server, or of nginx."""
    headers = {"Authorization": f"Bearer {cluster.token}"} if user else {}
    client = httpx.Client(base_url=part.url if part else cluster.front, headers=headers, timeout=SECONDS)
    OPEN.append(client)
    return client


def publish(client: httpx.Client, wheel: Path) -> httpx.Response:
    form = {":action": "file_upload", "protocol_version": "1"}
    return client.post("/admin/legacy/", data=form, files={"content": (wheel.name, wheel.read_bytes())})


def post(client: httpx.Client, run: Path) -> httpx.Response:
    parts = {"manifest": "run.json", "rollouts": "rollouts.jsonl.zst"}
    return client.post(
        "/api/v1/runs", files={one: (name, (run / name).read_bytes()) for one, name in parts.items()}
    )


def test_one_of_three_starting_servers_creates_the_administrator(cluster: Cluster) -> None:
    said = [part.log.read_text() for part in cluster.servers]
    assert sum("added the administrator" in one for one in said) == 1
    assert cluster.run("fsck").returncode == 0


def test_all_servers_show_changes_immediately(cluster: Cluster, tmp_path: Path) -> None:
    first, second, third = (ask(cluster, part) for part in cluster.servers)
    strangers = [ask(cluster, part, None) for part in cluster.servers]
    for number in range(3):
        wheel = make_wheel(tmp_path, version=f"0.{number}.0")
        assert publish((first, second, third)[number], wheel).status_code == 200
        page = "/admin/simple/say-env/"
        assert all(wheel.name in one.get(page).text for one in strangers)
        assert len({one.get(page).headers["etag"] for one in strangers}) == 1
        assert all(one.get("/api/v1/environments?q=say").json()["data"] for one in strangers)
    hidden = {"private": True}
    assert second.put("/api/v1/environments/admin/say-env/visibility", json=hidden).is_success
    assert {one.get("/admin/simple/say-env/").status_code for one in strangers} == {401}
    assert {one.get("/api/v1/environments?q=say").json()["data"] == [] for one in strangers} == {True}
    assert third.put("/api/v1/environments/admin/say-env/visibility", json={"private": False}).is_success
    assert {one.get("/admin/simple/say-env/").status_code for one in strangers} == {200}
    made = first.post("/api/v1/tokens", json={"name": "one", "scopes": ["read"]}).json()
    carried = {"Authorization": f"Bearer {made['token']}"}
    assert {one.get("/api/v1/whoami", headers=carried).status_code for one in strangers} == {200}
    assert second.delete(f"/api/v1/tokens/{made['prefix']}").is_success
    assert {one.get("/api/v1/whoami", headers=carried).status_code for one in strangers} == {401}


def test_sessions_and_failed_attempts_are_shared_by_all_servers(cluster: Cluster) -> None:
    words = [str(BIN / "wander-hub"), "user", "password", "admin"]
    environment = {**clean_environment(), **cluster.settings}
    subprocess.run(words, env=environment, input=PASSWORD, text=True, check=True, capture_output=True)
    browsers = [ask(cluster, part, None) for part in cluster.servers]
    form = {"name": "admin", "password": PASSWORD, "next": "/"}
    signed = browsers[0].post("/login", data=form, headers=OWN_PAGE)
    cookies = {"Cookie": f"wander-session={signed.cookies['wander-session']}"}
    assert {one.get("/api/v1/whoami", headers=cookies).status_code for one in browsers} == {200}
    assert browsers[1].post("/logout", headers={**cookies, **OWN_PAGE}).status_code == 303
    assert {one.get("/api/v1/whoami", headers=cookies).status_code for one in browsers} == {401}
    wrong = {**form, "name": "nobody"}
    said = [browsers[n % 3].post("/login", data=wrong, headers=OWN_PAGE).status_code for n in range(8)]
    assert said.count(429) >= 2, "five are free, wherever they are sent"


def test_quotas_and_totals_hold_over_all_servers(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    runs = [write_run(tmp_path / "runs" / str(n), rewards=[1.0, 0.5], version="0.2.0") for n in range(12)]
    with webhook_receiver() as receiver:
        hook = {"url": receiver.url, "events": ["run.posted"], "owner": "admin"}
        assert ask(cluster).post("/api/v1/webhooks", json=hook).is_success
        clients = [ask(cluster, part) for part in cluster.servers]
        with ThreadPoolExecutor(6) as pool:
            said = Counter(pool.map(lambda n: post(clients[n % 3], runs[n]).status_code, range(12)))
        assert said == {201: 8, 403: 4}, "the quota is eight"
        waiting = threading.Event()
        while len({one.headers["webhook-id"] for one in receiver.received}) < 8:
            assert not waiting.wait(0.2)
        assert len(receiver.received) == 8, "each is told once"
    shown = clients[0].get("/api/v1/environments/admin/say-env").json()
    assert shown["runs"] == 8
    files = [f"/admin/files/say-env/say_env-0.{n}.0-py3-none-any.whl" for n in range(3)]
    strangers = [ask(cluster, part, None) for part in cluster.servers]
    for _ in range(5):
        assert {one.get(path).status_code for one in strangers for path in files} == {200}
    while clients[1].get("/api/v1/environments/admin/say-env").json()["downloads"] < 45:
        assert not waiting.wait(0.5)
    assert clients[2].get("/api/v1/environments/admin/say-env").json()["downloads"] == 45
    assert cluster.run("fsck").returncode == 0


def test_each_server_counts_its_own_requests(cluster: Cluster) -> None:
    """So three let three times as many pass: docs/many-processes.md says how to set that."""
    body = {"private_by_default": False}
    for part in cluster.servers:
        with ask(cluster, part) as client:
            said = Counter(
                client.put("/api/v1/owners/admin/settings", json=body).status_code for _ in range(60)
            )
        assert said[429] >= 19, said


def release(commit: str, folder: Path) -> str:
    """Return the Python path of the sources of a commit."""
    parts = ("hub", "sdk", "client", "compat", "migrations")
    packed = subprocess.run(
        ["git", "archive", commit, *parts], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return ":".join(str(folder / one) for one in parts[:-1])


def test_no_request_fails_while_a_hub_is_upgraded_server_by_server(tmp_path: Path) -> None:
    old = release(BEFORE, tmp_path / "old")
    with place() as folder, hub_cluster(folder, PYTHONPATH=old, **SETTINGS) as cluster:
        ended, answers = threading.Event(), Counter[str]()
        wheel = make_wheel(tmp_path)
        assert publish(ask(cluster), wheel).status_code == 200
        (tmp_path / "runs").mkdir()

        def use(number: int) -> None:
            with ask(cluster) as client:
                count = 0
                while not ended.is_set():
                    count += 1
                    run = write_run(tmp_path / f"user{number}" / "runs" / str(count), rewards=[1.0])
                    for answer in (
                        client.get("/api/v1/environments"),
                        client.get("/admin/simple/say-env/"),
                        client.put("/api/v1/owners/admin/settings", json={"private_by_default": False}),
                        post(client, run),
                    ):
                        answers[f"{answer.request.method} {answer.status_code}"] += 1

        for number in range(2):
            (tmp_path / f"user{number}").mkdir()
        threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
        for one in threads:
            one.start()
        try:
            for part in (*cluster.servers, *cluster.workers):
                wait_for_more(answers, ended)
                part.environment.pop("PYTHONPATH")
                assert part.end() == 0
                part.start()
            wait_for_more(answers, ended)
        finally:
            ended.set()
            for one in threads:
                one.join()
        cluster.settings.pop("PYTHONPATH")
        assert set(answers) == {"GET 200", "PUT 200", "POST 201"}, answers
        assert answers["POST 201"] == ask(cluster).get("/api/v1/environments/admin/say-env").json()["runs"]
        checked = cluster.run("fsck")
        assert checked.returncode == 0, checked.stdout + checked.stderr


def wait_for_more(answers: Counter[str], ended: threading.Event) -> None:
    seen = answers.total()
    while answers.total() < seen + 16:
        assert not ended.wait(0.1)
