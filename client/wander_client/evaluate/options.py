"""What `wander eval` can be asked for, each thing described in one place: beside its field.

The help of the command and a shell's completion read these classes, without pydantic: what takes long to
import is imported by `wander_client.evaluate.settings`, which makes the fields those of a stored record.
That is why such types stand in quotes, and no other does: to read fifty annotations from text takes long too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wander_client.environments.sandbox import SANDBOX, SANDBOX_LIMIT, choose_policy
from wander_client.environments.workers import AUTOMATIC, MOST_WORKERS, absolute_path, read_worker_count
from wander_client.errors import UsageError, name_option
from wander_client.evaluate.schema import BESIDE, EVAL, FILE, FREE, MODEL, SAMPLED, Option, Rule
from wander_client.models.reference import KEY_VARIABLE, START_SECONDS
from wander_client.names import parse_environment
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import Record, SamplingArgs
    from wander.wire import TokenPrices
    from wander.wire.run_record import Shard
else:
    Record = object

# Sections of `--help-all`.
EXAMPLES = "Which examples"
SAMPLING = "Sampling"
ENDPOINT = "Endpoint and model"
BUDGET = "Budget"
ENVIRONMENT = "Environment"
PROCESSES = "Processes and the sandbox"
THE_RUN = "The run"

BUDGET_MARKS = (FREE, EVAL, FILE, BESIDE, SAMPLED, BUDGET)
"""Of both budgets."""

USUAL_SAMPLING = {
    *("top_k", "top_a", "min_p", "typical_p", "n", "best_of", "logprobs", "top_logprobs", "logit_bias"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "min_tokens"),
    *("max_completion_tokens", "stop_token_ids", "ignore_eos", "reasoning_effort", "response_format"),
}
"""Sampling arguments that endpoints know, beside those of `SamplingArgs` and what they call their own."""

NEWEST = "@newest"
"""Stands for the value of `--resume` where none is given."""


def _read_number(given: dict[str, Any]) -> int | None:
    if given.get("all"):
        if "num_examples" in given:
            raise UsageError("`-n` and `--all` contradict each other", hint="pass one of the two")
        return None
    number = given.get("num_examples")
    return None if number == "all" else number


def _write_number(number: int | None) -> str:
    from wander.errors import Wording

    return Wording("`--all`", '`n="all"`') if number is None else name_option("n", number)


def _no_sampling() -> "SamplingArgs":
    from wander.types import SamplingArgs

    return SamplingArgs()


def _read_sampling(given: dict[str, Any]) -> "SamplingArgs":
    """Return sampling arguments from options and a table, or a JSON object, of further ones."""
    from wander.errors import Wording
    from wander.types import SamplingArgs

    more: Any = given.pop("sampling", None) or {}
    if isinstance(more, str):
        try:
            more = json.loads(more)
        except ValueError as error:
            raise UsageError(name_option("sampling") + f" is not JSON: {error}") from error
    if isinstance(more, SamplingArgs):
        more = more.given()
    if not isinstance(more, dict):
        raise UsageError(
            name_option("sampling") + " is not a JSON object",
            hint="write " + Wording("`--sampling '{\"min_p\": 0.1}'`", '`sampling={"min_p": 0.1}`'),
        )
    return read_sampling({**more, **given})


def read_date(word: str) -> str:
    """Return a date as it was written; raises `UsageError` for anything else."""
    try:
        return date.fromisoformat(word).isoformat()
    except ValueError:
        raise UsageError(f"`{word}` is not a date", hint="write it as `2026-11-28`") from None


def read_sampling(given: Mapping[str, Any]) -> "SamplingArgs":
    """Return sampling arguments; raises `UsageError` for a wrong value, or a name that nearly is a known one.

    Any other name goes to the endpoint as it is: they differ in what they take.
    """
    from pydantic import ValidationError
    from wander.types import SamplingArgs, first_fault

    usual = USUAL_SAMPLING | SamplingArgs.model_fields.keys()
    for name in given.keys() - usual:
        plain = name.lower().replace("-", "_")
        if meant := did_you_mean(plain, usual, cutoff=0.82):
            raise UsageError(f"there is no sampling argument `{name}`", hint=meant)
    try:
        return SamplingArgs(**given)
    except ValidationError as error:
        name, said = first_fault(error)
        raise UsageError(
            f"sampling argument `{name}`: {said}",
            hint="`wander eval --help` lists the usual ones; others go to the endpoint as they are",
        ) from error


def _read_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the environment's arguments, those of a judge included."""
    from wander_client.environments.location import parse_arguments

    table = given.pop("arguments", None) or []
    arguments = parse_arguments(table, given.pop("args", None)) if isinstance(table, list) else table
    return {**arguments, **given}


