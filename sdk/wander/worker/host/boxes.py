"""The host's side of boxes: it starts and stops the boxes of a worker's rollouts and runs their commands.

A sandboxed worker cannot start a box itself, and a box on the host outlives no rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wander.boxes.base import Box, BoxSpec
from wander.boxes.forwarding import carry_out
from wander.clients.base import Client
from wander.errors import SandboxError
from wander.worker.protocol import BoxAnswer, Fault, StartBox, UseBox

MOST_BOXES = 4
"""Maximum number of boxes of a rollout that run at the same time."""

FindOnHost = Callable[[str], str | None]
"""Function that returns the host's path of a path in the worker, and None if the worker must not see it."""


class PlayBoxes:
    """The boxes of one rollout, or of a group of rollouts."""

    def __init__(self, client: Client, rollout_ids: list[str], find_on_host: FindOnHost) -> None:
        self._client = client
        self._rollout_ids = rollout_ids
        self._find_on_host = find_on_host
        self._boxes: dict[int, Box] = {}
        self._starting = 0

    async def answer(self, message: StartBox | UseBox) -> str:
        """Do what a message asks for, and return the answer as JSON. Never raises an error."""
        try:
            answer = await (self._start(message) if isinstance(message, StartBox) else self._use(message))
        except Exception as error:  # noqa: BLE001 - sent to the worker, whose rollout fails
            answer = BoxAnswer(id=message.id, fault=Fault.of(error))
        return answer.model_dump_json()

    async def _start(self, message: StartBox) -> BoxAnswer:
        if message.rollout_id not in self._rollout_ids:
            raise SandboxError(f"there is no rollout `{message.rollout_id}` to start a box for")
        if len(self._boxes) + self._starting >= MOST_BOXES * len(self._rollout_ids):
            raise SandboxError(f"a rollout can have at most {MOST_BOXES} boxes at the same time")
        spec = self._with_paths_of_host(message.spec)
        self._starting += 1
        try:
            box = await self._client.start_box(message.rollout_id, spec)
        finally:
            self._starting -= 1
        self._boxes[message.id] = box
        return BoxAnswer(id=message.id, image_digest=box.image_digest)

    def _with_paths_of_host(self, spec: BoxSpec) -> BoxSpec:
        """Return the spec with the host's paths. Raises `SandboxError` for one that the worker must not see.

        A box shows its folder to the worker, so a worker that could name any folder could read it.
        """
        folders = {name: path for name in ("root", "dockerfile") if (path := getattr(spec, name)) is not None}
        for name, path in folders.items():
            found = self._find_on_host(path)
            # The Dockerfile's text is part of error messages, so it must not be a link to another file.
            if found is None or (name == "dockerfile" and self._find_on_host(f"{path}/Dockerfile") is None):
                raise SandboxError(
                    f"the environment must not start a box from `{path}`: its sandbox does not show this "
                    "folder, or it runs on another machine",
                    hint="put the folder into the package, or show it with `--sandbox-limit read=FOLDER`",
                )
            folders[name] = found
        return spec.model_copy(update=folders)

    async def _use(self, message: UseBox) -> BoxAnswer:
        if message.call.method == "stop":  # may be called repeatedly
            box = self._boxes.pop(message.box, None)
            if box is not None:
                await box.stop()
            return BoxAnswer(id=message.id)
        box = self._boxes.get(message.box)
        if box is None:
            raise SandboxError("the box was stopped")
        return BoxAnswer(id=message.id, result=await carry_out(box, message.call))

    async def stop(self, calls: list[asyncio.Task[None]]) -> None:
        """Stop all boxes, after the canceled `calls` have ended."""
        await asyncio.gather(*calls, return_exceptions=True)
        boxes = list(self._boxes.values())
        self._boxes.clear()
        await asyncio.gather(*(box.stop() for box in boxes))
