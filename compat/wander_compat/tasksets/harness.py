"""The default program of a `verifiers.v1` task set: a chat with the task's tools, or with `bash` in a box.

It is imported where the real library is installed, and behaves like the library's own `null` harness.
However, a task without tools is played in this process, which the library allows, because a program per
rollout costs 1.5 s of CPU. With tools, the library's program runs. In a box, the model gets the tool `bash`
of the library's `bash` harness, which is the library's default.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType
from typing import Any

NAME = "wander_chat"
"""Id of the harness, which the library imports as a module."""

BASH_PROMPT = "You are a coding agent. You have access to a bash tool for running shell commands."
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command and return its combined stdout and stderr.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The bash command to run."}},
            "required": ["command"],
        },
    },
}
UNKNOWN_TOOL = "error: unknown tool {name!r}"


def chat_harness() -> str:
    """Register the harness with the library, and return its id."""
    if NAME not in sys.modules:
        sys.modules[NAME] = _module()
    return NAME


def _module() -> Any:
    null = importlib.import_module("verifiers.v1.harnesses.null").NullHarness
    result = importlib.import_module("verifiers.v1.runtimes").ProgramResult
    task_error = importlib.import_module("verifiers.v1.errors").TaskError
    to_wire = importlib.import_module("verifiers.v1.dialects.chat").message_to_wire

    class ChatHarness(null):  # type: ignore[misc, valid-type]
        """Answers a task with conversation only."""

        async def setup(self, runtime: Any) -> None:
            """Do nothing, because the program's packages are those of this interpreter."""

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any = None,
            **options: Any,
        ) -> Any:
            """Play one segment of the conversation."""
            in_box = hasattr(runtime, "box")
            if mcp_urls and in_box:
                raise task_error("a task that has tool servers and needs a container cannot be played")
            if mcp_urls:
                task_data = () if data is None else (data,)
                whole = (ctx, trace, runtime, endpoint, secret, mcp_urls, *task_data)
                return await super().launch(*whole, **options)
            data = trace.task.data if data is None else data  # before 0.3, the trace contains it
            system, prompt = self.resolve_prompt(data)
            system = "\n\n".join(text for text in (BASH_PROMPT if in_box else None, system) if text)
            messages = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [to_wire(message) for message in prompt or []]
            shell = runtime if in_box else None
            failed = await _chat(f"{endpoint}/chat/completions", secret, ctx.model, messages, shell)
            return result(exit_code=1 if failed else 0, stdout="", stderr=failed)

    module = ModuleType(NAME)
    module.ChatHarness = ChatHarness  # type: ignore[attr-defined]
    module.__all__ = ["ChatHarness"]  # type: ignore[attr-defined]
    ChatHarness.__module__ = NAME
    return module


async def _chat(url: str, secret: str, model: str, messages: list[dict[str, Any]], shell: Any) -> str:
    """Call the model until its answer lacks a tool call. Returns an error or an empty text.

    The tool `bash` runs commands in `shell`, if it is not None.
    """
    import aiohttp

    headers = {"authorization": f"Bearer {secret}"}
    timeout = aiohttp.ClientTimeout(total=None)
    offered = {} if shell is None else {"tools": [BASH]}
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        while True:
            async with session.post(url, json={"model": model, "messages": messages, **offered}) as answer:
                if answer.status != 200:
                    return f"the model's endpoint answered {answer.status}: {await answer.text()}"
                reply = (await answer.json())["choices"][0]["message"]
            messages.append({name: value for name, value in reply.items() if value is not None})
            if not reply.get("tool_calls"):
                return ""
            for call in reply["tool_calls"]:
                content = await _run_tool(call["function"], shell)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def _run_tool(function: dict[str, Any], shell: Any) -> str:
    if shell is None or function["name"] != "bash":
        return UNKNOWN_TOOL.format(name=function["name"])
    try:
        command = json.loads(function["arguments"])["command"]
    except (ValueError, TypeError, KeyError):
        command = None
    if not isinstance(command, str):
        return "error: the arguments must be a JSON object with the text `command`"
    return str(await shell.run_command(command))
