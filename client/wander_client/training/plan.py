"""`wander train --dry-run`: what a run would do, and how much of it at most, before anything is played."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wander.train.config import GRPOSettings
from wander.train.phases import GRPOPhase, Phase, RolloutsPhase, RowsPhase
from wander.train.settings.sections import EnvironmentSection
from wander.wire.reproduction import toml_lines

from wander_client.environments.location import locate
from wander_client.environments.opening import open_environment
from wander_client.environments.workers import WorkerChoice
from wander_client.names import is_scripted
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import EnvironmentInfo

    from wander_client.context import Invocation


@dataclass(frozen=True)
class PlannedWork:
    """The planned work of one phase, or of a run without phases."""

    name: str
    kind: str
    begins_with: str
    """The model it starts from, or the player of its rollouts."""
    steps: int | None
    """Number of steps; None if it depends on rows that do not exist yet."""
    rollouts: int
    """Largest number of rollouts for training."""
    evaluation_rollouts: int | None
    """None if every line is played, since their number depends on the policy."""
    tokens_at_most: int | None
    """Maximum number of tokens that the policy samples; None if turns or tokens per turn are unlimited."""
    settings: dict[str, Any]


def show_plan(
    context: Invocation, environment: str, phases: Sequence[Phase], sandbox: SandboxPolicy | None
) -> None:
    """Load the environment with the arguments of each phase, and print the plan."""
    planned = asyncio.run(_plan(context, environment, phases, sandbox))
    rollouts = sum(work.rollouts + (work.evaluation_rollouts or 0) for work in planned)
    limit = _sum(work.tokens_at_most for work in planned)
    data = {
        "environment": environment,
        "phases": [asdict(work) for work in planned],
        "rollouts": rollouts,
        "tokens_at_most": limit,
    }
    output = context.output

    def show() -> None:
        for work in planned:
            output.line(f"# settings of {work.name}")
            output.line("\n".join(toml_lines(work.settings)).lstrip())
            output.line()
        rows = [
            [
                work.name,
                work.kind,
                work.begins_with,
                "by its rows" if work.steps is None else f"{work.steps:,}",
                f"{work.rollouts:,}",
                "every line" if work.evaluation_rollouts is None else f"{work.evaluation_rollouts:,}",
                "no limit" if work.tokens_at_most is None else f"{work.tokens_at_most:,}",
            ]
            for work in planned
        ]
        columns = ["phase", "kind", "begins with", "steps", "rollouts", "to evaluate", "tokens at most"]
        output.table(columns, rows)
        least = "no limit of tokens" if limit is None else f"at most {limit:,} tokens"
        output.line(f"{counted(rollouts, 'rollout')}, {least}; nothing was played")

    output.answer(data, show)


async def _plan(
    context: Invocation, environment: str, phases: Sequence[Phase], sandbox: SandboxPolicy | None
) -> list[PlannedWork]:
    for phase in phases:
        if isinstance(section := getattr(phase.settings, "environment", None), EnvironmentSection):
            WorkerChoice.of(section.workers, section)  # checks the addresses and the token
    location = locate(context, environment)
    infos: dict[tuple[str | None, str], EnvironmentInfo] = {}

    async def info_of(name: str | None, arguments: Mapping[str, Any]) -> EnvironmentInfo:
        key = (name, json.dumps(arguments, sort_keys=True))
        if key not in infos:
            place = location if name is None else locate(context, name)
            async with open_environment(context, place, arguments, sandbox=sandbox) as opened:
                infos[key] = opened.handle.info
        return infos[key]

    return [await _plan_phase(phase, info_of) for phase in phases]


def _most_turns(info: EnvironmentInfo) -> int | None:
    """Return how often a rollout asks the model at most."""
    most = info.max_turns if (info.max_turns or 0) > 0 else None
    return 1 if info.kind == "single_turn" else most


async def _plan_phase(phase: Phase, info_of: Any) -> PlannedWork:
    settings = phase.settings.model_dump(mode="json")
    if isinstance(phase, RolloutsPhase):
        players = phase.settings.rollouts
        count = players.examples * players.per_example
        turns = _most_turns(await info_of(None, phase.settings.environment.arguments))
        scripted = is_scripted(players.model or "")
        tokens = 0 if scripted else _product(count, turns, players.max_tokens)
        return PlannedWork(phase.name, phase.kind, players.model or "", 0, count, 0, tokens, settings)
    if isinstance(phase, RowsPhase):
        steps = phase.settings.schedule.steps or None
        return PlannedWork(phase.name, phase.kind, phase.settings.model.path, steps, 0, 0, 0, settings)
    if isinstance(phase, GRPOPhase):
        return await _plan_grpo(phase, settings, info_of)
    return PlannedWork(phase.name, phase.kind, "nothing", 0, 0, 0, 0, settings)


async def _plan_grpo(phase: GRPOPhase, shown: dict[str, Any], info_of: Any) -> PlannedWork:
    from wander.train.rollouts.environments import choices_of

    settings = phase.settings
    steps, limit = settings.schedule.steps, settings.sampling.max_tokens
    infos = [await info_of(choice.name, choice.arguments) for choice in choices_of(settings)]
    rows = settings.batches * settings.batch.rollouts * (1 + settings.data.refill_rounds)
    rollouts = rows // settings.count_roles(infos[0].players)
    most = [_most_turns(info) for info in infos]
    per_rollout = None if None in most else max(turn or 0 for turn in most) * limit
    if (whole := settings.sampling.max_rollout_tokens) is not None:
        per_rollout = min(per_rollout or whole, whole)
    evaluated, evaluation_tokens = await _plan_evaluations(settings, info_of)
    tokens = _sum([_product(rollouts, per_rollout), evaluation_tokens])
    model = settings.model.path
    return PlannedWork(phase.name, phase.kind, model, steps, rollouts, evaluated, tokens, shown)


async def _plan_evaluations(settings: GRPOSettings, info_of: Any) -> tuple[int | None, int | None]:
    """Return how many rollouts the evaluations play, and their tokens at most."""
    section = settings.evaluation
    if section.every == 0:
        return 0, 0
    steps = settings.schedule.steps
    times = 1 + steps // section.every + (steps % section.every != 0)
    limit = section.max_tokens or settings.sampling.max_tokens
    counts: list[int | None] = []
    tokens: list[int | None] = []
    for cell in settings.evaluation_cells:
        base = {} if cell.environment else settings.environment.arguments
        counts.append(None if cell.exhaustive else times * (cell.examples or section.examples))
        turns = _most_turns(await info_of(cell.environment, {**base, **cell.arguments}))
        tokens.append(_product(counts[-1], turns, limit))
    return _sum(counts), _sum(tokens)


def _sum(parts: Iterable[int | None]) -> int | None:
    """Return a sum, or None if a part is unlimited."""
    known = list(parts)
    return None if None in known else sum(part or 0 for part in known)


def _product(*factors: int | None) -> int | None:
    """Return a product, or None if a factor is unlimited."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None
