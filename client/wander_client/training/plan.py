"""`wander train --dry-run`: what a run would do, and how much of it at most, before anything is played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wander.train.config import GRPOSettings
from wander.train.phases import GRPOPhase, Phase, RolloutsPhase, SFTPhase

from wander_client.environments.location import locate, open_environment
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import EnvironmentInfo

    from wander_client.context import Invocation


@dataclass(frozen=True)
class PlannedWork:
    """What one phase, or a run without phases, would do."""

    name: str
    kind: str
    begins_with: str
    """Its model, or the player of its rollouts."""
    steps: int | None
    """None where that is told by the rows, once they are there."""
    rollouts: int
    """Played to learn from, at most."""
    evaluation_rollouts: int
    tokens_at_most: int | None
    """That the policy would sample; None where the environment has no limit of turns, or a turn no limit."""
    settings: dict[str, Any]


def show_plan(
    context: Invocation, environment: str, phases: Sequence[Phase], sandbox: SandboxPolicy | None
) -> None:
    """Load the environment with the arguments of each phase, and print what would be done."""
    planned = asyncio.run(_plan(context, environment, phases, sandbox))
    tokens = [each.tokens_at_most for each in planned]
    rollouts = sum(each.rollouts + each.evaluation_rollouts for each in planned)
    limit = None if None in tokens else sum(each or 0 for each in tokens)
    data = {
        "environment": environment,
        "phases": [asdict(each) for each in planned],
        "rollouts": rollouts,
        "tokens_at_most": limit,
    }
    output = context.output

    def show() -> None:
        for each in planned:
            output.line(f"# {each.name}: the settings")
            output.line(as_toml(each.settings))
        rows = [
            [
                each.name,
                each.kind,
                each.begins_with,
                "by its rows" if each.steps is None else f"{each.steps:,}",
                f"{each.rollouts:,}",
                f"{each.evaluation_rollouts:,}",
                "no limit" if each.tokens_at_most is None else f"{each.tokens_at_most:,}",
            ]
            for each in planned
        ]
        columns = ["phase", "kind", "begins with", "steps", "rollouts", "to evaluate", "tokens at most"]
        output.table(columns, rows)
        least = "no limit of tokens" if limit is None else f"at most {limit:,} tokens"
        output.line(f"{counted(rollouts, 'rollout')}, {least}; nothing was played")

    output.answer(data, show)


async def _plan(
    context: Invocation, environment: str, phases: Sequence[Phase], sandbox: SandboxPolicy | None
) -> list[PlannedWork]:
    location = locate(context, environment)
    turns: dict[tuple[str | None, str], int | None] = {}

    async def most_turns(name: str | None, arguments: Mapping[str, Any]) -> int | None:
        key = (name, json.dumps(arguments, sort_keys=True))
        if key not in turns:
            place = location if name is None else locate(context, name)
            async with open_environment(context, place, arguments, sandbox=sandbox) as opened:
                turns[key] = turns_of(opened.handle.info)
        return turns[key]

    return [await _plan_phase(phase, most_turns) for phase in phases]


def turns_of(info: EnvironmentInfo) -> int | None:
    """Return how often a rollout asks the model at most."""
    return 1 if info.kind == "single_turn" else info.max_turns if (info.max_turns or 0) > 0 else None


async def _plan_phase(phase: Phase, most_turns: Any) -> PlannedWork:
    settings = phase.settings.model_dump(mode="json")
    if isinstance(phase, RolloutsPhase):
        players = phase.settings.rollouts
        count = players.examples * players.per_example
        turns = await most_turns(None, phase.settings.environment.arguments)
        scripted = (players.model or "").startswith("scripted:")
        tokens = 0 if scripted else _product(count, turns, players.max_tokens)
        return PlannedWork(phase.name, phase.kind, players.model or "", 0, count, 0, tokens, settings)
    if isinstance(phase, SFTPhase):
        steps = phase.settings.schedule.steps or None
        return PlannedWork(phase.name, phase.kind, phase.settings.model.path, steps, 0, 0, 0, settings)
    if isinstance(phase, GRPOPhase):
        return await _plan_grpo(phase, settings, most_turns)
    return PlannedWork(phase.name, phase.kind, "nothing", 0, 0, 0, 0, settings)


async def _plan_grpo(phase: GRPOPhase, shown: dict[str, Any], most_turns: Any) -> PlannedWork:
    from wander.train.rollouts.environments import choices_of

    settings = phase.settings
    steps, limit = settings.schedule.steps, settings.sampling.max_tokens
    rollouts = steps * settings.batch.rollouts * (1 + settings.data.refill_rounds)
    most = [await most_turns(choice.name, choice.arguments) for choice in choices_of(settings)]
    per_rollout = None if None in most else max(turn or 0 for turn in most) * limit
    if (whole := settings.sampling.max_rollout_tokens) is not None:
        per_rollout = min(per_rollout or whole, whole)
    tokens = _product(rollouts, per_rollout)
    evaluated, evaluation_tokens = await _plan_evaluations(settings, most_turns)
    return PlannedWork(
        phase.name,
        phase.kind,
        settings.model.path,
        steps,
        rollouts,
        evaluated,
        None if tokens is None or evaluation_tokens is None else tokens + evaluation_tokens,
        shown,
    )


async def _plan_evaluations(settings: GRPOSettings, most_turns: Any) -> tuple[int, int | None]:
    """Return how many rollouts the evaluations play, and their tokens at most."""
    section = settings.evaluation
    if section.every == 0:
        return 0, 0
    steps = settings.schedule.steps
    times = 1 + steps // section.every + (steps % section.every != 0)
    rollouts, tokens = 0, 0
    limited = True
    for cell in settings.evaluation_cells:
        base = {} if cell.environment else settings.environment.arguments
        count = times * (cell.examples or section.examples)
        turns = await most_turns(cell.environment, {**base, **cell.arguments})
        most = _product(count, turns, section.max_tokens or settings.sampling.max_tokens)
        rollouts += count
        tokens += most or 0
        limited = limited and most is not None
    return rollouts, tokens if limited else None


def _product(*factors: int | None) -> int | None:
    product = 1
    for factor in factors:
        if factor is None:
            return None
        product *= factor
    return product


def as_toml(settings: Mapping[str, Any]) -> str:
    """Return settings as a file of them would say it; what is not set is left out."""
    lines = []
    for section, fields in settings.items():
        if isinstance(fields, Mapping):
            lines.append(f"[{section}]")
            lines += [f"{name} = {_toml_value(value)}" for name, value in fields.items() if value is not None]
            lines.append("")
        elif fields:
            lines += [f"{section} = {_toml_value(fields)}", ""]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        given = {key: item for key, item in value.items() if item is not None}
        inner = ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in given.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
