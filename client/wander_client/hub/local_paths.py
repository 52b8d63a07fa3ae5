"""Remove the paths of this machine from what is published.

Records on disk keep full paths, because resuming and repeating need them. Published copies have names
instead: a pulled model becomes `hub:OWNER/NAME@REVISION`, a Hugging Face model `hf:NAME`, and any other
folder its own name. In all other text, the home folder becomes `~`. Messages of scored rollouts are never
changed, because a replay compares them.
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
    """Replace the home folder by `~` in a text."""
    pattern = _compile(_homes())
    return text if pattern is None else pattern.sub("~", text)


def publish_manifest(text: bytes) -> bytes:
    """Return a run's manifest for publication. It is unchanged if it contains no paths of this machine."""
    stored = parse_object(text)
    manifest: dict[str, Any] = _walk(stored, publish_text)
    if "example_ids" in stored:  # must stay equal to the example IDs of the rollouts
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
    """Return the settings of a training run with names instead of the folders of models and environments."""
    renamed: dict[str, Any] = {}
    for name, value in settings.items():
        published = _walk(value, _name_setting, skipped="arguments")
        if name in ("model", "teacher") and isinstance(value, Mapping) and isinstance(value.get("path"), str):
            published["path"] = _name_weights(value["path"])
        renamed[name] = published
    return renamed


def local_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of environment arguments that contain paths of this machine.

    Arguments affect the rollouts, so they are posted unchanged except for the home folder.
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
    """Return a rollout's line for publication.

    In failed rollouts, the error does not contain the home folder.
    """
    if not any(home in line for home in _in_json(_homes())):
        return line
    rollout = parse_object(line)
    failure = rollout.get("failure")
    if not isinstance(failure, dict):
        return line
    rollout["failure"] = _walk(failure, publish_text)
    return json.dumps(rollout, separators=(",", ":")).encode() + b"\n"


def publish_lines(content: bytes) -> bytes:
    """Return a JSON Lines file for publication."""
    if not any(home in content for home in _in_json(_homes())):
        return content
    *whole, _partial_line = content.split(b"\n")
    lines = [json.dumps(_walk(parse_object(line), publish_text)).encode() for line in whole]
    return b"\n".join([*lines, b""])


def name_model(text: str) -> str:
    """Return the published name of a model that may be a folder on this machine."""
    return _folder_name(text) if _is_full(text) else publish_text(text)


def _folder_name(path: str) -> str:
    from wander.models.loading import model_name

    return model_name(Path(path).expanduser())


def _name_setting(text: str) -> str:
    """Return a setting with a name instead of a path of this machine."""
    exists = _is_full(text) and os.path.lexists(os.path.expanduser(text))
    return _name_weights(text) if exists else publish_text(text)


def _name_weights(text: str) -> str:
    """Return the public source of the weights in a setting, or else the name of their folder."""
    if _is_full(text) or text.startswith("."):
        from wander.models.pulled import pulled_at

        pulled = pulled_at(Path(text).expanduser())
        return _folder_name(text) if pulled is None else f"{SCHEME}{pulled.record}"
    # Settings store Hugging Face models without the scheme.
    is_repository = "/" in text and ":" not in text
    return f"{HF_SCHEME}{text}" if is_repository else text


def _is_full(text: str) -> bool:
    return text.startswith(("/", "~"))


def _walk(value: Any, change: Callable[[str], str], skipped: str = "") -> Any:
    """Return JSON with changed texts. Below the key `skipped`, only the home folder is replaced."""
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
    """Return the home folder as written and with links resolved, the longer first. Ignores `/`."""
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
