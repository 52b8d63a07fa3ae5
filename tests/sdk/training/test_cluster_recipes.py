"""What `examples/distributed` holds can be read by what it is for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from wander.train.config import GRPOSettings

RECIPES = Path(__file__).resolve().parents[3] / "examples" / "distributed"


def manifests(name: str = "kubernetes.yaml") -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((RECIPES / name).read_text()))


@pytest.mark.parametrize("name", ["train.slurm", "eval.slurm"])
def test_the_slurm_jobs_are_shell_scripts(name: str) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    command = [bash, "-n", str(RECIPES / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PROGRAMS = {
    "srun": 'shift; exec "$@"',
    "scontrol": 'echo "scontrol $*"',
    "wander": """trap 'kill $!; echo ended; exit 130' TERM
if [ -n "${ENDLESS:-}" ]; then sleep 100 >/dev/null 2>&1 & fi
echo "wander $*"
wait
exit "${STATUS:-0}\"""",
}


def started(tmp_path: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a task of the Slurm job, with programs that tell how they were called."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_ID": "9"}
    return subprocess.Popen(
        ["bash", str(RECIPES / "eval.slurm"), "acme/wordle"],
        env=own | variables,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def array(task: int, count: int, most: int) -> dict[str, str]:
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MAX")
    return dict(zip(names, map(str, (task, count, most)), strict=True))


def test_each_task_plays_its_shard_or_all_tasks_fail(tmp_path: Path) -> None:
    folder = f"{tmp_path}/runs/7"
    (tmp_path / "old" / "4").mkdir(parents=True)
    (tmp_path / "old" / "4" / "run.json").touch()
    cases = [
        (array(1, 2, 1) | {"STATUS": "6"}, 0, f"wander eval acme/wordle --set shard=1/2 --out {folder}/1"),
        (array(1, 2, 1) | {"STATUS": "5"}, 5, f"wander eval acme/wordle --set shard=1/2 --out {folder}/1"),
        (array(1, 2, 2), 2, "2 shards are --array=0-1"),
        (array(3, 1, 3), 2, "SHARDS=N RUN=FOLDER"),
        (array(0, 1, 0) | {"RUN": "old"}, 2, "say of how many shards `old` is"),
        (array(3, 1, 3) | {"RUN": "old", "SHARDS": "8"}, 0, "wordle --set shard=3/8 --out old/3"),
        (array(4, 1, 4) | {"RUN": "old", "SHARDS": "8"}, 0, "wander eval --resume old/4"),
    ]
    for variables, status, said in cases:
        with started(tmp_path, **variables) as task:
            out, _ = task.communicate()
        assert (task.returncode, said in out) == (status, True), out


@pytest.mark.parametrize(
    ("number", "then"), [(signal.SIGUSR1, ["scontrol requeue 9\n"]), (signal.SIGTERM, [])]
)
def test_a_task_at_its_time_limit_stops_and_is_requeued(
    tmp_path: Path, number: signal.Signals, then: list[str]
) -> None:
    with started(tmp_path, **array(0, 1, 0), ENDLESS="1") as task:
        assert task.stdout is not None
        assert task.stdout.readline().startswith("wander eval acme/wordle")
        task.send_signal(number)
        assert task.stdout.readlines() == ["ended\n", *then]
    assert task.returncode == 130


def test_the_accelerate_configuration_shards_by_fsdp2() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(RECIPES / "fsdp2.yaml"))
    assert str(config.distributed_type) == "DistributedType.FSDP"
    assert config.fsdp_config["fsdp_version"] == 2
    assert config.fsdp_config["fsdp_cpu_ram_efficient_loading"] is False


def test_the_kubernetes_job_is_complete() -> None:
    settings, claim, job = manifests()
    assert [each["kind"] for each in (settings, claim, job)] == [
        "ConfigMap",
        "PersistentVolumeClaim",
        "Job",
    ]
    pod = job["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert {volume["name"]: volume for volume in pod["volumes"]}["settings"]["configMap"]["name"] == settings[
        "metadata"
    ]["name"]


def test_the_indexed_job_plays_one_shard_per_pod() -> None:
    claim, job = manifests("eval.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    (script,) = container["args"]
    assert f'--set "shard=$JOB_COMPLETION_INDEX/{spec["completions"]}"' in script
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["volumeMounts"][0]["name"] == volume["name"]


def test_settings_of_the_recipes_are_valid() -> None:
    settings = GRPOSettings.model_validate(tomllib.loads(manifests()[0]["data"]["grpo.toml"]))
    assert settings.inference.engine == "vllm-server"
    (train,) = manifests()[2]["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in train["volumeMounts"]}
    assert settings.inference.folder in mounts
