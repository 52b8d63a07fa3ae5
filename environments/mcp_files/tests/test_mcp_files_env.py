"""The tree, and the real server that shows it."""

from __future__ import annotations

import json

from mcp_files import load_environment
from mcp_files.tree import files, services
from wander import ScriptedClient
from wander.environment import LocalEnvironment


def test_the_tree_is_that_of_its_seed_and_says_what_is_asked_for():
    tree = files(0)
    assert files(0) == tree != files(1)
    assert len(tree) == 2 * 80 + 8
    for service in services(0):
        settings = tree[f"/services/{service.region}/{service.name}/settings.ini"]
        assert f"port = {service.port}" in settings
        assert f"on call: {service.on_call}" in tree[f"/teams/{service.team}.txt"]


def call(tool, **arguments):
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


async def test_no_path_leads_out_of_the_tree():
    handle = LocalEnvironment(load_environment(num_examples=1))
    (example,) = await handle.examples("eval")
    replies = [
        call("list_folder", path="/"),
        call("read_file", path="/services/../../../etc/passwd"),
        call("read_file", path="/etc/passwd"),
        call("list_folder", path=".."),
        call("find_files", name="badger"),
        call("delete_file", path="/teams/badger.txt"),
        "<answer>1 2 3</answer>",
    ]
    rollout = await handle.rollout(ScriptedClient(replies), example)
    await handle.close()
    said = [message["content"] for message in rollout.completion if message["role"] == "tool"]
    assert (said[0], said[4]) == ("services/\nteams/", "/teams/badger.txt")
    assert [("error" in each.lower()) for each in said] == [False, True, True, True, False, True]
    assert (rollout.failure, rollout.reward, rollout.metrics["tool_errors"]) == (None, 0.0, 4.0)
