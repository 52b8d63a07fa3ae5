"""What is packed arrives, in any order and in parts; what is wrong is said before anything is lost."""

from __future__ import annotations

import json
import platform
import random
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gpu_scripts import gpu_script

kit, pack = gpu_script("kit"), gpu_script("pack")
HERE = ".".join(platform.python_version_tuple()[:2])
TORCH = ".".join(metadata.version("torch").split(".")[:2])
LOAD = 64 << 10


class Packed(NamedTuple):
    out: Path
    contents: dict[str, bytes]
    count: int

    def load(self, number: int) -> Path:
        return next((self.out / f"load-{number}").glob("load-*.tar"))


def make_loads(folder: Path, seed: int = 0, **target: str) -> Packed:
    """Two files that smoke needs, and weights that take several loads."""
    rng = random.Random(seed)
    contents = {"a.bin": rng.randbytes(9_000), "b.bin": b"", "w.bin": rng.randbytes(150_000)}
    files = []
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        files.append(("weights" if name == "w.bin" else "base", f"files/{name}", folder / name))
    index, loads = pack.lay_out(files, LOAD)
    wanted = {"python": HERE, "torch": TORCH, "cuda": "", "machine": platform.machine(), **target}
    index |= {"target": wanted, "requires": []}
    return Packed(folder, contents, len(pack.write_loads(index, loads, folder)))


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    return make_loads(tmp_path / "out")


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    return kit.Kit(tmp_path / "kit")


def test_loads_come_in_any_order_and_files_are_put_together(packed: Packed, machine: Any) -> None:
    assert packed.count == 3
    for number in (3, 1, 2):
        load = packed.load(number)
        assert load.stat().st_size <= LOAD + (1 << 14), "the index comes on top"
        machine.take([load.parent])
    for group in ("base", "weights"):
        assert machine.missing(group) == []
        machine.assemble(group)
    for name, content in packed.contents.items():
        assert (machine.folder / "files" / name).read_bytes() == content
    assert list(machine.parts.iterdir()) == [], "parts of what is whole are not kept"
    machine.assemble("weights")  # nothing is left to do
    sums = (packed.out / "SHA256SUMS").read_text().splitlines()
    assert [line.split() for line in sums] == [
        [pack.sha256(packed.load(n).read_bytes()), f"load-{n}/{packed.load(n).name}"] for n in (1, 2, 3)
    ]


def test_the_first_load_is_enough_for_what_it_holds(packed: Packed, machine: Any) -> None:
    machine.take([packed.out / "load-1"])
    machine.assemble("base")
    assert machine.missing("weights") == [2, 3]
    with pytest.raises(kit.KitError, match="number 2, 3 is missing for weights") as caught:
        machine.assemble("weights")
    assert "--loads load-2" in caught.value.hint
    machine.take([packed.out / "load-2", packed.out / "load-3"])
    machine.assemble("weights")


def test_a_load_with_a_wrong_digest_is_rejected(packed: Packed, machine: Any) -> None:
    machine.take([packed.out / "load-1"])
    before = {path.name: path.read_bytes() for path in machine.parts.iterdir()}
    load = packed.load(2)
    damaged = bytearray(load.read_bytes())
    damaged[-4096] ^= 1  # within the last part; the rest is padding
    damaged[len(damaged) // 2] ^= 1
    load.write_bytes(damaged)
    with pytest.raises(kit.KitError, match="a different digest than when it was packed"):
        machine.take([load])
    assert {path.name: path.read_bytes() for path in machine.parts.iterdir()} == before
    assert machine.missing("weights") == [2, 3]


@pytest.mark.parametrize("content", [b"", b"not an archive", None], ids=["empty", "text", "cut"])
def test_an_invalid_or_truncated_load_is_rejected(
    packed: Packed, machine: Any, content: bytes | None
) -> None:
    load = packed.load(2)
    load.write_bytes(load.read_bytes()[:20_000] if content is None else content)
    with pytest.raises(kit.KitError, match=r"load-2-of-3\.tar` (is damaged|is not a load)"):
        machine.take([load])


def test_a_load_of_another_kit_is_rejected(packed: Packed, machine: Any, tmp_path: Path) -> None:
    machine.take([packed.out / "load-1"])
    other = make_loads(tmp_path / "other", seed=1)
    with pytest.raises(kit.KitError, match=r"belongs to kit \w{12}, but .* has kit \w{12}"):
        machine.take([other.load(2)])
    with pytest.raises(kit.KitError, match=r"there is no `load-\*\.tar`"):
        machine.take([tmp_path])


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"python": "3.99"}, "packed for Python 3.99"),
        ({"torch": "1.0"}, "packed for PyTorch 1.0"),
        ({"torch": TORCH[:-1] or "9"}, "packed for PyTorch"),
        ({"machine": "vax"}, "packed for vax"),
    ],
)
def test_a_different_machine_is_reported_before_writing(
    tmp_path: Path, machine: Any, target: dict[str, str], words: str
) -> None:
    packed = make_loads(tmp_path / "out", **target)
    with pytest.raises(kit.KitError, match=words):
        machine.take([packed.out / "load-1"])
    assert not machine.folder.exists()


