"""Compares training that plays steps ahead while the policy learns (`batch.max_staleness`) with training in
turns.

    .venv/bin/python benchmarks/ahead.py            # speed in alternating pairs, then learning curves
    .venv/bin/python benchmarks/ahead.py --quick    # a minute, writes nothing
    .venv/bin/python benchmarks/ahead.py --vllm PYTHON    # a vLLM server, started with that Python, samples

The environment is a bandit with two pulls that answers after a random delay drawn from its seed, like a
sandbox or a web page. It sleeps, so processors are free in the meantime. The speed is the number of rollouts
per second of the whole training, including the first steps, which could not be played ahead. Both kinds are
measured alternately, so that other load affects both.

Learning does not depend on the clock, so the curves use the same bandit without delays. For each seed, both
trainings start with the same policy, and differ only in the staleness. They are compared in pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from wander import Messages, MultiTurnEnv, Rubric, State, XMLParser
from wander.evals.stats.intervals import mean_interval
from wander.handle import EnvironmentHandle

RESULTS = Path(__file__).parent / "results"
PAYOFFS = {"0": 0.0, "1": 0.2, "2": 0.5, "3": 1.0}
PULL = XMLParser(["pull"], answer_field="pull")
GOAL = 1.4
"""Minimum ratio of rollouts per second to training in turns, if the environment takes time."""


class SlowBandit(MultiTurnEnv):
    """Two pulls of a lever with fixed payoffs. Each answer takes up to `seconds`."""

    seconds = 0.0

    async def env_response(self, messages: Messages, state: State) -> Messages:  # type: ignore[override]
        """Return the payoff of the pull after a delay."""
        turn, pull = len(messages), str(messages[-1]["content"])
        await asyncio.sleep(self.seconds * self.rng(state, "wait", turn, pull).random())
        paid = PAYOFFS.get(self.parser.parse_answer([messages[-1]]) or "", 0.0)
        return [{"role": "user", "content": f"It paid {paid}. Pull again."}]


def payoff(completion: Messages) -> float:
    """Return the mean payoff of the pulls."""
    pulls = [PULL.parse_answer([message]) for message in completion if message["role"] == "assistant"]
    return sum(PAYOFFS.get(pull or "", 0.0) for pull in pulls) / max(1, len(pulls))


def bandit(seconds: float = 0.0) -> SlowBandit:
    """Return the environment."""
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(512)]
    made = SlowBandit(rows, max_turns=2, parser=PULL, rubric=Rubric([payoff], [1.0]))
    made.seconds = seconds
    return made


@contextlib.asynccontextmanager
async def open_bandit(seconds: float, choice: Any) -> AsyncIterator[EnvironmentHandle]:
    """Open the environment in this process, because its own processor time is negligible."""
    from wander.environment import LocalEnvironment

    handle = LocalEnvironment(bandit(seconds))
    try:
        yield handle
    finally:
        await handle.close()


def tiny_policy(folder: Path, *, served: bool = False) -> Path:
    """Create a tiny policy that answers in the right format and prefers no lever."""
    from wander.clients.scripted import ScriptedClient
    from wander.environment import LocalEnvironment
    from wander.models.tiny import TinySize, create_tiny
    from wander.models.transcripts import play_transcripts
    from wander.seeding import derived_rng
    from wander.train.config import SFTSettings
    from wander.train.sft import train_sft

    def pull(request: Any) -> str:
        return f"<pull>{derived_rng('pull', request.seed).randrange(4)}</pull>"

    games = asyncio.run(play_transcripts(LocalEnvironment(bandit()), ScriptedClient(pull), 64))
    # vLLM does not support smaller heads.
    hidden, key_values = (128, 2) if served else (32, 1)
    size = TinySize(
        hidden=hidden,
        layers=2,
        heads=2,
        key_value_heads=key_values,
        intermediate=2 * hidden,
        vocabulary=300,
        context=256,
    )
    start = create_tiny(games, folder / "tiny", seed=0, size=size)
    settings = SFTSettings.model_validate(
        {
            "model": {"path": str(start), "device": "cpu"},
            "batch": {"rows": 16},
            "schedule": {"steps": 120, "learning_rate": 5e-3 if served else 1e-2, "decay": "linear"},
        }
    )
    return train_sft([{"messages": game[:-1]} for game in games], settings, folder / "sft").model


@contextlib.contextmanager
def serve(model: Path, python: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Start a vLLM server for the policy. Yields the settings that make it sample."""
    from wander.models.engines.weights import write_checkpoint
    from wander.models.loading import load_model
    from wander.train.config import InferenceSection
    from wander_client.context import CommonOptions, Invocation, set_current
    from wander_client.terminal.output import Output
    from wander_client.training.run import training_server

    invocation = Invocation(CommonOptions(), Output("quiet"))
    set_current(invocation)
    loaded = load_model(model, device="cpu")
    first = write_checkpoint(loaded.model, dict(loaded.model.named_parameters()), folder / "weights-0")
    loaded.tokenizer.save_pretrained(first)
    arguments = ["--max-model-len", "256", "--dtype", "float32", "--enforce-eager"]
    section = InferenceSection(engine="vllm-server", python=python, arguments=arguments)
    with training_server(invocation, first, section) as url:
        yield {"engine": "vllm-server", "url": url}


