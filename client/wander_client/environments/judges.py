"""The judges that a replay asks again, from a JSON file: `{"MODEL": {"base_url": ..., "api_key": ...}}`."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError
from wander.types import Record, first_fault

from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.evals.judges import JudgePanel


class JudgeEndpoint(Record):
    """Where a judge answers."""

    base_url: str
    """An OpenAI-compatible endpoint."""
    api_key: str | None = None


@dataclass(frozen=True)
class JudgeFile:
    """Judges by their models' names, and how many rollouts they are asked about."""

    endpoints: dict[str, JudgeEndpoint]
    sample: int

    async def enter(self, stack: contextlib.AsyncExitStack) -> JudgePanel:
        """Return the judges, whose connections the stack closes."""
        from wander.clients.openai import OpenAIClient
        from wander.evals.judges import JudgePanel

        clients = {
            name: OpenAIClient(name, one.base_url, one.api_key) for name, one in self.endpoints.items()
        }
        for client in clients.values():
            stack.push_async_callback(client.close)
        return JudgePanel(clients, self.sample)


def read_judges(path: Path, sample: int) -> JudgeFile:
    """Read the file, or standard input for `-`; raises `UsageError` when it is none of judges."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        endpoints = TypeAdapter(dict[str, JudgeEndpoint]).validate_json(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}", hint="`--judges FILE`") from error
    except ValidationError as error:
        raise UsageError(
            f"`{path}` names no judges: {': '.join(first_fault(error))}",
            hint='write `{"MODEL": {"base_url": "https://api.example.org/v1", "api_key": "..."}}`',
        ) from error
    return JudgeFile(endpoints, sample)
