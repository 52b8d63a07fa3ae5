"""The GPU kit on the target machine: takes loads, unpacks them without a network, and runs programs.

    python3 kit.py smoke --loads load-1                  # the plain CUDA path, in one to three minutes
    python3 kit.py lease --out OUT                       # everything, in nine minutes, after all loads
    python3 kit.py take --loads load-2                   # keep a load until the other loads have arrived
    python3 kit.py experiment tictactoe --slice 480 --out OUT [--back BACK]
    python3 kit.py pytest -m gpu tests/sdk/training/test_gpu_training.py
    python3 kit.py benchmark --out OUT
    python3 kit.py run -- wander eval environments/tictactoe -m smollm2 -n 20

The machine only needs a Python with PyTorch and pip. `scripts/gpu/pack.py` creates the loads. Their content
is installed into a virtual environment in the kit's own folder, which also sees this Python's packages.
Nothing is written before Python, PyTorch, digests and the free disk space were checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

KIT = "kit.json"
"""File in every load that describes the whole kit, and which load has which part of it."""
INSTALLED = "installed.json"
BLOCK = 1 << 20
SPARE = 512 << 20
"""Bytes that must stay free in addition to the kit: for runs, and for the converted weights."""


class KitError(Exception):
    """A problem, and how to solve it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Kit:
    """The kit's folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        self.wheels = folder / "wheels"
        self.source = folder / "source"
        self.python = folder / "venv/bin/python"
        self.runs = folder / "runs"
        self.vllm_python = folder / "vllm/bin/python"

    @property
    def index(self) -> dict[str, Any]:
        """Description of the kit. Raises `KitError` if no load was taken yet."""
        try:
            index: dict[str, Any] = json.loads((self.folder / KIT).read_bytes())
        except FileNotFoundError:
            raise KitError(f"no load is in `{self.folder}` yet", "pass one with `--loads FOLDER`") from None
        return index

    def take(self, places: Sequence[Path]) -> None:
        """Keep the parts of the loads in these folders, after checking their digests."""
        loads = [
            load
            for place in places
            for load in ([place] if place.is_file() else sorted(place.glob("load-*.tar")))
        ]
        if not loads:
            raise KitError(f"there is no `load-*.tar` in {', '.join(f'`{place}`' for place in places)}")
        for load in loads:
            try:
                self._take(load)
            except (tarfile.TarError, EOFError, KeyError, ValueError) as error:
                raise KitError(f"`{load}` is damaged: {error}", "copy this load again") from error

    def _take(self, load: Path) -> None:
        with tarfile.open(load) as tar:
            first = tar.next()
            if first is None or first.name != KIT:
                raise KitError(f"`{load}` is not a load of a kit", "create loads with `scripts/gpu/pack.py`")
            index = json.load(tar.extractfile(first))  # type: ignore[arg-type]
            self._require_same_kit(index, load)
            require_target(index["target"])
            require_space(self.folder, self._bytes_to_come(index))
            self.parts.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / KIT, json.dumps(index).encode())
            known = {part["name"]: part for file in index["files"] for part in file["parts"]}
            while member := tar.next():
                self._keep_part(tar, member, known.get(member.name), load)

    def _keep_part(self, tar: tarfile.TarFile, member: tarfile.TarInfo, part: Any, load: Path) -> None:
        stream = tar.extractfile(member)
        if part is None or stream is None:
            raise KitError(f"`{load}` is damaged: it contains `{member.name}`", "copy this load again")
        made = self.parts / f".{member.name}"
        digest = hashlib.sha256()
        with made.open("wb") as target:
            while block := stream.read(BLOCK):
                digest.update(block)
                target.write(block)
        if digest.hexdigest() != part["sha256"]:
            made.unlink()
            raise KitError(
                f"`{load}` is damaged: `{member.name}` has a different digest than when it was packed",
                "copy this load again",
            )
        made.rename(self.parts / member.name)

    def _require_same_kit(self, index: dict[str, Any], load: Path) -> None:
        if (self.folder / KIT).exists() and self.index["kit"] != index["kit"]:
            raise KitError(
                f"`{load}` belongs to kit {index['kit']}, but `{self.folder}` has kit {self.index['kit']}",
                "copy loads that were packed together, or choose another folder with `--kit DIR`",
            )

    def _bytes_to_come(self, index: dict[str, Any]) -> int:
        """Return the bytes still needed for incomplete files: parts, the file, and its installed content."""
        return sum(3 * file["size"] for file in index["files"] if not (self.folder / file["path"]).exists())

    def missing(self, group: str) -> list[int]:
        """Return the loads that a group of files still needs."""
        return sorted(
            {
                part["load"]
                for file in self.index["files"]
                if file["group"] == group and not (self.folder / file["path"]).exists()
                for part in file["parts"]
                if not (self.parts / part["name"]).exists()
            }
        )

    def assemble(self, group: str) -> None:
        """Assemble the files of a group. Raises `KitError` with the numbers of missing loads."""
        if lacking := self.missing(group):
            numbers = ", ".join(map(str, lacking))
            raise KitError(
                f"of the {self.index['loads']} loads, number {numbers} is missing for {group}",
                f"copy it and run `python3 kit.py take --loads load-{lacking[0]}`, then this command again",
            )
        for file in self.index["files"]:
            target = self.folder / file["path"]
            if file["group"] != group or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            parts = [self.parts / part["name"] for part in file["parts"]]
            made = target.with_name(f".{target.name}")
            with made.open("wb") as whole:
                for part in parts:
                    with part.open("rb") as stream:
                        shutil.copyfileobj(stream, whole, BLOCK)
            if sha256_of(made) != file["sha256"]:
                made.unlink()
                raise KitError(
                    f"`{file['path']}` is damaged", "empty the kit's folder, and copy its loads again"
                )
            made.rename(target)
            for part in parts:
                part.unlink()

    def unpack(self, *, accept: bool = False) -> None:
        """Install the content of the loads. Returns immediately if that was done before."""
        index = self.index
        require_target(index["target"])
        stamp = self.folder / INSTALLED
        if stamp.exists() and json.loads(stamp.read_bytes()) == {"kit": index["kit"]}:
            return
        self.assemble("base")
        shutil.rmtree(self.source, ignore_errors=True)
        with tarfile.open(self.folder / "source.tar.gz") as tar:
            tar.extractall(self.source, filter="data")
        self._install(self.python, self.wheels)
        if unfit := self.unfit():
            listed = "".join(f"\n  {package}" for package in unfit)
            if not accept:
                raise KitError(
                    f"packages of this machine do not fit what was packed:{listed}",
                    "`kit.py describe > target.toml` here, then `pack.py --target target.toml` there; "
                    "`--accept` continues anyway",
                )
            print(f"warning: these packages do not fit:{listed}", file=sys.stderr)
        write_whole(stamp, json.dumps({"kit": index["kit"]}).encode())

    def _install(self, python: Path, wheels: Path) -> None:
        """Create a virtual environment. Its packages take precedence over those of this machine's Python."""
        shutil.rmtree(python.parents[1], ignore_errors=True)
        call(
            [sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])],
            "create a virtual environment",
        )
        below = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
        lines = "".join(f"import site; site.addsitedir({place!r})\n" for place in below)
        library = next(python.parents[1].glob("lib/python3*/site-packages"))
        (library / "wander-kit-machine.pth").write_text(lines, encoding="utf-8")
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        quick = [
            "--no-index",
            "--no-deps",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--ignore-installed",
        ]
        call([*install, *quick, *map(str, sorted(wheels.glob("*.whl")))], "install the wheels")

    def unfit(self) -> list[str]:
        """Return the requirements of Wander and its dependencies that this machine does not meet."""
        done = subprocess.run(
            [str(self.python), __file__, "fits", *self.index["requires"]],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise KitError(f"the packages could not be checked: {done.stderr.strip()[-500:]}")
        unfit: list[str] = json.loads(done.stdout)
        return unfit

    def environment(self) -> dict[str, str]:
        """Return the variables for all programs, which disable every network access."""
        return {
            **os.environ,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "VIRTUAL_ENV": str(self.python.parents[1]),
            "WANDER_CACHE_DIR": str(self.folder / "cache"),
            "WANDER_STATE_DIR": str(self.folder / "state"),
            "WANDER_RUNS_DIR": str(self.runs),
            # FlashInfer's sampler compiles kernels with packages that the kit does not carry.
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            **({"WANDER_SERVE_PYTHON": str(self.vllm_python)} if self.vllm_python.exists() else {}),
            "HF_HUB_OFFLINE": "1",
            "UV_OFFLINE": "1",
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(self.folder / "weights"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.folder / "weights"),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, command: Sequence[str], folder: Path | None = None) -> int:
        """Run a command in the kit's environment, and return its exit status."""
        program = shutil.which(command[0], path=str(self.python.parent)) or command[0]
        place = folder or self.source
        process = subprocess.Popen([program, *command[1:]], cwd=place, env=self.environment())
        signal.signal(
            signal.SIGTERM, lambda *_: process.terminate()
        )  # the program saves its progress and exits
        return process.wait()

    def prepare_vllm(self) -> None:
        """Install vLLM into its own virtual environment on first use.

        Raises `KitError` if its loads are missing, or if the kit was packed without them.
        """
        if not any(file["group"] == "vllm" for file in self.index["files"]):
            raise KitError("the kit was packed without vLLM", "pack again with `pack.py --vllm`")
        stamp = self.folder / "vllm-installed"
        if stamp.exists():
            return
        self.assemble("vllm")
        self._install(self.vllm_python, self.folder / "vllm-wheels")
        stamp.touch()

    def prepare_weights(self) -> None:
        """Convert SmolLM2's weights on first use. Raises `KitError` if their loads are missing."""
        if (self.folder / "cache/models/SmolLM2-135M-Instruct/config.json").is_file():
            return
        self.assemble("weights")
        if self.run(["wander", "model", "pull", "smollm2"]):
            raise KitError("SmolLM2 could not be converted", "see the error above")


def require_target(target: dict[str, str]) -> None:
    """Raise `KitError` if Python or PyTorch differs from what the kit was packed for."""
    python = ".".join(platform.python_version_tuple()[:2])
    if python != target["python"]:
        raise KitError(
            f"the kit is packed for Python {target['python']}, but `{sys.executable}` is {python}",
            f"run it with python{target['python']}, or pack with `--python {python}`",
        )
    if platform.machine() != target["machine"]:
        raise KitError(f"the kit is packed for {target['machine']}, but this machine is {platform.machine()}")
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise KitError(
            f"`{sys.executable}` has no PyTorch, and the kit does not include it",
            "run kit.py with the Python that has it",
        ) from None
    if not f"{torch.partition('+')[0]}.".startswith(f"{target['torch']}."):
        raise KitError(
            f"the kit is packed for PyTorch {target['torch']}, but `{sys.executable}` has {torch}",
            f"pack it with `--torch {'.'.join(torch.split('.')[:2])}`",
        )


def require_space(folder: Path, needed: int) -> None:
    """Raise `KitError` if the disk has too little space left."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free
    if needed and free < needed + SPARE:
        raise KitError(
            f"`{folder}` needs {(needed + SPARE) >> 20} MiB of disk, but only {free >> 20} MiB are free",
            "choose a folder on another disk with `--kit DIR`",
        )


def require_gpu(python: Path) -> None:
    """Raise `KitError` if PyTorch finds no GPU."""
    code = "import torch; print(torch.cuda.is_available(), torch.version.cuda)"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.stdout.split()[:1] != ["True"]:
        built = (done.stdout.split() or ["", "nothing"])[-1]
        raise KitError(
            f"PyTorch finds no GPU (it is built for CUDA {built})",
            "check `nvidia-smi`; `--device cpu` rehearses without one",
        )


def find_unfit(roots: Sequence[str]) -> Iterator[str]:
    """Yield descriptions of all requirements, including transitive ones, that are missing or do not fit."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pending = [(Requirement(root), "the kit") for root in roots]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement, by = pending.pop()
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{by} needs {requirement.name}, which is missing"
            continue
        if not requirement.specifier.contains(distribution.version, prereleases=True):
            yield f"{by} needs {requirement}, but {distribution.version} is installed"
        for extra in {"", *requirement.extras}:
            if (key := (canonicalize_name(requirement.name), extra)) in seen:
                continue
            seen.add(key)
            rows = [Requirement(row) for row in distribution.requires or []]
            pending += [
                (row, requirement.name)
                for row in rows
                if (row.marker.evaluate({"extra": extra}) if row.marker else not extra)
            ]


def describe() -> str:
    """Return this machine's configuration as a target for `pack.py`."""
    torch = metadata.version("torch")
    code = "import torch; print(torch.version.cuda or '')"
    cuda = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    there = sorted(
        {(dist.metadata["Name"].lower().replace("_", "-"), dist.version) for dist in metadata.distributions()}
    )
    facts = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": ".".join(torch.split(".")[:2]),
        "cuda": cuda.strip().partition(".")[0],
        "glibc": platform.libc_ver()[1] or "2.28",
        "machine": platform.machine(),
    }
    head = "".join(f'{name} = "{value}"\n' for name, value in facts.items())
    return (
        head
        + "\n[there]\n"
        + "".join(f'"{name}" = "{version.partition("+")[0]}"\n' for name, version in there)
    )


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_whole(file: Path, content: bytes) -> None:
    """Write a file atomically."""
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as made:
        made.write(content)
    Path(made.name).rename(file)


