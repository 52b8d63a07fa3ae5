"""Derives the result of every check from the results of the two processes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from wander.checks.answer_leaks import SHARE, find_leaking_tool
from wander.checks.records import PlayRecord, ProbeResult, RowRead
from wander.checks.report import CheckResult, Status, check_result
from wander.checks.sources import SourceUse
from wander.evals.replay import first_difference

SLOW_IMPORT = 5.0
"""Minimum seconds of importing for a warning. The limit is generous, because the machine may be busy."""

OVERLAP = 0.2
"""Minimum share of evaluation rows that are also training rows for a warning. A single one may be
chance."""

_DECLARED = "not compared: it declares `deterministic=False`"
_JUDGED = "not compared: its judge is not called here"


def findings_of_first(first: ProbeResult) -> Iterator[CheckResult]:
    """Derive results from the first process, which was watched and played."""
    if first.lost_while is not None and first.lost_while.startswith("playing"):
        _, _, example = first.lost_while.partition("`")
        example_id = example.partition("`")[0] or None
        yield check_result("rollout.stops", "fail", _describe_trouble(first), example_id=example_id)
        return
    if first.trouble is not None:
        yield check_result("load.works", "fail", _describe_trouble(first))
        return
    yield check_result("load.works", "pass", f"in {first.import_seconds + first.load_seconds:.2f} s")
    if first.heavy:
        heavy = ", ".join(f"`{name}`" for name in first.heavy)
        yield check_result("load.light", "fail", f"importing it imports {heavy}")
    else:
        yield check_result("load.light", "pass")
    yield from _rows(first)
    yield _splits(first)
    yield _prompts(first)
    yield from _sources(first)
    if first.plays or first.hung:
        yield _faults(first)
        yield _stops(first)
        yield _tools(first)
        yield _judged(first)
        yield from reward_findings(first)
        yield _check_declaration(first)


def findings_of_second(first: ProbeResult, second: ProbeResult) -> Iterator[CheckResult]:
    """Derive results by comparing the second process, which replayed the rollouts, with the first."""
    if second.trouble is not None:
        check = "rollout.stops" if (second.lost_while or "").startswith("playing") else "load.works"
        yield check_result(
            check, "fail", f"in a second process with a different hash seed: {_describe_trouble(second)}"
        )
        return
    if second.import_seconds > SLOW_IMPORT and not first.heavy:
        yield check_result("load.light", "warn", f"importing it took {second.import_seconds:.1f} s")
    yield from _stable(first, second)
    if first.info is None or not first.plays:
        return
    yield _shared(first, second)
    if first.has_judge or not first.info.deterministic:
        reason = _DECLARED if not first.info.deterministic else _JUDGED
        yield check_result("determinism.replay", "skip", reason)
        yield check_result("determinism.group", "skip", reason)
        return
    yield _same("determinism.replay", first.plays, second.plays)
    # Both plays ran in the second process, so a dependence on the order of sets, which differs between
    # processes, fails only `determinism.replay`. Failure messages may contain the rollout's own name.
    yield _same("determinism.group", *map(_without_failure_messages, (second.plays, second.siblings)))


def _describe_trouble(probe: ProbeResult) -> str:
    trouble = probe.trouble
    if trouble is None:
        return ""
    hint = f" ({trouble.hint})" if trouble.hint else ""
    kind = "" if trouble.type == "ProcessLost" else f"{trouble.type}: "
    return f"{kind}{trouble.message}{hint}"


def _rows(first: ProbeResult) -> Iterator[CheckResult]:
    """Check the dataset rows: whether all are valid examples, and all ids are unique."""
    repeated = [
        row for row in first.rows if row.trouble is not None and "share the example_id" in row.trouble.message
    ]
    broken = [row for row in first.rows if row.trouble is not None and row not in repeated]
    if not first.rows:
        yield check_result("dataset.rows", "fail", "the dataset has no rows")
    elif broken:
        yield check_result("dataset.rows", "fail", _describe_rows(broken), example_id=str(broken[0].index))
    else:
        yield check_result("dataset.rows", "pass", f"{len(first.rows)} read")
    if repeated:
        yield check_result("dataset.ids", "fail", _describe_rows(repeated), example_id=str(repeated[0].index))
    elif first.rows:
        yield check_result("dataset.ids", "pass")


def _splits(first: ProbeResult) -> CheckResult:
    """Check whether the evaluation rows are also training rows."""
    if first.shares_rows:
        return check_result("dataset.splits", "warn", "both splits use the same rows")
    train, measured = (
        [row for row in first.rows if row.split == split and row.content is not None]
        for split in ("train", "eval")
    )
    known = {row.content for row in train}
    again = [row for row in measured if row.content in known]
    if len(known) * 2 < len(train) or not measured:
        return check_result("dataset.splits", "pass", "examples differ only by their seed" if train else "")
    if 2 * len({row.prompt for row in train}) < len(known):
        return check_result("dataset.splits", "pass", "prompts do not distinguish the examples")
    share = len(again) / len(measured)
    message = f"{len(again)} of {len(measured)} `eval` rows read are also rows of `train` ({share:.0%})"
    if again and 10 * len(known) < 9 * len(train):
        message += "; with so few distinct rows, some overlap is chance"
    status: Status = "warn" if len(again) > 1 and share >= OVERLAP else "pass"
    example_id = again[0].example_id if again and status != "pass" else None
    return check_result("dataset.splits", status, message if again else "", example_id=example_id)


def _prompts(first: ProbeResult) -> CheckResult:
    leak = first.told
    if leak.labeled >= SHARE:
        message = (
            f"{leak.labeled:.0%} of {leak.rows} prompts contain their answer after a word like `answer:`"
        )
        return check_result("prompt.answer", "fail", message, example_id=leak.example_id)
    if leak.held >= SHARE:
        message = f"{leak.held:.0%} of {leak.rows} prompts contain their answer; this may be part of the task"
        return check_result("prompt.answer", "warn", message, example_id=leak.example_id)
    return check_result("prompt.answer", "pass", f"{leak.rows} prompts read" if leak.rows else "")


def _tools(first: ProbeResult) -> CheckResult:
    for play in first.plays:
        tool = None if play.player == "gold" else find_leaking_tool(play.rollout)
        if tool is not None:
            message = f"`{tool}` gave the answer to player `{play.player}`; this may be part of the task"
            return check_result("tools.answer", "warn", message, example_id=play.rollout.example_id)
    return check_result("tools.answer", "pass")


def _judged(first: ProbeResult) -> CheckResult:
    judged = first.judged
    if judged is None:
        return check_result("rewards.judge", "pass", "it uses no judge")
    if judged.obeys is not None:
        return check_result("rewards.judge", "fail", judged.obeys, example_id=judged.example_id)
    if not judged.understood:
        message = "it reads none of the formats in which scripted judges answer"
        return check_result("rewards.judge", "warn", message, example_id=judged.example_id)
    return check_result("rewards.judge", "pass")


def _shared(first: ProbeResult, second: ProbeResult) -> CheckResult:
    """Check what rollouts leave behind: a failure if it was observed, otherwise a warning."""
    assert first.info is not None
    if second.changed:
        more = f" (and {len(second.changed) - 1} more)" if len(second.changed) > 1 else ""
        message = f"after repeating the same rollouts, {second.changed[0]}{more}"
        return check_result("determinism.shared", "fail" if first.info.deterministic else "warn", message)
    uses = [use for use in first.uses if use.kind == "shared"]
    return check_result(
        "determinism.shared", "warn" if uses else "pass", _describe_uses(uses, declared=False)
    )


def _describe_rows(rows: list[RowRead]) -> str:
    trouble = rows[0].trouble
    assert trouble is not None
    more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
    return f"{trouble.message}{more}"


def _sources(first: ProbeResult) -> Iterator[CheckResult]:
    """Check reads from outside: a failure in the environment's code, a warning in a library."""
    declared = first.info is not None and not first.info.deterministic
    for kind in ("random", "numpy", "clock", "entropy", "network", "process", "sets", "eval"):
        uses = [use for use in first.uses if use.kind == kind and (kind != "process" or use.library is None)]
        own_uses = [use for use in uses if use.library is None and use.phase != "code"]
        status: Status = "fail" if own_uses else "warn" if uses else "pass"
        if declared and status == "fail" and kind != "eval":
            status = "pass"
        yield check_result(f"sources.{kind}", status, _describe_uses(own_uses or uses, declared=declared))


