"""Wheels that want the sandbox to show them more, on a real hub: refused, or without any effect."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomlkit
from archive_forge import DATA, WHEEL_NAME, wheel_of
from chat_endpoint import chat_endpoint
from judging_hub import Record, awaited, judging_hub, post, settled
from live_hub import LiveHub
from machine import Machine
from package_shop import PackageShop, package_shop
from sandboxes import needs_sandbox
from small_project import pyproject
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_run_id

pytestmark = [pytest.mark.full, needs_sandbox]

SEEKER = """
import glob, os
from wander import MultiTurnEnv, Rubric

def seen(completion):
    return float(completion[-1]["content"].split()[0])

class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        found = []
        for pattern in self.patterns:
            for path in glob.glob(pattern, include_hidden=True) or [pattern]:
                try:
                    found.append(len(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)))
                except OSError:
                    pass
        state["final_env_response"] = [{"role": "user", "content": f"{len(found)} things can be read"}]
        return state["final_env_response"]

def load_environment(patterns=()):
    env = Env(eval_dataset=[{"question": f"q{n}"} for n in range(2)], rubric=Rubric([seen]), max_turns=2)
    env.patterns = patterns
    return env
"""


@pytest.fixture(scope="module")
def shop(mirror: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageShop]:
    with package_shop(tmp_path_factory.mktemp("shop"), mirror) as running:
        yield running


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, shop: PackageShop) -> Iterator[LiveHub]:
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    with judging_hub(tmp_path_factory.mktemp("judge"), shop.url, cache) as hub:
        yield hub


@pytest.fixture(scope="module")
def home(judge: LiveHub, shop: PackageShop, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    return Machine(tmp_path_factory.mktemp("author"), judge, shop.url, {"UV_CACHE_DIR": str(cache)})


def publish(home: Machine, name: str, body: str, *dependencies: str, options: Sequence[str] = ()) -> None:
    folder = home.home / name
    folder.mkdir()
    wanted = ", ".join(f'"{each}"' for each in ("wander-sdk", *dependencies))
    text = pyproject(name).replace('dependencies = ["wander-sdk"]', f"dependencies = [{wanted}]")
    text += "[tool.hatch.metadata]\nallow-direct-references = true\n"
    (folder / "pyproject.toml").write_text(text)
    (folder / "README.md").write_text(f"# {name}\n")
    (folder / f"{name.replace('-', '_')}.py").write_text(body)
    home.wander("publish", folder, "--no-check", *options)


def add_to_wheel(wheel: Path, path: str, content: str) -> None:
    """Put one more file into a wheel, with its line in RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    stem = "-".join(wheel.name.split("-")[:2])
    digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
    record = f"{stem}.dist-info/RECORD"
    members[f"{stem}.data/{path}"] = content.encode()
    members[record] = f"{stem}.data/{path},sha256={digest},{len(content)}\n".encode() + members[record]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, body)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("data/pyvenv.cfg", "bad_data_folder"),
        ("data/PYVENV.CFG", "bad_data_folder"),
        ("data/share/../pyvenv.cfg", "unsafe_path"),
        ("data/share//../pyvenv.cfg", "unsafe_path"),
        ("data/./pyvenv.cfg", "bad_data_folder"),
        ("data/bin/python", "bad_data_folder"),
        ("scripts/python3.11", "unsafe_script"),
        ("scripts/activate_this.py", "unsafe_script"),
    ],
)
def test_the_hub_rejects_wheels_that_replace_files_of_python(path: str, code: str, judge: LiveHub) -> None:
    wheel = wheel_of({f"{DATA}/{path}": b"home = /var/run/../bin\n"})
    answer = httpx.post(
        f"{judge.url}/admin/legacy/",
        headers={"Authorization": f"Bearer {judge.token}"},
        data={":action": "file_upload", "protocol_version": "1"},
        files={"content": (WHEEL_NAME, wheel)},
        timeout=60,
    )
    assert 400 <= answer.status_code < 500
    assert answer.json()["code"] == code


