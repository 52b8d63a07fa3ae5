"""The whole loop on real input: `make demo`.

A hub is started, the bundled environments are published to it and one is installed by name; a real language
model is evaluated, a tiny policy is made, warmed up on a teacher's games and improved by GRPO; the results
are posted, and the leaderboard is checked. Each step prints the command it runs, as a user would type it.

Everything lies in ./demo-output, which each run makes anew. Pulled models stay in the platform's cache folder
(or `WANDER_CACHE_DIR`). The hub is left running unless `DEMO_EXIT=1`; a step that fails stops it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
OUTPUT = ROOT / "demo-output"
PID_FILE = OUTPUT / "hub.pid"

SMOLLM2_RUNS = (("reverse-text", 16, 48), ("tictactoe", 4, 24))
"""Environment, examples, tokens a turn: a pretrained model on a CPU costs about a second a turn."""
TEACHER_GAMES = 3000
EVALUATION_GAMES = 400


class DemoFailed(Exception):
    """A step did not do what it should; the message says which and how."""


class Demo:
    """One run: the environment of its commands, and how long each step took."""

    def __init__(self, hub: str) -> None:
        self.hub = hub
        self.times: list[tuple[str, float]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WANDER_")},
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "WANDER_HUB": hub,
            "WANDER_HUB_DATA": str(OUTPUT / "hub"),
            "WANDER_CONFIG_DIR": str(OUTPUT / "config"),
            "WANDER_DATA_DIR": str(OUTPUT / "data"),
        }
        if cache := os.environ.get("WANDER_CACHE_DIR"):
            self.environment["WANDER_CACHE_DIR"] = cache

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print what is done now, and after it how long it took."""
        print(f"\n== {len(self.times) + 1}. {title}", flush=True)
        began = time.monotonic()
        yield
        self.times.append((title, time.monotonic() - began))
        print(f"   ({self.times[-1][1]:.0f} s)", flush=True)

    def type(self, line: str, **options: Any) -> str:
        """Print a command line and run it in ./demo-output; return its standard output."""
        print(f"$ {line}", flush=True)
        done = subprocess.run(
            shlex.split(line), cwd=OUTPUT, env=self.environment, stdout=subprocess.PIPE, text=True, **options
        )
        print("".join(f"  {row}\n" for row in done.stdout.splitlines()), end="", flush=True)
        if done.returncode:
            raise DemoFailed(f"`{line}` ended with status {done.returncode}")
        return done.stdout

    def ask(self, path: str) -> Any:
        """Return what the hub's API answers."""
        with urllib.request.urlopen(f"{self.hub}/api/v1/{path}", timeout=30) as answer:  # noqa: S310 - ours
            return json.load(answer)


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_hub(pid: int) -> None:
    """Stop a hub of the demo, if that process still is one."""
    listed = subprocess.run(["ps", "-p", str(pid), "-o", "args="], capture_output=True, text=True).stdout
    if "wander-hub" not in listed:
        return
    os.kill(pid, signal.SIGTERM)
    for _ in range(100):
        time.sleep(0.1)
        state = subprocess.run(["ps", "-p", str(pid), "-o", "state="], capture_output=True, text=True).stdout
        if not state.strip() or state.strip().startswith("Z"):
            return


def start_over() -> None:
    """Stop the hub of an earlier demo and remove what it left."""
    if PID_FILE.exists():
        stop_hub(int(PID_FILE.read_text()))
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()


