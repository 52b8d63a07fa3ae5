"""What the sandbox shows follows from what the host knows, whatever a package puts into its environment."""

from __future__ import annotations

import codecs
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandboxes import needs_sandbox, small
from wander.errors import SandboxError
from wander.sandbox.bubblewrap import bubblewrap_arguments
from wander.sandbox.control_groups import ControlGroup
from wander.sandbox.support import explain_failure, require_support
from wander.sandbox.visible import VIRTUALENV, Bind, Runtime, choose_binds, outermost, own_python
from wander.worker.process.sandboxed import confine

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a-file-that-nobody-may-see"
LOOK = f"""
import json, os, sys
found, seen = [], set()

def is_new(path):
    try:
        status = os.stat(path)
    except OSError:
        return False
    folder = (status.st_dev, status.st_ino)
    return folder not in seen and not seen.add(folder)

for path in ("/dev", "/usr"):
    is_new(path)
for folder, folders, files in os.walk("/", followlinks=True):
    folders[:] = [name for name in folders if is_new(os.path.join(folder, name))]
    found += [os.path.join(folder, name) for name in files if name == {SECRET!r}]
for path in sys.argv[1:]:
    if os.path.exists(path):
        found.append(path)
print(json.dumps([found, sorted(os.listdir("/")), sys.prefix, sys.executable]))
"""
"""Walks once over every folder but `/dev` and `/usr`, links included, then tries the paths it is given."""


