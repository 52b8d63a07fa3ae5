"""Measures how fast games are played and learned from on a GPU, compared with a bare TRL step on the same
GPU.

    python benchmarks/gpu.py                        # tiny, with 256, 1,024 and 4,096 concurrent games
    python benchmarks/gpu.py --model smollm2 --lora-rank 8 --autocast          # as in SmolLM2's experiment
    python benchmarks/gpu.py --device cpu --at-once 64 --steps 2 --rounds 1    # a rehearsal

Rollouts are sampled by transformers in this process, with keys and values cached between turns. The
environment runs in a separate process. The bare step is that of `training.py`, after each size. OUT gets
`gpu.json` and `gpu.md`, which always contain the finished measurements. Failed measurements are not written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scripts/gpu")]

import smoke  # noqa: E402
import training  # noqa: E402
from wander.models.quiet import quiet_libraries  # noqa: E402
from wander.train.config import GRPOSettings  # noqa: E402
from wander.train.grpo import train_grpo  # noqa: E402
from wander.train.records.files import read_metrics  # noqa: E402

PARTS = ("generation", "environment", "scoring", "update")


def settings_for(ground: smoke.Ground, given: argparse.Namespace, games: int) -> GRPOSettings:
    """Return the settings for a step with this number of games."""
    return smoke.settings_for(
        ground,
        model={"autocast": given.autocast, "lora_rank": given.lora_rank},
        batch={"rollouts": games, "rows_at_once": min(given.rows, games)},
        schedule={"steps": given.steps},
        sampling={"max_tokens": given.max_tokens or (40 if given.model == "smollm2" else smoke.TURN)},
    )


def keep_layers(model: Path, layers: int, folder: Path) -> Path:
    """Save a copy of a model with only its first layers, and return its folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(model, num_hidden_layers=layers).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def measure_rollouts(ground: smoke.Ground, given: argparse.Namespace, games: int) -> dict[str, Any]:
    """Play this number of games at a time. Returns games and tokens per second."""
    settings = settings_for(ground, given, games)
    steps = [smoke.play(settings, games) for _ in range(given.rounds)]
    rates = [{"games": games / step.seconds, "tokens": step.sampled_tokens / step.seconds} for step in steps]
    shares = [step.model_seconds / step.seconds for step in steps]
    return {name: statistics.median(rate[name] for rate in rates) for name in ("games", "tokens")} | {
        "at_once": games,
        "model_share": statistics.median(shares),
    }


def measure_step(ground: smoke.Ground, given: argparse.Namespace, games: int) -> dict[str, Any]:
    """Train some steps with this number of games. Returns the parts of the median step, without the first."""
    smoke.forget_peak(ground)
    folder = ground.folder / f"steps-{games}"
    settings = settings_for(ground, given, games)
    output = settings.output.model_copy(update={"rollouts_every": 1})  # for the bare step
    train_grpo(smoke.open_tictactoe, settings.model_copy(update={"output": output}), folder)
    entries = read_metrics(folder)[1:] or read_metrics(folder)
    seconds = {
        name: statistics.median(entry[f"seconds/{name}"] for entry in entries) for name in ("step", *PARTS)
    }
    memory = smoke.peak_memory(ground)
    return {"at_once": games, "games": games / seconds["step"], "seconds": seconds, "memory_mib": memory}


def measure_bare(
    ground: smoke.Ground, given: argparse.Namespace, games: int, seconds: float
) -> dict[str, Any]:
    """Measure a step of TRL that samples and reads the same number of tokens, in a separate process.

    `seconds` are those of our step. Both use the same weights, adapters and precision.
    """
    run = ground.folder / f"steps-{games}"
    like = ground.folder / "like.json"
    tokens = [max(1, round(entry["tokens"])) for entry in read_metrics(run)]
    like.write_text(json.dumps({"tokens": tokens, "sequences": training.sequences_of(run)}))
    options = argparse.Namespace(
        **{"rollouts": games, "group": 8, "rows": min(given.rows, games), "steps": given.steps},
        **{"model": str(ground.policy), "device": given.device, "threads": given.threads},
        **{"lora_rank": given.lora_rank, "autocast": int(given.autocast)},
    )
    bare = training.child("bare", options, f"--like={like}")
    theirs = statistics.median(bare["seconds"][1:] or bare["seconds"])
    return {"at_once": games, "seconds": {"ours": seconds, "bare": theirs}, "ratio": seconds / theirs}


