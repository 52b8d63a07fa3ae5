"""Plays the reference runs of the bundled environments, and writes the catalogue from their results.

    python scripts/catalogue.py play [NAME ...]      a scripted expert and a random player
    python scripts/catalogue.py smollm2 [NAME ...]   SmolLM2-135M-Instruct on the CPU, for minutes each
    python scripts/catalogue.py learn [NAME ...]     the proof of learning, up to 10 core minutes each
    python scripts/catalogue.py write                docs/catalogue.md, the READMEs and `REFERENCE_SCORES`

The runs are in `environments/NAME/reference/`. To replay one, run `wander runs replay
environments/NAME/reference/expert --env ./environments/NAME`. The other columns of a table come from the
package's metadata.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import wander
from wander import load_environment
from wander.evals import RunFolder
from wander.learning import LearningReport, prove_learning
from wander.models.smollm2 import SMOLLM2, cache_folder

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "environments"
PAGE = ROOT / "docs" / "catalogue.md"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/pyproject.toml"))
RUNS = {
    "random": "random player",
    "random-easy": "random player, easy",
    "smollm2": "SmolLM2-135M-Instruct",
    "smollm2-easy": "SmolLM2-135M-Instruct, easy",
    "expert": "scripted expert",
}
EXAMPLES, SMOLLM2_EXAMPLES, SMOLLM2_TOKENS = 100, 24, 96
MARKS = ("<!-- reference scores -->", "<!-- end of reference scores -->")
WRITTEN = re.compile(r"^REFERENCE_SCORES: dict\[str, float\] = \{.*?\}$", re.MULTILINE | re.DOTALL)


def project(name: str) -> dict[str, Any]:
    """Return a package's metadata, with its part of the catalogue under `catalogue`."""
    parsed = tomllib.loads((FOLDER / name / "pyproject.toml").read_text())
    return {**parsed["project"], "catalogue": parsed["tool"]["catalogue"]}


def play(name: str, run: str) -> None:
    """Evaluate the first examples of the eval split. The new run replaces the previous one."""
    said, out, easy = project(name)["catalogue"], FOLDER / name / "reference" / run, run.endswith("-easy")
    model, count, sampling = "", said.get("examples", EXAMPLES), None
    if run.startswith("smollm2"):
        tokens = said.get("easy_tokens" if easy else "tokens", SMOLLM2_TOKENS)
        model, count = model_for(name), said.get("smollm2_examples", SMOLLM2_EXAMPLES)
        sampling = {"max_tokens": tokens, "temperature": said.get("easy_temperature", 0.0) if easy else 1.0}
    else:
        kind = run.removesuffix("-easy")
        model = f"scripted:{name}.players:{said.get(kind, kind)}"
    shutil.rmtree(out, ignore_errors=True)
    with wander.load(f"./environments/{name}", arguments=said["easy"] if easy else {}, progress=False) as env:
        played = env.evaluate_sync(model, n=count, sampling=sampling, out=out)
    print(f"{name}: {run} {played.reward:.3f}", flush=True)


def learn(name: str) -> None:
    """Run the proof of learning at the default arguments, and store its report."""
    report = prove_learning(FOLDER / name)
    text = json.dumps(report.model_dump(mode="json", by_alias=True), indent=2)
    proof_file(name).write_text(text + "\n")
    print(f"{name}: {report.describe()}, {report.cpu_seconds:.0f} s of processor time", flush=True)


def proof_file(name: str) -> Path:
    """Return the file of the stored report."""
    return FOLDER / name / "reference" / "learning.json"


def read_proof(name: str) -> LearningReport:
    """Return the stored proof of learning, or a report that does not show anything."""
    if not proof_file(name).is_file():
        return LearningReport(
            schema="wander.learning/1", environment=name, reason="the proof was not run yet"
        )
    return LearningReport.model_validate_json(proof_file(name).read_text())


def learned(report: LearningReport) -> str:
    """Return the cell of the proof of learning."""
    if not report.shown:
        return "not shown"
    return f"{report.curve[0].reward:.2f} to {report.curve[-1].reward:.2f}"


def model_for(name: str) -> str:
    """Return SmolLM2, with a chat template for tools if the environment offers any."""
    folder = cache_folder() / f"{SMOLLM2}-tools"
    if tools_of(name) == "-":
        return "smollm2"
    if not folder.exists():
        command = [sys.executable, "-m", "wander_client", "model", "tools", "smollm2", "--out", str(folder)]
        subprocess.run(command, check=True)
    return str(folder)


