"""`wander-hub` at the command line: help, errors, tokens of later starts, one hub a data folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from live_hub import BIN, clean_environment, run_program
from pydantic import ValidationError
from wander_hub import __version__
from wander_hub.cli import main as cli
from wander_hub.cli import options
from wander_hub.database import Database
from wander_hub.http.problems import HubProblem
from wander_hub.server import data_folder, first_token
from wander_hub.settings import Settings
from wander_hub.storage import ForeignFolder, make_data_folder

COMMAND = [sys.executable, "-m", "wander_hub.cli.main"]
SECONDS = 180
"""A busy machine starts a hub in half a minute."""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return run_program([str(BIN / "wander-hub"), *words], clean_environment(), timeout=SECONDS)


@contextmanager
def serving(data: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Give the process of a hub, its address, and what it said until it listened."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--data", str(data), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"WANDER_HUB_BUNDLED_PACKAGES": "false"},
    )
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    said, address = "", ""
    try:
        assert process.stderr
        for line in process.stderr:
            said += line
            if match := re.search(r"listens on (http://\S+)", line):
                address = match[1]
                break
        assert address, said
        yield process, address, said
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
        watchdog.cancel()


def whoami(address: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{address}/api/v1/whoami", headers=headers, timeout=SECONDS).status_code


def test_a_folder_with_other_files_is_rejected_and_unchanged(tmp_path: Path, typed) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for command in (("serve", "--port", "0"), ("work", "--once"), ("migrate",)):
        if command[0] == "serve":  # it opens its port first
            refused = run(*command, "--data", str(tmp_path))
            status, err = refused.returncode, refused.stderr
        else:
            status, _, err = typed(*command, "--data", str(tmp_path))
        assert status == 2
        first_line, *_, hint = err.splitlines()
        assert first_line.startswith(f"error: `{tmp_path}` is not empty and is not the data folder of a hub")
        assert "`thesis.tex`" in first_line
        assert f"--data {tmp_path / 'wander-hub-data'}" in hint
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_mounted_volume_and_a_folder_of_a_hub_are_accepted(tmp_path: Path) -> None:
    for name in ("lost+found", ".snapshot", "hub.log"):
        (tmp_path / name).mkdir()
    settings = Settings(data=tmp_path)
    make_data_folder(settings)
    (tmp_path / "token").write_text("next to the database")
    make_data_folder(settings)
    shared = settings.model_copy(update={"data": tmp_path / "files", "database_url": "postgresql://x/y"})
    (tmp_path / "files" / "objects").mkdir(parents=True)
    (tmp_path / "files" / "token").touch()
    make_data_folder(shared)
    (tmp_path / "files" / "objects").rmdir()
    with pytest.raises(ForeignFolder):
        make_data_folder(shared)


def test_options_that_need_another_option_are_rejected(tmp_path: Path, typed) -> None:
    for words, message in (
        (("user", "identity", "ada", "--issuer", "x"), "`--issuer` requires `--link` or `--unlink`"),
    ):
        status, _, err = typed(*words, "--data", str(tmp_path))
        assert (status, message in err) == (2, True), err


@pytest.mark.full
def test_a_second_hub_on_a_data_folder_is_rejected(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (process, address, _):
        second = run("serve", "--port", "0", "--data", str(tmp_path / "data"))
        assert second.returncode == 2
        first_line, *_, hint = second.stderr.splitlines()
        assert first_line.startswith(f"error: a hub already uses the data folder `{tmp_path / 'data'}`")
        assert f"process {process.pid} at {address} holds `hub.lock`" in first_line
        assert f"kill {process.pid}" in hint
        assert httpx.get(f"{address}/health", timeout=SECONDS).status_code == 200
        beside = run("user", "add", "ada", "--data", str(tmp_path / "data"))
        assert beside.returncode == 0, "other commands work beside a hub that runs"


def test_the_lock_is_released_with_its_process(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    held = data_folder.hold_data_folder(settings, "http://h:1")
    assert held is not None
    with pytest.raises(data_folder.DataFolderInUse, match=rf"process {os.getpid()} at http://h:1"):
        data_folder.hold_data_folder(settings, "http://h:2")
    assert data_folder.address_of(settings) == "http://h:1"
    assert data_folder.address_of(Settings(data=tmp_path / "none")) is None
    os.close(held)
    again = data_folder.hold_data_folder(settings, "http://h:3")
    assert again is not None, "a file left behind locks nobody out"
    os.close(again)
    elsewhere = Settings(data=tmp_path / "none", database_url="postgresql+psycopg://x/y")
    assert data_folder.hold_data_folder(elsewhere, "") is None


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@x/y", "postgres://u:secret@x/y", "postgresql://u:secret@x"]
)
def test_an_unknown_database_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ValidationError, match=r"must be `sqlite` or `postgresql\+psycopg`") as refused:
        Settings(database_url=url)
    assert [error["loc"] for error in refused.value.errors()] == [("database_url",)]
    assert "secret" not in refused.value.errors()[0]["msg"]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(Settings(data=tmp_path).resolved_database_url)
    database.migrate()
    yield database
    database.close()


def test_a_token_file_option_on_an_existing_hub_is_reported(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, elsewhere = tmp_path / "token", tmp_path / "elsewhere"
    first_token.hand_out_token(database, file, new=False, data=tmp_path)
    said = capsys.readouterr().err
    assert "added the administrator `admin`" in said
    assert f"`wander-hub user password admin --data {tmp_path}`" in said
    token = file.read_text()

    first_token.hand_out_token(database, file, new=False)
    assert (
        capsys.readouterr().err == f"the token in `{file}` is valid for this hub; no new token was created\n"
    )

    first_token.hand_out_token(database, elsewhere, new=False)
    said = capsys.readouterr().err
    assert f"`{elsewhere}` was not written" in said
    assert "--new-token" in said
    assert not elsewhere.exists()

    elsewhere.write_text("wnd_of_another_hub")
    first_token.hand_out_token(database, elsewhere, new=False)
    assert f"`{elsewhere}` has no token of this hub" in capsys.readouterr().err

    first_token.hand_out_token(database, elsewhere, new=True)
    assert "created a new token for the administrator" in capsys.readouterr().err
    assert elsewhere.read_text() not in ("wnd_of_another_hub", token)
    assert file.read_text() == token

    first_token.hand_out_token(database, None, new=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.full
def test_a_new_token_works_next_to_the_old_one(database: Database, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first_token.hand_out_token(database, first, new=False)
    with serving(tmp_path, "--token-file", str(second), "--new-token") as (_, address, said):
        assert said.index("created a new token") < said.index("listens on"), (
            "the token is there before the hub"
        )
        tokens = {file.read_text().strip() for file in (first, second)}
        assert len(tokens) == 2
        assert {whoami(address, token) for token in tokens} == {200}


def test_a_new_token_needs_an_administrator(database: Database) -> None:
    from wander_hub.accounts.service import add_user

    with database.write() as session:
        add_user(session, "ada", admin=True)
    with pytest.raises(HubProblem, match="there is no user `admin`"):
        first_token.hand_out_token(database, None, new=True)


def test_the_help_has_the_same_format_as_that_of_wander(typed) -> None:
    for words in ([], ["--help"], ["-h"], ["token"], ["serve", "-h"]):
        status, out, err = typed(*words)
        assert (status, err) == (0, "")
        assert out.startswith("Usage: wander-hub")
        assert not set("╭│╰") & set(out)


@pytest.mark.parametrize(
    ("words", "named", "hint"),
    [
        (["tokn"], "tokn", "did you mean `token`?"),
        (["serve", "--prt", "3"], "--prt", "did you mean `--port`?"),
        (["serve", "--port", "x"], "--port", "run `wander-hub serve --help`"),
        (["token", "create"], "USER", "run `wander-hub token create --help`"),
        (["token", "creat"], "creat", "did you mean `create`?"),
    ],
)
def test_usage_errors_have_a_hint(words: list[str], named: str, hint: str, typed) -> None:
    status, out, err = typed(*words)
    assert (status, out) == (2, "")
    error, _, rest = err.partition("\n\n")
    assert error.startswith("error: ")
    assert named in error
    assert rest == f"hint: {hint}\n"


def test_the_help_imports_no_database() -> None:
    code = "import sys; from wander_hub.cli.main import app; app(['--help'], standalone_mode=False); "
    code += "print([m for m in ('sqlalchemy', 'pydantic', 'fastapi') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_missing_installation_file_is_not_blamed_on_the_data_folder(tmp_path: Path) -> None:
    missing = Path(cli.__file__).parent / "migrations" / "env.py"
    message, hint = cli._explain(FileNotFoundError(2, "No such file or directory", str(missing)))
    assert "the installation of wander-hub is damaged" in message
    assert str(missing) in message
    assert "--data" not in hint
    message, hint = cli._explain(PermissionError(13, "Permission denied", str(tmp_path / "hub.db")))
    assert message == f"permission denied: `{tmp_path / 'hub.db'}`"
    assert "--data" in hint


def test_a_taken_port_is_named_and_leaves_no_data(tmp_path, typed):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, _, err = typed("serve", "--port", str(port), "--data", str(tmp_path / "data"))
    assert status == 2
    assert err.startswith(f"error: cannot listen on port {port} of `127.0.0.1`: in use")
    assert "--port" in err.partition("hint: ")[2]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("MAX_RUN_BYTES", "many", ": must be a whole number, got `many`"),
        ("MAX_UPLOAD_BYTES", "-1", ": must be more than 0, got `-1`"),
        ("VERIFY_POSTS", "perhaps", ": must be `true` or `false`, got `perhaps`"),
        ("QUOTA_STORED_BYTES", "lots", ": must be a size such as `10GiB`, got `lots`"),
        ("FEATURED", "lab/wordle", ": `lab/wordle` is not valid JSON"),
        ("FEATURED", '{"a": 1}', ": must be a list"),
        ("SIGN_IN_PROVIDER", '{"issuer": "https://id.example"}', ": `client_id` is missing"),
        ("STORAGE_URL", "ftp://files", ": must be the URL of an object store"),
        ("PUBLIC_URL", "hub.example.org", ": `hub.example.org` must be an http or https address"),
        ("PUBLIC_URL", "https://example.org/hub", ": `https://example.org/hub` must not have a path"),
    ],
)
def test_an_invalid_setting_is_named_by_its_variable(name, value, fault, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(f"WANDER_HUB_{name}", value)
    monkeypatch.setattr(sys, "argv", ["wander-hub", "migrate", "--data", str(tmp_path / "hub")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert f"error: `WANDER_HUB_{name}`{fault}" in capsys.readouterr().err
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_id_without_a_name_is_supported(monkeypatch, error):
    def nobody() -> str:
        raise error

    monkeypatch.setattr(options.getpass, "getuser", nobody)
    assert options.by_command("user.add").address == f"the command line of uid {os.getuid()}"


def test_a_waiting_thread_does_not_delay_the_exit():
    """As a request does that waits for a lock of a server which was cut off from the database."""
    program = """
import sys, threading
from wander_hub.cli import main
main._LEAVE_SECONDS = 0.2
threading.Thread(target=threading.Event().wait).start()
sys.argv = ["wander-hub", "version"]
main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


@pytest.mark.parametrize("words", ["user add ada", "token list", "fsck", "audit"])
def test_a_mistyped_data_folder_is_not_created(tmp_path, monkeypatch, capsys, words):
    monkeypatch.delenv("WANDER_HUB_DATABASE_URL", raising=False)
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "wrong name", tmp_path / "empty"):
        monkeypatch.setattr(sys, "argv", ["wander-hub", *words.split(), "--data", str(folder)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr().err
        assert (ended.value.code, f"there is no hub in `{folder}`" in told) == (2, True)
        assert f"wander-hub serve --data '{tmp_path}/wrong name'" in told or "empty" in told
    assert [one.name for one in tmp_path.rglob("*")] == ["empty"]