def as_markdown(report: dict[str, Any]) -> str:
    """Return the tables."""
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    lines = [f"# Tic-tac-toe with `{report['model']}` on {machine}", ""]
    lines += [
        "| concurrent games | games a second | sampled tokens a second | of it the model |",
        "|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each['at_once']:,} | {each['games']:,.0f} | {each['tokens']:,.0f} | {each['model_share']:.0%} |"
        for each in report["rollouts"]
    ]
    titles = " | ".join(f"{part}, s" for part in ("step", *PARTS))
    lines += [
        "",
        f"| games a step | games a second | {titles} | peak memory, MiB |",
        "|---:" * (4 + len(PARTS)) + "|",
    ]
    for each in report["steps"]:
        seconds = " | ".join(f"{each['seconds'][part]:.2f}" for part in ("step", *PARTS))
        memory = "not measured" if each["memory_mib"] is None else f"{each['memory_mib']:,.0f}"
        lines.append(f"| {each['at_once']:,} | {each['games']:,.0f} | {seconds} | {memory} |")
    for bare in report["bare"]:
        ours, theirs = bare["seconds"]["ours"], bare["seconds"]["bare"]
        lines += [
            "",
            f"A step of {bare['at_once']:,} games takes {ours:.2f} s, a bare TRL step with the same number "
            f"of tokens {theirs:.2f} s: {bare['ratio']:.2f} times.",
        ]
    if report["device"] == "cpu":
        lines += ["", "A rehearsal on a CPU: nothing here was measured on a GPU."]
    return "\n".join(lines) + "\n"


def write(report: dict[str, Any], out: Path) -> None:
    """Write the finished measurements."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (out / "gpu.md").write_text(as_markdown(report), encoding="utf-8")


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure everything, and write each result as soon as it is available."""
    ground = smoke.Ground(given.device, folder, games=given.at_once[0], warm_up=given.warm_up)
    if given.model == "tiny":
        smoke.prepare(ground)
        smoke.fine_tune(ground)
    else:
        from wander.models.loading import resolve_model

        ground.policy = Path(resolve_model(given.model)[0])
        if given.layers:
            ground.policy = keep_layers(ground.policy, given.layers, folder / "shallow")
    report: dict[str, Any] = {"model": given.model, "device": given.device}
    report |= {"machine": smoke.describe_machine(given.device), "rollouts": [], "steps": [], "bare": []}
    for games in given.at_once:
        report["rollouts"].append(measure_rollouts(ground, given, games))
        write(report, given.out)
        report["steps"].append(measure_step(ground, given, games))
        write(report, given.out)
        if not given.no_bare:
            seconds = report["steps"][-1]["seconds"]["step"]
            report["bare"].append(measure_bare(ground, given, games, seconds))
            write(report, given.out)
    return report


def main(words: list[str] | None = None) -> int:
    """Measure, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, or a folder")
    parser.add_argument("--layers", type=int, help="keep only the first layers of `--model`, to rehearse")
    parser.add_argument("--at-once", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--rows", type=int, default=256, help="rows per backward pass")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=120)
    parser.add_argument(
        "--max-tokens", type=int, help=f"tokens per turn (default: 40 for smollm2, or else {smoke.TURN})"
    )
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--autocast", action="store_true", help="bf16, as in SmolLM2's experiment")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-bare", action="store_true", help="leave out TRL's step")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    given = parser.parse_args(words)
    if given.device != "cpu" and not smoke.torch.cuda.is_available():
        print("error: PyTorch finds no GPU\n\nhint: `--device cpu` rehearses without one", file=sys.stderr)
        return 2
    if odd := [games for games in given.at_once if games % 8 or games % min(given.rows, games)]:
        parser.error(f"{odd[0]} games are not a multiple of 8, or of `--rows {given.rows}`")
    with tempfile.TemporaryDirectory() as work, quiet_libraries():
        print(as_markdown(measure(given, Path(work))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
