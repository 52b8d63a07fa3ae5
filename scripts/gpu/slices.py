"""Plays a slice of an experiment on a machine without persistent storage, and continues from the previous
slice.

    python scripts/gpu/slices.py tictactoe --first --slice 480 --runs RUNS --out OUT
    python scripts/gpu/slices.py tictactoe --back BACK --slice 480 --runs RUNS --out OUT

BACK is the OUT of the previous slice: `state.json` and at most four archives of 14 MiB. They contain the
run's records, the newest checkpoint of the unfinished phase, and the models of the finished phases. Of a
model with adapters, only the adapters are kept. Its weights are merged again, and must have the same digest.
Other options on the command line go to `experiments/run.py`. The exit status is 75 while there is more to do.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STATE, COUNT = "state.json", "slice.json"
PART, MOST_PARTS = 14 << 20, 4
"""Bytes per archive, and maximum number of archives. All of them and this repository fit into 64 MiB."""
MORE = os.EX_TEMPFAIL
"""Exit status while there is more to do."""
ADAPTERS = "adapters"


class SliceError(Exception):
    """A problem, and how to solve it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def identify(options: argparse.Namespace) -> dict[str, str]:
    """Return everything that must be the same in all slices of an experiment."""
    settings = ROOT / "experiments" / options.experiment / options.settings
    if not settings.is_file():
        raise SliceError(
            f"there is no `{settings}`", "pass an experiment in `experiments`, and one of its files"
        )
    return {
        "experiment": options.experiment,
        "settings": options.settings,
        "settings_sha256": hashlib.sha256(settings.read_bytes()).hexdigest(),
        "options": " ".join(options.rest),
        "device": options.device,
    }


def is_finished(phase: Path) -> bool:
    """Return whether a phase of training has finished."""
    file = phase / "outcome.json"
    return file.is_file() and bool(json.loads(file.read_bytes())["finished"])


def files_to_keep(run: Path, *, bare: bool = False) -> Iterator[Path]:
    """Yield the files of a run that a later slice needs. `bare` leaves out rollouts of finished phases.

    A finished training phase does not need its checkpoints. An unfinished phase needs only its newest
    checkpoint. Weights with merged adapters are merged again.
    """
    for folder, names, files in os.walk(run):
        place = Path(folder)
        if place.name == "checkpoints":
            checkpoints = sorted(place.glob("checkpoint-*/seal.json"), key=_step_of)
            names[:] = [checkpoints[-1].parent.name] if checkpoints and not is_finished(place.parent) else []
        elif place.name == "model" and not _is_wanted(place):
            names[:] = []
            continue
        names[:] = sorted(
            name for name in names if not name.startswith(".") and name not in ("config", "data")
        )
        for name in sorted(files):
            whole = name.endswith(".safetensors") and (place / ADAPTERS).is_dir()
            rollouts = name.startswith("rollouts") and (place / "summary.json").is_file()
            if not whole and not (bare and rollouts) and not (place / name).is_symlink():
                yield place / name


def _is_wanted(model: Path) -> bool:
    """Return whether a model should be kept: not one of an unfinished phase, nor a link to the last one."""
    trains = (model.parent / "metrics.jsonl").is_file()
    return is_finished(model.parent) if trains else not (model.parent / "command.json").is_file()


def _step_of(seal: Path) -> int:
    return int(seal.parent.name.rpartition("-")[2])


def merged_models(run: Path) -> list[Path]:
    """Return the models whose weights are merged from adapters, in order of creation."""
    found = [path.parent for path in run.glob(f"seed-*/training/*/*/{ADAPTERS}")]
    return sorted((path for path in found if path.name == "best" or _is_wanted(path)), key=_phase_of)


def _phase_of(model: Path) -> tuple[str, int, str]:
    return model.parents[2].name, int(model.parent.name.partition("-")[0]), model.name


