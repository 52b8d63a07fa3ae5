"""`--sandbox` on the command line: where it is chosen, what is recorded, and every refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Wander
from sandboxes import needs_sandbox

MODEL = "scripted:say_env:solver"


@needs_sandbox
def test_the_sandbox_of_an_evaluation_is_recorded(folder: Path, home: Path, wander: Wander) -> None:
    words = ["eval", "./say-env", "-m", MODEL, "-n", "2", "--sandbox-limit", "memory=1G", "--out", "run"]
    result = wander(*words)
    assert result.status == 0, result.err
    assert "runs outside the sandbox" in result.err
    pin = json.loads((home / "run" / "run.json").read_text())["environment"]["sandbox"]
    assert pin["tier"] == "bubblewrap"
    assert pin["limits"]["memory"] == 1 << 30
    assert len(pin["profile_sha256"]) == 64
    again = wander("eval", "--resume", "run", "--sandbox-limit", "memory=2G")
    assert again.status == 2
    assert 'the run has `{"memory": 1073741824}`' in again.err
    assert wander("eval", "--resume", "run", "--sandbox-limit", "memory=1G").status == 0


@needs_sandbox
def test_rollouts_are_played_in_the_sandbox(folder: Path, home: Path, wander: Wander) -> None:
    module = folder / "say_env.py"
    module.write_text(
        module.read_text() + "\nimport os\nprint('confined by', os.environ['WANDER_CONFINED'])\n"
    )
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text("sandbox = true\n")
    failed = wander("eval", "./say-env", "-m", MODEL, "-n", "1", "--no-sandbox")
    assert failed.status == 1
    assert "KeyError" in failed.err
    result = wander("check", "--help")
    assert result.status == 0


@needs_sandbox
def test_the_self_test_describes_the_sandbox(wander: Wander) -> None:
    data = wander("sandbox", "check", "--json").data
    assert data["memory_bound"] in ("cgroup", "process")
    shown = wander("sandbox", "check")
    assert (shown.status, f"sha256:{data['profile_sha256'][:12]}" in shown.out) == (0, True)


def test_without_bubblewrap_nothing_of_the_environment_runs(
    folder: Path, home: Path, wander: Wander, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = folder / "say_env.py"
    module.write_text(module.read_text() + f"\nopen({str(home / 'ran')!r}, 'w').close()\n")
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *rest: None if name == "bwrap" else which(name, *rest))
    monkeypatch.setattr("wander.sandbox.support.PACKAGE", "no_such_package")
    monkeypatch.setenv("WANDER_SANDBOX", "1")
    monkeypatch.setattr("sys.platform", "linux")
    result = wander("eval", "./say-env", "-m", "name", "-b", "http://127.0.0.1:9/v1", "-n", "1")
    assert result.status == 1
    assert "bubblewrap is not installed" in result.err
    assert "apt install bubblewrap" in result.err
    assert not (home / "ran").exists()
    assert wander("sandbox", "check").status == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--sandbox", "--set", "in_process=true"], "cannot be used together"),
        (["--no-sandbox", "--sandbox-limit", "memory=1G"], "cannot be used together"),
        (["--sandbox-limit", "memry=1G"], "`memry=1G` is not a limit of the sandbox"),
        (["--sandbox-limit", "memory=none"], "needs a number"),
    ],
)
def test_contradictory_sandbox_options_are_rejected(
    words: list[str], part: str, folder: Path, wander: Wander
) -> None:
    result = wander("eval", "./say-env", "-m", MODEL, *words)
    assert result.status == 2
    assert part in result.err


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("", None)])
def test_the_variable_enables_the_sandbox(text: str, value: bool | None, tmp_path: Path) -> None:
    from wander_client.settings import load_settings

    assert (
        load_settings(environ={"WANDER_CONFIG_DIR": str(tmp_path), "WANDER_SANDBOX": text}).sandbox is value
    )


def test_invalid_sandbox_settings_are_rejected(tmp_path: Path) -> None:
    from wander_client.errors import UsageError
    from wander_client.settings import load_settings

    with pytest.raises(UsageError, match="neither true nor false"):
        load_settings(environ={"WANDER_CONFIG_DIR": str(tmp_path), "WANDER_SANDBOX": "maybe"})
    (tmp_path / "settings.toml").write_text('sandbox = "yes"\n')
    with pytest.raises(UsageError, match="neither true nor false"):
        load_settings(environ={"WANDER_CONFIG_DIR": str(tmp_path)})
