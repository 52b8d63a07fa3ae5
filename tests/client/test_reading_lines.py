"""How a signature becomes a command of click: kinds of values, what the function gets, what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import platformdirs
import pytest
from wander_client.errors import UsageError
from wander_client.main import CommandLine
from wander_client.settings import load_settings
from wander_client.terminal.command import Argument, Command, CommandGroup, Option, Typed, explain_usage
from wander_client.terminal.output import Output


@dataclass(frozen=True)
class Wishes:
    """Options that several commands share."""

    level: Annotated[Literal["low", "high"], Option(help="how")] = "low"
    near: Annotated[bool | None, Option("--near/--far")] = None


def show(
    typed: Typed,
    run: Annotated[str, Argument(help="a run")],
    more: Annotated[list[Path] | None, Argument()] = None,
    limit: Annotated[int, Option("-n", "--limit", min=1, max=9)] = 3,
    share: Annotated[float | None, Option(min=0)] = None,
    where: Annotated[list[str] | None, Option("-w", "--where")] = None,
    quick: Annotated[bool, Option("-f", "--fast")] = False,
    resume: Annotated[str | None, Option(is_flag=False, flag_value="newest")] = None,
    wishes: Wishes = Wishes(),
) -> None:
    """Show a run."""
    seen.update(typed=dict(typed), limit=limit, wishes=wishes, run=run)


seen: dict[str, Any] = {}


def run(command: click.Command, words: list[str]) -> None:
    seen.clear()
    try:
        with command.make_context("show", list(words), obj=CommandLine(Output("plain"))) as ctx:
            command.invoke(ctx)
    except click.UsageError as error:
        raise explain_usage(error, words) from error


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("a -n5", {"run": "a", "limit": 5}),
        ("-n 5 a b c", {"run": "a", "more": [Path("b"), Path("c")], "limit": 5}),
        ("a --limit=5 --limit 6", {"run": "a", "limit": 6}),
        ("a -fn5 -w x --where -y", {"run": "a", "quick": True, "limit": 5, "where": ["x", "-y"]}),
        ("a --far --level high", {"run": "a", "near": False, "level": "high"}),
        ("--resume -f -- -a", {"resume": "newest", "quick": True, "run": "-a"}),
        ("a --resume=b", {"run": "a", "resume": "b"}),
        ("a --resume", {"run": "a", "resume": "newest"}),
        ("- --share 1e-3", {"run": "-", "share": 0.001}),
        ("a --where= ", {"run": "a", "where": [""]}),
    ],
)
def test_a_command_line_is_parsed(words: str, typed: dict[str, Any], home: Path) -> None:
    run(Command(show), words.split())
    assert seen["typed"] == typed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "RUN"),
        ("a -n", "-n"),
        ("a -n x", "-n"),
        ("a -n 10", "-n"),
        ("a --limit 10", "--limit"),
        ("a --limit=0", "--limit"),
        ("a --share -1", "--share"),
        ("a --share nan", "--share"),
        ("a --fast=1", "--fast"),
        ("a -fx", "-x"),
        ("a --level middle", "--level"),
    ],
)
def test_a_parsing_error_names_the_typed_text(words: str, named: str, home: Path) -> None:
    with pytest.raises(UsageError) as refused:
        run(Command(show), words.split())
    assert named in str(refused.value)
    assert not {"-n", "--limit", "-f"} & ({*str(refused.value).replace("`", " ").split()} - {named})
    assert refused.value.hint
    assert seen == {}


def test_the_function_gets_defaults_and_shared_options(home: Path) -> None:
    run(Command(show), ["a", "--near"])
    assert seen == {"typed": {"run": "a", "near": True}, "limit": 3, "wishes": Wishes(near=True), "run": "a"}


def test_a_group_finds_its_commands(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = CommandGroup("Things.")
    group.command()(show)
    with pytest.raises(click.exceptions.Exit):
        run(group, ["--help"])
    assert "  show  show a run" in capsys.readouterr().out
    with pytest.raises(UsageError) as refused:
        run(group, ["sho"])
    assert (refused.value.code, refused.value.hint) == ("unknown_command", "did you mean `show`?")


@pytest.mark.parametrize(
    "given", [{}, {"XDG_CONFIG_HOME": "/a"}, {"XDG_DATA_HOME": "b", "XDG_CACHE_HOME": ""}]
)
def test_folders_follow_the_conventions_of_the_platform(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.delenv(f"WANDER_{kind}_DIR", raising=False)
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = load_settings()
    assert found.config_dir == platformdirs.user_config_path("wander")
    assert found.data_dir == platformdirs.user_data_path("wander")
    assert found.cache_dir == platformdirs.user_cache_path("wander")
    assert found.state_dir == platformdirs.user_state_path("wander")
