"""The kinds of environment that `wander new` can start, each with a folder of templates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What one kind is, and what its example environment does."""

    line: str
    """One line of help."""
    summary: str
    """Description of the package that is written."""
    extra: str = ""
    """Extra of wander-sdk that it needs."""

    options: str = ""
    """What `wander eval` needs beside the environment and the model."""

    @property
    def requirement(self) -> str:
        """The requirement on the SDK, as it stands in the package's dependencies."""
        return f"wander-sdk[{self.extra}]>=0.1" if self.extra else "wander-sdk>=0.1"


JUDGE = " --judge-model NAME --judge-base-url URL"
KINDS = {
    "single-turn": Kind("one question, one answer", "Add two numbers."),
    "multi-turn": Kind("a game or a conversation, turn by turn", "Guess a number that is higher or lower."),
    "tool": Kind("the model calls Python functions", "Look prices up and add them."),
    "stateful-tool": Kind(
        "tools that work on the rollout's own state", "Move money until all have the same."
    ),
    "mcp": Kind("the tools of an MCP server", "Ask a library about its books over MCP.", "mcp"),
    "rlm": Kind("a context too long to read, worked on with code", "Count what a long log reports."),
    "group": Kind("several environments mixed by weight", "Add numbers and spell words backwards."),
    "judge": Kind(
        "free text that a judge model scores", "Answer why, and let a judge compare.", options=JUDGE
    ),
}


def kinds_help() -> str:
    """Return the kinds, one a line, aligned."""
    width = max(map(len, KINDS))
    return "\n".join(f"  {name:<{width}}  {kind.line}" for name, kind in KINDS.items())
