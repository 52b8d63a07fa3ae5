"""Keeps tokens out of logs: whoever puts one into an address or a name by mistake must not find it there."""

from __future__ import annotations

import logging
import re

from wander_hub.security import PREFIX

_SECRET = re.compile(rf"({PREFIX}[0-9A-Za-z]{{6}})[0-9A-Za-z]{{8,}}")
_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
_FORMATTER = logging.Formatter()


def without_secrets(text: str) -> str:
    """Return a text with tokens cut to what listings show of them, and without passwords in addresses."""
    return _PASSWORD.sub(r"\1...@", _SECRET.sub(r"\1...", text))


class HidesSecrets(logging.Filter):
    """Changes every record that passes, its arguments and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record through without secrets."""
        record.msg = _hidden(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(_hidden(one) for one in record.args)
        elif record.args:
            record.args = {key: _hidden(one) for key, one in record.args.items()}
        if record.exc_info:
            record.exc_text = without_secrets(_FORMATTER.formatException(record.exc_info))
        return True


def _hidden(value: object) -> object:
    """Numbers stay numbers, for `%d`; what is not a text shows itself only where a secret is in it."""
    if isinstance(value, str):
        return without_secrets(value)
    if value is None or isinstance(value, int | float):
        return value
    shown = str(value)
    return without_secrets(shown) if without_secrets(shown) != shown else value
