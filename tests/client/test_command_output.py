"""stdout is the answer and nothing else; stderr is everything else; four modes."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pytest
from command_line import Wander
from hypothesis import given
from hypothesis import strategies as st
from wander_client.errors import ClientError, UsageError
from wander_client.terminal.escape import one_line, visible
from wander_client.terminal.output import (
    AGENT_VARIABLES,
    Output,
    align,
    choose_mode,
    counted,
    cut,
    fit_columns,
    shrink_columns,
    use_color,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_human_mode_and_a_pipe_the_plain_one() -> None:
    assert choose_mode(None, {}, terminal=True) == "human"
    assert choose_mode(None, {}, terminal=False) == "plain"


@pytest.mark.parametrize("variable", AGENT_VARIABLES)
def test_agents_get_the_plain_mode_by_default(variable: str) -> None:
    assert choose_mode(None, {variable: "1"}, terminal=True) == "plain"
    assert choose_mode(None, {variable: "1", "WANDER_OUTPUT": "human"}, terminal=True) == "human"


def test_the_flag_wins_over_the_variable() -> None:
    assert choose_mode("quiet", {"WANDER_OUTPUT": "json"}, terminal=True) == "quiet"


def test_an_unknown_output_mode_is_rejected() -> None:
    with pytest.raises(UsageError, match="WANDER_OUTPUT"):
        choose_mode(None, {"WANDER_OUTPUT": "fancy"}, terminal=True)


@pytest.mark.parametrize(
    ("flag", "environ", "stream", "expected"),
    [
        ("auto", {}, Terminal(), True),
        ("auto", {}, io.StringIO(), False),
        ("auto", {"NO_COLOR": "1"}, Terminal(), False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, Terminal(), False),
        ("auto", {"FORCE_COLOR": "1"}, io.StringIO(), True),
        ("auto", {"CLICOLOR_FORCE": "1"}, io.StringIO(), True),
        ("auto", {"TERM": "dumb"}, Terminal(), False),
        ("always", {"NO_COLOR": "1"}, io.StringIO(), True),
        ("never", {"FORCE_COLOR": "1"}, Terminal(), False),
    ],
)
def test_color_follows_the_flag_and_the_usual_variables(
    flag: str, environ: dict[str, str], stream: io.StringIO, expected: bool
) -> None:
    assert use_color(flag, environ, stream) is expected


def test_a_plain_table_is_tab_separated_and_never_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output("plain", environ={}).table(["name", "n"], [["a" * 300, 1], ["b\tc\nd", None]])
    assert capsys.readouterr().out == f"name\tn\n{'a' * 300}\t1\nb c d\t\n"


def test_a_human_table_lines_up_also_with_wide_characters() -> None:
    lines = align([["name", "n"], ["日本", "10"], ["ab", "1"]], [False, True])
    assert lines == ["name   n", "日本  10", "ab     1"]


def test_a_narrow_terminal_shortens_only_flexible_columns() -> None:
    rows = [["x" * 40, "abcdefghijklmnopqrstuvwxyz" * 2, "y" * 40]]
    ((first, middle, last),) = shrink_columns(["id", "text", "run"], rows, ["text"], 100)
    assert (first, last) == ("x" * 40, "y" * 40)
    assert middle == "abcdefg...uvwxyz"
    assert shrink_columns(["id", "text", "run"], rows, ["text"], 500) == rows


def test_a_narrow_terminal_omits_columns_before_they_become_unreadable() -> None:
    columns, rows = ["run", "model", "by", "when"], [["x" * 8, "m" * 60, "y" * 10, "z" * 10]]
    kept = {
        width: fit_columns(columns, rows, ["model"], ["when", "by"], width) for width in (200, 60, 50, 40, 10)
    }
    assert kept == {200: [0, 1, 2, 3], 60: [0, 1, 2, 3], 50: [0, 1, 2], 40: [0, 1], 10: [0, 1]}
    assert fit_columns(columns, rows, [], [], 10) == [0, 1, 2, 3]


@given(st.text(), st.integers(min_value=4, max_value=50))
def test_a_shortened_text_keeps_both_ends_and_fits_the_limit(text: str, width: int) -> None:
    short = cut(text, width)
    assert len(short) <= max(width, 0)
    assert short == text or (short.startswith(text[:1]) and "..." in short)


def test_the_json_envelope_carries_schema_data_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("json", command="info", environ={})
    output.note("not seen")
    output.line("not seen")
    output.warn("old")
    output.answer({"a": [1, None]}, "not seen")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": "wander.info/1", "data": {"a": [1, None]}, "warnings": ["old"]}
    assert err == ""


def test_quiet_keeps_the_answer_and_warnings_and_drops_notes(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("quiet", environ={})
    output.note("working")
    output.next("wander view")
    output.answer({}, "42")
    assert capsys.readouterr() == ("42\n", "")


def test_errors_on_stderr_have_the_format_of_uv(capsys: pytest.CaptureFixture[str]) -> None:
    error = ClientError("`x` broke", hint="run `y`", detail="because\nof z")
    Output("plain", environ={}).error(error)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: `x` broke\n\n  because\n  of z\n\nhint: run `y`\n"


def test_an_error_in_json_mode_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    Output("json", environ={}).error(ClientError("broke", hint="mend", code="b", retryable=True))
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": {"code": "b", "message": "broke", "hint": "mend", "retryable": True}}
    assert err == ""


def test_a_prompt_without_a_terminal_names_the_flag() -> None:
    with pytest.raises(UsageError, match="cannot ask for confirmation with `--json`") as refused:
        Output("json").ask("Type `x` to delete it", flag="--yes")
    assert refused.value.hint == "pass `--yes`"


def test_progress_without_a_terminal_prints_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Output("plain", environ={}).progress("playing", 1000) as bar:
        for done in range(1001):
            bar.update(done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == "playing  1000/1000 (100%)"


def test_progress_shows_the_note_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Output("plain", environ={}).progress("playing", 2) as bar:
        bar.update(2, "reward\n0.5\x1b[31m")
    assert capsys.readouterr().err == "playing  2/2 (100%)  reward 0.5\\x1b[31m\n"


@pytest.mark.parametrize("mode", ["json", "quiet"])
def test_progress_is_silent_in_quiet_and_json_modes(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Output("json" if mode == "json" else "quiet", environ={}).progress("playing", 2) as bar:
        bar.update(2)
    assert capsys.readouterr() == ("", "")


def test_a_live_bar_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Output("human", environ={}).progress("playing", 2) as bar:
        bar.update(1, "half")
        bar.update(2)
    assert bar.done == 2
    assert "\x1b[2K" in terminal.getvalue()  # the line is erased at the end


@given(st.text())
def test_visible_text_holds_no_control_character(text: str) -> None:
    shown = visible(text)
    assert all(c in "\n\t" or ord(c) >= 0x20 for c in shown)
    assert not any(c in shown for c in "\x1b\x7f\x9b\u202e\u2066\u200f\ufeff")
    assert shown.encode("utf-8").decode() == shown


@given(st.text())
def test_line_breaks_in_values_do_not_split_lines(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    assert "\t" not in one_line(text)


@given(st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P", "Zs"])))
def test_harmless_text_is_printed_unchanged(text: str) -> None:
    assert visible(text) == text


def test_output_works_in_a_narrow_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    Output("plain", environ={}).line("größe 日")
    assert raw.getvalue() == b"gr\\xf6\\xdfe \\u65e5\n"


def test_no_escape_code_reaches_a_pipe(wander: Wander) -> None:
    for words in (["--help"], ["help", "exit-codes"], ["nonsense"], ["eval", "--help"]):
        result = wander(*words)
        assert "\x1b" not in result.out + result.err


def test_nouns_agree_with_their_numbers() -> None:
    assert [counted(number, "rollout") for number in (0, 1, 2000)] == [
        "0 rollouts",
        "1 rollout",
        "2,000 rollouts",
    ]


@pytest.mark.parametrize(
    "character", ["\x9b", "\x85", "\x7f", "\u202e", "\u2066", "\u200b", "\u2028", "\ufeff", "\x1b"]
)
def test_json_on_a_terminal_has_no_escape_codes(character: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("json")
    output.warn(f"w{character}")
    output.envelope({"name": f"a{character}31m"})
    output.stream("progress", name=f"b{character}")
    output.error(ClientError(f"c{character}"))
    said = capsys.readouterr().out
    assert character not in said
    first = json.loads(said.splitlines()[0])
    assert (first["data"]["name"], first["warnings"]) == (f"a{character}31m", [f"w{character}"])


def test_the_next_commands_quote_the_paths_that_they_name(
    wander: Wander, folder: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "it's a run; $HOME & α"
    run, again = odd / "run", odd / "again"
    commands: list[tuple[object, ...]] = [
        ("eval", folder, "-m", "scripted:say_env:solver", "-n", "2", "--out", run),
        ("runs", "show", run),
        ("view", run),
        ("runs", "replay", run),
        ("runs", "regrade", run, "--env", folder, "--out", again),
        ("runs", "data", run, "-o", odd / "rows.jsonl"),
        ("new", odd / "my-env"),
    ]
    for words in commands:
        result = wander(*map(str, words))
        assert result.status == 0, result.err
        following = [line for line in result.err.splitlines() if line.startswith("next: ")]
        named = [word for line in following for word in shlex.split(line) if str(odd) in word]
        assert all(Path(word).exists() for word in named), following
        assert named or words[:2] == ("runs", "replay"), following
