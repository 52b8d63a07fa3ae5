"""Compares a training step with a bare TRL GRPO step that samples the same number of tokens without an
environment.

    .venv/bin/python benchmarks/training.py            # a tiny policy on tic-tac-toe, on both cores
    .venv/bin/python benchmarks/training.py --quick    # a minute, writes nothing
    .venv/bin/python benchmarks/training.py --model smollm2 --rollouts 32 --steps 3

Both learn from the same number of rollouts and the same group size, with the same loss, rows at a time and
policy. Each is a separate process, and they alternate. The bare step is TRL's `GRPOTrainer` with
transformers' own `generate`: one completion per rollout, with as many tokens as ours sampled, after a prompt
with as many tokens as the policy read there (the first prompt and the environment's messages). Both therefore
sample and learn from the same number of tokens. The rest of our time is the environment: its turns, its
process, and scoring.

Processor time of the training process is measured in addition to wall time, because it is more stable on a
busy machine. The shares of environment and scoring are the total time of the rollouts in which the model did
not compute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from transformers import TrainerCallback

RESULTS = Path(__file__).parent / "results"
ENVIRONMENT = {"max_random_move_prob": 0.7, "num_groups": 4}
OPTIONS = ("rollouts", "group", "rows", "steps", "model", "device", "lora_rank", "autocast", "threads")
"""Options that both sides share."""
GOAL = 0.85
"""Maximum ratio of our step time and memory to those of the bare step."""


def main() -> None:
    """Measure both alternately, print the ratio, and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=150, help="fine-tuning steps of the tiny policy")
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, or a folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--autocast", type=int, default=0, help="1 computes in bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", choices=["ours", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--like", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        torch.set_num_threads(given.threads)
        print(json.dumps(ours(given) if given.child == "ours" else bare(given)))
        return
    if given.quick:
        given.rollouts, given.steps, given.rounds, given.warm_up = 64, 3, 1, 40
    with tempfile.TemporaryDirectory() as work:
        given.model = str(tiny_policy(Path(work), given.warm_up)) if given.model == "tiny" else given.model
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "bare": []}
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
            found["ours"].append(child("ours", given))
            like = Path(work) / "like.json"
            like.write_text(json.dumps(found["ours"][-1]))
            del found["ours"][-1]["sequences"]  # only needed by the bare side
            found["bare"].append(child("bare", given, f"--like={like}"))
    report = compared(found, given)
    print(report["text"])
    if not given.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "training.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "training.md").write_text(report["text"] + "\n")


