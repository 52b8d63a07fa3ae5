"""What `verify_training` finds in a run's record beside its first steps: one thing changed at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wander.errors import RunError
from wander.evals.store import jsonl
from wander.evals.store.folder import RunFolder
from wander.train.config import GRPOSettings
from wander.train.evaluation.evaluator import EVALUATIONS, read_evaluations
from wander.train.grpo import train_grpo
from wander.train.metrics import METRICS
from wander.train.records.checkpoints import SAVED, SEALS, read_saved, write_saved
from wander.train.records.outcome import BestCheckpoint, read_best, write_best
from wander.train.records.step_hash import STEPS, read_steps
from wander.train.rollouts.ahead import AHEAD, KeptStep
from wander.train.verify import RecordCheck, TrainingVerification, verify_training
from wander.train.verify.derived import check_derived
from wander.train.verify.records import check_evaluations
from wander.train.watch.alerts import Alert, read_alerts, write_alerts

from .conftest import bandit, opener_of


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 16},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 3, "learning_rate": 5e-3},
        "evaluation": {"every": 1, "examples": 6},
        "output": {"checkpoint_every": 1, "keep_best": "eval/payoff"},
    }
    return GRPOSettings.model_validate(
        data | {name: data.get(name, {}) | fields for name, fields in sections.items()}
    )


@pytest.fixture(scope="module")
def trained(puller: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, evaluated after each, with its best and its checkpoints."""
    folder = tmp_path_factory.mktemp("checked") / "run"
    train_grpo(opener_of(bandit), settings_for(puller), folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, to be tampered with."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def verified(run: Path) -> TrainingVerification:
    return verify_training(run, opener_of(bandit), steps=1)


def part(report: TrainingVerification, name: str) -> RecordCheck:
    return next(check for check in report.records if check.part == name)


def edit_line(file: Path, step: int, edit: Callable[[dict[str, Any]], object]) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["step"] == step:
            edit(line)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def forget(run: Path, *fields: str) -> None:
    """Leave in the hashes of steps what an earlier trainer wrote."""
    for step in (1, 2, 3):
        edit_line(run / STEPS, step, lambda line: [line.pop(field) for field in fields])


def told(report: TrainingVerification) -> list[tuple[str, int | None, str | None]]:
    return [(one.file, one.step, one.key) for check in report.records for one in check.differences]


def test_a_sound_record_is_checked_whole(run: Path) -> None:
    report = verified(run)
    assert (report.same, report.sound) == (True, True)
    metrics, evaluations, checkpoints = report.records
    assert (metrics.checked, metrics.unchecked) == (3, [])
    assert evaluations.checked == 4
    best = json.loads((run / "best.json").read_text())["step"]
    assert set(evaluations.played_again) == {0, best, 3}, "the weights of these steps are here"
    left = sorted({1, 2} - {best})
    assert [each.partition(" were")[0] for each in evaluations.unchecked] == [
        f"evaluations after steps {', '.join(map(str, left))}"
    ]
    folders = [*(run / "checkpoints").glob("checkpoint-*"), run / "model", run / "best"]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert checkpoints.checked == sum(file.name != "seal.json" for file in files)
    assert checkpoints.unchecked == []


@pytest.mark.parametrize("key", ["entropy", "grad_norm", "seconds/update"])
def test_a_changed_digit_in_the_metrics_is_named_by_step_and_key(run: Path, key: str) -> None:
    edit_line(run / "metrics.jsonl", 2, lambda line: line.update({key: line[key] * (1 + 1e-15) + 1e-15}))
    report = verified(run)
    assert (report.same, report.sound) == (True, False)
    assert told(report) == [("metrics.jsonl", 2, key)]


def test_a_line_of_metrics_that_is_gone_or_no_line_is_named(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0] + lines[2])
    assert ("metrics.jsonl", 2, None) in told(verified(run))
    (run / "metrics.jsonl").write_text(lines[0] + lines[1][:40] + "\n" + lines[2])
    [damaged] = part(verified(run), "metrics").differences
    assert damaged.problem.endswith("is damaged: line 2 is no step")


def test_an_update_that_is_not_of_its_metrics_is_blamed_on_the_hash(run: Path) -> None:
    edit_line(run / STEPS, 2, lambda line: line.update(update="0" * 64))
    assert told(verified(run)) == [(STEPS, 2, "update")]


