"""From a name, a module or a path to an environment, and the true cause when there is none."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest
from wander import SingleTurnEnv, load_environment
from wander.errors import LoadError
from wander.loading import installed_environments, load_path

GOOD = """
    from wander import SingleTurnEnv

    def load_environment(num_examples: int = 2, level="easy"):
        return SingleTurnEnv([{"question": level}] * num_examples)
"""
OTHER = """
    from wander import SingleTurnEnv

    def make():
        return SingleTurnEnv([{"question": "made"}], name="own-name")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on `sys.path`, whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def written(folder, name: str, text: str):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def installed(folder, distribution: str, entry: str, version: str = "1.2.0") -> None:
    """Write what an installer leaves behind: metadata with an entry point."""
    meta = f"{distribution.replace('-', '_')}-{version}.dist-info"
    written(folder, f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    written(folder, f"{meta}/entry_points.txt", f"[wander.environments]\n{entry}\n")


def failure(name: str, **arguments) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load_environment(name, **arguments)
    return caught.value


def test_a_module_with_load_environment_is_enough(place):
    written(place, "plain_env.py", GOOD)
    env = load_environment("plain-env", num_examples=3)
    assert isinstance(env, SingleTurnEnv)
    assert (env.info.name, env.info.train_examples) == ("plain-env", 3)
    assert env.info.arguments == {"num_examples": 3}


@pytest.mark.parametrize(
    "name", ["made-env", "made_env", "Made.Env", "alice/made-env", "alice/made-env@1.2.0"]
)
def test_an_entry_point_is_found_by_its_name(place, name):
    written(place, "other_module.py", OTHER)
    installed(place, "made-env", "made-env = other_module:make")
    assert load_environment(name).name == "own-name"
    assert "made-env" in installed_environments()


def test_an_entry_point_without_a_function_means_load_environment(place):
    written(place, "plain_env.py", GOOD)
    installed(place, "short", "short = plain_env")
    assert load_environment("short").name == "short"


def test_a_version_that_is_not_installed_is_rejected(place):
    written(place, "other_module.py", OTHER)
    installed(place, "made-env", "made-env = other_module:make")
    error = failure("alice/made-env@2.0.0")
    assert str(error) == "`made-env` 1.2.0 is installed, not 2.0.0"
    assert error.hint == "run `wander install alice/made-env@2.0.0`"


def test_two_packages_with_one_name_are_distinguished(place):
    installed(place, "first", "same = first_module:make")
    installed(place, "second", "same = second_module:make")
    error = failure("same")
    assert "several installed packages" in str(error)
    assert "first_module:make, second_module:make" in str(error)


def test_an_unknown_name_gets_suggestions(place):
    installed(place, "sudoku-env", "sudoku-env = sudoku:load_environment")
    error = failure("sudoku-emv")
    assert str(error) == "there is no environment `sudoku-emv` here"
    assert error.hint == "did you mean `sudoku-env`?"
    assert '`wander.load("OWNER/quite-different")`' in (failure("quite-different").hint or "")
    assert '`wander.load("alice/sudoku-emv")`' in (failure("alice/sudoku-emv").hint or "")
    assert "there is no environment" in str(failure("no.such.module"))


def test_a_folder_with_the_name_of_an_environment_gets_a_hint(place):
    (place / "plain_folder").mkdir()
    error = failure("alice/plain-folder")
    assert str(error) == "`plain_folder` is a folder here, not an installed environment"
    assert error.__notes__ == [f"hint: {error.hint}"]
    assert "`./plain_folder`" in error.hint
    assert '`wander.load("alice/plain-folder")`' in error.hint
    error.hint = "another one"
    assert error.__notes__ == ["hint: another one"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import not_there_at_all", "`bad_env` needs the module `not_there_at_all`, which is not installed"),
        ("1 / 0", "importing `bad_env` raised `ZeroDivisionError: division by zero`"),
        ("def broken(:", "importing `bad_env` raised `SyntaxError"),
        ("import sys; sys.exit(2)", "importing `bad_env` raised `SystemExit: 2`"),
        ("x = 1", "`bad_env` has no function `load_environment`"),
        ("load_environment = 5", "`bad_env` has no function `load_environment`"),
        ("def load_environment(): raise OSError('no file')", "raised `OSError: no file`"),
        ("def load_environment(): raise SystemExit(1)", "raised `SystemExit: 1`"),
        ("def load_environment(): pass", "returned a `NoneType`, not an environment"),
        ("async def load_environment(): pass", "returned a `coroutine`, not an environment"),
    ],
)
def test_the_original_cause_is_reported(place, text, said):
    written(place, "bad_env.py", text)
    assert said in str(failure("bad-env"))


