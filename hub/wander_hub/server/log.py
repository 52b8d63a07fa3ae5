"""The hub's log on standard error: every line with its time, its level and the request that it is about."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from wander_hub.http.middleware import CURRENT_REQUEST
from wander_hub.security import without_secrets


def log_to_stderr(style: str = "text") -> None:
    """Log there, where everything but data goes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)


class LogFormatter(logging.Formatter):
    """Writes lines that each can be searched for: those of a traceback, too, begin with time and request.

    Whoever puts a token into an address or a name by mistake must not find it there.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's lines; `-` stands for what is about no request."""
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = f"{stamp} {record.levelname} {CURRENT_REQUEST.get()} "
        text = without_secrets(super().format(record))
        return "\n".join(head + line for line in text.splitlines() or [""])


class JsonFormatter(logging.Formatter):
    """Writes each record as one object on one line, a traceback within it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "request": CURRENT_REQUEST.get(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if record.exc_info:
            told["traceback"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(told)
