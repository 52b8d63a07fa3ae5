"""The script that measures what packages use of the classic API, and the names that it looks up."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import operator
import subprocess
import sys
from pathlib import Path

import pytest
from wander.clients.scripted import ScriptedClient
from wander.errors import LoadError
from wander.loading import load_path
from wander_compat.alias import RENTED, RENTED_NAMES, need_of, serve_imports
from wander_compat.verifiers import InfraError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("classic_names", ROOT / "scripts" / "classic_names.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["classic_names"] = module
    spec.loader.exec_module(module)
    serve_imports()
    yield module
    del sys.modules["classic_names"]


PROJECT = '[project]\nname = "{name}"\nversion = "1"\nrequires-python = "{python}"\n'


def package(folder: Path, name: str, source: str, python: str = ">=3.10") -> Path:
    place = folder / name
    place.mkdir(parents=True)
    (place / "pyproject.toml").write_text(PROJECT.format(name=name, python=python))
    (place / f"{name}.py").write_text(source)
    return place


LOADER = "\n\ndef load_environment():\n    return vf.SingleTurnEnv()\n"


def test_packages_are_classified_by_what_they_use(script, tmp_path, capsys, monkeypatch):
    package(tmp_path, "whole", "import verifiers as vf\nfrom verifiers.types import State" + LOADER)
    package(tmp_path / "copy", "whole", "import verifiers as vf\nfrom verifiers.types import State" + LOADER)
    package(tmp_path, "lacks", "import verifiers as vf\nx = vf.NoSuchThing.inner" + LOADER, "<3.5")
    package(tmp_path, "refused", "import verifiers as vf\nbase = vf.BrowserEnv" + LOADER)
    optional = "try:\n    from verifiers import Nothing\nexcept ImportError:\n    Nothing = None\n"
    package(tmp_path, "optional", "import verifiers as vf\n" + optional + LOADER)
    package(tmp_path, "newer", "import verifiers.v1 as vf\n\nclass Own(vf.Taskset):\n    pass\n")
    package(tmp_path, "no_environment", "import verifiers as vf\nx = vf.NoSuchThing\n")
    package(tmp_path, "verifiers", "import verifiers as vf" + LOADER)
    report = tmp_path / "report.json"
    monkeypatch.setattr(sys, "argv", ["classic_names", str(tmp_path), "--each", "--json", str(report)])
    assert script.main() == 0
    shown = capsys.readouterr().out
    assert "5          packages, 1 of them for verifiers.v1" in shown
    assert "1  not offered: verifiers.NoSuchThing" in shown
    assert "50.0%  have all of their names" in shown
    found = {each["name"]: each for each in json.loads(report.read_text())}
    assert set(found) == {"whole", "lacks", "refused", "optional", "newer"}
    assert found["lacks"]["other_python"] == "<3.5"
    assert found["refused"]["refused"] == ["verifiers.BrowserEnv"]
    assert found["newer"]["library"] == "verifiers.v1"


def test_a_folder_without_packages_is_reported(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["classic_names", str(tmp_path)])
    assert script.main() == 1
    assert "no package for the classic API" in capsys.readouterr().err


def test_arguments_are_filtered_by_signature():
    serve_imports()
    from verifiers.envs.stateful_tool_env import filter_signature

    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    shown = filter_signature(add, ["b"])
    assert list(inspect.signature(shown).parameters) == ["a"]
    assert (shown.__name__, shown.__doc__, shown(1, b=5)) == ("add", "Add.", 6)
    assert "b" in inspect.signature(add).parameters
    assert filter_signature(add, []) is add


def test_small_functions_behave_like_in_the_releases(tmp_path, monkeypatch):
    serve_imports()
    from verifiers.types import ClientConfig
    from verifiers.utils.client_utils import load_prime_config, resolve_client_config, setup_openai_client
    from verifiers.utils.eval_utils import quiet_datasets
    from verifiers.utils.logging_utils import print_time
    from verifiers.utils.path_utils import write_temp_file

    assert [print_time(each) for each in (0.5, 7, 65, 3600, 90_000)] == [
        "500ms",
        "7s",
        "1m 5s",
        "1h",
        "1d 1h",
    ]
    written = Path(write_temp_file("kept", suffix=".md"))
    assert (written.read_text(), written.suffix) == ("kept", ".md")
    written.unlink()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_prime_config() == {}
    (tmp_path / ".prime").mkdir()
    (tmp_path / ".prime" / "config.json").write_text('{"team_id": "t"}')
    assert load_prime_config() == {"team_id": "t"}
    (tmp_path / ".prime" / "config.json").write_text("[")
    assert load_prime_config() == {}
    second = {"api_base_url": "http://b", "api_key_var": "B_KEY"}
    endpoints = [{"api_base_url": "http://a"}, second]
    config = ClientConfig(client_idx=1, max_retries=3, endpoint_configs=endpoints)
    assert (resolve_client_config(config).api_base_url, resolve_client_config(config).max_retries) == (
        "http://b", 3
    )  # fmt: skip
    monkeypatch.delenv("B_KEY", raising=False)
    client = setup_openai_client(config)
    assert (str(client.base_url), client.api_key, client.max_retries) == ("http://b", "EMPTY", 3)
    with quiet_datasets():
        from datasets.utils.logging import get_verbosity

        assert get_verbosity() == 30


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("envs.sandbox_env.SandboxState", "offered"),
        ("envs.experimental.opencode_qa_env.OpenCodeQAEnv", "refused"),
        ("types.ProcessedOutputs", "offered"),
        ("utils.message_utils.ChatCompletionMessage", "offered"),
        ("utils.message_utils.NoSuchMessage", "missing"),
        ("envs.experimental.no_such_env.NoSuchEnv", "missing"),
    ],
)
def test_names_imported_from_deep_paths_exist(script, name, state):
    assert script.look_up(f"verifiers.{name}") == state


RENTED = [
    *(f"verifiers.{module}:Anything" for module in RENTED),
    *(f"verifiers.{module}.deep.inside:Anything" for module in RENTED),
    *(f"verifiers:{name}" for name in RENTED_NAMES),
    "verifiers.envs.experimental.composable.tasksets.swe:make_swe_taskset",
    "verifiers.envs.experimental.composable.harnesses.opencode:opencode_harness",
    "verifiers.envs.integrations.browser_env.modes:CUASandboxMode",
]


@pytest.mark.parametrize("name", RENTED)
def test_names_that_need_a_rented_machine_explain_what_is_missing(name):
    serve_imports()
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    needs = RENTED_NAMES.get(attribute) or need_of(module.partition(".")[2])

    class Game(found):
        def __init__(self, rows: int) -> None:
            self.rows = rows

    extend = functools.partial(operator.add, found, ["x"])
    for use in (found, functools.partial(Game, 3), functools.partial(list, found), extend):
        with pytest.raises(InfraError) as raised:
            use()
        assert needs in str(raised.value)
        assert f"`{attribute}`" in str(raised.value)
    with pytest.raises(AttributeError, match=needs):
        _ = found.DEFAULT_IMAGE
    assert not hasattr(found, "__dataclass_fields__")


def test_an_error_of_a_rented_sandbox_can_be_caught():
    serve_imports()
    from verifiers.envs.experimental.sandbox_mixin import SandboxCreationError, SandboxMixin

    caught = []
    try:
        SandboxMixin()
    except SandboxCreationError:
        caught.append(SandboxCreationError)
    except InfraError:
        caught.append(InfraError)
    assert caught == [InfraError]


async def test_a_package_loads_unless_it_uses_an_unsupported_name(tmp_path):
    source = """
