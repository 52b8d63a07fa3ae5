"""Finished runs of a small environment, written without an evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from command_line import make_wheel
from wander.evals.stats.summary import summarize
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_manifest
from wander.types import EnvironmentInfo, Example, RewardFunctionInfo, Rollout, Turn
from wander.wire import EnvironmentPin, ModelPin


def write_run(
    place: Path,
    *,
    rewards: list[float],
    owner: str | None = "admin",
    said: str | Iterator[str] | None = None,
    model: str = "scripted:say",
    arguments: dict[str, Any] | None = None,
    version: str = "0.1.0",
    strata: list[int] | None = None,
    split_size: int | None = None,
    endings: tuple[str, ...] = (),
) -> Path:
    """Write a finished run of `say-env` with one example per reward and the given replies.

    By default, replies differ from those of all other runs. `endings`: stop reasons of the first rollouts.
    """
    info = EnvironmentInfo(
        name="say-env",
        kind="single_turn",
        reward_functions=[RewardFunctionInfo(name="right", weight=1.0)],
        eval_examples=split_size,
    )
    wheel = make_wheel(place.parent.parent, version=version)
    pin = EnvironmentPin(
        owner=owner,
        name="say-env",
        version=version if owner else None,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest() if owner else None,
        path=None if owner else "/somewhere",
        arguments=arguments or {},
        info=info,
    )
    examples = [
        Example(
            example_id=str(n),
            index=n,
            seed=n,
            prompt=[{"role": "user", "content": f"say {n}"}],
            stratum=strata[n] if strata else None,
        )
        for n in range(len(rewards))
    ]
    manifest = new_manifest(
        environment=pin, model=ModelPin(name=model, kind="ScriptedClient"), examples=examples
    )
    folder = RunFolder.create(place, manifest)
    for example, reward in zip(examples, rewards, strict=True):
        message = {"role": "assistant", "content": next(said) if isinstance(said, Iterator) else said or "1"}
        if said is None:  # a board merges runs with equal replies into one entry
            message["reasoning_content"] = f"thought in {manifest.run_id}"
        folder.append(
            Rollout(
                example_id=example.example_id,
                index=0,
                seed=example.seed,
                prompt=example.prompt,
                completion=[message],
                turns=[Turn(message=message, context_messages=1)],
                stop_reason=dict(enumerate(endings)).get(example.index, "max_turns_reached"),
                reward=reward,
                metrics={"right": reward},
                started_at=datetime.now(UTC).isoformat(),
            )
        )
    folder.finish(summarize(folder.rollouts(), expected=len(rewards)))
    return place