def bring_back(run: Path, out: Path, identity: dict[str, str], number: int, seconds: float) -> int:
    """Write a run's state into `out`, and return its size in bytes.

    Raises `SliceError` if it is too large.
    """
    from wander.models.loading import weights_digest

    out.mkdir(parents=True, exist_ok=True)
    for bare in (False, True):
        packed = _archive(run, list(files_to_keep(run, bare=bare)))
        if len(packed) <= MOST_PARTS * PART:
            break
    else:
        largest = sorted(files_to_keep(run, bare=True), key=lambda file: -file.stat().st_size)[:5]
        named = ", ".join(f"{file.relative_to(run)} ({file.stat().st_size >> 20} MiB)" for file in largest)
        most = MOST_PARTS * PART >> 20
        raise SliceError(
            f"the state for the next slice has {len(packed) >> 20} MiB, more than {most}: {named}",
            f"the run is in `{run}`; set `model.lora_rank` for smaller checkpoints",
        )
    parts = {}
    for at in range(0, len(packed), PART):
        piece = packed[at : at + PART]
        name = f"state-{at // PART + 1}.bin"
        (out / name).write_bytes(piece)
        parts[name] = hashlib.sha256(piece).hexdigest()
    models = {str(model.relative_to(run)): weights_digest(model) for model in merged_models(run)}
    state = {"slice": number, "seconds": seconds, "identity": identity, "parts": parts, "models": models}
    (out / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    for name in ("table.md", "results.json"):
        if (run / name).is_file():
            shutil.copy2(run / name, out / name)
    return len(packed)


def _archive(run: Path, files: Sequence[Path]) -> bytes:
    """Return a compressed archive of files with their dates, because tables are ordered by date."""
    import zstandard

    whole = io.BytesIO()
    writer = zstandard.ZstdCompressor(level=6, threads=-1).stream_writer(whole, closefd=False)
    with writer, tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            tar.add(file, arcname=str(file.relative_to(run)))
    return whole.getvalue()


def read_state(back: Path, identity: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    """Return the checked state from the previous slice. Raises `SliceError` if it is invalid."""
    try:
        state: dict[str, Any] = json.loads((back / STATE).read_bytes())
    except FileNotFoundError:
        raise SliceError(
            f"`{back}` contains no {STATE}, so it is not the output of a slice",
            "pass the OUT of the previous slice as `--back`",
        ) from None
    except ValueError as error:
        raise SliceError(f"`{back / STATE}` is damaged: {error}", "copy it again") from error
    if differing := [name for name in identity if state["identity"].get(name) != identity[name]]:
        listed = "".join(
            f"\n  {name}: {state['identity'].get(name)} before, {identity[name]} now" for name in differing
        )
        raise SliceError(
            f"`{back}` is a slice of something else:{listed}", "restore these, or start with `--first`"
        )
    packed = b""
    for name, sha256 in state["parts"].items():
        if not (back / name).is_file():
            raise SliceError(f"`{back / name}` is missing", "copy it too")
        piece = (back / name).read_bytes()
        if hashlib.sha256(piece).hexdigest() != sha256:
            raise SliceError(f"`{back / name}` is damaged: its digest is wrong", "copy it again")
        packed += piece
    return state, packed


def take_over(back: Path, run: Path, identity: dict[str, str]) -> None:
    """Put the run of a slice into its folder. If the existing run there is further, keep that one."""
    import zstandard

    state, packed = read_state(back, identity)
    if run.exists() and read_count(run)["slice"] >= state["slice"]:
        print(f"`{run}` is not behind `{back}`, and continues", flush=True)
        return
    run.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".coming-", dir=run.parent) as work:
        made = Path(work) / run.name
        reader = zstandard.ZstdDecompressor().stream_reader(packed)
        with tarfile.open(fileobj=reader, mode="r|") as tar:
            tar.extractall(made, filter="data")
        merge_models(made, state["models"])
        write_count(made, state["slice"], state["seconds"])
        if run.exists():
            run.rename(Path(tempfile.mkdtemp(prefix=f"{run.name}-before-", dir=run.parent)) / run.name)
        made.rename(run)


def merge_models(run: Path, digests: dict[str, str]) -> None:
    """Merge the adapters of finished models again. Raises `SliceError` if the weights differ."""
    from wander.models.smollm2 import SMOLLM2, pull_smollm2
    from wander.train.weights import merge_again

    for model in merged_models(run):
        named = json.loads((model / ADAPTERS / "adapter_config.json").read_bytes())["base_model_name_or_path"]
        base = pull_smollm2() if Path(named).name == SMOLLM2 else run / named.rpartition(f"{run.name}/")[2]
        if merge_again(model, base) != digests[str(model.relative_to(run))]:
            raise SliceError(
                f"the weights of `{model.relative_to(run)}` differ from before",
                "did the versions of PyTorch or SmolLM2 change? Continue with the versions of the last slice",
            )


def read_count(run: Path) -> dict[str, Any]:
    """Return the number and total duration of the slices played so far."""
    file = run / COUNT
    return json.loads(file.read_bytes()) if file.is_file() else {"slice": 0, "seconds": 0.0}


def write_count(run: Path, number: int, seconds: float) -> None:
    """Write the number and total duration of the slices played so far."""
    (run / COUNT).write_text(json.dumps({"slice": number, "seconds": seconds}) + "\n", encoding="utf-8")


def play(options: argparse.Namespace, run: Path) -> int:
    """Run the experiment for one slice, and return its exit status."""
    command = [sys.executable, str(ROOT / "experiments/run.py"), options.experiment, "--local"]
    command += ["--settings", options.settings, "--slice", str(options.slice), "--out", str(run)]
    command += ["--set", f"model.device={options.device}", *options.rest]
    environment = os.environ if options.device != "cpu" else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, env=dict(environment))
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def tell(run: Path) -> None:
    """Print the progress of every training phase."""
    for file in sorted(run.glob("seed-*/training/*/metrics.jsonl")):
        if lines := file.read_text(encoding="utf-8").splitlines():
            last = json.loads(lines[-1])
            reward = f", reward {last['reward']:.3f}" if last.get("reward") is not None else ""
            speed = (
                f", {last['rollouts'] / last['seconds/step']:.1f} games a second"
                if last.get("rollouts")
                else ""
            )
            print(f"  {file.parent.relative_to(run)}: step {last['step']} of {last['steps']}{reward}{speed}")


