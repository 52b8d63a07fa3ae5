"""A task with two broken files, and a scripted model that repairs them with the shell tool of any agent."""

from __future__ import annotations

import json
from typing import Any

from wander import Rubric
from wander.boxes import Box
from wander.clients.base import ModelRequest
from wander.envs import AgentEnv
from wander.types import Message, State

FILES = {
    "/work/stats.py": "def mean(values):\n    return sum(values) / (len(values) + 1)\n",
    "/work/report.py": "from stats import mean\n\n\ndef report(values):\n    return f'mean {mean(value)}'\n",
}
CHECK = "from report import report; assert report([1, 2, 6]) == 'mean 3.0'"
STEPS = (
    "cat stats.py report.py",
    "sed -i 's/ (len(values) + 1)/ len(values)/' stats.py; sed -i 's/mean(value)/mean(values)/' report.py",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)
SHELLS = {"exec_command": "cmd", "Bash": "command", "bash": "command"}
"""Argument with the command, by the name of the shell tool."""


async def repaired(box: Box) -> float:
    """1 if both files are repaired."""
    return float((await box.exec(["python3", "-c", CHECK])).exit_status == 0)


class RepairEnv(AgentEnv):
    async def setup_box(self, box: Box, state: State) -> None:
        await box.upload(FILES)


def repair_env(**options: Any) -> RepairEnv:
    rows = [{"question": "Repair the two Python files in /work."}]
    return RepairEnv(eval_dataset=rows, rubric=Rubric([repaired]), name="repair", **options)


def repair(request: ModelRequest) -> Message | str:
    """Run the next step with the shell tool, or say that it is done."""
    tools = {tool["function"]["name"]: tool["function"] for tool in request.tools or ()}
    shell = next((name for name in tools if name in SHELLS), None)
    step = sum(message["role"] == "assistant" for message in request.messages)
    if shell is None or step >= len(STEPS):
        return "Both files are repaired."
    arguments = {SHELLS[shell]: STEPS[step]}
    if "description" in tools[shell]["parameters"]["properties"]:
        arguments["description"] = "step"
    function = {"name": shell, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{step}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "reasoning_content": f"step {step}", "tool_calls": [call]}
