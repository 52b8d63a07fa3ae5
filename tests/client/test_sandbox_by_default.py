"""Which environments are confined if nobody says so, and what is said of those that are not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wander.sandbox.support as support
from command_line import Wander
from sandboxes import needs_sandbox
from wander.sandbox import SandboxPolicy
from wander.train.phases import GRPOPhase
from wander_client.context import CommonOptions, Invocation
from wander_client.environments.location import Location
from wander_client.environments.sandbox import confines, warn_unconfined
from wander_client.errors import UsageError
from wander_client.evaluate.settings import settings_for
from wander_client.settings import Settings, load_settings
from wander_client.terminal.output import Output
from wander_client.training.phases import PhasedCommand, confine_mixture
from wander_client.training.run import TrainingCommand


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A machine that can confine; how often it was tried."""
    tried: list[None] = []
    made = support.Support(
        "/usr/bin/bwrap", ("/usr/bin/bwrap",), {}, (0, 12, 0), support.MACHINES["x86_64"], False
    )
    monkeypatch.setattr(support, "require_support", lambda: made)
    monkeypatch.setattr(support, "find_fault", lambda: tried.append(None))
    return tried


def settings(**fields: Any) -> Settings:
    return dataclasses.replace(load_settings(), **fields)


CASES: list[tuple[dict[str, Any], bool]] = [
    ({"spec": "acme/env"}, True),
    ({"spec": "acme/env@1.0"}, True),
    ({"spec": "acme/env", "model": "gpt-x"}, True),
    ({"spec": "acme/env", "model": "scripted:env:solver"}, False),
    ({"spec": "./env"}, False),
    ({"spec": "/srv/env"}, False),
    ({"spec": "~/env"}, False),
    ({"spec": "acme/env", "elsewhere": True}, False),
    ({"spec": "acme/env", "in_process": True}, False),
]


@pytest.mark.parametrize(("asked", "confined"), CASES)
def test_environments_of_a_hub_run_in_the_sandbox(
    asked: dict[str, Any], confined: bool, home: Path, able: list[None]
) -> None:
    assert confines(settings(), **asked) is confined
    assert confines(settings(sandbox=True), **asked) is True
    assert confines(settings(sandbox=False), **asked) is False


def test_sandbox_support_is_tested_once(home: Path, able: list[None]) -> None:
    for _ in range(3):
        assert confines(settings(), "acme/env")
    assert len(able) == 1


def test_a_machine_without_sandbox_support_uses_no_sandbox(
    home: Path, monkeypatch: pytest.MonkeyPatch, able: list[None]
) -> None:
    monkeypatch.setattr(support, "find_fault", lambda: "user namespaces are forbidden")
    assert not confines(settings(), "acme/env")

    def lacking() -> None:
        raise support.SandboxError("bubblewrap is not installed")

    monkeypatch.setattr(support, "require_support", lacking)
    assert not confines(settings(), "acme/env")


@needs_sandbox
def test_support_is_tested_by_creating_a_sandbox() -> None:
    support.find_fault.cache_clear()
    assert support.find_fault() is None


@pytest.mark.parametrize(
    ("said", "policy"),
    [
        ({}, SandboxPolicy()),
        ({"sandbox": False}, None),
        ({"sandbox": True}, SandboxPolicy()),
        ({"worker_addresses": ["tcp://127.0.0.1:7100"]}, None),
        ({"sandbox": ["memory=1G"]}, SandboxPolicy(memory=1 << 30)),
    ],
)
def test_a_resumed_evaluation_keeps_its_sandbox(
    said: dict[str, Any], policy: SandboxPolicy | None, home: Path, able: list[None]
) -> None:
    made = settings_for({"environment": "acme/env", "model": "m", **said}, settings())
    assert made.sandbox == policy


def test_a_requested_sandbox_is_required(home: Path, able: list[None]) -> None:
    said = {"environment": "acme/env", "model": "m", "worker_addresses": ["tcp://127.0.0.1:7100"]}
    for more, own in (({"sandbox": True}, None), ({"sandbox": ["memory=1G"]}, None), ({}, True)):
        with pytest.raises(UsageError):
            settings_for({**said, **more}, settings(sandbox=own))


def installed(label: str, hub: str) -> Location:
    owner, _, name = label.partition("/")
    record: Any = SimpleNamespace(record=SimpleNamespace(owner=owner, name=name, hub=hub))
    return Location(label, name, Path("/python"), installed=record)


def test_running_without_a_sandbox_is_reported_once(home: Path) -> None:
    for location, lines in (
        (installed("acme/env", "https://hub"), 1),
        (installed("acme/env", "https://hub"), 0),
        (installed("acme/env", "https://other"), 1),
        (installed("acme/two", "https://hub"), 1),
        (Location("./env", "env", Path("/python"), folder=home), 0),
    ):
        here = Invocation(CommonOptions(), Output("quiet"))
        warn_unconfined(here, location)
        assert len(here.output.warnings) == lines
        assert all("--sandbox" in line for line in here.output.warnings)


def test_without_a_writable_folder_the_warning_is_repeated(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "taken").touch()
    monkeypatch.setenv("WANDER_STATE_DIR", str(home / "taken"))
    for _ in range(2):
        here = Invocation(CommonOptions(), Output("quiet"))
        warn_unconfined(here, installed("acme/env", "https://hub"))
        assert len(here.output.warnings) == 1


@pytest.mark.parametrize("value", ["maybe", "2", '"yes"'])
def test_a_setting_is_true_or_false(value: str, wander: Wander, home: Path) -> None:
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text(f"sandbox = {value}\n")
    assert wander("runs", "--json").status == 2


@pytest.mark.parametrize(
    ("names", "stated", "confined"),
    [
        ([None, "acme/env@1.0"], None, True),
        ([None, "acme/env@1.0"], True, True),
        ([None, "/srv/env"], None, False),
        ([None], None, False),
        ([], None, False),
        ([None, "acme/env@1.0"], False, False),
    ],
)
@pytest.mark.parametrize("is_phased", [False, True])
def test_a_mixture_with_a_hub_environment_runs_in_the_sandbox(
    names: list[str | None],
    stated: bool | None,
    confined: bool,
    is_phased: bool,
    home: Path,
    able: list[None],
) -> None:
    mixed = [{"name": name, "label": str(number)} for number, name in enumerate(names)]
    plain = TrainingCommand.model_validate(
        {
            "environment": "/srv/own",
            "label": "own",
            "settings": {"model": {"path": "/m"}, "environments": mixed},
        }
    )
    command = plain
    if is_phased:
        phase = GRPOPhase(name="only", kind="grpo", settings=plain.settings)
        command = PhasedCommand(environment="/srv/own", label="own", phases=[phase])
    found = confine_mixture(settings(sandbox=stated), command)
    assert (found.sandbox is not None) is confined
    assert found.model_copy(update={"sandbox": None}) == command