def test_what_an_evaluation_says_is_held_against_the_metrics_and_played_again(run: Path) -> None:
    def raise_payoff(line: dict[str, Any]) -> None:
        line["metrics"]["payoff"] += 0.25

    edit_line(run / "evaluations.jsonl", 3, raise_payoff)
    assert told(verified(run)) == [("evaluations.jsonl", 3, "eval/payoff")] * 2
    # The same lie in both files: only playing it again tells.
    value = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])["metrics"]["payoff"]
    edit_line(run / "metrics.jsonl", 3, lambda line: line.update({"evaluation/eval/payoff": value}))
    forget(run, "metrics", "evaluations", "seal")
    report = verified(run)
    best, difference = part(report, "evaluations").differences
    assert (best.file, best.problem) == ("best.json", "that of step 3 is better, and came later")
    assert (difference.step, difference.key) == (3, "eval/payoff")
    assert difference.problem.endswith("when it is played again")


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_no_value_of_an_evaluation_can_be_changed_unnoticed(run: Path, step: int) -> None:
    """Steps 0 and 3 are played again, the others are not."""
    whole = (run / EVALUATIONS).read_text()
    line = next(one for one in map(json.loads, whole.splitlines()) if one["step"] == step)
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "eval/payoff": lambda one: one["metrics"].update(payoff=0.5 + one["metrics"]["payoff"]),
        "eval/intervals/payoff": lambda one: one["intervals"].update(payoff=[-1.0, 2.0]),
        "eval/interval": lambda one: one.update(interval=None),
    }
    for name, value in line.items():
        if isinstance(value, int | float) and name not in ("step", "cell"):
            changes[f"eval/{name}"] = lambda one, name=name: one.update({name: one[name] + 1})  # type: ignore[misc]
    split = "eval" if line["split"] == "train" else "train"
    for key, other in ("split", split), ("task_set_sha256", "0" * 64):
        changes[f"eval/{key}"] = lambda one, key=key, other=other: one.update({key: other})  # type: ignore[misc]
    assert set(line) - {"step", "cell", "metrics", "intervals", "lines"} <= {name[5:] for name in changes}
    recorded = read_steps(run / STEPS)
    for key, change in changes.items():
        edit_line(run / EVALUATIONS, step, change)
        check = check_evaluations(run, RunFolder.open(run).manifest, recorded)
        found = [(one.file, one.step, one.key) for one in check.differences]
        assert found, key
        assert found[0][:2] == (EVALUATIONS, step), key
        assert (
            found[0][2] == key or key == "eval/interval"
        )  # what is gone is told by what stands in its place
        (run / EVALUATIONS).write_text(whole)
    edit_line(run / EVALUATIONS, step, lambda one: one.update(cell="other"))
    assert any(one[:2] == (EVALUATIONS, step) for one in told(verified(run)))


@pytest.mark.parametrize("file", [EVALUATIONS, STEPS, METRICS])
def test_lines_that_changed_places_are_named(run: Path, file: str) -> None:
    lines = (run / file).read_text().splitlines(keepends=True)
    lines[-1], lines[-2] = lines[-2], lines[-1]
    (run / file).write_text("".join(lines))
    found = told(verified(run))
    assert {one[:2] for one in found if one[0] == file} >= {(file, 2)}
    assert {one[0] for one in found} == {file}


@pytest.mark.parametrize("field", ["rollouts", "rewards", "update", "weights", "evaluations", "seal"])
def test_no_hash_of_a_step_can_be_changed_unnoticed(run: Path, field: str) -> None:
    for step in (2, 3):  # which are not played again
        kept = (run / STEPS).read_text()
        edit_line(run / STEPS, step, lambda line: line.update({field: "0" * 64}))
        found = told(verified(run))
        assert found, step
        assert min(one[1] or 0 for one in found) == step
        (run / STEPS).write_text(kept)


def test_an_evaluation_that_was_added_or_taken_out_is_named(run: Path) -> None:
    lines = (run / EVALUATIONS).read_text().splitlines(keepends=True)
    (run / EVALUATIONS).write_text("".join([lines[0], *lines[2:]]))
    assert (EVALUATIONS, 1, "eval/reward") in told(verified(run))
    added = {**json.loads(lines[0]), "cell": "other"}  # of no step: only the hashes tell of it
    (run / EVALUATIONS).write_text("".join([lines[0], json.dumps(added) + "\n", *lines[1:]]))
    assert (EVALUATIONS, 0) in {one[:2] for one in told(verified(run))}


