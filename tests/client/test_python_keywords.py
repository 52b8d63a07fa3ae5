"""What errors say to a program: keywords of the call, near names, and no options of the command line."""

from __future__ import annotations

import inspect
import pickle

import pytest
import wander
from wander.errors import ArgumentsUnfit, ConfigError, RunError, in_python, name_option
from wander_client.errors import NotFound, UsageError
from wander_client.python.keywords import UnknownKeyword

SOLVER = "scripted:say_env:solver"


@pytest.fixture
def env(say_env, home):
    return say_env


@pytest.mark.parametrize(
    ("option", "typed", "written"),
    [
        (name_option("workers", 4), "`--workers 4`", "`workers=4`"),
        (name_option("n", 30), "`-n 30`", "`n=30`"),
        (name_option("resume"), "`--resume`", "`resume`"),
        (name_option("cache", True), "`--cache`", "`cache=True`"),
        (name_option("sandbox", False), "`--no-sandbox`", "`sandbox=False`"),
        (name_option("base_url", "URL", word="-b"), "`-b URL`", '`base_url="URL"`'),
        (name_option("out", "a b", command="wander eval"), "`wander eval --out 'a b'`", '`out="a b"`'),
    ],
)  # fmt: skip
def test_options_have_a_command_line_name_and_a_python_name(option, typed, written):
    text = "leave " + option + " out, or " + option
    assert (text, in_python(text)) == (
        f"leave {typed} out, or {typed}",
        f"leave {written} out, or {written}",
    )
    copied = pickle.loads(pickle.dumps(text))
    assert (copied, in_python(copied)) == (text, in_python(text))
    assert in_python("a plain sentence") == "a plain sentence"


def test_hints_use_the_names_of_the_terminal_or_of_python():
    error = ConfigError("too slow", hint="share it with " + name_option("workers", 4))
    assert error.hint == "share it with `--workers 4`"
    assert error.__notes__ == ["hint: share it with `workers=4`"]


async def test_an_unknown_keyword_gets_a_suggestion(env, folder):
    for wrong, right in {
        "num_examples": "n",
        "temperature": "sampling={",
        "seeds": "seed",
    }.items():
        with pytest.raises(UnknownKeyword, match=f"unknown argument `{wrong}` of `evaluate`") as caught:
            await env.evaluate(SOLVER, **{wrong: 3})
        assert isinstance(caught.value, TypeError)
        assert f"`{right}" in caught.value.hint
        assert f"hint: {caught.value.hint}" in caught.value.__notes__
    with pytest.raises(UsageError, match="unknown argument `progress` of `evaluate`"):
        env.evaluate_sync(SOLVER, progress=False)
    with pytest.raises(UsageError, match="unknown argument `num_examples` of `rollouts`"):
        env.rollouts_sync(SOLVER, num_examples=2)
    with pytest.raises(ArgumentsUnfit, match="no argument `num_workers`") as unfit:
        wander.load(folder, num_workers=2, progress=False)
    assert "did you mean `workers`?" in unfit.value.hint
    with pytest.raises(ConfigError, match="`num_steps` is not a section") as section:
        wander.train(env, model="smollm2", num_steps=3)
    assert section.value.hint == "did you mean `steps`?"
    with pytest.raises(ConfigError) as field:
        wander.sft("rows.jsonl", model="smollm2", out="sft", learning_rate=1e-4)
    assert field.value.hint == 'pass `schedule={"learning_rate": 0.0001}`'
    with pytest.raises(UsageError, match="unknown argument `tokens`") as hub:
        wander.Hub(tokens="x")
    assert hub.value.hint == "did you mean `token`?"


def test_calls_keep_their_signatures(env):
    assert "n" in inspect.signature(env.evaluate).parameters
    assert inspect.iscoroutinefunction(env.evaluate)
    assert not inspect.iscoroutinefunction(env.evaluate_sync)


def test_a_mistyped_sampling_argument_is_reported(env):
    for given in ({"temperatures": 0}, {"max-tokens": 3}):
        with pytest.raises(UsageError, match="unknown sampling argument") as caught:
            env.evaluate_sync(SOLVER, sampling=given)
        assert "did you mean `" in caught.value.hint
    with pytest.raises(UsageError, match="unknown sampling argument `top_pp`"):
        env.rollout_sync(SOLVER, sampling={"top_pp": 0.5})
    run = env.evaluate_sync(SOLVER, n=1, sampling={"top_k": 3, "of_its_own": True})
    assert run.manifest.sampling.given() == {"top_k": 3, "of_its_own": True}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "`n`: must be"),
        ({"n": "5"}, "`n`: must be a whole number"),
        ({"rollouts": 0}, "`rollouts`: must be"),
        ({"call_timeout": -1}, "`call_timeout`: must be"),
        ({"prices": {"promt": 1}}, "`prices."),
        ({"sampling": "hot"}, "`sampling` is not a table"),
    ],
)
def test_impossible_values_are_rejected(env, options, said):
    with pytest.raises(UsageError) as caught:
        env.evaluate_sync(SOLVER, **options)
    assert said in str(caught.value)


def test_rollout_accepts_an_example_or_its_position(env):
    for wrong in ("x", -1):
        with pytest.raises(UsageError, match="is not an example"):
            env.rollout_sync(SOLVER, wrong)
    with pytest.raises(UsageError, match="`sampling` is not a table"):
        env.rollout_sync(SOLVER, 0, sampling="hot")


def test_errors_of_an_evaluation_name_keywords(env, home):
    run = env.evaluate_sync(SOLVER, n=2)
    with pytest.raises(UsageError) as caught:
        env.evaluate_sync(SOLVER, n=3, resume=run)
    notes = "\n".join(caught.value.__notes__)
    assert "`n`: requested `3`, but the run has `2`" in notes
    assert "--" not in notes.replace(str(run.path), "")


def test_an_unknown_run_or_metric_gets_a_suggestion(env, home):
    run = env.evaluate_sync(SOLVER, n=1, out="runs/before")
    name = next(iter(run.metrics))
    with pytest.raises(KeyError) as caught:
        run.metrics[f"{name}s"]
    assert caught.value.__notes__ == [f"unknown metric `{name}s`: did you mean `{name}`?"]
    with pytest.raises(RunError) as other:
        wander.Run("runs/before2")
    assert other.value.hint == "did you mean `runs/before`?"
    assert isinstance(run.metrics, dict)


def test_an_unknown_model_is_reported_immediately(env, monkeypatch):
    def ask(*_, **__):
        raise AssertionError("Hugging Face was asked")

    monkeypatch.setattr("wander.models.loading.only_cached", ask)
    with pytest.raises(NotFound, match="`nomodel` is neither a folder") as caught:
        wander.train(env, model="nomodel", steps=1)
    assert "`hf:nomodel`" in caught.value.hint


def test_commands_suggest_similar_names_too(env, wander, home):
    env.evaluate_sync(SOLVER, n=1, out=home / "runs" / "before")
    assert "did you mean `before`?" in wander("runs", "show", "before2").err
    assert f"did you mean `{home / 'runs' / 'before'}`?" in wander("view", str(home / "runs" / "before2")).err
    assert "did you mean `reward`?" in wander("runs", "--sort", "rewards").err
    assert "did you mean `reward`?" in wander("view", "runs/before", "--sort", "rewards").err
    assert "did you mean `reward`?" in wander("view", "runs/before", "--where", "rewards>0").err
    wrong = wander("eval", "./say-env", "-m", SOLVER, "--set", "sampling.temperatures=0")
    assert (wrong.status, "did you mean `temperature`?" in wrong.err) == (2, True)
