"""Writes results for the Hugging Face Hub: `.eval_results/*.yaml` of a model's repository, and `model-index`.

`.eval_results` has one entry per run, with the mean reward. `model-index` is metadata of a model card and
has all metrics. The source are https://huggingface.co/docs/hub/eval-results and the parsers of
`huggingface_hub` 2.4. JSON is also YAML, and it escapes all characters that a name may contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from wander.errors import ConfigError, RunError
from wander.evals.formats.exported_run import ExportedRun, new_folder
from wander.evals.store import jsonl
from wander.wire import RunManifest, RunSummary


def write_results(runs: Sequence[ExportedRun], path: Path) -> Iterator[int]:
    """Write the results of a model, and yield the number of its rollouts.

    A path that ends with `.yaml` becomes a file for `.eval_results`. Any other path becomes a folder with
    `.eval_results/RUN.yaml` and `model-index.yaml`. Raises `ConfigError` if the folder exists or if the runs
    are of several models, and `RunError` if no rollout of a run was scored.
    """
    names = sorted({run.manifest.model.name for run in runs})
    if len(names) != 1:
        raise ConfigError(
            "these runs are of several models: " + ", ".join(f"`{name}`" for name in names),
            hint="export the results of each model into its own folder",
        )
    text = results_file([entry(run.manifest, run.summary) for run in runs])
    if path.suffix == ".yaml":
        path.parent.mkdir(parents=True, exist_ok=True)
        jsonl.write_whole(path, text.encode())
    else:
        index = model_index(names[0], [(run.manifest, run.summary) for run in runs])
        with new_folder(path) as folder:
            (folder / ".eval_results").mkdir()
            name = re.sub(r"[^\w.-]+", "-", runs[0].manifest.environment.full_name)
            name = name if len(runs) == 1 else "wander"
            (folder / ".eval_results" / f"{name}.yaml").write_text(text, encoding="utf-8")
            card = json.dumps(index, ensure_ascii=False, allow_nan=False, indent=2)
            (folder / "model-index.yaml").write_text(f"model-index: {card}\n", encoding="utf-8")
    yield sum(run.summary.rollouts for run in runs)


def entry(manifest: RunManifest, summary: RunSummary, page: str | None = None) -> dict[str, Any]:
    """Return the entry of a run for `.eval_results`, with the address of the run's page on a hub.

    Raises `RunError` if no rollout was scored.
    """
    if summary.reward_mean is None:
        raise RunError(f"no rollout of `{manifest.run_id}` was scored")
    pin = manifest.environment
    count = f"{len(manifest.example_ids)} examples x {manifest.rollouts_per_example} rollouts"
    notes = [f"mean reward of {count}", f"wander {manifest.platform.wander}", f"run {manifest.run_id}"]
    if summary.reward_low is not None and summary.reward_high is not None:
        notes.insert(1, f"95% interval {summary.reward_low:.4g} to {summary.reward_high:.4g}")
    if pin.version:
        notes.append(f"{pin.full_name} {pin.version}")
    if summary.failed:
        notes.append(f"{summary.failed} failed rollouts not counted")
    result = {
        "dataset": {"id": pin.full_name, "task_id": "default"},
        "value": summary.reward_mean,
        "date": (manifest.ended_at or manifest.started_at).isoformat(),
        "notes": ", ".join(notes),
    }
    return result if page is None else {**result, "source": {"url": page, "name": "Wander"}}


def model_index(name: str, evaluated: Iterable[tuple[RunManifest, RunSummary]]) -> list[dict[str, Any]]:
    """Return the metadata `model-index` of a model's card. Runs without a scored rollout are left out."""
    results = []
    for manifest, summary in evaluated:
        if summary.reward_mean is None:
            continue
        pin = manifest.environment
        values = {"reward": summary.reward_mean}
        values |= {f"metric.{metric}": value.mean for metric, value in summary.metrics.items()}
        values |= {f"pass@{rate.k}": rate.pass_at_k for rate in summary.pass_rates}
        dataset = {"type": pin.full_name, "name": pin.full_name, "split": manifest.split}
        if pin.version:
            dataset["revision"] = pin.version
        results.append(
            {
                "task": {"type": "text-generation", "name": pin.info.summary or pin.full_name},
                "dataset": dataset,
                "metrics": [{"type": metric, "value": value} for metric, value in values.items()],
            }
        )
    return [{"name": name, "results": results}]


def results_file(entries: list[dict[str, Any]]) -> str:
    """Return entries as YAML, in the block style of Hugging Face's own files."""
    lines = []
    for fields in entries:
        mark = "- "
        for name, value in fields.items():
            if isinstance(value, dict):
                lines.append(f"{mark}{name}:")
                lines += [f"    {inner}: {_scalar(part)}" for inner, part in value.items()]
            else:
                lines.append(f"{mark}{name}: {_scalar(value)}")
            mark = "  "
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
