"""The record of a training run, held against itself: what was written twice, and what was hashed.

Nothing is computed again but hashes and means, so all of it takes seconds. Who changes a value and all that
was derived from it is not found here: that is what the repetition is for.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wander.errors import RunError
from wander.evals.stats.summary import summarise_run
from wander.evals.store.folder import SUMMARY, RunFolder
from wander.models.loading import weights_digest
from wander.train.evaluation.evaluator import (
    EVALUATIONS,
    METRIC,
    CellEvaluation,
    list_values,
    read_evaluations,
)
from wander.train.metrics import METRICS, read_metrics
from wander.train.records.checkpoints import (
    BEST_MODEL,
    MODEL,
    SAVED,
    SEAL,
    find_faults,
    list_checkpoints,
    read_model_seals,
    read_saved,
)
from wander.train.records.outcome import BEST, OUTCOME, BestCheckpoint, Outcome, read_best, read_outcome
from wander.train.records.reproduction import trainer_digest
from wander.train.records.step_hash import CHECK_DIGITS, STEPS, UPDATE, StepHash, check_digits, update_hash
from wander.train.verify.findings import RecordCheck, show
from wander.wire import RunManifest

_EVALUATION = "evaluation/"
"""Begins the names of what an evaluation measured, in the metrics of its step."""


def check_metrics(run: Path, hashes: Sequence[StepHash]) -> RecordCheck:
    """Hold every value of `metrics.jsonl` against the hashes of its step."""
    check = RecordCheck(part="metrics")
    try:
        lines = read_metrics(run)
    except RunError as error:
        check.differ(METRICS, str(error))
        return check
    _check_order(check, METRICS, [(entry["step"], None) for entry in lines])
    _check_order(check, STEPS, [(line.step, None) for line in hashes])
    entries = {entry["step"]: entry for entry in lines}
    for line in hashes:
        entry = entries.pop(line.step, None)
        if entry is None:
            check.differ(METRICS, f"`{STEPS}` has the step, and this has not", step=line.step)
            continue
        check.checked += 1
        if line.metrics is not None:
            _check_values(check, entry, line.metrics, line.step)
        if not _is_update_of(entry, line.update):
            _blame_update(check, line)
    # A kill may come between the two lines of a step, and an earlier trainer wrote none of its steps.
    lacking = [step for step in entries if hashes and hashes[0].step < step < hashes[-1].step]
    for step in lacking:
        check.differ(STEPS, f"`{METRICS}` has the step, and this has not", step=step)
        del entries[step]
    if entries:
        check.unchecked.append(f"the metrics of steps {_steps(entries)}: `{STEPS}` has no line of them")
    if coarse := [line.step for line in hashes if line.metrics is None]:
        check.unchecked.append(
            f"the metrics of steps {_steps(coarse)}, but {', '.join(UPDATE)}: "
            "an earlier trainer hashed no others"
        )
    _check_seals(check, hashes)
    return check


def _check_order(check: RecordCheck, file: str, keys: Sequence[tuple[int, str | None]]) -> None:
    """Find what stands there twice, where a reader may take either, and what stands before its turn."""
    for (step, key), number in Counter(keys).items():
        if number > 1:
            check.differ(file, f"it stands there {number} times", step=step, key=key)
    for (before, _), (step, key) in itertools.pairwise(keys):
        if step < before:
            check.differ(file, f"it stands after step {before}", step=step, key=key)


def _check_seals(check: RecordCheck, hashes: Sequence[StepHash]) -> None:
    """Hold every line of hashes against its seal, which is of the lines before it too."""
    before, named = None, {one.step for one in check.differences if one.file == STEPS}
    for line in hashes:
        whole = line.seal_after(before) if line.seal is not None else before
        if line.seal != whole and line.step not in named:
            check.differ(STEPS, "its seal is not that of the line and of those before it", step=line.step)
        before = line.seal
    if unsealed := [line.step for line in hashes if line.seal is None]:
        check.unchecked.append(f"the hashes of steps {_steps(unsealed)}: an earlier trainer sealed none")


def _check_values(check: RecordCheck, entry: Mapping[str, Any], wanted: str, step: int) -> None:
    """Find the values of a line that are not those which were hashed."""
    if len(entry) * CHECK_DIGITS != len(wanted):
        then = len(wanted) // CHECK_DIGITS
        check.differ(METRICS, f"it has {len(entry)} values, and had {then}", step=step)
        return
    for name in _find_changed(entry, wanted):
        check.differ(METRICS, f"{show(entry[name])} is not what was written", step=step, key=name)


def _find_changed(told: Mapping[str, Any], wanted: str) -> Iterator[str]:
    """Yield the names of values whose check digits are not those which were kept in their place."""
    found = check_digits(told)
    for number, name in enumerate(told):
        digits = slice(number * CHECK_DIGITS, (number + 1) * CHECK_DIGITS)
        if found[digits] != wanted[digits]:
            yield name


def _is_update_of(entry: Mapping[str, Any], wanted: str) -> bool:
    """Tell whether a hash is of these metrics; they say null of whatever was no finite number."""
    choices = [(entry.get(name),) if entry.get(name) is not None else _NO_NUMBERS for name in UPDATE]
    try:
        return any(
            update_hash(dict(zip(UPDATE, values, strict=True))) == wanted
            for values in itertools.product(*choices)
        )
    except (TypeError, ValueError, OverflowError):  # somebody wrote what is no number of a computer
        return False


_NO_NUMBERS = (None, math.nan, -math.nan, math.inf, -math.inf)


def _blame_update(check: RecordCheck, line: StepHash) -> None:
    """Say that the update of a step is not that of its metrics, unless one of them was found already."""
    if any(one.step == line.step and one.key in (None, *UPDATE) for one in check.differences):
        return
    if line.metrics is None:
        check.differ(METRICS, f"one of {', '.join(UPDATE)} is not what was hashed", step=line.step)
    else:
        check.differ(STEPS, "it is not the hash of the step's metrics", step=line.step, key="update")


def check_evaluations(run: Path, manifest: RunManifest, hashes: Sequence[StepHash]) -> RecordCheck:
    """Hold `evaluations.jsonl` against metrics and hashes, best against it, summary by rollouts."""
    check = RecordCheck(part="evaluations")
    try:
        lines = read_evaluations(run)
        metrics = {entry["step"]: entry for entry in read_metrics(run)}
    except RunError as error:
        check.differ(EVALUATIONS, str(error))
        return check
    _check_order(check, EVALUATIONS, [(line.step, line.cell) for line in lines])
    if strange := sorted({line.step for line in lines} - metrics.keys() - {0}):
        check.unchecked.append(f"the evaluations of steps {_steps(strange)}: `{METRICS}` has no line of them")
    values: dict[int, dict[str, Any]] = {}
    for line in lines:
        values.setdefault(line.step, {}).update(line.values())
        check.checked += 1
    for step, entry in metrics.items():
        told = {
            name.removeprefix(_EVALUATION): value
            for name, value in entry.items()
            if name.startswith(_EVALUATION)
        }
        measured = values.get(step, {})
        for name in sorted(told.keys() | measured.keys()):
            here, there = measured.get(name), told.get(name)
            if not _same(here, there):
                problem = f"{show(here)} here, {show(there)} in {METRICS}"
                check.differ(EVALUATIONS, problem, step=step, key=name)
    _check_told(check, lines, hashes)
    _check_ends(check, run, manifest.training or {}, lines, metrics.get(max(metrics, default=0), {"step": 0}))
    _check_summary(check, run)
    return check


def _check_told(check: RecordCheck, lines: Sequence[CellEvaluation], hashes: Sequence[StepHash]) -> None:
    """Hold all that evaluations say against the check digits of their steps, in the order of then."""
    named = {(one.step, one.key) for one in check.differences}
    unsealed = {line.step for line in lines}
    for line in hashes:
        if line.evaluations is None:
            continue
        covered = {line.step, 0 if line.step == 1 else line.step}
        unsealed -= covered
        told = list_values(one for one in lines if one.step in covered)
        changed = list(_find_changed(told, line.evaluations))
        there, then = len(told), len(line.evaluations) // CHECK_DIGITS
        if there != then:  # what follows the first is in other places
            changed = changed[:1]
            if not changed:
                check.differ(EVALUATIONS, f"it has {there} values, and had {then}", step=line.step)
        for name in changed:
            step, _, key = name.partition("/")
            key = key.replace(f"/{METRIC}", "/", 1)
            if (int(step), key) not in named:
                problem = f"{show(told[name])} is not what was written"
                check.differ(EVALUATIONS, problem, step=int(step), key=key)
    if unsealed:
        check.unchecked.append(
            f"all but the means of the evaluations of steps {_steps(sorted(unsealed))}: no hash tells of it"
        )


def _same(one: Any, two: Any) -> bool:
    """Compare two numbers by their bits; what is no finite number is null in JSON."""
    return bool(_as_written(one) == _as_written(two))


def _as_written(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_ends(
    check: RecordCheck,
    run: Path,
    settings: Mapping[str, Any],
    lines: Sequence[CellEvaluation],
    last: Mapping[str, Any],
) -> None:
    """Check that the best is the best that was measured, and that the run ended after its last step.

    `last` is the last step's line of metrics.
    """
    ends = _read_ends(check, run)
    if ends is None:
        return
    best, outcome = ends
    if outcome is not None:
        stopped = outcome.stopped
        for key, step in ("steps", outcome.steps), ("stopped", stopped.step if stopped else outcome.steps):
            if step != last["step"]:
                check.differ(OUTCOME, f"{step} here, {last['step']} steps in {METRICS}", key=key)
        if outcome.best != best:
            check.differ(OUTCOME, f"it has another best than `{BEST}`", key="best")
    is_whole = outcome is not None and outcome.finished and outcome.stopped is None
    if is_whole and last["step"] < last.get("steps", 0):
        problem = f"finished here, after step {last['step']} of {last['steps']} in {METRICS}"
        check.differ(OUTCOME, problem, key="finished")
    kept = settings.get("output", {}).get("keep_best")
    if best is not None:
        _check_best(check, best, settings, lines)
    elif is_whole and any(line.values().get(kept) is not None for line in lines):
        check.differ(BEST, f"there is none, although `{kept}` was measured")


def _check_best(
    check: RecordCheck, best: BestCheckpoint, settings: Mapping[str, Any], lines: Sequence[CellEvaluation]
) -> None:
    asked = settings.get("output", {})
    for key, here in ("keep_best", best.metric), ("best_mode", best.mode):
        if here != asked.get(key, here):
            check.differ(BEST, f"{here} here, {asked[key]} in the settings", step=best.step, key=key)
    values = [(line.step, line.values()) for line in lines]
    measured = {step: value[best.metric] for step, value in values if best.metric in value}
    if not _same(measured.get(best.step), best.value):
        problem = f"{show(best.value)} here, {show(measured.get(best.step))} in {EVALUATIONS}"
        check.differ(BEST, problem, step=best.step, key=best.metric)
        return
    sound = measured.keys() - {one.step for one in check.differences}
    better = [step for step in sound if (value := measured[step]) is not None and best.is_beaten_by(value)]
    if max(better, default=0) > best.step:
        problem = f"that of step {max(better)} is better, and came later"
        check.differ(BEST, problem, step=best.step, key=best.metric)
    elif better:  # their weights were given up where the run went on from an earlier checkpoint
        told = f"the evaluation of step {max(better)} is better"
        check.unchecked.append(f"`{BEST}`: {told}, which is so only of a run that went on in between")


def _read_ends(check: RecordCheck, run: Path) -> tuple[BestCheckpoint | None, Outcome | None] | None:
    """Return the best and the outcome; None, with a difference, where one of them is damaged."""
    file = BEST
    try:
        best = read_best(run)
        file = OUTCOME
        return best, read_outcome(run)
    except RunError as error:
        check.differ(file, str(error))
        return None


def _check_summary(check: RecordCheck, run: Path) -> None:
    """Derive the summary again from the rollouts that were kept."""
    folder = RunFolder.open(run)
    try:
        stored = folder.summary()
        made = summarise_run(folder.manifest, folder.rollouts()) if stored is not None else None
    except RunError as error:
        check.differ(SUMMARY, str(error))
        return
    if stored is None or made is None:
        return
    told = stored.model_dump(exclude_unset=True)  # an earlier version told less
    here, again = dict(_list_numbers(told)), dict(_list_numbers(made.model_dump(include=set(told))))
    kept = folder.manifest.reproduction
    of_this_code = kept is not None and kept.trainer_sha256 == trainer_digest()
    estimated = False
    for name in dict.fromkeys([*here, *again]):
        one, two = here.get(name), again.get(name)
        if one == two or (one and two and math.isclose(one, two, rel_tol=1e-12)):
            continue
        if of_this_code or not name.endswith(("low", "high")):
            check.differ(SUMMARY, f"{show(one)} here, {show(two)} from the rollouts", key=name)
        else:
            estimated = True
    if estimated:
        check.unchecked.append(f"the intervals of `{SUMMARY}`: another version estimated them")


def _list_numbers(told: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a record by the names, and numbers in lists, that lead to it."""
    parts = told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else None
    if parts is None:
        yield name, told
        return
    for key, value in parts:
        yield from _list_numbers(value, f"{name}/{key}" if name else str(key))


