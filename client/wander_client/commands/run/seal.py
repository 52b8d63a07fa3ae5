"""`wander seal`: task sets whose examples stay hidden on the hub until a date."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, choose_policy, confines
from wander_client.errors import FAILED, OK, ClientError, Interrupted, NotFound, UsageError
from wander_client.failures import validate
from wander_client.names import environment_path, parse_name, sealed_path, source_spec
from wander_client.runs.text import interval
from wander_client.terminal.command import Argument, CommandGroup, Option, read_date
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from wander.wire.transfers import SealedSetInfo

    from wander_client.hub.api import HubApi

app = CommandGroup(
    help="""Keep examples hidden on the hub until a date, and let the hub play them.

    You commit to a file of examples for a version of your environment. Until the set opens, only the hub's
    workers play it, against the endpoint that a submitter names. When it opens, the examples and all rollouts
    become public and are replayed.""",
)

_COMMITMENT = re.compile(r"[0-9a-f]{64}")
SetName = Annotated[str, Argument(metavar="SET", help="a set's commitment, or owner/name for its newest set")]
Examples = Annotated[Path, Argument(help="JSON Lines file with the hidden examples")]


@app.command("check")
def check(
    environment: Annotated[str, Argument(help="./folder, or owner/name[@version]")],
    file: Examples,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Check whether an environment can play the examples in a file. Nothing is uploaded.

    \b
    wander seal check ./my-env hidden.jsonl
    wander seal check acme/math@1.0.0 hidden.jsonl

    A player that answers with an empty text plays each example once. Exit status 1 means that the environment
    refuses some of them.
    """
    output = current().output
    found, refused = _check(environment, file, sandbox, sandbox_limit)
    data = {"examples": found, "refused": [row._asdict() for row in refused]}

    def show() -> None:
        for row in refused[:20]:
            output.line(f"row {row.row}  {row.reason}")
        output.line(f"{found - len(refused)} of {counted(found, 'example')} can be played")

    output.answer(data, show)
    return FAILED if refused else OK


def _check(
    environment: str, file: Path, sandbox: bool | None, sandbox_limit: list[str] | None
) -> tuple[int, list[Any]]:
    import asyncio

    from wander_client.environments.location import locate
    from wander_client.evaluate.sealed import find_refused, set_from

    here = current()
    spec = source_spec(environment)
    policy = choose_policy(sandbox, sandbox_limit, default=confines(here.settings, spec))
    content = set_from(file)
    location = locate(here, spec)
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as set_file:  # readable only by this user
        set_file.write(content)
        set_file.flush()
        return asyncio.run(find_refused(here, location, Path(set_file.name), policy))


@app.command("create")
def create(
    environment: Annotated[str, Argument(help="owner/name or owner/name@version")],
    file: Examples,
    opens: Annotated[str, Option("--opens", metavar="DATE", help="when the set opens, such as 2027-03-01")],
    wait: Annotated[bool, Option("--wait/--no-wait", help="wait until the hub has checked the set")] = True,
) -> int:
    """Commit to hidden examples for a version of your environment, and upload them to the hub.

    \b
    wander seal create acme/math hidden.jsonl --opens 2027-03-01

    The hub stores the examples encrypted, and checks that the environment can play them. You cannot change
    them afterwards: the commitment is the SHA-256 of the file that the hub publishes when the set opens. Keep
    a note of it.
    """
    from wander.wire.transfers import SealedSetInfo, commitment_of

    from wander_client.evaluate.sealed import set_from

    here = current()
    name, opens_at, content = parse_name(environment), read_date("--opens", opens), set_from(file)
    with here.hub(login=True) as hub:
        version = name.version or hub.environment(name.owner, name.name).latest_version
        path = environment_path(name.owner, name.name, "versions", version, "sealed")
        query = urlencode({"opens_at": opens_at.isoformat()})
        made = hub.send_bytes("POST", f"{path}?{query}", content, SealedSetInfo, {})
        hub.require(made.commitment == commitment_of(content), "the set that was uploaded")
        if wait:
            made = _wait(hub, made, "the hub is checking the set", lambda seen: seen.state == "checking")
    if made.state == "refused":
        raise ClientError(
            f"the hub refused the set: {made.error}",
            hint=f"run `wander seal check {environment} {file}`",
            code="set_refused",
        )
    _answer(made)
    return OK


@app.command("show")
def show(name: SetName) -> None:
    """Show a sealed set: when it opens, who played it, and which hosts received its questions.

    \b
    wander seal show acme/math
    wander seal show 2f6c... --json
    """
    with current().hub() as hub:
        found = _set(hub, name)
    _answer(found)


