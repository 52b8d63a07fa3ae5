"""Run a whole experiment: train a tiny policy from random weights, measure it, post its runs and verify them.

    python experiments/run.py tictactoe --seeds 0 1 2

The script starts a hub in the output folder and publishes the environment to it. For each seed, it trains the
phases of the experiment's settings. It measures the teacher, and the policy after every phase, with greedy
decoding on 1,000 held-out examples per cell. If the environment's replies can be enumerated, the final policy
plays every one of them. The script posts all runs, and the hub replays the runs of the final policy.

Every number comes from a `wander` command, which is printed as a user would type it. After an interruption,
the same command resumes. With `--slice SECONDS` it stops by itself, with status 75.
`experiments/NAME/plan.py` holds what differs between experiments.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import threading
import time
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from plan import HERE, ROOT, Plan, plan_named, write_report
from workplace import SliceEnded, StepFailed, Workplace

SEED_SETTINGS = {"teacher": "phases.teacher.rollouts.seed", "new": "phases.new.tiny.seed"}
"""Settings that are set to the seed of the experiment, in addition to `schedule.seed`."""


RESUMABLE_FILES = ("command.json", "run.json")
"""Files of a run that can be resumed. A run that was stopped before it wrote one of them starts again."""


class Experiment:
    """An experiment in its output folder, with the steps that are already done."""

    def __init__(self, plan: Plan, place: Workplace, options: argparse.Namespace) -> None:
        self.plan = plan
        self.place = place
        self.options = options
        own = HERE / options.experiment / "environment"
        self.source = own if own.is_dir() else ROOT / "environments" / plan.environment
        self.name = str(self.source) if options.local else f"admin/{plan.environment}"
        """Name of the environment in commands."""
        self.settings = HERE / options.experiment / options.settings
        sampling = tomllib.loads(self.settings.read_text()).get("sampling", {})
        self.max_tokens = max(self.plan.max_tokens, sampling.get("max_tokens", 0))
        """Tokens of one turn: the larger of the plan's limit and the limit of the training."""
        self.done_file = self.place.folder / "done.json"
        self.done: dict[str, float] = (
            json.loads(self.done_file.read_text()) if self.done_file.exists() else {}
        )

    def once(self, line: str, folder: str = "", resume: str = "") -> None:
        """Run a command unless it was run before. `resume` continues an unfinished run in its folder."""
        if line in self.done:
            return
        began = time.monotonic()
        started = folder and any((self.place.folder / folder / name).exists() for name in RESUMABLE_FILES)
        self.place.type(resume if started and resume else line)
        self.done[line] = time.monotonic() - began
        self.done_file.write_text(json.dumps(self.done, indent=1) + "\n")

    def publish(self) -> None:
        """Publish the environment to the hub, and install it by name."""
        with self.place.step("Publish the environment and install it by name"):
            self.once(f"wander publish {self.source}")
            self.once(f"wander install {self.name}")

    def train(self, seed: int) -> None:
        """Train the phases of the settings."""
        phases = {phase["name"] for phase in tomllib.loads(self.settings.read_text())["phases"]}
        seeded = ["schedule.seed", *(name for phase, name in SEED_SETTINGS.items() if phase in phases)]
        changed = [f"{name}={seed}" for name in seeded] + self.options.set
        settings = " ".join(f"--set {shlex.quote(each)}" for each in changed)
        folder = f"seed-{seed}/training"
        with self.place.step(f"Seed {seed}: train"):
            self.once(
                f"wander train {self.name} {self.settings} {settings} --out {folder}",
                folder,
                f"wander train --resume {folder}",
            )

    def stages(self, seed: int) -> dict[str, str]:
        """Return the players to measure, by name: the teacher, then every phase's model, final one last."""
        training = self.place.folder / f"seed-{seed}/training"
        models = sorted(
            training.glob("*-*/model"), key=lambda model: int(model.parent.name.partition("-")[0])
        )
        found = {model.parent.name.partition("-")[2]: model for model in models}
        found.pop("new", None)  # its weights are random
        return {"teacher": self.plan.teacher, **{name: str(model) for name, model in found.items()}}

    def evaluate(self, seed: int) -> None:
        """Play every cell, and every line with the final policy if the environment can be enumerated."""
        stages = self.stages(seed)
        final = list(stages)[-1]
        limit = f"--max-tokens {self.max_tokens}"
        for stage, model in stages.items():
            with self.place.step(f"Seed {seed}: {stage}, {' and '.join(self.plan.cells)}"):
                for cell in self.plan.cells:
                    self.evaluate_cell(seed, stage, cell, shlex.quote(model), final=stage == final)
        if not self.plan.exhaustive:
            return
        with self.place.step(f"Seed {seed}: every line"):
            folder = f"seed-{seed}/exhaustive"
            line = f"wander eval {self.name} -m {stages[final]} --set exhaustive=true {limit}"
            self.once(f"{line} --out {folder}", folder, f"wander eval --resume {folder}")

    def evaluate_cell(self, seed: int, stage: str, cell: str, model: str, *, final: bool) -> None:
        """Play one cell and post its run. The hub replays the runs of the final policy."""
        games = self.options.games
        folder = f"seed-{seed}/{stage}-{cell}"
        given = {"num_examples": games, **self.plan.cells[cell]}
        line = (
            f"wander eval {self.name} -m {model} -n {games} -c {self.plan.concurrency} -t 0 "
            f"--max-tokens {self.max_tokens} "
            + " ".join(f"-a {name}={json.dumps(value)}" for name, value in given.items())
        )
        self.once(f"{line} --out {folder}", folder, f"wander eval --resume {folder}")
        if not self.options.local:
            self.once(f"wander post {folder}")
            if final:
                self.once(f"wander runs verify {folder}")

    def post_training(self, seed: int) -> None:
        """Post the GRPO phases, so that the hub can link the evaluations of their policies to them."""
        for folder in sorted((self.place.folder / f"seed-{seed}/training").glob("*/run.json")):
            if json.loads(folder.read_text())["kind"] == "training":
                self.once(f"wander post {folder.parent.relative_to(self.place.folder)}")

    def draw(self, results: Path) -> None:
        """Draw the learning curves of the last phase of every seed."""
        if not self.plan.curves:
            return
        runs = " ".join(
            f"seed-{seed}={Path(list(self.stages(seed).values())[-1]).parent.relative_to(self.place.folder)}"
            for seed in self.options.seeds
        )
        metrics = " ".join(f"--metric {name}" for name in self.plan.curves)
        self.place.type(f"wander runs plot {runs} {metrics} -o {results / 'learning_curve.svg'}")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", help="a folder of `experiments`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--games", type=int, default=1000, help="examples of each cell")
    parser.add_argument("--out", type=Path, help="default: runs/NAME-experiment")
    parser.add_argument("--settings", default="tiny.toml", help="file of phases in the experiment's folder")
    parser.add_argument("--set", action="append", default=[], help="a setting of training; may repeat")
    parser.add_argument("--local", action="store_true", help="without a hub: nothing is posted")
    parser.add_argument(
        "--slice", type=float, metavar="SECONDS", help="stop after this time; the same command resumes"
    )
    parser.add_argument("--results", type=Path, help="folder of the table and the plot (default: --out)")
    options = parser.parse_args(given)
    try:
        options.plan = plan_named(options.experiment)
    except KeyError as error:
        parser.error(f"experiment `{options.experiment}` not found; choose one of: {error.args[0]}")
    options.out = options.out or Path(f"runs/{options.experiment}-experiment")
    return options


