"""`wander train` with phases, evaluations, targets and the weights of other runs, on tiny policies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from command_line import Wander
from wander.models.loading import weights_digest
from wander.train.records.files import read_evaluations

TICTACTOE = str(Path(__file__).parents[3] / "environments" / "tictactoe")
SHARED = """
[environment.arguments]
num_examples = 16
num_groups = 4

[batch]
rollouts = 8
group_size = 4
rows_at_once = 8

[sampling]
max_tokens = 8

[schedule]
steps = 2
learning_rate = 1e-3

[evaluation]
every = 1
examples = 4
[[evaluation.cells]]
name = "optimal"
arguments = { max_random_move_prob = 0.0 }
"""
PHASES = (
    SHARED
    + """
[output]
keep_best = "optimal/reward"

[[phases]]
name = "games"
kind = "rollouts"
[phases.rollouts]
model = "scripted:tictactoe.players:optimal"
examples = 16
[phases.filter]
where = ["lost==0"]

[[phases]]
name = "new"
kind = "model"
[phases.tiny]
hidden = 32
layers = 1
vocabulary = 330

[[phases]]
name = "warm-up"
kind = "sft"
[phases.batch]
rows = 8
[phases.schedule]
steps = 2
learning_rate = 2e-3

[[phases]]
name = "one"
kind = "grpo"

