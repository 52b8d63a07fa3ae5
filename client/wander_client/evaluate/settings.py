"""The settings of an evaluation: what a run's folder keeps (`command.json`).

`wander_client.evaluate.options` describes each of them; `wander_client.evaluate.schema` derives the command's
options, the keys of suites and what may change when a run goes on.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, ValidationError
from wander.sandbox import SandboxPolicy
from wander.types import Record, SamplingArgs
from wander.wire import TokenPrices
from wander.wire.run_record import Shard

from wander_client.environments.sandbox import confines, require_here
from wander_client.environments.workers import AUTOMATIC, WorkerChoice, read_addresses
from wander_client.errors import UsageError, name_option
from wander_client.evaluate import options
from wander_client.evaluate.options import CommandFlags, EvaluationOptions
from wander_client.evaluate.schema import SAMPLED, Setting, find_mentioned, options_in, settings_in
from wander_client.models.pool import ModelChoice
from wander_client.models.server import ServeChoice

if TYPE_CHECKING:
    from wander.evals.run.budget import Share
    from wander.evals.run.plan import EvaluationPlan

    from wander_client.settings import Settings


# What `options` names in quotes, found there from here on.
vars(options).update(
    SamplingArgs=SamplingArgs, SandboxPolicy=SandboxPolicy, TokenPrices=TokenPrices, Shard=Shard
)

BUDGETS = ("budget_tokens", "budget_usd")
"""What bounds the spending of an evaluation; of a suite, and of shards, that of all together."""


class EvaluationSettings(EvaluationOptions, Record):
    """What an evaluation is asked for."""

    model_config = ConfigDict(strict=True, frozen=True)

    def as_options(self) -> list[str]:
        """Return the options that ask for the same on a command line, one text each, quoted for a shell.

        What has its default is left out, and so is a run without the sandbox.
        """
        words = [shlex.quote(self.environment)]
        for field in settings_in(EvaluationSettings).values():
            value = getattr(self, field.name)
            if field.options and field.options[0].word and value != field.default:
                words += [shlex.join(each) for each in _typed(field, value)]
        return words

    def choose_workers(self) -> WorkerChoice:
        """Return the processes that play the environment; raises `ConfigError` for a wrong address."""
        from wander.worker.host.environment import automatic_workers

        count, found = self.workers, read_addresses(self.worker_addresses, self.worker_token_file)
        if count == AUTOMATIC:
            count = len(found) or automatic_workers(self.max_rollouts or 2 * self.concurrency)
        if count < len(found):
            raise UsageError(f"`--workers {count}` is fewer than the {len(found)} of `--worker`")
        return WorkerChoice(count, found, self.rollout_timeout)

    def choose_model(self) -> ModelChoice:
        """Return the model, and what it is served with."""
        serve = None
        if self.serve is not None:
            serve = ServeChoice(self.serve, tuple(self.serve_args), self.serve_python, self.serve_timeout)
        endpoint = (self.base_url, self.key_variable, self.call_timeout)
        players = tuple(sorted(self.players.items()))
        day = date.fromisoformat(self.template_date) if self.template_date else datetime.now().date()
        return ModelChoice(
            *(self.model, *endpoint, self.device, self.cache, serve, players),
            send_reasoning={"auto": None, "keep": True, "drop": False}[self.reasoning],
            merge_system=self.system == "merge",
            template_date=day,
        )

    def plan(self, *, only_failed: bool = False, share: Share | None = None) -> EvaluationPlan:
        """Return the plan for the evaluator; raises `ConfigError` for one that cannot be."""
        from wander.evals.run.budget import Budget
        from wander.evals.run.plan import EvaluationPlan

        fields = {field.name for field in dataclasses.fields(EvaluationPlan)}
        return EvaluationPlan(
            **{name: getattr(self, name) for name in fields & type(self).model_fields.keys()},
            budget=Budget(self.budget_tokens, self.budget_usd, self.prices),
            share=share,
            only_failed=only_failed,
        )


def _typed(field: Setting, value: Any) -> Iterator[list[str]]:
    """Yield the words that ask for the value of a field."""
    word = field.options[0].word
    if field.name == "sandbox":
        if value is not None:
            limits = value.model_dump(mode="json", exclude_defaults=True).items()
            yield [
                "--sandbox",
                *(part for key, limit in limits for part in ("--sandbox-limit", f"{key}={limit}")),
            ]
    elif field.name == "sampling":
        yield ["--sampling", json.dumps(value.given())]
    elif field.name == "arguments":
        yield ["--args", json.dumps(value)]
    elif field.name == "prices":
        yield [word, f"{value.prompt:g}/{value.completion:g}"]
    elif value is None:
        yield ["--all"]
    elif value is True:
        yield [word]
    else:
        pairs = (f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else None
        for each in pairs or (value if isinstance(value, list) else [value]):
            yield [f"{word}={each}"] if str(each).startswith("-") else [word, str(each)]


def settings_for(said: Mapping[str, Any], user: Settings) -> EvaluationSettings:
    """Return the settings that options, or keys of a suite, ask for; the user's file says what they do not.

    `said` names one environment and one model. Raises `UsageError` for words that are wrong.
    """
    said, model = dict(said), said["model"]
    if "reasoning" not in said and user.reasoning is not None:
        said["reasoning"] = user.reasoning
    if "price" not in said and model in user.prices:
        try:
            said["price"] = TokenPrices.model_validate(user.prices[model])
        except ValidationError:
            raise UsageError(
                f"`prices.{model}` of the settings file is no price",
                hint=f'write `"{model}" = {{ prompt = 0.15, completion = 0.60 }}`, in USD per million tokens',
            ) from None
    values = {field.name: field.read(said) for field in find_mentioned(EvaluationSettings, said)}
    settings = EvaluationSettings(**values)
    if not said.keys() & {"sandbox", "sandbox_limit"}:
        elsewhere, named = bool(settings.worker_addresses), (settings.environment, settings.model)
        if confines(user, *named, in_process=settings.in_process, elsewhere=elsewhere):
            settings = settings.model_copy(update={"sandbox": SandboxPolicy()})
    require_here(settings.sandbox, settings.worker_addresses)
    return settings


def require_needed(settings: EvaluationSettings, said: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing with the others."""
    options = options_in(EvaluationSettings, CommandFlags)
    for key in said:
        option = options[key]
        if option.needs and not getattr(settings, option.needs):
            needed = options[option.needs]
            whole = f"{needed.word} {needed.settings.get('metavar', '')}".rstrip()
            raise UsageError(f"`{option.word}` needs `{needed.word}`", hint=f"add `{whole}`")
        if settings.exhaustive and SAMPLED in option.marks:
            raise UsageError(
                f"`{option.word}` means nothing with `--exhaustive`: every line is played once, greedily",
                hint=f"leave `{option.word}` out",
            )


def resume_settings(
    stored: EvaluationSettings, said: Mapping[str, Any], run_dir: Path, command: str
) -> EvaluationSettings:
    """Return the settings with which a run goes on; `said` holds the options that were typed, by key.

    Raises `UsageError` when one of them asks for something else than the run was started with.
    """
    fields = find_mentioned(EvaluationSettings, said)
    bound = [field for field in fields if not field.free]
    changed = [line for field in bound for line in field.differences(said, getattr(stored, field.name))]
    if "out" in said and Path(said["out"]).resolve() != run_dir.resolve():
        changed.append(name_option("out", str(said["out"])) + f": the run lies in `{run_dir}`")
    if changed:
        raise UsageError(
            f"cannot resume `{run_dir}`: these settings changed since it started",
            detail=reduce(lambda whole, line: whole + "\n" + line, changed),
            hint=f"go on with `{command}` alone, or start a new run without " + name_option("resume"),
            code="other_settings",
        )
    return stored.model_copy(update={field.name: field.read(said) for field in fields if field.free})
