"""How the checks of the gate refuse a file, or flag it under an optional rule."""

from __future__ import annotations

from collections.abc import Mapping

from wander.wire import UploadWarning

from wander_hub.http.problems import HubProblem
from wander_hub.upload_rules import OPTIONAL, RULES, Action

_SHOWN_FINDINGS = 3


def refusal(code: str, detail: str, *, hint: str | None = None) -> HubProblem:
    """Return the error that refuses a file under one of the `RULES`."""
    rule = RULES[code]
    return HubProblem(rule.status, code, printable(detail), hint=hint or rule.remedy)


def printable(text: str) -> str:
    """Return the text as a single line that is safe in a terminal, even if a file's author wrote control
    characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Findings:
    """Collects findings of the optional rules; raises an error if the operator's policy refuses the file."""

    def __init__(self, policy: Mapping[str, Action] | None = None) -> None:
        self._policy = {**OPTIONAL, **(policy or {})}
        self._details: dict[str, list[str]] = {}

    def apply(self, code: str, detail: str) -> None:
        """Ignore or record a finding of an optional rule, or refuse, as the operator's policy says."""
        action = self._policy[code]
        if action == "refuse":
            raise refusal(code, detail)
        if action == "flag":
            self._details.setdefault(code, []).append(detail)

    def warnings(self) -> tuple[UploadWarning, ...]:
        """Return a warning for each rule, in the order of their first finding."""
        warnings: list[UploadWarning] = []
        for code, details in self._details.items():
            shown = "; ".join(printable(detail[:300]) for detail in details[:_SHOWN_FINDINGS])
            if (more := len(details) - _SHOWN_FINDINGS) > 0:
                shown += f"; and {more:,} more"
            warnings.append(UploadWarning(code=code, detail=shown, hint=RULES[code].remedy))
        return tuple(warnings)
