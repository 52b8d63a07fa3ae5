"""The process that compares mathematical expressions: one JSON line in, one out, until its input ends.

A request is `{"answer": ..., "response": ...}`, the reply `{"equal": true}` or `{"error": "..."}`. There are
no time limits in here: an expression can hold the interpreter for good, so the other side kills the process.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def equal(answer: str, response: str) -> bool:
    """Tell whether two mathematical expressions, LaTeX or plain, are the same."""
    from math_verify import parse, verify

    gold, found = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (answer, response))
    return bool(gold and found and verify(gold, found, timeout_seconds=None))


def reply_to(line: str) -> dict[str, Any]:
    """Return the reply to one request; an expression that breaks the library is an error, not unequal."""
    request = json.loads(line)
    try:
        return {"equal": equal(request["answer"], request["response"])}
    except Exception as error:  # noqa: BLE001 - the library meets whatever a model wrote; the caller is told
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Answer requests on standard input; says `{"ready": true}` once the library is loaded."""
    logging.disable(logging.CRITICAL)
    replies = sys.stdout
    sys.stdout = sys.stderr
    equal("1", "1")
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(reply_to(line)), file=replies, flush=True)


if __name__ == "__main__":
    main()
