"""A model that brings code of its own is refused by the file's name, whoever says yes on standard input."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from received_folders import sparse
from wander.errors import ConfigError, WanderError
from wander.models.loading import load_chat_format, load_model, require_no_code

CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
from transformers import LlamaConfig as C, LlamaForCausalLM as M
from transformers import PreTrainedTokenizerFast as T
"""


def changed(file: str, **fields: Any) -> Callable[[Path], None]:
    """Return what sets fields of a JSON file of a model."""

    def change(folder: Path) -> None:
        path = folder / file
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **fields}))

    return change


def added(name: str) -> Callable[[Path], None]:
    """Return what puts a file that leaves a mark into a model's folder."""

    def add(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(CODE.format(mark=str(folder.parent / "ran")))

    return add


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: [change(folder) for change in changes] and None


MAP = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
FAULTS = {
    "config.json": both(added("code.py"), changed("config.json", auto_map=MAP, model_type="evil")),
    "tokenizer_config.json": changed("tokenizer_config.json", auto_map={"AutoTokenizer": ["code.T", None]}),
    "generation_config.json": changed("generation_config.json", auto_map={"x": "y"}),
    "processor_config.json": changed("processor_config.json", feature_extractor={"auto_map": {"A": "b.C"}}),
    "adapter_config.json": changed("adapter_config.json", auto_mapping={"parent_library": "os"}),
    "modeling.py": added("modeling.py"),
    "generate.py": added("custom_generate/generate.py"),
    "x.so": added("x.so"),
}


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.mark.parametrize("named", FAULTS)
@pytest.mark.parametrize("load", [load_model, load_chat_format])
def test_a_model_folder_with_code_is_rejected(
    named: str, load: Callable[[Path], object], folder: Path, tmp_path: Path
) -> None:
    FAULTS[named](folder)
    with pytest.raises(ConfigError, match=re.escape(named)):
        load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("kernel", ["evil/kernel", "evil/kernel:attention", "paged|evil/kernel@main"])
def test_a_kernel_from_a_repository_is_rejected(name: str, kernel: str, folder: Path) -> None:
    changed("config.json", **{name: kernel})(folder)
    with pytest.raises(ConfigError, match="config"):
        load_model(folder)
    changed("config.json", **{name: "sdpa"})(folder)
    require_no_code(folder)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"auto_map": "\\ud800"}', "\0"])
def test_unreadable_settings_are_rejected(text: str, folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.raises(ConfigError, match="tokenizer_config"):
        load_model(folder)


def test_the_base_model_of_adapters_is_checked_too(folder: Path, tmp_path: Path) -> None:
    FAULTS["config.json"](folder)
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    config = {"base_model_name_or_path": str(folder), "peft_type": "LORA"}
    (adapters / "adapter_config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, adapters / name)
    with pytest.raises(ConfigError, match="auto_map"):
        load_model(adapters)
    (adapters / "adapter_config.json").write_text('{"base_model_name_or_path": 3}')
    with pytest.raises(ConfigError, match="adapter_config"):
        load_model(adapters)


def test_an_ordinary_folder_loads(folder: Path) -> None:
    (folder / "README.md").write_text("x")
    (folder / ".git").mkdir()
    (folder / ".git" / "hook.py").touch()
    require_no_code(folder)
    require_no_code("owner/name")
    assert load_model(folder, device="cpu").path == folder


@pytest.mark.full
def test_confirming_on_stdin_runs_no_code(folder: Path, tmp_path: Path) -> None:
    """The library itself asks there; here it is called without our own look at the folder."""
    FAULTS["config.json"](folder)
    code = (
        "import wander.models.loading as loading\n"
        "loading.require_no_code = lambda place: None\n"
        f"loading.load_model({str(folder)!r}, device='cpu')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="y\ny\ny\n", capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "ModelNotFound" in done.stderr
    assert issubclass(ConfigError, WanderError)
    assert not (tmp_path / "ran").exists()


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("missing"),
    "zeros": sparse(1 << 36),
}


@pytest.mark.parametrize("put", SPECIAL)
@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja", "inner/notes.txt"],
)
def test_special_files_and_endless_texts_are_not_read(name: str, put: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    SPECIAL[put](tmp_path / name)
    for load in (require_no_code, load_chat_format):
        with pytest.raises(ConfigError):
            load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b"\0" * 50, b'{"model": 3}']
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_reported(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WanderError):
        load_chat_format(tmp_path)
