"""Find files that must not be published: keys, tokens, credentials, runs, caches, files ignored by git."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from wander_client.errors import ClientError
from wander_client.terminal.output import counted

_KEEPS = {
    **dict.fromkeys((".aws", ".azure", ".gnupg", ".kube", ".ssh"), "credentials"),
    **dict.fromkeys((".git", ".hg", ".svn"), "a repository"),
    **dict.fromkeys(("runs", "wandb", "mlruns", "lightning_logs"), "runs"),
    "wander-hub-data": "the data of a hub",
    **dict.fromkeys((".venv", "venv", "node_modules", ".tox", ".nox"), "installed packages"),
    **dict.fromkeys(
        (
            *("__pycache__", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
            ".ipynb_checkpoints",
        ),
        "a cache",
    ),
}
"""Kinds of content, with the names of the folders that contain it."""
_EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")
_DATA = ("", ".txt", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".csv", ".xml", ".properties")
"""Suffixes of files that contain data rather than code."""
_NAMES = {
    "variables with keys": (".env", ".env.*", "*.env", ".envrc"),
    "a private key": (
        *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk"),
        *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    ),
    "credentials": (
        *(".netrc", "_netrc", ".pypirc", ".npmrc", ".yarnrc.yml", ".git-credentials", ".dockercfg"),
        *(".htpasswd", ".pgpass", ".my.cnf", ".boto", ".s3cfg", "kubeconfig", "*.ovpn", "*.tfstate*"),
        *("client_secret*.json", "service-account*.json", "service_account*.json"),
        *(f"{name}{end}" for end in _DATA for name in ("*credentials", "*secrets", "*secret", "*passwords")),
    ),
    "a token": tuple(
        f"{name}{end}"
        for end in _DATA
        for name in ("token", "tokens", "*_token", "*-token", "*api_key", "*api-key")
    ),
    "the history of a shell": (".*_history",),
    "the data of a hub": ("hub.db", "hub.db-*", "hub.lock"),
    "compiled code": ("*.pyc",),
}
"""Kinds of content, with the names of the files that contain it."""

_TOKENS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("a private key", ("-----BEGIN ",), r"(?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    ("a private key", ("AGE-SECRET-KEY-1",), r"[0-9A-Z]{20}"),
    ("a Wander hub token", ("wnd_",), r"[A-Za-z0-9]{40}"),
    ("an AWS access key", ("AKIA", "ASIA"), r"[0-9A-Z]{16}"),
    ("a GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{36}"),
    ("a GitHub token", ("github_pat_",), r"[A-Za-z0-9_]{60}"),
    ("a GitLab token", ("glpat-", "gldt-", "glrt-", "glptt-"), r"[A-Za-z0-9_-]{20}"),
    ("an Anthropic API key", ("sk-ant-",), r"[A-Za-z0-9_-]{32}"),
    ("an OpenAI API key", ("sk-proj-", "sk-svcacct-", "sk-admin-"), r"[A-Za-z0-9_-]{32}"),
    ("an OpenAI API key", ("sk-",), r"[A-Za-z0-9]{40}"),
    ("an OpenRouter API key", ("sk-or-v1-",), r"[0-9a-f]{40}"),
    ("a Hugging Face token", ("hf_",), r"[A-Za-z0-9]{30}"),
    ("a Google API key", ("AIza",), r"[0-9A-Za-z_-]{35}"),
    ("a Google client secret", ("GOCSPX-",), r"[A-Za-z0-9_-]{20}"),
    ("a Slack token", ("xoxb-", "xoxp-", "xoxa-", "xoxs-", "xoxe-", "xapp-"), r"[A-Za-z0-9-]{20}"),
    ("a Stripe API key", ("sk_live_", "rk_live_"), r"[0-9A-Za-z]{20}"),
    ("an npm token", ("npm_",), r"[A-Za-z0-9]{36}"),
    ("a PyPI token", ("pypi-AgE",), r"[A-Za-z0-9_-]{50}"),
    ("a Docker token", ("dckr_pat_", "dckr_oat_"), r"[A-Za-z0-9_-]{20}"),
    ("a SendGrid API key", ("SG.",), r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{40}"),
    ("a Groq API key", ("gsk_",), r"[A-Za-z0-9]{40}"),
    ("an xAI API key", ("xai-",), r"[A-Za-z0-9]{60}"),
    ("a Replicate token", ("r8_",), r"[A-Za-z0-9]{37}"),
    ("an NVIDIA API key", ("nvapi-",), r"[A-Za-z0-9_-]{60}"),
    ("a Together API key", ("tgp_v1_",), r"[A-Za-z0-9_-]{30}"),
    ("a DigitalOcean token", ("dop_v1_", "doo_v1_", "dor_v1_"), r"[0-9a-f]{60}"),
)
"""Secrets in file contents: description, prefixes, and a pattern for the rest."""
_BLOCK = 1 << 20
_OVERLAP = 512
"""Bytes that consecutive blocks share, longer than any token, so that no token is cut in two."""
_MADE = ("PKG-INFO", "*.egg-info/*", "*.dist-info/*", "*_version.py")
"""Files that build backends write, which git ignores although the package needs them."""
SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
"""Suffixes of the names of variables that contain secrets."""
_SHOWN = 20


@dataclass(frozen=True)
class Leak:
    """A file that must not be published."""

    name: str
    """Path in the archive, relative to the archive's own folder."""
    reason: str


