"""Runs the whole loop on real input: `make demo`.

The demo starts a hub, publishes the bundled environments to it, and installs one by name. It evaluates a real
language model. It creates a tiny policy, fine-tunes it on a teacher's games, and improves it by GRPO. Another
policy learns to call a tool. The results are posted, and the leaderboard is checked. Each step prints the
command that it runs, as a user would type it.

All files are in ./demo-output, which is recreated by each run. Downloaded models stay in the platform's cache
folder (or `WANDER_CACHE_DIR`). The hub keeps running unless `DEMO_EXIT=1` is set or a step fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workplace import StepFailed, Workplace

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "demo-output"

SMOLLM2_RUNS = (("reverse-text", 16, 48), ("tictactoe", 4, 24))
"""Environment, examples, and tokens per turn. On a CPU, a pretrained model takes about a second per turn."""
TEACHER_GAMES = 3000
EVALUATION_GAMES = 400


def start_over() -> Workplace:
    """Stop the hub of an earlier demo, remove its files, and return an empty folder."""
    Workplace(OUTPUT).stop_hub()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    return Workplace(OUTPUT)


def publish_and_install(demo: Workplace) -> None:
    """Publish the bundled environments that `make setup` installed, and install one by name."""
    with demo.step("Publish the bundled environments to the hub"):
        for project in sorted((ROOT / "environments").glob("*/pyproject.toml")):
            if importlib.util.find_spec(project.parent.name):
                # reasoning-gym requires a package without a wheel, so that is built here.
                demo.type(f"wander publish {project.parent} --build")
    with demo.step("Install one by name, into its own virtual environment"):
        demo.type("wander install admin/tictactoe")
        demo.type("wander env list")


def evaluate_smollm2(demo: Workplace) -> None:
    """Evaluate a real pretrained model on both environments, in this process."""
    with demo.step("Fetch SmolLM2-135M-Instruct"):
        demo.type("wander model pull smollm2")
    with demo.step("Evaluate it on both environments and post the runs"):
        for name, examples, tokens in SMOLLM2_RUNS:
            run = f"runs/smollm2-{name}"
            demo.type(f"wander eval admin/{name} -m smollm2 -n {examples} --max-tokens {tokens} --out {run}")
            demo.type(f"wander post {run}")


def warm_up(demo: Workplace) -> None:
    """Create the tiny policy, and fine-tune it on a teacher's games."""
    with demo.step("Let a careless teacher play, and keep the games that it did not lose"):
        demo.type(
            f"wander eval admin/tictactoe -m scripted:tictactoe.players:careless --split train "
            f"-n {TEACHER_GAMES} -a num_examples={TEACHER_GAMES} --out runs/teacher"
        )
        demo.type("wander runs data runs/teacher --where lost==0 --where format==1 --out teacher.jsonl")
    with demo.step("Create a tiny policy: a million parameters, and a tokenizer from those games"):
        demo.type("wander model new tiny --transcripts runs/teacher --out models/tiny")
    with demo.step("Warm it up by supervised fine-tuning"):
        demo.type(
            "wander model sft teacher.jsonl --config ../examples/tictactoe/sft.toml --model models/tiny "
            "--out models/sft"
        )


def evaluate_policy(demo: Workplace, model: str, name: str) -> None:
    """Evaluate a policy with one command, and post the run."""
    demo.type(
        f"wander eval admin/tictactoe -m {model} -n {EVALUATION_GAMES} -c 128 --max-tokens 24 "
        f"--out runs/{name}"
    )
    demo.type(f"wander post runs/{name}")


def improve(demo: Workplace) -> None:
    """Run GRPO, with the same evaluation before and after."""
    with demo.step("Evaluate the policy before GRPO"):
        evaluate_policy(demo, "models/sft/model", "before")
    with demo.step("Improve it by GRPO, with 256 games per step"):
        demo.type(
            "wander train admin/tictactoe ../examples/tictactoe/grpo.toml --model models/sft/model "
            "--out runs/grpo"
        )
        demo.type("wander post runs/grpo")
    with demo.step("Evaluate it after GRPO"):
        evaluate_policy(demo, "runs/grpo/model", "after")


