"""The process that compares mathematical expressions: it reads and writes one line of JSON per comparison.

A request is `{"answer": ..., "response": ...}`, and the reply is `{"equal": true}` or `{"error": "..."}`.
This process does not limit time: an expression can block the interpreter forever, so the other side kills the
process.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def equal(answer: str, response: str) -> bool:
    """Return whether two mathematical expressions (LaTeX or plain) are equal."""
    from math_verify import parse, verify

    gold, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (answer, response))
    return bool(gold and given and verify(gold, given, timeout_seconds=None))


def reply_to(line: str) -> dict[str, Any]:
    """Return the reply to a request.

    An expression that causes an error in the library is not just unequal.
    """
    request = json.loads(line)
    try:
        return {"equal": equal(request["answer"], request["response"])}
    except Exception as error:  # noqa: BLE001 - models may write anything; the caller gets the error
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Answer requests on standard input, after printing `{"ready": true}` once the library is loaded."""
    logging.disable(logging.CRITICAL)
    replies = sys.stdout
    sys.stdout = sys.stderr
    equal("1", "1")
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(reply_to(line)), file=replies, flush=True)


if __name__ == "__main__":
    main()
