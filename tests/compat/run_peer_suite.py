"""Run upstream's own tests against `wander_compat.verifiers`.

    python tests/compat/run_peer_suite.py [--keep FOLDER] [pytest arguments]

Downloads the source distribution of verifiers 0.1.14 (its tests only are used), makes a virtual environment
with this checkout's SDK, `wander-compat` and our `verifiers` in it, and runs the 14 files that touch the
public API. Needs a package index; prints pytest's result and exits with its status.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "verifiers==0.1.14"
FILES = (
    "parser", "xml_parser", "think_parser", "maybe_think_parser", "rubric", "rubric_group", "singleturn_env",
    "multiturn_env", "tool_env", "stateful_tool_env", "env_group", "gym_env", "math_rubric",
    "decorator_ranks",
)  # fmt: skip
SUPPORT = ("__init__.py", "conftest.py")


def fetched(folder: Path) -> Path:
    """Download the source distribution and unpack its tests; return the folder that holds `tests`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), SOURCE], check=True)
    wanted = {*SUPPORT, *(f"test_{name}.py" for name in FILES)}
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        for member in archive.getmembers():
            parts = Path(member.name).parts
            if len(parts) == 3 and parts[1] == "tests" and parts[2] in wanted:
                target = folder / "suite" / "tests" / parts[2]
                target.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                target.write_bytes(source.read())
    return folder / "suite"


def virtual_environment(folder: Path) -> Path:
    """Make a virtual environment with our packages and pytest; return its interpreter."""
    sys.path.insert(0, str(ROOT / "client"))
    from wander_client.packages.uv import run_uv

    python = folder / "venv" / "bin" / "python"
    place = ["venv", "--clear", "--python", sys.executable, str(folder / "venv")]
    run_uv(place, doing="making the environment")
    ours = [str(ROOT / each) for each in ("sdk", "compat", "compat/shim")]
    packages = [*ours, "pytest>=8.4", "pytest-asyncio>=1.2"]
    command = ["pip", "install", "--python", str(python), *packages]
    os.environ["UV_NO_BUILD"] = "0"  # ours are folders
    run_uv(command, doing="installing the packages")
    return python


def run(python: Path, suite: Path, arguments: list[str]) -> int:
    """Run the suite; return pytest's exit status."""
    configuration = suite / "pytest.ini"
    configuration.write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    files = [f"tests/test_{name}.py" for name in FILES]
    command = [str(python), "-m", "pytest", "-q", "-c", str(configuration), "--rootdir", str(suite)]
    return subprocess.run([*command, *files, *arguments], cwd=suite).returncode


def main() -> int:
    """Fetch, install, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    given, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="wander-peer-") as temporary:
        folder = (given.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return run(virtual_environment(folder), fetched(folder), arguments)
        except Exception as error:
            print(getattr(error, "detail", None) or "", file=sys.stderr)
            raise


if __name__ == "__main__":
    sys.exit(main())