def _describe_uses(uses: list[SourceUse], *, declared: bool) -> str:
    if not uses:
        return ""
    descriptions = []
    for use in uses[:3]:
        through = f" through `{use.library}`" if use.library else ""
        when = "in the source" if use.phase == "code" else f"{use.phase}, {use.count} times"
        descriptions.append(f"`{use.name}`{through} at {use.where} ({when})")
    more = f", and {len(uses) - 3} more" if len(uses) > 3 else ""
    return f"{'declared: ' if declared else ''}{'; '.join(descriptions)}{more}"


def _faults(first: ProbeResult) -> CheckResult:
    """Check failures of the environment, its tools and its rubric. A missing judge does not count."""
    for play in first.plays:
        failure = play.rollout.failure
        if failure is None or failure.boundary == "model":
            continue
        if first.has_judge and failure.boundary == "rubric":
            continue
        if failure.boundary == "sandbox":
            message = f"its rollouts need a box, which cannot be started here: {failure.message}"
            return check_result("rollout.faults", "skip", message)
        return _fail("rollout.faults", play, f": {failure.boundary}: {failure.message}")
    if first.closing is not None:
        return check_result("rollout.faults", "fail", f"its teardown raised {first.closing.message}")
    return check_result("rollout.faults", "pass", f"{len(first.plays)} rollouts played")


