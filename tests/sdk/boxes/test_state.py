"""Final states: what they record, and what a fresh box accepts."""

from __future__ import annotations

import base64
import hashlib

import pytest
from sandboxes import needs_sandbox
from wander.boxes.base import BoxLimits, BoxSpec, ChangedFile, FinalState
from wander.boxes.bubblewrap import BubblewrapBackend
from wander.boxes.state import MOST_FILES, check_state, digest_changes

pytestmark = needs_sandbox


def file(path: str, content: str = "x", **changes) -> ChangedFile:
    digest = hashlib.sha256(content.encode()).hexdigest()
    fields = {"path": path, "kind": "file", "size": len(content), "sha256": digest, "text": content}
    return ChangedFile(**{**fields, **changes})


def state_of(*files: ChangedFile, **changes) -> FinalState:
    return FinalState(**{"digest": digest_changes(files), "files": list(files), **changes})


async def test_a_state_with_all_changes_is_applied_to_a_new_box(spec):
    backend = BubblewrapBackend()
    played, fresh = await backend.start(spec), await backend.start(spec)
    try:
        await played.exec(
            "mkdir -p d/e; echo new > d/e/f; printf '\\377' > bin; chmod +x d/e/f; ln -s d/e/f link;"
            "mkfifo pipe; rm -rf given old.txt; touch -d 2001-01-01 d; chown 7:7 bin; echo outside > /tmp/x"
        )
        state = await played.final_state()
        kinds = {change.path: change.kind for change in state.files}
        removed = {"/work/given": "removed", "/work/old.txt": "removed"} if spec.root else {}
        assert kinds == {
            "/work/bin": "file",
            "/work/d": "folder",
            "/work/d/e": "folder",
            "/work/d/e/f": "file",
            "/work/link": "link",
            **removed,
        }
        by_path = {change.path: change for change in state.files}
        assert by_path["/work/d/e/f"].executable
        assert by_path["/work/d/e/f"].text == "new\n"
        assert by_path["/work/bin"].base64 == base64.b64encode(b"\xff").decode()
        assert state.digest == digest_changes(state.files)
        await fresh.restore(FinalState.model_validate_json(state.model_dump_json()))
        assert (await fresh.final_state()) == state
        assert (await fresh.exec("cat link; ls /tmp; test -x d/e/f && echo runs")).output == "new\nruns\n"
    finally:
        await played.stop()
        await fresh.stop()


async def test_the_initial_state_can_be_redefined(box):
    await box.upload({"/work/task.txt": "task"})
    await box.keep_as_start()
    assert (await box.final_state()).files == []
    await box.exec("echo more >> task.txt")
    assert [change.path for change in (await box.final_state()).files] == ["/work/task.txt"]


async def test_a_folder_replaced_by_a_link_is_one_change(box):
    await box.upload({"/work/d/x": "x", "/work/other/y": "y"})
    await box.keep_as_start()
    await box.exec("rm -r d; ln -s other d")
    state = await box.final_state()
    assert [(change.path, change.kind) for change in state.files] == [("/work/d", "link")]
    await box.exec("rm d; mkdir d; touch d/x")
    await box.restore(state)
    assert (await box.exec("cat d/y")).output == "y"


async def test_a_large_state_is_recorded_without_contents(box):
    await box.exec("head -c 3000000 /dev/urandom > noise")
    state = await box.final_state()
    assert state.too_large
    assert state.files[0].size == 3_000_000
    assert state.files[0].sha256
    assert state.files[0].text is state.files[0].base64 is None
    with pytest.raises(ValueError, match="too large"):
        await box.restore(state)


async def test_unusual_names_and_depths_are_recorded(box):
    await box.exec(
        "touch \"$(printf 'a\\377b')\"; touch 'new\nline' ' '; touch -- -rf;"
        "i=0; while [ $i -lt 80 ] && mkdir ddddddddddddddddd && cd ddddddddddddddddd; do i=$((i+1)); done"
    )
    paths = [change.path for change in (await box.final_state()).files]
    assert {"/work/a\\xffb", "/work/new\nline", "/work/ ", "/work/-rf"} <= set(paths)
    assert max(map(len, paths)) <= 1024


async def test_a_sparse_file_is_limited_by_the_disk_size(box):
    assert (await box.exec("truncate -s 1T huge")).exit_status != 0
    await box.final_state()


async def test_links_to_the_outside_are_not_restored(box):
    links = {
        "/work/a_file_of_the_system": "/etc/passwd",
        "/work/bound_to_exist": "/tests/expected",
        "/work/chain": "folder_outside/tests/expected",
        "/work/folder_outside": "/",
        "/work/inside": "real",
        "/work/loop": "loop",
        "/work/processes": "/proc/self/environ",
        "/work/up": "../tests",
    }
    changes = [ChangedFile(path=path, kind="link", target=target) for path, target in links.items()]
    changes.append(file("/work/real", "real"))
    await box.restore(state_of(*sorted(changes, key=lambda change: change.path)))
    await box.upload({"/tests/expected": "secret"})
    kept = (await box.exec("ls")).output.split()
    assert set(kept) - {"given", "old.txt"} == {"a_file_of_the_system", "inside", "real"}


async def test_links_in_the_new_box_are_not_followed(box):
    await box.exec("ln -s /etc /work/etc")
    with pytest.raises(ValueError, match="does not fit"):
        await box.restore(state_of(file("/work/etc/passwd", "planted")))
    assert "planted" not in (await box.exec("cat /etc/passwd")).output


@pytest.mark.parametrize(
    "state",
    [
        state_of(file("/etc/passwd")),
        state_of(file("/work/../etc/passwd")),
        state_of(file("/work//x")),
        state_of(file("/work")),
        state_of(file("/workshop/x")),
        state_of(file("/work/b"), file("/work/a")),
        state_of(file("/work/a"), file("/work/a")),
        state_of(file("/work/a"), file("/work/a/b")),
        state_of(ChangedFile(path="/work/a", kind="link", target="/etc"), file("/work/a/passwd")),
        state_of(ChangedFile(path="/work/a", kind="removed"), file("/work/a/passwd")),
        state_of(ChangedFile(path="/work/a", kind="link")),
        state_of(ChangedFile(path="/work/a", kind="folder", text="x")),
        state_of(file("/work/a", text="y")),
        state_of(file("/work/a", size=2)),
        state_of(file("/work/a", text=None)),
        state_of(file("/work/a", base64="eA==")),
        state_of(file("/work/a", text=None, base64="not base64!")),
        state_of(file("/work/a"), digest="0" * 64),
        state_of(file("/work/a", "x" * (9 << 20))),
        state_of(*(ChangedFile(path=f"/work/{i:06}", kind="folder") for i in range(MOST_FILES + 1))),
    ],
    ids=range(20),
)
def test_forged_states_are_rejected(state):
    with pytest.raises(ValueError, match=r"."):
        list(check_state(state, ["/work"]))


async def test_several_paths_can_be_recorded():
    limits = BoxLimits(memory_mb=256, disk_mb=16)
    box = await BubblewrapBackend().start(BoxSpec(state_paths=["/srv", "/root", "/srv/sub"], limits=limits))
    try:
        await box.exec(
            "mkdir -p /srv/sub; for file in /srv/a /srv/sub/b /root/c /work/w; do echo x > $file; done"
        )
        paths = [change.path for change in (await box.final_state()).files]
        assert paths == ["/root/c", "/srv/a", "/srv/sub", "/srv/sub/b"]
    finally:
        await box.stop()
