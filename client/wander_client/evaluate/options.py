"""The options of `wander eval`, and the settings that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from wander_client.environments.location import parse_arguments
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, chosen_policy
from wander_client.environments.workers import (
    RolloutTimeout,
    TokenFile,
    WorkerAddresses,
    WorkerCount,
    worker_fields,
)
from wander_client.errors import UsageError
from wander_client.models.reference import priced

if TYPE_CHECKING:
    from wander_client.evaluate.evaluation import EvaluationSettings

DEFAULT_EXAMPLES = 20


NEWEST = "@newest"
"""Stands for the value of `--resume` where none is given."""


class EvalCommand(TyperCommand):
    """Lets `--resume` stand without a value, which a suite's file does not need."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; a bare `--resume` gets the value that stands for the newest."""
        words = []
        for place, word in enumerate(args):
            following = args[place + 1] if place + 1 < len(args) else "-"
            bare = word == "--resume" and following.startswith("-")
            words.append(f"--resume={NEWEST}" if bare else word)
        return super().parse_args(ctx, words)


@dataclass
class EvalOptions:
    """What may stand on the command line of `wander eval`."""

    environment: Annotated[str | None, typer.Argument(help="owner/name[@version], ./folder, FILE.toml")] = (
        None
    )
    model: Annotated[list[str] | None, typer.Option("-m", "--model", help="see above; several: a suite")] = (
        None
    )
    base_url: Annotated[str | None, typer.Option("-b", "--base-url", help="OpenAI-compatible endpoint")] = (
        None
    )
    key_variable: Annotated[str, typer.Option(help="variable of the endpoint's key")] = "OPENAI_API_KEY"
    num_examples: Annotated[
        int, typer.Option("-n", "--num-examples", "--limit", min=1, help="examples to play")
    ] = DEFAULT_EXAMPLES
    all_examples: Annotated[bool, typer.Option("--all", help="play every example of the split")] = False
    rollouts: Annotated[int, typer.Option("-r", "--rollouts", min=1, help="rollouts of each example")] = 1
    strata: Annotated[bool, typer.Option("--strata", help="examples evenly from the strata")] = False
    shuffle: Annotated[bool, typer.Option("--shuffle", help="examples drawn by the seed")] = False
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="model calls at once")] = 32
    max_rollouts: Annotated[
        int | None, typer.Option(min=1, help="rollouts at once (default: twice the concurrency)")
    ] = None
    split: Annotated[str, typer.Option(help="eval or train")] = "eval"
    seed: Annotated[int, typer.Option(help="the run's seed")] = 0
    temperature: Annotated[float | None, typer.Option("-t", "--temperature", min=0.0)] = None
    top_p: Annotated[float | None, typer.Option("--top-p")] = None
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="of one turn")] = None
    sampling: Annotated[str | None, typer.Option(help="further sampling arguments, a JSON object")] = None
    argument: Annotated[list[str] | None, typer.Option("-a", "--arg", help="environment: KEY=VALUE")] = None
    args: Annotated[str | None, typer.Option("--args", help="environment arguments, a JSON object")] = None
    judge_model: Annotated[str | None, typer.Option(help="environment argument `judge_model`")] = None
    judge_base_url: Annotated[str | None, typer.Option(help="environment argument `judge_base_url`")] = None
    out: Annotated[Path | None, typer.Option(help="the run's folder, or the suite's")] = None
    resume: Annotated[Path | None, typer.Option(help="go on with this run, folder or id; needs no more")] = (
        None
    )
    only_failed: Annotated[bool, typer.Option("--only-failed", help="resume: what failed, no more")] = False
    allow_changed_code: Annotated[
        bool, typer.Option("--allow-changed-code", help="resume though files of ./folder changed")
    ] = False
    budget_tokens: Annotated[
        int | None, typer.Option("--budget-tokens", "--max-tokens-total", min=1, help="of the whole run")
    ] = None
    budget_usd: Annotated[float | None, typer.Option("--budget-usd", min=0.0, help="needs prices")] = None
    price: Annotated[str | None, typer.Option(metavar="PROMPT/COMPLETION", help="USD per million tokens")] = (
        None
    )
    cache: Annotated[bool, typer.Option("--cache", help="keep and reuse answers of endpoints")] = False
    call_timeout: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECONDS", help="of one model call (600)")
    ] = None
    rollout_timeout: RolloutTimeout = None
    serve: Annotated[
        str | None, typer.Option(metavar="vllm", help="serve the model (a name or folder) meanwhile")
    ] = None
    serve_arg: Annotated[list[str] | None, typer.Option(help="for the server: --serve-arg=--dtype=half")] = (
        None
    )
    serve_python: Annotated[str | None, typer.Option(help="the Python that has vLLM")] = None
    serve_timeout: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="to start")] = 900.0
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="greedily against every reply, from every opening")
    ] = False
    max_lines: Annotated[
        int, typer.Option(min=1, help="exhaustive: end there when the environment has more")
    ] = 100_000
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="packages of now, not those of the version's lock")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be played")] = False
    in_process: Annotated[bool, typer.Option("--in-process", help="run a folder in this process")] = False
    pass_env: Annotated[
        list[str] | None, typer.Option("--pass-env", help="variable that the environment may see")
    ] = None
    sandbox: SandboxFlag = None
    sandbox_limit: SandboxLimits = None
    workers: WorkerCount = "auto"  # type: ignore[assignment]  # goes through the option's parser
    worker: WorkerAddresses = None
    worker_token_file: TokenFile = None
    device: Annotated[str | None, typer.Option(help="for a model in this process: cpu, cuda, mps")] = None
    fail_under: Annotated[float | None, typer.Option(help="exit 1 when the reward is lower")] = None

    def settings(self, model: str) -> EvaluationSettings:
        """Return what an evaluation of one of the models is asked for."""
        from wander_client.evaluate.evaluation import EvaluationSettings, sampling_of

        assert self.environment is not None
        sampled = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return EvaluationSettings(
            environment=self.environment,
            model=model,
            base_url=self.base_url,
            key_variable=self.key_variable,
            arguments=self.arguments(),
            num_examples=None if self.all_examples else self.num_examples,
            rollouts_per_example=self.rollouts,
            strata=self.strata,
            shuffle=self.shuffle,
            concurrency=self.concurrency,
            max_rollouts=self.max_rollouts,
            split=_split(self.split),
            seed=self.seed,
            sampling=sampling_of(sampled, self.sampling),
            budget_tokens=self.budget_tokens,
            budget_usd=self.budget_usd,
            prices=priced(self.price, model),
            cache=self.cache,
            call_timeout=self.call_timeout,
            in_process=self.in_process,
            pass_environ=self.pass_env or [],
            sandbox=chosen_policy(self.sandbox, self.sandbox_limit),
            **worker_fields(self.workers, self.worker, self.worker_token_file, self.rollout_timeout),
            **self.serving(),
            device=self.device,
            exhaustive=self.exhaustive,
            max_lines=self.max_lines,
            no_lock=self.no_lock,
        )

    def arguments(self) -> dict[str, Any]:
        """Return the environment's arguments, those of a judge included."""
        given = parse_arguments(self.argument or [], self.args)
        judge = {"judge_model": self.judge_model, "judge_base_url": self.judge_base_url}
        return {**given, **{name: value for name, value in judge.items() if value is not None}}

    def serving(self) -> dict[str, Any]:
        """Return the settings of a server that is started for the evaluation."""
        if self.serve is None:
            for option, given in (("--serve-arg", self.serve_arg), ("--serve-python", self.serve_python)):
                if given:
                    raise UsageError(f"`{option}` is for a server", hint="add `--serve vllm`")
            return {}
        return {
            "serve": serving_engine(self.serve),
            "serve_args": self.serve_arg or [],
            "serve_python": self.serve_python,
            "serve_timeout": self.serve_timeout,
        }


