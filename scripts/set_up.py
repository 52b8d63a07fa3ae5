"""Prepares `.venv`. `make setup` runs this with the machine's `python3`.

It only needs Python 3.11+ with pip. It creates the virtual environment, installs uv into it, and then
installs every distribution of the workspace (editable) at the versions of `constraints.txt`. uv does not read
pip's configuration, so pip's indexes and link folders are passed on to it. If pip is configured to find a CPU
build of PyTorch, that build is installed. `TORCH_BACKEND=cpu make setup` requests one explicitly. Without a C
compiler, the one extra that needs it is left out.

A stamp in `.venv` makes a second run immediate. `--lock` resolves `constraints.txt` again instead.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".wander-setup"
CONSTRAINTS = ROOT / "constraints.txt"
UNLOCKED_EXTRAS = {"vllm", "rg", "ta", "inspect", "openenv"}
"""Extras that cannot share one lock with the others: vLLM pins its own PyTorch (a CUDA build), Inspect an
fsspec, and OpenEnv a fastmcp. The other two exist only for published environments that request them."""
COMPILED_EXTRA = "reasoning-gym"
"""Extra that needs a C compiler, because reasoning-gym requires pycosat, which is published only as C
source."""


class SetupFailed(Exception):
    """A step failed. The message says which one."""


def members() -> list[Path]:
    """Return the folders of the workspace's distributions, sdk first."""
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
    folders = [
        Path(path) for pattern in workspace["members"] for path in sorted(glob.glob(str(ROOT / pattern)))
    ]
    return [path for path in folders if (path / "pyproject.toml").is_file()]


def extras(member: Path) -> list[str]:
    """Return the extras of a distribution that share the lock."""
    project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    return sorted(set(project.get("optional-dependencies", {})) - UNLOCKED_EXTRAS)


def distribution_name(member: Path) -> str:
    """Return the name of a member from its pyproject.toml."""
    name: str = tomllib.loads((member / "pyproject.toml").read_text())["project"]["name"]
    return name


def can_compile() -> bool:
    """Return whether this machine can build Python extensions: it has a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(shlex.split(compiler)[0]) is not None and headers.is_file()


def fingerprint() -> str:
    """Return a digest of everything that determines the content of `.venv`."""
    machine = f"{ROOT}\n{sys.version}\n{os.environ.get('TORCH_BACKEND', '')}\n{can_compile()}\n"
    digest = hashlib.sha256(machine.encode())
    files = [Path(__file__), CONSTRAINTS, ROOT / "pyproject.toml"]
    for path in files + [member / "pyproject.toml" for member in members()]:
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(command: list[str], what: str) -> None:
    """Run a step. Raises an error with its name if it fails."""
    print(f"setup: {what}", flush=True)
    if subprocess.run(command, cwd=ROOT).returncode:
        raise SetupFailed(f"{what} failed: `{' '.join(command)}`")


def pip_settings() -> dict[str, list[str]]:
    """Return pip's configured values of every option. Environment variables precede files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout
    settings: dict[str, dict[str, list[str]]] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        settings.setdefault(option, {})[section] = ast.literal_eval(value).split()
    ranked = ["global", "install", ":env:"]
    return {
        option: values[max(values, key=lambda section: ranked.index(section) if section in ranked else -1)]
        for option, values in settings.items()
    }


def index_arguments() -> list[str]:
    """Return pip's indexes and link folders as options for uv, which does not read pip's configuration."""
    settings = pip_settings()
    arguments: list[str] = []
    for option in ("index-url", "extra-index-url", "find-links"):
        for value in settings.get(option, []):
            arguments += [f"--{option}", value]
    if "extra-index-url" in settings:
        # pip takes the best version of all indexes, but uv by default only searches the first with the name
        arguments += ["--index-strategy", "unsafe-best-match"]
    if settings.get("no-index", [""])[0].lower() in {"1", "true", "yes", "on"}:
        arguments.append("--no-index")
    return arguments


def make_virtual_environment() -> None:
    """Create `.venv` with uv in it, using the machine's pip, or the venv's own if Python has no pip."""
    if not PYTHON.exists() or subprocess.run([str(PYTHON), "-c", ""]).returncode:
        outer_pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True)
        without_pip = [] if outer_pip.returncode else ["--without-pip"]
        create = [sys.executable, "-m", "venv", "--clear", *without_pip, str(VENV)]
        run(create, "make the virtual environment")
    if (VENV / "bin" / "uv").exists():
        return
    inner_pip = subprocess.run([str(PYTHON), "-m", "pip", "--version"], capture_output=True)
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    if inner_pip.returncode == 0:
        pip = [str(PYTHON), "-m", "pip"]
    run(
        [*pip, "--disable-pip-version-check", "install", "--quiet", "-c", str(CONSTRAINTS), "uv"],
        "install uv into it",
    )


def install_command() -> list[str]:
    """Return the start of a command that installs into `.venv` at the versions of `constraints.txt`."""
    command = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON)]
    if not sys.stderr.isatty():
        command.append("--quiet")
    command += ["--constraints", str(CONSTRAINTS), "--build-constraints", str(CONSTRAINTS)]
    if backend := os.environ.get("TORCH_BACKEND"):
        command += ["--torch-backend", backend]
    return command + index_arguments()


def workspace_arguments(left_out: set[str]) -> list[str]:
    """Return the options that install every distribution, except for some extras and their dependents."""
    arguments: list[str] = []
    for member in members():
        required = tomllib.loads((member / "pyproject.toml").read_text())["project"].get("dependencies", [])
        if any(f"[{extra}]" in requirement for extra in left_out for requirement in required):
            continue
        wanted = [extra for extra in extras(member) if extra not in left_out]
        arguments += ["--editable", f"{member}[{','.join(wanted)}]" if wanted else str(member)]
    return arguments


def install_everything() -> None:
    """Install every distribution (editable), with everything that tests and tools need."""
    left_out: set[str] = set()
    if not can_compile():
        left_out.add(COMPILED_EXTRA)
        print(f"setup: without `{COMPILED_EXTRA}`, which needs a C compiler and Python's headers", flush=True)
    command = install_command() + workspace_arguments(left_out)
    run([*command, "--group", "dev"], "install the workspace at the versions of constraints.txt")


def set_up() -> None:
    """Bring `.venv` into the state of the lock. Returns immediately if it already is."""
    expected = fingerprint()
    if STAMP.exists() and STAMP.read_text() == expected and PYTHON.exists():
        return
    began = time.monotonic()
    STAMP.unlink(missing_ok=True)
    make_virtual_environment()
    install_everything()
    STAMP.write_text(expected)
    print(f"setup: done in {time.monotonic() - began:.0f} s", flush=True)


def lock() -> None:
    """Resolve the newest versions that fit every distribution on every platform into `constraints.txt`."""
    command = [str(VENV / "bin" / "uv"), "pip", "compile", "--universal", "--python-version", "3.11"]
    command += ["--no-annotate", "--upgrade", "--quiet", "--custom-compile-command", "make lock"]
    for member in members():
        command += ["--no-emit-package", distribution_name(member), str(member / "pyproject.toml")]
    for extra in sorted({extra for member in members() for extra in extras(member)}):
        command += ["--extra", extra]
    command += ["--group", "dev", "--output-file", str(CONSTRAINTS)]
    run(command, "resolve constraints.txt")


def main() -> int:
    """Set up, or resolve the lock. Returns the exit status."""
    try:
        match sys.argv[1:]:
            case ["--lock"]:
                lock()
            case _:
                set_up()
    except SetupFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