def teach_tools(demo: Workplace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a policy in phases on an environment with tools. Returns its first and its last evaluation."""
    with demo.step("Teach another policy to call a tool, from a teacher to GRPO in one command"):
        demo.type("wander train admin/math-tools ../examples/math_tools/tiny.toml --out runs/tools")
        demo.type("wander post runs/tools/4-rl")
    lines = (OUTPUT / "runs/tools/4-rl/evaluations.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    if last["interval"][0] <= first["interval"][1]:
        raise StepFailed(
            f"the policy did not clearly learn to call a tool: {first['reward']:.3f} -> {last['reward']:.3f}"
        )
    return first, last


def read_json(name: str) -> Any:
    """Return the content of a JSON file of the output."""
    return json.loads((OUTPUT / name).read_text())


def verify_runs(demo: Workplace) -> None:
    """Wait until the hub has replayed both evaluations, because a board ranks replayed runs first.

    A hub without a sandbox replays nothing. Both runs then keep their posted level.
    """
    for name in ("before", "after"):
        run_id = read_json(f"runs/{name}/run.json")["run_id"]
        if demo.ask(f"runs/{run_id}/verifications")["data"]:
            demo.type(f"wander runs verify runs/{name}")


def check_leaderboard(demo: Workplace) -> dict[str, float]:
    """Return the mean rewards before and after. Fails unless the board ranks them with a clear margin."""
    demo.type("wander leaderboard admin/tictactoe")
    posted = {name: read_json(f"runs/{name}/run.json") for name in ("before", "after")}
    task_set = posted["after"]["task_set_sha256"]
    board = demo.ask(f"environments/admin/tictactoe/leaderboard?task_set={task_set}&runs=all")
    rows = {row["run_id"]: (place, row) for place, row in enumerate(board["rows"])}
    try:
        (after_place, after), (before_place, before) = (
            rows[posted[name]["run_id"]] for name in ("after", "before")
        )
    except KeyError as missing:
        raise StepFailed(f"the leaderboard lacks run {missing}") from None
    rewards = ", ".join(
        f"{row['reward_mean']:.3f} [{row['reward_low']:.3f}, {row['reward_high']:.3f}] {name}, {row['level']}"
        for name, row in (("before", before), ("after", after))
    )
    if after["reward_low"] <= before["reward_high"]:
        raise StepFailed(f"the reward did not clearly rise: {rewards}")
    if after_place > before_place:
        raise StepFailed(f"the board ranks the better policy below the other: {rewards}")
    return {"before": before["reward_mean"], "after": after["reward_mean"]}


def summarize(
    demo: Workplace, rewards: dict[str, float], tools: Sequence[dict[str, Any]], began: float
) -> None:
    """Print the figures, the ranks and the times."""
    print("\n== Done")
    for name, _, _ in SMOLLM2_RUNS:
        summary = read_json(f"runs/smollm2-{name}/summary.json")
        print(f"   SmolLM2-135M on {name}: reward {summary['reward_mean']:.3f}")
    print(f"   tiny policy on tictactoe: reward {rewards['before']:.3f} -> {rewards['after']:.3f} by GRPO")
    called, learned = (f"{evaluation['reward']:.2f}" for evaluation in tools)
    print(f"   tiny policy on math-tools: reward {called} -> {learned} by GRPO")
    for plot in sorted((OUTPUT / "runs/grpo").rglob("*.png")):
        print(f"   learning curves: {plot}")
    print(f"   leaderboard: {demo.hub}/admin/tictactoe/leaderboard")
    print(f"   all environments: {demo.hub}/")
    for title, seconds in demo.times:
        print(f"   {seconds:5.0f} s  {title}")
    print(f"   {time.monotonic() - began:5.0f} s  in total", flush=True)


def main() -> int:
    """Run the demo, and return the exit status."""
    began = time.monotonic()
    demo = start_over()
    kept = False
    try:
        with demo.step("Start a hub of your own"):
            demo.start_hub()
        publish_and_install(demo)
        evaluate_smollm2(demo)
        warm_up(demo)
        improve(demo)
        tools = teach_tools(demo)
        with demo.step("Let the hub replay both evaluations"):
            verify_runs(demo)
        with demo.step("Check the leaderboard"):
            rewards = check_leaderboard(demo)
        summarize(demo, rewards, tools, began)
        kept = os.environ.get("DEMO_EXIT") != "1"
    except StepFailed as failure:
        print(
            f"\nerror: {failure}\n\nhint: the files are in `{OUTPUT}`; `make demo` starts over",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; the files so far are in `{OUTPUT}`", file=sys.stderr)
        return 130
    finally:
        if not kept:
            demo.stop_hub()
    if kept:
        print(f"\nThe hub keeps running; stop it with: kill {demo.hub_process()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
