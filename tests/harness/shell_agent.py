"""A small agent program with a tool `bash`, and a project whose task it can play."""

from __future__ import annotations

import shlex
from pathlib import Path

from small_project import pyproject

PROGRAM = """
import json, os, subprocess, urllib.request
messages = [{"role": "user", "content": os.environ["WANDER_INSTRUCTION"]}]
parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
while True:
    body = json.dumps({"model": "any", "messages": messages, "tools": tools}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append({name: message[name] for name in ("role", "content", "tool_calls") if name in message})
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout})
"""
COMMAND = f"python3 -c {shlex.quote(PROGRAM)}"
MODULE = '''
"""Asks for a word in a file."""

from wander import Rubric
from wander.boxes import BoxLimits, BoxSpec
from wander.envs import AgentEnv

BOX = BoxSpec(limits=BoxLimits(memory_mb=3072, processes=512))


async def solved(box) -> float:
    """1 if the file has the word, in a new box."""
    return float((await box.exec("cat out")).output == "done\\n")


def load_environment(agent: str | None = None, deterministic: bool | None = None):
    rows = [{"question": f"Write done into the file out ({number})."} for number in range(2)]
    rubric = Rubric([solved])
    return AgentEnv(
        rows, rubric=rubric, box=BOX, agent=agent, deterministic=deterministic, name="write-done"
    )
'''


def write_project(folder: Path) -> Path:
    """Write the project `write-done`, whose task is to write a file."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(pyproject("write-done"))
    (folder / "README.md").write_text("# write-done\n\nThe model writes a word into a file.\n")
    (folder / "write_done.py").write_text(MODULE)
    return folder
