"""Nothing that is published says where files lie on the machine of its publisher."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from command_line import HubRoom, make_wheel
from hypothesis import given
from hypothesis import strategies as st
from received_folders import change_manifest
from saved_runs import write_run
from wander.evals.store.folder import RunFolder
from wander.types import Failure
from wander.wire.models import CheckpointFacts
from wander_client.hub.local_paths import local_arguments, publish_manifest, publish_settings, publish_text
from wander_client.training.card import write_card

FACTS = CheckpointFacts("LlamaForCausalLM", 32)


@pytest.fixture
def person(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a person, next to the folders of the hub."""
    place = home / "people" / "ada.l"
    place.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(place))
    return place


def everything(folder: Path) -> bytes:
    """Return what a hub keeps, unpacked."""
    found = b""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = b"".join(map(archive.read, archive.namelist()))
        elif content.startswith(b"\x28\xb5\x2f\xfd"):
            content = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
        found += content
    return found


def failing(run: Path, message: str) -> None:
    """Have the first rollout of a run fail with a message."""
    folder = RunFolder.open(run)
    rollouts = list(folder.rollouts())
    failure = Failure(boundary="environment", type="OSError", message=message)
    rollouts[0] = rollouts[0].model_copy(update={"reward": None, "failure": failure})
    (run / "rollouts.jsonl.zst").unlink()
    (run / "rollouts.jsonl").write_text("".join(f"{each.model_dump_json()}\n" for each in rollouts))


