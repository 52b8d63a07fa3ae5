"""Sealed task sets: their file, their rows in an environment, and the addresses that a play may reach."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from wander import SingleTurnEnv
from wander.clients import transport
from wander.clients.transport import PUBLIC_ONLY, AiohttpTransport, TransportError
from wander.environment import Environment
from wander.errors import ConfigError
from wander.wire.transfers import commitment_of, make_set, read_set
from wander.wire.untrusted_text import RefusedText
from wander.worker.host.environment import WorkerEnvironment

ROWS = [{"question": "one", "answer": 1}, {"question": "zwei", "answer": 2, "extra": ["ü"]}]


def test_a_commitment_hides_and_binds_the_rows() -> None:
    content = make_set(ROWS)
    assert read_set(content) == ROWS
    assert commitment_of(content) == hashlib.sha256(content).hexdigest()
    assert commitment_of(make_set(ROWS)) != commitment_of(content), "the salt is random"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text.split(b"\n", 1)[1], "first line"),
        (lambda text: text.split(b"\n", 1)[0] + b"\n", "no examples"),
        (lambda text: text.replace(b'":"', b'": "'), "canonical"),
        (lambda text: text + b"MARKER\n", "line 4: it is not valid JSON in UTF-8"),
        (lambda text: text + b'["MARKER"]\n', "line 4: it is not a JSON object"),
        (lambda text: b" " * (9 << 20), "over 8,388,608 bytes"),
    ],
)
def test_a_fault_of_a_set_is_named_without_its_text(change, fault) -> None:
    with pytest.raises(RefusedText, match=fault) as caught:
        read_set(change(make_set(ROWS)))
    assert "MARKER" not in str(caught.value)


async def test_rows_replace_the_evaluation_split_in_a_worker(tmp_path: Path) -> None:
    module = tmp_path / "tiny.py"
    module.write_text(
        "from wander import SingleTurnEnv\n"
        "def load_environment():\n"
        "    return SingleTurnEnv(dataset=[{'question': 'train'}], system_prompt='Be brief.')\n"
    )
    environment = await WorkerEnvironment.start(
        None, None, path=module, log_path=tmp_path / "log", rows=json.loads(json.dumps(ROWS))
    )
    try:
        assert (environment.info.train_examples, environment.info.eval_examples) == (1, 2)
        first, second = await environment.examples("eval")
    finally:
        await environment.close()
    assert [message["content"] for message in first.prompt] == ["Be brief.", "one"]
    assert (second.answer, second.columns) == (2, {"extra": ["ü"]})


def test_an_environment_that_makes_its_own_examples_refuses_rows() -> None:
    class Own(SingleTurnEnv):
        def _bind_datasets(self, dataset, eval_dataset):
            return Environment._bind_datasets(self, [{"question": "own"}], None)

    with pytest.raises(ConfigError, match="does not take its examples from rows"):
        Own().use_rows(ROWS)


async def test_a_guarded_process_reaches_no_private_address(chat_server, monkeypatch) -> None:
    """The name resolves to this machine, which only a listed network allows."""
    url = chat_server.url.replace("127.0.0.1", "localhost")

    async def ask() -> int:
        asking = AiohttpTransport(url, {}, timeout=5, connect_timeout=5, max_connections=1)
        try:
            return (await asking.get("/models")).status
        finally:
            await asking.close()

    monkeypatch.setenv(PUBLIC_ONLY, "")
    with pytest.raises(TransportError, match="no address that may be called"):
        await ask()
    monkeypatch.setattr(transport, "is_allowed", lambda address, networks: True)
    with pytest.raises(TransportError, match="no address that may be called"):
        await ask()  # a public address without TLS would get the key as plain text
    monkeypatch.setenv(PUBLIC_ONLY, "127.0.0.0/8")
    assert await ask() == 200
