"""What `examples/distributed` holds can be read by what it is for."""

from __future__ import annotations

import shutil
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


def test_the_accelerate_configuration_shards_by_fsdp2() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(RECIPES / "fsdp2.yaml"))
    assert str(config.distributed_type) == "DistributedType.FSDP"
    assert config.fsdp_config["fsdp_version"] == 2
    assert config.fsdp_config["fsdp_cpu_ram_efficient_loading"] is False


def test_the_kubernetes_job_is_whole() -> None:
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


def test_the_indexed_job_plays_a_shard_a_pod() -> None:
    claim, job = manifests("eval.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    (script,) = container["args"]
    assert f'--shard "$JOB_COMPLETION_INDEX/{spec["completions"]}"' in script
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["volumeMounts"][0]["name"] == volume["name"]


def test_its_settings_are_those_of_a_run() -> None:
    settings = GRPOSettings.model_validate(tomllib.loads(manifests()[0]["data"]["grpo.toml"]))
    assert settings.inference.engine == "vllm-server"
    (train,) = manifests()[2]["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in train["volumeMounts"]}
    assert settings.inference.folder in mounts
