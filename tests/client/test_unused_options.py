"""Options that a command would ignore are refused, with the option and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Wander

SOLVER = ("-m", "scripted:say_env:solver")
ENVIRONMENT = ("eval", "./say-env", *SOLVER)

REFUSED = [
    ("`--allow-changed-code` requires `--resume`", (*ENVIRONMENT, "--allow-changed-code")),
    ("`-b` applies to models at an endpoint", (*ENVIRONMENT, "-b", "http://127.0.0.1:1/v1")),
    (
        "`--fail-under` does not apply to an exhaustive evaluation",
        (*ENVIRONMENT, "--set", "exhaustive=true", "--fail-under", "0.5"),
    ),
    (
        "`exhaustive` does not apply to suites",
        (*ENVIRONMENT, "-m", "scripted:say_env:wrong", "--set", "exhaustive=true"),
    ),
    (
        "`--only-failed` does not apply to suites",
        (*ENVIRONMENT, "-m", "scripted:say_env:wrong", "--resume", "suite", "--only-failed"),
    ),
    ("`--worker-token-file` requires a worker address", (*ENVIRONMENT, "--worker-token-file", "token")),
    ("`-b` applies to models at an endpoint", ("runs", "rerun", "mine", "-b", "http://127.0.0.1:1/v1")),
    (
        "`--key-variable` applies to models at an endpoint",
        ("runs", "rerun", "mine", "--key-variable", "ANOTHER_KEY"),
    ),
    ("`--seed` is the seed of a sample", ("runs", "replay", "mine", "--seed", "3")),
    ("`--no-lock` applies to the pinned", ("runs", "replay", "mine", "--env", "say-env", "--no-lock")),
    ("`--stream` requires `--json`", ("runs", "replay", "mine", "--stream")),
    ("`--sample` cannot be used with `--cancel`", ("runs", "verify", "mine", "--cancel", "--sample", "3")),
    ("`--wait` cannot be used with `--cancel`", ("runs", "verify", "mine", "--cancel", "--no-wait")),
    ("`--failed` selects rows of the list", ("view", "mine", "--rollout", "0", "--failed")),
    ("`--limit` selects rows of the list", ("view", "mine", "--rollout", "0", "--limit", "3")),
    ("`--near` drops duplicates", ("runs", "data", "mine", "-o", "x", "--near", "--keep-repeats")),
    ("`--days` cannot be used with", ("auth", "token", "new", "ci", "--days", "3", "--never-expires")),
    ("`--wait` requires `--token-file`", ("login", "--token-stdin", "--wait", "3")),
    (
        "`--exclude-newer` applies to the lock",
        ("publish", "say-env", "--no-lock", "--exclude-newer", "2026-01-01"),
    ),
    (
        "`--pass-env` applies while the package is loaded",
        ("env", "import", "path", "say-env", "--dry-run", "--no-check", "--pass-env", "HOME"),
    ),
    (
        "`--player` applies to new rollouts",
        ("model", "new", "tiny", "-o", "x", "--transcripts", "mine", "--player", "scripted:say_env:solver"),
    ),
    ("`--metrics` does not apply to `--csv`", ("leaderboard", "acme/wordle", "--csv", "-", "--metrics")),
    ("`--verify` and `--resume`", ("train", "./say-env", "--verify", "a", "--resume", "b")),
]


@pytest.mark.parametrize(("message", "words"), REFUSED, ids=[" ".join(words[:4]) for _, words in REFUSED])
def test_an_option_without_an_effect_is_rejected(
    wander: Wander, folder: Path, home: Path, message: str, words: tuple[str, ...]
) -> None:
    (home / "token").write_text("a-token-of-the-tests\n")
    if "mine" in words:
        assert wander(*ENVIRONMENT, "-n", "2", "--out", "mine").status == 0
    if "suite" in words:
        models = (*ENVIRONMENT, "-m", "scripted:say_env:wrong", "-n", "1")
        assert wander(*models, "--out", "suite").status == 0
    result = wander(*words)
    assert result.status == 2, result.err
    assert message in result.err
    assert "hint: " in result.err


def test_a_resumed_run_keeps_its_folder(wander: Wander, folder: Path, home: Path) -> None:
    models = (*ENVIRONMENT, "-m", "scripted:say_env:wrong", "-n", "1")
    assert wander(*models, "--out", "suite").status == 0
    moved = wander("eval", "--resume", "suite", "--out", "elsewhere")
    assert (moved.status, "the resumed run is in `suite`" in moved.err) == (2, True), moved.err
    assert wander("eval", "--resume", "suite", "--out", "suite").status == 0
    assert wander(*ENVIRONMENT, "-n", "1", "--out", "mine").status == 0
    two = wander("eval", *SOLVER, "-m", "scripted:say_env:wrong", "--resume", "mine")
    assert (two.status, "`mine` is a run of one model" in two.err) == (2, True), two.err


def test_a_limit_prints_a_list(wander: Wander, folder: Path, home: Path) -> None:
    assert wander(*ENVIRONMENT, "-n", "5", "--out", "mine").status == 0
    assert len(wander("view", "mine", "--limit", "2", "--json").data["rollouts"]) == 2
