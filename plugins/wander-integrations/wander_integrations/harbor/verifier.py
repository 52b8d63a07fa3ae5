"""Runs a task's verifier in a box that the model has never used, and reads its reward.

The verifier's own files are written last, over the final state of the played box. The reward is read from the
folder `/logs/verifier` of the fresh box, which never comes from the played one.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import shlex
import tarfile
from collections.abc import Mapping

from wander.boxes.base import Box, CommandResult
from wander.errors import RubricError

from wander_integrations.harbor.folder import TEST_SCRIPT, TESTS, HarborTask, TaskContent
from wander_integrations.harbor.support import ARTIFACTS_FOLDER

LOGS = "/logs/verifier"
REWARD_TEXT, REWARD_JSON = f"{LOGS}/reward.txt", f"{LOGS}/reward.json"
MOST_REWARD = 64 << 10
"""Maximum bytes of a reward file."""
MOST_SCRIPT = 1 << 20
"""Maximum bytes of a test file that is compared after the verifier has run."""
MOST_ARTIFACTS = 32 << 20
"""Maximum bytes of all artifacts for a separate verifier."""
REWARD = "reward"


async def run_verifier(
    box: Box, task: HarborTask, variables: Mapping[str, str], *, has_own_tests: bool = False
) -> dict[str, float]:
    """Run the tests of a task and return the rewards by name.

    `box` is a fresh box that has the final state. `has_own_tests` tells that its image contains the tests.
    Raises `RubricError` if the verifier runs out of time, or writes no reward, two rewards or an invalid one.
    """
    await _run(box, f"mkdir -p {LOGS} {ARTIFACTS_FOLDER} /tests && rm -rf {REWARD_TEXT} {REWARD_JSON}")
    tests = {} if has_own_tests else task.contents(TESTS)
    await upload(box, {f"/tests/{name}": file for name, file in tests.items()})
    seconds = task.settings.verifier.timeout_sec
    result = await box.exec(
        f"chmod +x /tests/{TEST_SCRIPT} && exec /tests/{TEST_SCRIPT}",
        seconds=seconds,
        working_folder=box.spec.working_folder,
        environment=variables,
    )
    if result.timed_out:
        raise RubricError(f"the verifier of `{task.name}` did not finish within {seconds:g} s")
    for name, file in tests.items():
        if len(file.content) <= MOST_SCRIPT and not await _is_unchanged(box, f"/tests/{name}", file.content):
            raise RubricError(f"`/tests/{name}` of `{task.name}` was changed while the verifier ran")
    return await _read_rewards(box, task, result)


async def collect_artifacts(box: Box, task: HarborTask) -> dict[str, TaskContent]:
    """Return the files that a separate verifier gets, by absolute path, from a box with the final state.

    The task's collect commands run first. Commands that fail and missing artifacts are ignored, as in Harbor.
    """
    for collect in task.settings.verifier.collect:
        await box.exec(collect.command, seconds=collect.timeout_sec)
    folder = box.spec.working_folder.rstrip("/")
    sources = [ARTIFACTS_FOLDER, *(artifact.source for artifact in task.settings.artifacts)]
    paths = [source if source.startswith("/") else f"{folder}/{source}" for source in sources]
    existing = " ".join(shlex.quote(path.lstrip("/")) for path in paths)
    result = await box.exec(
        f'cd / && for path in {existing}; do [ -e "$path" ] && printf \'%s\\0\' "$path"; done'
        " | xargs -0 -r tar -cf - 2>/dev/null | base64",
        working_folder="/",
        output_bytes=2 * MOST_ARTIFACTS,
    )
    return _unpack(result, task)


async def upload(box: Box, files: Mapping[str, TaskContent]) -> None:
    """Write files into a box, and make those executable that should be."""
    for executable in (False, True):
        chosen = {path: file.content for path, file in files.items() if file.executable == executable}
        if chosen:
            await box.upload(chosen, executable=executable)


def parse_rewards(name: str, text: bytes | None, document: bytes | None) -> dict[str, float]:
    """Return the rewards from the contents of `reward.txt` and `reward.json`; None for a missing file.

    Raises `RubricError` unless there is exactly one valid file.
    """
    if text is not None and document is not None:
        raise RubricError(f"the verifier of `{name}` wrote two rewards: `reward.txt` and `reward.json`")
    if document is not None:
        try:
            rewards = json.loads(document)
        except (ValueError, RecursionError) as error:
            raise RubricError(f"`reward.json` of `{name}` is not JSON: {error}") from error
        if not isinstance(rewards, dict) or not rewards:
            raise RubricError(f"`reward.json` of `{name}` is not an object of names and numbers")
    elif text is not None:
        try:
            rewards = {REWARD: float(text.decode("ascii"))}
        except ValueError as error:
            shown = text[:80].decode("utf-8", "replace").strip()
            raise RubricError(f"`reward.txt` of `{name}` is not a number: `{shown}`") from error
    else:
        raise RubricError(f"the verifier of `{name}` wrote no reward to `{REWARD_TEXT}` or `{REWARD_JSON}`")
    for key, value in rewards.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise RubricError(f"the reward `{key:.80}` of `{name}` is not a finite number: `{value!r:.80}`")
    return {key: float(value) for key, value in rewards.items()}


async def _read_rewards(box: Box, task: HarborTask, result: CommandResult) -> dict[str, float]:
    text, document = [await _download(box, path, MOST_REWARD) for path in (REWARD_TEXT, REWARD_JSON)]
    try:
        return parse_rewards(task.name, text, document)
    except RubricError as error:
        ending = result.output.strip()[-500:]
        status = f"`{TESTS}/{TEST_SCRIPT}` ended with status {result.exit_status}"
        raise RubricError(f"{error}; {status}: {ending}" if ending else f"{error}; {status}") from error


async def _is_unchanged(box: Box, path: str, content: bytes) -> bool:
    """Return whether a file still has its content. The tests may run programs of the model, as root."""
    try:
        return await box.download(path, most_bytes=len(content)) == content
    except (FileNotFoundError, ValueError):
        return False


async def _download(box: Box, path: str, most: int) -> bytes | None:
    try:
        return await box.download(path, most_bytes=most)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RubricError(f"`{path}` of the verifier has more than {most:,} bytes") from error


async def _run(box: Box, command: str) -> None:
    result = await box.exec(command, working_folder="/")
    if result.exit_status:
        raise RubricError(f"the verifier's box is unusable: `{command}`: {result.output.strip()[-300:]}")


def _unpack(result: CommandResult, task: HarborTask) -> dict[str, TaskContent]:
    if result.left_out_bytes:
        raise RubricError(f"the artifacts of `{task.name}` have more than {MOST_ARTIFACTS >> 20} MiB")
    files: dict[str, TaskContent] = {}
    try:
        content = base64.b64decode("".join(result.output.split()), validate=True)
        if content:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                for member in archive:
                    opened = archive.extractfile(member) if member.isfile() else None
                    if opened is not None:
                        executable = bool(member.mode & 0o111)
                        files[f"/{member.name.lstrip('/')}"] = TaskContent(opened.read(), executable)
    except (binascii.Error, tarfile.TarError) as error:
        raise RubricError(f"the artifacts of `{task.name}` cannot be read: {error}") from error
    return files
