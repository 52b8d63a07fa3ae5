"""`wander env play`: a person reads what a model reads, answers, and calls the tools that a model would."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Result, Wander
from wander_client.errors import UsageError
from wander_client.play.typed_calls import describe_tool, example_call, parse_call, signature

Play = Callable[..., Result]
TICTACTOE = Path(__file__).parents[2] / "environments" / "tictactoe"

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a thing up.",
        "parameters": {
            "properties": {
                "item": {"type": "string", "description": "Which\n  thing."},
                "count": {"type": "integer", "default": 1},
                "order": {"enum": ["up", "down"], "type": "string"},
                "near": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}]},
            },
            "required": ["item", "near"],
        },
    },
}


@pytest.fixture
def play(wander: Wander, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play with these lines typed."""

    def run(place: Path | str, *lines: str, words: tuple[str, ...] = ()) -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return wander("env", "play", str(place), *words)

    return run


@pytest.fixture
def shop(wander: Wander, home: Path) -> Path:
    """An environment with one tool, `price(item)`."""
    assert wander("new", "shop", "--kind", "tool").status == 0
    return home / "shop"


def test_the_tools_are_listed_with_their_arguments(play: Play, shop: Path) -> None:
    result = play(shop, "<answer>3</answer>")
    assert result.status == 0
    assert "price(item: string)" in result.out
    assert "Look up what one piece costs." in result.out
    assert "item: The name of the thing, in the singular." in result.out
    assert "/call price item=..." in result.out


@pytest.mark.parametrize("call", ["/call price item=cup", '/call price {"item": "cup"}'])
def test_a_tool_is_called_and_its_result_shown(call: str, play: Play, shop: Path) -> None:
    result = play(shop, call, "<answer>3</answer>")
    assert result.status == 0, result.err
    assert "-- tool\n23\n" in result.out
    assert "price_calls              1" in result.out
    assert "ended: no_tools_called" in result.out


def test_a_call_that_fails_is_answered_as_a_model_is_answered(play: Play, shop: Path) -> None:
    result = play(shop, "/call price item='tea cup'", "<answer>3</answer>")
    assert "there is no `tea cup`; there are cup" in result.out
    assert "tool_errors              1" in result.out


def test_a_slip_at_the_keyboard_costs_no_turn(play: Play, shop: Path) -> None:
    result = play(shop, "/call prise item=cup", "/call price cup", "/call", "/tools", "<answer>3</answer>")
    assert result.status == 0
    assert "there is no tool `prise`" in result.err
    assert "did you mean `price`?" in result.err
    assert "`cup` does not have the form name=value" in result.err
    assert "`/call` needs the name of a tool" in result.err
    assert result.out.count("price(item: string)") == 2
    assert "total_tool_calls         0" in result.out


def test_a_call_where_nothing_can_be_called_says_so(play: Play, folder: Path) -> None:
    result = play(folder, "/call price item=cup", "/tools", "0")
    assert result.status == 0
    assert "this environment offers no tools" in result.err
    assert "this environment offers no tools" in result.out
    assert "reward 1.0" in result.out


def test_what_is_typed_is_the_answer(play: Play, folder: Path) -> None:
    result = play(folder, "2", words=("--example", "2"))
    assert result.status == 0
    assert "say 2" in result.out
    assert "reward 1.0" in result.out
    assert play(folder).status == play(folder, "/quit").status == 130
    assert play(folder, "1", words=("--example", "99")).status == 3


def test_the_help_says_how_a_tool_is_called(wander: Wander) -> None:
    assert "/call NAME key=value" in wander("env", "play", "--help").out


def test_a_signature_tells_types_and_defaults() -> None:
    assert signature(TOOL) == (
        'look_up(item: string, count: integer = 1, order: "up" | "down" = ..., near: number[] | null)'
    )
    assert describe_tool(TOOL)[1:] == ["  Look a thing up.", "  item: Which thing."]
    assert example_call(TOOL) == "/call look_up item=... near=..."
    assert signature({"function": {"name": "bare"}}) == "bare()"


