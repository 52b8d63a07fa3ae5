"""A fault in any hook, client or rubric becomes one rollout's failure, attributed to where it belongs."""

from __future__ import annotations

import asyncio
import sys

import pytest
from wander import MultiTurnEnv, Rubric, ScriptedClient
from wander.clients.base import Client
from wander.errors import EndpointUnreachable, ModelError, SandboxError, ToolError
from wander.rollout.hooks import call_hook, cleanup, stop

ROWS = [{"question": "go", "answer": "x"}]


class Base(MultiTurnEnv):
    """Records that it was cleaned up."""

    def __init__(self, **arguments):
        arguments = {"max_turns": 2, "rubric": Rubric([constant])} | arguments
        super().__init__(ROWS, **arguments)
        self.cleaned = 0

    def env_response(self, messages, state):
        return [{"role": "user", "content": "?"}]

    @cleanup
    def count(self, state):
        self.cleaned += 1


def constant() -> float:
    return 1.0


class InSetup(Base):
    def setup_state(self, state):
        raise KeyError("board")


class InResponse(Base):
    async def env_response(self, messages, state):
        await asyncio.sleep(0)
        raise ValueError("bad move")


class InStop(Base):
    @stop
    def broken(self, state):
        return state["missing"]


class InCleanup(Base):
    @cleanup(priority=1)
    def broken(self, state):
        raise OSError("socket")


class Leaves(Base):
    def env_response(self, messages, state):
        sys.exit(3)


class Fatal(Base):
    def env_response(self, messages, state):
        raise ToolError("the calculator burnt down")


class Jailed(Base):
    def setup_state(self, state):
        raise SandboxError("no namespace", retryable=True)


async def played(env, replies=("a", "b")):
    client = ScriptedClient(list(replies)) if isinstance(replies, tuple) else replies
    return await env.rollout(client, env.dataset()[0])


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (InSetup, "`setup_state` raised `KeyError: 'board'`"),
        (InResponse, "`env_response` raised `ValueError: bad move`"),
        (InStop, "`broken` raised `KeyError: 'missing'`"),
        (InCleanup, "`broken` raised `OSError: socket`"),
        (Leaves, "`env_response` raised `SystemExit: 3`"),
    ],
)
async def test_an_error_in_a_hook_has_the_environment_boundary(cls, said):
    env = cls()
    rollout = await played(env)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.type) == ("environment", "EnvironmentFault")
    assert rollout.failure.message.startswith(said)
    assert "test_environment_faults.py:" in rollout.failure.message
    assert "/" not in rollout.failure.message
    assert (rollout.reward, rollout.metrics, rollout.stop_reason) == (None, {}, None)
    assert env.cleaned == 1


@pytest.mark.parametrize(
    ("cls", "boundary", "kind", "retryable"),
    [(Fatal, "tool", "ToolError", False), (Jailed, "sandbox", "SandboxError", True)],
)
async def test_boundary_errors_keep_their_boundary(cls, boundary, kind, retryable):
    failure = (await played(cls())).failure
    assert failure is not None
    assert (failure.boundary, failure.type, failure.retryable) == (boundary, kind, retryable)