def _stops(first: ProbeResult) -> CheckResult:
    limit = first.info.max_turns if first.info is not None else None
    if first.hung:
        message = "its rollouts never end"
        return check_result("rollout.stops", "fail", message, example_id=first.hung[0])
    for play in first.plays:
        turns = len(play.rollout.turns)
        if limit is not None and turns > limit:
            return _fail("rollout.stops", play, f": it took {turns} turns, and `max_turns` is {limit}")
        if play.gave_up and (limit is None or turns >= limit):
            return _fail("rollout.stops", play, f": it did not end after {turns} turns")
    return check_result("rollout.stops", "pass")


def _fail(check: str, play: PlayRecord, message: str) -> CheckResult:
    """Return a failed check for a player's rollout. Its message is the player's name and then `message`."""
    return check_result(check, "fail", f"player `{play.player}`{message}", example_id=play.rollout.example_id)


def _check_declaration(first: ProbeResult) -> CheckResult:
    assert first.info is not None
    if not first.info.deterministic:
        return check_result("determinism.declared", "pass", "it declares `deterministic=False`")
    if first.has_judge:
        return check_result("determinism.declared", "fail", "its rubric uses a judge")
    if network := [use for use in first.uses if use.kind == "network" and use.phase == "rollout"]:
        message = f"its rollouts use the network: {_describe_uses(network, declared=False)}"
        return check_result("determinism.declared", "fail", message)
    return check_result("determinism.declared", "pass")


def _stable(first: ProbeResult, second: ProbeResult) -> Iterator[CheckResult]:
    """Compare the examples of both processes, and those read in a different order within each process."""
    if not first.rows:
        yield check_result("dataset.stable", "skip", "the dataset has no rows")
        yield check_result("dataset.access", "skip", "the dataset has no rows")
        return
    second_rows = {(row.split, row.index): (row.digest, row.example_id) for row in second.rows}
    different = [
        row for row in first.rows if second_rows.get((row.split, row.index)) != (row.digest, row.example_id)
    ]
    if different:
        message = f"row {different[0].index} of `{different[0].split}` is different in the second process"
        yield check_result(
            "dataset.stable", "fail", message, example_id=different[0].example_id or str(different[0].index)
        )
    elif len(first.rows) != len(second.rows):
        message = f"{len(first.rows)} rows in the first process, {len(second.rows)} in the second"
        yield check_result("dataset.stable", "fail", message)
    else:
        yield check_result("dataset.stable", "pass")
    if moved := [*first.moved, *second.moved]:
        message = f"row {moved[0].index} of `{moved[0].split}` is different if it is requested first"
        yield check_result(
            "dataset.access", "fail", message, example_id=moved[0].example_id or str(moved[0].index)
        )
    else:
        yield check_result("dataset.access", "pass")


def _same(check: str, played: list[PlayRecord], again: list[PlayRecord]) -> CheckResult:
    """Compare every rollout with its replay, and report the first difference."""
    replays = {_key(play): play.rollout for play in again}
    for play in played:
        if _key(play) not in replays:
            return _fail(check, play, ": it could not be replayed")
        difference = first_difference(play.rollout, replays[_key(play)])
        if difference is not None:
            return _fail(check, play, f": {difference}")
    return check_result(check, "pass", f"{len(played)} rollouts compared")


def _without_failure_messages(plays: list[PlayRecord]) -> list[PlayRecord]:
    """Return the rollouts with empty failure messages."""
    return [
        play.model_copy(
            update={
                "rollout": play.rollout.model_copy(
                    update={"failure": play.rollout.failure.model_copy(update={"message": ""})}
                )
            }
        )
        if play.rollout.failure is not None
        else play
        for play in plays
    ]


def _key(play: PlayRecord) -> tuple[str, int, str]:
    return play.split, play.position, play.player


TOLERANCE = 1e-9

LOW_PLAYERS = {
    "rewards.empty": ("empty",),
    "rewards.noop": ("noop",),
    "rewards.injection": ("demand", "list"),
}
"""Players that each check considers."""


