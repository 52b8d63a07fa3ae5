"""Reads `.eval` logs of Inspect as runs, also the logs that `wander runs export` wrote.

A log is an archive that somebody sent, so each file in it may be at most 64 MiB long.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import zstandard
from pydantic import ValidationError
from wander.clients.completions import total_usage
from wander.errors import RunError
from wander.evals.foreign_run import UNKNOWN, ForeignRun
from wander.evals.formats.inspect_log import (
    CONFIG,
    CONFIG_NAMES,
    OWN,
    REWARD,
    STOP_REASONS,
    read_calls,
)
from wander.evals.store.jsonl import MOST_RECORD_BYTES, open_record, parse_object
from wander.types import Failure, Message, Rollout, SamplingArgs, Turn, first_fault

_ZSTD = 93
"""Compression method of zip files that Inspect writes. Python knows it from version 3.14."""
_MOST_FILES = 1_000_000
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's values for correct, partial, incorrect and no answer."""
_REASONS = {theirs: ours for ours, theirs in STOP_REASONS.items()} | {"unknown": "stop"}
_SAMPLING = {theirs: ours for ours, theirs in CONFIG_NAMES.items()}
_LACKS = ("token ids", "log-probabilities", "the wheel of the environment", "the platform")


def read_log(path: Path) -> ForeignRun:
    """Read a log. Raises `RunError` if the file is not a log, or if it is damaged."""
    with open_record(path) as file, _open_archive(file, path) as archive:
        names = dict.fromkeys(archive.namelist())
        if len(names) > _MOST_FILES:
            raise RunError(f"`{path}` contains more than {_MOST_FILES:,} files")
        start = next((name for name in ("header.json", "_journal/start.json") if name in names), None)
        if start is None:
            raise RunError(f"`{path}` is not a log of Inspect: `header.json` is missing")
        with _blame(path, start):
            header = _member(archive, file, start)
            foreign = _read_header(header)
            listed = (header["eval"].get("dataset") or {}).get("sample_ids") or ()
        positions = {f"samples/{example_id}": number for number, example_id in enumerate(listed)}
        samples = [name for name in names if name.startswith("samples/") and name.endswith(".json")]

        def place(name: str) -> tuple[int, int]:
            example, _, epoch = name.removesuffix(".json").rpartition("_epoch_")
            return positions.get(example, len(positions)), int(epoch) if epoch.isdecimal() else 0

        for name in sorted(samples, key=place):
            with _blame(path, name):
                _add_sample(foreign, _member(archive, file, name))
    return foreign


