"""The recipe, from transcripts to the curve; the process that `wander.learning.proof` starts.

1. An expert plays training examples: the environment's `gold`, or random replies without one.
2. A tiny policy with a new tokenizer imitates the transcripts, in blocks, until it earns a part of their
   reward. It stops early, so that there is something left to learn.
3. GRPO trains the policy on the rewards, and evaluates it on held-out examples. The first and the last
   evaluation are the reward before and after.

The steps, the seeds and the sizes are fixed, and nothing depends on time. The process runs with one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import IO, Any

import torch

from wander.checks.engine import play_experts
from wander.errors import WanderError
from wander.evals.store.manifest import find_installed_versions
from wander.handle import EnvironmentHandle
from wander.learning.records import LearningRequest
from wander.loop_thread import LoopThread
from wander.models.loading import load_model, weights_digest
from wander.models.policy import PolicyClient
from wander.models.quiet import quiet_libraries
from wander.models.sampling import end_of_turn_ids
from wander.models.tiny import TinySize, create_tiny
from wander.models.transcripts import CONCURRENCY, make_babbling_client, read_examples, transcript_of
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.data import select_rows
from wander.train.grpo import train_grpo
from wander.train.records.files import CellEvaluation, read_evaluations
from wander.train.records.reproduction import LIBRARIES
from wander.train.rollouts.concurrent_play import play_once
from wander.train.rollouts.environments import EnvironmentChoice
from wander.train.sft import tokenize_rows, train_sft
from wander.types import BOX_KINDS, Example, Rollout, SamplingArgs
from wander.wire.verification import LearningPoint, LearningReport
from wander.worker.host.environment import WorkerEnvironment

SEED = 0
GROUP = 8
"""Number of rollouts of an example in a step of GRPO."""
VOCABULARY = 512
SAMPLED_ROWS = 100
"""Number of transcripts whose lengths decide the sizes of the steps."""
IMITATION_RATE = 3e-3

MOST_REASON = 2000
"""Characters of a reason. Some reasons quote the environment."""

Tell = Callable[[str, int, int], None]


class NotShown(WanderError):
    """A reason why the recipe ends before GRPO."""


class Run:
    """One run of the recipe."""

    def __init__(self, request: LearningRequest, tell: Tell) -> None:
        self.request = request
        self.recipe = request.recipe
        self.folder = Path(request.folder)
        self.tell = tell
        self.loop = LoopThread("wander-learning")
        self.report = LearningReport(
            schema="wander.learning/1", environment=request.target, arguments=request.arguments
        )

    def carry_out(self) -> LearningReport:
        """Return the report. Faults of the environment are reasons in the report."""
        self.report.platform = describe_platform()
        self.report.versions = {
            "python": platform.python_version(),
            **find_installed_versions(("wander-sdk", *LIBRARIES)),
        }
        try:
            with quiet_libraries():
                self._learn()
        except WanderError as error:
            self.report.reason = str(error)[:MOST_REASON]
        finally:
            self.loop.close()
        self.report.cpu_seconds = sum(
            usage.ru_utime + usage.ru_stime
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        return self.report

    @contextlib.asynccontextmanager
    async def open(self, choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
        """Open the environment in its own process."""
        request = self.request
        handle = await WorkerEnvironment.start(
            Path(request.python),
            request.target,
            arguments=dict(choice.arguments),
            path=Path(request.target) if request.is_path else None,
            log_path=self.folder / "environment.log",
            sandbox=request.sandbox,
            runtime=request.runtime,
        )
        try:
            yield handle
        finally:
            await handle.close()

    def _learn(self) -> None:
        self.tell("loading the environment", 0, 1)
        handle = self.loop.enter(self.open(EnvironmentChoice(arguments=self.request.arguments)))
        self.report.environment = handle.info.name
        if not handle.info.deterministic:
            raise NotShown("the environment declares that it is not deterministic")
        if handle.info.kind in (*BOX_KINDS, "rlm"):
            raise NotShown("its rollouts run programs, which a tiny policy does not learn to write")
        rollouts = self._play_transcripts(handle)
        rows, _ = select_rows(rollouts, keep_repeats=True)
        if not rows:
            raise NotShown("no rollout of the transcripts was scored")
        model = self._create(rollouts)
        lengths, longest_turn = measure_rows(model, rows, self.recipe.context)
        turn = min(self.recipe.most_turn_tokens, longest_turn + longest_turn // 4 + 8)
        model = self._imitate(handle, model, rows, lengths, turn)
        self._reinforce(model, lengths, turn)

    def _play_transcripts(self, handle: EnvironmentHandle) -> list[Rollout]:
        """Return the scored rollouts of the expert, or else the better ones of the random player."""
        count = self.recipe.transcripts
        self.tell("playing transcripts", 0, count)
        request = self.request
        rollouts = play_experts(
            Path(request.target) if request.is_path else request.target,
            request.arguments,
            count=count,
            python=request.python,
            sandbox=request.sandbox,
            runtime=request.runtime,
        )
        self.report.demonstrations = "expert"
        if not rollouts:
            self.report.demonstrations = "random"
            examples = self.loop.run(read_examples(handle, count))
            names = [f"random/{number}" for number in range(len(examples))]
            playing = play_once(make_babbling_client(), handle, examples, names, at_once=CONCURRENCY)
            rollouts = self.loop.run(playing)
        scored = [rollout for rollout in rollouts if rollout.reward is not None]
        if not scored:
            raise NotShown("no rollout of the transcripts was scored")
        if self.report.demonstrations == "random":
            middle = fmean(rollout.reward or 0.0 for rollout in scored)
            scored = [rollout for rollout in scored if (rollout.reward or 0.0) >= middle]
        self.report.demonstrated = fmean(rollout.reward or 0.0 for rollout in scored)
        return scored

    def _create(self, rollouts: Sequence[Rollout]) -> Path:
        transcripts = [transcript_of(rollout) for rollout in rollouts]
        characters = fmean(len(str(transcript)) for transcript in transcripts)
        width = TinySize.of_width(self.recipe.hidden, self.recipe.layers, VOCABULARY)
        size = TinySize(
            **{
                **vars(width),
                "context": self.recipe.context,
                "characters": characters <= self.recipe.spelled,
            }
        )
        return create_tiny(transcripts, self.folder / "untrained", seed=SEED, size=size)

    def _imitate(
        self,
        handle: EnvironmentHandle,
        model: Path,
        rows: list[dict[str, Any]],
        lengths: Sequence[int],
        turn: int,
    ) -> Path:
        """Return the model after the first block that reaches the goal, or after the last block."""
        recipe = self.recipe
        examples = self.loop.run(read_examples(handle, recipe.probe_examples))
        earned = self._measure(handle, model, examples, turn)
        self.report.untrained = earned
        assert self.report.demonstrated is not None
        goal = earned + recipe.imitation_goal * (self.report.demonstrated - earned)
        size = clamp(recipe.imitation_tokens // round(fmean(lengths)), 8, 64)
        total = recipe.imitation_blocks * recipe.imitation_steps
        for block in range(recipe.imitation_blocks):
            if block and earned >= goal:
                break
            settings = SFTSettings.model_validate(
                {
                    "model": {"path": str(model), "device": "cpu"},
                    "batch": {"rows": size, "max_length": recipe.context},
                    "schedule": {
                        "steps": recipe.imitation_steps,
                        "learning_rate": IMITATION_RATE,
                        "warmup_steps": min(20, recipe.imitation_steps),
                        "decay": "constant",
                        "seed": block,
                        "checkpoint_every": 0,
                    },
                }
            )
            model = train_sft(
                rows,
                settings,
                self.folder / f"imitation-{block}",
                progress=self._told_from(self.report.imitation_steps, total),
            ).model
            self.report.imitation_steps += recipe.imitation_steps
            earned = self._measure(handle, model, examples, turn)
        return model

    def _told_from(self, done: int, total: int) -> Callable[[dict[str, Any]], None]:
        """Return a callback for the steps of a block that comes after `done` steps."""
        return lambda entry: self.tell("imitating", done + entry["step"], total)

    def _measure(
        self, handle: EnvironmentHandle, model: Path, examples: Sequence[Example], turn: int
    ) -> float:
        """Return the mean reward of a model on examples, without rollouts that failed."""
        loaded = load_model(model, device="cpu")
        client = PolicyClient(loaded.model, loaded.tokenizer)
        client.limit_context(self.recipe.context)
        sampling = SamplingArgs(temperature=1.0, max_tokens=turn)
        names = [f"imitation/{number}" for number in range(len(examples))]
        played = self.loop.run(play_once(client, handle, examples, names, sampling=sampling))
        rewards = [rollout.reward for rollout in played if rollout.reward is not None]
        if not rewards:
            raise NotShown("every rollout of the policy failed")
        return fmean(rewards)

    def _reinforce(self, model: Path, lengths: Sequence[int], turn: int) -> None:
        recipe = self.recipe
        groups = clamp(recipe.rollout_tokens // round(fmean(lengths)) // GROUP, 4, 32)
        settings = GRPOSettings.model_validate(
            {
                "model": {"path": str(model), "device": "cpu"},
                "environment": {"arguments": self.request.arguments},
                "batch": {
                    "rollouts": groups * GROUP,
                    "group_size": GROUP,
                    "rows_at_once": groups * GROUP if groups <= 16 or groups % 2 else groups * GROUP // 2,
                },
                "sampling": {"max_tokens": turn, "max_rollout_tokens": recipe.context},
                "schedule": {
                    "steps": recipe.steps,
                    "learning_rate": recipe.learning_rate,
                    "decay": "linear",
                    "seed": SEED,
                },
                "evaluation": {
                    "every": max(1, recipe.steps // recipe.points),
                    "examples": recipe.examples,
                    "temperature": 1.0,
                },
                "stopping": {"collapse": False},
                "output": {"checkpoint_every": 0, "rollouts_every": 0},
            }
        )
        folder = self.folder / "grpo"
        result = train_grpo(
            self.open,
            settings,
            folder,
            progress=lambda entry: self.tell("learning from rewards", entry["step"], recipe.steps),
        )
        if result.interrupted:  # a curve that ends early says nothing about the environment
            raise RuntimeError("a signal ended the training")
        self._read_curve(read_evaluations(folder))
        loaded = load_model(result.model, device="cpu")
        self.report.parameters = sum(values.numel() for values in loaded.model.parameters())
        self.report.rollouts = result.rollouts
        self.report.weights_sha256 = weights_digest(result.model)

    def _read_curve(self, evaluations: Sequence[CellEvaluation]) -> None:
        report = self.report
        for line in evaluations:
            if line.reward is None:
                raise NotShown(f"every rollout of the evaluation after step {line.step} failed")
            low, high = line.interval or (None, None)
            report.curve.append(LearningPoint(step=line.step, reward=line.reward, low=low, high=high))
        report.held_out = evaluations[-1].split == "eval"
        report.examples = evaluations[-1].examples
        before, after = report.curve[0], report.curve[-1]
        if before.high is None or after.low is None:
            report.reason = f"{report.examples} examples are too few for an interval"
        elif after.low > before.high:
            report.shown = True
        else:
            report.reason = (
                f"the intervals before and after overlap: {before.reward:.2f} to {after.reward:.2f} in "
                f"{report.steps} steps"
            )


def measure_rows(model: Path, rows: Sequence[dict[str, Any]], context: int) -> tuple[list[int], int]:
    """Return the lengths in tokens of the first rows, and the length of their longest turn."""
    loaded = load_model(model, device="cpu")
    dataset, _ = tokenize_rows(rows[:SAMPLED_ROWS], loaded, context)
    ends = end_of_turn_ids(loaded.model, loaded.tokenizer)
    longest = 1
    for labels in dataset["labels"]:
        turn = 0
        for label in labels:
            turn = turn + 1 if label >= 0 and label not in ends else 0
            longest = max(longest, turn + 1)
    return list(dataset["length"]), longest


def clamp(value: int, least: int, most: int) -> int:
    """Return the nearest number within bounds."""
    return max(least, min(most, value))


def describe_platform() -> str:
    """Return what the bits depend on besides the versions of the software.

    The maker of the processor counts, because MKL chooses other code for each.
    """
    maker = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        maker = next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")
    known = (platform.system(), platform.machine(), maker, torch.backends.cpu.get_cpu_capability())
    return " ".join(filter(None, known))


def end_with_parent() -> None:
    """End this process's session when the parent is gone, and with it the parent's end of the pipe."""
    os.read(0, 1)  # not sys.stdin: an interpreter that ends while a thread holds its lock aborts
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Read the request, run the recipe, and write its progress and its report as lines of JSON."""
    # Libraries print to stdout, so the lines have a descriptor of their own.
    lines: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def tell(stage: str, done: int, total: int) -> None:
        lines.write(json.dumps({"stage": stage, "done": done, "total": total}) + "\n")

    request = LearningRequest.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    limit = request.recipe.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    if hasattr(resource, "RLIMIT_DATA"):  # the environment decides how much the recipe must remember
        memory = request.recipe.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    torch.set_num_threads(1)
    report = Run(request, tell).carry_out()
    lines.write(json.dumps({"report": report.model_dump(mode="json", by_alias=True)}) + "\n")


if __name__ == "__main__":
    main()