import verifiers as vf
from verifiers.envs.experimental.composable import ComposableEnv, Harness
from verifiers.envs.experimental.sandbox_mixin import SandboxMixin


class Agent(SandboxMixin, vf.MultiTurnEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)


def load_environment(agent: bool = False) -> vf.Environment:
    rows = [{"question": "2?", "answer": "2"}]
    return Agent(dataset=rows) if agent else vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())
"""
    (tmp_path / "rented.py").write_text(source)
    env = load_path(tmp_path / "rented.py")
    rollout = await env.rollout(ScriptedClient(["2"]), env.dataset("train")[0])
    assert rollout.failure is None
    with pytest.raises(LoadError, match="`Agent` is a `SandboxMixin`, which needs the client"):
        load_path(tmp_path / "rented.py", agent=True)


def test_the_openai_library_is_imported_only_if_its_types_are_used():
    code = (
        "import sys, verifiers as vf\n"
        "from verifiers.types import State\n"
        "vf.SingleTurnEnv, vf.XMLParser\n"
        "assert 'openai' not in sys.modules\n"
        "from verifiers.types import ChatCompletion, ChatMessage, ModelResponse\n"
        "import openai.types.chat\n"
        "assert ChatMessage is openai.types.chat.ChatCompletionMessageParam\n"
        "assert isinstance(None, ModelResponse) and vf.ChatCompletion is ChatCompletion\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
