"""What a hostile program in a box can do to the host's work with the box's files."""

from __future__ import annotations

import asyncio
import io
import tarfile

import pytest
from sandboxes import needs_sandbox
from wander.boxes import supervisor_files
from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend
from wander.boxes.state import read_archive
from wander.errors import SandboxError

pytestmark = needs_sandbox


@pytest.mark.parametrize("spec", ["system", pytest.param("root", marks=pytest.mark.full)], indirect=True)
@pytest.mark.parametrize("number", ["KILL", "STOP"])
async def test_a_box_that_ends_all_its_processes_cannot_hide_its_files(box, number):
    await box.exec("for i in 1 2 3 4 5 6 7 8 9; do echo $i > f$i; done")
    before = await box.final_state()
    await box.exec(f"(while :; do kill -{number} -1; done) >/dev/null 2>&1 &", seconds=2)
    for _ in range(3):
        assert (await box.final_state()).digest == before.digest
        await box.upload({"/tmp/from_the_host": "x"})
        assert await box.download("/tmp/from_the_host") == b"x"
    assert (await box.exec("sleep 9", seconds=1)).exit_status in (124, 137)


async def test_a_link_cannot_lead_the_host_into_its_own_process(box):
    await box.exec("for i in fd/0 fd/3 fd/6 exe maps root; do ln -s /proc/self/$i $(basename $i); done")
    for name in ("0", "3", "6", "exe", "maps", "root/etc/passwd"):
        with pytest.raises(FileNotFoundError):
            await box.download(f"/work/{name}")


async def test_files_that_change_while_being_read_do_not_stop_the_read(box):
    churn = "while :; do echo x > f; ln -sf f l; mkdir -p d; rm -f f l; rmdir d; done"
    await box.exec(f"({churn}) >/dev/null 2>&1 & echo kept > kept")
    for _ in range(10):
        assert "/work/kept" in {file.path for file in (await box.final_state()).files}


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_disappears_before_it_is_read_is_left_out_of_the_archive(tmp_path, kind):
    gone = tmp_path / "gone"
    {"file": gone.touch, "link": lambda: gone.symlink_to("x"), "folder": gone.mkdir}[kind]()
    status = gone.lstat()
    gone.rmdir() if kind == "folder" else gone.unlink()
    with tarfile.open(fileobj=io.BytesIO(), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        supervisor_files._add(archive, str(gone), status)
        assert archive.getnames() == ([] if kind != "folder" else [str(gone)[1:]])


async def test_sparse_files_cannot_keep_the_host_reading():
    box = await BubblewrapBackend().start(BoxSpec(limits=BoxLimits(disk_mb=16)))
    await box.exec("truncate -s 15M first second third")
    with pytest.raises(SandboxError, match=r"or 16 MiB"):
        await box.final_state()
    await box.stop()


@pytest.mark.full  # elsewhere, boxes run a few commands at a time
async def test_hundreds_of_commands_at_the_same_time_are_all_run():
    box = await BubblewrapBackend().start(BoxSpec())
    results = await asyncio.gather(*(box.exec(["echo", str(number)]) for number in range(300)))
    assert [result.output for result in results] == [f"{number}\n" for number in range(300)]
    await box.stop()


def test_a_truncated_archive_is_not_a_state():
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("work/file"))
    with pytest.raises(SandboxError, match="not read completely"):
        read_archive(io.BytesIO(whole.getvalue()))