@pytest.mark.parametrize(
    ("raised", "kind", "hint"),
    [
        ("os.environ['SERPER_KEY']", "NeedsKey", "add `--pass-env SERPER_KEY`"),
        ("openai.OpenAI()", "NeedsKey", "`--pass-env OPENAI_API_KEY`"),
        ("fail(ValueError('SERPER_API_KEY is not set'))", "NeedsKey", "add `--pass-env SERPER_API_KEY`"),
        ("urllib.request.urlopen('http://127.0.0.1:9')", "NeedsDownload", "with access to the network"),
        ("torch_fails('Torch not compiled with CUDA enabled')", "LoadError", None),
        ("torch_fails('size mismatch')", "LoadError", None),
        ("fail(AttributeError('no attribute `PAD_TOKEN`'))", "LoadError", None),
    ],
)
def test_external_requirements_of_an_environment_are_named(place, monkeypatch, raised, kind, hint):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    head = """
import os, urllib.request
import openai

def fail(error):
    raise error

def torch_fails(said):
    try:
        raise AssertionError(said)
    except AssertionError as error:
        raise RuntimeError("the model did not load") from error

"""
    written(place, "needy_env.py", f"{head}def load_environment(): {raised}")
    error = failure("needy-env")
    assert type(error).__name__ == kind
    assert (hint in error.hint) if hint else error.hint is None
    written(place, "early_env.py", f"{head}{raised}")
    assert type(failure("early-env")).__name__ == kind


def test_the_cause_is_chained_and_its_hint_is_kept(place):
    written(place, "bad_env.py", "import not_there_at_all")
    assert isinstance(failure("bad-env").__cause__, ModuleNotFoundError)
    written(place, "sad_env.py", "import wander\ndef load_environment(): return wander.SingleTurnEnv()")
    assert failure("sad-env").hint == "pass `dataset=` or `eval_dataset=`"
    written(place, "shut_env.py", "import os\ndef load_environment(): return os.environ['SHUT_KEY']")
    assert failure("shut-env").hint == "set the variable and add `--pass-env SHUT_KEY`"
    written(place, "other_env.py", "def load_environment(): return {}['SHUT_KEY']")
    assert failure("other-env").hint is None


def test_unknown_arguments_list_the_accepted_ones(place):
    written(place, "plain_env.py", GOOD)
    error = failure("plain-env", examples=3)
    assert "has no argument `examples` (did you mean `num_examples`?)" in str(error)
    assert error.hint == "it accepts `num_examples: int = 2`, `level='easy'`"
    written(place, "bare_env.py", "def load_environment(): pass")
    assert failure("bare-env", x=1).hint == "it accepts no arguments"
    written(place, "needy_env.py", "def load_environment(path): pass")
    assert "missing a required argument: 'path'" in str(failure("needy-env"))


def test_a_project_folder_is_loaded_by_its_entry_point(place):
    project = """
        [project]
        name = "from-project"
        [project.entry-points."wander.environments"]
        from-project = "project_module:make"
    """
    for layout in ("flat", "src"):
        folder = place / layout
        source = folder if layout == "flat" else folder / "src"
        module = f"project_{layout}"
        written(folder, "pyproject.toml", project.replace("project_module", module))
        written(source, f"{module}.py", OTHER.replace('name="own-name"', ""))
        assert load_path(folder).name == "from-project"


