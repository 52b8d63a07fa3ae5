"""Play a slice of an experiment on a machine that forgets: go on from what the slice before brought back.

    python scripts/gpu/slices.py tictactoe --first --slice 480 --runs RUNS --out OUT
    python scripts/gpu/slices.py tictactoe --back BACK --slice 480 --runs RUNS --out OUT

BACK is the OUT of the slice before: `state.json` and at most four archives of 14 MiB, in which are the run's
records, the newest checkpoint of the phase that is not finished, and the models of those that are (of a model
with adapters, the adapters: its weights are merged again, and must have the digest that they had). All else
on the command line goes to `experiments/run.py`. The exit status is 75 while there is more to do.
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
"""Bytes of an archive, and how many there are at most: all of them and this repository fit into 64 MiB."""
MORE = os.EX_TEMPFAIL
"""Exit status while there is more to do."""
ADAPTERS = "adapters"


class SliceError(Exception):
    """What is wrong, and what helps."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def identify(options: argparse.Namespace) -> dict[str, str]:
    """Return what must be the same in all slices of an experiment."""
    settings = ROOT / "experiments" / options.experiment / options.settings
    if not settings.is_file():
        raise SliceError(f"there is no `{settings}`", "name an experiment of `experiments`, and a file of it")
    return {
        "experiment": options.experiment,
        "settings": options.settings,
        "settings_sha256": hashlib.sha256(settings.read_bytes()).hexdigest(),
        "options": " ".join(options.rest),
        "device": options.device,
    }


def is_finished(phase: Path) -> bool:
    """Return whether a phase of training ended by itself."""
    file = phase / "outcome.json"
    return file.is_file() and bool(json.loads(file.read_bytes())["finished"])


def files_to_keep(run: Path, *, bare: bool = False) -> Iterator[Path]:
    """Yield what a later slice needs of a run; `bare` leaves out the rollouts of what is finished.

    A phase of training that is finished needs no checkpoint, one that is not needs no model but the newest
    checkpoint; weights that adapters were merged into are merged again.
    """
    for folder, names, files in os.walk(run):
        place = Path(folder)
        if place.name == "checkpoints":
            found = sorted(place.glob("checkpoint-*/seal.json"), key=_step_of)
            names[:] = [found[-1].parent.name] if found and not is_finished(place.parent) else []
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
    """Return whether a model is made: not what a stopped phase has so far, nor a second name of the last."""
    trains = (model.parent / "metrics.jsonl").is_file()
    return is_finished(model.parent) if trains else not (model.parent / "command.json").is_file()


def _step_of(seal: Path) -> int:
    return int(seal.parent.name.rpartition("-")[2])


def merged_models(run: Path) -> list[Path]:
    """Return the models whose weights are merged from adapters, in the order in which they were made."""
    found = [path.parent for path in run.glob(f"seed-*/training/*/*/{ADAPTERS}")]
    return sorted((path for path in found if path.name == "best" or _is_wanted(path)), key=_phase_of)


def _phase_of(model: Path) -> tuple[str, int, str]:
    return model.parents[2].name, int(model.parent.name.partition("-")[0]), model.name


def bring_back(run: Path, out: Path, identity: dict[str, str], number: int, seconds: float) -> int:
    """Write a run's state into `out`; return its bytes. Raises `SliceError` where it does not fit."""
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
            f"what a later slice needs takes {len(packed) >> 20} MiB, more than {most}: {named}",
            f"the run lies in `{run}`; `model.lora_rank` makes checkpoints smaller",
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
    """Return an archive of files, compressed; their dates stay, since tables are in their order."""
    import zstandard

    whole = io.BytesIO()
    writer = zstandard.ZstdCompressor(level=6, threads=-1).stream_writer(whole, closefd=False)
    with writer, tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            tar.add(file, arcname=str(file.relative_to(run)))
    return whole.getvalue()


