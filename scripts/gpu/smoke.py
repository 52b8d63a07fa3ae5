"""Tests the plain CUDA path of training with a tiny policy in one to three minutes, and measures its speed.

    python scripts/gpu/smoke.py --device cuda --out OUT
    python scripts/gpu/smoke.py --device cpu --games 16     # a rehearsal

Each item really trains or plays tic-tac-toe, and compares its result with that of the CPU, or with itself,
within `BOUNDS`. If an item fails, the others are still tested. OUT gets `smoke.json`. The exit status is 1 if
any value is out of bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from math_tools import load_environment as load_math_tools
from math_tools.players import expert
from tictactoe import load_environment
from tictactoe.players import teacher
from wander.clients.scripted import ScriptedClient
from wander.environment import LocalEnvironment
from wander.evals.store.folder import RunFolder
from wander.handle import EnvironmentHandle
from wander.models.engines.transformers import TransformersEngine
from wander.models.loading import LoadedModel, load_model
from wander.models.policy import PolicyClient
from wander.models.quiet import quiet_libraries
from wander.models.tiny import TinySize, create_tiny
from wander.models.transcripts import play_transcripts, transcript_of
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.data import select_rows
from wander.train.engine import load_sampled, sampling_arguments
from wander.train.grpo import open_source, train_grpo
from wander.train.records.files import read_metrics
from wander.train.rollouts.environments import EnvironmentChoice
from wander.train.rollouts.source import Assignment, StepRollouts
from wander.train.sft import sum_losses, tokenize_rows, train_sft
from wander.types import Rollout
from wander.worker.host.environment import WorkerEnvironment

ENVIRONMENT = {"num_examples": 40000, "max_random_move_prob": 1.0, "num_groups": 16}
SELF_PLAY = {"num_examples": 40000, "opponent": "player"}
SUMS = {"num_examples": 4000, "levels": 1, "digits": 1}
"""Questions of math_tools that need one call."""
TURN = 24
"""Maximum number of tokens per turn."""

BOUNDS: dict[str, tuple[float, float]] = {
    "fine-tuning: first losses against the CPU, relative": (0.0, 2e-3),
    "loss in fp32 against the CPU, relative": (0.0, 1e-3),
    "loss in bf16 autocast against fp32, relative": (0.0, 0.02),
    "loss with bf16 weights against fp32, relative": (0.0, 0.05),
    "gradient in fp32 against the CPU, cosine": (0.999, 1.0001),
    "gradient in bf16 autocast against fp32, cosine": (0.97, 1.0001),
    "greedy games that go as on the CPU, share": (0.9, 1.0),
    "failed rollouts": (0.0, 0.0),
    "reward of the first step against the CPU, difference": (0.0, 0.05),
    "gradient norm of the first step against the CPU, relative": (0.0, 0.2),
    "KL of the first step": (-1e-4, 1e-3),
    "KL of the last step": (1e-9, 10.0),
    "gradient norm of the last step": (1e-9, 1e3),
    "resumed against not stopped: weights, relative to what was learned": (0.0, 0.25),
    "resumed against not stopped: reward of the last step, difference": (0.0, 0.1),
    "reward of the first step played ahead against in turns, difference": (0.0, 0.05),
    "updates that the last step's weights had learned less": (1.0, 1.0),
    "calls of the last step that the tool took, of each rollout": (0.5, 3.0),
    "turns of the second player in the last step, share": (0.2, 0.6),
    "memory with checkpointed gradients against without": (0.0, 1.0),
}
"""Lowest and highest allowed value of each comparison. The order of sums on a GPU varies, so a sampled token
may differ once in thousands of games, and Adam turns the sign of a nearly zero gradient into a whole step.
Bounds of whole steps are therefore wide, and those of single computations narrow. On a CPU, resuming is
exact."""


@dataclass
class Ground:
    """Settings and models shared by the items."""

    device: str
    folder: Path
    games: int = 256
    steps: int = 3
    warm_up: int = 120
    size: TinySize = field(default_factory=TinySize)
    start: Path = Path()
    """The untrained policy."""
    policy: Path = Path()
    """The policy after fine-tuning on the device."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Games of the teacher for fine-tuning."""


