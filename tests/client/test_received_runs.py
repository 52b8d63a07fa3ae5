"""Run folders that somebody sent: no command hangs on them, fills the memory or reads other files."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from command_line import Wander
from hypothesis import given
from hypothesis import strategies as st
from received_folders import FAULTS, REPLACEMENTS, TRAINING_FILES, change_manifest, replace
from saved_runs import write_run
from wander.errors import RunError
from wander.evals.store.folder import RunFolder
from wander.evals.store.jsonl import read_packed

MOST_MEMORY = 1 << 30
"""Bytes that a command may take beyond those of the process."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody changed."""
    return write_run(tmp_path_factory.mktemp("sound") / "runs" / "sound", rewards=[1.0, 0.0, 1.0])


@pytest.fixture
def received(home: Path, sound: Path) -> Path:
    """A copy of it beside another one."""
    runs = home / "runs"
    shutil.copytree(sound, runs / "good")
    change_manifest(runs / "good", run_id="0" * 26)
    shutil.copytree(sound, runs / "bad")
    return runs / "bad"


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """Let this process have little more memory than it has."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("bounded_memory")
def test_a_bad_folder_does_not_stop_the_list(fault: str, received: Path, wander: Wander) -> None:
    FAULTS[fault](received)
    listed = wander("runs", "--json")
    assert listed.status == 0
    assert "0" * 26 in [row["run_id"] for row in listed.data]


SOME = {"manifest is a FIFO", "rollouts are a link", "rollouts unpack to 13 GB", "summary is a terabyte"}
"""The faults that several commands meet in the short run; the list of runs meets all of them."""


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in SOME else pytest.mark.full) for fault in FAULTS]
)
@pytest.mark.usefixtures("bounded_memory")
def test_commands_exit_cleanly_on_bad_runs(fault: str, received: Path, wander: Wander) -> None:
    FAULTS[fault](received)
    for words in (
        ("view",),
        ("runs", "show"),
        ("runs", "report"),
        ("post", "--dry-run"),
        ("runs", "data"),
    ):
        ended = wander(*words, str(received), "--json")
        assert ended.json.get("error", {}).get("code") != "internal", (words, ended.out)
        assert "root:" not in ended.out


@pytest.mark.parametrize(
    "put",
    [pytest.param(put, marks=() if put in ("a FIFO", "zeros") else pytest.mark.full) for put in REPLACEMENTS],
)
@pytest.mark.usefixtures("bounded_memory")
def test_the_size_of_training_files_is_limited_too(put: str, received: Path, wander: Wander) -> None:
    change_manifest(received, kind="training")
    for name in TRAINING_FILES:
        replace(received, name, REPLACEMENTS[put])
        for words in (("view",), ("runs", "show"), ("runs", "plot"), ("post", "--dry-run")):
            ended = wander(*words, str(received), "--json")
            assert ended.json.get("error", {}).get("code") != "internal", (name, words, ended.out)
            assert "root:" not in ended.out
        kept = received / name
        kept.rmdir() if kept.is_dir() and not kept.is_symlink() else kept.unlink()


def test_unreadable_folders_are_reported(received: Path, wander: Wander) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    received.chmod(0o000)
    listed = wander("runs", "--json")
    received.chmod(0o700)
    assert listed.status == 0
    assert len(listed.json["warnings"]) == 1


@pytest.mark.parametrize("name", ["plot.png", "curve.svg", "metrics.jsonl", "steps.jsonl", "samples.jsonl"])
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_posting_does_not_follow_symbolic_links(
    name: str, link: Callable[[Path, Path], None], home: Path, received: Path, wander: Wander
) -> None:
    (home / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    link(received / name, home / "id_ed25519")
    refused = wander("post", "--dry-run", str(received), "--json")
    assert refused.json["error"]["code"] in ("run_error", "bad_artifact")
    assert name in refused.json["error"]["message"]


def test_plots_and_metrics_are_posted(received: Path, wander: Wander) -> None:
    (received / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (received / "curve.svg").write_text("<svg/>")
    (received / "metrics.jsonl").write_text('{"step": 1}\n')
    told = wander("post", "--dry-run", str(received), "--json").data
    assert {file["filename"] for file in told["files"]} > {"plot.png", "curve.svg", "metrics.jsonl"}


@given(st.data())
def test_a_changed_record_is_read_or_rejected(sound: Path, data: st.DataObject) -> None:
    with TemporaryDirectory() as place:
        run = Path(place) / "run"
        shutil.copytree(sound, run)
        plain = read_packed(run / "rollouts.jsonl.zst")
        replace(run, "rollouts.jsonl", lambda path: path.write_bytes(plain))
        name = data.draw(st.sampled_from(["run.json", "rollouts.jsonl", "summary.json"]))
        content = (run / name).read_bytes()
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 40)))
        put = data.draw(st.binary(max_size=20) | st.sampled_from(_PIECES))
        (run / name).write_bytes(content[:start] + put + content[end:])
        with contextlib.suppress(RunError):
            folder = RunFolder.open(run)
            list(folder.rollouts_in_order())
            folder.summary()


_PIECES = [b'"', b"1e999", b"-1", b"null", b"[]", b"{}", b'"\\ud800"', b"NaN", b"9" * 5000, b"\n", b"[" * 300]