def read_state(back: Path, identity: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    """Return the state that was brought back, checked; raises `SliceError` for any other."""
    try:
        state: dict[str, Any] = json.loads((back / STATE).read_bytes())
    except FileNotFoundError:
        raise SliceError(
            f"`{back}` has no {STATE}: no slice was brought back there",
            "`--back` takes the OUT of the slice before",
        ) from None
    except ValueError as error:
        raise SliceError(f"`{back / STATE}` is damaged: {error}", "bring it back again") from error
    if differing := [name for name in identity if state["identity"].get(name) != identity[name]]:
        listed = "".join(
            f"\n  {name}: {state['identity'].get(name)} before, {identity[name]} now" for name in differing
        )
        raise SliceError(
            f"`{back}` is a slice of something else:{listed}", "restore that, or begin with `--first`"
        )
    packed = b""
    for name, sha256 in state["parts"].items():
        if not (back / name).is_file():
            raise SliceError(f"`{back / name}` is missing", "bring it back too")
        piece = (back / name).read_bytes()
        if hashlib.sha256(piece).hexdigest() != sha256:
            raise SliceError(f"`{back / name}` is damaged: it has another digest", "bring it back again")
        packed += piece
    return state, packed


def take_over(back: Path, run: Path, identity: dict[str, str]) -> None:
    """Put the run of a slice in its place; the one that lies there stays where it is further on."""
    import zstandard

    state, packed = read_state(back, identity)
    if run.exists() and read_count(run)["slice"] >= state["slice"]:
        print(f"`{run}` is as far as `{back}`, and goes on", flush=True)
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
    """Merge the adapters of finished models again; raises `SliceError` where other weights come of it."""
    from wander.models.smollm2 import SMOLLM2, pull_smollm2
    from wander.train.weights import merge_again

    for model in merged_models(run):
        named = json.loads((model / ADAPTERS / "adapter_config.json").read_bytes())["base_model_name_or_path"]
        base = pull_smollm2() if Path(named).name == SMOLLM2 else run / named.rpartition(f"{run.name}/")[2]
        if merge_again(model, base) != digests[str(model.relative_to(run))]:
            raise SliceError(
                f"the weights of `{model.relative_to(run)}` are not those that they were before",
                "were other versions of PyTorch or of SmolLM2 used? Go on with those of the slice before",
            )


def read_count(run: Path) -> dict[str, Any]:
    """Return how many slices were played, and how long they took."""
    file = run / COUNT
    return json.loads(file.read_bytes()) if file.is_file() else {"slice": 0, "seconds": 0.0}


def write_count(run: Path, number: int, seconds: float) -> None:
    """Write how many slices were played."""
    (run / COUNT).write_text(json.dumps({"slice": number, "seconds": seconds}) + "\n", encoding="utf-8")


def play(options: argparse.Namespace, run: Path) -> int:
    """Have the experiment go on for a slice; return its exit status."""
    command = [sys.executable, str(ROOT / "experiments/run.py"), options.experiment, "--local"]
    command += ["--settings", options.settings, "--slice", str(options.slice), "--out", str(run)]
    command += ["--set", f"model.device={options.device}", *options.rest]
    environment = os.environ if options.device != "cpu" else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, env=dict(environment))
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def tell(run: Path) -> None:
    """Say how far every phase of training is."""
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
    """Go on, stop in time, and bring back what the next slice needs; return the exit status."""
    identity = identify(options)
    run = (options.runs / f"{options.experiment}-{Path(options.settings).stem}").resolve()
    if options.back:
        take_over(options.back, run, identity)
    elif options.first and run.exists():
        raise SliceError(f"`{run}` is there already", "leave `--first` out to go on with it, or remove it")
    elif not options.first and not run.exists():
        raise SliceError(
            f"`{options.experiment}` was not begun here, and no `--back` says where it was brought back",
            "`--back OUT` goes on from the slice before; `--first` begins",
        )
    before = read_count(run)
    began = time.monotonic()
    status = play(options, run)
    number, seconds = before["slice"] + 1, before["seconds"] + time.monotonic() - began
    write_count(run, number, seconds)
    if options.out:
        size = bring_back(run, options.out, identity, number, seconds)
        mib = size / (1 << 20)
        print(f"\nslice {number}: {mib:.1f} MiB brought back to `{options.out}`; {seconds:.0f} s in all")
    tell(run)
    if status == MORE:
        print(f"there is more to do; the next slice: `--back {options.out or 'OUT'}`")
    return status


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; what is not known here is the experiment's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("experiment", help="a folder of `experiments`")
    parser.add_argument("--settings", default="tiny.toml")
    parser.add_argument("--slice", type=float, default=480, metavar="SECONDS")
    parser.add_argument("--first", action="store_true", help="begin")
    parser.add_argument("--back", type=Path, help="folder of the slice before, to go on from")
    parser.add_argument("--out", type=Path, help="where the next slice finds this one")
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
