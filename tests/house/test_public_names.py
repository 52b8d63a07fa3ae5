"""What users may import: names and signatures change on purpose, or not at all.

When `test_the_names_are_those_on_record` fails, a public name or signature changed. If that was meant, run
`make names` and commit `tests/house/public_names.txt`; `docs/deprecation.md` says what may change, and how.
"""

from __future__ import annotations

import difflib
import importlib
import re

import pytest
from public_names import NAMESPACES, RECORD, exported, listing

MOST = 40


def test_the_names_are_those_on_record():
    recorded, now = RECORD.read_text().splitlines(), listing().splitlines()
    changes = [line for line in difflib.unified_diff(recorded, now, "recorded", "now", lineterm="", n=0)]
    assert changes == [], "run `make names` if this is meant:\n" + "\n".join(changes)


@pytest.mark.parametrize("module", NAMESPACES)
def test_a_namespace_stays_small_and_holds_what_it_names(module):
    names = exported(module)
    assert len(names) <= MOST
    assert len(set(names)) == len(names)


LIGHT = [name for name in NAMESPACES if name not in ("wander.models", "wander.train")]


@pytest.mark.parametrize("module", LIGHT)
def test_every_name_can_be_imported(module):
    """Those of `wander.models` and `wander.train` are held by mypy alone: they load torch."""
    namespace = importlib.import_module(module)
    assert [name for name in namespace.__all__ if not hasattr(namespace, name)] == []
    assert set(namespace.__all__) <= set(dir(namespace))
    with pytest.raises(AttributeError, match="no attribute"):
        namespace.no_such_name  # noqa: B018 - to be looked up


def test_the_reference_shows_every_namespace(root):
    pages = (root / "docs/api").glob("*.md")
    shown = [name for page in pages for name in re.findall(r"(?m)^::: (\S+)$", page.read_text())]
    assert sorted(shown) == sorted(NAMESPACES)


def test_docs_import_public_names_alone(root):
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    private = [
        f"{page.name}: from {module} import {name}"
        for page in pages
        for module, names in re.findall(r"(?m)^ *from (wander[a-z_.]*) import ([^#\n(]+)", page.read_text())
        for name in re.split(r",\s*", names.strip())
        if module not in NAMESPACES or name not in exported(module)
    ]
    assert private == []