def test_values_are_json_unless_the_tool_takes_text() -> None:
    call = parse_call("look_up item=12 count=3 near='[1, 2]' more=x order=\"up\"", [TOOL])
    assert call.arguments == {"item": "12", "count": 3, "near": [1, 2], "more": "x", "order": "up"}
    message = call.as_message("call_0")
    assert message["tool_calls"][0]["function"]["name"] == "look_up"


@pytest.mark.parametrize(
    "line", ["look_up [1]", "look_up {", 'look_up item="x', "look_up =x", "lookup item=x"]
)
def test_a_line_that_is_no_call_is_refused_with_a_hint(line: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_call(line, [TOOL])
    assert refused.value.hint


MOVE = "<think>x</think><move>{}</move>"


def kept(result: Result) -> str:
    """Return the folder that a finished game was kept in."""
    return result.err.rpartition("wander runs replay ")[2].split()[0]


def test_an_answer_can_be_taken_back(play: Play, wander: Wander, folder: Path) -> None:
    result = play(TICTACTOE, "4", "/undo", "0", "/undo", "/undo", words=("--wrap", MOVE))
    assert result.status == 130
    assert result.out.count("-- taken back") == 2
    assert "there is no answer to take back" in result.out
    game = play(TICTACTOE, "8", "4", "/undo", *"0123456789" * 2, words=("--wrap", MOVE, "--seed", "3"))
    assert game.status == 0, game.err
    shown = wander("view", kept(game), "--json")
    assert shown.data["manifest"]["kind"] == "play"
    assert shown.data["manifest"]["notes"] == "a person answered"
    replayed = wander("runs", "replay", kept(game), "--json")
    assert replayed.status == 0, replayed.err
    assert replayed.data["differing"] == 0


def test_hints_come_from_a_model(play: Play, folder: Path) -> None:
    result = play(folder, "/hint", "0", words=("--hints", "scripted:say_env:solver"))
    assert result.status == 0, result.err
    assert "hint: 0" in result.out
    assert "start with `--hints MODEL`" in play(folder, "/hint", "0").out


def test_the_environment_is_played_against_a_model(play: Play, wander: Wander, home: Path) -> None:
    words = ("--against", "scripted:tictactoe.players:optimal", "--opening", "o-first-8", "--out", "mine")
    result = play(TICTACTOE, "9", "/hint", "/undo", "0", "/undo", *"123567012356", words=words)
    assert result.status == 0, result.err
    assert result.out.count("choose one of") >= 2
    assert result.out.count("-- taken back") == 1
    assert "the model has " in result.out
    assert "ended: game_over" in result.out
    shown = wander("view", "mine", "--rollout", "0", "--json").data
    assert shown["example_id"] == "o-first-8"
    assert shown["info"]["line_of_play"]["choices"]
    manifest = wander("view", "mine", "--json").data["manifest"]
    assert manifest["notes"] == "a person made the environment's choices"
    assert manifest["model"]["name"] == "scripted:tictactoe.players:optimal"
    replayed = wander("runs", "replay", "mine", "--json")
    assert replayed.data["differing"] == 0
    posted = wander("post", "mine")
    assert posted.status != 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "scripted:say_env:solver"), "does not declare its possible replies"),
        (("--opening", "x"), "add `--against MODEL`"),
        (("--against", "m", "--wrap", "{}"), "`--wrap` cannot be used with `--against`"),
    ],
)
def test_options_that_contradict_each_other(
    words: tuple[str, ...], said: str, play: Play, folder: Path
) -> None:
    result = play(folder, words=words)
    assert result.status == 2
    assert said in result.err


def test_an_opening_that_is_not_there(play: Play, home: Path) -> None:
    words = ("--against", "scripted:tictactoe.players:optimal", "--opening", "o-first-9")
    result = play(TICTACTOE, words=words)
    assert result.status == 3
    assert "x-first, o-first-0" in result.err