def test_a_best_that_was_not_the_best_is_named(run: Path) -> None:
    best = read_best(run)
    assert best is not None
    values = {one.step: one.metrics["payoff"] for one in read_evaluations(run)}
    worse = min(values, key=lambda step: (values[step], step))
    assert values[worse] < best.value
    other = best.model_copy(update={"step": worse, "value": values[worse]})
    write_best(run, other)
    outcome = json.loads((run / "outcome.json").read_text())
    (run / "outcome.json").write_text(json.dumps({**outcome, "best": other.model_dump()}))
    check = part(verified(run), "evaluations")
    if worse < best.step:
        assert ("best.json", worse, "eval/payoff") in told(verified(run))
    else:
        assert any("went on in between" in each for each in check.unchecked)
    write_best(run, best.model_copy(update={"mode": "min", "metric": "eval/reward"}))
    assert {("best.json", best.step, "best_mode"), ("best.json", best.step, "keep_best")} <= set(
        told(verified(run))
    )


def test_an_end_that_is_not_of_the_last_step_is_named(run: Path) -> None:
    outcome = json.loads((run / "outcome.json").read_text())
    stopped = {"kind": "target", "step": 2, "reason": "the target is reached"}
    (run / "outcome.json").write_text(json.dumps({**outcome, "stopped": stopped}))
    assert told(verified(run)) == [("outcome.json", None, "stopped")]


def test_a_best_without_a_digest_is_named(run: Path) -> None:
    best = read_best(run)
    assert best is not None
    bare = best.model_copy(update={"weights_sha256": None})
    write_best(run, bare)
    outcome = json.loads((run / "outcome.json").read_text())
    (run / "outcome.json").write_text(json.dumps({**outcome, "best": bare.model_dump()}))
    assert told(verified(run)) == [("best.json", best.step, "weights_sha256")]


def test_alerts_and_the_reason_of_an_end_are_those_of_the_metrics(puller: Path, tmp_path: Path) -> None:
    run, low = tmp_path / "run", {"eval/payoff": "<=1000000"}
    settings = settings_for(
        puller,
        alerts={"truncated": 0.0},
        sampling={"max_tokens": 6, "max_rollout_tokens": 12},
        stopping={"target": low},
    )
    train_grpo(opener_of(bandit), settings, run)
    outcome = json.loads((run / "outcome.json").read_text())
    assert (outcome["stopped"]["kind"], outcome["steps"]) == ("target", 1)
    assert told(verified(run)) == []
    kept = read_alerts(run)
    assert kept, "every rollout of so few tokens is cut short"
    added = Alert(step=1, rule="no_variance", message="nothing is learnt")
    (run / "outcome.json").write_text(
        json.dumps({**outcome, "stopped": {**outcome["stopped"], "reason": "it was good enough"}})
    )
    write_alerts(run, [added, *kept[1:]])
    found = told(verified(run))
    assert found[-1] == ("outcome.json", 1, "stopped")
    assert set(found[:-1]) == {("alerts.jsonl", one.step, one.rule) for one in (kept[0], added)}


def test_an_end_by_collapse_before_a_step_with_an_evaluation_is_checked(run: Path) -> None:
    """A target tells nothing of a step that was not evaluated."""
    manifest = json.loads((run / "run.json").read_text())
    manifest["training"]["stopping"] = {"target": {"eval/payoff": "<=-1000000"}}
    (run / "run.json").write_text(json.dumps(manifest))
    outcome = json.loads((run / "outcome.json").read_text())
    stopped = {"kind": "collapse", "step": 3, "reason": "nothing is learnt"}
    (run / "outcome.json").write_text(json.dumps({**outcome, "stopped": stopped}))
    evaluated = (run / EVALUATIONS).read_text().splitlines(keepends=True)
    (run / EVALUATIONS).write_text("".join(evaluated[:-1]))
    check = RecordCheck(part="metrics")
    check_derived(check, run, RunFolder.open(run).manifest)
    assert [(one.file, one.key) for one in check.differences] == [("outcome.json", "stopped")]


