"""Evaluations on Ray, with its own utilities for a cluster of several nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import wander as wander_package
from chat_endpoint import chat_endpoint
from command_line import Wander
from fake_vllm import install_fake_vllm
from shard_records import aggregates_of, records_of
from wander.evals.store.folder import RunFolder
from wander_client.errors import ClientError, Unavailable, UsageError
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.runs.shards import SHARDS_FILE
from wander_client.suites.file import Suite, name_run
from wander_ray import engine
from wander_ray.cluster import Versions, _cannot_connect, _require_reachable, connected
from wander_ray.coordinator import Coordinator
from wander_ray.models import count_actors, count_gpus, models_of
from wander_ray.task import PROOF_FILE, ShardJob, play_shard

URL = "http://model/v1"


async def test_the_budget_is_shared_by_all_shards() -> None:
    coordinator = Coordinator(100, None)
    for shard in range(2):
        await coordinator.begin(shard, "a")
    assert await coordinator.report(0, "a", {}, 60, 0.0) == (0, None)
    _, said = await coordinator.report(1, "a", {}, 50, 0.0)
    assert said is not None
    assert "100 tokens is spent (110)" in said
    await coordinator.stop()
    assert (await coordinator.report(0, "a", {}, 60, 0.0))[0] == 1
    await coordinator.begin(0, "b")
    assert (await coordinator.report(0, "a", {}, 90, 0.0))[0] == 2, "another attempt plays this shard"
    assert (await coordinator.look()).tokens == 110


@pytest.mark.parametrize(("shards", "calls"), [(1, 10), (3, 3), (10, 1), (64, 1)])
def test_every_shard_gets_a_fixed_share_of_the_calls(shards: int, calls: int) -> None:
    suite = suite_of({"model": "./small", "concurrency": 10}).model_copy(update={"concurrency": 10})
    shared = engine.share_concurrency(suite, shards)
    assert (shared.concurrency, shared.runs[0].settings.concurrency) == (calls, calls)


def test_an_address_without_a_listener_is_reported_immediately() -> None:
    pytest.importorskip("ray")
    with (
        pytest.raises(Unavailable, match="no Ray cluster responds") as refused,
        connected("127.0.0.1:1"),
    ):
        pass
    assert "ray start --head" in (refused.value.hint or "")
    with pytest.raises(UsageError, match="not a Ray address"), connected("nowhere"):
        pass


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"versions": Versions(wander="0.0.1")}, "versions_differ"),
        ({"versions": Versions(python=(3, 1))}, "versions_differ"),
        ({"proof": "another"}, "folder_not_shared"),
        ({"folder": "/nowhere"}, "folder_not_shared"),
    ],
)
def test_a_node_that_differs_from_the_driver_is_reported(change: Any, code: str, tmp_path: Path) -> None:
    (tmp_path / PROOF_FILE).write_text("proof")
    job = ShardJob(
        **{"suite": "{}", "folder": str(tmp_path), "number": 0, "of": 1, "proof": "proof", **change}
    )
    (problem,) = play_shard(job, None)
    assert (problem.code, problem.hint is not None) == (code, True)


def test_another_version_of_ray_is_reported() -> None:
    said = _cannot_connect("head:6379", RuntimeError("Version mismatch: The cluster was started with:..."))
    assert (said.code, "install the same Ray and Python" in (said.hint or "")) == ("versions_differ", True)
    assert "RAY_AUTH_MODE=token" in (_cannot_connect("head:6379", ConnectionError("no")).hint or "")
    assert "RAY_AUTH_MODE" not in (_cannot_connect(None, ConnectionError("no")).hint or "")
    with pytest.raises(UsageError, match="Ray Client"):
        _require_reachable("ray://head:10001")


def test_two_drivers_cannot_share_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with engine.hold(out), pytest.raises(ClientError, match="another process plays"), engine.hold(out):
        pass
    place = tmp_path / "run.shards"
    assert not place.exists()
    fail: Any = Mock(side_effect=Unavailable("no model"))
    with pytest.raises(Unavailable), engine.hold(out):
        fail((place / SHARDS_FILE).write_text("3"))
    assert not place.exists(), "a start that failed leaves nothing"
    small, other = suite_of({"model": "./small"}), suite_of({"model": "./other"})
    small.write(place)
    engine._require_same(place, other)
    (place / "0" / "small").mkdir(parents=True)
    (place / "0" / "small" / "run.json").touch()
    engine._require_same(place, small)
    with pytest.raises(Unavailable), engine.hold(out):
        fail()
    with pytest.raises(UsageError, match="shards of another evaluation") as refused:
        engine._require_same(place, other)
    assert f"--resume {out}`" in str(refused.value.hint)


def test_a_folder_of_shards_is_not_a_run_and_is_not_overwritten(
    wander: Wander, folder: Path, say_env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "eval",
        str(folder),
        "-m",
        "scripted:say_env:solver",
        "-n",
        "2",
        "--set",
        "in_process=true",
        "--json",
    )
    go_on, merge = (
        "resume it with `wander eval --resume 'a run'`",
        "`wander runs merge 'a run.shards'/[0-9]* --out ",
    )
    out, place = Path("a run"), Path("a run.shards")
    for number in range(2):
        assert wander(*words, "--set", f"shard={number}/2", "--out", str(place / str(number))).status == 0
    suite_of({"model": "./small"}).write(place)
    (place / SHARDS_FILE).write_text("2")

    def refused(*command: str) -> tuple[str, str]:
        error = wander(*command).json["error"]
        return error["message"], error["hint"]

    commands: list[tuple[str, ...]] = [("eval", "--resume"), ("eval", "--engine", "ray", "--resume")]
    commands += [("view",), ("post",), ("runs", "show")]
    for command in commands:
        assert refused(*command, str(place), "--json") == (
            f"`{place}` contains the shards of a run, not a whole run",
            go_on,
        )
    said, hint = refused(*words, "--out", str(out))
    assert ("which is not finished" in said, go_on in hint) == (True, True)
    assert "which is not finished" in refused(*words, "-m", "scripted:say_env:wrong", "--out", str(out))[0]
    with pytest.raises(UsageError, match="which is not finished"):
        say_env.evaluate_sync("scripted:say_env:solver", n=2, out=out)

    def play_both(*_: object) -> None:
        assert (
            wander(
                "runs", "merge", *(str(place / str(number)) for number in range(2)), "--out", str(out)
            ).status
            == 0
        )

    monkeypatch.setattr("wander_ray.engine.play", play_both)
    said, hint = refused(*words, "--engine", "ray", "--out", str(out))
    assert (said, merge in hint) == (f"`{out}` already exists", True)
    assert (place / "1" / "run.json").is_file()
    assert merge in refused("view", str(place), "--json")[1]


def suite_of(*models: dict[str, Any]) -> Suite:
    runs = [
        name_run(EvaluationSettings(environment="acme/wordle@1.0.0", **model), f"run {number}")
        for number, model in enumerate(models)
    ]
    return Suite(name="ray", concurrency=4, evaluations_at_once=1, runs=runs)


def test_models_get_actors_on_nodes_with_enough_gpus() -> None:
    small = {"model": "./small"}
    wide = {"model": "./wide", "serve": "vllm", "serve_args": ["--tensor-parallel-size=2", "-pp", "2"]}
    elsewhere = {"model": "named", "base_url": URL}
    suite = suite_of(small, small, wide, elsewhere, {"model": "./on-a-processor", "device": "cpu"})
    assert [(each.model, count_gpus(each)) for each in models_of(suite)] == [("./small", 1), ("./wide", 4)]
    assert count_actors(suite, 4) is None
    assert [(each.model, count) for each, count in (count_actors(suite, 10) or {}).items()] == [
        ("./small", 2),
        ("./wide", 2),
    ]
    assert count_actors(suite_of(elsewhere), 8) is None

    def places(suite: Suite, **resources: float) -> Any:
        there = type("Ray", (), {"cluster_resources": staticmethod(lambda: resources)})
        count, options, models = engine._place(there, suite)
        return count, options, sum(models.values())

    assert places(suite, CPU=3.0, GPU=5.0) == (3, {"num_cpus": 1.0}, 2)
    assert places(suite, CPU=3.0, GPU=4.0) == (1, {"num_gpus": 4.0, "num_cpus": 1.0}, 0)
    assert places(suite_of(small, {"model": "./other"}), CPU=3.0, GPU=1.0)[:1] == (1,)
    with pytest.raises(Unavailable, match="takes 4 GPUs, and the cluster has 3"):
        places(suite, CPU=3.0, GPU=3.0)
    assert places(suite, CPU=3.0) == (3, {"num_cpus": 1.0}, 0)
    with pytest.raises(Unavailable, match="no processor"):
        places(suite, GPU=5.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes, each of which takes two shards."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        found.add_node(num_cpus=2)
    try:
        yield found
    finally:
        found.shutdown()


def slow_echo(messages: list[dict[str, str]]) -> str:
    time.sleep(0.1)
    return messages[-1]["content"].removeprefix("say ")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_lost_node_loses_and_repeats_no_rollout(
    cluster: Any, wander: Wander, folder: Path, home: Path
) -> None:
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(chat_endpoint(slow_echo))
        words = (str(folder), "-m", "test-model", "-b", endpoint.base_url, "-n", "8", "-r", "30", "-c", "4")
        node = next(iter(cluster.worker_nodes))

        ended = threading.Event()

        def kill() -> None:
            while not ended.wait(0.1):
                if len(endpoint.requests) >= 64:
                    cluster.remove_node(node, allow_graceful=False)
                    return

        killer = threading.Thread(target=kill)
        killer.start()
        on_ray = (*("--engine", f"ray://{cluster.address}/4", "--out", "ray", "--json"),)
        done = wander("eval", *words, *on_ray)
        ended.set()
        killer.join()
        cluster.add_node(num_cpus=2)
        assert done.status == 0, done.out
        assert node not in cluster.worker_nodes
        # What the dead node had asked for the endpoint still answers, while its shards ask again.
        assert endpoint.most_in_flight <= 2 * 4
        assert not (home / "ray.shards").exists()
        assert wander("eval", *words, "--out", "plain").status == 0
    assert done.data["summary"]["rollouts"] == 240
    lines = [json.loads(line) for _, line in RunFolder.open(home / "ray").records()]
    assert set(Counter((line["example_id"], line["index"]) for line in lines).values()) == {1}
    assert records_of(home / "ray") == records_of(home / "plain")
    assert aggregates_of(home / "ray") == aggregates_of(home / "plain")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_crashed_model_is_restarted_unless_it_crashes_immediately(
    wander: Wander, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(install_fake_vllm(home / "fake")))
    monkeypatch.setenv("VLLM_FAKE_PIDS", str(home / "pids"))
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False}
    )
    words = ("eval", str(folder), "-m", "m", "-n", "8", "-r", "40", "-c", "4", "--serve", "vllm")
    on_ray = ("--engine", f"ray://{cluster.address}/2", "--json")

    def kill(whom: str, servers: int, lines: int) -> None:
        """Kill the newest server, or its actor, once so many have started and so much is played."""
        while (
            len(pids := (home / "pids").read_text().split() if (home / "pids").exists() else []) < 2 * servers
            or sum(len(file.read_text().splitlines()) for file in home.glob("ray.shards/*/*/*.jsonl")) < lines
        ):
            if ended.wait(0.1):
                return
        pid = int(pids[-2])
        for _ in range({"server": 0, "actor": 3}[whom]):  # the guard, twice, is between them
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)

    ended = threading.Event()
    killer = threading.Thread(target=lambda: [kill("server", 1, 40), kill("actor", 2, 100)])
    killer.start()
    try:
        done = wander(*words, "--set", "serve_args=--behave=slow", *on_ray, "--out", "ray")
        ended.set()
        killer.join()
        assert done.status == 0, done.out
        assert done.data["summary"]["failed"] == 0
        assert len((home / "pids").read_text().split()) == 6, "three servers, each of two processes"
        dies = wander(*words, "--set", "serve_args=--behave=dies", *on_ray, "--out", "dies")
        assert (dies.status, dies.json["error"]["code"]) == (1, "server_failed"), dies.out
        assert dies.json["error"]["message"] == "the server of `m` ended with status 4"
        assert dies.json["error"]["detail"].endswith("RuntimeError: CUDA error")
        assert len((home / "pids").read_text().split()) == 12
    finally:
        ended.set()
        cluster.shutdown()
    assert wander(*words, "--set", "serve_args=--behave=slow", "--out", "plain").status == 0
    assert records_of(home / "ray") == records_of(home / "plain")
    assert aggregates_of(home / "ray") == aggregates_of(home / "plain")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_suite_on_ray_gives_the_local_results(
    cluster: Any, wander: Wander, folder: Path, home: Path
) -> None:
    (home / "suite.toml").write_text(
        '[[eval]]\nenvironment = "./say-env"\nnum_examples = 5\nrollouts = 2\n'
        'model = ["scripted:say_env:solver", "scripted:say_env:breaks_on_three"]\n'
    )
    on_ray = ("--engine", f"ray://{cluster.address}", "--out", "ray", "--json")
    done = wander("eval", "suite.toml", *on_ray)
    assert done.status == 6, done.out
    assert wander("eval", "suite.toml", "--out", "plain").status == 6
    for path in Path("plain").glob("*/run.json"):
        name = path.parent.name
        assert records_of(Path("ray", name)) == records_of(Path("plain", name))
        assert aggregates_of(Path("ray", name)) == aggregates_of(Path("plain", name))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ctrl_c_and_an_exhausted_budget_keep_finished_rollouts(
    cluster: Any, wander: Wander, folder: Path, home: Path
) -> None:
    with chat_endpoint(slow_echo) as endpoint:
        words = [str(folder), "-m", "test-model", "-b", endpoint.base_url, "-n", "8", "-r", "20", "-c", "4"]
        command = [sys.executable, "-m", "wander_client", "eval", *words, "--out", "ray", "--json"]
        command += ["--engine", f"ray://{cluster.address}", "--budget-tokens", "1000"]
        playing = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        while len(endpoint.requests) < 12:
            time.sleep(0.1)
        playing.send_signal(signal.SIGINT)
        said = json.loads(playing.communicate()[0])["error"]
        assert (playing.returncode, said["hint"]) == (130, "resume with `wander eval --resume ray`")
        spent = wander("eval", "--resume", "ray", "--engine", f"ray://{cluster.address}", "--json")
        assert (spent.status, spent.json["error"]["code"]) == (6, "budget_spent"), spent.out
        more = ("--budget-tokens", "100000")
        done = wander("eval", "--resume", "ray", "--engine", f"ray://{cluster.address}", *more, "--json")
        assert (done.status, done.data["summary"]["rollouts"]) == (0, 160)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_late_nodes_are_used_and_a_lost_head_node_can_be_replaced(
    wander: Wander, folder: Path, home: Path
) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    def start(processors: int) -> Any:
        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        found.add_node(num_cpus=processors)
        return found

    def begun() -> int:
        return len(list(home.glob("ray.shards/*/suite.json")))

    lost = threading.Event()

    def answer(messages: list[dict[str, str]]) -> str:
        if len(endpoint.requests) > 40:
            lost.wait(300)
        return messages[-1]["content"].removeprefix("say ")

    cluster = start(1)
    with chat_endpoint(answer) as endpoint, contextlib.ExitStack() as stack:
        stack.callback(lambda: cluster.shutdown())
        stack.callback(lost.set)
        words = [str(folder), "-m", "test-model", "-b", endpoint.base_url, "-n", "8", "-r", "40", "-c", "4"]
        command = [sys.executable, "-m", "wander_client", "eval", *words, "--out", "ray", "--json"]
        command += ["--engine", f"ray://{cluster.address}/3"]
        playing = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        stack.callback(playing.kill)
        while not list(home.glob("ray.shards/*/*/rollouts.jsonl")) and playing.poll() is None:
            time.sleep(0.1)
        cluster.add_node(num_cpus=2)
        while begun() < 3 and playing.poll() is None:
            time.sleep(0.1)
        assert begun() == 3, "the late node plays"
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        lost.set()
        said = json.loads(playing.communicate()[0])["error"]
        assert (playing.returncode, said["code"]) == (5, "ray_unavailable"), said
        assert "`wander eval --resume ray`" in said["hint"]
        cluster.shutdown()
        cluster = start(3)
        done = wander("eval", "--resume", "ray", "--engine", f"ray://{cluster.address}", "--json")
        assert (done.status, done.data["summary"]["rollouts"]) == (0, 320), done.out
        assert len(endpoint.requests) < 400, "what was played is kept"
        assert wander("eval", *words, "--out", "plain").status == 0
    assert records_of(home / "ray") == records_of(home / "plain")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_with_another_wander_version_stops_the_run(
    cluster: Any, wander: Wander, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(Path(wander_package.__file__).parent, home / "other" / "wander")
    (other / "version.py").write_text('__version__ = "0.0.1"\n')
    with monkeypatch.context() as changed:
        changed.setenv("PYTHONPATH", str(other.parent))
        node = cluster.add_node(num_cpus=2)
    try:
        with chat_endpoint(slow_echo) as endpoint:
            words = ("-m", "test-model", "-b", endpoint.base_url, "-n", "8", "-r", "200")
            on_ray = ("--engine", f"ray://{cluster.address}/8", "--out", "ray", "--json")
            done = wander("eval", str(folder), *words, *on_ray)
    finally:
        cluster.remove_node(node)
    assert (done.status, done.json["error"]["code"]) == (1, "versions_differ"), done.out
    assert "has wander 0.0.1 on Python" in done.json["error"]["message"]
    assert len(endpoint.requests) < 1600, "the other shards end"