def train(given: argparse.Namespace, staleness: int, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Train once, and return the seconds and rewards of every step."""
    from wander.train.config import GRPOSettings
    from wander.train.grpo import train_grpo
    from wander.train.records.files import read_metrics

    settings = GRPOSettings.model_validate(
        {
            "model": {"path": given.model, "device": given.device},
            "inference": given.inference,
            "batch": {
                "rollouts": given.rollouts,
                "group_size": 8,
                "rows_at_once": given.rollouts,
                "max_staleness": staleness,
            },
            "sampling": {"max_tokens": 8},
            "schedule": {"steps": given.steps, "learning_rate": 2e-3, "seed": seed},
            "output": {"rollouts_every": 0, "fixed_prompts": 0},
        }
    )
    with tempfile.TemporaryDirectory() as work:
        train_grpo(partial(open_bandit, seconds), settings, Path(work) / "run")
        entries = read_metrics(Path(work) / "run")
    return {
        "seconds": [entry["seconds/step"] for entry in entries],
        "rewards": [entry["reward"] for entry in entries],
    }


def measure_speed(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rollouts per second of each pair: one training in turns, one ahead, one after the other."""
    pairs = []
    for seconds in given.seconds:
        for number in range(given.rounds):
            order = [0, given.staleness] if number % 2 == 0 else [given.staleness, 0]
            took = {staleness: sum(train(given, staleness, seconds)["seconds"]) for staleness in order}
            speed = {staleness: given.rollouts * given.steps / took[staleness] for staleness in order}
            pairs.append({"wait": seconds, "turns": speed[0], "ahead": speed[given.staleness]})
            print(f"pair {number + 1} of {given.rounds}: {pairs[-1]}", file=sys.stderr)
    return pairs


def compare_curves(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rewards of every step, in turns and ahead, for each seed."""
    curves = []
    for seed in range(given.seeds):
        turns, ahead = (train(given, staleness, 0.0, seed)["rewards"] for staleness in (0, given.staleness))
        curves.append({"seed": seed, "turns": turns, "ahead": ahead})
        print(f"curves: seed {seed} of {given.seeds}", file=sys.stderr)
    return curves


def speed_lines(pairs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of speeds."""
    lines = ["| longest wait of a turn, s | in turns | ahead | ratio of each pair | median |"]
    lines.append("|---:|---:|---:|---|---:|")
    for seconds in dict.fromkeys(pair["wait"] for pair in pairs):
        own = [pair for pair in pairs if pair["wait"] == seconds]
        ratios = [pair["ahead"] / pair["turns"] for pair in own]
        turns, ahead = (statistics.median(pair[kind] for pair in own) for kind in ("turns", "ahead"))
        listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(
            f"| {seconds:g} | {turns:.0f} | {ahead:.0f} | {listed} | {statistics.median(ratios):.2f} |"
        )
    return lines


def curve_lines(curves: Sequence[dict[str, Any]], staleness: int) -> list[str]:
    """Return the lines of the table of rewards by the number of learned updates, with intervals of
    differences.

    A step that is played ahead shows the policy of `staleness` updates before.
    """
    lines = ["| updates learned | in turns | ahead | difference, 95% | sd between seeds, in turns |"]
    lines.append("|---|---:|---:|---:|---:|")
    versions = len(curves[0]["turns"]) - staleness
    part = max(1, versions // 4)
    for first in range(0, versions - versions % part, part):
        turns = [statistics.mean(curve["turns"][first : first + part]) for curve in curves]
        own = slice(staleness + first, staleness + first + part)
        ahead = [statistics.mean(curve["ahead"][own]) for curve in curves]
        low, high = mean_interval([b - a for a, b in zip(turns, ahead, strict=True)])
        interval = "" if low is None or high is None else f" ({low:+.3f} to {high:+.3f})"
        lines.append(
            f"| {first} to {first + part - 1} | {statistics.mean(turns):.3f} | {statistics.mean(ahead):.3f} "
            f"| {statistics.mean(ahead) - statistics.mean(turns):+.3f}{interval} "
            f"| {statistics.stdev(turns):.3f} |"
        )
    return lines


def tell(pairs: Sequence[dict[str, Any]], curves: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    """Return both tables with their descriptions."""
    lines = [
        f"# Steps of {given.rollouts} rollouts of a slow bandit, played ahead and in turns",
        "",
        f"A tiny policy on `{given.device}`, sampled by {'a vLLM server' if given.vllm else 'transformers'}, "
        f"{given.threads} thread(s), {given.steps} steps, `max_staleness` of {given.staleness} and 0; "
        "rollouts a second in alternating pairs:",
        "",
        *speed_lines(pairs),
        "",
        f"Mean reward of {given.seeds} seeds by the updates that the playing policy had learned; played "
        f"ahead, a step shows those of {given.staleness} steps before:",
        "",
        *curve_lines(curves, given.staleness),
        "",
        f"Goal: at least {GOAL} times where the environment takes time, and no difference in what is learned "
        "beyond chance.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure speed and curves, print the tables, and save them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts per step")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.0, 0.5, 2.0], help="longest waits")
    parser.add_argument("--rounds", type=int, default=3, help="pairs for each delay")
    parser.add_argument("--seeds", type=int, default=6, help="seeds of the curves")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="device of the policy")
    parser.add_argument(
        "--vllm", metavar="PYTHON", help="sample with a vLLM server, started with this Python"
    )
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.quick:
        given.rollouts, given.steps, given.rounds, given.seeds, given.seconds = 16, 6, 1, 2, [0.3]
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = tiny_policy(work, served=given.vllm is not None)
        given.model, given.inference = str(model), {}
        if given.vllm:
            given.inference = stack.enter_context(serve(model, given.vllm, work))
        pairs, curves = measure_speed(given), compare_curves(given)
    text = tell(pairs, curves, given)
    print(text)
    if not given.quick:
        RESULTS.mkdir(exist_ok=True)
        name = "ahead-vllm" if given.vllm else "ahead"
        (RESULTS / f"{name}.json").write_text(json.dumps({"pairs": pairs, "curves": curves}, indent=1) + "\n")
        (RESULTS / f"{name}.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
