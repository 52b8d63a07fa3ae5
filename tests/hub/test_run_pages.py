"""A run's page finds rollouts by what they say; a rollout's page shows all of it and leads on by keys."""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
import re
from typing import Any

import pytest
from small_models import checkpoint
from staged_uploads import pushed
from wander_hub.leaderboards import strata
from wander_hub.runs import explorer, models
from wander_hub.runs.kept import OF_ENTRY, Kept
from wander_hub.web.run import token_texts
from wander_hub.web.text import count

HTML = {"Accept": "text/html,application/xhtml+xml"}
REWARDS = [0.0, 0.25, None, 1.0, 0.5, 0.25, None, 0.75]
BOARD = {"columns": 3, "cells": {"X": "✕", "O": "◯", ".": ""}}


def numbers(page: str) -> list[int]:
    rows = page.partition('<h2 id="rollouts">')[2]
    return [int(one) for one in re.findall(r'<td class="right"><a href="/runs/\w+/rollouts/(\d+)', rows)]


def steps(page: str) -> dict[str, str]:
    found = re.findall(r'<a data-key="([^"]+)" href="([^"]+)"', page)
    return {html.unescape(key): html.unescape(target).rpartition("/")[2] for key, target in found}


def stated(tokens: int, text: str) -> dict[str, Any]:
    """One long reply, with as many tokens as it may have."""
    reply, usage = {"role": "assistant", "content": text}, {"completion_tokens": tokens}
    turn = {"message": reply, "context_messages": 1, "usage": usage}
    return {"completion": [reply], "turns": [turn], "usage": usage}


@pytest.fixture
async def run_id(hub: Any, run_of: Any) -> str:
    """Four examples, two rollouts of each, with failures, strata and metrics."""
    manifest, rollouts = run_of(await hub.publish(), reward=REWARDS, examples=4, strata=[0, 0, 1, 1])
    for number, line in enumerate(rollouts):
        if line["reward"] is None:
            line["failure"]["message"] = f"nothing listens at port {5000 + number}"
        else:
            line["stop_reason"] = "won <b>" if line["reward"] > 0.4 else "lost"
            line["metrics"]["length"] = float(number)
    rollouts[3]["prompt"].insert(0, {"role": "user", "content": 'Say "Größe" or\nnothing'})
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "mitte"}'}}
    rollouts[5]["completion"][:0] = [
        {"role": "assistant", "content": None, "reasoning_content": "In the MIDDLE", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "half-way"},
    ]
    rollouts[5]["turns"] = []
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    return str(manifest["run_id"])


FOUND: list[tuple[dict[str, Any], list[int]]] = [
    ({}, list(range(8))),
    ({"reward_min": 0.25, "reward_max": 0.5}, [1, 4, 5]),
    ({"reward_min": 0.25, "reward_max": 0.5, "sort": "reward"}, [5, 1, 4]),
    ({"reward_min": 0.25, "sort": "-reward"}, [3, 7, 4, 1, 5]),
    ({"only": "failed"}, [2, 6]),
    ({"only": "scored", "stratum": 1}, [4, 5, 7]),
    ({"failure": "model"}, [2, 6]),
    ({"fault": "EndpointUnreachable: nothing listens at port #"}, [2, 6]),
    ({"stop_reason": "won <b>"}, [3, 4, 7]),
    ({"metric": "length", "metric_max": 3}, [0, 1, 3]),
    ({"metric": "no such"}, []),
    ({"text": "REPLY 2/"}, [4, 5]),
    ({"text": "in the middle"}, [5]),
    ({"text": '"word": "MITTE'}, [5]),
    ({"text": "half-WAY", "sort": "-reward"}, [5]),
    ({"text": 'say "gröSSe" or\nNOTHING'}, [3]),
    ({"text": "half-way", "reward_max": 0}, []),
    ({"text": "tool_call_id"}, []),
    ({"stratum": "", "reward_max": "", "only": "scored", "text": "y", "sort": "reward"}, [0, 5, 1, 4, 7, 3]),
]