def _read_players(given: dict[str, Any]) -> dict[str, str]:
    """Return who plays whom, from words `PLAYER=MODEL` or a table."""
    from wander.errors import Wording

    said = given["players"]
    pairs = [each.partition("=") for each in said] if isinstance(said, list) else None
    players = dict(said) if pairs is None else {name: model for name, _, model in pairs}
    for name, model in players.items():
        if not name or not isinstance(model, str) or not model.strip():
            raise UsageError(
                f"player `{name}` has no model",
                hint="write "
                + Wording("`--player NAME=MODEL`, with a model as `-m` takes it", '`{"NAME": "MODEL"}`'),
            )
    if pairs is not None and len(players) < len(pairs):
        raise UsageError("`--player` names one player twice", hint="leave one of the two out")
    return players


def _read_prices(given: dict[str, Any]) -> "TokenPrices":
    from wander.errors import Wording
    from wander.wire import TokenPrices

    word = given["price"]
    if isinstance(word, TokenPrices):
        return word
    try:
        if isinstance(word, Mapping):
            return TokenPrices(**word)
        prompt, completion = (float(part) for part in word.split("/"))
        return TokenPrices(prompt=prompt, completion=completion)
    except (ValueError, AttributeError):
        raise UsageError(
            name_option("prices", word, word="--price") + " is not a price",
            hint="write, in USD per million tokens, "
            + Wording("`--price 0.15/0.60`", '`prices={"prompt": 0.15, "completion": 0.6}`'),
        ) from None


def _read_shard(given: dict[str, Any]) -> "Shard":
    from wander.wire.run_record import Shard

    word = given["shard"]
    if isinstance(word, Shard):
        return word
    number, _, of = str(word).partition("/") if str(word).isascii() else ("", "", "")
    if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
        of = of if of.isdecimal() and int(of) > 1 else "8"
        hint = f"the shards of {of} are `0/{of}` to `{int(of) - 1}/{of}`"
        raise UsageError(name_option("shard", str(word)) + " is not a part of a run", hint=hint)
    return Shard(first=int(number), end=int(number) + 1, of=int(of))


def _write_sandbox(policy: "SandboxPolicy | None") -> str:
    if policy is None:
        return "`--no-sandbox`"
    limits = policy.model_dump(exclude_defaults=True).items()
    return f"`{' '.join(['--sandbox', *(f'--sandbox-limit {key}={value}' for key, value in limits)])}`"


def _same_environment(word: str, held: str) -> bool:
    """Tell whether a word means the environment of a run; without a version it means any."""
    wanted = parse_environment(word)
    had = Path(held) if Path(held).is_absolute() else parse_environment(held)
    if isinstance(wanted, Path) or isinstance(had, Path):
        return wanted == had
    return (wanted.owner, wanted.name) == (had.owner, had.name) and wanted.fits(had.version)


def _same_model(word: str, held: str) -> bool:
    if word.removeprefix("hf:") == held.removeprefix("hf:"):
        return True
    folder = Path(word.removeprefix("hf:")).expanduser()
    return folder.is_dir() and str(folder.resolve()) == held