[[phases]]
name = "two"
kind = "grpo"
[phases.environment.arguments]
max_random_move_prob = 0.25
"""
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def phases(home: Path) -> Path:
    (home / "phases.toml").write_text(PHASES)
    return home / "phases.toml"


@pytest.mark.full
def test_phases_run_in_order_and_resume(
    wander: Wander, home: Path, phases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wander.train.records.record import TrainingRecord

    note = TrainingRecord.on_log

    def interrupt(record: TrainingRecord, *args: object, **given: object) -> None:
        note(record, *args, **given)
        if "4-one" in str(record.path) and len(record.entries) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingRecord, "on_log", interrupt)
    stopped = wander("train", TICTACTOE, "phases.toml", "--out", "run")
    assert stopped.status == 130, stopped.err
    assert "wander train --resume run" in stopped.err
    assert "phase 1 of 5, games: scripted:tictactoe.players:optimal plays 16 examples" in stopped.err
    assert "`--set phases.two.batch.rollouts=256`" in stopped.err.partition("phase 1 of 5")[0]
    assert not (home / "run" / "5-two").exists()
    rows = (home / "run" / "1-games" / "rows.jsonl").stat().st_mtime_ns
    warm = weights_digest(home / "run" / "3-warm-up" / "model")

    monkeypatch.setattr(TrainingRecord, "on_log", note)
    done = wander("train", "--resume", "run", "--json")
    assert done.status == 0, done.err
    assert "batch.rollouts" not in done.err, "that was said at the beginning"
    assert [each["phase"] for each in done.data["phases"]] == ["games", "new", "warm-up", "one", "two"]
    assert [each["steps"] for each in done.data["phases"]] == [0, 0, 2, 2, 2]
    assert rows == (home / "run" / "1-games" / "rows.jsonl").stat().st_mtime_ns, "a finished phase stays"
    assert warm == weights_digest(home / "run" / "3-warm-up" / "model")

    one = json.loads((home / "run" / "4-one" / "run.json").read_text())
    assert one["model"]["weights_sha256"] == warm
    two = json.loads((home / "run" / "5-two" / "run.json").read_text())
    assert two["model"]["weights_sha256"] == weights_digest(home / "run" / "4-one" / "best")
    assert two["environment"]["arguments"]["max_random_move_prob"] == 0.25
    assert weights_digest(Path(done.data["model"])) == weights_digest(home / "run" / "5-two" / "best")
    again = wander("train", "--resume", "run")
    assert again.status == 0
    assert again.err.count("already finished") == 5


def test_a_dry_run_prints_the_maximum_number_of_rollouts(wander: Wander, home: Path, phases: Path) -> None:
    done = wander("train", TICTACTOE, "phases.toml", "--dry-run", "--json")
    games, new, warm_up, one, two = done.data["phases"]
    assert (games["rollouts"], games["tokens_at_most"]) == (16, 0)
    assert (new["steps"], warm_up["steps"], warm_up["begins_with"]) == (0, 2, "phase:new")
    assert (one["rollouts"], one["evaluation_rollouts"], two["begins_with"]) == (16, 12, "phase:one")
    assert one["tokens_at_most"] == (16 + 12) * 8 * 8, "8 turns of 8 tokens"
    assert done.data["tokens_at_most"] == 2 * one["tokens_at_most"]
    assert done.data["rollouts"] == 16 + 2 * 28
    assert two["settings"]["environment"]["arguments"]["max_random_move_prob"] == 0.25
    shown = wander("train", TICTACTOE, "phases.toml", "--dry-run")
    assert 'keep_best = "optimal/reward"' in shown.out
    assert "nothing was played" in shown.out
    assert not list(home.glob("runs/*"))


def test_a_dry_run_finds_invalid_arguments_of_the_environment(wander: Wander, home: Path) -> None:
    (home / "grpo.toml").write_text(SHARED.replace("max_random_move_prob = 0.0", "opponents = 3"))
    refused = wander("train", TICTACTOE, "grpo.toml", "-m", "smollm2", "--dry-run")
    assert refused.status == 2
    assert "opponents" in refused.err


def test_a_dry_run_checks_the_workers_and_the_steps(wander: Wander, home: Path, phases: Path) -> None:
    (home / "grpo.toml").write_text(SHARED)
    begin = ("train", TICTACTOE, "grpo.toml", "-m", "smollm2", "--dry-run")
    worker = ("--worker", "tcp://127.0.0.1:1")
    missing = wander(*begin, *worker, "--worker-token-file", "nosuch")
    assert (missing.status, "cannot read the token file" in missing.err) == (2, True), missing.err
    (home / "token").write_text("a-token-of-the-tests\n")
    alone = wander(*begin, "--worker-token-file", "token")
    assert "`environment.worker_token_file` needs a remote worker" in alone.err
    assert wander(*begin, *worker, "--worker-token-file", "token").status == 0
    steps = wander("train", TICTACTOE, "phases.toml", "--dry-run", "--steps", "3")
    assert "`--steps` does not apply to a training with phases" in steps.err
    assert "phases.two.schedule.steps=3" in steps.err


def tiny(wander: Wander) -> None:
    made = wander(
        *("model", "new", "tiny", "--environment", TICTACTOE, "--out", "tiny", "--episodes", "20"),
        *("--hidden", "32", "--layers", "1", "--vocabulary", "330"),
    )
    assert made.status == 0, made.err


@pytest.mark.full
def test_a_run_can_start_from_a_checkpoint(wander: Wander, home: Path) -> None:
    tiny(wander)
    (home / "grpo.toml").write_text(SHARED)
    first = wander(
        *("train", TICTACTOE, "grpo.toml", "-m", "tiny", "--out", "first"),
        *("--set", "output.checkpoint_every=1", "--set", "model.lora_rank=2"),
    )
    assert first.status == 0, first.err
    assert "already" not in first.err
    more = wander("train", TICTACTOE, "grpo.toml", "--from", "first@1", "--out", "more", "--json")
    assert more.data["steps"] == 2
    begun = json.loads((home / "more" / "run.json").read_text())["model"]
    assert begun["weights_sha256"] == weights_digest(home / "first" / "checkpoints" / "checkpoint-1")
    last = wander("train", TICTACTOE, "grpo.toml", "--from", "first", "--out", "last", "--json")
    begun = json.loads((home / "last" / "run.json").read_text())["model"]
    assert last.status == 0
    assert begun["weights_sha256"] == weights_digest(home / "first" / "model")

    none = wander("train", TICTACTOE, "grpo.toml", "--from", "first@7")
    assert (none.status, "`first@1`, `first@2`, `first@last`" in none.err) == (3, True)
    finished = wander("train", "--resume", "first")
    assert finished.status == 2
    assert "`first` is finished" in finished.err
    assert "--from first" in finished.err


@pytest.mark.full
def test_the_exit_message_explains_why_a_run_stopped(wander: Wander, home: Path) -> None:
    tiny(wander)
    target = SHARED + '\n[stopping]\ntarget = { "optimal/reward" = -1.0 }\n'
    (home / "grpo.toml").write_text(target)
    done = wander("train", TICTACTOE, "grpo.toml", "-m", "tiny", "--out", "run")
    assert done.status == 0, done.err
    assert "stopped after step 1: the target is reached: `optimal/reward` is" in done.err
    assert {one.step for one in read_evaluations(home / "run")} == {0, 1}


def test_a_collapsed_run_is_an_error_with_its_reason(tmp_path: Path) -> None:
    from wander.train.records.files import Stopped
    from wander_client.errors import ClientError
    from wander_client.training.run import require_not_collapsed

    require_not_collapsed(None, tmp_path)
    require_not_collapsed(Stopped(kind="target", step=3, reason="it is reached"), tmp_path)
    with pytest.raises(ClientError, match="stopped after step 3: the entropy is 0") as refused:
        require_not_collapsed(Stopped(kind="collapse", step=3, reason="the entropy is 0"), tmp_path)
    assert (refused.value.status, refused.value.code) == (1, "collapsed")


def test_phases_run_in_one_process(
    wander: Wander, home: Path, phases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = wander("train", TICTACTOE, "phases.toml", "--out", "run")
    assert (refused.status, "`phases.toml` has phases, which needs a single process" in refused.err) == (
        2,
        True,
    )
    assert not (home / "run").exists()
    assert "`--verify` needs a single process" in wander("train", "--verify", ".").err


def test_a_mixture_of_a_phase_names_its_environments_exactly(wander: Wander, home: Path) -> None:
    from wander.train.phases import GRPOPhase
    from wander_client.context import CommonOptions, Invocation
    from wander_client.terminal.output import Output
    from wander_client.training.phases import new_command

    reverse = os.path.relpath(Path(TICTACTOE).parent / "reverse_text", home)
    (home / "config.json").write_text("{}")
    file = home / "mixed.toml"
    file.write_text(f"""
