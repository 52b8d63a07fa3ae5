"""A task set for each release of `verifiers.v1` goes from its import to a `replayed` row of a hub.

    python -m pytest tests/compat/test_task_sets_by_release.py -m slow

The library comes from the package index, half a gigabyte a release, into a virtual environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import chat_endpoint, completion
from judging_hub import settled
from live_hub import live_hub
from machine import Machine
from sandboxes import needs_sandbox
from wander.evals.store.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), needs_sandbox]
SETS = Path(__file__).parent / "releases"
INDEX = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
CACHE = {"UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))}
RELEASES = {"sums-0-1": "0.1.14", "sums-0-2": "0.2.1", "sums-0-3": "0.3.1", "sums-0-4": "0.4."}


class OnTheIndex(Machine):
    """A machine that takes packages from the index that this one is configured for."""

    def run(self, name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run an installed command; half a gigabyte of packages is fetched, where no cache has them."""
        return super().run(name, *arguments, timeout=900, **options)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its commands see."""
        own = super().environment
        for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL", "PIP_CONFIG_FILE"):
            del own[name]
        return own | INDEX | CACHE | self.extra


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The administrator's, on a hub of its own that replays in its sandbox."""
    asked = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d"]
    reached = subprocess.run([*asked, str(tmp_path_factory.mktemp("asked")), "verifiers==0.4.0"], check=False)
    if reached.returncode:
        pytest.skip("no package index has verifiers")
    # `verifiers` 0.1.14 needs `wget`, which has no wheel: who trusts it builds one, for every machine.
    wheels = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(wheels), "wget==3.2"]
    subprocess.run(build, check=True)
    links = {"PIP_FIND_LINKS": f"{INDEX.get('PIP_FIND_LINKS', '')} {wheels}".strip()}
    settings = {"WANDER_HUB_VERIFICATION": "sandbox", "WANDER_HUB_CHECK_VERSIONS": "false"}
    with live_hub(tmp_path_factory.mktemp("hub"), **{**INDEX, **CACHE, **links}, **settings) as hub:
        yield OnTheIndex(tmp_path_factory.mktemp("home"), hub, "", links)


def call_the_tool(name: str, messages: list[dict]) -> str | bytes:
    """Call the tool for the number asked for, and say what it answers."""
    last = messages[-1]
    if last["role"] == "tool":
        content = last["content"]
        return content if isinstance(content, str) else content[0]["text"]
    function = {"name": name, "arguments": json.dumps({"x": int(last["content"].split()[-1])})}
    answer = json.loads(completion("echo", ""))
    answer["choices"][0]["message"] |= {
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    return json.dumps(answer).encode()


@pytest.mark.parametrize(("name", "release"), RELEASES.items())
def test_a_task_set_of_each_release_is_imported_played_and_replayed(machine, name, release):
    folder = SETS / name.replace("-", "_")
    done = machine.wander("env", "import", "path", folder, "--out", machine.home / name)
    assert (done["library"], done["kind"], done["examples"]) == ("verifiers.v1", "taskset", 3)
    failed = {each["id"] for each in done["check"]["findings"] if each["status"] == "fail"}
    assert failed <= {"load.light"}  # 0.1.14 imports `datasets` itself
    lock = (machine.home / name / "pylock.toml").read_text()
    assert f'name = "verifiers"\nversion = "{release}' in lock
    machine.wander("install", f"admin/{name}")
    tool = "double" if name == "sums-0-1" else "math_double"
    with chat_endpoint(partial(call_the_tool, tool)) as endpoint:
        run = machine.home / "runs" / name
        machine.wander("eval", f"admin/{name}", "-m", "echo", "-b", endpoint.base_url, "-n", 3, "--out", run)
    rollouts = list(RunFolder.open(run).rollouts())
    assert [each.reward for each in rollouts] == [2.0] * 3
    assert [each.metrics for each in rollouts] == [{"calls": 1.0, "right": 1.0}] * 3
    assert RunFolder.open(run).manifest.environment.sandbox is not None
    assert machine.wander("runs", "replay", run)["same"] == 3
    machine.wander("post", run)
    found = settled(machine.hub, RunFolder.open(run).manifest.run_id)
    assert found["level"] == "replayed", found["level_reason"]
    assert machine.wander("leaderboard", f"admin/{name}")["rows"][0]["level"] == "replayed"
