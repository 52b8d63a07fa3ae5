"""Options of `wander eval` beyond the first steps: budgets, the cache, only what failed, strata, judges."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from chat_endpoint import chat_endpoint
from command_line import ENVIRONMENT, Wander

BREAKS = "scripted:say_env:breaks_on_three"


def echo(messages: list[dict[str, str]]) -> str:
    return messages[-1]["content"].removeprefix("say ")


def test_an_exhausted_budget_stops_the_run_and_prints_how_to_resume(
    wander: Wander, folder: Path, home: Path
) -> None:
    with chat_endpoint(echo) as endpoint:  # each call takes 10 + 1 tokens
        words = ("-m", "echo", "-b", endpoint.base_url, "-c", "1", "--out", "mine")
        result = wander("eval", "./say-env", *words, "--budget-tokens", "30")
        assert result.status == 6
        assert "warning: the budget of 30 tokens is spent (33)" in result.err
        assert "next: wander eval --resume mine --budget-tokens 66" in result.err
        same = wander("eval", "--resume", "mine", "--json")
        assert (same.status, len(endpoint.requests)) == (6, 3), "nothing is left of it"
        last = wander("eval", "--resume", "mine", "--budget-tokens", "1000", "--json")
    assert (last.status, last.data["resumed"], last.data["budget_spent"]) == (0, 3, None)
    assert last.data["spending"]["usage"] == {"prompt_tokens": 80, "completion_tokens": 8}


def test_prices_come_from_the_option_or_the_settings_file(wander: Wander, folder: Path, home: Path) -> None:
    with chat_endpoint(echo) as endpoint:
        words = ("eval", "./say-env", "-m", "echo", "-b", endpoint.base_url, "-c", "1", "--json")
        unknown = wander(*words, "--set", "budget_usd=1")
        assert "needs the model's prices" in unknown.json["error"]["message"]
        bad = wander(*words, "--set", "prices=cheap")
        assert (bad.status, bad.json["error"]["message"]) == (2, "`prices`: invalid value `cheap`")
        by_option = wander(*words, "--set", "prices=1000/0", "--set", "budget_usd=0.025")
        assert by_option.data["summary"]["rollouts"] == 3
        assert by_option.data["spending"]["usd"] == pytest.approx(0.03)
        (home / "config").mkdir()
        (home / "config" / "settings.toml").write_text("[prices]\necho = { prompt = 0, completion = 1000 }\n")
        by_file = wander(*words)
        assert by_file.data["spending"]["usd"] == pytest.approx(0.008)
        (home / "config" / "settings.toml").write_text("[prices]\necho = { promt = 0 }\n")
        assert "invalid `prices.echo` in the settings file" in wander(*words).json["error"]["message"]


def test_only_failed_repeats_failed_rollouts(wander: Wander, folder: Path, home: Path) -> None:
    assert wander("eval", "./say-env", "-m", BREAKS, "--out", "mine").status == 6
    module = folder / "say_env.py"
    module.write_text(module.read_text().replace('== "break"', '== "never again"'))
    result = wander("eval", "--resume", "mine", "--only-failed", "--allow-changed-code", "--json")
    assert (result.status, result.data["resumed"], result.data["left_out"]) == (0, 7, 0)
    alone = wander("eval", "./say-env", "-m", BREAKS, "--only-failed", "--json")
    assert "`--only-failed` requires `--resume`" in alone.json["error"]["message"]


def test_the_cache_answers_the_second_run_and_is_recorded(wander: Wander, folder: Path, home: Path) -> None:
    with chat_endpoint(echo) as endpoint:
        words = (
            "eval",
            "./say-env",
            "-m",
            "echo",
            "-b",
            endpoint.base_url,
            "-r",
            "2",
            "--set",
            "cache=true",
            "--json",
        )
        first = wander(*words)
        asked = len(endpoint.requests)
        assert asked == 16, "what is sampled is asked for each rollout"
        second = wander(*words)
        assert len(endpoint.requests) == asked
        greedy = wander(*words, "-t", "0")
        assert asked + 8 <= len(endpoint.requests) <= asked + 16
    assert first.data["endpoints"]["cached"] == 0
    assert (second.data["endpoints"]["calls"], second.data["endpoints"]["cached"]) == (0, 16)
    assert greedy.data["summary"]["reward_mean"] == second.data["summary"]["reward_mean"] == 1.0
    manifest = json.loads((Path(second.data["run_dir"]) / "run.json").read_text())
    assert manifest["model"]["details"]["response_cache"] is True
    shown = wander("view", second.data["run_dir"], "--rollout", "0", "--json")
    assert '"cached": true' in shown.out
    assert (home / "cache" / "responses.sqlite").exists()


@pytest.mark.full
def test_strata_and_shuffle_choose_the_examples(wander: Wander, folder: Path, home: Path) -> None:
    refused = wander("eval", "./say-env", "-m", "scripted:say_env:solver", "--set", "strata=true", "--json")
    assert refused.json["error"]["message"] == "`say-env` declares no strata to choose its examples from"
    module = ENVIRONMENT.replace('"answer": str(n)}', '"answer": str(n), "stratum": int(n > 5)}')
    (folder / "say_env.py").write_text(
        module.replace("SingleTurnEnv(dataset", "SingleTurnEnv(strata=2, dataset")
    )
    words = ("eval", "./say-env", "-m", "scripted:say_env:solver", "-n", "4", "--json")
    dry = wander(*words, "--set", "strata=true", "--dry-run").data["evaluations"][0]
    assert dry["strata"] == {"0": 2, "1": 2}
    result = wander(*words, "--set", "strata=true")
    manifest = json.loads((Path(result.data["run_dir"]) / "run.json").read_text())
    assert (manifest["example_ids"], manifest["choice"]) == (["0", "6", "1", "7"], "strata")
    shuffled = wander(*words, "--set", "shuffle=true", "--seed", "3")
    manifest = json.loads((Path(shuffled.data["run_dir"]) / "run.json").read_text())
    assert manifest["choice"] == "shuffled"
    refused = wander("eval", "--resume", shuffled.data["run_dir"], "--set", "strata=true", "--json")
    assert refused.json["error"]["detail"] == "`strata`: requested `true`, but the run has `false`"


def test_options_choose_the_judge(wander: Wander, folder: Path) -> None:
    words = ("eval", "./say-env", "-m", "scripted:say_env:solver", "-a", "judge_model=j", "--json")
    refused = wander(*words)
    assert "has no argument `judge_model`" in refused.json["error"]["message"]
    module = folder / "say_env.py"
    taken = "size: int = 8, judge_model: str = '', judge_base_url: str = ''"
    module.write_text(module.read_text().replace("size: int = 8", taken))
    result = wander(*words, "-a", "judge_base_url=http://127.0.0.1:9/v1")
    assert result.data["environment"]["arguments"] == {
        "judge_model": "j",
        "judge_base_url": "http://127.0.0.1:9/v1",
    }


def test_a_call_that_times_out_is_repeated(wander: Wander, folder: Path) -> None:
    let_go = threading.Event()
    asked: list[str] = []

    def hangs_once(messages: list[dict[str, str]]) -> str:
        asked.append(messages[-1]["content"])
        if len(asked) == 1:
            let_go.wait(60)
        return echo(messages)

    with chat_endpoint(hangs_once) as endpoint:
        try:
            words = ("-m", "echo", "-b", endpoint.base_url, "-n", "1", "--set", "call_timeout=1.5", "--json")
            result = wander("eval", "./say-env", *words)
        finally:
            let_go.set()
    assert result.status == 0, result.out
    assert result.data["endpoints"]["retries"] >= 1
    assert result.data["summary"]["reward_mean"] == 1.0


def test_a_mistyped_model_is_reported_before_the_run(wander: Wander, folder: Path, home: Path) -> None:
    def lacking(messages: list[dict[str, str]]) -> bytes:
        raise AssertionError("no rollout is played")

    with chat_endpoint(lacking, models=("echo-large", "other")) as endpoint:
        result = wander("eval", "./say-env", "-m", "echo-lrage", "-b", endpoint.base_url, "--json")
    assert (result.status, result.json["error"]["code"]) == (3, "model_not_found")
    assert result.json["error"]["hint"].startswith("did you mean `echo-large`?")
    assert not (home / "runs").exists()


def test_turns_are_omitted_only_for_models_in_this_process(wander: Wander, folder: Path) -> None:
    with chat_endpoint(echo) as endpoint:
        words = (
            "eval",
            "./say-env",
            "-m",
            "echo",
            "-b",
            endpoint.base_url,
            "--set",
            "sampling.compact_at=99",
            "--json",
        )
        refused = wander(*words)
        asked = [one for one in endpoint.requests if "compact_at" in str(one)]
    assert refused.status != 0
    assert "`compact_at` is only for models in this process" in refused.json["error"]["message"]
    assert asked == []
