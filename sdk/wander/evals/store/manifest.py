"""Creates the pins of a run (id, platform, model), and decides whether another run may continue it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from wander.clients.base import Client
from wander.evals.store.examples import PackedExamples, RunExamples
from wander.handle import Split
from wander.system.child_environ import LOCALE, child_environ
from wander.types import Example, SamplingArgs
from wander.version import __version__
from wander.wire import EnvironmentPin, ModelPin, Platform, RunManifest
from wander.wire.run_record import SCRIPT, RunKind

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no i, l, o, u."""
_NUMERIC_PACKAGES = ("torch", "transformers", "vllm", "trl")
_RUNS_PROGRAMS = re.compile(
    r"^(core\.(fsmonitor|hookspath|sshcommand|pager|editor|attributesfile|worktree|gitproxy)|filter\.|diff\.|"
    r"merge\.|alias\.|include|extensions\.worktreeconfig|gpg|credential|pager\.|submodule\..*update)",
    re.M | re.I,
)
"""Git settings that make git run a program, or read settings from another file."""
_GIT_SECONDS = 5.0

_id_lock = threading.Lock()
_last_id = 0


def new_run_id() -> str:
    """Return a new run id: 26 characters that sort by time, from 48 bits of milliseconds and 80 random bits
    (ULID).

    Ids made by one process are strictly ascending, even within a millisecond.
    """
    global _last_id
    with _id_lock:
        fresh = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
        _last_id = fresh if fresh > _last_id else _last_id + 1
        number = _last_id
    return _write_id(number)


def run_id_of(milliseconds: int, tail: bytes) -> str:
    """Return the id of a run that began at this time, with 10 given bytes instead of random ones."""
    return _write_id(milliseconds << 80 | int.from_bytes(tail, "big"))


