"""What is published says nothing about where files lie on this machine.

A record on disk keeps full paths, since resuming and repeating need them. A copy that leaves the machine has
names in their place: a model that was pulled is `hub:OWNER/NAME@REVISION`, one of Hugging Face `hf:NAME`, any
other folder has its own name alone. In all other text the home folder is `~`. What the model and the
environment said in a scored rollout is never changed: a replay compares it.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wander.evals.store.jsonl import parse_object
from wander.wire.models import SCHEME

HF_SCHEME = "hf:"


def publish_text(text: str) -> str:
    """Return a text in which the home folder is `~`."""
    pattern = _compile(_homes())
    return text if pattern is None else pattern.sub("~", text)


def publish_manifest(text: bytes) -> bytes:
    """Return a run's manifest as it is posted; unchanged if it has no path of this machine."""
    stored = parse_object(text)
    manifest: dict[str, Any] = _walk(stored, publish_text)
    if "example_ids" in stored:  # rollouts are matched with examples by these
        manifest["example_ids"] = stored["example_ids"]
    for pin in (manifest.get("model"), *(manifest.get("players") or {}).values()):
        if isinstance(pin, dict) and isinstance(pin.get("name"), str):
            pin["name"] = name_model(pin["name"])
    for mixed in manifest.get("mixture") or []:
        if mixed["environment"].get("path"):
            mixed["environment"]["path"] = Path(mixed["environment"]["path"]).name
    if isinstance(stored.get("training"), dict):
        manifest["training"] = publish_settings(stored["training"])
    return text if manifest == stored else json.dumps(manifest, indent=1).encode() + b"\n"


def publish_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a training run with names for the folders of models and environments."""
    renamed: dict[str, Any] = {}
    for name, value in settings.items():
        published = _walk(value, _name_setting, skipped="arguments")
        if name in ("model", "teacher") and isinstance(value, Mapping) and isinstance(value.get("path"), str):
            published["path"] = _name_weights(value["path"])
        renamed[name] = published
    return renamed


def local_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of an environment's arguments in which something of this machine is named by its path.

    What is played depends on arguments, so they are posted unchanged, but for the home folder.
    """
    names: set[str] = set()
    for name, value in arguments.items():

        def note(text: str, name: str = name) -> str:
            if _is_full(text) and os.path.lexists(os.path.expanduser(text)):
                names.add(name)
            return text

        _walk(value, note)
    return sorted(names)


def publish_rollout(line: bytes) -> bytes:
    """Return the line of a rollout as it is posted: of one that failed, the error names no home folder."""
    if not any(home in line for home in _in_json(_homes())):
        return line
    rollout = parse_object(line)
    failure = rollout.get("failure")
    if not isinstance(failure, dict):
        return line
    rollout["failure"] = _walk(failure, publish_text)
    return json.dumps(rollout, separators=(",", ":")).encode() + b"\n"


def publish_lines(content: bytes) -> bytes:
    """Return a file of JSON lines as it is posted."""
    if not any(home in content for home in _in_json(_homes())):
        return content
    *whole, _torn = content.split(b"\n")
    lines = [json.dumps(_walk(parse_object(line), publish_text)).encode() for line in whole]
    return b"\n".join([*lines, b""])


def name_model(text: str) -> str:
    """Return what to call a model that may be named by its folder on this machine."""
    return _folder_name(text) if _is_full(text) else publish_text(text)


def _folder_name(path: str) -> str:
    from wander.models.loading import model_name

    return model_name(Path(path).expanduser())


def _name_setting(text: str) -> str:
    """Return a setting with a name in place of a file or folder of this machine."""
    exists = _is_full(text) and os.path.lexists(os.path.expanduser(text))
    return _name_weights(text) if exists else publish_text(text)


def _name_weights(text: str) -> str:
    """Return where anyone can get the weights that a setting names, or else the name of their folder."""
    if _is_full(text) or text.startswith("."):
        from wander.models.pulled import pulled_at

        pulled = pulled_at(Path(text).expanduser())
        return _folder_name(text) if pulled is None else f"{SCHEME}{pulled.record}"
    # Settings keep models of Hugging Face without the scheme.
    is_repository = "/" in text and ":" not in text
    return f"{HF_SCHEME}{text}" if is_repository else text


def _is_full(text: str) -> bool:
    return text.startswith(("/", "~"))


def _walk(value: Any, change: Callable[[str], str], skipped: str = "") -> Any:
    """Return JSON with its texts changed; below a key that is `skipped`, only the home folder is."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_walk(item, change, skipped) for item in value]
    if isinstance(value, dict):
        return {
            key: _walk(inner, publish_text if key == skipped else change, skipped)
            for key, inner in value.items()
        }
    return value


def _homes() -> tuple[str, ...]:
    return _find_homes(os.path.expanduser("~"))


@functools.lru_cache(maxsize=8)
def _find_homes(home: str) -> tuple[str, ...]:
    """Return the home folder as it is written and as it resolves, the longer first; `/` does not count."""
    homes = {home.rstrip("/"), os.path.realpath(home).rstrip("/")}
    return tuple(sorted((path for path in homes if path.startswith("/")), key=len, reverse=True))


@functools.lru_cache(maxsize=8)
def _in_json(homes: tuple[str, ...]) -> list[bytes]:
    return [text.encode() for home in homes for text in {home, json.dumps(home)[1:-1]}]


@functools.lru_cache(maxsize=8)
def _compile(homes: tuple[str, ...]) -> re.Pattern[str] | None:
    if not homes:
        return None
    return re.compile(rf"(?<![\w.~-])(?:{'|'.join(map(re.escape, homes))})(?![\w.-])")