class EvaluationOptions(Record):
    """The fields of `EvaluationSettings`."""

    environment: Annotated[
        str,
        Option("", "owner/name[@version], ./folder, FILE.toml", EVAL, BESIDE, kind=str | None, several=True),
        Rule(same=_same_environment, write=lambda word: f"environment `{word}`"),
    ]
    """`owner/name@version`, exact, or the absolute path of a folder."""
    model: Annotated[
        str,
        Option("-m --model", "see above; several make a suite", EVAL, kind=list[str] | None, several=True),
        Rule(same=_same_model),
    ]
    base_url: Annotated[str | None, Option("-b --base-url", "OpenAI-compatible endpoint", FREE, MODEL)] = None
    key_variable: Annotated[
        str,
        Option("--key-variable", "environment variable that holds the endpoint's key", FREE, MODEL, ENDPOINT),
    ] = KEY_VARIABLE
    num_examples: Annotated[
        int | None,
        Option(
            *("-n --num-examples --limit", "examples to play", EVAL, SAMPLED),
            kind=int,
            suite=int | Literal["all"],
            min=1,
        ),
        Option("--all", "play every example of the split", SAMPLED, EXAMPLES, kind=bool),
        Rule(read=_read_number, write=_write_number),
    ] = 20
    """None means all of the split."""
    rollouts_per_example: Annotated[
        int, Option("-r --rollouts", "rollouts of each example", EVAL, SAMPLED, min=1)
    ] = 1
    strata: Annotated[
        bool, Option("--strata", "take the examples evenly from the strata", EVAL, SAMPLED, EXAMPLES)
    ] = False
    shuffle: Annotated[
        bool, Option("--shuffle", "draw the examples by the seed", EVAL, SAMPLED, EXAMPLES)
    ] = False
    concurrency: Annotated[int, Option("-c --concurrency", "model calls at once", FREE, FILE, min=1)] = 32
    max_rollouts: Annotated[
        int | None,
        Option(
            *("--max-rollouts", "rollouts at once (default: twice the concurrency)", FREE, EVAL, PROCESSES),
            min=1,
        ),
    ] = None
    split: Annotated[
        Literal["train", "eval"], Option("--split", "eval or train", EVAL, SAMPLED, EXAMPLES)
    ] = "eval"
    seed: Annotated[int, Option("--seed", "the run's seed", EVAL, EXAMPLES, several=True)] = 0
    strict: Annotated[
        bool,
        Option(
            "--strict",
            "stop before the first rollout if a row is not an example",
            FREE,
            EVAL,
            EXAMPLES,
        ),
    ] = False
    """Whether a row that cannot become an example ends the run; otherwise its rollouts fail."""
    sampling: Annotated[
        "SamplingArgs",
        Option("-t --temperature", "sampling temperature", SAMPLED, kind=float | None, min=0.0),
        Option("--top-p", "nucleus sampling", SAMPLING, kind=float | None),
        Option("--max-tokens", "most tokens of one turn", kind=int | None, min=1),
        Option(
            "--compact-at",
            "tokens from which old turns are left out, of a model in this process",
            SAMPLING,
            kind=int | None,
            min=1,
        ),
        Option(
            *("--sampling", "further sampling arguments, a JSON object", EVAL, SAMPLING),
            kind=str | None,
            several=True,
        ),
        Rule(read=_read_sampling),
    ] = field(default_factory=_no_sampling)
    arguments: Annotated[
        dict[str, Any],
        Option(
            *("-a --arg", "environment: KEY=VALUE", EVAL),
            key="arguments",
            kind=list[str] | None,
            suite=dict[str, Any],
        ),
        Option("--args", "environment arguments, a JSON object", ENVIRONMENT, kind=str | None),
        Option("--judge-model", "environment argument `judge_model`", EVAL, ENVIRONMENT, kind=str | None),
        Option(
            "--judge-base-url", "environment argument `judge_base_url`", EVAL, ENVIRONMENT, kind=str | None
        ),
        Rule(read=_read_arguments),
    ] = field(default_factory=dict)
    players: Annotated[
        dict[str, str],
        Option(
            *("--player", "who plays one of its players", EVAL, ENVIRONMENT),
            key="players",
            kind=list[str] | None,
            suite=dict[str, str],
            metavar="NAME=MODEL",
        ),
        Rule(read=_read_players),
    ] = field(default_factory=dict)
    """Models as `model` names them; of an environment's players the others are the model's own."""
    budget_tokens: Annotated[
        int | None,
        Option(
            "--budget-tokens --max-tokens-total", "tokens that the whole run may take", *BUDGET_MARKS, min=1
        ),
    ] = None
    budget_usd: Annotated[
        float | None,
        Option("--budget-usd", "USD that the whole run may cost; needs prices", *BUDGET_MARKS, min=0.0),
    ] = None
    prices: Annotated[
        "TokenPrices | None",
        Option(
            *("--price", "USD per million tokens", FREE, MODEL, BUDGET),
            kind=str | None,
            suite=str,
            pattern=r"^[0-9.]+/[0-9.]+$",
            metavar="PROMPT/COMPLETION",
        ),
        Rule(read=_read_prices),
    ] = None
    cache: Annotated[bool, Option("--cache", "keep and reuse answers of endpoints", FREE, EVAL, ENDPOINT)] = (
        False
    )
    call_timeout: Annotated[
        float | None,
        Option(
            *("--call-timeout", "that one model call may take (600)", FREE, EVAL, ENDPOINT),
            min=0.001,
            metavar="SECONDS",
        ),
    ] = None
    rollout_timeout: Annotated[
        float | None,
        Option(
            *("--rollout-timeout", "that a rollout may take", FREE, EVAL, PROCESSES),
            min=0.001,
            metavar="SECONDS",
        ),
    ] = None
    serve: Annotated[
        Literal["vllm"] | None,
        Option("--serve", "serve the model (a name or folder) meanwhile", MODEL, ENDPOINT, metavar="vllm"),
    ] = None
    serve_args: Annotated[
        list[str],
        Option(
            *("--serve-arg", "for the server: --serve-arg=--dtype=half", FREE, MODEL, ENDPOINT),
            key="serve_args",
            needs="serve",
        ),
    ] = field(default_factory=list)
    serve_python: Annotated[
        str | None, Option("--serve-python", "the Python that has vLLM", FREE, MODEL, ENDPOINT, needs="serve")
    ] = None
    serve_timeout: Annotated[
        float,
        Option(
            *("--serve-timeout", "that the server may take to start", FREE, MODEL, ENDPOINT),
            min=1.0,
            metavar="SECONDS",
        ),
    ] = START_SECONDS
    exhaustive: Annotated[
        bool, Option("--exhaustive", "play greedily against every reply, from every opening", EXAMPLES)
    ] = False
    max_lines: Annotated[
        int,
        Option(
            *("--max-lines", "with --exhaustive: stop after this many lines", FREE, EXAMPLES),
            needs="exhaustive",
            min=1,
        ),
    ] = 100_000
    no_lock: Annotated[
        bool,
        Option(
            "--no-lock",
            "use the newest packages instead of the locked ones (recorded in the run)",
            EVAL,
            ENVIRONMENT,
        ),
    ] = False
    in_process: Annotated[
        bool, Option("--in-process", "run a folder in this process", FREE, EVAL, ENVIRONMENT)
    ] = False
    pass_environ: Annotated[
        list[str], Option("--pass-env", "variable that the environment may see", FREE, EVAL, ENVIRONMENT)
    ] = field(default_factory=list)
    sandbox: Annotated[
        "SandboxPolicy | None",
        Option(*SANDBOX, EVAL, PROCESSES, kind=bool | None, suite=bool),
        Option(*SANDBOX_LIMIT, PROCESSES, kind=list[str] | None),
        Rule(lambda given: choose_policy(given.get("sandbox"), given.get("sandbox_limit")), _write_sandbox),
    ] = None
    """The limits of the sandbox that the environment runs in; None means in none."""
    workers: Annotated[
        int,
        Option(
            *("--workers", "processes of the environment", FREE, EVAL, PROCESSES),
            kind=str,
            suite=int,
            min=1,
            max=MOST_WORKERS,
            shown="auto",
            metavar="N|auto",
        ),
        Rule(read=lambda given: read_worker_count(given["workers"])),
    ] = AUTOMATIC
    worker_addresses: Annotated[
        list[str],
        Option("--worker", "a `wander worker` elsewhere", FREE, PROCESSES, metavar="tcp://HOST:PORT"),
    ] = field(default_factory=list)
    worker_token_file: Annotated[
        str | None,
        Option("--worker-token-file", "holds the token of `--worker`", FREE, PROCESSES),
        Rule(read=lambda given: absolute_path(given["worker_token_file"])),
    ] = None
    reasoning: Annotated[
        Literal["auto", "keep", "drop"],
        Option(
            *("--reasoning", "earlier reasoning for the endpoint: keep, drop, or auto", MODEL, ENDPOINT),
            metavar="WHAT",
        ),
    ] = "auto"
    """Whether a model gets the reasoning of its earlier turns back; `auto`: if its endpoint sent it."""
    system: Annotated[
        Literal["merge", "keep"],
        Option(
            *(
                "--system",
                "merge the system prompt into the question if the model has no such role, or keep it",
            ),
            *(MODEL, ENDPOINT),
            metavar="merge|keep",
        ),
    ] = "merge"
    template_date: Annotated[
        str | None,
        Option(
            *("--template-date", "that the chat template of a local model shows (today)", MODEL, ENDPOINT),
            metavar="YYYY-MM-DD",
        ),
        Rule(read=lambda given: read_date(given["template_date"])),
    ] = None
    device: Annotated[
        str | None, Option("--device", "for a model in this process: cpu, cuda, mps", FREE, MODEL, ENDPOINT)
    ] = None
    shard: Annotated[
        "Shard | None",
        Option(
            *("--shard", "play this part of the run alone (from 0/N)", BESIDE, SAMPLED, THE_RUN),
            kind=str | None,
            metavar="I/N",
        ),
        Rule(read=_read_shard),
    ] = None
    """`wander runs merge` makes one run of all parts."""
    rerun_of: str | None = None
    """The run that is repeated."""
    environment_files: Annotated[dict[str, str] | None, FREE] = None
    """Digests of the files of a folder's environment; None in runs of a published one."""