def start_hub(demo: Demo) -> None:
    """Start the hub in the background and wait until it answers."""
    line = f"wander-hub serve --port {demo.hub.rpartition(':')[2]} --token-file token --no-access-log"
    print(f"$ {line} &", flush=True)
    with (OUTPUT / "hub.log").open("wb") as log:
        process = subprocess.Popen(
            shlex.split(line),
            cwd=OUTPUT,
            env=demo.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    PID_FILE.write_text(str(process.pid))
    for _ in range(600):
        if process.poll() is not None:
            raise DemoFailed(f"the hub stopped:\n{(OUTPUT / 'hub.log').read_text()}")
        try:
            with urllib.request.urlopen(f"{demo.hub}/health", timeout=5):  # noqa: S310 - ours
                break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    else:
        raise DemoFailed(f"the hub does not answer at {demo.hub}")
    demo.environment["WANDER_TOKEN"] = (OUTPUT / "token").read_text().strip()
    print(f"  {demo.hub} answers; data in {OUTPUT / 'hub'}")


def publish_and_install(demo: Demo) -> None:
    """Publish the bundled environments, install one by name."""
    with demo.step("Publish the bundled environments to the hub"):
        for name in ("reverse_text", "tictactoe"):
            demo.type(f"wander publish {ROOT / 'environments' / name}")
    with demo.step("Install one by name, into a virtual environment of its own"):
        demo.type("wander install admin/tictactoe")
        demo.type("wander list")


def evaluate_smollm2(demo: Demo) -> None:
    """Evaluate a real pretrained model on both environments, in process."""
    with demo.step("Fetch SmolLM2-135M-Instruct"):
        demo.type("wander model pull smollm2")
    with demo.step("Evaluate it on both environments and post the runs"):
        for name, examples, tokens in SMOLLM2_RUNS:
            run = f"runs/smollm2-{name}"
            demo.type(f"wander eval admin/{name} -m smollm2 -n {examples} --max-tokens {tokens} --out {run}")
            demo.type(f"wander post {run}")


def warm_up(demo: Demo) -> None:
    """Make the tiny policy and fine-tune it on a teacher's games."""
    with demo.step("Let a careless teacher play, keep the games that it did not lose"):
        demo.type(
            f"wander eval admin/tictactoe -m scripted:tictactoe.players:careless --split train "
            f"-n {TEACHER_GAMES} -a num_examples={TEACHER_GAMES} --out runs/teacher"
        )
        demo.type("wander data runs/teacher --where lost==0 --where format==1 --out teacher.jsonl")
    with demo.step("Make a tiny policy: a million parameters, a tokenizer from those games"):
        demo.type("wander model new tiny --transcripts runs/teacher --out models/tiny")
    with demo.step("Warm it up by supervised fine-tuning"):
        demo.type(
            "wander sft teacher.jsonl --config ../examples/tictactoe/sft.toml --model models/tiny "
            "--out models/sft"
        )


def evaluate_policy(demo: Demo, model: str, name: str) -> None:
    """Evaluate a policy with one command, and post the run."""
    demo.type(
        f"wander eval admin/tictactoe -m {model} -n {EVALUATION_GAMES} -c 128 --max-tokens 24 "
        f"--out runs/{name}"
    )
    demo.type(f"wander post runs/{name}")


def improve(demo: Demo) -> None:
    """GRPO, with the same evaluation before and after."""
    with demo.step("Evaluate the policy before GRPO"):
        evaluate_policy(demo, "models/sft/model", "before")
    with demo.step("Improve it by GRPO, 256 games a step"):
        demo.type(
            "wander train admin/tictactoe ../examples/tictactoe/grpo.toml --model models/sft/model "
            "--out runs/grpo"
        )
        demo.type("wander post runs/grpo")
    with demo.step("Evaluate it after GRPO"):
        evaluate_policy(demo, "runs/grpo/model", "after")


def read_json(name: str) -> Any:
    """Return the content of a JSON file of the output."""
    return json.loads((OUTPUT / name).read_text())


def check_leaderboard(demo: Demo) -> dict[str, float]:
    """Return the mean rewards before and after; fail unless the board ranks them, with a clear margin."""
    demo.type("wander leaderboard admin/tictactoe")
    posted = {
        name: json.loads((OUTPUT / f"runs/{name}/run.json").read_text()) for name in ("before", "after")
    }
    task_set = posted["after"]["task_set_sha256"]
    board = demo.ask(f"environments/admin/tictactoe/leaderboard?task_set={task_set}&runs=all")
    rows = {row["run_id"]: (place, row) for place, row in enumerate(board["rows"])}
    try:
        (after_place, after), (before_place, before) = (
            rows[posted[name]["run_id"]] for name in ("after", "before")
        )
    except KeyError as missing:
        raise DemoFailed(f"the leaderboard lacks run {missing}") from None
    if after_place > before_place or after["reward_low"] <= before["reward_high"]:
        raise DemoFailed(
            f"the reward did not clearly rise: {before['reward_mean']:.3f} "
            f"[{before['reward_low']:.3f}, {before['reward_high']:.3f}] before, {after['reward_mean']:.3f} "
            f"[{after['reward_low']:.3f}, {after['reward_high']:.3f}] after"
        )
    return {"before": before["reward_mean"], "after": after["reward_mean"]}


def summarize(demo: Demo, rewards: dict[str, float], began: float) -> None:
    """Print the figures, the places and the times."""
    print("\n== Done")
    for name, _, _ in SMOLLM2_RUNS:
        summary = read_json(f"runs/smollm2-{name}/summary.json")
        print(f"   SmolLM2-135M on {name}: reward {summary['reward_mean']:.3f}")
    print(f"   tiny policy on tictactoe: reward {rewards['before']:.3f} -> {rewards['after']:.3f} by GRPO")
    for plot in sorted((OUTPUT / "runs/grpo").rglob("*.png")):
        print(f"   learning curves: {plot}")
    print(f"   leaderboard: {demo.hub}/admin/tictactoe/leaderboard")
    print(f"   all environments: {demo.hub}/")
    for title, seconds in demo.times:
        print(f"   {seconds:5.0f} s  {title}")
    print(f"   {time.monotonic() - began:5.0f} s  in all", flush=True)


def main() -> int:
    """Run the demo; return the exit status."""
    began = time.monotonic()
    start_over()
    demo = Demo(f"http://127.0.0.1:{free_port()}")
    kept = False
    try:
        with demo.step("Start a hub of your own"):
            start_hub(demo)
        publish_and_install(demo)
        evaluate_smollm2(demo)
        warm_up(demo)
        improve(demo)
        with demo.step("Check the leaderboard"):
            rewards = check_leaderboard(demo)
        summarize(demo, rewards, began)
        kept = os.environ.get("DEMO_EXIT") != "1"
    except DemoFailed as failure:
        print(
            f"\nerror: {failure}\n\nhint: the files are in `{OUTPUT}`; `make demo` starts over",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; the files so far are in `{OUTPUT}`", file=sys.stderr)
        return 130
    finally:
        if PID_FILE.exists() and not kept:
            stop_hub(int(PID_FILE.read_text()))
            PID_FILE.unlink()
    if kept:
        print(f"\nThe hub goes on; stop it with: kill {PID_FILE.read_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
