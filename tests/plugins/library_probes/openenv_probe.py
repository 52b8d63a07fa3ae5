"""Plays on a real OpenEnv server through the bridge, where `wander-integrations[openenv]` is installed."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from wander import ScriptedClient
from wander_integrations import OpenEnvEnv


class Guess(Action):
    number: str


class Told(Observation):
    text: str


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **_):
        self.number = random.Random(seed).randint(1, 3)
        return Told(text="From 1 to 3?")

    def step(self, action, timeout_s=None, **_):
        right = action.number == str(self.number)
        return Told(text="yes" if right else "no", done=right, reward=float(right))

    @property
    def state(self):
        return State()


async def played(url: str) -> None:
    env = OpenEnvEnv(url, text_field="number", observed_field="text")
    examples = env.dataset().examples(0, 6)
    replies = ["1", "2", "3"]
    rollouts = await asyncio.gather(*(env.rollout(ScriptedClient(replies), each) for each in examples))
    assert {(each.reward, each.stop_reason) for each in rollouts} == {(1.0, "game_over")}
    assert len({len(each.turns) for each in rollouts}) > 1, "the seeds do not reach the server"
    again = await env.rollout(ScriptedClient(replies), examples[0])
    assert again.completion == rollouts[0].completion
    env = OpenEnvEnv(url)
    said = ["hm", '{"digit": "1"}', '{"number": null}', *(f'{{"number": "{number}"}}' for number in replies)]
    rollout = await env.rollout(ScriptedClient(said), env.dataset()[0])
    assert (rollout.reward, rollout.metrics["no_actions"], rollout.failure) == (1.0, 3.0, None)
    assert rollout.prompt[-1]["content"] == '{"text": "From 1 to 3?"}'
    assert not env.info.deterministic
    failed = await OpenEnvEnv(url, observed_field="txt").rollout(ScriptedClient(said), env.dataset()[0])
    assert "has no `txt`, but 'text'" in failed.failure.message
    gone = await OpenEnvEnv("http://127.0.0.1:9").rollout(ScriptedClient(said), env.dataset()[0])
    assert "no OpenEnv server responds" in gone.failure.message


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
app = create_app(Guessing, Guess, Told, max_concurrent_envs=8)
server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
thread = threading.Thread(target=server.run, daemon=True)
thread.start()
while not server.started:
    time.sleep(0.05)
asyncio.run(played(f"http://127.0.0.1:{port}"))
server.should_exit = True
thread.join()
print("played")