def serving_engine(word: str) -> Literal["vllm"]:
    """Return the engine of `--serve`; raises `UsageError` for another one."""
    if word != "vllm":
        raise UsageError(f"`--serve {word}` is unknown", hint="use `--serve vllm`")
    return "vllm"


def require_together(options: EvalOptions, typed: dict[str, Any]) -> None:
    """Refuse options that contradict each other, or that stand alone."""
    if typed.get("all_examples") and "num_examples" in typed:
        raise UsageError("`-n` and `--all` contradict each other", hint="pass one of the two")
    if options.only_failed and options.resume is None:
        raise UsageError("`--only-failed` goes on with a run", hint="name it: `--resume RUN --only-failed`")
    a_file = (options.environment or "").endswith(".toml")
    if str(options.resume) == NEWEST and not a_file:
        raise UsageError("`--resume` names no run", hint="`wander runs` lists the runs here")
    if options.serve is not None and options.base_url is not None:
        raise UsageError(
            "`--serve` starts a server, `-b` names one that runs", hint="leave one of the two out"
        )


_NOT_EXHAUSTIVE = {
    "num_examples": "-n",
    "all_examples": "--all",
    "rollouts": "-r",
    "strata": "--strata",
    "shuffle": "--shuffle",
    "split": "--split",
    "temperature": "-t",
    "budget_tokens": "--budget-tokens",
    "budget_usd": "--budget-usd",
    "fail_under": "--fail-under",
    "only_failed": "--only-failed",
}
"""Options that mean nothing where every line is played once, greedily."""


def require_exhaustive(options: EvalOptions, typed: dict[str, Any]) -> None:
    """Refuse options beside `--exhaustive` that it does not follow, or `--max-lines` without it."""
    if not options.exhaustive:
        if "max_lines" in typed:
            raise UsageError("`--max-lines` is for a walk through all lines", hint="add `--exhaustive`")
        return
    for name, option in _NOT_EXHAUSTIVE.items():
        if name in typed:
            raise UsageError(
                f"`{option}` means nothing with `--exhaustive`: every line is played once, greedily",
                hint=f"leave `{option}` out",
            )


def _split(word: str) -> Literal["train", "eval"]:
    if word == "train":
        return "train"
    if word == "eval":
        return "eval"
    raise UsageError(f"`--split {word}` is unknown", hint="use `eval` or `train`")