[[phases]]
name = "only"
kind = "grpo"
[phases.model]
path = "{home}"
[[phases.environments]]
[[phases.environments]]
name = "{reverse}"
label = "reverse"
""")
    context = Invocation(CommonOptions(), Output("quiet"))
    command = new_command(context, TICTACTOE, file, None, [], [])
    assert command is not None
    phase = command.phases[0]
    assert isinstance(phase, GRPOPhase)
    assert [each.name for each in phase.settings.environments] == [None, str(Path(reverse).resolve())]


def test_contradictory_settings_of_phases_are_rejected(wander: Wander, home: Path, phases: Path) -> None:
    both = wander("train", TICTACTOE, "phases.toml", "--from", "a", "-m", "b")
    assert (both.status, "both name the weights" in both.err) == (2, True)
    steps = wander("train", TICTACTOE, "phases.toml", "--steps", "3")
    assert (steps.status, "--set phases.two.schedule.steps=3" in steps.err) == (2, True)
    arguments = wander("train", TICTACTOE, "phases.toml", "-a", "seed=3")
    assert (arguments.status, "environment.arguments.KEY" in arguments.err) == (2, True)
    unused = wander("train", TICTACTOE, "phases.toml", "-m", "smollm2")
    assert (unused.status, "no phase of `phases.toml` starts from" in unused.err) == (2, True)
    nowhere = wander("train", TICTACTOE, "phases.toml", "--from", "nowhere")
    assert nowhere.status == 3