@app.command("play")
def play(
    name: SetName,
    model: Annotated[
        str, Option("-m", "--model", help="model of the endpoint, or OWNER/MODEL[@revision] on the hub")
    ],
    endpoint: Annotated[
        str | None, Option("-b", "--endpoint", help="URL of an OpenAI-compatible endpoint")
    ] = None,
    key_variable: Annotated[
        str, Option("--key-variable", help="environment variable with the endpoint's key")
    ] = "OPENAI_API_KEY",
    rollouts: Annotated[int, Option("-r", "--rollouts", min=1, max=64, help="rollouts per example")] = 1,
    temperature: Annotated[float | None, Option(help="sampling temperature")] = None,
    max_tokens: Annotated[int | None, Option(min=1, help="maximum tokens of an answer")] = None,
    wait: Annotated[bool, Option("--wait/--no-wait", help="wait for the result, or only submit")] = True,
) -> int:
    """Let the hub play a sealed set with a model at an endpoint, or with a model that is on the hub.

    \b
    wander seal play acme/math -m NAME -b https://api.example.com/v1
    wander seal play acme/math -m acme/policy

    With `-b`, the endpoint receives the questions, and the hub uses your key for this play only and does not
    store it. Without `-b`, the hub runs the model on its own processors, and the questions do not leave it.
    Until the set opens, you see the mean reward and nothing else. Afterwards, your rollouts become a public
    run.
    """
    from wander.wire.transfers import NewSealedPlay, SealedPlay, SealedSetInfo

    here = current()
    key = None if endpoint is None else os.environ.get(key_variable)
    values = {"model": model, "endpoint": endpoint, "key": key, "rollouts": rollouts}
    body = validate(
        NewSealedPlay, {**values, "temperature": temperature, "max_tokens": max_tokens}, "see `--help`"
    )
    with here.hub(login=True) as hub:
        commitment = _set(hub, name).commitment
        found = hub.change("POST", sealed_path(commitment, "plays"), SealedSetInfo, body)
        number = max((played.id for played in found.plays), default=0)

        def mine_of(seen: SealedSetInfo) -> SealedPlay:
            mine = next((played for played in seen.plays if played.id == number), None)
            hub.require(mine is not None, "a set with your play")
            assert mine is not None
            return mine

        mine_of(found)
        if wait:
            text = "the hub is playing the set"
            found = _wait(hub, found, text, lambda seen: mine_of(seen).state in ("queued", "running"))
        mine = mine_of(found)
    if mine.state == "canceled":
        raise ClientError("the play was canceled", hint="submit it again", code="play_canceled")
    if mine.state == "failed":
        raise ClientError(
            f"the play failed: {mine.error}", hint="submit it again when this is fixed", code="play_failed"
        )

    def tell() -> None:
        if mine.reward_mean is None:
            here.output.line(f"play {mine.id} is {mine.state}")
        else:
            here.output.line(f"reward  {interval(mine)}")
            here.output.line(f"level   {mine.level}")

    here.output.answer(mine, tell)
    here.output.next(f"wander seal show {commitment}")
    return OK


@app.command("open")
def open_set(
    name: SetName,
    at: Annotated[str | None, Option("--at", metavar="DATE", help="an earlier date  [default: now]")] = None,
) -> None:
    """Open your sealed set now, or on an earlier date than planned. It can never open later.

    \b
    wander seal open acme/math
    wander seal open acme/math --at 2027-02-01
    """
    from wander.wire.transfers import SealedSetInfo, SealOpening

    with current().hub(login=True) as hub:
        commitment = _set(hub, name).commitment
        body = SealOpening(opens_at=None if at is None else read_date("--at", at))
        opened = hub.change("PUT", sealed_path(commitment, "opening"), SealedSetInfo, body)
    _answer(opened)


def _set(hub: HubApi, name: str) -> SealedSetInfo:
    """Return the set with a commitment, or the newest set of an environment."""
    from wander.wire.transfers import SealedSetInfo, SealedSetList

    if _COMMITMENT.fullmatch(name):
        return hub.read(sealed_path(name), SealedSetInfo)
    if "/" not in name:
        raise UsageError(
            f"`{name}` is neither a commitment nor owner/name", hint="a commitment has 64 characters"
        )
    environment = parse_name(name)
    path = environment_path(environment.owner, environment.name, "sealed")
    sets = hub.read(path, SealedSetList).data
    accepted = [found for found in sets if found.state != "refused"]
    if not accepted:
        raise NotFound(
            f"`{name}` has no sealed set",
            hint=f"create one: `wander seal create {name} FILE --opens DATE`",
            code="set_not_found",
        )
    return accepted[0]


def _wait(
    hub: HubApi, found: SealedSetInfo, text: str, is_waiting: Callable[[SealedSetInfo], bool]
) -> SealedSetInfo:
    """Return a set when the hub's work on it has ended."""
    from wander_client.hub.waiting import watch

    last, began = found, time.monotonic()
    try:
        with current().output.progress(text, None, unit="s") as bar:
            for seen in watch(found, lambda seen: _set(hub, seen.commitment), is_waiting):
                last = seen
                bar.update(int(time.monotonic() - began))
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; the hub continues", hint=f"see the result: `wander seal show {found.commitment}`"
        ) from None
    return last


def _answer(found: SealedSetInfo) -> None:
    output = current().output

    def show_set() -> None:
        output.line(
            f"{found.owner}/{found.environment} {found.version}: {counted(found.examples, 'example')}"
        )
        output.line(f"commitment  {found.commitment}")
        output.line(f"state       {found.state}" + (f": {found.error}" if found.error else ""))
        output.line(f"opens       {found.opens_at:%Y-%m-%d %H:%M} UTC")
        output.line(f"exposures   {found.exposures}")
        if found.plays:
            rows = [
                [
                    played.model,
                    played.host or "this hub",
                    played.submitted_by,
                    played.reward_mean,
                    played.level or played.state,
                ]
                for played in found.plays
            ]
            output.table(["model", "host", "by", "reward", "level"], rows)

    output.answer(found, show_set)
    output.next(found.url)
