"""`wander runs rerun`: evaluate again from a run's manifest, and test whether the two runs agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.commands.run.replay import Arguments
from wander_client.context import current
from wander_client.environments.location import parse_arguments
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits
from wander_client.errors import FAILED, OK, PARTIAL
from wander_client.models.reference import KEY_VARIABLE
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander.evals.run.runner import EvaluationResult
    from wander.wire.verification import Agreement

    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Output


def rerun(
    run: Annotated[str | None, Argument(help="folder, run id, or nothing for the newest run")] = None,
    model: Annotated[
        str | None, Option("-m", "--model", help="as `wander eval` takes it (default: the run's)")
    ] = None,
    base_url: Annotated[
        str | None, Option("-b", "--base-url", help="OpenAI-compatible endpoint (default: your run's)")
    ] = None,
    arguments: Arguments = None,
    key_variable: Annotated[
        str, Option(help="environment variable that holds the endpoint's key")
    ] = KEY_VARIABLE,
    margin: Annotated[
        float,
        Option(help="largest difference that counts as the same, as a share of the rewards' range"),
    ] = 0.1,
    concurrency: Annotated[int, Option("-c", "--concurrency", min=1, help="model calls at once")] = 32,
    out: Annotated[Path | None, Option(help="the new run's folder")] = None,
    env: Annotated[Path | None, Option("--env", help="this folder instead of the pinned environment")] = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Repeat a run from its manifest against an endpoint, and test whether the two agree.

    \b
    wander runs rerun RUN_ID -m NAME -b http://127.0.0.1:8000/v1
    wander runs rerun runs/RUN --margin 0.05 --json

    Everything but the endpoint is the run's: environment version, arguments, examples, seed, sampling. The
    runs agree if all rollouts are identical, or if the 90 % interval of the paired difference lies within the
    margin. They differ if the 95 % interval excludes zero. Otherwise too little was played to tell, and the
    answer says how many examples are needed. Exit status 0 means that they agree.

    Posted, the new run says which one it repeats. If it agrees and another user posted it, the page and the
    board show the first run as repeated by that user.
    """
    import asyncio

    from wander_client.evaluate.rerun import repeat_run
    from wander_client.runs.lookup import find_run

    here = current()
    found = find_run(here, run)
    repeated = asyncio.run(
        repeat_run(
            here,
            found,
            model=model,
            base_url=base_url,
            arguments=None if arguments is None else parse_arguments([], arguments),
            key_variable=key_variable,
            margin=margin,
            concurrency=concurrency,
            out=out,
            folder=env,
            sandbox=(sandbox, sandbox_limit),
        )
    )
    _answer(repeated.agreement, found, repeated.result, here.output)
    if repeated.result.summary.failed and repeated.agreement.verdict == "inconclusive":
        return PARTIAL
    return OK if repeated.agrees else FAILED


def _answer(said: Agreement, found: FoundRun, result: EvaluationResult, output: Output) -> None:
    if said.differing:
        output.warn(f"the runs differ in more than the endpoint: {', '.join(said.differing)}")
    if said.unshared:
        output.warn(f"{said.unshared} examples are not scored in both runs")
    data: dict[str, Any] = {"run_dir": str(result.run_dir), **said.model_dump(mode="json")}
    output.answer(data, lambda: _show(said, output))
    if found.manifest.environment.owner:
        output.next(f"wander post {result.run_dir}")
    output.next(f"wander runs compare {found.place} {result.run_dir}")


def _show(said: Agreement, output: Output) -> None:
    needed = "" if said.needed is None else f": about {said.needed:,} examples are needed"
    told = {
        "agrees": "the runs agree",
        "differs": "the runs differ",
        "inconclusive": f"too little was played to tell whether the runs agree{needed}",
    }
    output.line(f"before      {said.before:.4f}  {said.run_id}")
    output.line(f"after       {said.after:.4f}  {said.rerun_id}")
    output.line(f"difference  {said.told.removeprefix('difference ')}")
    output.line(told[said.verdict], style="bold")