def check_files(run: Path) -> RecordCheck:
    """Hold every file of the checkpoints that are there, and of the models, against its digest."""
    check = RecordCheck(part="checkpoints")
    try:
        saved = {one.weights_sha256 for one in read_saved(run)}
        seals = read_model_seals(run)
    except RunError as error:
        check.differ(SAVED, str(error))
        return check
    for one in list_checkpoints(run):
        try:
            seal = one.seal
        except RunError as error:
            check.differ((one.path / SEAL).relative_to(run).as_posix(), str(error), step=one.step)
            continue
        _check_folder(check, run, one.path, seal.files if seal else {}, saved, one.step)
    sealed = {one.path for one in list_checkpoints(run)}
    if torn := sorted(path.name for path in (run / "checkpoints").glob("checkpoint-*") if path not in sealed):
        check.unchecked.append(
            f"{', '.join(torn)}: without a seal, as a kill or an earlier trainer leaves it"
        )
    if (ends := _read_ends(check, run)) is None:
        return check
    best, outcome = ends
    if outcome is None and best is not None and best.weights_sha256 is not None:
        saved.add(best.weights_sha256)  # the run's end adds it to the others
    if (
        best is not None and best.weights_sha256 is None and BEST_MODEL in seals
    ):  # digests are older than seals
        check.differ(BEST, f"it has no digest of `{BEST_MODEL}`", step=best.step, key="weights_sha256")
    models = [
        (MODEL, outcome.steps if outcome else None, None),
        (BEST_MODEL, best.step if best else None, best.weights_sha256 if best else None),
    ]
    for name, step, of in models:
        if step is None:
            if (run / name).is_dir():
                check.unchecked.append(f"`{name}`: the run has not ended, so it is of an earlier attempt")
            continue
        _check_folder(check, run, run / name, seals.get(name), saved, step, of)
    return check


def _check_folder(
    check: RecordCheck,
    run: Path,
    folder: Path,
    files: Mapping[str, str] | None,
    saved: Collection[str],
    step: int,
    of: str | None = None,
) -> None:
    """Check the files of one checkpoint, and that its weights are some that the run saved."""
    name = folder.relative_to(run).as_posix()
    faults = list(find_faults(folder, files or {}))
    for file, problem in faults:
        check.differ(f"{name}/{file}", problem, step=step)
    check.checked += len(files or {})
    if files is None:
        check.unchecked.append(f"the files of `{name}` but its weights: an earlier trainer kept no digests")
    weights = None if faults else weights_digest(folder)
    if weights is None:
        return
    check.checked += files is None
    if not saved:
        check.unchecked.append(f"the weights of `{name}`: an earlier trainer kept no digests")
    elif weights not in saved:
        check.differ(name, f"its weights are not listed in `{SAVED}`", step=step)
    elif weights != (of or weights):
        check.differ(BEST, f"it is not the digest of `{name}`", step=step, key="weights_sha256")


def _steps(steps: Mapping[int, Any] | Sequence[int]) -> str:
    """Return steps in words."""
    found = sorted(steps)
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