def test_a_dependency_that_would_replace_it_is_the_packages_fault_at_home_and_on_the_hub(
    judge: LiveHub, home: Machine, shop: PackageShop
) -> None:
    add_to_wheel(shop.release("evil-dep", "1.0", "x = 1\n"), "data/pyvenv.cfg", "home = /var/run/../bin\n")
    publish(home, "leaning-env", SEEKER, "evil-dep")
    done = home.run("wander", "install", "admin/leaning-env", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "unsafe_package"

    def ended() -> Record | None:
        found: Record = judge.get("/api/v1/environments/admin/leaning-env/versions/0.1.0/check").json()
        return None if found.get("state") in (None, "queued", "running") else found

    found = awaited(judge, ended)
    assert found["state"] == "failed"
    assert "`evil-dep 1.0` installs `pyvenv.cfg`" in found["error"]
    assert "sandbox" not in found["error"]


def test_the_hub_requests_no_address_in_a_lock(
    judge: LiveHub, home: Machine, shop: PackageShop, mirror: str, tmp_path: Path
) -> None:
    """Both the author's machine and the hub reach the address, but the hub is not configured to ask there."""
    with package_shop(tmp_path / "inner", mirror) as inner, chat_endpoint(lambda messages: "hm") as model:
        wheel = inner.release("inner-dep", "1.0", "x = 1\n")
        author = Machine(home.home, judge, inner.url, home.extra)
        publish(author, "locked-env", SEEKER, "inner-dep", options=("--keep-host", inner.host))
        run = author.wander("eval", "admin/locked-env", "-m", "looker", "-b", model.base_url)
        del inner.asked[:]
        run_id = str(author.wander("post", run["run_dir"])["run_id"])

        def ended() -> Record | None:
            found = judge.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
            return None if not found or found[0]["state"] in ("queued", "running") else found[0]

        found = awaited(judge, ended)
        assert inner.asked == []
        assert judge.get(f"/api/v1/runs/{run_id}").json()["level"] == "unverifiable"
        for said in (found.get("error") or "", judge.get(f"/api/v1/runs/{run_id}").json()["level_reason"]):
            assert not {inner.host, shop.host, "404", "http"} & set(said.replace("`", " ").split())
            assert "inner.host" not in said
            assert "/simple" not in said
        (shop.folder / "simple" / "inner-dep").mkdir()
        shutil.copy(wheel, shop.folder / "simple" / "inner-dep")
        shutil.copy(wheel.with_name("index.html"), shop.folder / "simple" / "inner-dep")
        author.wander("runs", "verify", run_id)
        assert settled(judge, run_id)["level"] == "replayed"
        assert inner.asked == []
        posted = {
            name: post_with_lock(
                author, judge, RunFolder.open(author.home / run["run_dir"]), number, change, inner
            )
            for number, (name, change) in enumerate(LOCKS.items(), 1)
        }
        levels = {name: settled(judge, run_id)["level"] for name, run_id in posted.items()}
        assert inner.asked == []
        lacking = {"all packages", "a file that no index has", "an archive"}
        assert levels == {name: "unverifiable" if name in lacking else "replayed" for name in LOCKS}


def moved(lock: Record, names: Collection[str], change: Callable[[str], str]) -> None:
    """Change the addresses of the files of some packages."""
    for package in lock["packages"]:
        for file in package.get("wheels", []) if package["name"] in names else []:
            file["url"] = change(file["url"])


def with_unknown_file(lock: Record, inner: PackageShop, judge: LiveHub) -> None:
    (package,) = (one for one in lock["packages"] if one["name"] == "inner-dep")
    package["version"] = "2.0"
    name = "inner_dep-2.0-py3-none-any.whl"
    package["wheels"] = [{"url": f"{inner.url}/inner-dep/{name}", "hashes": {"sha256": "ab" * 32}}]


def as_archive(lock: Record, inner: PackageShop, judge: LiveHub) -> None:
    (package,) = (one for one in lock["packages"] if one["name"] == "inner-dep")
    (file,) = package.pop("wheels")
    del package["version"]
    package["archive"] = {"url": file["url"], "hashes": dict(file["hashes"])}


LOCKS: dict[str, Callable[[Record, PackageShop, LiveHub], object]] = {
    "another path": lambda lock, inner, judge: moved(
        lock, ["inner-dep"], lambda url: url.replace("/simple/", "/elsewhere/")
    ),
    "all packages": lambda lock, inner, judge: moved(
        lock,
        [one["name"] for one in lock["packages"] if one["name"] != "locked-env"],
        lambda url: f"{inner.url}/any/{url.rpartition('/')[2]}",
    ),
    "the package itself": lambda lock, inner, judge: moved(
        lock, ["locked-env"], lambda url: f"{inner.url}/any/{url.rpartition('/')[2]}"
    ),
    "a file that no index has": with_unknown_file,
    "an archive": as_archive,
    "a file of the hub that is not a package": lambda lock, inner, judge: moved(
        lock, ["inner-dep"], lambda url: f"{judge.url}/metrics/{url.rpartition('/')[2]}"
    ),
}
"""Locks that name addresses which the hub reaches and has no reason to ask."""


def post_with_lock(
    author: Machine,
    judge: LiveHub,
    run: RunFolder,
    number: int,
    change: Callable[[Record, PackageShop, LiveHub], object],
    inner: PackageShop,
) -> str:
    """Publish a version whose lock is changed, and post a run of it; return the run's id."""
    api, version = "/api/v1/environments/admin/locked-env/versions", f"0.1.{number}"
    folder = author.home / "locked-env"
    text = (folder / "pyproject.toml").read_text()
    text = re.sub(r'version = "0\.1\.\d+"', f'version = "{version}"', text)
    (folder / "pyproject.toml").write_text(text)
    author.wander("publish", folder, "--no-check", "--no-lock")
    (wheel,) = (one for one in judge.get(f"{api}/{version}").json()["files"] if one["kind"] == "wheel")
    lock = tomlkit.parse(judge.get(f"{api}/0.1.0/pylock.toml").text).unwrap()
    (own,) = (one for one in lock["packages"] if one["name"] == "locked-env")
    own["version"] = version
    own["wheels"] = [{"url": wheel["url"], "hashes": {"sha256": wheel["sha256"]}}]
    change(lock, inner, judge)
    token = {"Authorization": f"Bearer {judge.token}"}
    answer = httpx.put(
        f"{judge.url}{api}/{version}/pylock.toml", content=tomlkit.dumps(lock), headers=token, timeout=60
    )
    assert answer.status_code == 200, answer.text
    manifest = run.manifest.model_dump(mode="json", by_alias=True) | {"run_id": new_run_id()}
    manifest["environment"] |= {
        "version": version,
        "wheel_sha256": wheel["sha256"],
        "lock_sha256": answer.json()["lock"]["sha256"],
    }
    rollouts = [one.model_dump(mode="json") for one in run.rollouts()]
    posted = post(judge, manifest, rollouts)
    assert posted.status_code == 201, posted.text
    return str(manifest["run_id"])


ADDRESSES = [
    "http://127.0.0.1:{port}/x-1.0-py3-none-any.whl",
    "http://localhost:{port}/x-1.0.tar.gz",
    "http://user:word@127.0.0.1:{port}/x-1.0-py3-none-any.whl",
    "https://127.0.0.1:{port}/x-1.0-py3-none-any.whl?token=x",
    "git+http://127.0.0.1:{port}/x",
    "git+https://127.0.0.1:{port}/x@main",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_hub_requests_no_address_in_a_requirement(
    address: str, judge: LiveHub, home: Machine, mirror: str, tmp_path: Path
) -> None:
    with package_shop(tmp_path / "inner", mirror) as inner:
        name = f"asking-env-{ADDRESSES.index(address)}"
        wanted = f"x @ {address.format(port=inner.host.rpartition(':')[2])}"
        with pytest.raises(AssertionError, match="unsafe_requirement"):
            publish(home, name, SEEKER, wanted, options=("--no-lock",))
        assert inner.asked == []


def test_an_environment_cannot_find_files_of_the_hub(judge: LiveHub, home: Machine) -> None:
    publish(home, "seeking-env", SEEKER)
    data = judge.data
    folders = [
        str(data),
        str(home.home),
        "/root/.ssh",
        "/home",
        "/etc/passwd",
        "/var",
        "/run",
        "/proc/1/root/var",
    ]
    patterns = [f"/proc/self/root{data}/*", f"/usr/..{data}/*", f"{data}//hub.db", "/virtualenv/../..{data}"]
    patterns += ["/virtualenv/lib/python3*/site-packages/up/*", "/virtualenv/bin/*/hub.db"]
    arguments = json.dumps([*folders, *(f"{folder}/*" for folder in folders), *patterns])
    with chat_endpoint(lambda messages: "I look around. " * 20) as model:
        words = ("eval", "admin/seeking-env", "-m", "looker", "-b", model.base_url, "--sandbox")
        run = home.wander(*words, "-a", f"patterns={arguments}")
        outside = home.wander(*words[:-1], "--no-sandbox", "-a", f"patterns={arguments}")
    rewards = [each["summary"]["reward_mean"] for each in (run, outside)]
    assert rewards[0] == 0.0
    assert rewards[1] > 3, "outside of a sandbox it finds things, else this test would prove nothing"
    run_id = str(home.wander("post", run["run_dir"])["run_id"])
    assert settled(judge, run_id)["level"] == "replayed"
    (own,) = (
        path.parents[3] for path in data.glob("*/**/virtualenvs/*/lib/python3*/site-packages/seeking_env.py")
    )
    for change in changes(own, data):
        change()
        found = home.wander("runs", "verify", run_id)
        assert (found["level"], found["report"]["differing"]) == ("replayed", 0)


def changes(own: Path, data: Path) -> list[Any]:
    """Return what a package would like to do to its virtual environment, some of it together."""
    homes = [
        f"/usr/..{data}",
        str(data).replace("/", "//"),
        f"/var/run/../..{data}",
        "/proc/self/root/bin",
        "/",
    ]
    site = next(own.glob("lib/python3*/site-packages"))

    def configure() -> None:
        lines = "".join(f"home = {home}\n" for home in homes)
        (own / "pyvenv.cfg").write_text(f"home = /usr/bin\n{lines}", encoding="utf-16")
        (site / "names.pth").write_text("".join(f"{home}\n" for home in homes))

    def configure_again() -> None:
        (own / "pyvenv.cfg").write_text("".join(f"home={home}/bin\r\nHOME = {home}\n" for home in homes))
        (site / "up").symlink_to(data)

    def link() -> None:
        (own / "bin" / "python").unlink()
        (own / "bin" / "python").symlink_to(data / "hub.db")
        (own / "bin" / "home").symlink_to("/proc/self/root/root")

    def dangle() -> None:
        (own / "bin" / "python").unlink()

    def at_first() -> None:
        configure()
        link()

    def later() -> None:
        configure_again()
        dangle()

    return [at_first, later]
