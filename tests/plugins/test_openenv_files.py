"""An `openenv.yaml` from elsewhere is read within limits, and what it says stays data in the new project."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from wander.errors import DatasetError
from wander_integrations.openenv_project import read_manifest, write_project

BAD = {
    "lists too deep": "name: " + "[" * 20_000,
    "no date": "name: 2001-99-99",
    "no number": "name: a\nport: " + "9" * 5000,
    "too large": "name: a\n#" + "x" * 1024 * 1024,
    "a name of two lines": 'name: "a\\n# b"',
    "an app that ends its code span": 'name: a\napp: "x` <b>"',
    "a list": "- name: a",
    "a list that contains itself": "name: a\nvalidation: &v {types: {tags: [*v]}}",
    "an infinite reward": "name: a\nvalidation: {reward: {range: [0, .inf]}}",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_bad_file_is_a_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "openenv.yaml").write_text(text)
    with pytest.raises(DatasetError, match=r"openenv\.yaml"):
        read_manifest(tmp_path)


def test_every_character_reaches_the_project(tmp_path: Path) -> None:
    (tmp_path / "openenv.yaml").write_text(
        "name: écho 😀\nversion: 1.0\nvalidation: {types: {tags: ['😀', \"a\\x7f\"]}}\n", encoding="utf-8"
    )
    out = tmp_path / "out"
    out.mkdir()
    write_project(tmp_path, out, name="my-echo")
    project = tomllib.loads((out / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["keywords"] == ["😀", "a\x7f", "openenv", "eval"]
    assert project["description"] == "The OpenEnv environment `écho 😀`, played on its server."
    module = (out / "my_echo/__init__.py").read_text(encoding="utf-8")
    assert f'summary="{project["description"]}"' in module
    compile(module, "module", "exec")