@dataclass
class Item:
    """Result of one item."""

    name: str
    values: dict[str, float] = field(default_factory=dict)
    """Values that are compared with `BOUNDS`."""
    figures: dict[str, float | str] = field(default_factory=dict)
    """Values that are reported but not compared."""
    error: str | None = None
    seconds: float = 0.0

    @property
    def faults(self) -> list[str]:
        """Descriptions of the values that are out of bounds."""
        out = []
        for name, value in self.values.items():
            least, greatest = BOUNDS[name]
            if not least <= value <= greatest:  # NaN is out of every bound
                out.append(f"{name}: {value:.4g} is not in {least:g} to {greatest:g}")
        return out + ([self.error] if self.error else [])


def settings_for(ground: Ground, **sections: Any) -> GRPOSettings:
    """Return GRPO settings for the policy on the device, with some sections overridden."""
    data: dict[str, Any] = {
        "model": {"path": str(ground.policy), "device": ground.device},
        "environment": {"arguments": ENVIRONMENT},
        "batch": {"rollouts": ground.games, "group_size": 8, "rows_at_once": min(128, ground.games)},
        "sampling": {"max_tokens": TURN},
        "schedule": {"steps": ground.steps, "learning_rate": 5e-4},
        "output": {"rollouts_every": 0, "fixed_prompts": 0},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


@contextlib.asynccontextmanager
async def open_worker(name: str, choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
    """Open an environment in a process of its own, as `wander train` does."""
    with tempfile.TemporaryDirectory() as work:
        handle = await WorkerEnvironment.start(
            None, name, arguments=choice.arguments, log_path=Path(work) / "worker.log"
        )
        try:
            yield handle
        finally:
            await handle.close()


open_tictactoe = partial(open_worker, "tictactoe")
open_math_tools = partial(open_worker, "math_tools")


def prepare(ground: Ground) -> None:
    """Play the teacher's games, and create an untrained policy with their vocabulary."""

    async def played() -> list[Any]:
        environment = LocalEnvironment(load_environment(**ENVIRONMENT))
        return await play_transcripts(environment, ScriptedClient(teacher(0.4)), 400)

    games = asyncio.run(played())
    last = [max(i for i, message in enumerate(game) if message["role"] == "assistant") for game in games]
    ground.rows = [{"messages": game[: end + 1]} for game, end in zip(games, last, strict=True)]
    ground.start = create_tiny(games, ground.folder / "tiny", seed=0, size=ground.size)


COMPARED = 5
"""Number of fine-tuning steps that are compared with the CPU."""


def fine_tune(ground: Ground) -> Item:
    """Fine-tune the policy for the other items in fp32 on the device, and for a few steps on the CPU."""
    item = Item("fine-tuning")
    losses = []
    for device, steps in ((ground.device, ground.warm_up), ("cpu", COMPARED)):
        settings = SFTSettings.model_validate(
            {
                "model": {"path": str(ground.start), "device": device},
                # During warm-up, the learning rate does not depend on the number of steps.
                "schedule": {"steps": steps, "learning_rate": 2e-3, "warmup_steps": COMPARED},
            }
        )
        folder = ground.folder / f"sft-{len(losses)}"
        result = train_sft(ground.rows, settings, folder)
        losses.append([entry["loss"] for entry in read_metrics(folder)])
        if len(losses) == 1:
            ground.policy = result.model
            item.figures["steps of fine-tuning a second"] = result.steps / result.seconds
    ours, cpu = losses
    item.values["fine-tuning: first losses against the CPU, relative"] = max(
        abs(a / b - 1) for a, b in zip(ours[:COMPARED], cpu, strict=True)
    )
    item.figures["loss before and after fine-tuning"] = f"{ours[0]:.3f} -> {ours[-1]:.3f}"
    return item


def compare_numbers(ground: Ground) -> Item:
    """Compute a loss and its gradient on the CPU, and on the device in fp32, bf16 autocast and bf16."""
    item = Item("numbers")
    count = min(64, len(ground.rows))
    kinds = {
        "cpu": ("cpu", "float32", False),
        "fp32": (ground.device, "float32", False),
        "autocast": (ground.device, "float32", True),
        "bf16": (ground.device, "bfloat16", False),
    }
    losses, gradients = {}, {}
    for kind, (device, dtype, autocast) in kinds.items():
        loaded = load_model(ground.policy, device=device, dtype=dtype)
        dataset, _ = tokenize_rows(ground.rows[:count], loaded, 1024)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            total, tokens = sum_losses(loaded.model, dataset, 32)
            losses[kind] = total / tokens
        gradients[kind] = gradient_of(loaded, dataset[:16], autocast=autocast)
    item.values = {
        "loss in fp32 against the CPU, relative": abs(losses["fp32"] / losses["cpu"] - 1),
        "loss in bf16 autocast against fp32, relative": abs(losses["autocast"] / losses["fp32"] - 1),
        "loss with bf16 weights against fp32, relative": abs(losses["bf16"] / losses["fp32"] - 1),
        "gradient in fp32 against the CPU, cosine": cosine(gradients["fp32"], gradients["cpu"]),
        "gradient in bf16 autocast against fp32, cosine": cosine(gradients["autocast"], gradients["fp32"]),
    }
    return item


def gradient_of(loaded: LoadedModel, rows: dict[str, list[list[int]]], *, autocast: bool) -> torch.Tensor:
    """Return the gradient of the mean loss of some conversations: flat, on the CPU, in double precision."""
    model, device = loaded.model, loaded.model.device
    length = max(len(ids) for ids in rows["input_ids"])
    pad = [(row, length - len(row)) for row in rows["input_ids"]]
    ids = torch.tensor([row + [0] * empty for row, empty in pad], device=device)
    seen = torch.tensor([[1] * len(row) + [0] * empty for row, empty in pad], device=device)
    labels = torch.tensor([row + [-100] * (length - len(row)) for row in rows["labels"]], device=device)
    model.zero_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        model(input_ids=ids, attention_mask=seen, labels=labels).loss.backward()
    parts = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return torch.cat([part.detach().to("cpu", torch.float64).flatten() for part in parts])


def cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the cosine of the angle between two gradients."""
    return float(first @ second / (first.norm() * second.norm()))


def play(
    settings: GRPOSettings, games: int, *, greedy: bool = False, device: str | None = None
) -> StepRollouts:
    """Play this number of games with the policy in groups of eight. The warm-up games are not timed."""
    if device is not None:
        model = settings.model.model_copy(update={"device": device})
        settings = settings.model_copy(update={"model": model})
    loaded = load_sampled(settings)
    engine = TransformersEngine(loaded.model, loaded.tokenizer, **sampling_arguments(settings))
    client = PolicyClient(loaded.model, loaded.tokenizer, engine=engine)
    source = open_source(open_tictactoe, client, settings)
    if greedy:
        source.sampling = source.sampling.model_copy(update={"temperature": 0.0})
    try:
        source.play([Assignment(position, 0) for position in range(min(games, 64))])
        return source.play([Assignment(1000 + number // 8, number % 8) for number in range(games)])
    finally:
        source.close()


def roll_out(ground: Ground) -> Item:
    """Measure sampling with cached keys and values, and compare greedy games with those of the CPU."""
    item = Item("rollouts")
    for autocast in (False, True):
        step = play(settings_for(ground, model={"autocast": autocast}), ground.games)
        kind = "bf16 autocast" if autocast else "fp32"
        item.figures[f"games a second, {kind}"] = ground.games / step.seconds
        item.figures[f"tokens a second, {kind}"] = step.sampled_tokens / step.model_seconds
        item.values["failed rollouts"] = sum(rollout.failure is not None for rollout in step.rollouts)
    few = min(64, ground.games)
    played = [play(settings_for(ground), few, greedy=True, device=name) for name in (ground.device, "cpu")]
    same = [a.completion == b.completion for a, b in zip(*(step.rollouts for step in played), strict=True)]
    item.values["greedy games that go as on the CPU, share"] = sum(same) / few
    return item


def train_plain(ground: Ground) -> Item:
    """Train all weights in fp32. Measures the parts of a step, and compares the first step with the CPU's."""
    item = Item("training")
    forget_peak(ground)
    train_grpo(open_tictactoe, settings_for(ground), ground.folder / "plain")
    entries = read_metrics(ground.folder / "plain")
    cpu = settings_for(ground, model={"device": "cpu"}, schedule={"steps": 1})
    train_grpo(open_tictactoe, cpu, ground.folder / "plain-cpu")
    theirs = read_metrics(ground.folder / "plain-cpu")[0]
    item.values = {
        "failed rollouts": sum(entry["failed"] for entry in entries),
        "reward of the first step against the CPU, difference": abs(entries[0]["reward"] - theirs["reward"]),
        "gradient norm of the first step against the CPU, relative": abs(
            entries[0]["grad_norm"] / theirs["grad_norm"] - 1
        ),
    }
    item.figures = figures_of(entries, ground) | {
        "the CPU's first step, games a second": ground.games / theirs["seconds/step"]
    }
    return item


def train_adapters(ground: Ground) -> Item:
    """Train adapters in bf16 autocast, with a reference and checkpointed gradients, as for SmolLM2."""
    item = Item("adapters, KL, autocast, checkpointed gradients")
    forget_peak(ground)
    train_grpo(open_tictactoe, adapted(ground), ground.folder / "adapters")
    entries = read_metrics(ground.folder / "adapters")
    item.values = {
        "failed rollouts": sum(entry["failed"] for entry in entries),
        "KL of the first step": entries[0]["kl"],
        "KL of the last step": entries[-1]["kl"],
        "gradient norm of the last step": entries[-1]["grad_norm"],
    }
    item.figures = figures_of(entries, ground)
    return item


def adapted(ground: Ground, **sections: Any) -> GRPOSettings:
    """Return settings with adapters, a reference, autocast and checkpointed gradients."""
    model = {"lora_rank": 8, "autocast": True, "gradient_checkpointing": True}
    return settings_for(ground, model=model, algorithm={"kl": 0.05}, **sections)


def play_ahead(ground: Ground) -> Item:
    """Play each step while the policy learns from the previous one.

    The first step is the same in both modes.
    """
    item = Item("steps played ahead")
    forget_peak(ground)
    settings = settings_for(ground, batch={"max_staleness": 1}, schedule={"steps": 2})
    train_grpo(open_tictactoe, settings, ground.folder / "ahead")
    entries = read_metrics(ground.folder / "ahead")
    in_turns = read_metrics(ground.folder / "plain")
    item.values = {
        "failed rollouts": sum(entry["failed"] for entry in entries),
        "reward of the first step played ahead against in turns, difference": abs(
            entries[0]["reward"] - in_turns[0]["reward"]
        ),
        "updates that the last step's weights had learned less": entries[-1]["staleness"],
    }
    item.figures = figures_of(entries, ground) | {
        "games a second in turns": ground.games / in_turns[-1]["seconds/step"]
    }
    return item


def call_tools(ground: Ground) -> Item:
    """Teach a policy to call a tool, and train it on the results of its calls."""
    item = Item("tool calls")

    async def played() -> list[Rollout]:
        environment = LocalEnvironment(load_math_tools(**SUMS))
        examples = await environment.examples("train", 0, 200)
        return [await environment.rollout(ScriptedClient(expert), example) for example in examples]

    rollouts = asyncio.run(played())
    start = create_tiny(
        [transcript_of(rollout) for rollout in rollouts], ground.folder / "caller", seed=0, size=ground.size
    )
    tuning = {"steps": 3 * ground.warm_up, "learning_rate": 2e-3, "warmup_steps": COMPARED}
    model = {"path": str(start), "device": ground.device}
    tuned = train_sft(
        select_rows(rollouts)[0],
        SFTSettings.model_validate({"model": model, "schedule": tuning}),
        ground.folder / "caller-sft",
    )
    settings = settings_for(
        ground,
        model={"path": str(tuned.model)},
        environment={"arguments": SUMS},
        sampling={"max_tokens": 2 * TURN},
        schedule={"steps": 2},
    )
    train_grpo(open_math_tools, settings, ground.folder / "tools")
    entries = read_metrics(ground.folder / "tools")
    last = entries[-1]
    item.values = {
        "failed rollouts": sum(entry["failed"] for entry in entries),
        "calls of the last step that the tool took, of each rollout": last["rewards/total_tool_calls"]
        - last["rewards/tool_errors"],
    }
    item.figures = figures_of(entries, ground) | {"right answers of the last step, share": last["reward"]}
    return item


def play_itself(ground: Ground) -> Item:
    """Train the policy on games against itself, with the reward of either player."""
    item = Item("self-play")
    settings = settings_for(
        ground,
        environment={"arguments": SELF_PLAY},
        schedule={"steps": 2},
        output={"rollouts_every": 1},
    )
    folder = ground.folder / "self-play"
    train_grpo(open_tictactoe, settings, folder)
    entries = read_metrics(folder)
    turns = [turn for rollout in RunFolder.open(folder).rollouts() for turn in rollout.turns]
    item.values = {
        "failed rollouts": sum(entry["failed"] for entry in entries),
        "turns of the second player in the last step, share": sum(turn.player == "O" for turn in turns)
        / len(turns),
        "gradient norm of the last step": entries[-1]["grad_norm"],
    }
    item.figures = figures_of(entries, ground)
    return item


def resume(ground: Ground) -> Item:
    """Interrupt a run of adapters with a signal, resume it, and compare it with an uninterrupted run."""
    item = Item("checkpoint and resumption")
    settings = adapted(ground, schedule={"steps": 3}, output={"checkpoint_every": 2})

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    whole, part = ground.folder / "whole", ground.folder / "part"
    train_grpo(open_tictactoe, settings, whole)
    if not train_grpo(open_tictactoe, settings, part, progress=interrupt).interrupted:
        raise RuntimeError("the run did not stop")
    files = [path for path in (part / "checkpoints").rglob("*") if path.is_file()]
    train_grpo(open_tictactoe, settings, part, resume=True)
    start, one, other = (weights_of(path) for path in (ground.policy, whole / "model", part / "model"))
    learned = float((one - start).norm())
    rewards = [read_metrics(folder)[-1]["reward"] for folder in (whole, part)]
    item.values = {
        "resumed against not stopped: weights, relative to what was learned": float((one - other).norm())
        / learned,
        "resumed against not stopped: reward of the last step, difference": abs(rewards[0] - rewards[1]),
    }
    item.figures["bytes of a checkpoint of adapters"] = sum(path.stat().st_size for path in files)
    return item


def grow(ground: Ground) -> Item:
    """Train on four times the number of games, with and without checkpointed gradients.

    Measures time and memory.
    """
    item = Item("larger batch")
    peaks = []
    for checkpointed in (False, True):
        games = 4 * ground.games
        settings = settings_for(
            ground,
            model={"gradient_checkpointing": checkpointed},
            batch={"rollouts": games, "rows_at_once": min(512, games)},
            schedule={"steps": 2},
        )
        forget_peak(ground)
        folder = ground.folder / f"large-{checkpointed}"
        train_grpo(open_tictactoe, settings, folder)
        last = read_metrics(folder)[-1]
        kind = "checkpointed" if checkpointed else "plain"
        item.figures[f"games a second at {games} a step, {kind}"] = games / last["seconds/step"]
        item.values["failed rollouts"] = last["failed"]
        if (peak := peak_memory(ground)) is not None:
            peaks.append(peak)
            item.figures[f"peak memory at {games} a step, {kind}, MiB"] = peak
    if peaks:
        item.values["memory with checkpointed gradients against without"] = peaks[1] / peaks[0]
    return item


def figures_of(entries: list[dict[str, Any]], ground: Ground) -> dict[str, float | str]:
    """Return the speed of the last step, and the parts of its time."""
    last = entries[-1]
    figures: dict[str, float | str] = {
        "games a second": ground.games / last["seconds/step"],
        "tokens a second while sampling": last["tokens"] * ground.games / last["seconds/generation"],
    }
    for name in ("step", "generation", "environment", "scoring", "update"):
        figures[f"seconds of a step: {name}"] = last[f"seconds/{name}"]
    if (peak := peak_memory(ground)) is not None:
        figures["peak memory, MiB"] = peak
    return figures


def forget_peak(ground: Ground) -> None:
    """Reset the measurement of peak memory."""
    if ground.device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(ground: Ground) -> float | None:
    """Return the peak memory of tensors on the GPU in MiB, or None on a CPU."""
    return None if ground.device == "cpu" else torch.cuda.max_memory_allocated() / (1 << 20)


def weights_of(folder: Path) -> torch.Tensor:
    """Return all weights of a model as one vector."""
    model = load_model(folder, device="cpu").model
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


ITEMS: tuple[Callable[[Ground], Item], ...] = (
    *(fine_tune, compare_numbers, roll_out, train_plain, play_ahead, call_tools, play_itself),
    *(train_adapters, resume, grow),
)


def try_items(ground: Ground, only: Collection[str] = ()) -> Iterator[Item]:
    """Yield the result of each item. If an item fails, its result says why, and the next one runs."""
    for work in [item for item in ITEMS if not only or item is fine_tune or item.__name__ in only]:
        began = perf_counter()
        try:
            with quiet_libraries():
                item = work(ground)
        except Exception as error:  # noqa: BLE001 - reported at the end, and by the exit status
            traceback.print_exc()
            item = Item(work.__name__, error=f"{type(error).__name__}: {error}")
        item.seconds = perf_counter() - began
        yield item


def show(item: Item) -> None:
    """Print the result of an item as soon as it is available."""
    print(f"\n== {item.name} ({item.seconds:.1f} s): {'FAILED' if item.faults else 'ok'}", flush=True)
    for name, figure in item.figures.items():
        print(f"   {name}: {figure if isinstance(figure, str) else f'{figure:,.4g}'}")
    for name, value in item.values.items():
        least, greatest = BOUNDS[name]
        print(f"   {name}: {value:.3g} (bound {least:g} to {greatest:g})", flush=True)
    for fault in item.faults:
        print(f"   out of bounds: {fault}", flush=True)


def describe_machine(device: str) -> dict[str, str]:
    """Return a description of the device."""
    machine = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(0)
        machine |= {"gpu": properties.name, "memory, MiB": str(properties.total_memory >> 20)}
    return machine


def main(given: list[str] | None = None) -> int:
    """Run all items. Returns 1 if anything is out of bounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--games", type=int, default=256, help="games per step, a multiple of 8")
    parser.add_argument("--warm-up", type=int, default=120, help="steps of fine-tuning")
    parser.add_argument("--hidden", type=int, default=128, help="width of the policy")
    parser.add_argument("--layers", type=int, default=4, help="layers of the policy")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        choices=[item.__name__ for item in ITEMS],
        metavar="ITEM",
        help="run only these after the fine-tuning: " + ", ".join(item.__name__ for item in ITEMS[1:]),
    )
    parser.add_argument("--out", type=Path, help="folder for smoke.json")
    options = parser.parse_args(given)
    if options.device != "cpu" and not torch.cuda.is_available():
        print("error: PyTorch finds no GPU\n\nhint: `--device cpu` rehearses without one", file=sys.stderr)
        return 2
    began = perf_counter()
    machine = describe_machine(options.device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    items = []
    with tempfile.TemporaryDirectory() as work:
        ground = Ground(options.device, Path(work), games=options.games, warm_up=options.warm_up)
        ground.size = TinySize.of_width(options.hidden, options.layers, 512)
        prepare(ground)
        for item in try_items(ground, options.only):
            show(item)
            items.append(item)
    seconds = perf_counter() - began
    faults = [fault for item in items for fault in item.faults]
    verdict = f"{len(faults)} faults" if faults else "everything is within its bounds"
    print(f"\nsmoke: {verdict}, {seconds:.0f} s")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        report = {"machine": machine, "games": options.games, "seconds": seconds, "faults": faults}
        text = json.dumps(report | {"items": [asdict(item) for item in items]}, indent=1)
        (options.out / "smoke.json").write_text(text + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