class Answers(Base):
    """Answers with whatever the test says."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def env_response(self, messages, state):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (([], {}), "returned a tuple"),
        ("text", "must return a list of messages, got `str`"),
        (None, "got `NoneType`"),
        ([{"content": "no role"}], "without a `role`"),
        (["text"], "without a `role`"),
        ([{"role": "user", "content": 5}], "whose `content` is a `int`"),
        ([{"role": "user", "content": "a", "extra": {1, 2}}], "not a JSON value"),
        ([{"role": "user", "content": [float("nan")]}], "not a JSON value"),
    ],
)
async def test_an_invalid_environment_response_is_explained(answer, said):
    rollout = await played(Answers(answer))
    assert rollout.failure is not None
    assert rollout.failure.boundary == "environment"
    assert said in rollout.failure.message
    assert len(rollout.turns) == 1


async def test_invalid_final_responses_setups_and_prompts_are_explained():
    class Final(Base):
        def env_response(self, messages, state):
            state["final_env_response"] = "over"

    class Setup(Base):
        def setup_state(self, state):
            return 5

    class Prompt(Base):
        def setup_state(self, state):
            state["prompt"] = "text"

    class Public(Base):
        def setup_state(self, state):
            state["public"]["board"] = object()

    messages = [(await played(cls())).failure.message for cls in (Final, Setup, Prompt, Public)]
    assert 'state["final_env_response"]' in messages[0]
    assert "must return the state or None" in messages[1]
    assert 'state["prompt"]' in messages[2]
    assert 'state["public"]` is not a JSON value' in messages[3]


class Faulty(Client):
    """Raises what it was given, at the place it was given."""

    model = "faulty"

    def __init__(self, error, place="complete"):
        self.error, self.place, self.ended = error, place, 0

    def begin(self, rollout_id):
        if self.place == "begin":
            raise self.error

    def end(self, rollout_id):
        self.ended += 1
        if self.place == "end":
            raise self.error

    async def complete(self, request):
        if self.place == "complete":
            raise self.error
        return await ScriptedClient(["a"]).complete(request)


@pytest.mark.parametrize("place", ["begin", "complete", "end"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EndpointUnreachable("nothing listens", retryable=True), "EndpointUnreachable"),
        (ModelError("no"), "ModelError"),
        (TypeError("bug"), "ModelError"),
        (TimeoutError(), "ModelError"),
    ],
)
async def test_an_error_of_the_client_has_the_model_boundary(error, kind, place):
    env, client = Base(), Faulty(error, place)
    rollout = await played(env, client)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.type) == ("model", kind)
    assert rollout.failure.retryable == (kind == "EndpointUnreachable")
    assert rollout.reward is None
    assert (env.cleaned, client.ended) == (1, 1)


async def test_turns_before_a_failure_are_kept():
    rollout = await played(Base(max_turns=5), ("a", "b"))
    assert rollout.failure is not None
    assert "the script has 2 replies" in rollout.failure.message
    assert [message["content"] for message in rollout.completion] == ["a", "?", "b", "?"]


async def test_the_first_failure_is_recorded():
    class Twice(InResponse):
        @cleanup
        def broken(self, state):
            raise OSError("second")

    rollout = await played(Twice())
    assert rollout.failure is not None
    assert "bad move" in rollout.failure.message


async def test_cleanup_continues_after_a_hook_raises():
    env = InCleanup()
    await played(env)
    assert env.cleaned == 1


async def test_cancellation_cleans_up_and_propagates():
    env, started = Base(), asyncio.Event()

    class Slow(Faulty):
        async def complete(self, request):
            started.set()
            await asyncio.sleep(3600)

    client = Slow(ModelError("at the end"), place="end")
    task = asyncio.create_task(played(env, client))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (env.cleaned, client.ended) == (1, 1)


async def test_a_failed_rollout_does_not_affect_its_group():
    class Sometimes(Base):
        def setup_state(self, state):
            if state["index"] % 2:
                raise RuntimeError("odd")

    env = Sometimes()
    client, example = ScriptedClient(["a", "b"]), env.dataset()[0]
    rollouts = await asyncio.gather(*(env.rollout(client, example, index=index) for index in range(6)))
    assert [rollout.reward for rollout in rollouts] == [1.0, None] * 3


async def test_an_error_in_a_reward_function_has_the_rubric_boundary():
    def broken():
        raise ZeroDivisionError("no")

    rollout = await played(Base(rubric=Rubric([broken, constant])))
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.type) == ("rubric", "RubricError")
    assert rollout.failure.message.startswith("`broken` raised `ZeroDivisionError: no`")
    assert rollout.reward is None
    assert rollout.metrics == {"constant": 1.0}


async def test_a_rubric_that_raises_in_its_own_code_is_a_failure_too():
    class Own(Rubric):
        async def score(self, state, parser=None):
            raise LookupError("table")

    rollout = await played(Base(rubric=Own()))
    assert rollout.failure is not None
    assert rollout.failure.boundary == "rubric"
    assert "LookupError: table" in rollout.failure.message


async def test_failed_rollouts_are_not_scored():
    scored = []

    def remember():
        scored.append(1)
        return 1.0

    rollout = await played(InResponse(rubric=Rubric([remember])))
    assert rollout.reward is None
    assert scored == []


async def test_a_failed_rollout_can_be_written_and_read():
    rollout = await played(InResponse())
    assert type(rollout).model_validate_json(rollout.model_dump_json()) == rollout


class Panic(BaseException):
    """As extension modules raise it: no `Exception`."""


@pytest.mark.parametrize("error", [Panic("poisoned"), asyncio.CancelledError("nobody asked")])
@pytest.mark.parametrize(
    ("place", "boundary"),
    [
        ("setup_state", "environment"),
        ("env_response", "environment"),
        ("never", "environment"),
        ("tidy", "environment"),
        ("reward", "rubric"),
    ],
)
async def test_base_exceptions_are_failures_too(place, boundary, error):
    def raising(*_):
        raise error

    def reward(state):
        raising()

    def plain(self, state):
        return False

    never, tidy = (raising if place == name else plain for name in ("never", "tidy"))
    hooks = {"never": stop(never), "tidy": cleanup(tidy)}
    if place in ("setup_state", "env_response"):
        hooks[place] = raising
    env = type("Env", (Base,), hooks)(rubric=Rubric([reward if place == "reward" else constant]))
    failure = (await played(env)).failure
    assert failure is not None
    assert failure.boundary == boundary
    assert type(error).__name__ in failure.message
    assert env.cleaned == 1


def test_a_keyboard_interrupt_is_not_a_failure():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        # Driven without a loop, which an interrupt would end.
        call_hook(interrupted).send(None)