def require_no_leaks(
    folder: Path, wheel: Path, sdist: Path, *, allowed: Collection[str], values: Mapping[str, str]
) -> None:
    """Raise `ClientError` that lists every file of the two archives that must not be published.

    `folder` is the folder that they were built from. `allowed` contains the files and folders that the user
    wants to publish anyway. `values` contains the secrets of this machine by their descriptions.
    """
    found = {leak.name: leak for leak in _leaks_in(folder, wheel, sdist, values)}
    leaks = [leak for leak in found.values() if not any(_lies_in(leak.name, place) for place in allowed)]
    if not leaks:
        return
    lines = [f"{leak.name}: {leak.reason}" for leak in leaks[:_SHOWN]]
    if len(leaks) > _SHOWN:
        lines.append(f"and {len(leaks) - _SHOWN} more")
    raise ClientError(
        f"the package contains {counted(len(leaks), 'file')} that must not be published",
        detail="\n".join(lines),
        hint="leave them out of the package, in the settings of its build backend; "
        f"if a file is harmless, add `--allow-file {leaks[0].name}`",
        code="secret_found",
    )


def _lies_in(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place.rstrip('/')}/")


def secret_variables() -> dict[str, str]:
    """Return the secrets in the environment variables that are long enough not to match ordinary text."""
    return {
        f"the value of {name}": value
        for name, value in os.environ.items()
        if name.endswith(SECRET_ENDINGS) and len(value) >= 12
    }


def _leaks_in(folder: Path, wheel: Path, sdist: Path, values: Mapping[str, str]) -> Iterator[Leak]:
    import tarfile  # late, because posting a run does not read archives
    import zipfile

    names: dict[str, list[str]] = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            names[name] = [name]
            if member.issym() or member.islnk():
                yield Leak(name, "it is a link")
            elif member.isfile() and (content := archive.extractfile(member)) is not None:
                yield from _leaks_of(name, content, values)
    with zipfile.ZipFile(wheel) as zipped:
        for entry in zipped.infolist():
            if not entry.is_dir():
                names.setdefault(entry.filename, []).extend([entry.filename, f"src/{entry.filename}"])
                with zipped.open(entry) as content:
                    yield from _leaks_of(entry.filename, content, values)
    yield from _leaks_of_folder(folder, names)


def _leaks_of(name: str, content: IO[bytes], values: Mapping[str, str]) -> Iterator[Leak]:
    if (reason := find_by_name(name) or find_in_content(content, values)) is not None:
        yield Leak(name, reason)


def find_by_name(name: str) -> str | None:
    """Describe the secret that a file with this name usually contains; None for other names."""
    *folders, last = name.lower().split("/")
    for folder in folders:
        if (kept := _KEEPS.get(folder)) is not None:
            return f"`{folder}` usually contains {kept}"
    if any(fnmatchcase(last, pattern) for pattern in _EXAMPLES):
        return None
    for kept, patterns in _NAMES.items():
        if any(fnmatchcase(last, pattern) for pattern in patterns):
            return f"a file with this name usually contains {kept}"
    return None


def find_in_content(content: IO[bytes], values: Mapping[str, str]) -> str | None:
    """Describe the secret in a file's content; None if it contains no secret."""
    wanted = {what: value.encode() for what, value in values.items()}
    rest = b""
    while block := content.read(_BLOCK):
        text = rest + block
        found = next((what for what, value in wanted.items() if value in text), None) or _find_token(text)
        if found is not None:
            return f"it contains {found}"
        rest = text[-_OVERLAP:]
    return None


def _find_token(text: bytes) -> str | None:
    # Searching for each prefix takes a tenth of the time of a single regular expression for all prefixes.
    for what, beginnings, following in _TOKENS:
        for beginning in map(str.encode, beginnings):
            at = text.find(beginning)
            while at >= 0:
                before = text[max(0, at - 1) : at]
                if not before.isalnum() and re.compile(following.encode()).match(text, at + len(beginning)):
                    return what
                at = text.find(beginning, at + 1)
    return None


def _leaks_of_folder(folder: Path, names: Mapping[str, list[str]]) -> Iterator[Leak]:
    """Yield files that git ignores, and files from outside the folder that links include."""
    root = _top_of_repository(folder) or folder.resolve()
    sources: dict[str, str] = {}
    for name, places in names.items():
        for place in places:
            if os.path.lexists(folder / place) and not any(fnmatchcase(place, made) for made in _MADE):
                sources[place] = name
                if not (folder / place).resolve().is_relative_to(root):
                    yield Leak(name, "it is outside the folder and included through a link")
    for place in list_ignored(folder, list(sources)):
        yield Leak(sources[place], "git ignores it")


def _top_of_repository(folder: Path) -> Path | None:
    found = _git(folder, ["rev-parse", "--show-toplevel"])
    return (
        Path(os.fsdecode(found.stdout.rstrip(b"\n"))).resolve() if found and found.returncode == 0 else None
    )


def list_ignored(folder: Path, places: list[str]) -> list[str]:
    """Return the paths in a folder that git ignores.

    A `.gitignore` also applies outside a repository. If git is not installed, returns an empty list.
    """
    words = ["check-ignore", "-z", "--stdin"]
    given = b"\0".join(os.fsencode(place) for place in places)
    found = _git(folder, words, given)
    if found is not None and found.returncode == 128:  # not in a repository, but its `.gitignore` applies
        with tempfile.TemporaryDirectory(prefix="wander-git-") as empty:
            _git(folder, ["init", "--quiet", "--bare", empty])
            found = _git(folder, [f"--git-dir={empty}", f"--work-tree={folder}", *words], given)
    if found is None or found.returncode != 0:
        return []
    return [os.fsdecode(place) for place in found.stdout.split(b"\0") if place]


def _git(folder: Path, words: list[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes] | None:
    settings = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(  # noqa: S603 - fixed words; paths come over stdin
            ["git", *settings, "-C", str(folder), *words],  # noqa: S607 - the user's own git
            input=given,
            capture_output=True,
            env=environ,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
