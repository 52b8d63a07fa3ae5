"""Writes runs as records of Every Eval Ever 0.3: an aggregate file, and a line for each scored rollout.

The source of each field are the two JSON Schemas of the package `every-eval-ever`. Its instance-level records
must have a score, so failed rollouts are only counted, in the aggregate. Metrics and seeds are
texts in `metadata`, because the schema allows only texts there.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wander.errors import RunError
from wander.evals.formats.exported_run import (
    BATCH,
    ExportedRun,
    count_tokens,
    json_line,
    json_text,
    new_folder,
    tool_calls,
)
from wander.parsers import message_text
from wander.types import Message, Rollout, Usage
from wander.wire import MetricSummary, RunManifest, RunSummary

SCHEMA = "0.3.0"
UNDECLARED = "undeclared"
"""Developer of a model whose name does not contain one."""
METRIC = "metric."
"""Prefix of metrics in the metadata of a rollout."""

_UNSAFE = re.compile(r'[<>:"\\|?*\x00-\x1f]')


def write_records(runs: Sequence[ExportedRun], path: Path) -> Iterator[int]:
    """Write runs to a new folder in the layout of the project's datastore, and yield the number of rollouts.

    The folder contains `data/ENVIRONMENT/DEVELOPER/MODEL/UUID.json` and `UUID_samples.jsonl` for each run.
    Raises `RunError` if no rollout of a run was scored, and `ConfigError` if the folder exists.
    """
    written = 0
    with new_folder(path) as folder:
        for run in runs:
            if run.summary.reward_mean is None:
                raise RunError(f"no rollout of `{run.manifest.run_id}` was scored")
            model_id = _model_id(run.manifest.model.name)
            collection = run.manifest.environment.full_name.replace("/", "_")
            place = Path("data", *map(_component, (collection, *model_id.split("/", 1))))
            (folder / place).mkdir(parents=True, exist_ok=True)
            name = str(uuid.UUID(bytes=hashlib.sha256(run.manifest.run_id.encode()).digest()[:16], version=4))
            samples = place / f"{name}_samples.jsonl"
            digest, lines = hashlib.sha256(), 0
            with (folder / samples).open("xb") as out:
                for rollout in run.rollouts():
                    written += 1
                    if rollout.reward is not None:
                        line = json_line(instance(run.manifest, run.summary, rollout))
                        digest.update(line)
                        out.write(line)
                        lines += 1
                    if written % BATCH == 0:
                        yield written
            record = aggregate(run.manifest, run.summary)
            record["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": samples.as_posix(),
                "hash_algorithm": "sha256",
                "checksum": digest.hexdigest(),
                "total_rows": lines,
                "additional_details": {
                    "failed_rollouts": str(run.summary.failed),
                    **_cost(run.manifest, run.summary.usage),
                },
            }
            text = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=2)
            (folder / place / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    yield written


def aggregate(manifest: RunManifest, summary: RunSummary) -> dict[str, Any]:
    """Return the aggregate record of a run, without the reference to its instance-level file."""
    ended = manifest.ended_at or manifest.started_at
    model_id = _model_id(manifest.model.name)
    details = {
        name: value
        for name, value in {
            "wander_kind": manifest.model.kind,
            "revision": manifest.model.revision,
            "weights_sha256": manifest.model.weights_sha256,
            "chat_template_sha256": manifest.model.chat_template_sha256,
        }.items()
        if value
    }
    return {
        "schema_version": SCHEMA,
        "evaluation_id": _evaluation_id(manifest),
        "evaluation_timestamp": manifest.started_at.isoformat(),
        "retrieved_timestamp": str(int(ended.timestamp())),
        "source_metadata": {
            "source_name": "Wander",
            "source_type": "evaluation_run",
            "source_organization_name": manifest.environment.owner or "unknown",
            "evaluator_relationship": "other",
            "additional_details": {"run_id": manifest.run_id},
        },
        "eval_library": {"name": "wander", "version": manifest.platform.wander},
        "model_info": {
            "name": manifest.model.name,
            "id": model_id,
            "developer": model_id.partition("/")[0],
            "additional_details": {
                "deployment_type": "unknown",
                "model_availability": "unknown",
                **details,
            },
        },
        "evaluation_results": list(_results(manifest, summary)),
    }


def _results(manifest: RunManifest, summary: RunSummary) -> Iterator[dict[str, Any]]:
    info = manifest.environment.info
    ranges = {function.name: function.range for function in info.reward_functions}
    reward = MetricSummary(
        mean=summary.reward_mean or 0.0,
        std=summary.reward_std or 0.0,
        count=summary.examples,
        low=summary.reward_low,
        high=summary.reward_high,
    )
    binary = summary.pass_threshold == 1 and info.reward_range in (None, (0.0, 1.0))
    yield _result(manifest, "reward", reward, info.reward_range, "binary" if binary else "continuous")
    for name, metric in summary.metrics.items():
        yield _result(manifest, METRIC + name, metric, ranges.get(name), "continuous")
    for rate in summary.pass_rates:
        interval = MetricSummary(
            mean=rate.pass_at_k,
            std=0.0,
            count=rate.examples,
            low=rate.pass_at_k_low,
            high=rate.pass_at_k_high,
        )
        result = _result(manifest, f"pass@{rate.k}", interval, (0.0, 1.0), "continuous")
        result["metric_config"] |= {"metric_kind": "pass_rate", "metric_parameters": {"k": rate.k}}
        del result["score_details"]["uncertainty"]["standard_deviation"]
        yield result


def _result(
    manifest: RunManifest,
    name: str,
    metric: MetricSummary,
    bounds: tuple[float, float] | None,
    kind: str,
) -> dict[str, Any]:
    pin = manifest.environment
    uncertainty: dict[str, Any] = {"standard_deviation": metric.std, "num_samples": metric.count}
    if metric.low is not None and metric.high is not None:
        uncertainty["confidence_interval"] = {
            "lower": metric.low,
            "upper": metric.high,
            "confidence_level": 0.95,
            "method": "mean over examples, clustered by example",
        }
    source = {
        "split": manifest.split,
        "task_set_sha256": manifest.task_set_sha256,
        "examples": str(len(manifest.example_ids)),
        "version": pin.version,
        "wheel_sha256": pin.wheel_sha256,
        "arguments": json_text(pin.arguments) if pin.arguments else None,
    }
    sampling = manifest.sampling.given()
    known = ("temperature", "top_p", "top_k", "max_tokens")
    others = {key: json_text(value) for key, value in sampling.items() if key not in known}
    others["rollouts_per_example"] = str(manifest.rollouts_per_example)
    low, high = bounds or ("-Infinity", "Infinity")
    return {
        "evaluation_result_id": name,
        "evaluation_name": pin.full_name,
        "source_data": {
            "dataset_name": pin.full_name,
            "source_type": "other",
            "additional_details": {key: value for key, value in source.items() if value},
        },
        "evaluation_timestamp": manifest.started_at.isoformat(),
        "metric_config": {
            "evaluation_description": pin.info.summary or pin.full_name,
            "metric_id": name,
            "metric_name": name,
            "lower_is_better": False,
            "score_type": kind,
            "min_score": low,
            "max_score": high,
        },
        "score_details": {"score": metric.mean, "uncertainty": uncertainty},
        "generation_config": {
            "generation_args": {key: sampling[key] for key in known if key in sampling},
            "additional_details": others,
        },
    }


def instance(manifest: RunManifest, summary: RunSummary, rollout: Rollout) -> dict[str, Any]:
    """Return the instance-level record of a scored rollout.

    A rollout is correct if it has the highest reward, or passes the run's threshold.
    """
    highest = (manifest.environment.info.reward_range or (0.0, 1.0))[1]
    threshold = highest if summary.pass_threshold is None else summary.pass_threshold
    calls = sum(len(message.get("tool_calls") or ()) for message in rollout.completion)
    single = len(rollout.completion) == 1 and not calls
    users = [message for message in rollout.prompt if message.get("role") == "user"]
    raw = "\n".join(message_text(message) for message in users or rollout.prompt)
    reference = rollout.answer if isinstance(rollout.answer, str) else json_text(rollout.answer)
    record: dict[str, Any] = {
        "schema_version": SCHEMA,
        "evaluation_id": _evaluation_id(manifest),
        "model_id": _model_id(manifest.model.name),
        "evaluation_name": manifest.environment.full_name,
        "evaluation_result_id": "reward",
        "sample_id": rollout.example_id,
        "sample_hash": hashlib.sha256((raw + reference).encode()).hexdigest(),
        "interaction_type": "single_turn" if single else "agentic" if calls else "multi_turn",
        "input": {"raw": raw, "reference": [reference] if reference else []},
        "answer_attribution": [],
        "evaluation": {"score": rollout.reward, "is_correct": (rollout.reward or 0.0) >= threshold},
        "token_usage": count_tokens(rollout.usage),
        "performance": {
            "latency_ms": rollout.seconds * 1000,
            "additional_details": _cost(manifest, rollout.usage),
        },
        "metadata": _metadata(rollout),
    }
    if single:
        (reply,) = rollout.completion
        reasoning = reply.get("reasoning_content")
        record["output"] = {"raw": [message_text(reply)]}
        if isinstance(reasoning, str):
            record["output"]["reasoning_trace"] = [reasoning]
        if len(rollout.prompt) != 1:
            record["input"]["formatted"] = json_text(rollout.prompt)
    else:
        messages = enumerate([*rollout.prompt, *rollout.completion])
        record["messages"] = [_message(position, message) for position, message in messages]
        record["evaluation"] |= {"num_turns": max(1, len(rollout.turns)), "tool_calls_count": calls}
    return record


def _cost(manifest: RunManifest, usage: Usage) -> dict[str, str]:
    """Return the cost as a detail, because the schema has no field for it. It is empty without prices."""
    prices = manifest.spending.prices if manifest.spending else None
    if prices is None or usage.estimated or not usage.prompt_tokens + usage.completion_tokens:
        return {}
    return {"cost_usd": repr(prices.cost(usage))}


def _metadata(rollout: Rollout) -> dict[str, str]:
    values = {
        "index": str(rollout.index),
        "seed": str(rollout.seed),
        "prompt_messages": str(len(rollout.prompt)),
        "stop_reason": rollout.stop_reason or "",
        "truncated": str(rollout.truncated).lower(),
        "started_at": rollout.started_at,
    }
    return values | {METRIC + name: repr(value) for name, value in rollout.metrics.items()}


def _message(position: int, message: Message) -> dict[str, Any]:
    content = message.get("content")
    shown: dict[str, Any] = {
        "turn_idx": position,
        "role": str(message.get("role") or "user"),
        "content": None if content is None else message_text(message),
    }
    if isinstance(reasoning := message.get("reasoning_content"), str):
        shown["reasoning_trace"] = reasoning
    if calls := tool_calls(message):
        shown["tool_calls"] = [
            {
                "id": call.id,
                "name": call.name,
                "arguments": {"text": call.text}
                if call.problem
                else {name: json_text(value) for name, value in call.arguments.items()},
            }
            for call in calls
        ]
    if message.get("tool_call_id") is not None:
        shown["tool_call_id"] = [str(message["tool_call_id"])]
    return shown


def _evaluation_id(manifest: RunManifest) -> str:
    model = manifest.model.name.replace("/", "_")
    return f"{manifest.environment.full_name}/{model}/{int(manifest.started_at.timestamp())}"


def _model_id(name: str) -> str:
    """Return a model's name as DEVELOPER/MODEL, without the scheme of a hub."""
    name = re.sub(r"^(?:hub|hf):", "", name).strip("/")
    name = "/".join(part for part in name.split("/") if part)
    return name if "/" in name else f"{UNDECLARED}/{name or UNDECLARED}"


def _component(text: str) -> str:
    """Return a text as a portable folder name, as the validator of the datastore expects it."""
    text = "_".join(part for part in _UNSAFE.sub("_", text).split("/") if part).rstrip(". ")
    return text if text not in ("", ".", "..", "data") else UNDECLARED