def run(experiment: Experiment) -> str:
    """Run all steps that have not run yet, and return the table."""
    options = experiment.options
    if not options.local:
        experiment.place.start_hub()
        experiment.publish()
    for seed in options.seeds:
        experiment.train(seed)
        if not options.local:
            experiment.post_training(seed)
        experiment.evaluate(seed)
    results = options.results.resolve() if options.results else experiment.place.folder
    table = write_report(experiment.plan, experiment.place.folder, results)
    experiment.draw(results)
    return table


def main() -> int:
    """Run the experiment; return the exit status."""
    options = arguments()
    place = Workplace(options.out.resolve())
    signal.signal(signal.SIGTERM, lambda *_: place.stop())
    if options.slice:
        clock = threading.Timer(options.slice, place.stop)
        clock.daemon = True
        clock.start()
    try:
        print(f"\n{run(Experiment(options.plan, place, options))}")
    except StepFailed as failure:
        print(f"\nerror: {failure}\n\nhint: run the same command again to resume", file=sys.stderr)
        return 1
    except SliceEnded as ended:
        print(f"\nthe slice ended {ended}; run the same command again to resume", file=sys.stderr)
        return os.EX_TEMPFAIL
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to resume", file=sys.stderr)
        return 130
    finally:
        place.stop_hub()
    return 0


if __name__ == "__main__":
    sys.exit(main())