@pytest.mark.parametrize("killed", [False, True])
def test_alerts_of_the_last_step_of_a_killed_run_may_be_missing(run: Path, killed: bool) -> None:
    manifest = json.loads((run / "run.json").read_text())
    manifest["training"]["alerts"] = {"truncated": 0.0}
    (run / "run.json").write_text(json.dumps(manifest))
    for line, step in enumerate((1, 2, 3)):
        edit_line(run / METRICS, step, lambda entry, line=line: entry.update({"truncated": line // 2}))  # type: ignore[misc]
    if killed:
        (run / "outcome.json").unlink()
    check = RecordCheck(part="metrics")
    check_derived(check, run, RunFolder.open(run).manifest)
    missing = [] if killed else [("alerts.jsonl", 3, "truncated")]
    assert [(one.file, one.step, one.key) for one in check.differences] == missing
    assert any(each.startswith("`alerts.jsonl` of step 3") for each in check.unchecked) == killed


def test_a_best_that_was_taken_out_is_named(run: Path) -> None:
    outcome = json.loads((run / "outcome.json").read_text())
    (run / "outcome.json").write_text(json.dumps({**outcome, "best": None}))
    (run / "best.json").unlink()
    assert ("best.json", None, None) in told(verified(run))


def test_an_interrupted_run_that_says_it_finished_is_named(run: Path) -> None:
    """As it is after step 2, but for the end."""
    for file in (METRICS, EVALUATIONS, STEPS):
        lines = (run / file).read_text().splitlines(keepends=True)
        (run / file).write_text("".join(line for line in lines if json.loads(line)["step"] < 3))
    outcome = json.loads((run / "outcome.json").read_text()) | {"steps": 2}
    for finished in (True, False):
        (run / "outcome.json").write_text(json.dumps({**outcome, "finished": finished}))
        assert (("outcome.json", None, "finished") in told(verified(run))) == finished


@pytest.mark.parametrize("change", ["metrics", "reward_low", "turns_mean"])
def test_no_aggregate_of_the_summary_can_be_changed_unnoticed(run: Path, change: str) -> None:
    summary = json.loads((run / "summary.json").read_text())
    held, key = (summary["metrics"]["payoff"], "high") if change == "metrics" else (summary, change)
    held[key] = held[key] + 0.01
    (run / "summary.json").write_text(json.dumps(summary))
    name = "metrics/payoff/high" if change == "metrics" else change
    assert told(verified(run)) == [("summary.json", None, name)]


def test_a_best_that_was_not_measured_is_named(run: Path) -> None:
    best = json.loads((run / "best.json").read_text())
    (run / "best.json").write_text(json.dumps({**best, "value": best["value"] + 0.5}))
    assert told(verified(run)) == [("outcome.json", None, "best"), ("best.json", best["step"], "eval/payoff")]


def test_a_mean_that_is_not_that_of_the_rollouts_is_named(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "reward_mean": summary["reward_mean"] + 0.01}))
    assert told(verified(run)) == [("summary.json", None, "reward_mean")]


@pytest.mark.parametrize(
    ("file", "step"),
    [
        ("checkpoints/checkpoint-1/optimizer.pt", 1),
        ("checkpoints/checkpoint-2/model.safetensors", 2),
        ("model/model.safetensors", 3),
        ("model/tokenizer.json", 3),
        ("best/model.safetensors", None),
    ],
)
def test_a_byte_changed_in_a_checkpoint_or_a_model_is_found_and_the_file_named(
    run: Path, file: str, step: int | None
) -> None:
    change_byte(run / file)
    report = verified(run)
    [difference] = part(report, "checkpoints").differences
    best = json.loads((run / "best.json").read_text())["step"]
    assert (difference.file, difference.step) == (file, best if step is None else step)
    assert difference.problem == "is damaged: its bytes are not those that were saved"


def test_other_weights_are_found_although_their_digests_were_changed_too(run: Path) -> None:
    shutil.copy(run / "checkpoints" / "checkpoint-1" / "model.safetensors", run / "model")
    (run / SEALS).unlink()
    report = verified(run)
    assert part(report, "checkpoints").differences == [], "they are weights that the run saved"
    [difference] = part(report, "evaluations").differences
    assert (difference.file, difference.step) == ("model", 3)
    assert difference.problem == "its weights are not those of `steps.jsonl`"


def test_a_run_of_an_earlier_trainer_says_what_it_lacks(run: Path) -> None:
    forget(run, "metrics", "evaluations", "seal")
    (run / SEALS).unlink()
    report = verified(run)
    assert (report.same, report.sound) == (True, True)
    metrics, seals = part(report, "metrics").unchecked
    assert metrics.startswith("the metrics of steps 1 to 3, but loss, grad_norm, learning_rate")
    assert seals == "the hashes of steps 1 to 3: an earlier trainer sealed none"
    means = "all but the means of the evaluations of steps 0 to 3: no hash tells of it"
    assert means in part(report, "evaluations").unchecked
    assert [each.partition(" but ")[0] for each in part(report, "checkpoints").unchecked] == [
        "the files of `model`",
        "the files of `best`",
    ]
    edit_line(run / "metrics.jsonl", 2, lambda line: line.update(loss=line["loss"] + 1e-9))
    [difference] = part(verified(run), "metrics").differences
    assert difference.step == 2
    assert difference.problem == "one of loss, grad_norm, learning_rate is not what was hashed"


def test_the_best_of_a_killed_run_need_not_be_a_checkpoint(run: Path) -> None:
    best = read_best(run)
    assert best is not None
    (run / "outcome.json").unlink()  # it is written at the end, and so is the line of the best
    shutil.rmtree(run / "checkpoints" / f"checkpoint-{best.step}", ignore_errors=True)
    write_saved(run, [one for one in read_saved(run) if one.weights_sha256 != best.weights_sha256])
    assert told(verified(run)) == []
    write_best(run, best.model_copy(update={"weights_sha256": "0" * 64}))
    [difference] = part(verified(run), "checkpoints").differences
    assert (difference.file, difference.problem) == ("best", f"its weights are not listed in `{SAVED}`")


@pytest.mark.parametrize("file", ["best.json", "outcome.json", "evaluations.jsonl"])
def test_a_damaged_file_is_a_difference(run: Path, file: str) -> None:
    (run / file).write_text("{\n{}\n")
    report = verified(run)
    assert (report.same, report.sound) == (True, False)
    assert {one.file for check in report.records for one in check.differences} == {file}
    assert part(report, "evaluations").played_again == []


def test_evaluations_after_an_allowed_change_are_not_played_again(run: Path) -> None:
    manifest = json.loads((run / "run.json").read_text())
    change = {"field": "reproduction.libraries.torch", "before": "1", "after": "2"}
    manifest["reproduction"]["allowed"] = [{**change, "step": 1, "at": "2026-01-01T00:00:00Z"}]
    (run / "run.json").write_text(json.dumps(manifest))
    evaluations = part(verified(run), "evaluations")
    assert 0 in evaluations.played_again
    assert max(evaluations.played_again) <= 1
    assert evaluations.unchecked[-1] == (
        "evaluations after steps 2, 3 were not played again: "
        "the run had gone on with changes that were allowed"
    )


def test_evaluations_in_half_precision_come_out_the_same(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(
        puller,
        model={"autocast": True},
        schedule={"steps": 1},
        evaluation={"examples": 48, "temperature": 2.0, "max_tokens": 12},  # so that small differences tell
    )
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    report = verified(tmp_path / "run")
    assert told(report) == []
    assert set(part(report, "evaluations").played_again) == {0, 1}


def test_a_best_of_steps_that_are_made_again_is_forgotten(puller: Path, run: Path) -> None:
    write_best(run, BestCheckpoint(metric="eval/payoff", mode="max", value=9.0, step=3))
    train_grpo(opener_of(bandit), settings_for(puller), run, resume=True, checkpoint=1)
    best = read_best(run)
    assert best is not None
    assert best.value == max(one.metrics["payoff"] for one in read_evaluations(run) if one.step > 1)
    assert told(verified(run)) == []


@pytest.mark.parametrize("kind", ["steps ahead", "a batch"])
def test_kept_rollouts_are_not_gone_on_with_in_another_number_of_processes(
    puller: Path, run: Path, kind: str
) -> None:
    folder = run / "checkpoints" / "checkpoint-3"
    if kind == "a batch":
        for process in range(2):
            (folder / f"batch-{process}.pt").write_bytes(b"")
    else:
        figures: Any = dict.fromkeys(("seconds", "model_seconds", "retried", "sampled_tokens", "entropy"), 0)
        kept = [
            KeptStep(step=3, version=2, picks=[], rollouts=[], process=process, **figures)
            for process in range(2)
        ]
        jsonl.write_records(folder / AHEAD, kept)
    with pytest.raises(RunError, match="keeps rollouts for 2 processes to share") as refused:
        train_grpo(opener_of(bandit), settings_for(puller), run, resume=True, allow_changes=True)
    assert "--checkpoint 2 --allow-changes` goes on from that of step 2" in (refused.value.hint or "")
    assert len(read_evaluations(run)) == 4, "nothing was touched"


@pytest.mark.parametrize("value", ["x", [0], 10**400])
@pytest.mark.parametrize("name", ["loss", "evaluation/eval/payoff"])
def test_what_is_no_number_is_named(run: Path, name: str, value: Any) -> None:
    edit_line(run / METRICS, 2, lambda line: line.__setitem__(name, value))
    found = told(verified(run))
    assert (METRICS, 2, name) in found


@pytest.mark.parametrize("file", [METRICS, EVALUATIONS, STEPS])
def test_a_line_that_stands_twice_is_named(run: Path, file: str) -> None:
    lines = (run / file).read_text().splitlines(keepends=True)
    (run / file).write_text("".join([lines[1], *lines]))
    assert any(one[0] == file for one in told(verified(run)))


def test_a_step_that_was_taken_out_is_named(run: Path) -> None:
    lines = (run / STEPS).read_text().splitlines(keepends=True)
    (run / STEPS).write_text(lines[0] + lines[2])
    assert (STEPS, 2, None) in told(verified(run))