def make_virtualenv(place: Path) -> Runtime:
    """Make what looks like a virtual environment; return what a host would have recorded of it."""
    python, prefix = own_python()
    runtime = Runtime(python, prefix, ".".join(map(str, sys.version_info[:3])), str(place))
    (place / runtime.site_packages).mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(python)
    (place / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
    return runtime


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A host: a hub's data with a secret, a home with another, an environment and somebody else's."""
    for folder in ("hub/data", "hub/virtualenvs/other/bin", "home/.ssh", "hub/virtualenvs/own"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("hub/data", "hub/virtualenvs/other", "home", "home/.ssh"):
        (tmp_path / folder / SECRET).write_text("secret")
    for folder in (tmp_path, *tmp_path.rglob("*")):
        folder.chmod(0o755)
    return tmp_path


@pytest.fixture
def runtime(place: Path) -> Runtime:
    return make_virtualenv(place / "hub" / "virtualenvs" / "own")


def look(runtime: Runtime, place: Path, *paths: str, meanwhile: Callable[[], Any] = lambda: None) -> Any:
    """Run the program that looks for secrets, confined; return what it found, `/`, prefix and interpreter.

    `meanwhile` is called once it is decided what is shown, before the launcher starts.
    """
    script = place / "look.py"
    script.write_text(LOOK)
    script.chmod(0o755)
    ready = confine(
        *(small(), require_support(), choose_binds(runtime, None, [str(script)])),
        *(ControlGroup(), {"arguments": [str(script), *paths]}, {}),
    )
    meanwhile()
    done = subprocess.run(
        ready.command,
        env=ready.environ,
        pass_fds=ready.descriptors,
        capture_output=True,
        text=True,
        check=False,
    )
    complete = ready.was_completed()
    for descriptor in (*ready.own, ready.ready):
        os.close(descriptor)
    if done.returncode != 0 and not complete:
        raise explain_failure(done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def spellings(path: Path) -> list[str]:
    """Return ways to name a folder."""
    whole = str(path)
    return [
        whole,
        f"/usr/..{whole}",
        whole.replace("/", "//"),
        whole.replace("/", "/./"),
        f"{whole}/x/..",
        f"/proc/self/root{whole}",
        f"/proc/{os.getpid()}/root{whole}",
        f"/var/run/../..{whole}",
        f"/bin/../..{whole}",
    ]


def hostile_files(place: Path, own: Path) -> dict[str, Any]:
    """Return things that a package may do to its own environment, by name."""
    data = place / "hub" / "data"
    homes = [line for folder in (data, place, Path("/")) for line in spellings(folder)]
    links = {"bin/python": data / SECRET, "lib64": place, "bin/python3": Path("/proc/self/root")}

    def configuration(content: bytes) -> Any:
        return lambda: (own / "pyvenv.cfg").write_bytes(content)

    def link(name: str, target: Path) -> Any:
        def make() -> None:
            (own / name).unlink(missing_ok=True)
            (own / name).symlink_to(target)

        return make

    written = {
        f"pyvenv.cfg {number}": configuration(f"home = /usr/bin\nhome = {home}/bin\nHOME={home}\n".encode())
        for number, home in enumerate(homes)
    }
    text = f"home = {place}/bin\r\nhome\t=\t{place}\nhome={place}\\\n"
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "latin-1"):
        written[f"pyvenv.cfg in {encoding}"] = configuration(text.encode(encoding))
    written["pyvenv.cfg with nulls"] = configuration(codecs.BOM_UTF8 + b"home = /\0/bin\n" * 1000)
    for name, target in links.items():
        written[f"a link at {name}"] = link(name, target)
    written["a link of the folder bin"] = lambda: (
        shutil.rmtree(own / "bin"),
        (own / "bin").symlink_to(place),
    )
    site = next(own.glob("lib/python3*/site-packages"))
    names = "".join(f"{home}\n" for home in homes)
    written["a .pth file"] = lambda: (site / "greedy.pth").write_text(f"{names}import os\n")
    written["links among the packages"] = lambda: (
        (site / "everything").symlink_to("/"),
        (site / "up").symlink_to("../../../../../.."),
        (site / "process").symlink_to("/proc/self/root"),
    )
    return written


@needs_sandbox
def test_a_package_cannot_make_more_of_the_host_visible(place: Path, runtime: Runtime) -> None:
    own = Path(runtime.virtualenv)
    asked = [
        path for folder in (place / "hub", place / "home", Path("/etc/passwd")) for path in spellings(folder)
    ]
    before = choose_binds(runtime, None, [])
    for name, put in hostile_files(place, own).items():
        put()
        assert choose_binds(runtime, None, []) == before, name
    found, top, prefix, python = look(runtime, place, *asked)
    assert found == []
    assert {"etc", "home", "root", "var", "run", "sys"} & set(top) <= {"etc", "root", "home"}
    assert (prefix, python) == (VIRTUALENV, f"{VIRTUALENV}/bin/python")


@given(
    st.binary(max_size=300), st.lists(st.sampled_from(["home", "=", " ", "/", "..", "\n", "/etc", "\0", "#"]))
)
def test_pyvenv_cfg_does_not_change_what_is_visible(raw: bytes, words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        runtime = make_virtualenv(Path(name) / "own")
        before = choose_binds(runtime, None, [])
        for content in (raw, "".join(words).encode()):
            Path(runtime.virtualenv, "pyvenv.cfg").write_bytes(content)
            assert choose_binds(runtime, None, []) == before


def test_an_environment_has_the_same_path_in_every_sandbox(place: Path, runtime: Runtime) -> None:
    sees = choose_binds(runtime, None, [])
    assert sees.import_path == (f"{VIRTUALENV}/{runtime.site_packages}",)
    assert [bind.path for bind in sees.binds if bind.kind == "virtualenv"] == [VIRTUALENV]
    assert all(os.path.realpath(bind.source) == bind.source for bind in sees.binds)
    words = bubblewrap_arguments(small(), sees, 4, "any")
    assert not any(str(place) in str(word) for word in words), "no path of the host is among the arguments"


def test_the_interpreter_sees_only_its_packages() -> None:
    sees = choose_binds(None, None, ())
    assert sees.python == own_python()[0]
    assert any((Path(path) / "wander").is_dir() for path in sees.import_path)
    assert {"/etc", "/home", "/var"}.isdisjoint(bind.path for bind in sees.binds)
    assert str(ROOT / "tests" / "harness") in sys.path
    assert not any(path.startswith(str(ROOT / "tests")) for path in sees.import_path)


def test_nothing_is_mounted_below_what_is_visible() -> None:
    binds = [Bind("read", path, path, 0, 0) for path in ("/a/b/c", "/a/b", "/a/bc", "/a/b/d/e")]
    assert [bind.path for bind in outermost(binds)] == ["/a/b", "/a/bc"]


KEPT_BACK = ["/", "/etc", "/home", "/root", "/tmp", "/proc", "/sys", "/dev", "/run", "/proc/self", "/dev/shm"]


@pytest.mark.parametrize("path", KEPT_BACK)
def test_folders_that_reveal_the_host_are_hidden_in_any_spelling(path: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    for spelling in (*spellings(Path(path)), str(tmp_path / "link"), f"{tmp_path}/link/."):
        for asked in ({"source": None, "read": [spelling]}, {"source": Path(spelling), "read": []}):
            if os.path.exists(spelling):
                with pytest.raises(SandboxError, match="cannot be shown"):
                    choose_binds(None, **asked)


def test_home_and_data_folders_and_their_parents_are_hidden(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(place / "home"))
    hide = [str(place / "hub" / "data"), str(place / "hub" / "virtualenvs")]
    refused = ("home", "hub", "hub/data", "hub/virtualenvs", "hub/virtualenvs/other", "hub/data/..")
    for folder in refused:
        with pytest.raises(SandboxError, match="cannot be shown"):
            choose_binds(None, place / folder, [], hide)
        with pytest.raises(SandboxError, match="cannot be shown"):
            choose_binds(None, None, [str(place / folder)], hide)
    (place / "home" / "project").mkdir()
    sees = choose_binds(None, place / "home" / "project", [str(place / "home" / ".ssh")], hide)
    shown = {bind.source for bind in sees.binds if bind.source.startswith(str(place))}
    assert shown == {str(place / "home" / "project"), str(place / "home" / ".ssh")}


def test_a_python_installed_at_the_root_is_rejected(place: Path, runtime: Runtime) -> None:
    for prefix in ("/", "/home", str(place)):
        with pytest.raises(SandboxError, match="cannot be shown"):
            choose_binds(
                Runtime(runtime.executable, prefix, runtime.version, runtime.virtualenv),
                None,
                [],
                [str(place)],
            )


def test_missing_folders_are_named(place: Path, runtime: Runtime) -> None:
    gone = Runtime(str(place / "python"), runtime.prefix, runtime.version, runtime.virtualenv)
    with pytest.raises(SandboxError, match=f"`{place}/python` does not exist"):
        choose_binds(gone, None, [])


@needs_sandbox
@pytest.mark.parametrize(
    "target",
    [*("/", "hub/data"), *(pytest.param(one, marks=pytest.mark.full) for one in ("/proc/self/root", "home"))],
)
def test_a_link_created_during_the_start_reveals_nothing(target: str, place: Path, runtime: Runtime) -> None:
    own = Path(runtime.virtualenv)

    def swap() -> None:
        own.rename(place / "moved")
        own.symlink_to(place / target)

    with pytest.raises(SandboxError):
        look(runtime, place, meanwhile=swap)
    with pytest.raises(SandboxError, match="cannot be shown"):
        choose_binds(runtime, None, [])
    own.unlink()
    (place / "moved").rename(own)
    assert look(runtime, place)[0] == []


@needs_sandbox
def test_a_folder_replaced_after_its_check_is_not_visible(place: Path, runtime: Runtime) -> None:
    def swap() -> None:
        Path(runtime.virtualenv).rename(place / "moved")
        (place / "home").rename(runtime.virtualenv)

    with pytest.raises(SandboxError, match="changed while the sandbox was started"):
        look(runtime, place, meanwhile=swap)


@pytest.mark.full
@pytest.mark.skipif("os.geteuid() != 0", reason="this is an ordinary user already")
def test_everything_is_also_hidden_for_an_ordinary_user() -> None:
    user = 61_235
    become = [sys.executable, "-I", str(ROOT / "tests" / "harness" / "ordinary_user.py"), str(user)]
    tried = subprocess.run([*become, sys.executable, "-c", ""], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"cannot become an ordinary user here: {tried.stderr.splitlines()[-1]}")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="wander-test-") as name:
        os.chown(name, user, user)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            f"{name}/tests",
        ]
        files = [__file__, str(Path(__file__).with_name("test_sandbox_policy.py"))]
        environ = {
            "HOME": name,
            "TMPDIR": name,
            "PATH": os.environ["PATH"],
            "HYPOTHESIS_STORAGE_DIRECTORY": name,
        }
        done = subprocess.run(
            [*become, *command, *files], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert " passed" in done.stdout