def play_slice(options: argparse.Namespace) -> int:
    """Continue, stop in time, and write the state for the next slice. Returns the exit status."""
    identity = identify(options)
    run = (options.runs / f"{options.experiment}-{Path(options.settings).stem}").resolve()
    if options.back:
        take_over(options.back, run, identity)
    elif options.first and run.exists():
        raise SliceError(f"`{run}` already exists", "leave out `--first` to continue it, or remove it")
    elif not options.first and not run.exists():
        raise SliceError(
            f"`{options.experiment}` has no run here, and `--back` is missing",
            "pass `--back OUT` to continue from the previous slice, or `--first` to start",
        )
    before = read_count(run)
    began = time.monotonic()
    status = play(options, run)
    number, seconds = before["slice"] + 1, before["seconds"] + time.monotonic() - began
    write_count(run, number, seconds)
    if options.out:
        size = bring_back(run, options.out, identity, number, seconds)
        mib = size / (1 << 20)
        print(f"\nslice {number}: {mib:.1f} MiB written to `{options.out}`; {seconds:.0f} s in total")
    tell(run)
    if status == MORE:
        print(f"there is more to do; the next slice: `--back {options.out or 'OUT'}`")
    return status


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line. Unknown options are passed to the experiment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("experiment", help="a folder of `experiments`")
    parser.add_argument("--settings", default="tiny.toml")
    parser.add_argument("--slice", type=float, default=480, metavar="SECONDS")
    parser.add_argument("--first", action="store_true", help="start the experiment")
    parser.add_argument("--back", type=Path, help="folder of the previous slice, to continue from")
    parser.add_argument("--out", type=Path, help="folder for the state of this slice")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="cuda")
    options, rest = parser.parse_known_args(given)
    options.rest = rest if "--seeds" in rest else ["--seeds", "0", *rest]
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Play a slice; return the exit status."""
    try:
        return play_slice(read_arguments(given))
    except SliceError as error:
        print(f"error: {error}" + (f"\n\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
