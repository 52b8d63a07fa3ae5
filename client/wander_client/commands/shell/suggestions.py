"""What may stand next on a command line that is being typed: words of the commands, and names of things."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import re
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wander.system.plain_files import is_plain_file

from wander_client.commands import COMMANDS, FIRST_SCREEN, GROUPS, load, members, resolve
from wander_client.errors import ClientError
from wander_client.terminal.command import CommandGroup, Parameter

if TYPE_CHECKING:
    from wander_client.context import Invocation

Suggestion = tuple[str, str]
"""A word and a few words about it."""

COMMON = ("--json", "--plain", "--quiet", "--no-progress", "--debug", "--color", "--hub", "--help")
_WITH_VALUE = ("--color", "--hub")
HUB_SECONDS = 0.5
"""How long the hub is waited for."""
_MOST_BYTES = 4 << 20
_WORD = re.compile(r"[\w@%+=:,./-]+")
_NAME = re.compile(r"[a-z0-9-]{1,39}/[a-z0-9-]{1,200}")
FRESH_SECONDS = 60.0
"""How long what the hub said, or that it said nothing, is taken for true."""


def suggest(line: str, here: Invocation) -> list[Suggestion]:
    """Return what may stand in place of the last word of a line, which may be empty."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote is still open
        words = line.split()
    typed = words.pop() if words and not line[-1:].isspace() else ""
    found = _following(_without_common(words[1:]), typed, here)
    return [(word, about) for word, about in found if word.startswith(typed) and word != typed]


def _without_common(words: list[str]) -> list[str]:
    kept, rest = [], iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif word not in COMMON and not word.startswith(("--color=", "--hub=")):
            kept.append(word)
    return kept


def _following(words: list[str], typed: str, here: Invocation) -> list[Suggestion]:
    if not words:
        return _first_words()
    if words in ([name] for name in GROUPS):
        return list(members(words[0]).items())
    if words[0] == "help":
        return _first_words() if len(words) == 1 else []
    found = resolve(words)
    if not found.name or found.is_group:
        return []
    command, rest = load(found.name), found.rest
    if isinstance(command, CommandGroup):
        if not rest:
            return [(name, one.summary) for name, one in command.commands.items()]
        if rest[0] not in command.commands:
            return []
        command, rest = command.commands[rest[0]], rest[1:]
    return _of_command(command.parameters, rest, typed, here)


def _first_words() -> list[Suggestion]:
    more = {name: one.summary for name, one in COMMANDS.items() if " " not in name}
    first = {name: more[name] for name in FIRST_SCREEN}
    first["help"] = "show the help of a command, a group or a topic"
    return list((first | {name: group.summary for name, group in GROUPS.items()} | more).items())


def _of_command(
    parameters: list[Parameter], words: list[str], typed: str, here: Invocation
) -> list[Suggestion]:
    """Return options, or what the option before or the argument at this place may be."""
    options = {word: one for one in parameters for word in one.flags}
    arguments = [one for one in parameters if one.is_argument]
    place, rest = 0, iter(words)
    for word in rest:
        option = options.get(word)
        if option is None:
            place += not word.startswith("-")
        elif not option.is_flag and next(rest, None) is None:
            return _named(option.name, here)
    if typed.startswith("-"):
        own = [
            (one.word, one.said.help)
            for one in options.values()
            if not one.said.hidden and one.word.startswith("--")
        ]
        return list(dict(own).items()) + [(word, "") for word in COMMON]
    if not arguments:
        return []
    # The last one may take several words.
    argument = arguments[min(place, len(arguments) - 1)]
    return [] if place >= len(arguments) and not argument.many else _named(argument.name, here)


def _named(parameter: str | None, here: Invocation) -> list[Suggestion]:
    """Return the things that a parameter may name; files are for the shell."""
    find = _NAMES.get(parameter or "")
    found = dict(find(here)) if find else {}
    # A shell puts these words into a line as they are: a folder that somebody sent may have any name.
    return [(word, about) for word, about in found.items() if _WORD.fullmatch(word)]