@dataclass(frozen=True)
class CommandFlags:
    """What holds for one command line of `wander eval`, and is not kept with the run."""

    out: Annotated[Path | None, Option("--out", "the run's folder, or the suite's", BESIDE)] = None
    resume: Annotated[
        Path | None,
        Option(
            *("--resume", "go on with this run (folder or id); needs nothing else", BESIDE),
            is_flag=False,
            flag_value=NEWEST,
        ),
    ] = None
    only_failed: Annotated[
        bool,
        Option("--only-failed", "with --resume: play what failed, nothing else", BESIDE, SAMPLED, THE_RUN),
    ] = False
    allow_changed_code: Annotated[
        bool,
        Option(
            "--allow-changed-code", "with --resume: go on although files of ./folder changed", BESIDE, THE_RUN
        ),
    ] = False
    dry_run: Annotated[bool, Option("--dry-run", "show what would be played", BESIDE, THE_RUN)] = False
    engine: Annotated[
        str | None,
        Option(
            *("--engine", "play in shards on a cluster, one a processor or GPU", BESIDE, PROCESSES),
            metavar="ray[://HOST:PORT[/SHARDS]]",
        ),
    ] = None
    fail_under: Annotated[
        float | None, Option("--fail-under", "exit 1 when the reward is lower", BESIDE, SAMPLED, THE_RUN)
    ] = None