async def test_page_and_api_find_the_same_rollouts(hub, run_id):
    api = f"/api/v1/runs/{run_id}/rollouts"
    for asked, found in FOUND:
        answer = (await hub.get(api, params=asked)).json()
        assert [one["number"] for one in answer["data"]] == found, asked
        assert answer["total"] == len(found)
        part = (await hub.get(api, params=asked | {"offset": 1, "limit": 2})).json()
        assert [one["number"] for one in part["data"]] == found[1:3]
        assert part["total"] == len(found)
        page = await hub.get(f"/runs/{run_id}", params=asked, headers=HTML)
        assert page.status_code == 200
        assert numbers(page.text) == found
        rows = (await hub.get(f"/runs/{run_id}/rows", params=asked, headers=HTML)).text.partition("<tr>")[2]
        assert rows.partition("</tbody>")[0] in page.text, "what a page that scrolls is sent is what it has"


async def test_in_a_large_run_only_last_replies_are_searched(hub, run_id, monkeypatch):
    monkeypatch.setattr(explorer, "MOST_STORED", 10)
    assert numbers((await hub.get(f"/runs/{run_id}?text=reply+2/", headers=HTML)).text) == [4, 5]
    page = (await hub.get(f"/runs/{run_id}?text=way", headers=HTML)).text
    assert (numbers(page), "too large for a full-text search" in page) == ([], True)


async def test_invalid_filters_are_rejected(hub, run_id):
    for asked in ({"sort": "size"}, {"only": "good"}, {"reward_min": "nan"}, {"text": "x" * 201}):
        for place in (f"/api/v1/runs/{run_id}/rollouts", f"/runs/{run_id}"):
            assert (await hub.get(place, params=asked)).status_code == 422, (place, asked)


async def test_a_run_too_large_to_search_links_to_all_rollouts(hub, run_id, monkeypatch):
    monkeypatch.setattr(explorer, "MOST_SEARCHED", 7)
    refused = await hub.get(f"/api/v1/runs/{run_id}/rollouts?text=other")
    assert refused.status_code == 422
    assert f"/api/v1/runs/{run_id}/rollouts.jsonl" in refused.json()["hint"]
    page = await hub.get(f"/runs/{run_id}?sort=-reward", headers=HTML)
    assert numbers(page.text)[0] == 3
    assert "explorer-form" not in page.text
    for asked in ("?step=3", "/rollouts/0?from=1"):
        assert (await hub.get(f"/runs/{run_id}{asked}", headers=HTML)).status_code == 200, "no search"


async def test_a_run_page_describes_the_run_and_groups_failures(hub, run_id):
    page = (await hub.get(f"/runs/{run_id}", headers=HTML)).text
    assert (
        "tiny played alice/reverse-text 0.1.0: the first 4 examples of the eval split, each 2 times." in page
    )
    assert "Sampled with temperature 1.0, seed 7." in page
    faults = page.partition('id="failures"')[2].partition("</table>")[0]
    assert faults.count("<tr>") == 2
    assert "EndpointUnreachable: nothing listens at port #" in faults
    drawn = page.partition("Reward by")[2].partition("</table>")[0]
    assert [*re.findall(r"score\">([\d.]+)<", drawn)] == ["0.417", "0.500"]
    bars = [html.unescape(one) for one in re.findall(r'<a href="(\?reward_min=[^"]+)#rollouts"><rect', page)]
    counted = [len(numbers((await hub.get(f"/runs/{run_id}{bar}", headers=HTML)).text)) for bar in bars]
    assert len(bars) > 2
    assert counted == [int(one) for one in re.findall(r"<rect[^>]*><title>[^:]+: ([1-9]\d*) rollouts", page)]
    path = f"/api/v1/runs/{run_id}"
    assert (await hub.client.delete(path, params={"reason": "x"}, headers=hub.auth())).status_code == 200
    page = (await hub.get(f"/runs/{run_id}", headers=HTML)).text
    assert "nothing listens" not in page, "what its rollouts said is gone with them"


def test_simultaneous_computations_are_stored_once():
    kept = Kept()
    kept.get("key", lambda: kept._keep("key", 1))
    assert kept._size == OF_ENTRY


