"""`wander publish` checks what it sends, and the hub is told what the check found."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ENVIRONMENT, HubRoom, Wander
from package_mirror import build_mirror
from wander.checks.report import CHECKS, CheckReport, check_result
from wander.wire.environments import MESSAGE_LENGTH
from wander_client.packages.built_package import summary_of

BROKEN = Path(__file__).parent.parent / "sdk" / "broken_environments"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "say-env"
version = "0.1.0"
description = "Say a number."
readme = "README.md"
dependencies = ["wander-sdk"]

[project.entry-points."wander.environments"]
say-env = "say_env:load_environment"

[tool.hatch.build.targets.wheel]
only-include = ["say_env.py"]
"""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_mirror(tmp_path_factory.mktemp("mirror"), ["hatchling", "wander-sdk"])


@pytest.fixture
def publisher(hub: HubRoom, mirror: str, monkeypatch: pytest.MonkeyPatch) -> HubRoom:
    """A hub, and a machine that is logged in and builds with what the mirror has."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    monkeypatch.setenv("UV_DEFAULT_INDEX", mirror)
    return hub


@pytest.fixture
def package(folder: Path) -> Path:
    """An environment without a license and without rows of its own for each split: two warnings, no fault."""
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "README.md").write_text("# say-env\n\n" + "Say the number that the question names. " * 10)
    return folder


def stored(publisher: HubRoom) -> dict | None:
    return publisher.http.get("/api/v1/environments/admin/say-env/versions/0.1.0").json()["check"]


@pytest.mark.full
def test_check_results_are_published_and_shown(publisher: HubRoom, package: Path) -> None:
    sent = publisher.wander("publish", str(package), "--no-lock", "--json")
    assert sent.status == 0, sent.out
    check = sent.data["check"]
    assert stored(publisher) == check
    assert (check["failed"], check["warned"]) == (0, 2)
    assert sum(check[name] for name in ("passed", "warned", "failed", "skipped")) == len(CHECKS)
    warned = [each["id"] for each in check["findings"] if each["status"] == "warn"]
    assert warned == ["package.license", "dataset.splits"]
    assert str(package) not in str(check), "the hub is not told where the publisher keeps files"
    shown = publisher.wander("env", "info", "admin/say-env").out
    assert "checked by the publisher with wander" in shown
    assert "warn package.license" in shown
    assert publisher.wander("env", "info", "admin/say-env", "--json").data["version"]["check"] == check
    again = publisher.wander("publish", str(package), "--no-lock", "--json").data
    assert (again["check"], [file["sent"] for file in again["files"]]) == (None, [False, False])


@pytest.mark.full
def test_a_broken_environment_is_published_only_with_an_option(publisher: HubRoom, package: Path) -> None:
    (package / "say_env.py").write_text((BROKEN / "hash_rows.py").read_text())
    refused = publisher.wander("publish", str(package))
    assert refused.status == 1
    assert "say_env.py" in refused.err, "what would have been sent is shown"
    assert "dataset.stable: " in refused.err
    assert f"`wander check {package}`" in refused.err
    assert "`--no-check` publishes it anyway" in refused.err
    error = publisher.wander("publish", str(package), "--dry-run", "--json").json["error"]
    assert (error["code"], "dataset.stable: " in error["detail"]) == ("check_failed", True)
    assert publisher.http.get("/api/v1/environments").json()["data"] == []
    sent = publisher.wander("publish", str(package), "--no-check", "--no-lock", "--json")
    assert (sent.status, sent.data["check"], stored(publisher)) == (0, None, None)
    shown = publisher.wander("env", "info", "admin/say-env").out
    assert "not checked" in shown


WITH_WORDS = "from pathlib import Path\n" + ENVIRONMENT.replace(
    "    rows =", '    assert Path(__file__).with_name("words.txt").read_text()\n    rows ='
)


@pytest.mark.full
def test_missing_data_files_are_found_before_publication(publisher: HubRoom, package: Path) -> None:
    (package / "say_env.py").write_text(WITH_WORDS)
    (package / "words.txt").write_text("ace\n")
    assert publisher.wander("check", str(package)).status == 0, "the folder has the file"
    error = publisher.wander("publish", str(package), "--no-lock", "--json").json["error"]
    assert error["code"] == "check_failed"
    assert "load.works: " in error["detail"]
    assert "words.txt" in error["detail"]
    assert error["detail"].endswith("missing in the wheel: words.txt")
    assert publisher.http.get("/api/v1/environments").json()["data"] == []
    settings = package / "pyproject.toml"
    settings.write_text(settings.read_text().replace('["say_env.py"]', '["say_env.py", "words.txt"]'))
    sent = publisher.wander("publish", str(package), "--no-lock", "--json")
    assert (sent.status, sent.data["check"]["failed"]) == (0, 0), sent.out


@pytest.mark.full
@pytest.mark.parametrize("lock", [(), ("--no-lock",)])
def test_an_undeclared_dependency_is_found_before_publication(
    lock: tuple[str, ...], publisher: HubRoom, package: Path
) -> None:
    (package / "say_env.py").write_text("import hatchling\n" + ENVIRONMENT)  # which this Python has
    assert publisher.wander("check", str(package)).status == 0
    error = publisher.wander("publish", str(package), *lock, "--json").json["error"]
    assert error["code"] == "check_failed"
    assert "`hatchling`" in error["detail"]
    assert "the `dependencies` of `pyproject.toml`" in error["hint"]
    settings = package / "pyproject.toml"
    settings.write_text(settings.read_text().replace('["wander-sdk"]', '["wander-sdk", "hatchling"]'))
    sent = publisher.wander("publish", str(package), *lock, "--json")
    assert (sent.status, sent.data["lock"] is None) == (0, bool(lock)), sent.out


@pytest.mark.full
def test_an_unloadable_name_is_found_before_publication(publisher: HubRoom, package: Path) -> None:
    settings = package / "pyproject.toml"
    (package / "say_env.py").rename(package / "other.py")
    text = settings.read_text().replace("say_env.py", "other.py").replace("say_env:", "other:")
    settings.write_text(text.replace("say-env = ", "another = "))
    assert publisher.wander("check", str(package)).status == 0
    error = publisher.wander("publish", str(package), "--no-lock", "--json").json["error"]
    assert "there is no environment `say-env` here" in error["detail"]


@pytest.mark.full
def test_a_dry_run_checks_without_a_hub(publisher: HubRoom, package: Path, wander: Wander) -> None:
    check_result = wander("publish", str(package), "--dry-run", "--hub", "http://127.0.0.1:9")
    assert check_result.status == 0, check_result.err
    assert "checking the folder instead of the installed wheel" in check_result.err
    assert "wander check: " in check_result.err
    assert " passed, 2 warnings" in check_result.err
    assert "instead of the installed wheel" not in publisher.wander("publish", str(package), "--dry-run").err


@pytest.mark.full
def test_changed_files_of_a_version_are_rejected_before_the_check(publisher: HubRoom, package: Path) -> None:
    assert publisher.wander("publish", str(package), "--no-check", "--no-lock").status == 0
    (package / "say_env.py").write_text(ENVIRONMENT + "\n")
    refused = publisher.wander("publish", str(package))
    assert (refused.status, "checking" in refused.err) == (1, False)
    assert "already exists with different content" in refused.err


def test_check_messages_are_cut_and_cleaned_for_the_hub() -> None:
    found = [check_result(check, "warn", "\ud800" * 9_000) for check in CHECKS]
    report = CheckReport(schema="wander.check/1", target="x", checks=found)
    text = summary_of(report).model_dump_json()
    assert len(text.encode()) < 64 * 1024
    assert MESSAGE_LENGTH * "?" in text


@pytest.mark.full
def test_attestations_are_uploaded_and_the_result_is_printed(
    publisher: HubRoom, package: Path, home: Path
) -> None:
    signed = home / "signed"
    signed.mkdir()
    words = ("publish", str(package), "--no-check", "--no-lock", "--attestations", str(signed))
    missing = publisher.wander(*words)
    assert missing.status == 2
    wheel, source = "say_env-0.1.0-py2.py3-none-any.whl", "say_env-0.1.0.tar.gz"
    assert f"has no attestation of `{wheel}`" in missing.err
    for name in (wheel, source):
        (signed / f"{name}.publish.attestation").write_text('{"version": 1}')
    (signed / f"{source}.publish.attestation").write_text("[")
    assert "is not an attestation" in publisher.wander(*words).err
    (signed / f"{source}.publish.attestation").write_text('{"version": 1}')
    sent = publisher.wander(*words)
    assert sent.status == 0, sent.err
    assert f"`{wheel}`: attestations are only accepted from trusted publishers" in sent.err
