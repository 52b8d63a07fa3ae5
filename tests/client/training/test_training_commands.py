"""`wander model`, `data`, `sft` and `train` on the bundled tic-tac-toe, its environment in a real process."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from command_line import Wander
from listening_worker import worker

TICTACTOE = str(Path(__file__).parents[3] / "environments" / "tictactoe")
SETTINGS = """
[environment]
workers = 2

[environment.arguments]
num_examples = 32
num_groups = 4

[batch]
rollouts = 16
group_size = 4
rows_at_once = 16

[sampling]
max_tokens = 8

[schedule]
steps = 3
learning_rate = 1e-3

[output]
rollouts_every = 1
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def games(wander: Wander, home: Path) -> Path:
    """A run of an optimal player."""
    done = wander(
        *("eval", TICTACTOE, "-m", "scripted:tictactoe.players:optimal", "-n", "40", "--split", "train"),
        *("--out", "games", "-a", "num_examples=40"),
    )
    assert done.status == 0, done.err
    return home / "games"


@pytest.fixture
def tiny(wander: Wander, games: Path, home: Path) -> Path:
    made = wander(
        *("model", "new", "tiny", "--transcripts", str(games), "--out", "tiny"),
        *("--hidden", "32", "--layers", "1", "--vocabulary", "330"),
    )
    assert made.status == 0, made.err
    return home / "tiny"


def test_data_reports_dropped_rollouts(wander: Wander, games: Path, home: Path) -> None:
    done = wander("runs", "data", str(games), "--where", "won==1", "--out", "rows.jsonl", "--json")
    data = done.data
    rows = [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]
    assert data["rollouts"] == 40
    assert 0 < data["kept"] == len(rows) < 40
    assert data["dropped"]["not won==1"] + data["dropped"].get("repeated conversation", 0) == 40 - len(rows)
    nothing = wander("runs", "data", str(games), "--min-reward", "5", "--out", "none.jsonl")
    assert nothing.status == 1
    assert not (home / "none.jsonl").exists()
    assert "all 40 rollouts were dropped" in nothing.err


def test_data_shows_and_balances_its_rows(wander: Wander, games: Path, home: Path) -> None:
    words = ("runs", "data", str(games), str(games), "--out", "rows.jsonl", "--near", "--per-example", "1")
    done = wander(*words, "--where", "turns<=4", "--show-dropped", "2", "--json")
    data = done.data
    assert data["rollouts"] == 80
    assert data["dropped"]["repeated conversation"] >= data["kept"]
    reasons = [one["reason"] for one in data["samples"]]
    assert reasons.count("repeated conversation") == 2
    rows = [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]
    assert len({row["example_id"] for row in rows}) == len(rows) == data["kept"]
    assert {row["run_id"] for row in rows} == {json.loads((games / "run.json").read_text())["run_id"]}
    shown = wander(*words, "--show-dropped", "1")
    assert ", reward " in shown.err


@pytest.mark.full
def test_sft_holds_out_rows_and_resumes(wander: Wander, games: Path, tiny: Path, home: Path) -> None:
    assert wander("runs", "data", str(games), "--out", "rows.jsonl").status == 0
    words = ("model", "sft", "rows.jsonl", "--model", "tiny", "--out", "sft", "--steps", "2")
    tuned = wander(*words, "--set", "schedule.eval_share=0.2")
    assert tuned.status == 0, tuned.err
    assert " held-out row" in tuned.out
    ended = wander("model", "sft", "--resume", "sft")
    assert ended.status != 0
    assert "is already finished" in ended.err
    assert wander("model", "sft", "--resume", "sft", "--steps", "3").status == 2
    assert wander("model", "sft", "--resume", "none").status == 3
    assert wander("model", "sft", "rows.jsonl").status == wander("model", "sft", "--out", "x").status == 2
    (home / "rows.jsonl").write_text("")
    changed = wander("model", "sft", "--resume", "sft")
    assert "have changed since the run started" in changed.err


def test_a_model_is_created_from_only_an_environment(wander: Wander, home: Path) -> None:
    done = wander(
        *("model", "new", "tiny", "--environment", TICTACTOE, "--out", "m", "--episodes", "12"),
        *("--hidden", "32", "--layers", "1", "--json"),
    )
    assert done.data["transcripts"] == 12
    assert done.data["parameters"] > 10_000
    assert (home / "m" / "config.json").is_file()
    again = wander("model", "new", "tiny", "--environment", TICTACTOE, "--out", "m", "--episodes", "2")
    assert again.status != 0
    assert "playing  2/2 transcripts (100%)" in again.err
    assert "`m` already exists" in again.err


