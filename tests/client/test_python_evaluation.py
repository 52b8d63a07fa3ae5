"""`env.evaluate` and the run that it returns: the code of `wander eval`, from Python."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import wander
from chat_endpoint import chat_endpoint
from wander.clients.base import Client, ModelResponse
from wander.errors import EndpointUnreachable, RunError
from wander_client.errors import ClientError, UsageError
from wander_client.python.evaluation import DECIDED_BEFORE, ONLY_IN_THE_COMMAND

SOLVER, WRONG = "scripted:say_env:solver", "scripted:say_env:wrong"


class Told(Client):
    """Says what it is asked to, once it is allowed to for the third time and later."""

    model = "told"

    def __init__(self) -> None:
        self.asked = 0
        self.allowed, self.third = threading.Event(), threading.Event()

    async def complete(self, request):
        self.asked += 1
        if self.asked > 2:
            self.third.set()
            await asyncio.to_thread(self.allowed.wait)
        text = request.messages[-1]["content"].removeprefix("say ")
        return ModelResponse(message={"role": "assistant", "content": text})


@pytest.fixture
def env(say_env, home):
    """The environment of all tests, in a folder of the test's own."""
    return say_env


def test_a_run_is_a_value_and_a_folder(env, wander):
    run = env.evaluate_sync(SOLVER, n=4, rollouts=2, sampling={"temperature": 0.5}, seed=7)
    assert run.path.parent.name == "runs"
    assert (run.reward, run.failed, run.model) == (1.0, 0, SOLVER)
    low, high = run.interval
    assert 0 < low < high <= 1
    assert run.metrics["right"].mean == 1.0
    assert len(run.rollouts) == 8
    assert run.rollouts[0].reward == 1.0
    assert run.rollouts[-1] == list(run.rollouts)[-1]
    assert [one.key for one in run.rollouts[2:6:2]] == [one.key for one in list(run.rollouts)[2:6:2]]
    assert (run.manifest.seed, run.manifest.sampling.temperature) == (7, 0.5)
    shown = wander("runs", "show", str(run.path), "--json").data
    assert shown["run_id"] == run.id, "the command reads it, too"


def test_every_setting_of_the_command_is_a_keyword_or_in_settings(env, wander):
    """Except for what `wander.load` decides, and what does not give a run of examples."""
    first = {"n": 2, "settings": {"template_date": "2026-01-02", "strict": True, "sampling": {"seed": 5}}}
    run = env.evaluate_sync(SOLVER, **first)
    stored = json.loads((run.path / "command.json").read_text())["command"]
    assert (stored["template_date"], stored["strict"], stored["sampling"]["seed"]) == ("2026-01-02", True, 5)
    assert len(env.rollouts_sync(SOLVER, settings={"num_examples": 3})) == 3
    with pytest.raises(UsageError, match="template_date") as changed:
        env.evaluate_sync(SOLVER, resume=run, settings={"template_date": "2026-01-03"})
    assert changed.value.code == "other_settings"
    for settings, name in (
        ({"n": 3}, "`n`"),
        ({"num_examples": 3}, "`num_examples` is set twice"),
        ({"model": "other"}, "`model` is set twice"),
        ({"seed": "one"}, "`seed`"),
        ([("seed", 1)], "`settings` is not a mapping"),
        *(({name: 1}, f"`{name}`") for name in DECIDED_BEFORE | ONLY_IN_THE_COMMAND),
    ):
        with pytest.raises(UsageError) as refused:
            env.evaluate_sync(SOLVER, n=2, settings=settings)
        assert name in str(refused.value)


def test_the_command_and_python_resume_each_others_runs(env, wander):
    run = env.evaluate_sync(SOLVER, n=2)
    wander("eval", "--resume", str(run.path))
    again = env.evaluate_sync(SOLVER, resume=run)
    assert again.id == run.id
    with pytest.raises(UsageError, match="settings changed"):
        env.evaluate_sync(SOLVER, n=3, resume=run)


@pytest.mark.full  # pandas and pyarrow take seconds to load
def test_results_are_shown_as_tables(env):
    run = env.evaluate_sync(SOLVER, n=4)
    frame = run.to_pandas()
    assert frame["metrics.right"].mean() == frame["reward"].mean() == 1.0
    assert frame["completion"][0][-1]["content"] == "0"
    assert run.to_arrow().num_rows == 4
    assert run.to_arrow(tokens=True).column("logprobs").to_pylist() == [[]] * 4


@pytest.mark.full  # so does altair
def test_results_are_shown_as_charts(env):
    chart = env.evaluate_sync(WRONG, n=3).plot()
    assert len(chart.to_dict()["vconcat"]) == 2
    shown = chart.properties(title="mine")._repr_mimebundle_(include=None, exclude=None)
    assert list(shown) == ["image/svg+xml"], "a notebook asks no server for scripts"
    assert "mine" in shown["image/svg+xml"]


def test_files_and_comparisons(env, home):
    good, bad = env.evaluate_sync(SOLVER, n=4), env.evaluate_sync(WRONG, n=4)
    assert len(good.export(home / "rows.jsonl").read_text().splitlines()) == 4
    assert len(good.export(home / "steps.jsonl", "atif").read_text().splitlines()) == 4
    with pytest.raises(UsageError):
        good.export(home / "steps.jsonl", "atiff")
    kept = wander.Run(good.save(home / "kept"))
    assert (kept.id, kept.reward) == (good.id, good.reward)
    with pytest.raises(UsageError, match="already exists"):
        good.save(home / "kept")
    found = bad.compare(good)
    assert (found.difference, found.wins) == (1.0, 4)
    with pytest.raises(RunError, match="not a run folder"):
        wander.Run(home)


