"""How a line is read: flags, values, words that begin with a dash, and what is told of a wrong one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
import pytest
from wander_client.errors import UsageError
from wander_client.settings import load_settings
from wander_client.terminal.command import Argument, CommandGroup, CommandLine, Option, Typed


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
    resume: Annotated[str | None, Option(alone="newest")] = None,
    wishes: Wishes = Wishes(),
) -> None:
    """Show a run."""
    seen.update(typed=dict(typed), limit=limit, wishes=wishes, run=run)


seen: dict[str, Any] = {}
LINE = CommandLine(show)


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
def test_a_line_is_read(words: str, typed: dict[str, Any]) -> None:
    assert LINE.parse(words.split()) == typed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "`RUN` is missing"),
        ("a -n", "`-n` needs a value"),
        ("a -n x", "`--limit x`: a whole number is needed"),
        ("a -n 10", "`--limit 10`: a number from 1 to 9 is needed"),
        ("a --share -1", "`--share -1`: a number of 0 or more is needed"),
        ("a --share nan", "`--share nan`: a number of 0 or more is needed"),
        ("a --fast=1", "`--fast` takes no value"),
        ("a -fx", "there is no option `-x`"),
        ("a --level middle", "`--level middle` is unknown"),
    ],
)
def test_a_wrong_line_is_told(words: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        LINE.run("wander show", words.split(), lambda text: None)
    assert str(refused.value) == said
    assert refused.value.hint


def test_the_function_gets_defaults_and_shared_options() -> None:
    assert LINE.run("wander show", ["a", "--near"], lambda text: None) == 0
    assert seen == {"typed": {"run": "a", "near": True}, "limit": 3, "wishes": Wishes(near=True), "run": "a"}


def test_a_group_leads_to_its_commands() -> None:
    group, shown = CommandGroup("Things."), list[str]()
    group.command()(show)
    assert group.run("wander thing", ["--help"], shown.append) == 0
    assert "  show  Show a run." in shown[0]
    with pytest.raises(UsageError) as refused:
        group.run("wander thing", ["how"], shown.append)
    assert refused.value.hint == "did you mean `show`?"


@pytest.mark.parametrize(
    "given", [{}, {"XDG_CONFIG_HOME": "/a"}, {"XDG_DATA_HOME": "b", "XDG_CACHE_HOME": ""}]
)
def test_the_folders_are_those_of_the_platform(
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
