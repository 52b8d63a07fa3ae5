"""Write a new environment package from the templates that ship with the command."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wander_client.errors import ClientError, UsageError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@dataclass(frozen=True)
class Kind:
    """A kind of environment, with its example."""

    line: str
    """One line for the help."""
    summary: str
    """Description of the package that is written."""
    extra: str = ""
    """Required extra of wander-sdk."""
    options: str = ""
    """Additional options that `wander eval` needs."""

    @property
    def requirement(self) -> str:
        """Requirement on the SDK for the package's dependencies."""
        return f"wander-sdk[{self.extra}]>=0.1" if self.extra else "wander-sdk>=0.1"


_MODULE, _TESTS = "environment.py.txt", "test_environment.py.txt"
"""Templates that every kind has. Other templates are copied into the package under their own names."""
KindName = Literal[
    "single-turn", "multi-turn", "tool", "stateful-tool", "mcp", "rlm", "shell", "group", "judge"
]
JUDGE = " -a judge_model=NAME -a judge_base_url=URL"
KINDS: dict[KindName, Kind] = {
    "single-turn": Kind("one question, one answer", "Add two numbers."),
    "multi-turn": Kind("a game or a conversation, turn by turn", "Guess a number that is higher or lower."),
    "tool": Kind("the model calls Python functions", "Look prices up and add them."),
    "stateful-tool": Kind(
        "tools that work on the rollout's own state", "Move money until everybody has the same amount."
    ),
    "mcp": Kind("the tools of an MCP server", "Ask a library about its books over MCP.", "mcp"),
    "rlm": Kind(
        "a text longer than the context window, which the model explores with Python code",
        "Count what a long log reports.",
    ),
    "shell": Kind("the model runs commands in a box", "Sort the numbers of a file."),
    "group": Kind(
        "a mixture of several environments, with weights", "Add numbers and spell words backwards."
    ),
    "judge": Kind(
        "free text that a judge model scores", "Answer why, and let a judge compare.", options=JUDGE
    ),
}


def kinds_help() -> str:
    """Return the kinds, one per line, aligned."""
    width = max(map(len, KINDS))
    return "\n".join(f"  {name:<{width}}  {kind.line}" for name, kind in KINDS.items())


_WELL_KNOWN = """
accelerate aiohttp anthropic click datasets django fastapi flask gymnasium httpx huggingface_hub jax
jinja2 keras langchain litellm matplotlib mcp mypy nltk numpy openai packaging pandas pillow pip
pluggy polars psycopg pyarrow pydantic pytest ray requests rich ruff scikit_learn scipy
sentencepiece setuptools sklearn spacy sqlalchemy starlette sympy tensorflow tiktoken tokenizers
torch tqdm transformers trl typer uv uvicorn verifiers vllm wandb websockets yaml
"""
POPULAR = frozenset(_WELL_KNOWN.split())
"""Modules that environments import, so that they cannot be the name of a package."""


def write_package(folder: Path, kind: KindName) -> list[Path]:
    """Write the project into a new or empty folder. Returns the files, relative to the folder."""
    import shutil
    import tempfile
    import tomllib
    from importlib.resources import files

    name = package_name(folder.name)
    require_free(folder, "choose another name")
    module = name.replace("-", "_")
    templates = files("wander_client") / "templates"
    own = templates / kind.replace("-", "_")
    content = {
        "pyproject.toml": templates / "pyproject.toml.txt",
        "README.md": templates / "README.md.txt",
        ".gitignore": templates / "gitignore.txt",
        f"{module}/__init__.py": own / _MODULE,
        **{
            f"{module}/{file.name.removesuffix('.txt')}": file
            for file in sorted(own.iterdir(), key=lambda file: file.name)
            if file.name.endswith(".txt") and file.name not in (_MODULE, _TESTS)
        },
        f"tests/test_{module}.py": own / _TESTS,
    }
    words = {
        **tomllib.loads((own / "readme.toml").read_text(encoding="utf-8")),
        "summary": KINDS[kind].summary,
        "options": KINDS[kind].options,
        "requirement": KINDS[kind].requirement,
        "name": name,
        "module": module,
        "kind": kind,
        "folder": folder.name,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        work.chmod(0o755)
        written = write_files(work, {path: _fill(template, words) for path, template in content.items()})
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return written


def require_free(folder: Path, hint: str) -> None:
    """Raise `ClientError` if a folder exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClientError(f"`{folder}` exists and is not empty", hint=hint, code="folder_not_empty")


def _fill(template: Traversable, words: Mapping[str, str]) -> str:
    """Return the text of a template with every `@word@` filled in."""
    text = template.read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files by their paths relative to a folder. Returns these paths."""
    for relative, text in texts.items():
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return [Path(relative) for relative in texts]


def package_name(word: str) -> str:
    """Return the package name for a folder. Raises `UsageError` if it cannot be a Python module."""
    from packaging.utils import canonicalize_name, is_normalized_name

    name = canonicalize_name(word)
    module = name.replace("-", "_")
    if not is_normalized_name(name) or not module.isidentifier() or not module.isascii():
        raise UsageError(
            f"`{word}` is not a valid package name",
            hint="use letters, digits and dashes, starting with a letter, such as `my-env`",
        )
    owner = _owner_of(module)
    if owner is not None:
        raise UsageError(
            f"`{word}` cannot be the name of a package: `{module}` is {owner}",
            hint=f"choose another name, such as `{name}-env`",
        )
    return name


def _owner_of(module: str) -> str | None:
    """Return the owner of a module's name, or None if the name is free."""
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        return "a Python keyword"
    if module in sys.stdlib_module_names or module in ("test", "tests"):
        return "a module of the Python standard library"
    ours = ("sdk", "client", "compat", "hub", "integrations", "ray")
    if module == "wander" or module in {f"wander_{name}" for name in ours}:
        return "a Wander package"
    if module in POPULAR:
        return "a well-known package"
    return None
