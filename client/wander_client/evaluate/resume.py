"""Whether a stopped run may go on: with the options that were typed, and with the files as they are now."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.environments.location import parse_arguments
from wander_client.environments.sandbox import chosen_policy
from wander_client.errors import ClientError, UsageError
from wander_client.models.reference import priced
from wander_client.names import parse_environment

if TYPE_CHECKING:
    from wander_client.evaluate.evaluation import EvaluationSettings

FREE = {
    "base_url": "base_url",
    "key_variable": "key_variable",
    "concurrency": "concurrency",
    "max_rollouts": "max_rollouts",
    "max_lines": "max_lines",
    "device": "device",
    "pass_env": "pass_environ",
    "in_process": "in_process",
    "workers": "workers",
    "worker": "worker_addresses",
    "worker_token_file": "worker_token_file",
    "rollout_timeout": "rollout_timeout",
    "budget_tokens": "budget_tokens",
    "budget_usd": "budget_usd",
    "cache": "cache",
    "call_timeout": "call_timeout",
    "serve_arg": "serve_args",
    "serve_python": "serve_python",
    "serve_timeout": "serve_timeout",
}
"""Options that may change when a run goes on, as they change no rollout, and the settings they stand for."""

_PLAIN = {
    "num_examples": ("-n", "num_examples"),
    "rollouts": ("-r", "rollouts_per_example"),
    "split": ("--split", "split"),
    "seed": ("--seed", "seed"),
}
_SAMPLED = {"temperature": "-t", "top_p": "--top-p", "max_tokens": "--max-tokens"}

_NO_SOURCE = frozenset({"__pycache__", "build", "dist", "runs", "venv", "node_modules"})
_LARGE_BYTES = 16 * 1024 * 1024


def continued(
    stored: EvaluationSettings, typed: Mapping[str, Any], run_dir: Path, command: str
) -> EvaluationSettings:
    """Return the settings with which a run goes on; `typed` holds the options that were given, by parameter.

    Raises `UsageError` when one of them says something else than the run was begun with.
    """
    differing = list(_differing(stored, typed, run_dir))
    if differing:
        raise UsageError(
            f"`{run_dir}` was begun with other settings",
            detail="\n".join(differing),
            hint=f"go on with `{command}` alone, or start a new run without `--resume`",
            code="other_settings",
        )
    free = {FREE[name]: value for name, value in typed.items() if name in FREE}
    if "price" in typed:
        free["prices"] = priced(typed["price"], stored.model)
    return stored.model_copy(update=free)


def _differing(stored: EvaluationSettings, typed: Mapping[str, Any], run_dir: Path) -> Iterator[str]:
    """Yield a line for each option that contradicts the run."""
    if "environment" in typed and not _same_environment(str(typed["environment"]), stored.environment):
        yield f"environment `{typed['environment']}`: the run has `{stored.environment}`"
    yield from _differing_model(stored, typed)
    for name, (option, field) in _PLAIN.items():
        held = getattr(stored, field)
        if name in typed and typed[name] != held:
            has = "--all" if held is None else f"{option} {held}"
            yield f"`{option} {typed[name]}`: the run has `{has}`"
    if typed.get("all_examples") and stored.num_examples is not None:
        yield f"`--all`: the run has `-n {stored.num_examples}`"
    for name in ("strata", "shuffle", "exhaustive", "no_lock"):
        if typed.get(name) and not getattr(stored, name):
            yield f"`--{name.replace('_', '-')}`: the run was begun without it"
    yield from _differing_sampling(stored.sampling.given(), typed)
    yield from _differing_arguments(stored, typed)
    if typed.keys() & {"sandbox", "sandbox_limit"}:
        policy = chosen_policy(typed.get("sandbox"), typed.get("sandbox_limit"))
        if policy != stored.sandbox:
            has = "was begun without it" if stored.sandbox is None else "was begun with other limits"
            yield f"the sandbox: the run {has}"
    if "out" in typed and Path(typed["out"]).resolve() != run_dir.resolve():
        yield f"`--out {typed['out']}`: the run lies in `{run_dir}`"


def _differing_model(stored: EvaluationSettings, typed: Mapping[str, Any]) -> Iterator[str]:
    for model in typed.get("model") or []:
        if not _same_model(model, stored.model):
            yield f"`-m {model}`: the run has `-m {stored.model}`"
    if typed.get("serve") not in (None, stored.serve):
        yield f"`--serve {typed['serve']}`: the run was begun without it"


def _differing_arguments(stored: EvaluationSettings, typed: Mapping[str, Any]) -> Iterator[str]:
    given = parse_arguments(typed.get("argument") or [], typed.get("args"))
    given |= {name: typed[name] for name in ("judge_model", "judge_base_url") if name in typed}
    for key, value in given.items():
        if key not in stored.arguments or stored.arguments[key] != value:
            yield f"`-a {key}={_shown(value)}`: {_held('-a ', key, stored.arguments)}"


def _differing_sampling(held: Mapping[str, Any], typed: Mapping[str, Any]) -> Iterator[str]:
    for name, option in _SAMPLED.items():
        if name in typed and typed[name] != held.get(name):
            has = f"the run has `{option} {held[name]}`" if name in held else "the run was begun without it"
            yield f"`{option} {typed[name]}`: {has}"
    if typed.get("sampling"):
        try:
            given = json.loads(typed["sampling"])
        except ValueError as error:
            raise UsageError(f"`--sampling` is no JSON: {error}") from error
        for name, value in given.items() if isinstance(given, dict) else ():
            if held.get(name) != value:
                yield f"`{name}` of `--sampling` is {_shown(value)}: {_held('', name, held)}"


def _held(before: str, key: str, held: Mapping[str, Any]) -> str:
    return (
        f"the run has `{before}{key}={_shown(held[key])}`" if key in held else "the run was begun without it"
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _same_environment(word: str, held: str) -> bool:
    """Tell whether a word means the environment of a run; without a version it means any."""
    wanted, had = (
        parse_environment(word),
        parse_environment(held) if not Path(held).is_absolute() else Path(held),
    )
    if isinstance(wanted, Path) or isinstance(had, Path):
        return wanted == had
    return (wanted.owner, wanted.name) == (had.owner, had.name) and wanted.version in (None, had.version)


def _same_model(word: str, held: str) -> bool:
    if word.removeprefix("hf:") == held.removeprefix("hf:"):
        return True
    folder = Path(word.removeprefix("hf:")).expanduser()
    return folder.is_dir() and str(folder.resolve()) == held


def source_digests(folder: Path) -> dict[str, str]:
    """Return what the files of an environment's folder hold, by their place in it.

    Hidden files, caches, builds, virtual environments and runs do not count; of a file of more than 16 MiB
    the size and the time of its last change stand for the content.
    """
    found: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if _may_hold_source(here / name))
        for name in files:
            if not name.startswith("."):
                found[str((here / name).relative_to(folder))] = _digest(here / name)
    return found


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the files that were added, removed or changed, in order."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def environment_changed(files: list[str], *, examples_changed: bool, folder: str, model: str) -> ClientError:
    """Return the refusal to go on with a run whose environment's files are others now."""
    which = "\n".join(files[:10]) + (f"\nand {len(files) - 10} more" if len(files) > 10 else "")
    anew = f"start a new run: `wander eval {folder} -m {model}`"
    if examples_changed:
        return ClientError(
            "the environment's files changed since this run began, and so did its examples",
            detail=which,
            hint=anew,
            code="environment_changed",
        )
    return ClientError(
        "the environment's files changed since this run began; its examples are the same",
        detail=which,
        hint=f"{anew}; or go on with `--allow-changed-code`, if old and new rollouts may stand side by side",
        code="environment_changed",
    )


def _may_hold_source(folder: Path) -> bool:
    name = folder.name
    if name.startswith(".") or name in _NO_SOURCE or name.endswith(".egg-info"):
        return False
    return not any((folder / mark).exists() for mark in ("pyvenv.cfg", "run.json"))


def _digest(file: Path) -> str:
    try:
        facts = file.stat()
        if facts.st_size > _LARGE_BYTES:
            return f"{facts.st_size} bytes at {facts.st_mtime_ns}"
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:  # a dangling link, a socket: it is the same as long as it fails the same way
        return f"unreadable: {error.strerror}"