@contextmanager
def _open_archive(file: IO[bytes], path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise RunError(f"`{path}` is not a log of Inspect: {error}") from error
    with archive:
        yield archive


@contextmanager
def _blame(path: Path, name: str) -> Iterator[None]:
    """Convert the exceptions of a file with an unexpected shape to a `RunError` that names it."""
    try:
        yield
    except ValidationError as error:
        raise RunError(f"`{name}` of `{path}` cannot be read: {': '.join(first_fault(error))}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise RunError(f"`{name}` of `{path}` cannot be read: {error}") from error
    except (zipfile.BadZipFile, zlib.error, zstandard.ZstdError, NotImplementedError, EOFError) as error:
        raise RunError(f"`{name}` of `{path}` is damaged: {error}") from error


def _member(archive: zipfile.ZipFile, file: IO[bytes], name: str) -> dict[str, Any]:
    """Return the object in a file of the archive. Raises `ValueError` if it is too large."""
    info = archive.getinfo(name)
    if max(info.file_size, info.compress_size) > MOST_RECORD_BYTES:
        raise ValueError(f"it is longer than {MOST_RECORD_BYTES >> 20} MiB")
    if info.compress_type == _ZSTD:
        file.seek(info.header_offset)
        header = file.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile("its header is missing")
        file.seek(sum(struct.unpack("<HH", header[26:30])), io.SEEK_CUR)
        packed = io.BytesIO(file.read(info.compress_size))
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
            text = reader.read(info.file_size + 1)
        if zlib.crc32(text) != info.CRC:
            raise zipfile.BadZipFile("its checksum is wrong")
    else:
        text = archive.read(info)  # stops after the declared size
    return parse_object(text)


def _read_header(log: dict[str, Any]) -> ForeignRun:
    evaluation = log["eval"]
    own = (evaluation.get("metadata") or {}).get(OWN) or {}
    packages = evaluation.get("packages") or {}
    library = f"Inspect {packages['inspect_ai']}" if "inspect_ai" in packages else "an Inspect log"
    stats = log.get("stats") or {}
    chosen = (log.get("plan") or {}).get("config") or {}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    config = {**(evaluation.get("model_generate_config") or {}), **chosen}
    return ForeignRun(
        environment=str(own.get("environment") or evaluation.get("task") or UNKNOWN),
        model=str(evaluation.get("model") or UNKNOWN),
        source=library,
        arguments=evaluation.get("task_args") or {},
        sampling=_sampling(config),
        base_url=evaluation.get("model_base_url") or None,
        owner=own.get("owner"),
        version=own.get("version"),
        started_at=_time(evaluation.get("created")),
        ended_at=_time(stats.get("completed_at")),
        rollouts_per_example=(evaluation.get("config") or {}).get("epochs") or 1,
        lacks=[*_LACKS, *([] if own else ["seeds"])],
    )


def _sampling(config: dict[str, Any]) -> SamplingArgs:
    values = {name: config[name] for name in CONFIG if config.get(name) is not None}
    values |= config.get("extra_body") or {}
    return SamplingArgs.model_validate({_SAMPLING.get(name, name): value for name, value in values.items()})


def _time(text: Any) -> datetime | None:
    found = datetime.fromisoformat(text) if text else None
    return found if found is None or found.tzinfo else found.astimezone()


def _add_sample(foreign: ForeignRun, sample: dict[str, Any]) -> None:
    """Add the rollout of a sample."""
    if attachments := sample.pop("attachments", None):
        sample = _attached(sample, attachments)
    metadata = dict(sample.get("metadata") or {})
    own = metadata.pop(OWN, None) or {}
    listed = sample.get("messages") or _input_messages(sample.get("input"))
    first = next((at for at, message in enumerate(listed) if _is_generated(message)), len(listed))
    messages = [_message(message) for message in listed]
    prompt, completion = messages[:first], messages[first:]
    example_id = str(sample["id"])
    answer = own.get("answer", sample.get("target"))
    example = foreign.example(example_id, prompt, answer, metadata, {})
    failure = _failure(sample, own)
    reward, metrics = _scores(sample.get("scores") or {}, own)
    if failure is None and reward is None:
        failure = Failure(boundary="rubric", type="Unscored", message=_unscored(sample.get("scores") or {}))
    limit = sample.get("limit") or {}
    events = [event for event in sample.get("events") or () if event.get("event") == "model"]
    events = [event for event in events if event.get("role") is None and not event.get("pending")]
    seed = own.get("seed", example.seed)
    foreign.add(
        Rollout(
            example_id=example_id,
            index=int(sample["epoch"]) - 1,
            seed=seed,
            prompt=prompt,
            completion=completion,
            turns=_turns(events, listed, messages, first),
            answer=answer,
            stop_reason=None if failure else str(own.get("stop_reason") or limit.get("type") or UNKNOWN),
            truncated=bool(own.get("truncated", bool(limit))),
            reward=None if failure else reward,
            metrics={} if failure else metrics,
            failure=failure,
            usage=total_usage((sample.get("model_usage") or {}).values()),
            started_at=str(sample.get("started_at") or ""),
            seconds=float(sample.get("total_time") or 0.0),
            info=metadata,
            tools=own.get("tools") or _tools(events),
            rewards=own.get("rewards") or {},
            player_metrics=own.get("player_metrics") or {},
        )
    )
    example.seed = seed


def _attached(value: Any, attachments: dict[str, str]) -> Any:
    """Return a value with the texts that Inspect stored separately."""
    if isinstance(value, str):
        name = value.removeprefix("attachment://")
        return value if name == value else attachments.get(name, value)
    if isinstance(value, list):
        return [_attached(item, attachments) for item in value]
    if isinstance(value, dict):
        return {name: _attached(item, attachments) for name, item in value.items()}
    return value


def _input_messages(given: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())


def _is_generated(message: dict[str, Any]) -> bool:
    source = message.get("source")
    return source == "generate" or (message.get("role") == "assistant" and source != "input")


def _message(written: dict[str, Any]) -> Message:
    """Return a message in the chat format."""
    own = dict((written.get("metadata") or {}).get(OWN) or {})
    message: Message = {"role": own.pop("role", written["role"])}
    content, reasoning = _content(written.get("content"))
    message["content"] = own.pop("content") if "content" in own else content
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if written.get("tool_calls"):
        message["tool_calls"] = own.pop("tool_calls", None) or read_calls(written["tool_calls"])
    if written["role"] == "tool":
        for name, target in (("tool_call_id", "tool_call_id"), ("function", "name"), ("error", "error")):
            if written.get(name) is not None:
                message[target] = written[name]
        error = written.get("error")
        if isinstance(error, dict) and not message["content"]:
            message["content"] = str(error.get("message") or "")
    return message | own


def _content(content: Any) -> tuple[Any, str | None]:
    """Return the content in the chat format, and the reasoning."""
    if not isinstance(content, list):
        return content, None
    reasoning, parts = [], []
    for part in content:
        kind = part.get("type")
        if kind == "reasoning":
            reasoning.append(str((part.get("summary") if part.get("redacted") else part["reasoning"]) or ""))
        elif kind == "text":
            parts.append({"type": "text", "text": part["text"]})
        elif kind == "image":
            detail = {"detail": part["detail"]} if part.get("detail", "auto") != "auto" else {}
            parts.append({"type": "image_url", "image_url": {"url": part["image"], **detail}})
        else:
            parts.append(part)
    plain: Any = parts
    if len(parts) <= 1 and all(part.get("type") == "text" for part in parts):
        plain = "".join(part["text"] for part in parts)
    return plain, "\n".join(reasoning) if reasoning else None


def _turns(
    events: list[dict[str, Any]], listed: list[dict[str, Any]], messages: list[Message], first: int
) -> list[Turn]:
    """Return a turn for each generated message, with the numbers of its model event if there is one."""
    by_id = {}
    for event in events:
        for choice in (event.get("output") or {}).get("choices") or ():
            by_id[choice["message"].get("id")] = event
    spoken = [
        at
        for at in range(first, len(listed))
        if listed[at]["role"] == "assistant" and _is_generated(listed[at])
    ]
    found = [by_id.get(listed[at].get("id")) if listed[at].get("id") else None for at in spoken]
    if not any(found) and len(events) == len(spoken):
        found = list(events)
    return [_turn(event, messages[at], at) for at, event in zip(spoken, found, strict=True)]


def _turn(event: dict[str, Any] | None, message: Message, position: int) -> Turn:
    if event is None:
        return Turn(message=message, context_messages=position)
    output = event.get("output") or {}
    own = (event.get("metadata") or {}).get(OWN)
    noted = (output.get("metadata") or {}).get(OWN) or {}
    choices = output.get("choices") or [{}]
    reason = str(choices[0].get("stop_reason") or "stop")
    turn = Turn(
        message=message,
        context_messages=position,
        finish_reason=noted.get("finish_reason") or _REASONS.get(reason, reason),
        usage=total_usage([output.get("usage")]),
        model_seconds=float(output.get("time") or event.get("working_time") or 0.0),
        cached=event.get("cache") == "read",
    )
    if own is not None:
        turn.environment_seconds, turn.player = float(own["environment_seconds"]), own["player"]
        ranges = event.get("input_refs") or []
        shown = [position for pair in ranges for position in pair]
        if shown and shown != [0, position]:
            turn.left_out = (shown[1], shown[2]) if len(shown) == 4 else (0, shown[0])
    return turn


def _failure(sample: dict[str, Any], own: dict[str, Any]) -> Failure | None:
    if own.get("failure") is not None:
        return Failure.model_validate(own["failure"])
    error = sample.get("error")
    if error is None:
        return None
    # Inspect does not say which part failed.
    return Failure(boundary="environment", type="EvalError", message=str(error.get("message") or ""))


def _scores(scores: dict[str, Any], own: dict[str, Any]) -> tuple[float | None, dict[str, float]]:
    """Return the reward, which is the first value, and all values by name."""
    values: dict[str, float] = {}
    for name, score in scores.items():
        value = score.get("value")
        parts = {f"{name}/{part}": item for part, item in value.items()} if isinstance(value, dict) else {}
        for label, item in (parts or {name: value}).items():
            if (number := _number(item)) is not None:
                values[label] = number
    reward = next(iter(values.values()), None)
    if own:
        reward = values.pop(REWARD, None)
        values |= own.get("metrics") or {}
    return reward, values


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        if value in _GRADES:
            return _GRADES[value]
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _unscored(scores: dict[str, Any]) -> str:
    for score in scores.values():
        if reason := score.get("reason") or score.get("explanation"):
            return str(reason)
    return "the sample has no score that is a number"


def _tools(events: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    tools = events[-1].get("tools") if events else None
    if not tools:
        return None
    names = ("name", "description", "parameters")
    return [{"type": "function", "function": {name: tool.get(name) for name in names}} for tool in tools]