def _environments(here: Invocation) -> Iterator[Suggestion]:
    root = here.settings.data_dir / "environments"
    for place in sorted(root.glob("*/*/*")):
        if not place.name.startswith(".") and place.is_dir():
            yield f"{place.parent.name}/{place.name}", "installed"
    yield from _offered(here)


def _offered(here: Invocation) -> list[Suggestion]:
    """Return the environments of the hub, as it said within the last minute or says now."""
    hub = here.settings.hub
    place = here.settings.cache_dir / "completion" / f"{sha256(hub.encode()).hexdigest()[:16]}.json"
    known: list[Suggestion] = []
    try:
        age = time.time() - place.stat().st_mtime
        known = [(str(name), str(about)) for name, about in json.loads(place.read_text(encoding="utf-8"))]
        if 0 <= age < FRESH_SECONDS:
            return known
    except (OSError, ValueError, TypeError):  # not there yet, or not ours: the hub is asked
        pass
    # Without a hub, or one that answers in time, what it said before is offered.
    with contextlib.suppress(
        OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError, ClientError
    ):
        known = _ask(here)
    with contextlib.suppress(OSError):  # on a disk that is only read
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(known, stream)
        os.replace(name, place)
    return known


def _ask(here: Invocation) -> list[Suggestion]:
    """Ask the hub, with nothing that takes long to import; a redirection is not followed.

    Raises `TimeoutError` for a hub that takes longer, however it does so.
    """
    answers: queue.SimpleQueue[list[Suggestion] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(_fetch(here))
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        found = answers.get(timeout=2 * HUB_SECONDS)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, Exception):
        raise found
    return found


def _fetch(here: Invocation) -> list[Suggestion]:
    parts = urlsplit(here.settings.hub)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    credential = here.credentials.get(here.settings.hub)
    headers = {"Authorization": f"Bearer {credential.token}"} if credential else {}
    with contextlib.closing(kind(parts.netloc, timeout=HUB_SECONDS)) as connection:
        connection.request("GET", f"{parts.path}/api/v1/environments?limit=200", headers=headers)
        answer = connection.getresponse()
        rows = json.loads(answer.read(_MOST_BYTES))["data"] if answer.status == http.client.OK else []
    found = [(f"{row['owner']}/{row['name']}", str(row.get("summary") or "")) for row in rows]
    # A shell gets these words: nothing but names.
    return [(name, " ".join(about.split())[:200]) for name, about in found if _NAME.fullmatch(name)]


def _runs(here: Invocation) -> list[Suggestion]:
    """Return the folders of the runs here, the newest first; those of a suite lie in its folder."""
    folder = here.settings.runs_dir
    files = [*folder.glob("*/run.json"), *folder.glob("*/*/run.json")]
    found = [file for file in files if is_plain_file(file)]
    found.sort(key=lambda file: file.lstat().st_mtime, reverse=True)
    return [(str(file.parent), "") for file in found]


def _models(here: Invocation) -> list[Suggestion]:
    places = [place.parent for place in sorted(here.settings.runs_dir.glob("*/model/config.json"))]
    pulled = sorted((here.settings.cache_dir / "models").glob("*/config.json"))
    of_hubs = sorted((here.settings.cache_dir / "models" / "hub").glob("*/*/latest"))
    return [
        ("smollm2", "SmolLM2-135M-Instruct"),
        *((f"hub:{file.parent.parent.name}/{file.parent.name}", "") for file in of_hubs),
        *((str(place), "") for place in [*places, *(file.parent for file in pulled)]),
    ]


_NAMES: dict[str, Callable[[Invocation], Any]] = {
    **dict.fromkeys(("environment", "environments", "target"), _environments),
    **dict.fromkeys(("run", "runs", "before", "after", "resume", "started_from", "verify"), _runs),
    **dict.fromkeys(("model", "against", "hints"), _models),
}
"""Where the values of parameters come from, by the name of the parameter."""
