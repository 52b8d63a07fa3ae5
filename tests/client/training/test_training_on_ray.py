"""Training whose environment plays in workers that Ray places on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Wander
from shard_records import records_of
from wander.evals.store.folder import RunFolder

ray = pytest.importorskip("ray")

TICTACTOE = str(Path(__file__).parents[3] / "environments" / "tictactoe")
SOURCE = """
import os, signal
from pathlib import Path
from wander import MultiTurnEnv, Rubric, stop

KILL = Path(__file__).with_name("kill")


class Env(MultiTurnEnv):
    async def env_response(self, messages, state):
        if state["index"] == 2 and len(state.turns) == 2 and KILL.exists():
            whom = KILL.read_text()
            KILL.unlink()
            listener = os.getppid()
            actor = int(Path(f"/proc/{listener}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill({"worker": os.getpid(), "actor": actor}[whom], signal.SIGKILL)
        return [{"role": "user", "content": f"Pull again: {self.rng(state, len(state.turns)).random():.3f}"}]

    @stop
    def has_said_enough(self, state):
        return len(state.turns) > 2


def vowels(completion):
    text = "".join(str(each["content"]) for each in completion if each["role"] == "assistant")
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


def load_environment():
    rows = [{"question": f"Pull lever {n}"} for n in range(8)]
    return Env(dataset=rows, eval_dataset=rows, rubric=Rubric([vowels]), name="levers")
"""
SETTINGS = """
[batch]
rollouts = 16
group_size = 4

[sampling]
max_tokens = 8

[schedule]
steps = 2
learning_rate = 1e-3

[output]
rollouts_every = 1
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a node with room for three workers."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    try:
        yield found.address
    finally:
        found.shutdown()


def steps_of(run: str) -> list[dict[str, Any]]:
    """Return the hashes of what was sampled, earned and learned; metrics tell of workers that were lost."""
    lines = [json.loads(line) for line in Path(run, "steps.jsonl").read_text().splitlines()]
    return [
        {name: line[name] for name in ("step", "rollouts", "rewards", "update", "weights")} for line in lines
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_on_ray_give_equal_results_even_after_a_kill(
    cluster: str, wander: Wander, home: Path
) -> None:
    torch.set_num_threads(1)
    env = home / "levers"
    env.mkdir()
    (env / "levers.py").write_text(SOURCE)
    (env / "pyproject.toml").write_text(
        '[project]\nname = "levers"\nversion = "1.0.0"\ndependencies = ["wander-sdk"]\n'
    )
    (home / "grpo.toml").write_text(SETTINGS)
    made = wander(
        *("model", "new", "tiny", "--environment", TICTACTOE, "--out", "tiny", "--episodes", "20"),
        *("--hidden", "32", "--layers", "1", "--vocabulary", "330"),
    )
    assert made.status == 0, made.err
    words = ("train", str(env), "grpo.toml", "--model", "tiny")
    assert (done := wander(*words, "--out", "here")).status == 0, done.err
    for whom in ("nobody", "worker", "actor"):
        if whom != "nobody":
            (env / "kill").write_text(whom)
        done = wander(*words, "--out", whom, "--worker", f"ray://{cluster}/2", "--json")
        assert done.status == 0, done.err
        assert not (env / "kill").exists()
        settings = json.loads(Path(whom, "command.json").read_text())["command"]["settings"]["environment"]
        assert settings["workers"] == [f"ray://{cluster}"] * 2
        assert steps_of(whom) == steps_of("here")
        metrics = [json.loads(line) for line in Path(whom, "metrics.jsonl").read_text().splitlines()]
        assert [line.get("failed", 0) for line in metrics] == [0, 0]
    many = wander(*words, "--worker", f"ray://{cluster}/9", "--json")
    assert "has 3 processors, too few for 9 workers" in many.json["error"]["message"]
    sharded = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    sharded += ["-m", "wander_client", *words, "--set", "parallel.policy=fsdp2"]
    for out, workers in (("two", ()), ("two-ray", ("--worker", f"ray://{cluster}/1"))):
        subprocess.run(
            [*sharded, "--out", out, *workers], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    assert steps_of("two-ray") == steps_of("two")


def test_an_unreachable_cluster_is_reported(wander: Wander, folder: Path) -> None:
    words = ("eval", str(folder), "-m", "scripted:say_env:solver", "--worker")
    down = wander(*words, "ray://127.0.0.1:1")
    assert (down.status, "no Ray cluster responds at `127.0.0.1:1`" in down.err) == (5, True)
    nowhere = wander(*words, "ray://nowhere")
    assert (nowhere.status, "not a Ray address: `nowhere`" in nowhere.err) == (2, True)


@pytest.fixture
def split_cluster() -> Iterator[str]:
    """The address of a cluster with processors on one node and GPUs, which there are not, on another."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    found.add_node(num_cpus=0, num_gpus=2)
    try:
        yield found.address
    finally:
        found.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_models_run_on_gpu_nodes_and_environments_on_cpu_nodes(
    split_cluster: str, wander: Wander, folder: Path, home: Path
) -> None:
    torch.set_num_threads(1)
    for name in ("one", "two"):
        made = wander(
            *("model", "new", "tiny", "--environment", TICTACTOE, "--out", name, "--episodes", "20"),
            *("--hidden", "32", "--layers", "1", "--vocabulary", "330"),
        )
        assert made.status == 0, made.err
    (home / "suite.toml").write_text(
        "concurrency = 1\n[defaults]\nnum_examples = 4\nrollouts = 2\n"
        '[[eval]]\nenvironment = "./say-env"\nmodel = ["./one", "./two"]\nsampling = [{max_tokens = 8}]\n'
    )
    on_ray = ("--engine", f"ray://{split_cluster}/1", "--out", "ray", "--json")
    done = wander("eval", "suite.toml", *on_ray)
    assert done.status == 0, done.out
    assert wander("eval", "suite.toml", "--out", "plain").status == 0
    for path in Path("plain").glob("*/run.json"):
        name = path.parent.name
        assert records_of(Path("ray", name)) == records_of(Path("plain", name))
        assert RunFolder.open(Path("ray", name)).manifest.model == RunFolder.open(path.parent).manifest.model
