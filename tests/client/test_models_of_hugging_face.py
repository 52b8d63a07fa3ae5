"""Models pushed to Hugging Face and pulled from there, by the command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hugging_face import TOKEN, Store, running_hugging_face
from saved_runs import write_run
from small_models import checkpoint, digests, weights
from wander.wire.models import weights_of

pytestmark = pytest.mark.full


@dataclass
class Machine:
    """A machine with the command; its cache and its token are its own."""

    home: Path
    endpoint: str
    token: str | None = TOKEN

    def model(self, *words: str, mode: str = "--json") -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "WANDER_"))}
        given = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.home / "hf"), "HOME": str(self.home)}
        # What stands for Hugging Face takes large files as it did before Xet.
        given |= {"HF_HUB_DISABLE_XET": "1"} | ({"HF_TOKEN": self.token} if self.token else {})
        return subprocess.run(
            [sys.executable, "-P", "-m", "wander_client", "model", *words, mode],
            env=kept | given,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def data(self, *words: str) -> dict[str, Any]:
        done = self.model(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(json.loads(done.stdout)["data"])


@pytest.fixture
def store() -> Iterator[Store]:
    with running_hugging_face() as found:
        yield found


@pytest.fixture
def machine(store: Store, tmp_path: Path) -> Machine:
    return Machine(tmp_path, store.url)


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (folder / name).write_bytes(body)
    return folder


def trained(home: Path, files: dict[str, bytes]) -> Path:
    """A training run that made these weights."""
    run = write_run(home / "runs" / "trained", rewards=[1.0])
    manifest = json.loads((run / "run.json").read_text())
    manifest |= {"kind": "training", "training": {"model": {"path": "/home/x"}, "schedule": {"steps": 4}}}
    (run / "run.json").write_text(json.dumps(manifest))
    saved = {"step": 4, "weights_sha256": weights_of(digests(files))}
    (run / "checkpoints.jsonl").write_text(json.dumps(saved) + "\n")
    written(run / "model", files)
    return run


def test_a_pushed_model_has_a_card_generated_from_its_run(store: Store, machine: Machine) -> None:
    files = checkpoint(README_md=None)
    run = trained(machine.home, files)
    refused = machine.model("push", "hf:ada/ttt", str(run), "--internal")
    assert (refused.returncode, store.private) == (2, set()), "what is internal is not shown to the world"
    pushed = machine.data("push", "hf:ada/ttt", str(run), "--private")
    assert pushed["weights_sha256"] == weights_of(digests(files))
    there = store.files("ada/ttt")
    assert {name: body for name, body in there.items() if name in files} == files
    assert set(there) - set(files) == {".gitattributes", "README.md"}
    assert "steps = 4" in there["README.md"].decode()
    assert store.private == {"ada/ttt"}

    pulled = machine.data("pull", "hf:ada/ttt")
    assert (pulled["revision"], pulled["weights_sha256"]) == (pushed["revision"], pushed["weights_sha256"])
    assert (Path(pulled["folder"]) / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert not (Path(pulled["folder"]) / ".gitattributes").exists(), "only what makes a model"
    noted = Path(pulled["folder"]).parents[1] / "refs" / "main"
    assert noted.read_text() == pulled["revision"], "by its name it loads without a network"
    line = machine.model("pull", f"hf:ada/ttt@{pulled['revision']}", mode="--plain")
    assert f"-m {pulled['folder']}" in line.stderr, "a revision is loaded from its folder"


def test_a_second_push_replaces_all_files_of_the_first(store: Store, machine: Machine) -> None:
    first = checkpoint("one", README_md=None, vocab_txt=b"old")
    machine.data("push", "hf:ada/ttt", str(written(machine.home / "one", first)))
    begun = store.repositories["ada/ttt"][-1]
    second = checkpoint("two", README_md=None)
    machine.data("push", "hf:ada/ttt", str(written(machine.home / "two", second)))
    assert "vocab.txt" in begun
    assert "vocab.txt" not in store.files("ada/ttt"), "files of other weights would be taken for theirs"
    old = machine.data("pull", "hf:ada/ttt@" + f"{1:040x}")
    assert old["weights_sha256"] == weights_of(digests(first)), "a revision stays what it was"


def test_a_file_that_was_changed_in_the_cache_is_downloaded_again(store: Store, machine: Machine) -> None:
    machine.data("push", "hf:ada/ttt", str(written(machine.home / "made", checkpoint())))
    pulled = machine.data("pull", "hf:ada/ttt")
    for name in ("model.safetensors", "config.json"):
        file = Path(pulled["folder"]) / name
        sound = file.read_bytes()
        file.resolve().write_bytes(sound[:-1] + b"?")
        again = machine.model("pull", "hf:ada/ttt")
        assert f"`{name}` was damaged in the cache" in again.stdout + again.stderr
        assert file.read_bytes() == sound


def test_weights_that_differ_from_the_card_are_rejected(store: Store, machine: Machine) -> None:
    machine.data("push", "hf:ada/ttt", str(written(machine.home / "made", checkpoint(README_md=None))))
    store.files("ada/ttt")["model.safetensors"] = weights("others")
    done = machine.model("pull", "hf:ada/ttt")
    assert done.returncode == 1
    assert "do not match its card" in done.stdout


@pytest.mark.parametrize(
    ("token", "words", "status", "told"),
    [
        (None, ("push", "hf:ada/ttt", "made"), 4, "needs a token"),
        ("hf_" + "b" * 34, ("push", "hf:ada/ttt", "made"), 4, "refused the token"),
        (TOKEN, ("push", "hf:grace/ttt", "made"), 4, "may not write to `grace/ttt`"),
        (TOKEN, ("push", "hf:ttt", "made"), 2, "pass `hf:OWNER/NAME`"),
        (TOKEN, ("push", "hf:ada/ttt@main", "made"), 2, "names a revision"),
        (TOKEN, ("push", "hf:ada/ttt", "pickled"), 2, "not allowed in a model"),
        (TOKEN, ("pull", "hf:ada/absent"), 3, "has no model `ada/absent`"),
    ],
)
def test_unsupported_operations_are_reported(
    machine: Machine, token: str | None, words: tuple[str, ...], status: int, told: str
) -> None:
    written(machine.home / "made", checkpoint())
    written(machine.home / "pickled", {**checkpoint(), "pytorch_model.bin": b"x"})
    machine.token = token
    done = machine.model(*words)
    assert done.returncode == status, done.stdout + done.stderr
    assert told in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [("push", "hf:ada/ttt", "made"), ("pull", "hf:ada/ttt")])
def test_a_missing_network_is_reported(tmp_path: Path, unused_tcp_port: int, words: tuple[str, ...]) -> None:
    written(tmp_path / "made", checkpoint())
    done = Machine(tmp_path, f"http://127.0.0.1:{unused_tcp_port}").model(*words)
    assert done.returncode == 5, done.stdout + done.stderr
    assert f"`http://127.0.0.1:{unused_tcp_port}` does not respond" in done.stdout