def test_a_project_without_entry_point_is_loaded_by_its_name(place):
    written(place / "b", "pyproject.toml", '[project]\nname = "named-env"\n')
    written(place / "b", "named_env/__init__.py", GOOD)
    assert load_path(place / "b", level="hard").dataset()[0].prompt[0]["content"] == "hard"
    written(place / "folder_env", "folder_env.py", GOOD)
    assert load_path(str(place / "folder_env")).name == "folder_env"


def test_a_file_and_a_name_that_is_a_path_are_loaded(place, monkeypatch):
    path = written(place / "files", "file_env.py", GOOD)
    assert load_path(path).name == "file_env"
    monkeypatch.chdir(place)
    assert load_environment("./files/file_env.py", num_examples=1).info.train_examples == 1
    assert load_environment(str(path)).name == "file_env"


def test_paths_without_an_environment_are_reported(place):
    def said(path) -> str:
        with pytest.raises(LoadError) as caught:
            load_path(path)
        return f"{caught.value} {caught.value.hint}"

    assert "is neither a folder nor a Python file" in said(place / "nothing")
    assert "is neither a folder nor a Python file" in said(written(place, "notes.txt", "hi"))
    (place / "empty").mkdir()
    assert "has no module `empty` write `empty.py`" in said(place / "empty")
    written(place / "torn", "pyproject.toml", "[project")
    assert "not valid TOML" in said(place / "torn")
    entries = '[project.entry-points."wander.environments"]\na = "a:f"\nb = "b:f"\n'
    written(place / "two", "pyproject.toml", entries)
    assert "declares 2 environments" in said(place / "two")


def test_another_module_with_the_same_name_is_not_used(place):
    load_path(written(place / "one", "twin_env.py", GOOD))
    with pytest.raises(LoadError, match="`twin_env` was found in"):
        load_path(written(place / "two", "twin_env.py", GOOD))


def test_arguments_are_checked_against_annotations(place):
    text = """
        from __future__ import annotations
        from pathlib import Path
        from typing import Any, Literal
        from wander import SingleTurnEnv

        class Mine: ...

        def load_environment(
            size: int = 1, share: float = 0.5, level: Literal["easy", "hard"] = "easy",
            pair: tuple[int, int] = (1, 2), place: Path | None = None, text: str = None,
            mine: Mine = None, free=0, **more: Any
        ) -> SingleTurnEnv:
            return SingleTurnEnv([{"question": "x"}] * size)
    """
    written(place, "typed_env.py", text)
    fitting = {
        "share": 1,
        "level": "hard",
        "pair": [3, 4],
        "place": "x",
        "text": None,
        "mine": 3,
        "free": "a",
    }
    load_environment("typed-env", size=2, anything=[1], **fitting)
    for wrong, said in [
        ({"size": "2"}, '`size` must be `int`, not `"2"`'),
        ({"size": 2.5}, "`size` must be `int`, not `2.5`"),
        ({"size": None}, "`size` must be `int`, not `null`"),
        ({"share": "high"}, "`share` must be `float`"),
        ({"level": "odd"}, "must be `easy` or `hard`"),
        ({"pair": [1]}, "`pair` must be `tuple[int, int]`"),
        ({"text": 3}, "`text` must be `str`, not `3`"),
    ]:
        error = failure("typed-env", **wrong)
        assert said in str(error)
        assert error.hint.startswith("it accepts `size: int = 1`, `share: float = 0.5`, `level: Literal[")
        assert "'int'" not in error.hint, "postponed annotations are shown as they were written"


def test_names_that_only_type_checkers_know_are_ignored(place):
    text = """
        from __future__ import annotations
        from wander import SingleTurnEnv

        def load_environment(size: Unknown = 1) -> SingleTurnEnv:
            return SingleTurnEnv([{"question": "x"}] * size)
    """
    written(place, "unknown_env.py", text)
    assert load_environment("unknown-env", size=2).info.train_examples == 2


def test_a_failed_validation_is_reported_in_one_line(place):
    text = """
        from pydantic import BaseModel

        class Settings(BaseModel):
            size: int

        def load_environment(size):
            return Settings(size=size)
    """
    written(place, "strict_env.py", text)
    message = str(failure("strict-env", size="many"))
    assert "raised `Settings: `size`: Input should be a valid integer" in message
    assert "\n" not in message