def call(command: Sequence[str], what: str) -> None:
    """Run a step of the installation. Raises `KitError` if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise KitError(f"could not {what}: " + "\n  ".join(output))


def take(kit: Kit, options: argparse.Namespace) -> int:
    """Report which loads are still missing."""
    for group in dict.fromkeys(file["group"] for file in kit.index["files"]):
        lacking = ", ".join(map(str, kit.missing(group)))
        print(
            f"{group}: "
            + (f"number {lacking} of {kit.index['loads']} loads is missing" if lacking else "complete")
        )
    return 0


def smoke(kit: Kit, options: argparse.Namespace) -> int:
    """Run the smoke test of training on the GPU."""
    return _run_script(kit, options, "scripts/gpu/smoke.py", ["--device", options.device])


def experiment(kit: Kit, options: argparse.Namespace) -> int:
    """Play a slice of an experiment."""
    return _run_script(
        kit, options, "scripts/gpu/slices.py", ["--device", options.device, "--runs", str(kit.runs)]
    )


def benchmark(kit: Kit, options: argparse.Namespace) -> int:
    """Measure rollouts and training steps."""
    return _run_script(kit, options, "benchmarks/gpu.py", ["--device", options.device])


def lease(kit: Kit, options: argparse.Namespace) -> int:
    """Measure everything that one lease has time for."""
    kit.prepare_weights()
    return _run_script(kit, options, "scripts/gpu/lease.py", ["--device", options.device])


def test(kit: Kit, options: argparse.Namespace) -> int:
    """Run the tests of the packed source."""
    # The machine's versions may raise other warnings than the locked ones.
    return kit.run(["python", "-m", "pytest", "-p", "no:cacheprovider", "-W", "default", *options.rest])


def vllm(kit: Kit, options: argparse.Namespace) -> int:
    """Install vLLM, and import it."""
    kit.prepare_vllm()
    print(f"vLLM's Python: {kit.vllm_python}", flush=True)
    code = "import vllm; from vllm import LLM; print('vLLM', vllm.__version__)"
    return kit.run([str(kit.vllm_python), "-c", code])


def run(kit: Kit, options: argparse.Namespace) -> int:
    """Run any command with the kit's packages."""
    if not options.rest:
        raise KitError("the command is missing", "`python3 kit.py run -- wander --version`")
    return kit.run(options.rest, Path.cwd())


