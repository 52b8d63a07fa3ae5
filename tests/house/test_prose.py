"""Docstrings, comments, messages, pages and guides are free of phrases that make a reader stop."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

ROOMS = ("sdk", "compat", "client", "hub", "plugins", "migrations", "scripts", "benchmarks", "experiments")
"""The texts of environments are prompts, which recorded runs hold word for word."""
FEWEST_WORDS = 4
"""A shorter string is a name or a pattern rather than a sentence."""
PHRASES = {
    "is told (prints, reports, shows)": r"\b(?:is|are|was|were|be|been|being) told\b(?! apart)",
    "anew, alike, whoever, seldom, hardly, merely": (
        r"\b(?:anew|alike|whoever|whichever|whomever|seldom|hardly|merely|lest|thereby|therein|whilst)\b"
    ),
    "beside (next to)": r"\bbeside\b",
    "is no X (is not an X)": (
        r"(?<!there )(?<!There )(?<!That )\b(?:is|are|was|were) no "
        r"(?!(?:longer|more|less|fewer|better|worse|higher|lower|larger|smaller|faster|slower|further)\b)"
    ),
    "is none (is missing, there are no ...)": r"\b(?:is|are|was|were|has|have|holds?|knows?|takes?) none\b",
    "of which, of whom, with whose (two sentences)": (
        r"\b(?:of|in|by|for|to|at|from|on|with) (?:whom|whose)\b|\bof which\b"
    ),
    "alone (only)": r"\balone\b",
    "goes on (continues)": r"\b(?:goes|go|went|going) on\b",
    "where there is (if)": r"(?:^|[.,;:] )[Ww]here (?:it|they|there|one|none|nothing|that|this|no|some)\b",
    "is to be (must be)": r"\b(?:is|are) to be\b",
    "those who, that which (name the thing)": r"\b(?:those that|those who|that which|one which|one who)\b",
}
FIRST_WORDS = re.compile(r"(?:Of|That|What|Who|Whose|By|Where|Which|Those|Without)\b")
"""A description begins with a verb or with the noun that it describes."""


def texts_of(source) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring, comment and message of a Python file."""
    for node in source.nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and len(node.value.split()) >= FEWEST_WORDS:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.fixture(scope="module")
def prose(sources, root) -> list[tuple[str, str]]:
    """All pieces of prose, each with its place."""
    python = [source for source in sources if source.path.split("/")[0] in ROOMS and not source.is_test]
    pieces = [(f"{source.path}:{line}", text) for source in python for line, text in texts_of(source)]
    files = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "hub").rglob("templates/**/*.html")]
    assert len(files) > 60
    for file in files:
        if file.name != "CHANGELOG.md":
            text = re.sub(
                r"```.*?```|\{[{%#].*?[#%}]\}|<style>.*?</style>", " ", file.read_text(), flags=re.DOTALL
            )
            pieces.append((str(file.relative_to(root)), text))
    return pieces


@pytest.mark.parametrize("name", PHRASES)
def test_no_text_has_a_banned_phrase(prose, name):
    phrase = re.compile(PHRASES[name], re.MULTILINE)
    found = [
        f"{place}: {' '.join(text[max(0, hit.start() - 40) : hit.end() + 30].split())}"
        for place, text in prose
        for hit in phrase.finditer(text)
    ]
    assert found == []


def test_descriptions_begin_with_a_verb_or_a_noun(sources):
    found = [
        f"{source.path}:{node.lineno}: {node.value.value[:60]}"
        for source in sources
        if source.path.split("/")[0] in ROOMS and not source.is_test
        for node in source.nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        if FIRST_WORDS.match(node.value.value.strip())
    ]
    assert found == []


def test_the_patterns_find_their_examples():
    bad = [
        "the user is told why",
        "built anew",
        "stands beside it",
        "a value that is no number",
        "there are tags, of which two count, of whom",
        "the key alone",
        "the run goes on",
        "fails. Where there is a lock",
        "it has none",
        "a row that is to be read",
        "those who ask",
    ]
    assert all(re.search(phrase, "\n".join(bad), re.MULTILINE) for phrase in PHRASES.values())
    good = "There is no lock. The value is no longer used. Those tests. They cannot be told apart."
    assert not any(re.search(phrase, good, re.MULTILINE) for phrase in PHRASES.values())
    assert FIRST_WORDS.match("Of the row, its rank.")
    assert not FIRST_WORDS.match("Whether the run ended.")
