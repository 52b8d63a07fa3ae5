"""The texts that explain the REPL to a recursive language model, and the parsing of its final answer."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from wander.envs.rlm.repl import CellResult
from wander.parsers import Parser
from wander.reasoning import message_text, read_reasoning
from wander.types import Messages

Interface = Literal["code_block", "tool"]
"""How the model runs code: in a block that starts with ```repl, or by calling the tool `repl`."""

BLOCK = re.compile(r"```[ \t]*(?:repl|python|py)[ \t]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
FINAL_VAR = re.compile(r"^[ \t]*FINAL_VAR\(\s*[\"'`]?(\w+)[\"'`]?\s*\)", re.MULTILINE)
FINAL = re.compile(r"^[ \t]*FINAL\(", re.MULTILINE)
CLOSING = re.compile(r"\A<final_answer>(.*)</final_answer>\Z", re.DOTALL)

REPL_TOOL = {
    "type": "function",
    "function": {
        "name": "repl",
        "description": "Run Python code in the REPL and read what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code"}},
            "required": ["code"],
            "additionalProperties": False,
        },
    },
}

CODE_BLOCK_HELP = """Write Python code in a block, and it is run:
```repl
print(len(context))
```"""
TOOL_HELP = "Call the tool `repl` with Python code, and it is run."
SUB_CALL_HELP = """
- `llm_query(prompt, context=None)` asks a language model and returns its answer as text. It sees only \
what you give it, so put the piece of the context it needs in the prompt, or pass it as `context`.
- `llm_query_batched(prompts, contexts=None)` asks several questions at the same time and returns the \
answers in order."""


def instructions(interface: Interface, output_chars: int, *, may_ask: bool) -> str:
    """Return the system message that explains the REPL."""
    how = CODE_BLOCK_HELP if interface == "code_block" else TOOL_HELP
    return f"""You answer a question about a context that may be too long to read at once. It is the \
variable `context` of a Python REPL, and you see only what you print. {how}
What the code prints is shown to you, at most {output_chars} characters of it. Variables stay from one \
piece of code to the next. Look at the context first, then search, split or summarise it with code.
Beside `context`, the REPL has:{SUB_CALL_HELP if may_ask else ""}
- `FINAL(answer)` and `FINAL_VAR("name")`, which give your final answer from code.
Outside of code, write FINAL(your answer) or FINAL_VAR(name of a variable) on a line of its own as soon \
as you know the answer. That ends your work."""


def context_description(context: Any) -> str:
    """Describe the type and size of `context`."""
    names: dict[type, str] = {str: "text", list: "list", dict: "dictionary"}
    kind = names.get(type(context), type(context).__name__)
    size = f"{len(context_text(context)):,} characters"
    if isinstance(context, list | dict):
        size = f"{len(context):,} items, {size} as JSON"
    return f"The variable `context` is a {kind} of {size}."


def context_text(context: Any) -> str:
    """Return a context as text: the text itself, or its JSON."""
    return context if isinstance(context, str) else json.dumps(context, ensure_ascii=False)


def code_blocks(text: str) -> list[str]:
    """Return the code blocks of a message that should be run."""
    return [block for block in BLOCK.findall(read_reasoning(text).outside) if block.strip()]


def final_text(text: str) -> str | None:
    """Return the answer in `FINAL(...)` outside of code, or None."""
    prose = BLOCK.sub("", read_reasoning(text).outside)
    opening, end = FINAL.search(prose), prose.rfind(")")
    if opening is None or end < opening.end():
        return None
    answer = prose[opening.end() : end].strip()
    quoted = len(answer) > 1 and answer[0] == answer[-1] and answer[0] in "\"'`"
    return answer[1:-1] if quoted else answer


def final_variable(text: str) -> str | None:
    """Return the name in `FINAL_VAR(...)` outside of code, or None."""
    match = FINAL_VAR.search(BLOCK.sub("", read_reasoning(text).outside))
    return match[1] if match else None


def make_closing_message(answer: str) -> dict[str, Any]:
    """Return a message that records a final answer not contained in any completion."""
    return {"role": "user", "content": f"<final_answer>{answer}</final_answer>"}


def cell_report(number: int, result: CellResult, cell_seconds: float) -> str:
    """Return the report on one cell for the model."""
    ended = {
        "ok": "finished",
        "error": "raised an exception",
        "timeout": f"stopped after {cell_seconds:g} seconds",
        "died": "ended the REPL's process",
    }[result.ended]
    lost = "; the REPL starts again, and only `context` is still there" if result.restarted else ""
    return f"cell {number} {ended}{lost}\n<output>\n{result.output.rstrip() or '(none)'}\n</output>"


class FinalAnswerParser(Parser):
    """Extracts the final answer of a recursive language model from its rollout."""

    def parse_answer(self, completion: Messages | str) -> Any | None:
        """Return the final answer, or None if the model gave none."""
        if isinstance(completion, str):
            answer = final_text(completion)
            return None if answer is None else self.parse(answer)
        if not completion:
            return None
        text = message_text(completion[-1])
        if completion[-1].get("role") == "assistant":
            answer = final_text(text)
        else:
            closing = CLOSING.match(text)
            answer = closing[1] if closing else None
        return None if answer is None else self.parse(answer)
