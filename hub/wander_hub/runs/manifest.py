"""Validation of posted manifests: the environment version that they pin must be published on this hub."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass

from sqlalchemy.orm import Session
from wander.types import canonical_json
from wander.wire import ModelPin, RunManifest
from wander.wire.run_record import SCRIPT
from wander.wire.untrusted_text import MANIFEST, MANIFEST_HEAD, RefusedText, read_record

from wander_hub.database import now
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.http.problems import HubProblem
from wander_hub.names import find_odd_letter
from wander_hub.runs.models import without_examples

_RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{7,63}")
_NAME = re.compile(r"[^\s\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?")
"""Pattern of a name without control characters and without spaces at its ends."""
_ADDRESS = re.compile(r"https?://[!-~]{1,2000}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCRIPT = re.compile(r"scripted:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\?[!-~]*)?", re.ASCII)
_LONGEST_NAME = 300
_MOST_ROLLOUTS = 1_000_000
_MOST_USD = 1_000_000
_LARGEST = 1e15
_FIRST_YEAR, _LAST_YEAR = 1970, 2200
_MOST_TOKENS = 2**31 - 1


def parse(text: bytes) -> RunManifest:
    """Return the parsed manifest; raise a problem if it is invalid."""
    try:
        manifest = read_record(RunManifest, text, MANIFEST)
        head = without_examples(manifest).model_dump_json(by_alias=True).encode()
        MANIFEST_HEAD.check_json(head)
    except RefusedText as error:
        errors = [{"loc": error.place.split("."), "msg": error.fault}]
        status = 413 if error.too_large else 422
        raise HubProblem(status, "bad_manifest", f"run.json: {error}", errors=errors) from error
    if manifest.shard is not None:
        raise bad_manifest("it is a shard of a run; merge all shards with `wander runs merge` first")
    _check_ids(manifest)
    check_model(manifest.model)
    own = (
        0 if manifest.kind == "training" else 1
    )  # in training, other models may play the first player as well
    for player in manifest.players:
        if player not in manifest.environment.info.players[own:]:
            raise bad_manifest(f"players lists `{player[:80]}`, who is not another player of the environment")
    for place, pin in _players(manifest):
        if pin.name.startswith("scripted:") is not (pin.kind == SCRIPT):
            raise bad_manifest(f"{place} must be a script by its name and by its kind, or by neither")
        if pin.kind == SCRIPT:
            _check_script(pin, place)
        check_model(pin, place)
    _check_plan(manifest)
    return manifest


@dataclass(frozen=True)
class PinnedRun:
    """A manifest with the position of each of its examples."""

    manifest: RunManifest
    positions: dict[str, int]

    @classmethod
    def of(cls, manifest: RunManifest) -> PinnedRun:
        """Return the manifest with its positions."""
        return cls(manifest, {example: index for index, example in enumerate(manifest.example_ids)})


def _players(manifest: RunManifest) -> list[tuple[str, ModelPin]]:
    """Return the models of the other players, with the names of their fields."""
    return [(f"players.{player}", pin) for player, pin in manifest.players.items()]


def _check_script(pin: ModelPin, place: str) -> None:
    """Raise if a script is pinned by anything except its name, because the environment's wheel contains
    it."""
    if not _SCRIPT.fullmatch(pin.name):
        raise bad_manifest(f"{place}.name is not `scripted:MODULE:FUNCTION`")
    if pin.weights_sha256 or pin.chat_template_sha256 or pin.revision or pin.base_url:
        raise bad_manifest(f"{place} is a script, so it must not have weights, template, revision or address")


def _check_ids(manifest: RunManifest) -> None:
    if not _RUN_ID.fullmatch(manifest.run_id):
        raise bad_manifest("run_id must be 8 to 64 of a-z, A-Z, 0-9, `-` and `_`")
    if manifest.rerun_of is not None and not _RUN_ID.fullmatch(manifest.rerun_of):
        raise bad_manifest("rerun_of is not the id of a run")
    pin = manifest.environment
    digests = {"task_set": manifest.task_set_sha256, "environment.wheel": pin.wheel_sha256}
    digests |= {"environment.lock": pin.lock_sha256, "environment.packages": pin.packages_sha256}
    digests["environment.source"] = pin.source_sha256
    for place, model in (("model", manifest.model), *_players(manifest)):
        digests[f"{place}.weights"] = model.weights_sha256
        digests[f"{place}.chat_template"] = model.chat_template_sha256
    for label, digest in digests.items():
        known = (
            label == "environment.wheel" or digest is None or digest.strip("0")
        )  # wheels are checked later
        if digest is not None and not (known and _SHA256.fullmatch(digest)):
            raise bad_manifest(f"{label}_sha256 is not a SHA-256 in hexadecimal")
    if len(set(manifest.example_ids)) != len(manifest.example_ids):
        raise bad_manifest("example_ids lists an example twice")
    if any(not key or len(key) > _LONGEST_NAME or "\x00" in key for key in manifest.example_ids):
        raise bad_manifest(f"an example id is empty or longer than {_LONGEST_NAME} characters")


def check_model(model: ModelPin, place: str = "model") -> None:
    """Raise a problem if a pin has a name, kind or address that runs must not have."""
    for label, value in ((f"{place}.name", model.name), (f"{place}.kind", model.kind)):
        if not _NAME.fullmatch(value) or len(value) > _LONGEST_NAME:
            raise bad_manifest(f"{label} must be 1 to {_LONGEST_NAME} printable characters")
        if odd := find_odd_letter(value):
            fault = f"{label} contains {unicodedata.name(odd, 'a character')} (U+{ord(odd):04X})"
            raise bad_manifest(fault, "use ASCII letters, digits and signs")
        if value.startswith("-"):
            raise bad_manifest(f"{label} starts with `-` and could be mistaken for an option")
        if "  " in value:
            raise bad_manifest(f"{label} has two consecutive spaces")
    if model.base_url is not None and not _ADDRESS.fullmatch(model.base_url):
        raise bad_manifest(f"{place}.base_url is not an http or https address")


def _check_plan(manifest: RunManifest) -> None:
    prices = manifest.spending.prices if manifest.spending is not None else None
    if prices is not None and max(price or 0.0 for price in dict(prices).values()) > _MOST_USD:
        raise bad_manifest(f"spending.prices are above {_MOST_USD:,} USD per million tokens")
    for label, moment in (("started_at", manifest.started_at), ("ended_at", manifest.ended_at)):
        if moment is not None and not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
            fault = f"{label} is not between the years {_FIRST_YEAR} and {_LAST_YEAR}"
            raise bad_manifest(f"{fault}; the hub's clock shows {now():%Y-%m-%d %H:%M} UTC")
    info = manifest.environment.info
    functions = info.reward_functions
    bounds = [pair for pair in (info.reward_bounds, *(function.bounds for function in functions)) if pair]
    numbers = [*(end for pair in bounds for end in pair), *(function.weight for function in functions)]
    if any(low > high for low, high in bounds) or any(abs(number) > _LARGEST for number in numbers):
        raise bad_manifest(f"bounds are reversed, or bounds or weights are beyond {_LARGEST:g}")
    if manifest.rollouts_per_example > _MOST_ROLLOUTS:
        raise bad_manifest(f"rollouts_per_example is above {_MOST_ROLLOUTS:,}")
    if (manifest.sampling.max_tokens or 0) > _MOST_TOKENS:
        raise bad_manifest(f"sampling.max_tokens is above {_MOST_TOKENS:,}")
    if manifest.kind not in ("evaluation", "training"):
        raise bad_manifest(f"a hub accepts evaluations and training runs, not the kind `{manifest.kind}`")
    if manifest.lines is not None:
        raise bad_manifest("only exhaustive runs have `lines`")
    if manifest.kind == "evaluation" and not manifest.example_ids:
        raise bad_manifest("an evaluation must have at least one example")


def bad_manifest(fault: str, hint: str | None = None) -> HubProblem:
    """Return the problem of an invalid manifest."""
    return HubProblem(422, "bad_manifest", f"run.json: {fault}", hint=hint)


def find_pinned_version(session: Session, manifest: RunManifest) -> tuple[Environment, Version]:
    """Return the environment version that a manifest pins; raise if it is not published on this hub."""
    pin = manifest.environment
    if pin.owner is None or pin.version is None:
        raise HubProblem(
            422,
            "local_environment",
            f"the run used `{pin.name}` from a local folder, which nobody else can install",
            hint="run `wander publish`, evaluate `owner/name`, then post that run",
        )
    try:
        environment = environments.resolve(session, pin.owner, pin.name)
        version = environments.find_version(session, environment, pin.version)
    except HubProblem as problem:
        hint = problem.hint or "publish the environment to this hub first (`wander publish`)"
        raise HubProblem(422, problem.code, problem.detail, hint=hint) from problem
    label = f"{environment.label}@{version.version}"
    if version.deleted_at is not None:
        raise HubProblem(422, "version_deleted", f"`{label}` was deleted and accepts no new runs")
    wheels = [file.sha256 for file in version.files if file.kind == "wheel"]
    if pin.wheel_sha256 is not None and pin.wheel_sha256 not in wheels:
        raise HubProblem(
            409,
            "wheel_mismatch",
            f"the run used a wheel of `{label}` that differs from this hub's",
            hint=f"run `wander install {label}` from this hub and evaluate again",
        )
    locks = [document.sha256 for document in version.documents if document.kind == "lock"]
    if pin.lock_sha256 is not None and pin.lock_sha256 not in locks:
        raise HubProblem(
            409,
            "lock_mismatch",
            f"the run used a lock that differs from the locks of `{label}` on this hub",
            hint=f"run `wander install {label}` from this hub and evaluate again",
        )
    return environment, version


def protocol_digest(manifest: RunManifest) -> str:
    """Return the digest of everything that runs on one task set must share to be comparable."""
    protocol = {
        "arguments": manifest.environment.changed_arguments,
        "rollouts_per_example": manifest.rollouts_per_example,
        "max_tokens": manifest.sampling.max_tokens,
    }
    if manifest.players:  # runs against different opponents are not comparable
        protocol["players"] = {
            # The markers `weights` and `name` keep a name that looks like a digest apart from that digest.
            player: [pin.kind, "weights", pin.weights_sha256]
            if pin.weights_sha256
            else [pin.kind, "name", pin.name, *([pin.revision] if pin.revision else [])]
            for player, pin in manifest.players.items()
        }
    return hashlib.sha256(canonical_json(protocol).encode()).hexdigest()
