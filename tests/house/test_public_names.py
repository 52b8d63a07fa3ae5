"""What users may import: names and signatures change on purpose, or not at all.

When `test_public_names_match_the_record` fails, a public name or signature changed. If that was meant, run
`make names` and commit `tests/house/public_names.txt`.
"""

from __future__ import annotations

import difflib
import importlib
import re

import pytest
from public_names import NAMESPACES, RECORD, exported, listing

MOST = 40


def test_public_names_match_the_record():
    recorded, now = RECORD.read_text().splitlines(), listing().splitlines()
    changes = [line for line in difflib.unified_diff(recorded, now, "recorded", "now", lineterm="", n=0)]
    assert changes == [], "run `make names` if this is meant:\n" + "\n".join(changes)


@pytest.mark.parametrize("module", NAMESPACES)
def test_a_namespace_is_small_and_has_every_listed_name(module):
    names = exported(module)
    assert len(names) <= MOST
    assert len(set(names)) == len(names)


LIGHT = [name for name in NAMESPACES if name not in ("wander.models", "wander.train", "wander_integrations")]


@pytest.mark.parametrize("module", LIGHT)
def test_every_name_can_be_imported(module):
    """Those of other namespaces are held by mypy alone: they load torch, or libraries that are not here."""
    namespace = importlib.import_module(module)
    assert [name for name in namespace.__all__ if not hasattr(namespace, name)] == []
    assert set(namespace.__all__) <= set(dir(namespace))
    with pytest.raises(AttributeError, match="no attribute"):
        namespace.no_such_name  # noqa: B018 - to be looked up


def test_the_reference_shows_every_namespace(root):
    pages = (root / "docs/api").glob("*.md")
    shown = [name for page in pages for name in re.findall(r"(?m)^::: (\S+)$", page.read_text())]
    assert sorted(shown) == sorted(NAMESPACES)


IMPORT = re.compile(r"(?m)^ *from (wander(?:_client|_integrations)?(?:\.[a-z_.]+)?) import ([^#\n(]+)")


def test_docs_and_examples_import_only_public_names(root):
    """The docs, the packages that `new` and `env export` write, and the bundled environments."""
    texts = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    texts += sorted((root / "client/wander_client/templates").rglob("*.txt"))
    texts += sorted((root / "environments").glob("*/*/*.py"))
    private = [
        f"{text.relative_to(root)}: from {module} import {name}"
        for text in texts
        if "tests" not in text.parts
        for module, names in IMPORT.findall(text.read_text())
        for name in re.split(r",\s*", names.strip())
        if module not in NAMESPACES or name not in exported(module)
    ]
    assert private == []