def test_a_python_without_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(kit.metadata, "version", version)
    with pytest.raises(kit.KitError, match="has no PyTorch, and the kit does not include it"):
        kit.require_target({"python": HERE, "torch": TORCH, "machine": platform.machine()})


def test_a_full_disk_is_noticed_before_anything_is_written(
    packed: Packed, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(kit.shutil, "disk_usage", lambda _: usage._replace(free=10 << 20))
    with pytest.raises(kit.KitError, match="10 MiB are free"):
        machine.take([packed.out / "load-1"])
    assert not machine.folder.exists()


def test_a_disk_that_fills_up_is_an_error_without_a_trace(
    packed: Packed, machine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kit.Kit, "_keep_part", full)
    words = ["take", "--kit", str(machine.folder), "--loads", str(packed.out / "load-1")]
    assert kit.main(words) == 1
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(("says", "fits"), [("False None", False), ("True 13.0", True), ("", False)])
def test_no_gpu_is_an_error(tmp_path: Path, says: str, fits: bool) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{says}'\n")
    python.chmod(0o755)
    if fits:
        kit.require_gpu(python)
    else:
        with pytest.raises(kit.KitError, match="PyTorch finds no GPU") as caught:
            kit.require_gpu(python)
        assert "--device cpu" in caught.value.hint


def test_packages_that_are_missing_or_too_old_are_named_with_who_needs_them() -> None:
    assert list(kit.find_unfit(["pytest", "typer"])) == []
    found = list(kit.find_unfit(["pytest<1", "not-there-at-all>=2"]))
    assert found[0] == "the kit needs not-there-at-all, which is missing"
    assert found[1].startswith("the kit needs pytest<1, but ")


def test_missing_loads_are_reported(packed: Packed, machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--kit", str(machine.folder)]
    assert kit.main(["smoke", *place]) == 2
    assert "no load is in" in capsys.readouterr().err
    assert kit.main(["take", *place, "--loads", str(packed.out / "load-1")]) == 0
    assert capsys.readouterr().out == "base: complete\nweights: number 2, 3 of 3 loads is missing\n"


def test_unknown_options_are_passed_to_the_program() -> None:
    options = kit.read_arguments(["experiment", "tictactoe", "--slice", "480", "--device", "cpu"])
    assert (options.rest, options.device) == (["tictactoe", "--slice", "480"], "cpu")
    options = kit.read_arguments(["run", "--", "wander", "eval", "--out", "x"])
    assert (options.rest, options.out) == (["wander", "eval", "--out", "x"], None)


@pytest.mark.full
def test_a_machine_describes_itself_as_a_target_that_can_be_packed_for(tmp_path: Path) -> None:
    file = tmp_path / "target.toml"
    file.write_text(kit.describe())
    target = pack.read_target(file, None, None)
    assert (target["python"], target["torch"]) == (HERE, TORCH)
    assert target["there"]["pytest"] == metadata.version("pytest")
    other = pack.read_target(file, "3.13", "2.9")
    assert (other["python"], other["torch"], other["there"]["torch"]) == ("3.13", "2.9", "")


def test_the_default_target_is_complete_without_large_packages() -> None:
    target = pack.read_target(pack.HERE / "target.toml", None, None)
    assert (target["python"], target["torch"], target["cuda"]) == ("3.12", "2.11", "13")
    assert {"torch", "transformers", "accelerate", "peft", "pyarrow", "safetensors"} <= target["there"].keys()
    assert not {"trl", "datasets", "pydantic", "openai", "websockets"} & target["there"].keys()
    assert {"trl==1.16.0", "pydantic>=2.12", "pytest-asyncio"} <= set(pack.wanted())


def test_vllm_is_carried_at_versions_that_fit_the_target(packed: Packed, machine: Any) -> None:
    target = pack.read_target(pack.HERE / "target.toml", None, None)
    pins = dict(pin.split("==") for pin in pack.read_pins(pack.VLLM))
    assert {"vllm", "apache-tvm-ffi"} <= pins.keys()
    assert not pins.keys() & target["there"].keys(), "the machine has these"
    machine.take([packed.load(1)])
    with pytest.raises(kit.KitError, match="packed without vLLM"):
        machine.prepare_vllm()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--most", "61"], "a load of 61 MiB is not possible"),
        (["--most", "0"], "a load of 0 MiB is not possible"),
        (["--target", "nowhere.toml"], "`nowhere.toml` cannot be read"),
    ],
)
def test_packing_rejects_impossible_targets(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pack.main(words) == 2
    assert said in capsys.readouterr().err


def test_an_incomplete_target_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('python = "3.12"\n')
    with pytest.raises(pack.PackError, match="does not specify cuda, glibc, machine, there, torch"):
        pack.read_target(tmp_path / "t.toml", None, None)


def test_uncommitted_files_are_packed_too(tmp_path: Path) -> None:
    import tarfile

    archive = pack.archive_source(tmp_path / "source.tar.gz")
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
    assert {"scripts/gpu/kit.py", "experiments/run.py", "sdk/pyproject.toml", "LICENSE"} <= names
    assert not any(name.startswith((".kit/", ".venv/")) for name in names)
    assert json.dumps(sorted(names))  # every name is text
