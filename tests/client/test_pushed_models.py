"""Models between a machine and the hub: pushed, pulled, gone on after a break, held against digests."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import wander
import yaml
from command_line import HubRoom, Result
from received_folders import REPLACEMENTS, make_socket
from saved_runs import write_run
from small_models import checkpoint, digests, tokenizer, weights
from wander.errors import ModelNotFound
from wander.evals.store.folder import RunFolder
from wander.models.loading import model_name, resolve_model, weights_digest
from wander.models.pulled import find_pulled
from wander.wire import RunManifest
from wander.wire.models import CheckpointFacts, parse_model, revision_of, weights_of
from wander_client.errors import ClientError, Unavailable
from wander_client.hub import transfer
from wander_client.models.reference import local_path
from wander_client.training.card import write_card
from wander_client.training.pushing import pack_model

KIB = 1024
LARGE = weights("large", rows=64 * KIB, width=4)
"""A megabyte, more than the chunks that these tests send."""


@pytest.fixture(autouse=True)
def logged_in(hub: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDER_TOKEN", hub.token)


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, body in files.items():
        (folder / name).write_bytes(body)
    return folder


def pushed(hub: HubRoom, folder: Path, name: str = "admin/ttt", *words: str) -> Result:
    done = hub.wander("model", "push", name, str(folder), *words, "--json")
    assert done.status == 0, done.out
    return done


class Breaking(httpx.BaseTransport):
    """Breaks connections off as `breaks` says: given a request, after so many bytes of the answer."""

    def __init__(self, transport: httpx.BaseTransport, breaks: Callable[[httpx.Request], int | None]) -> None:
        self._transport, self._breaks = transport, breaks
        self.seen: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        after = self._breaks(request)
        self.seen.append(f"{request.method} {request.url.path} {request.headers.get('range', '')}".strip())
        if after == 0:
            raise httpx.ConnectError("no route", request=request)
        answer = self._transport.handle_request(request)
        if after is None:
            return answer
        body = answer.read()

        class Torn(httpx.SyncByteStream):
            def __iter__(self):  # type: ignore[no-untyped-def]
                yield body[:after]
                raise httpx.ReadError("the connection ended", request=request)

        headers = [(key, value) for key, value in answer.headers.multi_items() if key != "content-length"]
        return httpx.Response(answer.status_code, headers=headers, stream=Torn())


def test_a_pushed_model_is_identified_by_its_digests(hub: HubRoom, home: Path) -> None:
    files = checkpoint()
    folder = written(home / "made" / "model", {**files, "optimizer.pt": b"pickled", ".gitattributes": b"x"})
    first = pushed(hub, folder)
    assert (first.data["revision"], sorted(first.data["sent"])) == (
        revision_of(digests(files)),
        sorted(files),
    )
    assert pushed(hub, folder).data["sent"] == []
    unknown = hub.wander("model", "pull", "admin/nosuch")
    assert unknown.status == 3
    assert "hint: see the models of the hub at http" in unknown.err
    done = hub.wander("model", "pull", "Admin/ttt", "--json")
    assert done.status == 0, done.out
    place = Path(done.data["folder"])
    assert {one.name: one.read_bytes() for one in place.iterdir()} == files
    assert weights_digest(place) == weights_of(digests(files)) == weights_digest(folder)
    short = f"hub:admin/ttt@{first.data['revision'][:12]}"
    for word in ("hub:admin/ttt", short):
        assert (local_path(word), resolve_model(word)) == (str(place), (str(place), "admin/ttt"))
    assert model_name(place) == "admin/ttt"
    again = hub.wander("model", "pull", "admin/ttt", "--json")
    assert again.data["fetched_bytes"] == 0
    listed = hub.wander("model", "list", "--json").data
    assert {one["name"]: one["parameters"] for one in listed} == {short: 32}
    (folder / "README.md").write_text("# Another card\n")
    later = pushed(hub, folder).data
    assert (later["sent"], later["weights_sha256"]) == (["README.md"], first.data["weights_sha256"])
    rows = hub.wander("model", "list", "admin/ttt").out
    assert rows.index(later["revision"][:12]) < rows.index(first.data["revision"][:12])
    assert wander.Hub(hub.http.base_url, hub.token, transport=hub.transport).pull_model(short) == place


def test_hub_models_are_not_confused_with_hugging_face_models(hub: HubRoom, home: Path) -> None:
    pushed(hub, written(home / "model", checkpoint()))
    assert hub.wander("model", "pull", "admin/ttt").status == 0
    assert resolve_model("admin/ttt") == ("admin/ttt", "admin/ttt"), "Hugging Face's, as everywhere else"
    with pytest.raises(ModelNotFound, match="was not pulled") as refused:
        resolve_model("hub:admin/other")
    assert refused.value.hint == "run `wander model pull admin/other`"
    for word in ("hub:", "hub:x", "hub:../x", "hub:admin/ttt@xyz", "hub:аdmin/ttt", "admin/ttt@", "a/b/c"):
        done = hub.wander("model", "pull", word) if "/" in word else None
        assert done is None or done.status == 2, word
        with pytest.raises(wander.errors.ConfigError, match="is not the name of a model on a hub"):
            parse_model(word)


def test_changed_weights_are_detected_and_downloaded_again(hub: HubRoom, home: Path) -> None:
    pushed(hub, written(home / "model", checkpoint()))
    hub.wander("model", "pull", "admin/ttt")
    model = find_pulled("hub:admin/ttt")
    damaged = model.folder / "model.safetensors"
    body = bytearray(damaged.read_bytes())
    body[-1] ^= 1
    damaged.write_bytes(body)
    (model.folder / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFound, match=r"`tokenizer\.json` was removed") as refused:
        resolve_model("hub:admin/ttt")
    assert "wander model pull admin/ttt@" in (refused.value.hint or "")
    mended = hub.wander("model", "pull", "admin/ttt", "--json").data
    assert mended["fetched_bytes"] == len(body) + len(tokenizer())
    assert resolve_model("hub:admin/ttt")[1] == "admin/ttt"
    (model.folder / "extra.safetensors").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"`extra\.safetensors` was added"):
        resolve_model(model.folder)


def test_unchanged_files_are_not_hashed_again(hub: HubRoom, home: Path) -> None:
    pushed(hub, written(home / "model", checkpoint()))
    hub.wander("model", "pull", "admin/ttt")
    model = find_pulled("hub:admin/ttt")
    resolve_model("hub:admin/ttt")
    stamps, body = model.folder.with_suffix(".stamps"), model.folder / "model.safetensors"
    assert json.loads(stamps.read_text()).keys() == {one.filename for one in model.record.files}
    then = body.stat()
    body.write_bytes(weights("other"))
    os.utime(body, ns=(then.st_atime_ns, then.st_mtime_ns))
    with pytest.raises(ModelNotFound, match=r"`model\.safetensors` was changed"):
        resolve_model("hub:admin/ttt")
    stamps.write_text("{")
    body.write_bytes(weights())
    assert resolve_model("hub:admin/ttt")[1] == "admin/ttt"


@pytest.mark.parametrize("kind", ["changed", "cut off"])
def test_wrong_bytes_from_the_hub_are_rejected(hub: HubRoom, home: Path, kind: str) -> None:
    pushed(hub, written(home / "model", checkpoint()))
    stored = next((home / "hub" / "objects").glob(f"sha256/{'/'.join(_parts('model.safetensors'))}"))
    body = weights("other") if kind == "changed" else weights()[:-5]
    stored.chmod(0o644)
    stored.write_bytes(body)
    done = hub.wander("model", "pull", "admin/ttt")
    assert done.status != 0
    with pytest.raises(ModelNotFound):
        find_pulled("hub:admin/ttt")


def _parts(name: str) -> tuple[str, str]:
    sha256 = digests(checkpoint())[name]
    return sha256[:2], sha256[2:]


def test_a_pull_resumes_after_a_lost_connection(
    hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wander_client.models.pulling.PATIENCE", 0.0)
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)
    pushed(hub, written(home / "model", checkpoint(model_safetensors=LARGE)))
    half = len(LARGE) // 2
    torn = Breaking(hub.transport, lambda sent: half if sent.url.path.endswith(".safetensors") else None)
    with pytest.raises(Unavailable, match="was lost") as refused:
        over(torn).pull_model("admin/ttt")
    assert refused.value.hint == transfer.GO_ON
    whole = Breaking(hub.transport, lambda sent: None)
    over(whole).pull_model("admin/ttt")
    model = find_pulled("hub:admin/ttt")
    asked = next(one for one in whole.seen if ".safetensors bytes=" in one)
    assert 0 <= half - int(asked.rpartition("=")[2].rstrip("-")) < 64 * KIB
    assert (model.folder / "model.safetensors").read_bytes() == LARGE
    assert model.fault() is None
    assert not list(model.folder.parent.glob(".*-*"))


def over(transport: httpx.BaseTransport) -> wander.Hub:
    return wander.Hub("https://testserver", transport=transport)


def test_a_push_resumes_after_the_hub_was_down(
    hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 100 * KIB)
    monkeypatch.setattr(transfer, "PATIENCE", 0.0)
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)
    folder = written(home / "model", checkpoint(model_safetensors=LARGE))
    chunks = 0

    def down(request: httpx.Request) -> int | None:
        nonlocal chunks
        chunks += request.method == "PUT"
        return 0 if chunks > 6 else None

    with pytest.raises(Unavailable) as refused:
        over(Breaking(hub.transport, down)).push_model("admin/ttt", folder)
    assert refused.value.hint == transfer.GO_ON
    assert hub.wander("model", "list", "admin/ttt").status == 3, "nobody sees a part"
    again = Breaking(hub.transport, lambda sent: None)
    assert over(again).push_model("admin/ttt", folder).weights_sha256 == weights_digest(folder)
    assert 0 < sum(one.startswith("PUT") for one in again.seen) < 10, "what was there is not sent again"


def test_weights_that_change_during_a_push_are_rejected(
    hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(home / "model", checkpoint())

    def trains_on(request: httpx.Request) -> None:
        if request.method == "POST" and request.url.path == "/api/v1/transfers/models":
            (folder / "model.safetensors").write_bytes(weights("a step later"))

    with pytest.raises(ClientError) as refused:
        over(Breaking(hub.transport, trains_on)).push_model("admin/ttt", folder)
    assert refused.value.code == "digest_mismatch"
    assert refused.value.hint == "push again when no other program writes to the folder"
    pushed(hub, folder)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "there is no `config.json`"),
        (checkpoint(pytorch__model_bin=b"pickled"), "not allowed in a model: pytorch-model.bin"),
        (checkpoint(modeling__x_py=b"import os"), "not allowed in a model: modeling-x.py"),
        (checkpoint(config_json=b'{"auto_map": {}, "model_type": "x"}'), "requires custom code"),
        (checkpoint(tokenizer_json=tokenizer(9)), "weights and tokenizer do not fit"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": weights()}, "contains adapters"),
    ],
)
def test_folders_without_a_checkpoint_are_rejected_before_a_push(
    hub: HubRoom, home: Path, files: dict[str, bytes], told: str
) -> None:
    done = hub.wander("model", "push", "admin/ttt", str(written(home / "model", files)))
    assert done.status == 2
    assert told in done.err
    assert "hint: " in done.err


def test_a_push_needs_a_name_and_a_model(hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(home / "model", checkpoint())
    evaluation = write_run(home / "runs" / "mine", rewards=[1.0])
    for words, status, told in (
        (("ttt", str(folder)), 2, "is not the name of a model on a hub"),
        (("admin/ttt@abcdef", str(folder)), 2, "names a revision"),
        (("admin/settings", str(folder)), 1, "cannot be the name of a model"),
        (("nobody/ttt", str(folder)), 3, "there is no owner `nobody`"),
        (("admin/ttt", "runs/none"), 3, "is neither a folder nor a run"),
        (("admin/ttt", str(evaluation)), 3, "it is not a training run"),
    ):
        done = hub.wander("model", "push", *words)
        assert (done.status, told in done.err) == (status, True), done.err
    monkeypatch.setenv("WANDER_TOKEN", "wnd_wrong")
    assert hub.wander("model", "push", "admin/ttt", str(folder)).status == 4
    monkeypatch.delenv("WANDER_TOKEN")
    assert hub.wander("model", "push", "admin/ttt", str(folder)).status == 4


def test_a_pushed_model_is_listed_yanked_and_deleted(hub: HubRoom, home: Path) -> None:
    folder = written(home / "model", checkpoint())
    first = pushed(hub, folder, "admin/ttt", "--private").data
    assert first["private"]
    assert hub.wander("model", "visibility", "admin/ttt", "public").status == 0
    assert hub.wander("model", "visibility", "admin/ttt", "secret").status == 2
    assert not pushed(hub, folder).data["private"]
    name = f"admin/ttt@{first['revision'][:12]}"
    assert hub.wander("model", "yank", "admin/ttt").status == 2
    assert hub.wander("model", "yank", name, "--reason", "it cheats").status == 0
    pulled = hub.wander("model", "pull", name)
    assert pulled.status == 0
    assert f"`{name}` was yanked: it cheats" in pulled.err
    assert hub.wander("model", "yank", name, "--undo").status == 0
    assert hub.wander("model", "delete", name, "--yes").status == 0
    assert hub.wander("model", "pull", name).status == 3
    assert "was deleted" in hub.wander("model", "push", "admin/ttt", str(folder)).err
    assert hub.wander("model", "delete", "admin/ttt", "--yes").status == 0
    assert "was deleted" in hub.wander("model", "list", "admin/ttt").err


def test_the_card_describes_training_and_results(hub: HubRoom, home: Path) -> None:
    files = checkpoint(README_md=None)
    digest = weights_of(digests(files))
    run = write_run(home / "runs" / "trained", rewards=[1.0])
    manifest = json.loads((run / "run.json").read_text())
    manifest |= {"kind": "training", "training": {"model": {"path": "/home/ada/x"}, "schedule": {"steps": 4}}}
    (run / "run.json").write_text(json.dumps(manifest))
    (run / "checkpoints.jsonl").write_text(json.dumps({"step": 4, "weights_sha256": digest}) + "\n")
    evaluations = [
        {
            "step": step,
            "cell": "eval",
            "split": "eval",
            "task_set_sha256": "x",
            "examples": 9,
            "reward": step / 4,
        }
        for step in (0, 4)
    ]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in evaluations))
    written(run / "model", files)
    told = write_run(home / "runs" / "told", rewards=[1.0, 0.0], model="ttt")
    manifest = json.loads((told / "run.json").read_text())
    manifest["model"]["weights_sha256"] = digest
    (told / "run.json").write_text(json.dumps(manifest))
    done = hub.wander("model", "push", "admin/ttt", str(run), "--json")
    assert done.status == 0, done.out
    hub.wander("model", "pull", "admin/ttt")
    card = (find_pulled("hub:admin/ttt").folder / "README.md").read_text()
    assert "# admin/ttt" in card
    assert "step 4" in card
    assert "steps = 4" in card
    assert "/home/ada" not in card
    assert "| 4 | eval | 9 | 1.0000 |" in card
    assert f"`{manifest['run_id']}`" in card
    assert os.fspath(home) not in card


@pytest.mark.parametrize(
    "name",
    [
        *("notes.txt", "model.safetensors"),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("README.md", "config.json", "checkpoints")),
    ],
)
@pytest.mark.parametrize(
    "put",
    [
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to("../mine"),
        lambda path: path.symlink_to("/"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/dev/zero"),
        os.mkfifo,
        make_socket,
    ],
)
def test_a_push_does_not_follow_symbolic_links(
    name: str, put: Callable[[Path], object], hub: HubRoom, home: Path
) -> None:
    (home / "mine").write_text("secret")
    folder = written(home / "model", checkpoint())
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    refused = hub.wander("model", "push", "admin/ttt", str(folder), "--json")
    assert (refused.status, refused.json["error"]["code"]) == (2, "unsafe_file")
    assert name in refused.json["error"]["message"]
    assert hub.http.get("/api/v1/models/admin/ttt", headers={"Authorization": f"Bearer {hub.token}"}).is_error


def test_a_push_lists_its_files(hub: HubRoom, home: Path) -> None:
    folder = written(home / "model", {**checkpoint(), "notes.txt": b"x", "optimizer.pt": b"x"})
    told = hub.wander("model", "push", "admin/ttt", str(folder)).err
    sent = next(line for line in told.splitlines() if line.startswith("sends: "))
    assert set(sent.removeprefix("sends: ").split(", ")) == {*checkpoint(), "notes.txt"}


def test_a_link_that_comes_during_a_push_is_not_followed(home: Path) -> None:
    packed = pack_model(written(home / "model", checkpoint()))
    (home / "model" / "config.json").unlink()
    (home / "model" / "config.json").symlink_to("/etc/passwd")
    with pytest.raises(OSError):
        packed.open("config.json")


@pytest.mark.parametrize("put", [*REPLACEMENTS.values(), lambda path: path.write_bytes(b"\xff" * 8 + b"x")])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("model.safetensors", "more.safetensors")),
    ],
)
def test_a_bad_model_does_not_stop_the_list(
    name: str, put: Callable[[Path], object], hub: HubRoom, home: Path
) -> None:
    written(home / "runs" / "good" / "model", checkpoint())
    folder = written(home / "runs" / "bad" / "model", checkpoint())
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    listed = hub.wander("model", "list", "--json")
    assert listed.status == 0, listed.out
    assert "good" in [row["name"] for row in listed.data]
    assert "bad" not in [row["name"] for row in listed.data]


@pytest.mark.parametrize(
    "text",
    [
        "`",
        "a`](http://x)",
        "| x | y |",
        "[x](http://y)",
        "# head",
        "<script>",
        "*b*",
        "_i_",
        "a\n\n# b",
        "\\",
        "a|b",
    ],
)
def test_names_from_others_cannot_break_the_card(text: str, tmp_path: Path) -> None:
    run = RunFolder.open(write_run(tmp_path / "run", rewards=[1.0]))
    manifest = run.manifest
    pin = manifest.environment.model_copy(update={"owner": None, "name": text})
    changed = manifest.model_copy(
        update={"environment": pin, "model": manifest.model.model_copy(update={"name": text})}
    )
    summary = run.summary()
    assert summary is not None

    def card(one: RunManifest, architecture: str) -> list[str]:
        facts = CheckpointFacts(architecture, 3)
        return write_card("a/b", facts, "0" * 64, (run.path, one), [(one, summary)]).splitlines()

    plain, written = card(manifest, "Llama"), card(changed, " ".join(text.split()))
    assert len(written) == len(plain)
    (start, end), (_, same) = (
        [at for at, line in enumerate(lines) if line == "---"] for lines in (plain, written)
    )
    assert (start, end) == (0, same)
    metadata = yaml.safe_load("\n".join(written[1:end]))  # not Markdown: the hub removes it
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["name"] == text
    for before, after in zip(plain[end:], written[end:], strict=True):
        assert [signs(after).count(sign) for sign in SIGNS] == [signs(before).count(sign) for sign in SIGNS]


SIGNS = "`|[]<>#*_"


def signs(line: str) -> str:
    """Return a line of Markdown without what is escaped and without what stands in code."""
    return re.sub(r"\\.|(`)[^`]*(`)", r"\1\2", line)
