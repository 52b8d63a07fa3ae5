"""`wander train --verify RUN`: repeat the first steps of a run and tell whether they come out the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.errors import FAILED, OK, PARTIAL
from wander_client.training.environments import TrainingEnvironments
from wander_client.training.launcher import require_alone
from wander_client.training.run import StepLines, read_command

if TYPE_CHECKING:
    from wander.train.verify import TrainingVerification

    from wander_client.context import Invocation
    from wander_client.terminal.output import Output

STEPS = 3
"""Steps that are repeated where nothing else is said."""


def verify_run(context: Invocation, run: Path, steps: int | None) -> int:
    """Repeat the first steps of a run, tell what came of it, and return the exit status of that.

    0: all came out the same; 1: one did not, or the run cannot be repeated; 6: the run has fewer steps.
    """
    from wander.train.verify import verify_training

    require_alone("`--verify`")
    command = read_command(run)
    environments = TrainingEnvironments(
        context,
        command.environment,
        run,
        workers=command.settings.environment.workers,
        sandbox=command.sandbox,
    )
    wanted = steps or STEPS
    with StepLines(context.output, "repeating", ("reward",)) as lines:
        report = verify_training(
            run,
            environments.open,
            steps=wanted,
            pin=environments.pin,
            progress=lambda entry: lines.show({**entry, "steps": wanted}),
        )
    data = {**report.model_dump(mode="json"), "same": report.same}
    context.output.answer(data, lambda: show_verification(report, context.output))
    if report.difference is not None or report.compared == 0:
        return FAILED
    return OK if report.same else PARTIAL


def show_verification(report: TrainingVerification, output: Output) -> None:
    """Print what a repetition came to."""
    if report.compared == 0:
        output.line(f"not repeated: {report.refused}")
        return
    found = report.difference
    same = report.compared - (found is not None)
    output.line(f"repeated  {report.compared} of {report.asked} steps in {report.seconds:.1f} s")
    output.line(f"same      {same}, with the weights after {report.weights_compared} of those compared")
    if found is not None:
        told = {
            "rollouts": "other tokens were sampled, or with other probabilities",
            "rewards": "the environment gave other rewards or metrics for the same tokens",
            "update": "the same rollouts and rewards gave another loss or gradient",
            "weights": "the same gradient gave other weights",
        }[found.part]
        output.line(f"differs   step {found.step}, in its {found.part}: {told}", style="error")
    elif report.refused is not None:
        output.line(f"ended     {report.refused}")
    for each in report.changed:
        output.line(f"  {each}")
