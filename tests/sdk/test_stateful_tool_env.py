"""Tools that get part of their arguments from the rollout's state."""

from __future__ import annotations

import json

import pytest
from wander.clients.scripted import ScriptedClient
from wander.envs.tool.env import StatefulToolEnv
from wander.errors import ConfigError


class Shelf:
    """A value that JSON cannot carry."""

    def __init__(self):
        self.items: list[str] = []


def put(item: str, shelf: Shelf) -> str:
    """Put an item on the shelf.

    Args:
        item: what to put
        shelf: where to put it
    """
    shelf.items.append(item)
    return f"{len(shelf.items)} items"


class ShelfEnv(StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(dataset=[{"question": "tidy up"}], **kwargs)
        self.add_tool(put, args_to_skip=["shelf"])

    def setup_state(self, state):
        state["shelf"] = Shelf()

    def update_tool_args(self, tool_name, tool_args, messages, state):
        assert messages[-1]["role"] == "assistant"
        return {**tool_args, "shelf": state["shelf"]}


def call(arguments):
    function = {"name": "put", "arguments": json.dumps(arguments)}
    return {"content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


async def played(environment, *replies):
    client = ScriptedClient([*replies, "done"])
    return await environment.rollout(client, environment.dataset()[0])


async def test_arguments_are_filled_in_from_the_state():
    environment = ShelfEnv()
    rollout = await played(environment, call({"item": "cup"}), call({"item": "jug"}))
    assert [m["content"] for m in rollout.completion if m["role"] == "tool"] == ["1 items", "2 items"]
    fresh = await played(environment, call({"item": "cup"}))
    assert fresh.completion[1]["content"] == "1 items", "every rollout has a shelf of its own"


async def test_the_model_neither_sees_nor_sends_hidden_arguments():
    environment = ShelfEnv()
    seen = []

    def answer(request):
        seen.append(request.tools)
        return call({"item": "cup", "shelf": "mine"}) if len(seen) == 1 else "done"

    rollout = await environment.rollout(ScriptedClient(answer), environment.dataset()[0])
    assert list(seen[0][0]["function"]["parameters"]["properties"]) == ["item"]
    assert "shelf: Extra inputs are not permitted" in rollout.completion[1]["content"]
    assert rollout.metrics["tool_errors"] == 1.0


async def test_hidden_arguments_may_be_filled_in_asynchronously():
    class AsyncShelfEnv(ShelfEnv):
        async def update_tool_args(self, tool_name, tool_args, messages, state):
            return {**tool_args, "shelf": state["shelf"]}

    rollout = await played(AsyncShelfEnv(), call({"item": "cup"}))
    assert rollout.completion[1]["content"] == "1 items"


@pytest.mark.parametrize("returned", [None, ["shelf"]])
async def test_an_invalid_update_has_the_environment_boundary(returned):
    class Forgetful(ShelfEnv):
        def update_tool_args(self, tool_name, tool_args, messages, state):
            return returned

    rollout = await played(Forgetful(), call({"item": "cup"}))
    assert rollout.failure.boundary == "environment"
    assert "`update_tool_args` must return the arguments" in rollout.failure.message


async def test_an_error_in_the_update_has_the_environment_boundary():
    class Broken(ShelfEnv):
        def update_tool_args(self, tool_name, tool_args, messages, state):
            raise KeyError("shelf")

    rollout = await played(Broken(), call({"item": "cup"}))
    assert rollout.failure.boundary == "environment"
    assert "KeyError" in rollout.failure.message


def test_only_parameters_that_exist_can_be_skipped():
    environment = ShelfEnv()
    with pytest.raises(ConfigError, match="no parameter `where` to skip"):
        environment.add_tool(put, args_to_skip=["where"])


def test_the_update_must_be_implemented():
    with pytest.raises(TypeError, match="update_tool_args"):
        StatefulToolEnv(dataset=[{"question": "x"}])