def test_invalid_arguments_are_usage_errors(wander: Wander, home: Path) -> None:
    assert wander("model", "new", "huge", "--environment", TICTACTOE, "--out", "m").status == 2
    assert wander("model", "new", "tiny", "--out", "m").status == 2
    assert wander("model", "pull", "gpt-7").status == 2
    assert wander("train").status == 2
    assert wander("train", "--resume", "nowhere").status == 3
    missing = wander("model", "sft", "none.jsonl", "--model", "smollm2", "--out", "s")
    assert missing.status != 0
    assert "`none.jsonl`" in missing.err
    unknown = wander("train", TICTACTOE, "--model", "./nowhere")
    assert "the model folder `./nowhere` does not exist" in unknown.err


def test_sft_then_train_then_resume(wander: Wander, games: Path, tiny: Path, home: Path) -> None:
    assert wander("runs", "data", str(games), "--out", "rows.jsonl").status == 0
    tuned = wander("model", "sft", "rows.jsonl", "--model", "tiny", "--out", "sft", "--steps", "5", "--json")
    assert tuned.data["steps"] == 5
    assert tuned.data["final_loss"] < tuned.data["first_loss"]
    assert (home / "sft" / "model" / "config.json").is_file()

    (home / "grpo.toml").write_text(SETTINGS)
    log = ("--log", "tensorboard")
    done = wander("train", TICTACTOE, "grpo.toml", "--model", "sft/model", "--out", "run", "--json", *log)
    assert done.status == 0, done.out
    assert done.data["steps"] == 3
    assert done.data["rollouts"] == 48
    assert "16 rollouts per step are few: runs on games with fewer than 256 collapsed" in done.out
    manifest = json.loads((home / "run" / "run.json").read_text())
    assert manifest["kind"] == "training"
    assert manifest["environment"]["arguments"] == {"num_examples": 32, "num_groups": 4}
    assert manifest["training"]["schedule"]["steps"] == 3
    assert len((home / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert len(list((home / "run" / "tensorboard").glob("events.out.tfevents.*"))) == 1
    assert {"learning_curve.svg", "learning_curve.png", "model", "rollouts.jsonl.zst"} <= {
        path.name for path in (home / "run").iterdir()
    }
    assert wander("runs", "plot", "run", "again=run", "-o", "two.svg", "-x", "rollouts").status == 0
    assert ">again</text>" in (home / "two.svg").read_text()
    assert "two runs have the name `run`" in wander("runs", "plot", "run", "run").err
    assert "`-x days` is unknown" in wander("runs", "plot", "run", "-x", "days").err
    assert wander("view", "run").status == 0
    # Two prompts again and again; and the first group of each step, beside what had been learned before it.
    again = {step: wander("view", "run", "--step", str(step), "--json").data["rollouts"] for step in range(5)}
    assert [len(rows) for rows in again.values()] == [6, 6, 6, 2, 0]
    prompts = {
        tuple((row["example_id"], row["index"]) for row in rows[-2:]) for rows in again.values() if rows
    }
    assert len(prompts) == 1
    one = wander("view", "run", "--rollout", str(again[3][0]["number"]))
    assert "after 3 steps of training" in one.out
    played = wander("eval", TICTACTOE, "-m", "run/model", "-n", "4", "--max-tokens", "8", "--json")
    assert played.data["model"]["name"] == "run"
    assert played.data["summary"]["failed"] == 0


@pytest.mark.full
def test_a_run_trains_with_remote_workers_and_is_verified_there(
    wander: Wander, tiny: Path, home: Path, tmp_path: Path
) -> None:
    (home / "token").write_text("a-token-of-the-tests\n")
    (home / "other").write_text("another-token-entirely\n")
    (home / "grpo.toml").write_text(SETTINGS.replace("workers = 2", ""))
    words = ("train", TICTACTOE, "grpo.toml", "--model", "tiny", "--steps", "1")
    folder = tmp_path / "tictactoe"
    shutil.copytree(TICTACTOE, folder)
    with worker(folder, "--token-file", str(home / "token")) as address:
        refused = wander(*words, "--worker", address, "--worker-token-file", "other")
        confined = wander(*words, "--worker", address, "--worker-token-file", "token", "--sandbox")
        done = wander(*words, "--worker", address, "--worker-token-file", "token", "-o", "run", "--json")
    assert (refused.status, confined.status) == (4, 2)
    assert "`--sandbox` applies to workers on this machine" in confined.err
    assert done.status == 0, done.err
    asked = json.loads((home / "run" / "command.json").read_text())["command"]["settings"]["environment"]
    assert (asked["workers"], asked["worker_token_file"]) == ([address], str(home / "token"))
    kept = json.loads((home / "run" / "run.json").read_text())["training"]["environment"]
    assert (kept["workers"], kept["worker_token_file"]) == (1, None), "an address is not for the record"
    gone = wander("train", "--verify", "run", "--steps", "1")
    assert (gone.status, f"no worker responds at `{address}`" in gone.err) == (5, True)
    with worker(folder) as moved:
        same = wander("train", "--verify", "run", "--steps", "1", "--worker", moved, "--json")
    assert same.data["same"] is True


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--worker", "far:7100"), "`far:7100` is not a worker's address"),
        (("--worker", "unix://sock"), "is not the absolute path of a socket"),
        (("--worker-token-file", "grpo.toml"), "needs a remote worker: `--worker tcp://HOST:PORT`"),
        (("--worker", "tcp://far:1", "--worker-token-file", "none"), "cannot read the token file"),
        (("--set", "environment.workers=0"), "`: write a number from 1 to 256"),
        (("--set", "environment.workers=[]"), 'or addresses such as `["tcp://HOST:7100"]`'),
    ],
)
def test_impossible_workers_are_usage_errors(
    wander: Wander, home: Path, words: tuple[str, ...], says: str
) -> None:
    (home / "grpo.toml").write_text(SETTINGS)
    refused = wander("train", TICTACTOE, "grpo.toml", "--model", "smollm2", *words)
    assert refused.status == 2
    assert says in refused.err