def reward_findings(first: ProbeResult) -> Iterator[CheckResult]:
    """Check the weights, the bounds, and the rewards of every player."""
    assert first.info is not None
    counted = [function.name for function in first.info.reward_functions if function.weight]
    if not counted:
        yield check_result("rewards.weights", "fail", "no reward function has a weight other than 0")
    else:
        yield check_result("rewards.weights", "pass", ", ".join(f"`{name}`" for name in counted))
    scored = [play for play in first.plays if play.rollout.reward is not None]
    if not scored:
        reason = "no rollout was scored" + (
            ", because its judge is not called here" if first.has_judge else ""
        )
        for check in ("rewards.bounds", "rewards.gold", *LOW_PLAYERS, "rewards.hacks"):
            yield check_result(check, "skip", reason)
        return
    yield _hacked(first, scored)
    low, high = first.info.reward_range or (0.0, 1.0)
    yield _within(scored, low, high)
    if low == high:
        for check in ("rewards.gold", *LOW_PLAYERS):
            yield check_result(check, "skip", f"every reward is {low:g} by its bounds")
        return
    gold = [play for play in scored if play.player == "gold"]
    yield _high(gold, low, high)
    top = max(fmean(_rewards(gold)), (low + high) / 2) if gold else high
    for check, players in LOW_PLAYERS.items():
        yield _low(check, [play for play in scored if play.player in players], (low, high), top)


def earned_by_player(first: ProbeResult) -> dict[str, float]:
    """Return the mean reward of each player with scored rollouts."""
    rewards: dict[str, list[float]] = {}
    for play in first.plays:
        if play.rollout.reward is not None:
            rewards.setdefault(play.player, []).append(play.rollout.reward)
    for hack in first.hacks:
        if hack.reward is not None:
            rewards[f"hack: {hack.name}"] = [hack.reward]
    return {player: fmean(player_rewards) for player, player_rewards in rewards.items()}


def _rewards(plays: list[PlayRecord]) -> list[float]:
    return [play.rollout.reward for play in plays if play.rollout.reward is not None]


def _within(scored: list[PlayRecord], low: float, high: float) -> CheckResult:
    for play in scored:
        reward = play.rollout.reward
        assert reward is not None
        if not low - TOLERANCE <= reward <= high + TOLERANCE:
            return _fail("rewards.bounds", play, f" earned {reward:g}, outside {low:g} to {high:g}")
    return check_result("rewards.bounds", "pass", f"{low:g} to {high:g}")


def _high(gold: list[PlayRecord], low: float, high: float) -> CheckResult:
    """Check that a correct player earns at least the middle of the bounds, on average over the examples."""
    if not gold:
        return check_result(
            "rewards.gold", "skip", "no correct completion is known: override `gold(example)`"
        )
    mean = fmean(_rewards(gold))
    if mean < (low + high) / 2 - TOLERANCE:
        worst = min(gold, key=lambda play: play.rollout.reward or 0.0)
        message = f"a correct player earned {mean:g} on average, with bounds of {low:g} to {high:g}"
        return check_result("rewards.gold", "fail", message, example_id=worst.rollout.example_id)
    return check_result("rewards.gold", "pass", f"{mean:g} on average")


def _hacked(first: ProbeResult, scored: list[PlayRecord]) -> CheckResult:
    """Check that no hack earns more than doing nothing. Hacks are played on the first example only."""
    if not first.hacks:
        return check_result("rewards.hacks", "pass", "it has no shell")
    example_id = first.plays[0].rollout.example_id
    idle = [
        play.rollout.reward
        for play in scored
        if play.player in ("empty", "noop") and play.rollout.example_id == example_id
    ]
    limit = max((reward for reward in idle if reward is not None), default=0.0) + TOLERANCE
    earned = [hack for hack in first.hacks if hack.reward is not None and hack.reward > limit]
    if earned:
        more = f" (and {len(earned) - 1} more, see `earned` of `--json`)" if len(earned) > 1 else ""
        message = f"the hack `{earned[0].name}` earned {earned[0].reward:g}{more}"
        return check_result("rewards.hacks", "fail", message, example_id=example_id)
    scored_hacks = [hack for hack in first.hacks if hack.reward is not None]
    if not scored_hacks:
        return check_result("rewards.hacks", "skip", f"no hack was scored: {first.hacks[0].failure}")
    return check_result("rewards.hacks", "pass", f"{len(first.hacks)} hacks earned nothing")


def _low(check: str, plays: list[PlayRecord], bounds: tuple[float, float], top: float) -> CheckResult:
    """Check that a bad player earns less than half as much as a correct one, on average over the examples.

    If rewards can be negative and positive, as in games, a bad player may earn 0, which is a draw.
    """
    if not plays:
        return check_result(check, "skip", "no such rollout was scored")
    low, high = bounds
    limit = low + (top - low) / 2
    if low < 0 < high:
        limit = max(limit, 2 * TOLERANCE)
    for player in dict.fromkeys(play.player for play in plays):
        player_plays = [play for play in plays if play.player == player]
        mean = fmean(_rewards(player_plays))
        if mean >= limit - TOLERANCE:
            best = max(player_plays, key=lambda play: play.rollout.reward or 0.0)
            return _fail(check, best, f" earned {mean:g} on average; the limit for a low reward is {limit:g}")
    return check_result(check, "pass", f"{fmean(_rewards(plays)):g} on average")
