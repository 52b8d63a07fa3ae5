"""Virtual environments with published packages: one with the real library, one with Wander's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from wander_client.packages.uv import run_uv

ROOT = Path(__file__).resolve().parents[2]


def wheel_of(project: Path, out: Path) -> Path:
    """Build the wheel of a project."""
    run_uv(
        ["build", "--quiet", "--wheel", "--out-dir", str(out), str(project)],
        doing=f"building {project.name}",
    )
    return max(out.glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)


def environment_with(folder: Path, requirements: Sequence[str], overrides: Sequence[str] = ()) -> Path:
    """Make a virtual environment with these packages and return its interpreter."""
    python = folder / "bin" / "python"
    run_uv(["venv", "--quiet", "--python", sys.executable, str(folder)], doing="making the environment")
    overriding = folder / "overrides.txt"
    overriding.write_text("".join(f"{line}\n" for line in overrides))
    command = ["pip", "install", "--quiet", "--python", str(python)]
    run_uv([*command, "--override", str(overriding), *requirements], doing="installing packages")
    return python