@pytest.mark.full
def test_an_interrupt_keeps_a_checkpoint_to_resume_from(
    wander: Wander, tiny: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wander_client.training.progress import TrainingProgress

    show = TrainingProgress.show

    def interrupt(lines: TrainingProgress, entry: dict[str, object]) -> None:
        show(lines, entry)
        if entry["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    (home / "grpo.toml").write_text(SETTINGS)
    monkeypatch.setattr(TrainingProgress, "show", interrupt)
    stopped = wander("train", TICTACTOE, "grpo.toml", "--model", "tiny", "--out", "run")
    assert stopped.status == 130
    assert "wander train --resume run" in stopped.err
    monkeypatch.setattr(TrainingProgress, "show", show)
    resumed = wander("train", "--resume", "run", "--json")
    assert resumed.data["steps"] == 3
    steps = [json.loads(line)["step"] for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]
    listed = wander("model", "list", "--json")
    assert listed.status == 0


@pytest.mark.full
def test_a_rollout_over_its_time_limit_fails_and_the_step_ends(
    wander: Wander, tiny: Path, folder: Path
) -> None:
    module = folder / "say_env.py"
    hangs = "    if answer == '1': await __import__('asyncio').Event().wait()\n    return float("
    text = module.read_text().replace("def right", "async def right").replace("    return float(", hangs)
    module.write_text(text)
    done = wander(
        *("train", str(folder), "--model", str(tiny), "--out", "run", "--set", "schedule.steps=1"),
        *("--set", "batch.rollouts=4", "--set", "batch.group_size=2", "--set", "batch.retries=0"),
        *("--set", "environment.rollout_timeout=2", "--set", "sampling.max_tokens=4"),
    )
    assert done.status == 0, done.err
    (entry,) = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert (entry["rollouts"], entry["failed"]) == (4, 2)


def test_sft_without_a_model_prints_a_complete_command(wander: Wander, home: Path) -> None:
    Path("my rows.jsonl").write_text("")
    refused = wander("model", "sft", "my rows.jsonl", "--out", "sft", "--json")
    assert refused.status == 2
    assert "wander model sft 'my rows.jsonl' --model" in refused.json["error"]["hint"]