def summaries(name: str) -> dict[str, dict[str, Any]]:
    """Return the summary of every stored run of an environment, by the run's name."""
    folders = {run: FOLDER / name / "reference" / run for run in RUNS}
    return {
        run: json.loads((folder / "summary.json").read_text())
        for run, folder in folders.items()
        if (folder / "summary.json").is_file()
    }


def score(summary: dict[str, Any] | None, *, interval: bool = True) -> str:
    """Format a mean with its 95% interval."""
    if summary is None:
        return "-"
    mean = f"{summary['reward_mean']:.3f}"
    return f"{mean} [{summary['reward_low']:.2f}, {summary['reward_high']:.2f}]" if interval else mean


def scores_block(name: str) -> str:
    """Return the table for an environment's README."""
    easy = ", ".join(
        f"{key}={json.dumps(value)}" for key, value in project(name)["catalogue"].get("easy", {}).items()
    )
    rows = []
    for run, found in summaries(name).items():
        setting = f"`{easy}`" if run.endswith("-easy") else "default"
        rows.append(f"| {RUNS[run]} | {setting} | {found['rollouts'] - found['failed']} | {score(found)} |")
    head = ["| player | arguments | rollouts | mean reward [95% interval] |", "|---|---|---|---|"]
    note = "On the first examples of the eval split. The runs are in `reference/` and can be replayed."
    proof = read_proof(name).describe()
    tiny = f"Can a tiny policy learn this task (`wander check --learn`)? {proof[0].upper()}{proof[1:]}."
    return "\n".join([MARKS[0], *head, *rows, "", note, "", tiny, MARKS[1]])


def tools_of(name: str) -> str:
    """Return the number of offered tools, as recorded in the expert's first rollout."""
    offered = next(RunFolder.open(FOLDER / name / "reference" / "expert").rollouts()).tools
    return str(len(offered)) if offered else "-"


def row(name: str) -> str:
    """Return an environment's row for the page."""
    said, found = project(name), summaries(name)
    info = load_environment(said["name"]).info
    floor, smollm2 = score(found["random"], interval=False), score(found.get("smollm2"))
    if "random-easy" in found:
        floor += f"; easy {score(found['random-easy'], interval=False)}"
        smollm2 += f"; easy {score(found.get('smollm2-easy'))}"
    cells = [
        f"[{said['name']}](../environments/{name}/README.md)",
        info.kind.replace("_", " "),
        str(info.max_turns or "any"),
        tools_of(name),
        said["catalogue"]["data"],
        "yes" if info.deterministic else "no",
        said["license"],
        floor,
        smollm2,
        score(found["expert"], interval=False),
        learned(read_proof(name)),
    ]
    return f"| {' | '.join(cells)} |"


def between(text: str, inner: str) -> str:
    """Return a text with the part between the two marks replaced."""
    before, _, rest = text.partition(MARKS[0])
    return before + inner + rest.partition(MARKS[1])[2]


def pages() -> dict[Path, str]:
    """Return the text of every generated file."""
    head = [
        "environment",
        "kind",
        "turns",
        "tools",
        "data",
        "deterministic",
        "license",
        "random player",
        "SmolLM2-135M",
        "expert",
        "tiny policy learns",
    ]
    table = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *map(row, NAMES)]
    texts = {PAGE: between(PAGE.read_text(), "\n".join([MARKS[0], *table, MARKS[1]]))}
    for name in NAMES:
        readme, module = FOLDER / name / "README.md", FOLDER / name / name / "__init__.py"
        texts[readme] = between(readme.read_text(), scores_block(name))
        means = [f'    "{RUNS[run]}": {found["reward_mean"]:.3f},' for run, found in summaries(name).items()]
        scores = "\n".join(["REFERENCE_SCORES: dict[str, float] = {", *means, "}"])
        texts[module] = WRITTEN.sub(lambda _, scores=scores: scores, module.read_text())
    return texts


def main() -> None:
    """Play or write what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["play", "smollm2", "learn", "write"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    given = parser.parse_args()
    command, names = given.command, given.names
    if command == "write":
        for path, text in pages().items():
            path.write_text(text)
        return
    for name in names or NAMES:
        if command == "learn":
            learn(name)
            continue
        runs = ["random", "expert"] if command == "play" else ["smollm2"]
        easy = [f"{runs[0]}-easy"] if "easy" in project(name)["catalogue"] else []
        for run in runs + easy:
            play(name, run)


if __name__ == "__main__":
    main()
