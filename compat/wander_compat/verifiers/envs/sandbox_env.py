"""Environments whose tools run code in a process on this machine instead of a rented sandbox.

The process has limits and no network, and runs under bubblewrap if that is installed. Settings of the rented
sandbox, such as its image, become attributes without an effect.
"""

from __future__ import annotations

import json
from typing import Any, TypedDict

from wander.envs.rlm.repl import Query, Repl, ReplLimits
from wander.errors import SandboxError as ReplError

from wander_compat.verifiers.decorators import cleanup, teardown
from wander_compat.verifiers.envs.tool_env import StatefulToolEnv
from wander_compat.verifiers.errors import SandboxError
from wander_compat.verifiers.types import State

_BASH = """\
import subprocess as _subprocess
_done = _subprocess.run(
    ["bash", "-c", {command}], cwd={folder}, capture_output=True, text=True, errors="replace"
)
print(_done.stdout, end="")
if _done.stderr:
    print(("\\n" if _done.stdout else "") + "stderr:\\n" + _done.stderr, end="")
"""


class CreateSandboxRequest:
    """Settings of a rented sandbox. They become attributes without an effect."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)


AdvancedConfigs = CreateSandboxRequest


class SandboxState(TypedDict):
    """State of a rollout's sandbox."""

    ready: bool


async def _nobody(queries: list[Query]) -> str:
    return "no model can be asked from here"


class SandboxEnv(StatefulToolEnv):
    """Offers the tool `bash`. Each command runs in the rollout's own sandbox."""

    outside = True
    """Code may read the clock and the machine, so rollouts are not declared deterministic."""

    def __init__(
        self,
        timeout_per_command_seconds: int = 30,
        memory_gb: int = 2,
        stop_errors: list[type[Exception]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.timeout_per_command_seconds = timeout_per_command_seconds
        self.repl_limits = ReplLimits(
            cell_seconds=float(timeout_per_command_seconds), memory_mb=int(memory_gb * 1024)
        )
        self.sandboxes: dict[str, Repl] = {}
        super().__init__(stop_errors=stop_errors or [SandboxError], **kwargs)
        self.add_tool(self.bash, args_to_skip=["sandbox_id", "sandbox_state", "working_dir"])

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Prepare the rollout's sandbox. Its process starts with the first command."""
        sandbox_id = f"local-{id(state):x}"
        self.sandboxes[sandbox_id] = Repl(self.repl_limits, sandbox="auto")
        state["sandbox_id"] = sandbox_id
        state["sandbox_state"] = {"ready": True}
        return await super().setup_state(state, **kwargs)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Pass the rollout's sandbox to `bash`."""
        if tool_name != "bash":
            return tool_args
        own = {"sandbox_id": state["sandbox_id"], "sandbox_state": state["sandbox_state"]}
        return {**tool_args, **own, "working_dir": state.get("working_dir")}

    async def bash(
        self,
        command: str,
        sandbox_id: str,
        sandbox_state: dict[str, Any] | None = None,
        working_dir: str | None = None,
    ) -> str:
        """Execute `command` inside the sandbox."""
        code = _BASH.format(command=repr(command), folder=repr(working_dir))
        return await self.run_code(code, sandbox_id)

    async def run_code(self, code: str, sandbox_id: str) -> str:
        """Run Python code in a rollout's sandbox and return its output. Raises `SandboxError`."""
        try:
            result = await self.sandboxes[sandbox_id].run(code, _nobody)
        except ReplError as error:
            raise SandboxError(str(error)) from error
        if result.ended == "timeout":
            return f"{result.output}\nError: timed out after {self.timeout_per_command_seconds} s".strip()
        if result.ended == "died":
            return f"{result.output}\nError: the process was killed; it may have used too much memory".strip()
        return result.output.rstrip() or "(no output)"

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """End the rollout's sandbox."""
        repl = self.sandboxes.pop(state.get("sandbox_id", ""), None)
        if repl is not None:
            await repl.close()

    @teardown
    async def teardown_sandboxes(self) -> None:
        """End all remaining sandboxes."""
        for sandbox_id in list(self.sandboxes):
            await self.sandboxes.pop(sandbox_id).close()


class PythonEnv(SandboxEnv):
    """Offers the tool `python`, whose variables live as long as the rollout.

    Packages come from the environment's own virtual environment, so `pip_install_packages` must be among its
    dependencies.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remove_tool(self.bash)
        self.add_tool(self.python, args_to_skip=["sandbox_id"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Pass the rollout's sandbox to `python`."""
        if tool_name != "python":
            return super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)
        return {**tool_args, "sandbox_id": state["sandbox_id"]}

    async def python(self, code: str, sandbox_id: str) -> str:
        """Execute `code` inside a persistent Python REPL; the value of a last expression is shown."""
        return await self.run_code(_print_last(code), sandbox_id)


def _print_last(code: str) -> str:
    """Return code that also prints its last expression, like an interactive interpreter."""
    text = json.dumps(code)
    return (
        "import ast as _ast\n"
        f"_tree = _ast.parse({text})\n"
        "_last = _tree.body.pop() if _tree.body and isinstance(_tree.body[-1], _ast.Expr) else None\n"
        'exec(compile(_tree, "<cell>", "exec"), globals())\n'
        "if _last is not None:\n"
        '    _value = eval(compile(_ast.Expression(_last.value), "<cell>", "eval"), globals())\n'
        "    if _value is not None:\n"
        "        print(repr(_value))\n"
    )