def test_published_packages_contain_no_local_path(
    hub: HubRoom, home: Path, person: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of record has full paths on disk, and what the hub keeps has none."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    hub.publish(make_wheel(tmp_path, version="0.1.0"))
    weights = person / "models" / "mine"
    weights.mkdir(parents=True)
    evaluated = write_run(home / "runs" / "one", rewards=[1.0, 0.0, 1.0], model=str(weights))
    change_manifest(
        evaluated,
        environment__arguments={"rows": f"{person}/rows.jsonl", "root": "/tmp"},
        model__details={"command": ["vllm", f"--model={weights}"]},
        notes=f"played in {person}",
    )
    failing(evaluated, f"[Errno 2] No such file: '{person}/rows.jsonl' (also {person}: gone)")
    for kind in ("atif", "every-eval-ever", "eval-results", "inspect"):
        hub.wander("runs", "export", str(evaluated), "-o", str(home / "exported" / kind), "--format", kind)
    for file in (home / "exported").rglob("*"):
        if file.suffix == ".eval":
            with zipfile.ZipFile(file) as archive:
                exported = b"".join(map(archive.read, archive.namelist()))
        else:
            exported = file.read_bytes() if file.is_file() else b""
        assert str(person).encode() not in exported, file
    assert len([*(home / "exported").iterdir()]) == 4
    posted = hub.wander("post", str(evaluated), "--json")
    assert posted.status == 0, posted.out
    assert "`root`" in posted.json["warnings"][0], "which anybody else would look for in vain"
    trained = write_run(home / "runs" / "two", rewards=[1.0], model="mine")
    change_manifest(trained, kind="training", training=settings_of(person))
    alert = {"step": 1, "rule": "entropy_low", "message": f"see {person}/x"}
    (trained / "alerts.jsonl").write_text(f"{json.dumps(alert)}\n")
    drawn = f'<svg xmlns="http://www.w3.org/2000/svg"><title>{person}/x</title></svg>'
    (trained / "reward.svg").write_text(drawn)
    done = hub.wander("post", str(trained), "--json")
    assert done.status == 0, done.out
    kept = everything(home / "hub")
    assert str(person).encode() not in kept
    assert b"~/rows.jsonl" in kept
    run_id = RunFolder.open(trained).manifest.run_id
    page = hub.http.get(f"/runs/{run_id}", headers={"Accept": "text/html"}).text
    assert "<code>gone</code> are not available" in page
    assert "path = &#34;gone" not in page
    manifest = hub.http.get(f"/api/v1/runs/{RunFolder.open(evaluated).manifest.run_id}").json()["manifest"]
    assert manifest["model"]["name"] == "mine"
    assert manifest["environment"]["arguments"] == {"rows": "~/rows.jsonl", "root": "/tmp"}
    card = write_card("mine", FACTS, "0" * 64, (trained, RunFolder.open(trained).manifest), [])
    assert str(person) not in card
    # What lies here keeps its paths, and posting it again is posting the same.
    assert str(person) in (evaluated / "run.json").read_text()
    assert hub.wander("post", str(evaluated), "--json").data["run_id"] == manifest["run_id"]


def settings_of(person: Path) -> dict[str, Any]:
    """Return settings of a training run whose weights are folders of the person."""
    return {
        "model": {"path": f"{person}/models/gone/model", "device": None},
        "teacher": {"path": f"{person}/models/mine"},
        "players": {"opponent": {"model": f"{person}/models/mine"}},
        "environment": {"arguments": {"rows": f"{person}/rows.jsonl", "root": "/tmp"}},
    }


def test_published_settings_contain_no_local_folder(home: Path, person: Path) -> None:
    (person / "models" / "mine").mkdir(parents=True)
    found = publish_settings(settings_of(person))
    assert found["model"] == {"path": "gone", "device": None}
    assert found["teacher"] == {"path": "mine"}
    assert found["players"]["opponent"]["model"] == "mine"
    assert found["environment"]["arguments"] == {"rows": "~/rows.jsonl", "root": "/tmp"}


def test_arguments_with_local_paths_are_found(person: Path, tmp_path: Path) -> None:
    (person / "rows.jsonl").touch()
    arguments = {
        "one": "~/rows.jsonl",
        "two": {"inner": [str(tmp_path)]},
        "three": "/nowhere/of this/machine",
        "four": "openai/gsm8k",
        "five": 5,
    }
    assert local_arguments(arguments) == ["one", "two"]
    for path, name in (
        ("Qwen/Qwen3-0.6B", "hf:Qwen/Qwen3-0.6B"),
        ("hf:Qwen/Qwen3-0.6B", "hf:Qwen/Qwen3-0.6B"),
        ("smollm2", "smollm2"),
        ("hub:acme/ttt@9c1f03a2b4d5", "hub:acme/ttt@9c1f03a2b4d5"),
        ("/srv/elsewhere/base", "base"),
        ("~/models/other", "other"),
        ("./models/third", "third"),
    ):
        assert publish_settings({"model": {"path": path}}) == {"model": {"path": name}}


@given(
    before=st.text(alphabet=" '\"(=:,\n", max_size=3),
    after=st.sampled_from(["", "/", "/x", "/.cache/y", "'", '"', ")", ":3", ", line 4", "\n", " "]),
    text=st.text(max_size=20),
)
def test_the_home_folder_is_removed_from_texts(before: str, after: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", "/home/ada.l")
        assert publish_text(f"{before}/home/ada.l{after}") == f"{before}~{after}"
        for other in ("/home/ada.lovelace/x", "/srv/home/ada.l", "/home/ada", text):
            assert publish_text(other) == other
        patch.setenv("HOME", "/")
        assert publish_text("/etc and /") == "/etc and /"


def test_folders_are_removed_from_names_of_players(home: Path, person: Path) -> None:
    run = write_run(home / "runs" / "one", rewards=[1.0])
    change_manifest(run, players={"other": {"name": f"{person}/models/mine/model", "kind": "HFClient"}})
    players = json.loads(publish_manifest((run / "run.json").read_bytes()))["players"]
    assert players["other"]["name"] == "mine"


def test_a_manifest_without_local_paths_is_posted_unchanged(home: Path, person: Path) -> None:
    run = write_run(home / "runs" / "one", rewards=[1.0])
    text = (run / "run.json").read_bytes()
    assert publish_manifest(text) == text