def test_a_run_has_an_html_representation(env):
    run = env.evaluate_sync(WRONG, n=3)
    shown = run._repr_html_()
    assert "<table>" in shown
    assert "0.000" in shown
    assert "3 of 3" in shown
    assert "reward 0.000" in repr(run)


def test_markup_in_a_name_stays_text(env):
    client = Told()
    client.model = "<b>bold</b>"
    assert "&lt;b&gt;bold" in env.evaluate_sync(client, n=1)._repr_html_()


def test_a_model_behind_an_endpoint(env, monkeypatch):
    with chat_endpoint(lambda messages: messages[-1]["content"].removeprefix("say ")) as endpoint:
        run = env.evaluate_sync("echo", base_url=endpoint.base_url, n=3)
    assert (run.reward, run.model) == (1.0, "echo")
    with pytest.raises(EndpointUnreachable):
        env.evaluate_sync("echo", base_url="http://127.0.0.1:9/v1", n=3)


async def test_a_canceled_evaluation_keeps_its_rollouts_and_resumes(env, home):
    client = Told()
    task = asyncio.create_task(env.evaluate(client, n=6, concurrency=1, out="runs/part"))
    await asyncio.to_thread(client.third.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    part = wander.Run("runs/part")
    assert (len(part.rollouts), part.summary.expected) == (2, 6)
    client.allowed.set()
    whole = await env.evaluate(client, resume="runs/part")
    assert (len(whole.rollouts), whole.reward) == (6, 1.0)
    assert client.asked == 3 + 4, "what was kept is not asked again"


INTERRUPTED = """
import sys, wander
env = wander.load(sys.argv[1])
try:
    env.evaluate_sync("scripted:say_env:slow", n=8, rollouts=25, concurrency=1, out="runs/stopped")
except KeyboardInterrupt:
    print(len(wander.Run("runs/stopped").rollouts) > 1)
"""


@pytest.mark.full  # a canceled evaluation ends the same way
def test_ctrl_c_keeps_finished_rollouts(folder, home):
    command = [sys.executable, "-c", INTERRUPTED, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = home / "runs/stopped/rollouts.jsonl"
    give_up = time.monotonic() + 60
    while not rows.exists() or rows.read_text().count("\n") < 2:
        assert time.monotonic() < give_up
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("True\n", 0), err
    assert 'resume with `resume="runs/stopped"`' in err
    assert "Traceback" not in err


def test_failures_are_reported(env, home):
    with pytest.warns(UserWarning, match="rollouts? failed|rubric") as warned:
        run = env.evaluate_sync("scripted:say_env:breaks_on_three", n=5)
    assert "1 of 5 rollouts failed" in [str(one.message) for one in warned]
    assert {one.filename for one in warned} == {__file__}
    assert (run.failed, run.reward) == (1, 1.0)
    with pytest.raises(ClientError, match="all 3 rollouts failed") as caught:
        env.evaluate_sync("scripted:say_env:raises", n=3)
    assert any("no idea" in note for note in caught.value.__notes__)
    for wrong in ({"n": 0}, {"rollouts": "2"}, {"sampling": {"temperature": "hot"}}, {"split": "test"}):
        with pytest.raises((UsageError, wander.WanderError)):
            env.evaluate_sync(SOLVER, **wrong)
    with pytest.raises(TypeError, match="siz"):
        env.evaluate_sync(SOLVER, siz=3)
    with pytest.raises(UsageError, match="`int` is not a model"):
        env.evaluate_sync(3)


def test_an_empty_split_is_rejected(folder):
    with wander.load(folder, size=0, progress=False) as env, pytest.raises(UsageError, match="no examples"):
        env.evaluate_sync(SOLVER)


def test_code_that_changed_since_loading_is_not_evaluated(folder):
    env = wander.load(folder, progress=False)
    module = folder / "say_env.py"
    module.write_text(module.read_text() + "\n# another line\n")
    with env, pytest.raises(ClientError, match=r"has changed since it was loaded: say_env\.py"):
        env.evaluate_sync(SOLVER, n=1)


def test_rollouts_can_be_kept_only_in_memory(env):
    saved = set(env.evaluate_sync(SOLVER, n=1).path.parent.iterdir())
    found = env.rollouts_sync(SOLVER, n=2, rollouts=2)
    assert [(one.example_id, one.index, one.reward) for one in found] == [
        (str(n), index, 1.0) for n in range(2) for index in range(2)
    ]
    assert set(next(iter(saved)).parent.iterdir()) == saved


def test_progress_is_printed_on_stderr(folder, capsys):
    with wander.load(folder) as env:
        env.evaluate_sync(SOLVER, n=3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "evaluating scripted:say_env:solver on say-env: 3 examples x 1 = 3 rollouts" in err
    assert "3/3" in err


def test_an_unwritable_folder_is_reported(env, home):
    (home / "file").write_text("")
    with pytest.raises(ClientError) as caught:
        env.evaluate_sync(SOLVER, n=1, out=home / "file" / "run")
    assert caught.value.code == "not_a_folder"
    assert json.dumps(str(home))[1:-1] in str(caught.value)
    assert Path(home / "file").read_text() == ""