def _write_id(number: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def new_manifest(
    *,
    environment: EnvironmentPin,
    model: ModelPin,
    examples: list[Example] | RunExamples,
    rollouts_per_example: int = 1,
    sampling: SamplingArgs | None = None,
    split: Split = "eval",
    seed: int = 0,
    kind: RunKind = "evaluation",
    training: dict[str, Any] | None = None,
    notes: str = "",
) -> RunManifest:
    """Return the manifest of a run that starts now, in this process and working folder."""
    run_examples = PackedExamples(examples) if isinstance(examples, list) else examples
    return RunManifest(
        run_id=new_run_id(),
        kind=kind,
        environment=environment,
        model=model,
        sampling=sampling or SamplingArgs(),
        split=split,
        example_ids=run_examples.ids,
        strata=run_examples.strata if any(stratum is not None for stratum in run_examples.strata) else [],
        rollouts_per_example=rollouts_per_example,
        task_set_sha256=run_examples.task_set_sha256,
        seed=seed,
        started_at=datetime.now(UTC),
        platform=this_platform(),
        training=training,
        notes=notes,
    )


def model_pin(client: Client) -> ModelPin:
    """Return a client's description of its model. Values without their own field go into `details`."""
    described = dict(client.describe())
    fields = {name: described.pop(name, None) for name in ("base_url", "revision", "weights_sha256")}
    return ModelPin(
        name=described.pop("model", client.model),
        kind=described.pop("kind", type(client).__name__),
        chat_template_sha256=described.pop("chat_template_sha256", None),
        details=described,
        **fields,
    )


def player_pins(client: Client) -> dict[str, ModelPin]:
    """Return the models and scripts that play next to a client's model, by player."""
    scripts = {player: ModelPin(name=spec, kind=SCRIPT) for player, spec in client.scripts.items()}
    return scripts | {player: model_pin(other) for player, other in client.others.items()}


def this_platform() -> Platform:
    """Return the platform of this process, without importing the packages that it reports."""
    commit, dirty = git_state(Path.cwd())
    return Platform(
        wander=__version__,
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        accelerator=_accelerator(),
        packages=find_installed_versions(_NUMERIC_PACKAGES),
        git_commit=commit,
        git_dirty=dirty,
    )


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return (commit, whether tracked files differ from it), or None for both without git or a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit.decode("ascii").strip(), None if changes is None else bool(changes.strip())


def read_uncommitted_diff(folder: Path) -> bytes | None:
    """Return the changes in tracked files since the last commit, or None if `git_state` returns no commit.

    The diff contains neither ignored nor untracked files, and only the digests of binary files.
    """
    options = ["--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"]
    return _git(folder, "diff", "HEAD", *options)


def find_differing_pins(one: RunManifest, other: RunManifest) -> list[str]:
    """Return the dotted names of the fields that prevent one run from continuing the other.

    The environment, its arguments, the examples, the model, the sampling and the seed count. The machine and
    the address of the model do not.
    """
    return [name for name, _, _ in pin_differences(one, other)]


def pin_differences(one: RunManifest, other: RunManifest) -> list[tuple[str, Any, Any]]:
    """Return the fields that `find_differing_pins` names, sorted, with both values.

    An absent value is None.
    """
    return sorted(find_differences(_pins(one), _pins(other)), key=lambda difference: difference[0])


def differences_in_words(fields: Sequence[str]) -> str:
    """Describe the fields from `find_differing_pins` in words: `the examples, the model's weights`."""
    phrases = [next(words for start, words in _WORDS if field.startswith(start)) for field in fields]
    return ", ".join(dict.fromkeys(phrases))


_WORDS = (
    ("kind", "the kind of run"),
    ("environment.lock_sha256", "the packages that the environment runs with"),
    ("environment.packages_sha256", "the packages that the environment runs with"),
    ("environment.arguments", "the environment's arguments"),
    ("environment.info", "the environment's description of itself"),
    ("environment", "the environment or its version"),
    ("model.weights_sha256", "the model's weights"),
    ("model.chat_template_sha256", "the model's chat template"),
    ("model", "the model"),
    ("players", "the other players"),
    ("sampling", "the sampling"),
    ("split", "the split"),
    ("example_ids", "the examples"),
    ("task_set_sha256", "the examples"),
    ("rollouts_per_example", "the number of rollouts of each example"),
    ("seed", "the seed"),
    ("training", "the training settings"),
    ("shard", "the shard"),
    ("", "its settings"),
)
"""Descriptions of manifest fields. The first prefix that matches a field's name counts."""


_MODEL_PINS = {"name", "kind", "revision", "weights_sha256", "chat_template_sha256"}


def _pins(manifest: RunManifest) -> dict[str, Any]:
    """Return the part of a manifest that determines its rollouts."""
    pins = manifest.model_dump(
        mode="json",
        include={
            "kind": True,
            "environment": {
                *("owner", "name", "version", "wheel_sha256", "lock_sha256", "packages_sha256"),
                *("arguments", "info"),
            },
            "model": _MODEL_PINS,
            "players": {"__all__": _MODEL_PINS},
            "sampling": True,
            "split": True,
            "example_ids": True,
            "rollouts_per_example": True,
            "task_set_sha256": True,
            "seed": True,
            "training": True,
            "shard": True,
        },
    )
    if pins["environment"]["lock_sha256"] is not None:
        # A lock pins the packages of every platform, even though they differ between platforms.
        del pins["environment"]["packages_sha256"]
    return pins


def find_differences(one: Any, other: Any, place: str = "") -> list[tuple[str, Any, Any]]:
    """Return the differences between two nested dictionaries: dotted name and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() | other.keys()
        return [
            difference
            for name in names
            for difference in find_differences(
                one.get(name, _ABSENT), other.get(name, _ABSENT), f"{place}.{name}" if place else name
            )
        ]
    if one == other:
        return []
    return [(place, None if one is _ABSENT else one, None if other is _ABSENT else other)]


_ABSENT = object()


def find_installed_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    versions = {name: _installed_version(name) for name in names}
    return {name: version for name, version in versions.items() if version is not None}


@cache  # what this process has imported stays as it is; to read them all takes 50 ms
def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _accelerator() -> str | None:
    """Return the accelerator that this process already uses. A run over HTTP uses none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return "mps" if torch.backends.mps.is_available() else None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return the output of git, or None if the repository's own settings name programs that git would run.

    The folder and its repository may come from somebody else.
    """
    listing = ["config", "--local", "--includes", "--list", "--name-only"]
    own = ask_program(["git", "-C", str(folder), *listing], _GIT_SECONDS)
    if own is None or _RUNS_PROGRAMS.search(own.decode("utf-8", "replace")):
        return None
    return ask_program(["git", "-C", str(folder), *arguments], _GIT_SECONDS)


def ask_program(command: Sequence[str], seconds: float) -> bytes | None:
    """Return the output of a program on the PATH, or None if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            command,
            capture_output=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=False,
            env=child_environ(*LOCALE, "XDG_CONFIG_HOME"),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