def child(kind: str, given: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Measure one side in a separate process, and return its result."""
    options = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in OPTIONS]
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind, *options, *more],
        check=True,
        capture_output=True,
        text=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def tiny_policy(work: Path, steps: int) -> Path:
    """Create a tiny policy with valid answers, fine-tuned on games of an optimal player."""
    import asyncio

    from tictactoe import load_environment
    from tictactoe.players import optimal
    from wander.clients.scripted import ScriptedClient
    from wander.environment import LocalEnvironment
    from wander.models.tiny import create_tiny
    from wander.models.transcripts import play_transcripts
    from wander.train.config import SFTSettings
    from wander.train.sft import train_sft

    async def played() -> list[Any]:
        handle = LocalEnvironment(load_environment(**ENVIRONMENT))
        return await play_transcripts(handle, ScriptedClient(optimal), 400)

    games = asyncio.run(played())
    folder = create_tiny(games, work / "tiny", seed=0)
    last = [max(i for i, message in enumerate(game) if message["role"] == "assistant") for game in games]
    settings = SFTSettings.model_validate(
        {
            "model": {"path": str(folder), "device": "cpu"},
            "schedule": {"steps": steps, "learning_rate": 2e-3},
        }
    )
    rows = [{"messages": game[: end + 1]} for game, end in zip(games, last, strict=True)]
    return train_sft(rows, settings, work / "sft").model


class Clock(TrainerCallback):  # type: ignore[misc]
    """Measures the wall time and processor time of every step."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.begun = (0.0, 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Start a step, which includes playing its rollouts."""
        self.begun = (perf_counter(), process_time())

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """End a step."""
        self.steps.append((perf_counter() - self.begun[0], process_time() - self.begun[1]))

    def measured(self) -> dict[str, list[float]]:
        """Return the measurements."""
        return {
            "seconds": [seconds for seconds, _ in self.steps],
            "processor": [processor for _, processor in self.steps],
        }


def ours(given: argparse.Namespace) -> dict[str, Any]:
    """Train with the environment in a separate process, as `wander train` does."""
    import contextlib
    from collections.abc import AsyncIterator

    from wander.handle import EnvironmentHandle
    from wander.train.config import GRPOSettings
    from wander.train.grpo import train_grpo
    from wander.train.records.files import read_metrics
    from wander.train.rollouts.environments import EnvironmentChoice
    from wander.worker.host.environment import WorkerEnvironment

    settings = GRPOSettings.model_validate(
        {
            "model": {
                "path": given.model,
                "device": given.device,
                "lora_rank": given.lora_rank,
                "autocast": bool(given.autocast),
            },
            "environment": {"arguments": ENVIRONMENT},
            "batch": {
                "rollouts": given.rollouts,
                "group_size": given.group,
                "rows_at_once": min(given.rows, given.rollouts),
            },
            "sampling": {"max_tokens": 24},
            "schedule": {"steps": given.steps, "learning_rate": 1e-5},
            "output": {"rollouts_every": 1, "fixed_prompts": 0},
        }
    )
    with tempfile.TemporaryDirectory() as work:

        @contextlib.asynccontextmanager
        async def opener(choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
            handle = await WorkerEnvironment.start(
                None, "tictactoe", arguments=choice.arguments, log_path=Path(work) / "worker.log"
            )
            try:
                yield handle
            finally:
                await handle.close()

        clock = Clock()
        train_grpo(opener, settings, Path(work) / "run", observers=[clock])
        entries = read_metrics(Path(work) / "run")
        read = sequences_of(Path(work) / "run")
    shares = {
        name: statistics.median(entry[f"seconds/{name}"] / entry["seconds/step"] for entry in entries[1:])
        for name in ("generation", "environment", "scoring", "update")
    }
    return {
        **clock.measured(),
        "sequences": read[: given.rollouts // given.group],
        "tokens": [max(1, round(entry["tokens"])) for entry in entries],
        "turns": statistics.mean(entry["turns"] for entry in entries),
        "shares": shares,
        "memory_mb": memory_mb(),
    }


def sequences_of(run: Path) -> list[list[int]]:
    """Return the tokens of the rollouts that a run kept."""
    from wander.evals.store.folder import RunFolder

    turns = [rollout.turns[-1].tokens for rollout in RunFolder.open(run).rollouts()]
    return [[*turn.prompt_ids, *turn.completion_ids] for turn in turns if turn is not None]


def bare(given: argparse.Namespace) -> dict[str, Any]:
    """Train with only TRL: in each step one completion per rollout, as long as ours."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from wander.models.loading import load_model
    from wander.models.quiet import quiet_libraries
    from wander.train.config import ModelSection
    from wander.train.hugging_face_trainer import CHECKPOINTING
    from wander.train.weights import wrap_lora

    loaded = load_model(given.model, device=given.device, dtype="float32")
    like = json.loads(given.like.read_text())
    count = statistics.median_low(like["tokens"])
    prompts = [loaded.tokenizer.decode(ids[: max(1, len(ids) - count)]) for ids in like["sequences"]]
    groups = given.steps * given.rollouts // given.group
    rows = [{"prompt": prompt} for prompt in itertools.islice(itertools.cycle(prompts), groups)]
    clock = Clock()
    rows_at_once = min(given.rows, given.rollouts)
    with tempfile.TemporaryDirectory() as work, quiet_libraries():
        trainer = GRPOTrainer(
            model=wrap_lora(loaded.model, ModelSection(path=given.model, lora_rank=given.lora_rank)),
            processing_class=loaded.tokenizer,
            reward_funcs=[lambda completion_ids, **unused: [float(ids[0] % 7) for ids in completion_ids]],
            train_dataset=Dataset.from_list(rows),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=work,
                max_steps=given.steps,
                per_device_train_batch_size=rows_at_once,
                gradient_accumulation_steps=given.rollouts // rows_at_once,
                num_generations=given.group,
                max_completion_length=count,
                generation_kwargs={"min_new_tokens": count},
                loss_type="dapo",
                scale_rewards="none",
                beta=0.0,
                learning_rate=1e-5,
                lr_scheduler_type="constant",
                shuffle_dataset=False,
                **{CHECKPOINTING: False},
                use_cpu=given.device == "cpu",
                bf16=bool(given.autocast),
                report_to="none",
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
        )
        trainer.train()
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "loss" in entry]
    return {**clock.measured(), "tokens": lengths, "memory_mb": memory_mb()}


def memory_mb() -> float:
    """Return the peak memory of this process in MB, without that of the environment's process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compared(found: dict[str, list[dict[str, Any]]], given: argparse.Namespace) -> dict[str, Any]:
    """Return the ratio of the median steps, without the first of each process, and the table."""
    seconds, processor = (
        {kind: statistics.median(s for run in runs for s in run[name][1:]) for kind, runs in found.items()}
        for name in ("seconds", "processor")
    )
    memory = {kind: max(run["memory_mb"] for run in runs) for kind, runs in found.items()}
    tokens = {
        kind: statistics.mean(t for run in runs for t in run["tokens"][1:]) for kind, runs in found.items()
    }
    shares = {
        name: statistics.median(run["shares"][name] for run in found["ours"])
        for name in found["ours"][0]["shares"]
    }
    around = shares["environment"] + shares["scoring"]
    lines = [
        f"# A training step of {given.rollouts} rollouts of tic-tac-toe, compared with a bare TRL step",
        "",
        f"`{Path(given.model).name}` on {given.device}, {given.threads} threads, groups of {given.group}, "
        f"{given.rows} concurrent rows; {given.steps} steps, {given.rounds} rounds in turns; medians.",
        "",
        "| | wander | bare TRL | ratio |",
        "|---|---:|---:|---:|",
        f"| seconds a step | {seconds['ours']:.2f} | {seconds['bare']:.2f} "
        f"| {seconds['ours'] / seconds['bare']:.2f} |",
        f"| processor seconds a step | {processor['ours']:.2f} | {processor['bare']:.2f} "
        f"| {processor['ours'] / processor['bare']:.2f} |",
        f"| sampled tokens a rollout | {tokens['ours']:.1f} | {tokens['bare']:.1f} "
        f"| {tokens['ours'] / tokens['bare']:.2f} |",
        f"| peak memory, MB | {memory['ours']:.0f} | {memory['bare']:.0f} "
        f"| {memory['ours'] / memory['bare']:.2f} |",
        "",
        f"Of our step: generation {shares['generation']:.1%}, update {shares['update']:.1%}, "
        f"environment {shares['environment']:.1%}, scoring {shares['scoring']:.1%}; together {around:.1%}.",
        "",
        f"Goal: ratios of at most {GOAL}, environment and scoring at most 4%.",
    ]
    return {
        "seconds": seconds,
        "memory_mb": memory,
        "shares": shares,
        "runs": found,
        "text": "\n".join(lines),
    }


if __name__ == "__main__":
    main()