async def test_a_run_of_many_strata_shows_the_first(hub, run_of, monkeypatch):
    monkeypatch.setattr(explorer, "MOST_STRATA", 2)
    monkeypatch.setattr(models, "MOST_STRATA", 2)
    made = run_of(await hub.publish(), examples=4, strata=[7, 2**80, 3, -1])
    assert (await hub.post_run(*made)).status_code == 201
    page = (await hub.get(f"/runs/{made[0]['run_id']}", headers=HTML)).text
    drawn = page.partition("Reward by")[2].partition("</table>")[0]
    assert re.findall(r"stratum=(-?[0-9]+)", drawn) == ["-1", "3"]
    assert "and 2 more" in drawn
    board = (await hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    options = board.partition('<select name="stratum">')[2].partition("</select>")[0]
    assert re.findall("<option>([^<]+)", options) == ["-1", "3"]


async def test_pages_tell_whether_one_try_passes_and_whether_all_do(hub, run_of):
    manifest, rollouts = run_of(await hub.publish(), reward=[1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.get(f"/runs/{manifest['run_id']}", headers=HTML)).text
    passed = page.partition("Pass rates")[2].partition("</table>")[0]
    assert [round(float(one), 2) for one in re.findall(r'class="score">([0-9.]+)', passed)] == [
        0.5,
        0.5,
        0.67,
        0.33,
    ]
    board = (await hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    (cell,) = re.findall(r'data-label="pass@2 / \^2">(.*?)</td>', board)
    assert re.sub("<[^>]+>", "", cell) == "0.67 / 0.33"


async def test_a_board_shows_the_rewards_of_a_stratum(hub, run_of, monkeypatch):
    rewards = [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.0, 0.0]
    made = run_of(await hub.publish(), reward=rewards, examples=4, strata=[0, 0, 1, 1])
    assert (await hub.post_run(*made)).status_code == 201
    monkeypatch.setattr(strata, "_MOST_BROKEN_DOWN", 7)
    path, lead = "/alice/reverse-text/leaderboard", f"/runs/{made[0]['run_id']}?stratum=1#rollouts"
    page = (await hub.get(f"{path}?stratum=1", headers=HTML)).text
    assert lead not in page, "too many to be read for a board"
    monkeypatch.undo()
    page = (await hub.get(f"{path}?stratum=1&sort=posted", headers=HTML)).text
    assert re.findall(rf'<a href="{re.escape(lead)}" title="4 rollouts, 0 failed">([^<]+)', page) == ["0.125"]
    assert ">Stratum 1</th>" in page
    for asked in ("", "?stratum=", "?stratum=9"):
        page = (await hub.get(path + asked, headers=HTML)).text
        assert "Reward by stratum" in page
        assert '</th><th scope="col" class="right" title="mean reward of the rollouts' not in page
    assert (await hub.get(f"{path}?stratum=x", headers=HTML)).status_code == 422
    api = f"/api/v1/environments{path}"
    told = {"stratum": 1, "reward_mean": 0.125, "rollouts": 4, "failed": 0}
    assert (await hub.get(api)).json()["strata"] == [0, 1]
    assert "stratum" not in (await hub.get(api)).json()["rows"][0]
    assert (await hub.get(f"{api}?stratum=1")).json()["rows"][0]["stratum"] == told
    links = re.findall(
        r'href="([^"]+)">(?:JSON|CSV)</a>', (await hub.get(f"{path}?stratum=1", headers=HTML)).text
    )
    answers = [(await hub.get(html.unescape(one))).text for one in links]
    assert json.loads(answers[0])["rows"][0]["stratum"] == told
    (row,) = csv.DictReader(io.StringIO(answers[1]))
    assert [row[f"stratum:1_{part}"] for part in ("mean", "rollouts", "failed")] == ["0.125", "4", "0"]
    unknown = (await hub.get(f"{api}?stratum=9")).json()
    assert (unknown["code"], unknown["hint"]) == ("stratum_not_found", "its strata are 0, 1")


async def test_a_rollout_leads_on_within_the_list_to_failures_and_siblings(hub, run_id):
    here = f"/runs/{run_id}/rollouts"
    page = (await hub.get(f"{here}/3", headers=HTML)).text
    assert steps(page) == {
        "[": "2",
        "]": "4",
        "F": "2",
        "f": "6",
        "S": "2",
        "h": run_id + "#rollouts",
    }
    zero = (await hub.get(f"{here}/0?reward_max=0&stratum=0", headers=HTML)).text
    assert steps(zero)["f"] == "2?reward_max=0.0&stratum=0", "zero is a bound"
    assert steps(zero)["h"] == f"{run_id}?reward_max=0.0&stratum=0#rollouts"
    asked = "?reward_min=0.4&sort=-reward"
    page = (await hub.get(f"{here}/7{asked}", headers=HTML)).text
    found = steps(page)
    assert (found["["], found["]"]) == ("3?sort=-reward&reward_min=0.4", "4?sort=-reward&reward_min=0.4")
    assert found["h"] == f"{run_id}?sort=-reward&reward_min=0.4#rollouts"
    outside = steps((await hub.get(f"{here}/2?reward_min=0.4", headers=HTML)).text)
    assert outside["]"].startswith("3?")
    assert "[" not in outside


async def test_nothing_of_a_message_is_out_of_reach(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    rollouts[0] |= stated(90_000, "<script>alert(1)</script>" + "c" * 70_000)
    reply = rollouts[0]["completion"][0]
    reply["reasoning_content"] = "r" * 200_000
    reply["tool_calls"] = [{"function": {"name": "f", "arguments": '{"a": 1}'}}]
    rollouts[1]["completion"] = [{"role": "user", "content": f"message {n}"} for n in range(1000)]
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    here = f"/runs/{manifest['run_id']}/rollouts"
    page = (await hub.get(f"{here}/0", headers=HTML)).text
    assert f'<a href="{here}/0/messages/1">All 200\u2009000 characters</a>' in page
    whole = await hub.get(f"{here}/0/messages/1", headers=HTML)
    assert whole.headers["content-type"].startswith("text/plain")
    assert "sandbox" in whole.headers["content-security-policy"]
    assert whole.text.count("r" * 200_000) == whole.text.count("c" * 70_000) == 1
    assert '[call f]\n{"a": 1}' in whole.text
    assert (await hub.get(f"{here}/0/messages/2", headers=HTML)).status_code == 404
    first = (await hub.get(f"{here}/1", headers=HTML)).text
    assert f'<a href="{here}/1?from=400">Continue</a>' in first
    of_list = (await hub.get(f"{here}/1?only=scored&from=400", headers=HTML)).text
    assert f'<a href="{here}/1?only=scored&amp;from=800">Continue</a>' in of_list
    assert steps(of_list)["["] == "0?only=scored"
    last = (await hub.get(f"{here}/1?from=800", headers=HTML)).text
    assert "filtered list" not in last
    assert 'id="m1000"' in last
    assert "Continue" not in last


async def test_tokens_are_shown_on_demand(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    tokens = {"prompt_ids": [1, 2], "completion_ids": [7, 8, 9], "logprobs": [-0.01, -0.5, -3.0]}
    rollouts[0]["turns"][0]["tokens"] = tokens
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    here = f"/runs/{manifest['run_id']}/rollouts"
    assert f'href="{here}/0/turns/0"' in (await hub.get(f"{here}/0", headers=HTML)).text
    assert "/turns/" not in (await hub.get(f"{here}/1", headers=HTML)).text
    page = (await hub.get(f"{here}/0/turns/0", headers=HTML)).text
    assert "3 sampled tokens after 2 prompt tokens, mean log-probability −1.170" in page
    assert re.findall(r'<li class="(p\d)"', page) == ["p3", "p2", "p0"]
    assert (await hub.get(f"{here}/1/turns/0", headers=HTML)).status_code == 404


async def test_tokens_have_the_texts_of_the_tokenizer_of_a_pushed_model(hub, run_of):
    parts = {
        "model": {"type": "BPE", "vocab": {"Ġre": 4, "ä": 5, "Ċ<b>": 6}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 7, "content": "<|end|>"}],
    }
    files = checkpoint(tokenizer_json=json.dumps(parts).encode())
    made = await pushed(hub.client, hub.auth(), files)
    assert made.status_code == 201, made.text
    sha256, shown = await hub.publish(), []
    for number, weights in enumerate((made.json()["weights_sha256"], "ab" * 32)):
        run_id = f"01JRUNTOKENS000000000000A{number}"
        manifest, rollouts = run_of(sha256, run_id=run_id)
        manifest["model"]["weights_sha256"] = weights
        for line, ids in zip(rollouts, ([4, 5, 6], [7, 3]), strict=False):
            tokens = {"prompt_ids": [1], "completion_ids": ids, "logprobs": [-0.5] * len(ids)}
            line["turns"][0]["tokens"] = tokens
        answer = await hub.post_run(manifest, rollouts)
        assert answer.status_code == 201, answer.text
        pages = [await hub.get(f"/runs/{run_id}/rollouts/{one}/turns/0", headers=HTML) for one in (0, 1)]
        text = pages[0].text + pages[1].text
        shown.append(re.findall(r'probability [^"]*"><span class="mono">([^<]*)</span>', text))
    known, unknown = shown
    assert known == ["␣re", "\\xe4", "↵&lt;b&gt;", "&lt;|end|&gt;", "3"]
    assert unknown == ["4", "5", "6", "7", "3"], "no tokenizer of these weights is here"


TEXTS = [
    ({"vocab": {"▁a": 0, "<0x0A>": 1, "<0xE4>": 2, "##b": 3}}, {"type": "Fuse"}, [" a", "\n", "\\xe4", "b"]),
    ({"vocab": [["▁", -1.0], ["x", -2.0]]}, None, [" ", "x"]),
    ({"vocab": {"Ġ": 0}}, {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, [" "]),
    ({"vocab": {"a": "0", "b": True}}, {"decoders": 7}, []),
    ({"vocab": [1, []]}, [], []),
    (None, None, []),
]


@pytest.mark.parametrize(("model", "decoder", "texts"), TEXTS)
def test_other_tokenizers_give_token_texts_or_none(model, decoder, texts):
    text = json.dumps({"model": model, "decoder": decoder, "added_tokens": [5, {"id": "x"}]}).encode()
    found = token_texts.read_texts(hashlib.sha256(text).hexdigest(), lambda: text).texts
    assert list(found.values()) == texts


def test_invalid_tokenizers_give_no_token_texts():
    assert token_texts.read_texts("broken", lambda: b"{").texts == {}


async def test_a_state_is_drawn_as_the_environment_declares(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    manifest["environment"]["info"]["view"] = BOARD
    say = lambda role, text: {"role": role, "content": text}  # noqa: E731
    rollouts[0]["prompt"] = [say("user", "Your move.\n. . .\n. . .\n. . O")]
    rollouts[0]["completion"] = [
        say("assistant", "X . .\n. . .\n. . O"),
        say("user", "X . .\n. O .\n. . O"),
        say("user", "<b> . .\nno board"),
        say("user", "X X .\n. O .\n. . O\nX O O"),
    ]
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.get(f"/runs/{manifest['run_id']}/rollouts/0", headers=HTML)).text
    steps_shown = page.partition('<ol class="state-steps"')[2].partition("</ol>")[0]
    drawn = [re.findall(r"<td([^>]*)>(.?)</td>", one) for one in steps_shown.split("</table>")[:-1]]
    assert len(drawn) == 3, "what the model says is no state, and neither is what has no board"
    assert "".join(cell or "." for _, cell in drawn[1]) == "✕...◯...◯"
    assert [bool(css) for css, _ in drawn[1]] == [True, False, False, False, True, False, False, False, False]
    assert len(drawn[2]) == 12
    assert not any(css for css, _ in drawn[2]), "a grid of another size is not compared"
    assert re.findall(r'<a href="#m(\d+)">\d', steps_shown) == ["0", "2", "4"]


async def test_rows_are_drawn_as_a_table_if_the_environment_declares_it(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    manifest["environment"]["info"]["view"] = {"kind": "table"}
    say = lambda role, text: {"role": role, "content": text}  # noqa: E731
    rollouts[0]["prompt"] = [say("user", 'Change it.\n["id", "name"]\n[1, "<b>"]\n[2, null]')]
    rollouts[0]["completion"] = [
        say("assistant", '["no", "state"]\n[1, 2]'),
        say("tool", '["id", "name"]\n[1, "<b>"]\n[2, "new"]'),
        say("tool", '{"item": "apple", "price": 3.5}\n{"item": "pear"}\n' + "[" * 9000),
        say("tool", "1 rows changed"),
    ]
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.get(f"/runs/{manifest['run_id']}/rollouts/0", headers=HTML)).text
    tables = [one.partition("</table>")[0] for one in page.split('state-table"')[1:]]
    cells = [re.findall(r"<t[hd][^>]*>([^<]*)</t", one) for one in tables]
    assert cells == [
        ["id", "name", "1", "&lt;b&gt;", "2", "null"],
        ["id", "name", "1", "&lt;b&gt;", "2", "new"],
        ["item", "pear"],
    ]
    assert [one.count('class="changed"') for one in tables] == [0, 1, 0]
    assert "state-steps" not in page


@pytest.mark.parametrize("broken", [False, True])
async def test_every_conversation_of_an_agent_program_is_shown_with_its_place(hub, run_of, broken):
    manifest, rollouts = run_of(await hub.publish())
    say = lambda role, text: {"role": role, "content": text}  # noqa: E731
    reply = say("assistant", "a <i>title</i>")
    turn = {"message": reply, "context_messages": 1}
    side = {"path": "1", "depth": 1, "turn": -1, "prompt": [say("user", "Which title?")]}
    side |= {"completion": [reply], "turns": [turn]}
    failure = {"boundary": "model", "type": "ModelError", "message": "too long"}
    failed = {**side, "path": "2", "turn": 0, "completion": [], "turns": [], "failure": failure}
    program = {"name": "codex", "version": "0.171.0"}
    calls = [{**side, "completion": 3}] if broken else [side, failed]
    rollouts[0]["info"] = {"agent": {"program": program, "exit_status": 0, "sub_calls": calls}}
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.get(f"/runs/{manifest['run_id']}/rollouts/0", headers=HTML)).text
    assert ('id="conversations"' in page) is not broken
    if not broken:
        first, second = [one.partition("</details>")[0] for one in page.split('class="conversation">')[1:]]
        assert "Conversation 1: 1 model call, began before the first turn" in first
        assert "Which title?" in first
        assert "a &lt;i&gt;title&lt;/i&gt;" in first
        assert "Conversation 2: 0 model calls, began after turn 1" in second
        assert "too long" in second
        assert "codex 0.171.0, exit status 0" in page


@pytest.mark.parametrize("broken", [False, True])
async def test_the_files_that_a_model_left_are_listed(hub, run_of, broken):
    manifest, rollouts = run_of(await hub.publish())
    files = [
        {"path": "/work/<b>.txt", "kind": "file", "size": 1234, "sha256": "0" * 64, "text": "secret text"},
        {"path": "/work/old", "kind": "removed"},
    ]
    state = {"digest": "1" * 64, "files": [{"path": 3}] if broken else files}
    box = {"image": "system:1", "state": state}
    rollouts[0]["info"] = {"box": {**box, "hosts": ["pypi.org", "<i>.org"]}, "other": 7}
    rollouts[1]["info"] = {"box": box}
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page = (await hub.get(f"/runs/{manifest['run_id']}/rollouts/0", headers=HTML)).text
    assert ("Files left in the box" in page) is not broken
    if not broken:
        text = re.sub(r"<wbr>", "", page)
        assert "/work/&lt;b&gt;.txt" in text
        assert f">{count(1234)}<" in text
        assert "removed" in text
        assert "<code>pypi.org</code>, <code>&lt;i&gt;.org</code>, and no other host" in page
        second = (await hub.get(f"/runs/{manifest['run_id']}/rollouts/1", headers=HTML)).text
        assert "the box had no network" in second
        assert "secret text" not in text
    assert "other" in page
