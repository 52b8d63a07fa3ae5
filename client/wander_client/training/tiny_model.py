"""Create an untrained tiny model for an environment, with a tokenizer trained on transcripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.environments.location import locate
from wander_client.environments.opening import open_environment
from wander_client.environments.sandbox import choose_policy, confines
from wander_client.errors import UsageError
from wander_client.models.reference import open_model
from wander_client.runs.lookup import run_folder

if TYPE_CHECKING:
    from wander.types import Message

    from wander_client.context import Invocation


@dataclass(frozen=True)
class Transcripts:
    """The source of transcripts: runs, or games to play."""

    runs: Sequence[str] = ()
    environment: str | None = None
    arguments: Mapping[str, Any] | None = None
    """Arguments of `load_environment`."""
    player: str | None = None
    """`scripted:MODULE:FUNCTION`, or None for random answers."""
    episodes: int = 200


async def make_tiny(
    context: Invocation,
    out: Path,
    source: Transcripts,
    *,
    seed: int,
    hidden: int,
    layers: int,
    vocabulary: int,
    characters: bool,
) -> int:
    """Write a model to a folder. Returns the number of transcripts that its tokenizer was trained on.

    Raises `UsageError` unless the transcripts come from exactly one source.
    """
    from wander.models.tiny import TinySize, create_tiny

    if (source.environment is None) == (not source.runs):
        raise UsageError(
            "transcripts must come from exactly one source",
            hint="pass either `--environment` or `--transcripts`",
        )
    size = TinySize.of_width(hidden, layers, vocabulary, characters=characters)
    texts: Sequence[Sequence[Message]] = (
        _read_transcripts(context, source.runs)
        if source.environment is None
        else await _play_transcripts(context, source.environment, source, seed)
    )
    context.output.note(f"creating a model from {len(texts)} transcripts")
    create_tiny(texts, out, seed=seed, size=size)
    return len(texts)


def model_facts(folder: Path) -> dict[str, Any]:
    """Return a model's folder, size and digest from its files, without loading it."""
    from wander.models.loading import weights_digest
    from wander.system.plain_files import open_file
    from wander.wire.models import CONFIG, WEIGHTS, count_parameters
    from wander.wire.untrusted_text import MODEL_CONFIG, read_json

    def read(name: str, start: int, length: int) -> bytes:
        with open_file(folder / name) as file:
            file.seek(start)
            return file.read(length)

    sizes = {file.name: file.stat().st_size for file in folder.glob(f"*{WEIGHTS}")}
    config = read_json(read(CONFIG, 0, MODEL_CONFIG.most_bytes + 1), MODEL_CONFIG)
    return {
        "path": str(folder.resolve()),
        "parameters": count_parameters(sizes, read),
        "tokens": config.get("vocab_size") if isinstance(config, dict) else None,
        "weights_sha256": weights_digest(folder),
    }


def _read_transcripts(context: Invocation, runs: Sequence[str]) -> list[list[Message]]:
    from wander.models.transcripts import ENOUGH_TRANSCRIPTS, transcript_of

    rollouts = (rollout for run in runs for rollout in run_folder(context, run).rollouts())
    return [transcript_of(rollout) for rollout in islice(rollouts, ENOUGH_TRANSCRIPTS)]


async def _play_transcripts(
    context: Invocation, environment: str, source: Transcripts, seed: int
) -> list[list[Message]]:
    from wander.models.transcripts import make_babbling_client, play_transcripts

    location, player = locate(context, environment), source.player
    client = open_model(context, player, location=location) if player else make_babbling_client(seed)
    policy = choose_policy(None, None, default=confines(context.settings, environment, player or ""))
    try:
        async with open_environment(context, location, source.arguments, sandbox=policy) as opened:
            with context.output.progress("playing", None, unit="transcripts") as bar:

                def played(done: int, total: int) -> None:
                    bar.total = total
                    bar.update(done)

                return await play_transcripts(
                    opened.handle, client, source.episodes, seed=seed, played=played
                )
    finally:
        await client.close()
