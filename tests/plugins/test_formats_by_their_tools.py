"""Exported runs are opened by the packages whose formats they have, in a virtual environment of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from exported_runs import ConversationRun
from wander.evals.export import Format, export_runs
from wander_client.packages.interpreters import choose_python
from wander_client.packages.uv import make_virtualenv, run_uv

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the packages. Two of them need Python 3.12."""
    place = tmp_path_factory.mktemp("tools")
    make_virtualenv(place, choose_python(">=3.12", "`every-eval-ever`").path)
    found = place / "bin" / "python"
    install = ["pip", "install", "--quiet", "--python", str(found)]
    run_uv([*install, "every-eval-ever==0.3.0", "inspect-ai==0.3.285"], doing="installing the tools")
    # Harbor itself requires a cloud client, a proxy and a server, but its models only pydantic.
    run_uv([*install, "--no-deps", "harbor==0.26.0"], doing="installing Harbor")
    return found


def export(path: Path, kind: Format) -> Path:
    for _ in export_runs([ConversationRun()], path, kind):
        pass
    return path


def opened(python: Path, script: str, folder: Path) -> str:
    """Run a script in a folder and return what it prints."""
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


HARBOR = """
import json
from pathlib import Path
from harbor.models.trajectories import Trajectory

read = [Trajectory.model_validate_json(file.read_text()) for file in sorted(Path("out").iterdir())]
assert len(read) == 6
assert [step.source for step in read[0].steps] == ["system", "user", "agent", "agent", "user", "agent"]
assert read[0].steps[2].observation.results[0].source_call_id == "c1"
assert read[0].extra["metrics"] == {"won": 0.0, "of/odd name": 1.0}
again = [trajectory.to_json_dict() for trajectory in read]
assert [Trajectory.model_validate(each) for each in again] == read
print("read")
"""


def test_harbor_reads_trajectories(python: Path, tmp_path: Path) -> None:
    export(tmp_path / "out", "atif")
    assert opened(python, HARBOR, tmp_path) == "read\n"


VALIDATOR = """
import json, sys
from pathlib import Path
from every_eval_ever.validate import main

files = sorted(map(str, Path("out").rglob("*.json*")))
assert len(files) == 2
assert main([str(Path(file).resolve()) for file in files]) == 0  # 1: errors, 2: warnings
print("valid")
"""


def test_the_validator_of_every_eval_ever_has_no_complaint(python: Path, tmp_path: Path) -> None:
    export(tmp_path / "out", "every-eval-ever")
    assert opened(python, VALIDATOR, tmp_path).endswith("valid\n")