def _run_script(kit: Kit, options: argparse.Namespace, script: str, own: list[str]) -> int:
    if options.device != "cpu":
        require_gpu(kit.python)
    if any("smollm2" in word for word in options.rest):
        kit.prepare_weights()
    out = ["--out", str(options.out)] if options.out else []
    place = Path.cwd()  # relative paths on the command line refer to this folder
    return kit.run(["python", str(kit.source / script), *options.rest, *own, *out], place)


COMMANDS = {
    "benchmark": benchmark,
    "describe": describe,
    "experiment": experiment,
    "fits": find_unfit,
    "lease": lease,
    "pytest": test,
    "run": run,
    "smoke": smoke,
    "take": take,
    "vllm": vllm,
}


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line. Unknown options are passed to the program that a command starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument("--kit", type=Path, default=Path.home() / "wander-kit", help="the kit's folder")
    parser.add_argument(
        "--loads", type=Path, action="append", default=[], help="a folder with loads; may be repeated"
    )
    parser.add_argument("--device", default="cuda", help="`cpu` rehearses without a GPU")
    parser.add_argument("--out", type=Path, help="folder for results")
    parser.add_argument("--accept", action="store_true", help="continue although packages do not fit")
    words = list(sys.argv[1:] if given is None else given)
    own = words[: words.index("--")] if "--" in words else words
    options, rest = parser.parse_known_args(own)
    options.rest = [*rest, *words[len(own) + 1 :]]
    options.kit = options.kit.expanduser().resolve()
    options.out = options.out.resolve() if options.out else None
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit status."""
    options = read_arguments(given)
    try:
        if options.command == "describe":
            print(describe(), end="")
            return 0
        if options.command == "fits":
            print(json.dumps(list(find_unfit(options.rest))))
            return 0
        kit = Kit(options.kit)
        if options.loads:
            kit.take(options.loads)
        if options.command != "take":
            kit.unpack(accept=options.accept)
        return COMMANDS[options.command](kit, options)  # type: ignore[operator]
    except KitError as error:
        print(f"error: {error}" + (f"\n\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}\n\nhint: existing files were not changed", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
