"""The frame of the command: exit statuses, common options, help, unknown words, import cost."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import click
import httpx
import pytest
from command_line import Wander
from wander.errors import (
    ArgumentsRefused,
    AuthenticationFailed,
    ConfigError,
    EndpointUnreachable,
    LoadError,
    MissingExtra,
    RunError,
)
from wander.evals.export import Format
from wander.train.watch import plots
from wander.wire import TOKEN_SCOPES, Role
from wander.wire.environments import VerificationLevel
from wander_client import errors
from wander_client.commands import COMMANDS, FIRST_SCREEN, GROUPS, LazyGroup, load
from wander_client.context import current
from wander_client.failures import explain
from wander_client.main import main
from wander_client.packages.scaffold import KINDS

GROUPED = [name for name in COMMANDS if " " in name]
ROWS = r"(?m)^  (\S+) {2,}\S"
"""Rows of a list of commands."""


def test_the_first_screen_lists_a_dozen_commands_and_then_the_groups(wander: Wander) -> None:
    result = wander("--help")
    assert (result.status, result.err) == (0, "")
    first, _, rest = result.out.partition("\nCommands:\n")[2].partition("\n\nMore:\n")
    assert re.findall(ROWS, first) == [*FIRST_SCREEN]
    assert len(FIRST_SCREEN) == 11
    more = re.findall(ROWS, rest)
    single = {name for name in COMMANDS if " " not in name}
    assert more[: len(GROUPS)] == list(GROUPS)
    assert set(more) == set(GROUPS) | single - set(FIRST_SCREEN)
    assert len(result.out.splitlines()) <= 45


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(group: str, wander: Wander) -> None:
    shown = wander(group, "--help")
    assert shown.status == 0
    assert wander("help", group).out == shown.out
    rows = dict(re.findall(r"(?m)^  (\S+) {2,}(\S.*)$", shown.out.partition("\nCommands:\n")[2]))
    own = {name: entry.summary for name, entry in COMMANDS.items() if name.startswith(f"{group} ")}
    assert rows == {name.partition(" ")[2]: summary for name, summary in own.items()}
    assert wander(group, "--help", "--json").data["help"] == shown.out.rstrip("\n")


def test_each_command_is_in_one_group_with_one_location() -> None:
    assert {name.partition(" ")[0] for name in GROUPED} == set(GROUPS)
    assert len({entry.location for entry in COMMANDS.values()}) == len(COMMANDS)


def test_json_schemas_are_named_after_their_commands(wander: Wander) -> None:
    assert wander("env", "list", "--json").json["schema"] == "wander.env-list/1"
    assert wander("runs", "--json").json["schema"] == "wander.runs-list/1"


def test_a_group_with_a_default_command_runs_without_a_subcommand(wander: Wander) -> None:
    shown = wander("runs", "list", "--json").json
    for words in (["runs"], ["runs", "--limit", "3"], ["--plain", "runs"]):
        assert wander(*words, "--json").json == shown
    assert wander("env").out == wander("env", "--help").out


def test_an_unknown_subcommand_gets_a_suggestion(wander: Wander) -> None:
    error = wander("runs", "compar", "--json").json["error"]
    assert (error["code"], error["hint"]) == ("unknown_command", "did you mean `compare`?")


def test_no_arguments_show_the_help(wander: Wander) -> None:
    assert wander().out == wander("--help").out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example_and_the_common_options(name: str, wander: Wander) -> None:
    assert isinstance(load(name), click.Command)
    result = wander(*name.split(), "--help")
    assert result.status == 0
    assert f"wander {name}" in result.out
    assert "--json" in result.out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_summaries_of_subcommands_are_not_cut(name: str, wander: Wander) -> None:
    assert "..." not in wander(*name.split(), "--help").out.partition("\nCommands:\n")[2]


def test_subcommands_of_runs_are_listed_in_the_order_of_use(wander: Wander) -> None:
    shown = wander("runs", "--help").out.partition("\nCommands:\n")[2]
    assert re.findall(ROWS, shown)[:3] == ["list", "search", "show"]


def test_an_error_of_a_subcommand_points_to_its_help(wander: Wander) -> None:
    result = wander("runs", "withdraw", "RUN")
    assert (result.status, "missing option `--reason`" in result.err) == (2, True)
    assert "hint: run `wander runs withdraw --help`" in result.err


def test_a_value_outside_of_the_choices_is_explained(wander: Wander) -> None:
    result = wander("leaderboard", "acme/wordle", "--level", "best")
    assert result.status == 2
    assert "`--level best` is unknown" in result.err
    assert "use `complete`, `rescored` or `replayed`" in result.err


@pytest.mark.parametrize(
    ("words", "option", "known"),
    [
        ("env owner add", "role", get_args(Role)),
        ("auth token new", "scope", TOKEN_SCOPES),
        ("runs list", "level", get_args(VerificationLevel)),
        ("runs export", "format", get_args(Format)),
        ("runs plot", "across", get_args(plots.Across)),
        ("new", "kind", tuple(KINDS)),
    ],
)
def test_the_choices_of_options_are_those_of_the_values_that_they_become(
    words: str, option: str, known: tuple[str, ...]
) -> None:
    command: click.Command = LazyGroup()
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    (choices,) = [param.type.choices for param in command.params if param.name == option]  # type: ignore[attr-defined]
    assert tuple(choices) == known


def test_an_error_names_the_flag_that_was_typed(wander: Wander) -> None:
    assert "error: `-n`: " in wander("eval", "acme/wordle", "-m", "x", "-n", "0").err
    assert "error: `--num-examples`: " in wander("eval", "acme/wordle", "--num-examples=0").err


def test_help_works_as_a_command_and_as_an_option(wander: Wander) -> None:
    assert wander("help", "search").out == wander("search", "--help").out


def test_version_as_text_and_as_json(wander: Wander) -> None:
    assert wander("--version").out == "wander 0.1.0\n"
    result = wander("--version", "--json")
    assert result.json["schema"] == "wander.version/1"
    assert result.data["wander"] == "0.1.0"


def test_the_exit_codes_are_documented_and_unique(wander: Wander) -> None:
    result = wander("help", "exit-codes", "--json")
    assert [row["code"] for row in result.data["exit_codes"]] == [0, 1, 2, 3, 4, 5, 6, 130]
    assert wander("help", "exit-codes").out.count("\n") == 8


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ClientError("x"), 1, "failed"),
        (errors.UsageError("x"), 2, "usage"),
        (errors.NotFound("x"), 3, "not_found"),
        (errors.LoginRequired("x"), 4, "login_required"),
        (errors.Unavailable("x"), 5, "unavailable"),
        (errors.Interrupted("x"), 130, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (LoadError("x"), 1, "load_error"),
        (RunError("x"), 1, "run_error"),
        (ConfigError("x"), 2, "config_error"),
        (ArgumentsRefused("x"), 1, "arguments_refused"),
        (MissingExtra("train", needed_for="training"), 1, "missing_extra"),
        (AuthenticationFailed("x"), 4, "authentication_failed"),
        (EndpointUnreachable("x"), 5, "endpoint_unreachable"),
        (httpx.ConnectError("x"), 5, "unavailable"),
        (FileNotFoundError(errno.ENOENT, "no such file", "a.txt"), 3, "file_not_found"),
        (OSError(errno.ENOSPC, "No space left on device", "a.txt"), 1, "disk_full"),
        (PermissionError(errno.EACCES, "denied", "a.txt"), 1, "permission_denied"),
        (OSError(errno.EADDRINUSE, "Address already in use"), 1, "port_taken"),
    ],
)
def test_every_kind_of_error_has_its_exit_status_and_code(
    error: BaseException, status: int, code: str
) -> None:
    explained = explain(error)
    assert (explained.status, explained.code) == (status, code)


def test_an_error_about_a_missing_extra_prints_the_installation_command() -> None:
    assert "wander-sdk[train]" in str(explain(MissingExtra("train", needed_for="training")).hint)


def test_an_internal_error_writes_its_traceback_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDER_STATE_DIR", str(tmp_path))
    try:
        raise ZeroDivisionError("oh")
    except ZeroDivisionError as error:
        explained = explain(error)
    assert explained.code == "internal"
    (log,) = (tmp_path / "crashes").iterdir()
    assert log.stat().st_mode & 0o777 == 0o600
    assert "ZeroDivisionError: oh" in log.read_text()
    assert str(log) in str(explained.hint)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["evla"], "did you mean `eval`"),
        (["instal"], "did you mean `install`"),
        (["zzz"], "run `wander --help`"),
        (["help", "exit-code"], "did you mean `help exit-codes`"),
        (["compar"], "did you mean `runs compare`"),
        (["whoam"], "did you mean `auth whoami`"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(words: list[str], part: str, wander: Wander) -> None:
    result = wander(*words)
    assert result.status == 2
    assert result.out == ""
    assert part in result.err


def test_an_abbreviated_option_gets_a_suggestion(wander: Wander) -> None:
    assert "did you mean `--num-examples`?" in wander("eval", "x", "--num", "5").err


def test_an_unknown_option_is_a_usage_error_with_a_hint(wander: Wander) -> None:
    result = wander("search", "--ownr", "me")
    assert result.status == 2
    assert result.err.startswith("error: unknown option `--ownr`")
    assert "hint: did you mean `--owner`?" in result.err
    assert wander("search", "--ownr", "me", "--json").json["error"]["code"] == "usage"


@pytest.mark.parametrize(
    ("words", "mode", "hub"),
    [
        (["search", "--json"], "json", "https://one"),
        (["--json", "-q", "search"], "json", "https://one"),
        (["-q", "search", "tic"], "quiet", "https://one"),
        (["--hub=https://h", "search"], "plain", "https://h"),
        (["search", "tic", "--hub", "https://h"], "plain", "https://h"),
        (["search", "--", "--json"], "plain", "https://one"),
        (["--hub", "https://g", "search", "--hub", "https://h"], "plain", "https://h"),
    ],
)
def test_common_options_work_before_and_after_the_command(
    words: list[str], mode: str, hub: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        here = current()
        seen.update(mode=here.output.mode, hub=f"{request.url.scheme}://{request.url.host}")
        return httpx.Response(200, json={"data": [], "next": None})

    monkeypatch.setenv("WANDER_HUB", "https://one")
    main(words, transport=httpx.MockTransport(answer))
    assert seen == {"mode": mode, "hub": hub}


@pytest.mark.parametrize("words", [["search", "--hub"], ["search", "--hub", "--json"], ["--color", "red"]])
def test_invalid_values_of_common_options_are_rejected(words: list[str], wander: Wander) -> None:
    assert wander(*words).status == 2


def test_debug_shows_the_traceback(wander: Wander) -> None:
    assert "Traceback" in wander("zzz", "--debug").err
    assert "Traceback" not in wander("zzz").err


def test_the_help_imports_nothing_heavy() -> None:
    heavy = ("rich", "httpx", "pydantic", "wander", "torch", "uv", "platformdirs")
    code = (
        "import sys; from wander_client.main import main; main(['--help']); "
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_python_m_is_the_command_and_its_status_is_the_exit_status() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wander_client", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_main_resets_the_invocation_when_it_returns(wander: Wander) -> None:
    wander("env", "list")
    with pytest.raises(RuntimeError, match="no command is running"):
        current()


def test_a_closed_pipe_causes_no_traceback() -> None:
    code = "from wander_client.main import main; import sys; sys.exit(main(['--help']))"
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{code}" | true; :'], capture_output=True, text=True, check=True
    )
    assert "Traceback" not in done.stderr


def test_the_status_is_an_int(home: Path) -> None:
    assert main(["--version"]) == 0
