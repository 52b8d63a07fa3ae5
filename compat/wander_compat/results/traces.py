"""`traces.jsonl` of `verifiers.v1` (0.3, 0.4). A line is an episode or a trace, which is a graph of messages.

The conversation of a trace is its longest branch that ends in a sampled message. `info["other_branches"]`
counts the other branches (retries, sub-agents). Rewards are weighted scores.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wander.clients.completions import total_usage
from wander.errors import RunError
from wander.evals.foreign_run import UNKNOWN, ForeignRun
from wander.evals.formats import received
from wander.types import Failure, Message, Rollout, Turn
from wander.wire.untrusted_text import SETTINGS, read_toml_file

from wander_compat.boundaries import find_boundary
from wander_compat.verifiers.messages.conversion import plain, wire_message, wire_messages


def read_traces(path: Path) -> ForeignRun:
    """Read one evaluation of `verifiers.v1`. Raises `RunError`."""
    folder = path.parent
    configuration = received.json_object(folder / "configs" / "resolved" / "eval.json")
    if not configuration:
        with contextlib.suppress(OSError, ValueError):  # the folder's name is used instead
            configuration = read_toml_file(folder / "configs" / "eval.toml", SETTINGS)
    # Two schemas: the task set is at the top level or in `env`, as an id or as an object with an id.
    env = configuration.get("env")
    taskset = configuration.get("taskset") or (env.get("taskset") if isinstance(env, dict) else None)
    name = taskset.get("id") if isinstance(taskset, dict) else taskset
    environment, _, rest = folder.name.partition("--")
    foreign = ForeignRun(
        environment=str(name or environment or UNKNOWN),
        model=str(configuration.get("model") or rest.partition("--")[0] or UNKNOWN),
        source="verifiers.v1 traces",
    )
    for number, line in received.json_lines(path):
        traces = line["traces"] if isinstance(line.get("traces"), list) else [line]
        for trace in traces:
            if isinstance(trace, dict) and (trace.get("agent") or {}).get("trainable", True):
                if not isinstance(trace.get("nodes"), list):
                    raise RunError(f"line {number} of `{path}` is neither an episode nor a trace")
                with received.blame_line(path, number):
                    _add(foreign, trace, line, number)
    return foreign


def _add(foreign: ForeignRun, trace: dict[str, Any], line: dict[str, Any], number: int) -> None:
    """Add the rollout of one trace."""
    nodes: list[dict[str, Any]] = trace["nodes"]
    task: dict[str, Any] = trace.get("task") or line.get("task") or {}
    data: dict[str, Any] = task.get("data") or {}
    example_id = str(data["idx"] if data.get("idx") is not None else task.get("hash") or number - 1)
    branch = _branch(nodes)
    opening = next((at for at, node in enumerate(branch) if node.get("sampled")), len(branch))
    messages = [wire_message(node.get("message") or {"role": "user", "content": ""}) for node in branch]
    prompt, completion = messages[:opening], messages[opening:]
    started = _start_time(trace)
    if foreign.started_at is None or (started is not None and started < foreign.started_at):
        foreign.started_at = started
    columns = {name: plain(value) for name, value in data.items() if name not in ("idx", "prompt")}
    example = foreign.example(example_id, wire_messages(data.get("prompt")) or prompt, "", {}, columns)
    failure = _failure([*(trace.get("errors") or []), *(line.get("errors") or [])])
    metrics: dict[str, float] = {}
    total: float | None = None
    if failure is None:  # rewards of a failed rollout are ignored
        total = 0.0
        noted = (trace.get("metrics") or {}).items()
        metrics = {name: float(value) for name, value in noted if value is not None}
        for name, reward in (trace.get("rewards") or {}).items():
            if reward is not None:
                known = reward if isinstance(reward, dict) else {"score": reward}
                metrics[name] = float(known["score"])
                total += metrics[name] * float(known.get("weight", 1.0))
    parents = {node.get("parent") for node in nodes}
    branches = sum(at not in parents for at in range(len(nodes)))
    rollout = {
        "example_id": example_id,
        "index": foreign.counts[example_id],
        "seed": example.seed,
        "prompt": prompt,
        "completion": completion,
        "turns": _turns(trace, nodes, branch, messages),
        "stop_reason": None if failure else str(trace.get("stop_condition") or UNKNOWN),
        "truncated": bool(trace.get("is_timeout")),
        "reward": total,
        "metrics": metrics,
        "failure": failure,
        "usage": total_usage(call.get("usage") for call in trace.get("calls") or []),
        "started_at": started.isoformat() if started else "",
        "seconds": _seconds(trace),
        "info": {"other_branches": branches - 1} if branches > 1 else {},
    }
    foreign.add(Rollout.model_validate(rollout))


def _branch(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the longest path of nodes from the root to a sampled node."""
    longest: list[dict[str, Any]] = []
    sampled = [at for at, node in enumerate(nodes) if node.get("sampled")]
    for end in sampled or [len(nodes) - 1]:
        way: list[dict[str, Any]] = []
        at: int | None = end
        while at is not None and 0 <= at < len(nodes) and len(way) <= len(nodes):
            way.append(nodes[at])
            at = nodes[at].get("parent")
        if len(way) > len(longest):
            longest = way
    return longest[::-1]


def _turns(
    trace: dict[str, Any], nodes: list[dict[str, Any]], branch: list[dict[str, Any]], messages: list[Message]
) -> list[Turn]:
    """Return the model's turns of a branch, with finish reason, usage and time from the trace's calls."""
    calls = {call.get("node"): call for call in trace.get("calls") or []}
    numbers = {id(node): at for at, node in enumerate(nodes)}
    turns = []
    for position, node in enumerate(branch):
        if not node.get("sampled"):
            continue
        call = calls.get(numbers[id(node)]) or {}
        span = call.get("time") or {}
        turns.append(
            Turn(
                message=messages[position],
                context_messages=position,
                finish_reason=call.get("finish_reason") or "stop",
                usage=total_usage([call.get("usage")]),
                model_seconds=max(0.0, (span.get("end") or 0.0) - (span.get("start") or 0.0)),
            )
        )
    return turns


def _failure(errors: list[Any]) -> Failure | None:
    if not errors:
        return None
    first = errors[0] if isinstance(errors[0], dict) else {"type": UNKNOWN, "message": str(errors[0])}
    name = str(first.get("type") or UNKNOWN)
    of_endpoint = first.get("status_code") is not None
    boundary = "model" if of_endpoint else find_boundary(name).boundary
    return Failure(boundary=boundary, type=name, message=str(first.get("message") or name))


def _start_time(trace: dict[str, Any]) -> datetime | None:
    start = (trace.get("timing") or {}).get("start")
    return datetime.fromtimestamp(start, UTC) if isinstance(start, int | float) and start > 0 else None


def _seconds(trace: dict[str, Any]) -> float:
    timing = trace.get("timing") or {}
    spans = [timing[name] for name in ("boot", "setup", "agent", "finalize", "scoring") if timing.get(name)]
    return float(sum(max(0.0, (span.get("end") or 0.0) - (span.get("start") or 0.0)) for span in spans))
