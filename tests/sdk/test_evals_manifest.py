"""What pins a run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from wander import Example, SamplingArgs, ScriptedClient
from wander.clients.openai import OpenAIClient
from wander.evals.store.manifest import (
    differences_in_words,
    find_differing_pins,
    git_state,
    model_pin,
    new_manifest,
    new_run_id,
    this_platform,
)
from wander.types import EnvironmentInfo, task_set_digest
from wander.wire import EnvironmentPin, ModelPin, RunManifest

EXAMPLES = [Example(example_id=str(i), index=i, seed=i, prompt=[]) for i in range(3)]
PIN = EnvironmentPin(name="echo", version="1", info=EnvironmentInfo(name="echo", kind="single_turn"))


def manifest(**fields: object) -> RunManifest:
    given = {"environment": PIN, "model": ModelPin(name="m", kind="k"), "examples": EXAMPLES}
    return new_manifest(**(given | fields))  # type: ignore[arg-type]


def test_ids_sort_by_time_and_never_repeat() -> None:
    ids = [new_run_id() for _ in range(5000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {len(one) for one in ids} == {26}
    time.sleep(0.002)
    assert new_run_id() > ids[-1]
    assert set("".join(ids)) <= set("0123456789abcdefghjkmnpqrstvwxyz")


def test_a_manifest_pins_the_task_set_and_reads_back() -> None:
    made = manifest(seed=3, sampling=SamplingArgs(temperature=0.5), rollouts_per_example=2)
    assert made.example_ids == ["0", "1", "2"]
    assert made.task_set_sha256 == task_set_digest(EXAMPLES)
    assert made.expected_rollouts == 6
    assert RunManifest.model_validate_json(made.model_dump_json(by_alias=True)) == made


def test_the_manifest_has_the_description_of_the_client() -> None:
    client = OpenAIClient("m", "http://u:p@localhost:1/v1", "secret")
    pin = model_pin(client)
    assert (pin.name, pin.kind, pin.base_url) == ("m", "OpenAIClient", "http://localhost:1/v1")
    assert "secret" not in pin.model_dump_json()
    assert model_pin(ScriptedClient(["a"])).kind == "ScriptedClient"


def test_additional_facts_about_a_model_are_stored_separately() -> None:
    class Local(ScriptedClient):
        def describe(self) -> dict[str, object]:
            return {
                **super().describe(),
                "weights_sha256": "ab" * 32,
                "chat_template_sha256": "cd" * 32,
                "dtype": "f32",
            }

    pin = model_pin(Local(["a"]))
    assert (pin.weights_sha256, pin.chat_template_sha256, pin.details) == (
        "ab" * 32,
        "cd" * 32,
        {"dtype": "f32"},
    )


def test_the_platform_is_recorded_without_importing_libraries() -> None:
    code = (
        "import sys; from wander.evals.store.manifest import this_platform; made = this_platform();"
        "print(made.packages['torch'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, imported = done.stdout.split()
    assert imported == "False"
    assert version == this_platform().packages["torch"]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_state_of_the_repository_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == (None, None)
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one", "--no-verify")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("x")
    assert git_state(tmp_path) == (commit, False)
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == (commit, True)
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) == (None, None)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({}, []),
        ({"seed": 1}, ["seed"]),
        ({"split": "train"}, ["split"]),
        ({"examples": EXAMPLES[:2]}, ["example_ids", "task_set_sha256"]),
        ({"rollouts_per_example": 4}, ["rollouts_per_example"]),
        ({"sampling": SamplingArgs(max_tokens=5)}, ["sampling.max_tokens"]),
        ({"model": ModelPin(name="n", kind="k", base_url="x")}, ["model.name"]),
        ({"model": ModelPin(name="m", kind="k", base_url="elsewhere")}, []),
        ({"environment": PIN.model_copy(update={"arguments": {"size": 3}})}, ["environment.arguments.size"]),
        ({"environment": PIN.model_copy(update={"wheel_sha256": "a"})}, ["environment.wheel_sha256"]),
        ({"environment": PIN.model_copy(update={"path": "/elsewhere"})}, []),
        ({"notes": "another day"}, []),
    ],
)
def test_differences_that_prevent_resuming_are_named(change: dict[str, object], fields: list[str]) -> None:
    assert find_differing_pins(manifest(), manifest(**change)) == fields


def test_differences_are_described() -> None:
    fields = ["example_ids", "task_set_sha256", "environment.arguments.size", "environment.version", "seed"]
    assert differences_in_words(fields) == (
        "the examples, the environment's arguments, the environment or its version, the seed"
    )
    every = find_differing_pins(manifest(), manifest(seed=1, examples=EXAMPLES[:1]))
    assert "_" not in differences_in_words([*every, "anything.else"])


def test_declared_strata_are_recorded() -> None:
    assert manifest().strata == []
    examples = [one.model_copy(update={"stratum": n}) for one, n in zip(EXAMPLES, (1, None, 0), strict=True)]
    assert manifest(examples=examples).strata == [1, None, 0]


def test_a_lock_pins_a_run_and_without_one_the_packages_do() -> None:
    def pinned(**fields: object) -> RunManifest:
        return manifest(environment=PIN.model_copy(update=fields))

    one = pinned(lock_sha256="a" * 64, packages_sha256="b" * 64)
    assert find_differing_pins(one, pinned(lock_sha256="a" * 64, packages_sha256="c" * 64)) == [], (
        "another platform takes other packages from one lock"
    )
    other = find_differing_pins(one, pinned(lock_sha256="d" * 64, packages_sha256="b" * 64))
    assert other == ["environment.lock_sha256"]
    none = pinned(unlocked="chosen", packages_sha256="b" * 64)
    assert (
        differences_in_words(find_differing_pins(one, none)) == "the packages that the environment runs with"
    )
    assert find_differing_pins(none, pinned(unlocked="none_published", packages_sha256="b" * 64)) == []
    assert find_differing_pins(none, pinned(unlocked="chosen", packages_sha256="c" * 64)) == [
        "environment.packages_sha256"
    ]
