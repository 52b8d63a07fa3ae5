"""The hub's log on standard error. Every line has a time, a level and the id of its request."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from wander_hub.http.middleware import CURRENT_REQUEST
from wander_hub.security import without_secrets


def log_to_stderr(style: str = "text") -> None:
    """Log to standard error as text or JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)


class LogFormatter(logging.Formatter):
    """Formats a record so that each of its lines, including a traceback's, starts with time, level and
    request id.

    Tokens are removed, because users may put one into an address or a name by mistake.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record; `-` stands for the request id outside of requests."""
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = f"{stamp} {record.levelname} {CURRENT_REQUEST.get()} "
        text = without_secrets(super().format(record))
        return "\n".join(head + line for line in text.splitlines() or [""])


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object on one line, including its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "request": CURRENT_REQUEST.get(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(fields)
