"""Writes Harbor task folders for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TASK_TOML = """\
schema_version = "1.4"

[task]
name = "acme/{name}"

[metadata]
difficulty = "easy"

[environment]
network_mode = "no-network"
workdir = "/app"
"""
TEST_SH = """\
#!/bin/bash
if [ "$(cat /app/hello.txt)" = "Hello, world!" ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""
FILES = {
    "instruction.md": "Write `Hello, world!` to /app/hello.txt.\n",
    "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY notes.txt .\n",
    "environment/notes.txt": "A greeting is missing.\n",
    "tests/test.sh": TEST_SH,
    "solution/solve.sh": "#!/bin/bash\necho 'Hello, world!' > hello.txt\n",
}


def write_task(
    folder: Path, changes: Mapping[str, str | None] | None = None, *, toml: str | None = None
) -> Path:
    """Write a task that asks for a file with a greeting. `changes` replaces files, or removes them (None)."""
    toml = TASK_TOML.format(name=folder.name) if toml is None else toml
    for name, text in {"task.toml": toml, **FILES, **(changes or {})}.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder
