"""The card of a pushed model: what it is, how it was trained, its results, and how to run it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from wander.evals.formats.eval_results import model_index
from wander.evals.report.document import escape_markdown, interval_text
from wander.train.records.checkpoints import read_saved
from wander.train.records.files import read_evaluations
from wander.wire import RunManifest, RunSummary
from wander.wire.models import CheckpointFacts
from wander.wire.reproduction import toml_lines

from wander_client.hub.local_paths import name_model, publish_settings

MOST_EVALUATIONS = 40


def write_card(
    title: str,
    facts: CheckpointFacts,
    weights_sha256: str,
    trained: tuple[Path, RunManifest] | None,
    evaluated: Iterable[tuple[RunManifest, RunSummary]],
) -> str:
    """Return the card in Markdown. The same runs always give the same card.

    `trained` is the folder and the manifest of the run that made the weights, and `evaluated` are evaluations
    of exactly these weights.
    """
    evaluated = sorted(evaluated, key=lambda pair: pair[0].run_id)
    head = ["library_name: transformers", "pipeline_tag: text-generation", "tags:", "- wander"]
    if any(summary.reward_mean is not None for _, summary in evaluated):
        # JSON is also YAML, and Hugging Face shows these results next to the card.
        head.append(f"model-index: {json.dumps(model_index(title, evaluated), allow_nan=False)}")
    lines = [
        *("---", *head, "---"),
        f"# {title}",
        "",
        f"A policy of {facts.parameters:,} parameters ({_code(facts.architecture)}), made with Wander.",
        "",
        f"Weights: `{weights_sha256}`",
    ]
    if trained is not None:
        lines += _training(*trained, weights_sha256)
    lines += _results(evaluated)
    return "\n".join(lines) + "\n"


def _training(folder: Path, manifest: RunManifest, weights_sha256: str) -> list[str]:
    """Return the lines on the training of the weights and its evaluations."""
    environments = [part.environment for part in manifest.mixture] or [manifest.environment]
    names = (f"{pin.full_name}{'@' + pin.version if pin.version else ''}" for pin in environments)
    shown = ", ".join(map(_code, names))
    begun = manifest.model
    steps = [line.step for line in read_saved(folder) if line.weights_sha256 == weights_sha256]
    lines = [
        *("", "## Training", ""),
        f"- environment: {shown}",
        f"- began with: {_code(name_model(begun.name))}"
        + (f", weights `{begun.weights_sha256}`" * bool(begun.weights_sha256)),
        f"- run: `{manifest.run_id}`" + (f", step {steps[-1]}" if steps else ""),
    ]
    if manifest.reproduction is not None:
        lines.append(f"- repeatable: {manifest.reproduction.told()}")
    settings = publish_settings(manifest.training or {})
    lines += ["", "```toml", *toml_lines(settings), "```"]
    measured = [line for line in read_evaluations(folder) if not steps or line.step <= steps[-1]]
    if measured:
        lines += ["", "## Evaluations during training", "", "| step | cell | examples | reward | 95% |"]
        lines += ["|---:|---|---:|---:|---|"]
    for one in measured[-MOST_EVALUATIONS:]:
        reward = "" if one.reward is None else f"{one.reward:.4f}"
        interval = interval_text(*(one.interval or (None, None)))
        lines.append(f"| {one.step} | {escape_markdown(one.cell)} | {one.examples} | {reward} | {interval} |")
    return lines


def _code(text: str) -> str:
    """Return a name from somebody else as inline code, without backquotes that could end it."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def _results(evaluated: Iterable[tuple[RunManifest, RunSummary]]) -> list[str]:
    """Return the table of evaluations."""
    rows = []
    for manifest, summary in evaluated:
        pin, mean = manifest.environment, summary.reward_mean
        version = f"@{pin.version}" if pin.version else ""
        spread = interval_text(summary.reward_low, summary.reward_high)
        count = f"{len(manifest.example_ids)} x {manifest.rollouts_per_example}"
        reward = "" if mean is None else f"{mean:.4f}"
        name = escape_markdown(pin.full_name) + version
        rows.append(f"| {name} | {count} | {reward} | {spread} | `{manifest.run_id}` |")
    if not rows:
        return []
    head = ["| environment | examples x rollouts | reward | 95% | run |", "|---|---:|---:|---|---|"]
    return ["", "## Results", "", *head, *rows]
