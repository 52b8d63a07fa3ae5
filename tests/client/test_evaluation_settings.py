"""One configuration: options, `--set`, suites and Python ask for the same settings, checked in one way."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest
import wander_client
from click.core import ParameterSource
from command_line import Wander
from wander.sandbox import SandboxPolicy
from wander_client.commands import load
from wander_client.errors import UsageError
from wander_client.evaluate.options import read_options, read_overrides
from wander_client.evaluate.settings import (
    MAY_CHANGE,
    EvaluationSettings,
    check_settings,
    resume_settings,
    settings_for,
)
from wander_client.settings import load_settings
from wander_client.suites.file import KEYS

DOCS = Path(wander_client.__file__).parent.parent.parent / "docs"
NAMED = {"environment": "acme/one", "model": "m"}


def parse(*words: str) -> dict[str, Any]:
    """Return the settings that a line of `wander eval` asks for."""
    command = load("eval")
    ctx = command.make_context("eval", list(words))
    typed = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ctx.params.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return read_options(typed)


def test_about_25_options_have_a_flag_and_set_reaches_the_rest(wander: Wander) -> None:
    flags = {param.name for param in load("eval").params if param.param_type_name == "option"}
    assert len(flags) <= 30
    assert "--set KEY=VALUE" in wander("eval", "--help").out
    for name in EvaluationSettings.model_fields.keys() - {"rerun_of", "environment_files"}:
        default = EvaluationSettings(**NAMED).model_dump(mode="json")[name]
        if isinstance(default, bool | int | float):
            assert parse("--set", f"{name}={str(default).lower()}") == {name: default}


def test_a_flag_and_set_mean_the_same(home: Path) -> None:
    flags = parse(
        *(
            "acme/one",
            "-m",
            "m",
            "-n",
            "all",
            "-t",
            "0.5",
            "--max-tokens",
            "9",
            "-a",
            "size=3",
            "--no-sandbox",
        ),
        *("--player", "O=other", "--workers", "auto", "-r", "2", "--set", "shard=1/4", "--pass-env", "A"),
    )
    names = "num_examples=all sampling.temperature=0.5 sampling.max_tokens=9 arguments.size=3 sandbox=false"
    names += " players.O=other workers=auto rollouts=2 shard=1/4 pass_env=A"
    sets = parse("acme/one", "-m", "m", *(word for name in names.split() for word in ("--set", name)))
    settings = settings_for({**flags, "model": "m"}, load_settings())
    assert settings == settings_for({**sets, "model": "m"}, load_settings())
    assert (settings.num_examples, settings.rollouts, settings.pass_env) == (None, 2, ["A"])


def test_flags_override_set_and_tables_are_merged() -> None:
    wanted = parse("--set", "sampling.top_p=0.9", "--set", "sampling.temperature=1", "-t", "0")
    assert wanted == {"sampling": {"top_p": 0.9, "temperature": 0.0}}


@pytest.mark.parametrize(
    ("word", "table"),
    [
        ("a=1", {"a": 1}),
        ("a.b.c=x y", {"a": {"b": {"c": "x y"}}}),
        ('a=["x", "y"]', {"a": ["x", "y"]}),
        ('a={"b": 1}', {"a": {"b": 1}}),
        ("a={b = 1}", {"a": {"b": 1}}),
        ("a=", {"a": ""}),
        ("a=1/2", {"a": "1/2"}),
    ],
)
def test_values_are_toml_json_or_text(word: str, table: dict[str, Any]) -> None:
    assert read_overrides([word]) == table


@pytest.mark.parametrize("words", [["a"], ["=1"], ["a.=1"], ["a=1", "a.b=2"]])
def test_an_argument_of_set_without_a_value_is_rejected(words: list[str]) -> None:
    with pytest.raises(UsageError):
        read_overrides(words)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"seeed": 1}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"num_examples": 0}, "num_examples"),
        ({"call_timeout": 0.0}, "call_timeout"),
        ({"workers": 257}, "workers"),
        ({"prices": "cheap"}, "prices"),
        # JSON, and therefore the record of the run, cannot contain these numbers.
        ({"prices": "inf/1"}, "prices"),
        ({"prices": {"prompt": 1, "completion": math.nan}}, "prices.completion"),
        ({"budget_usd": math.inf}, "budget_usd"),
        ({"call_timeout": math.inf}, "call_timeout"),
        ({"sampling": {"temperature": math.inf}}, "temperature"),
        ({"sampling": {"min_p": math.inf}}, "min_p"),
        ({"sampling": {"logit_bias": {"7": math.nan}}}, "logit_bias"),
        ({"shard": "4/4"}, "shard"),
        ({"template_date": "soon"}, "template_date"),
        ({"sampling": {"topp": 1}}, "top_p"),
        ({"sampling": {"top_p": 7}}, "top_p"),
        ({"players": {"O": ""}}, "`O`"),
        ({"rerun_of": "x"}, "rerun_of"),
        ({"serve_args": ["--x"]}, "serve"),
        ({"max_lines": 5}, "exhaustive"),
        ({"exhaustive": True, "shuffle": True}, "shuffle"),
        ({"exhaustive": True, "sampling": {"temperature": 1.0}}, "temperature"),
    ],
)
def test_an_invalid_setting_is_named(wanted: dict[str, Any], named: str, home: Path) -> None:
    with pytest.raises(UsageError) as refused:
        settings_for({**NAMED, **wanted}, load_settings())
    assert named in f"{refused.value} {refused.value.hint}"


def test_the_printed_options_recreate_the_settings(home: Path) -> None:
    settings = check_settings(
        {
            **NAMED,
            **{"num_examples": "all", "seed": -3, "sampling": {"stop": ["a b"], "logit_bias": {"1": 2}}},
            **{
                "arguments": {"text": "it's", "deep": {"list": [{"a": None}]}},
                "prices": "1/2",
                "shard": "1/4",
            },
            **{"sandbox": ["memory=2G"], "workers": 2, "serve": "vllm", "serve_args": ["--dtype=half"]},
        }
    )
    wanted = parse(*shlex.split(" ".join(settings.as_options())))
    assert check_settings({**wanted, "model": wanted["model"][0]}) == settings
    plain = EvaluationSettings(**NAMED, sandbox=SandboxPolicy())
    assert plain.as_options() == ["acme/one", "-m m", "--set sandbox=true"]


def test_resuming_accepts_only_settings_that_change_no_rollout() -> None:
    stored = EvaluationSettings(environment="acme/one@1.0.0", model="m")
    wanted = {"call_timeout": 60.0, "prices": "1/2", "concurrency": 3, "base_url": "http://h", "seed": 0}
    resumed = resume_settings(stored, wanted, Path("run"), "wander eval --resume run")
    assert (resumed.call_timeout, resumed.concurrency, resumed.base_url) == (60.0, 3, "http://h")
    assert resumed.prices is not None
    assert (resumed.prices.prompt, resumed.prices.completion) == (1.0, 2.0)
    with pytest.raises(UsageError) as refused:
        resume_settings(stored, {"no_lock": True, "seed": 1, "device": "cpu"}, Path("run"), "go on")
    assert refused.value.code == "other_settings"
    assert [line.split(":")[0] for line in (refused.value.detail or "").splitlines()] == [
        *("`no_lock`", "`seed`", "`device`")
    ]
    assert EvaluationSettings.model_fields.keys() > MAY_CHANGE


def test_every_setting_and_suite_key_is_documented() -> None:
    guide = (DOCS / "evaluating.md").read_text()
    fields = EvaluationSettings.model_fields.keys() - {"rerun_of", "environment_files"}
    assert {name for name in fields | KEYS if f"`{name}`" not in guide} == set()


def test_the_right_table_of_a_misplaced_key_is_named(wander: Wander, home: Path) -> None:
    (home / "suite.toml").write_text('[[eval]]\nenvironment = "."\nmodel = "m"\nconcurrency = 3\n')
    error = wander("eval", "suite.toml", "--json").json["error"]
    assert "`eval[1].concurrency` is not a setting of a suite" in error["message"]
    assert error["hint"] == "`concurrency` belongs at the top of the file"


def test_the_agent_program_is_an_argument_of_the_environment():
    options = read_options({"agent": "codex", "arguments": ["max_turns=3"]})
    assert options == {"arguments": {"max_turns": 3, "agent": "codex"}}


@pytest.mark.parametrize(
    ("model", "base_url", "prompt"),
    [
        ("gpt-5", None, 1.25),
        ("openai/gpt-5", "https://openrouter.ai/api/v1", 1.25),
        ("openrouter/openai/GPT-5", "https://gateway.example.org/v1", 1.25),
        ("anthropic/claude-sonnet-4.5", "https://openrouter.ai/api/v1", 3.0),
        ("models/gemini-2.5-pro", "https://generativelanguage.googleapis.com/v1beta/openai", 1.25),
        ("qwen-max", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", 1.6),
        # Others serve public weights at other prices, and a server of one's own may serve anything.
        ("qwen/qwen-max", "https://openrouter.ai/api/v1", None),
        *(("gpt-5", f"http://{host}:8000/v1", None) for host in ("127.0.0.1", "[::1]", "gpu-box")),
        ("other/gpt-5", "https://openrouter.ai/api/v1", None),
        ("gpt-5-of-mine", None, None),
        ("scripted:mine:gpt-5", None, None),
    ],
)
def test_the_shipped_price_table_covers_only_known_models(
    home: Path, model: str, base_url: str | None, prompt: float | None
) -> None:
    wanted = {"environment": "acme/one", "model": model} | ({"base_url": base_url} if base_url else {})
    prices = settings_for(wanted, load_settings()).prices
    assert (prices and prices.prompt) == prompt
    if prices is not None and prompt == 1.25:
        assert prices.cached == 0.125


def test_the_user_s_prices_override_the_shipped_table(home: Path) -> None:
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text("[prices]\ngpt-5 = { prompt = 1, completion = 2 }\n")
    wanted = {"environment": "acme/one", "model": "gpt-5"}
    by_file = settings_for(wanted, load_settings()).prices
    by_option = settings_for(wanted | {"prices": "3/4"}, load_settings()).prices
    assert by_file is not None
    assert by_option is not None
    assert (by_file.prompt, by_file.cached, by_option.prompt) == (1.0, None, 3.0)
