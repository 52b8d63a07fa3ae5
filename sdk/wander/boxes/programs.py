"""Agent programs: their versions, their installation on the host, and how they are started in a box.

A program is installed once per machine into a cached folder, which boxes show read-only in `/opt`. The
versions are pinned here, because a program's prompts and tools change the results of a rollout.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wander.boxes.base import PORT
from wander.errors import ConfigError, EnvironmentFault, did_you_mean
from wander.system.cache_folder import cache_folder

FOLDER = "/opt"
"""Folder in a box with the installed programs."""
INSTRUCTION = "WANDER_INSTRUCTION"
"""Environment variable with the task for the program."""
ENDPOINT = f"http://127.0.0.1:{PORT}"
_MODEL = "policy"
_SECONDS = 900.0
_installing = threading.Lock()


@dataclass(frozen=True)
class AgentProgram:
    """A program that works on a task by calling a model."""

    name: str
    command: str
    """Shell command that starts it. `$WANDER_INSTRUCTION` is the task."""
    registry: Literal["npm", "PyPI"] | None = None
    """Registry that it is installed from; None for a program that is already in the box."""
    package: str = ""
    version: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Configuration files by absolute path in the box."""
    environment: Mapping[str, str] = field(default_factory=dict)
    offers_tools: bool = True
    """Whether the program's main conversation offers tools to the model. If so, earlier calls without tools
    do not belong to it: they may ask for a title, for example."""

    def describe(self) -> dict[str, str]:
        """Return what identifies the program in a rollout's record."""
        command = hashlib.sha256(self.command.encode()).hexdigest()
        facts = {"name": self.name, "package": self.package, "version": self.version}
        return {name: value for name, value in {**facts, "command_sha256": command}.items() if value}


_CODEX = f"""
model = "{_MODEL}"
model_provider = "wander"
[model_providers.wander]
name = "wander"
base_url = "{ENDPOINT}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
_OPENCODE = {
    "autoupdate": False,
    "share": "disabled",
    "model": f"wander/{_MODEL}",
    "small_model": f"wander/{_MODEL}",
    "provider": {
        "wander": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "wander",
            "options": {"baseURL": f"{ENDPOINT}/v1", "apiKey": "wander"},
            "models": {_MODEL: {"name": _MODEL}},
        }
    },
}
PROGRAMS = {
    program.name: program
    for program in (
        AgentProgram(
            "codex",
            f"{FOLDER}/codex/node_modules/@openai/codex-linux-*/vendor/*/bin/codex exec --skip-git-repo-check"
            f' --dangerously-bypass-approvals-and-sandbox "${INSTRUCTION}"',
            registry="npm",
            package="@openai/codex",
            version="0.171.0",
            files={"/root/.codex/config.toml": _CODEX},
        ),
        AgentProgram(
            "claude-code",
            f"{FOLDER}/claude-code/node_modules/.bin/claude --model {_MODEL}"
            f' --dangerously-skip-permissions -p "${INSTRUCTION}"',
            registry="npm",
            package="@anthropic-ai/claude-code",
            version="2.1.332",
            environment={
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "IS_SANDBOX": "1",  # otherwise it refuses to skip permissions as root
            },
        ),
        AgentProgram(
            "opencode",
            f'{FOLDER}/opencode/node_modules/.bin/opencode run "${INSTRUCTION}"',
            registry="npm",
            package="opencode-ai",
            version="1.18.33",
            files={"/root/.config/opencode/opencode.json": json.dumps(_OPENCODE)},
            environment={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
        ),
        AgentProgram(
            "mini-swe-agent",
            f"PYTHONPATH={FOLDER}/mini-swe-agent/site python3 -m minisweagent.run.mini --yolo"
            f' --exit-immediately --model openai/{_MODEL} --task "${INSTRUCTION}"',
            registry="PyPI",
            package="mini-swe-agent",
            version="2.4.6",
            environment={"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"},
        ),
    )
}
"""Programs by name."""


def program_named(name: str) -> AgentProgram:
    """Return a program by its name, or for a shell command a program without a name.

    Raises `ConfigError` for a word that is not a known name.
    """
    if name in PROGRAMS:
        return PROGRAMS[name]
    if not name.strip() or (len(name.split()) == 1 and "/" not in name):
        raise ConfigError(
            f"there is no agent program `{name}`",
            hint=did_you_mean(name, PROGRAMS)
            or f"known programs are {', '.join(PROGRAMS)}, or pass a command",
        )
    return AgentProgram("command", name, offers_tools=False)


def install(name: str) -> Path:
    """Return the folder of an installed program, and install it the first time, which takes seconds.

    Raises `EnvironmentFault` if it cannot be installed.
    """
    program = PROGRAMS.get(name)
    if program is None:
        raise EnvironmentFault(f"there is no agent program `{name}` to install")
    folder = cache_folder() / "programs" / f"{program.name}-{program.version}"
    with _installing:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Renamed at the end, so that no box shows a part of it.
            made = Path(tempfile.mkdtemp(prefix=f".{program.name}-", dir=folder.parent))
            try:
                _run_installer(program, made)
                made.chmod(0o755)
                if not folder.is_dir():
                    made.rename(folder)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return folder


def _run_installer(program: AgentProgram, folder: Path) -> None:
    if program.registry == "npm":
        wanted, needed = f"{program.package}@{program.version}", "install Node.js with npm"
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), wanted]
    else:
        wanted, needed = f"{program.package}=={program.version}", "run `pip install uv`"
        uv = Path(sys.executable).with_name("uv")
        command = [str(uv) if uv.exists() else "uv", "pip", "install", "--target", str(folder / "site")]
        # Boxes that show this system's folders run the program with the system's Python.
        command += ["--python", "/usr/bin/python3", wanted]
    failed = f"the agent program `{program.name}` cannot be installed"
    try:
        ran = subprocess.run(  # noqa: S603 - a pinned program of this module
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise EnvironmentFault(f"{failed}: `{command[0]}` is not on this machine", hint=needed) from None
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"{failed}: it took over {_SECONDS:.0f} s") from None
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise EnvironmentFault(f"{failed}: {said[-1] if said else 'no reason given'}")
