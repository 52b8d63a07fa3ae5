"""`wander runs rerun`: evaluate again from a run's manifest, and test whether the two runs agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.commands.run.replay import Arguments
from wander_client.context import current
from wander_client.environments.location import parse_arguments
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits
from wander_client.errors import FAILED, OK, PARTIAL
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from wander.evals.run.runner import EvaluationResult
    from wander.wire.verification import Agreement

    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Output


def rerun(
    run: Annotated[str | None, Argument(help="folder or run ID  [default: the newest run]")] = None,
    model: Annotated[
        str | None, Option("-m", "--model", help="a model, as for `wander eval`  [default: the run's]")
    ] = None,
    base_url: Annotated[
        str | None,
        Option(
            "-b", "--base-url", help="OpenAI-compatible endpoint  [default: the run's, if you started it]"
        ),
    ] = None,
    arguments: Arguments = None,
    key_variable: Annotated[
        str | None,
        Option(help="environment variable with the endpoint's key  [default: the run's, if you started it]"),
    ] = None,
    margin: Annotated[
        float,
        Option(help="largest difference that counts as agreement, as a fraction of the reward range"),
    ] = 0.1,
    concurrency: Annotated[
        int | None,
        Option(
            "-c",
            "--concurrency",
            min=1,
            help="concurrent model calls  [default: the run's, if you started it]",
        ),
    ] = None,
    out: Annotated[Path | None, Option(help="folder of the new run")] = None,
    env: Annotated[
        Path | None, Option("--env", help="use this folder instead of the pinned environment")
    ] = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Repeat a run from its manifest against an endpoint, and test whether the two runs agree.

    \b
    wander runs rerun RUN_ID -m NAME -b http://127.0.0.1:8000/v1
    wander runs rerun runs/RUN --margin 0.05 --json

    The new run uses the environment version, arguments, examples, seed and sampling of the first run. If you
    started the first run, the new run also uses its other settings. It never uses cached responses.

    The runs agree if all rollouts are identical, or if the 90% interval of the paired difference lies within
    the margin. They differ if the 95% interval excludes zero. Otherwise the runs are too small to tell, and
    the output shows how many examples are needed. Exit status 0 means that the runs agree.

    If you post the new run, its page links to the first run. If the runs agree and another user posted the
    first run, the first run's page and the leaderboard show that you repeated it.
    """
    import asyncio

    from wander_client.evaluate.rerun import repeat_run
    from wander_client.runs.lookup import find_run

    here = current()
    source = find_run(here, run)
    repeated = asyncio.run(
        repeat_run(
            here,
            source,
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
    _answer(repeated.agreement, source, repeated.result, here.output)
    if repeated.result.summary.failed and repeated.agreement.verdict == "inconclusive":
        return PARTIAL
    return OK if repeated.agrees else FAILED


def _answer(agreement: Agreement, source: FoundRun, result: EvaluationResult, output: Output) -> None:
    if agreement.differing:
        output.warn(f"the runs differ in more than the endpoint: {', '.join(agreement.differing)}")
    if agreement.unshared:
        output.warn(f"{agreement.unshared} examples are not scored in both runs")
    data: dict[str, Any] = {"run_dir": str(result.run_dir), **agreement.model_dump(mode="json")}
    output.answer(data, lambda: _show(agreement, output))
    if source.manifest.environment.owner:
        output.next(f"wander post {shell_word(result.run_dir)}")
    output.next(f"wander runs compare {shell_word(source.location)} {shell_word(result.run_dir)}")


def _show(agreement: Agreement, output: Output) -> None:
    needed = "" if agreement.needed is None else f": about {agreement.needed:,} examples are needed"
    texts = {
        "agrees": "the runs agree",
        "differs": "the runs differ",
        "inconclusive": f"too few examples to tell whether the runs agree{needed}",
    }
    output.line(f"before      {agreement.before:.4f}  {agreement.run_id}")
    output.line(f"after       {agreement.after:.4f}  {agreement.rerun_id}")
    output.line(f"difference  {agreement.told.removeprefix('difference ')}")
    output.line(texts[agreement.verdict], style="bold")
