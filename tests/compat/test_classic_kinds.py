"""Kinds of the classic API that need something beside the model: a REPL, an MCP server, a game."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import wander_compat.verifiers as vf
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.errors import RateLimited
from wander.loading import load_path
from wander_compat.adapters.classic import AdaptedEnvironment
from wander_compat.verifiers.envs.rlm_env import RLMEnv
from wander_compat.verifiers.envs.rlm_shell import read_context

SERVERS = Path(__file__).parents[1] / "sdk" / "mcp_servers"


def call(name: str, **arguments) -> dict:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": "call_0", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def right(state) -> float:
    return float(state.get("final_answer") == state["answer"])


def rlm(language: str, **arguments) -> AdaptedEnvironment:
    rows = [{"question": "How many lines?", "answer": "3", "info": {"context": "a\nb\nc\n"}}]
    arguments = {"root_tools": [double], "code_execution_timeout": 20, **arguments}
    return AdaptedEnvironment(
        RLMEnv(dataset=rows, rubric=vf.Rubric([right]), repl_language=language, **arguments)
    )


def scripted(tool: str, cells: list[str]) -> ScriptedClient:
    """A model that runs the cells in order, and repeats what code asks it."""
    left = list(cells)

    def answer(request):
        last = request.messages[-1]["content"]
        return f"re {last}" if last in ("one", "two words") else call(tool, code=left.pop(0))

    return ScriptedClient(answer)


CELLS = {
    "python": [
        "n = len(open('context.txt').read().split()); print(n, double(n))",
        "llm_batch(['one', 'two words'])",
        "double('x', y=1)",
        "answer['content'] = str(n); answer['ready'] = True",
    ],
    "bash": [
        "n=$(wc -l < context.txt); echo $n $(double $n)",
        "mkdir -p deep && cd deep && llm_batch one 'two words'",
        "double --json '{\"y\": 1}'; pwd",
        "ANSWER_CONTENT=3; ANSWER_READY=1",
    ],
}


@pytest.mark.parametrize("language", ["python", pytest.param("bash", marks=pytest.mark.full)])
async def test_code_reads_the_context_and_calls_tools_and_models(language):
    env = rlm(language)
    example = env.dataset("train")[0]
    rollout = await env.rollout(scripted(f"call_{language}_repl", CELLS[language]), example)
    told = [message["content"] for message in rollout.completion if message["role"] == "tool"]
    assert rollout.failure is None
    assert (rollout.reward, rollout.stop_reason) == (1.0, "answer_ready")
    assert told[0] == "3 6"
    assert "re one" in told[1]
    assert "re two words" in told[1]
    assert "double() got an unexpected keyword argument" in told[2]
    assert language == "python" or told[2].endswith("/deep")
    assert rollout.metrics["sub_llm_call_count"] == 2.0
    assert rollout.metrics["double_root_calls"] == 2.0
    assert len(rollout.turns) == 6  # calls that code makes are turns
    again = await env.rollout(ReplayClient([rollout]), example)
    assert (again.completion, again.reward) == (rollout.completion, rollout.reward)


SESSIONS = {
    "bash": (vf.SandboxEnv, "command", ["echo 3 > n; cat n", "cat n missing"], "sleep 60"),
    "python": (vf.PythonEnv, "code", ["n = 3; n", "print(n); 1 / 0"], "import time; time.sleep(60)"),
}


@pytest.mark.parametrize("tool", ["python", pytest.param("bash", marks=pytest.mark.full)])
async def test_commands_of_a_rollout_share_a_sandbox(tool):
    kind, argument, steps, long = SESSIONS[tool]
    rows = [{"question": "Count."}]

    def answering(steps):
        def answer(request):
            return call(tool, **{argument: steps[request.turn]}) if request.turn < len(steps) else "3"

        return ScriptedClient(answer)

    env = kind(dataset=rows, docker_image="python:3.11", max_turns=9)
    adapted = AdaptedEnvironment(env)
    assert not adapted.info.deterministic
    example = adapted.dataset("train")[0]
    for index in range(2):  # the second finds nothing of the first
        rollout = await adapted.rollout(answering(steps), example, index=index)
        assert rollout.failure is None
        told = [message["content"] for message in rollout.completion if message["role"] == "tool"]
        assert told[0] == "3"
        assert told[1].startswith("3\n")
        assert ("No such file" if tool == "bash" else "ZeroDivisionError") in told[1]
        assert not env.sandboxes
    slow = AdaptedEnvironment(kind(dataset=rows, timeout_per_command_seconds=1, max_turns=2))
    rollout = await slow.rollout(answering([long]), example)
    assert rollout.completion[1]["content"].endswith("Error: timed out after 1 s")


async def test_a_model_error_in_code_fails_the_rollout():
    def answer(request):
        if request.messages[-1]["content"] == "one":
            raise RateLimited("slow down", retryable=True)
        return call("call_python_repl", code="llm_batch(['one'])")

    rollout = await (env := rlm("python")).rollout(ScriptedClient(answer), env.dataset("train")[0])
    assert (rollout.failure.boundary, rollout.failure.type) == ("model", "RateLimited")


@pytest.mark.full
async def test_code_that_takes_too_long_returns_an_error_or_ends_the_rollout():
    cells = ["while True: pass", "answer['ready'] = True"]
    rollout = await (env := rlm("python", code_execution_timeout=1)).rollout(
        scripted("call_python_repl", cells), env.dataset("train")[0]
    )
    assert "took longer than 1 s" in rollout.completion[1]["content"]
    env = rlm("python", code_execution_timeout=1, abort_on_code_timeout=True)
    rollout = await env.rollout(scripted("call_python_repl", cells), env.dataset("train")[0])
    assert rollout.failure.boundary == "tool"


def test_unsupported_features_of_an_rlm_are_reported():
    rows = [{"question": "?", "answer": ""}]
    with pytest.raises(ValueError, match="does not summarize"):
        RLMEnv(dataset=rows, enable_summarization=True)
    with pytest.raises(vf.SandboxError, match="without a GPU"):
        RLMEnv(dataset=rows, sandbox_gpu_count=1)
    with pytest.raises(ValueError, match="got `lua`"):
        RLMEnv(dataset=rows, repl_language="lua")
    assert RLMEnv(dataset=rows, sandbox_docker_image="x").sandbox_docker_image == "x"


def test_the_context_of_a_row_becomes_files(tmp_path):
    assert set(read_context({"context": {"a": [1]}})) == {"context.json"}
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("x")
    assert set(read_context({"context_dir": str(tmp_path)})) == {"deep/a.txt"}
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="symlink"):
        read_context({"context_dir": str(tmp_path)})
    with pytest.raises(ValueError, match="must be a folder"):
        read_context({"context_dir": str(tmp_path / "none")})


@pytest.mark.full
async def test_tools_of_an_mcp_server_are_offered_and_called():
    server = {"name": "bare", "command": sys.executable, "args": [str(SERVERS / "bare.py"), "ok"]}
    made = vf.MCPEnv(mcp_servers=[server], dataset=[{"question": "?", "answer": "0"}], rubric=vf.Rubric())
    env = AdaptedEnvironment(made)
    try:
        replies = [call("say", text="hello"), call("refuse"), call("nothing"), "done"]
        rollout = await env.rollout(ScriptedClient(replies), env.dataset("train")[0])
        told = [message["content"] for message in rollout.completion if message["role"] == "tool"]
        assert "bare" in told[0]
        assert told[1].startswith("Error: ")
        assert told[2] == "Error: Tool 'nothing' not found"
        assert rollout.metrics["say_calls"] == 1.0
        rollout = await env.rollout(ScriptedClient([call("die"), "done"]), env.dataset("train")[0])
        assert (rollout.failure.boundary, rollout.reward) == ("sandbox", None)
    finally:
        await env.teardown()
    assert made._thread.loop.is_closed()


def test_a_server_that_does_not_start_is_reported():
    server = {"name": "gone", "command": sys.executable, "args": ["-c", "print('no')"]}
    with pytest.raises(vf.InfraError, match="`gone` is not available"):
        vf.MCPEnv(mcp_servers=[server], dataset=[{"question": "?", "answer": "0"}])


WORDS = ["apple", "grape"]


class Guessing:
    """The part of a textarena game that the environment uses."""

    def __init__(self) -> None:
        self.word_list = WORDS
        self.done = False

    def reset(self, num_players: int) -> None:
        self.state = type("State", (), {"game_state": {"secret_word": "none"}, "done": False})()

    def get_observation(self):
        return 0, "Guess a word."

    def step(self, action: str):
        self.state.done = action == self.state.game_state["secret_word"]
        self.state.game_info = {0: {"reason": "You found it."}}


@pytest.fixture
def textarena(monkeypatch):
    """Stand in for a library of 400 MB whose games download their words."""
    library = type(sys)("textarena")
    library.make = lambda env_id: Guessing()
    words = type(sys)("nltk")
    words.download = lambda name, quiet: pytest.fail(f"{name} is there")
    words.data = type("Data", (), {"find": staticmethod(lambda path: path)})
    monkeypatch.setitem(sys.modules, "textarena", library)
    monkeypatch.setitem(sys.modules, "nltk", words)
    return library


async def test_a_word_game_uses_the_word_of_the_row(textarena):
    parser = vf.XMLParser(["guess"], answer_field="guess")
    env = AdaptedEnvironment(
        vf.TextArenaEnv(num_train_examples=6, num_eval_examples=2, parser=parser, feedback_fn=str.upper)
    )
    rows = [env.dataset("train")[number] for number in range(6)]
    assert {row.answer for row in rows} == set(WORDS)
    assert env.info.eval_examples == 2
    wrong = next(word for word in WORDS if word != rows[0].answer)
    said = [f"<guess>{word}</guess>" for word in (wrong, rows[0].answer)]
    rollout = await env.rollout(ScriptedClient(said), rows[0])
    assert [message["content"] for message in rollout.completion if message["role"] == "user"] == [
        "GUESS A WORD.", "You found it."
    ]  # fmt: skip


def test_a_game_without_its_data_or_word_is_reported(textarena):
    def fail(name):
        raise LookupError(f"Resource {name} not found.")

    asked = []
    textarena.make = lambda env_id: fail(env_id)
    sys.modules["nltk"].data.find = fail
    sys.modules["nltk"].download = lambda name, quiet: asked.append(name)
    with pytest.raises(RuntimeError, match=r"python -m nltk.downloader words"):
        vf.TextArenaEnv()
    assert asked == ["words", "averaged_perceptron_tagger_eng"]
    textarena.make = lambda env_id: type("Other", (Guessing,), {"word_list": property(None)})()
    game = Guessing()
    del game.word_list
    textarena.make = lambda env_id: game
    with pytest.raises(ValueError, match="has no secret word"):
        vf.TextArenaEnv(game="Chess-v0")


class Judge:
    """An endpoint whose judge answers `B`, then `A`."""

    def __init__(self) -> None:
        self.chat = self
        self.completions = self
        self.verdicts = iter(["I think \\boxed{B}", "\\boxed{A}"])

    def create(self, **_):
        message = type("Message", (), {"content": next(self.verdicts)})()
        return type("Answer", (), {"choices": [type("Choice", (), {"message": message})()]})()


async def test_a_judge_is_called_if_the_rule_rejects_the_answer():
    from wander_compat.verifiers.rubrics.hybrid_math_rubric import HybridMathRubric

    rubric = HybridMathRubric(
        parser=vf.Parser(), use_judge_fallback=True, judge_client=Judge(), judge_prompt="{response}"
    )
    env = AdaptedEnvironment(vf.SingleTurnEnv(dataset=[{"question": "?", "answer": "1/2"}], rubric=rubric))
    example = env.dataset("train")[0]
    rewards = [
        (await env.rollout(ScriptedClient([said]), example)).reward for said in ("$0.5$", "7", "one half")
    ]
    assert rewards == [1.0, 0.0, 1.0]
    without = HybridMathRubric(parser=vf.Parser())
    env = AdaptedEnvironment(vf.SingleTurnEnv(dataset=[{"question": "?", "answer": "2"}], rubric=without))
    assert (await env.rollout(ScriptedClient(["3"]), env.dataset("train")[0])).reward == 0.0


def test_unseeded_random_rows_are_equal_in_every_load(tmp_path):
    (tmp_path / "drawn.py").write_text(
        "import random\n\nimport verifiers as vf\n\n\n"
        "def load_environment(seed=None):\n"
        "    random.seed(seed or random.random())\n"
        '    rows = lambda: [{"question": str(random.random()), "answer": ""} for _ in range(3)]\n'
        "    return vf.SingleTurnEnv(eval_dataset=rows, rubric=vf.Rubric())\n"
    )

    def load(**arguments) -> list[str]:
        env = load_path(tmp_path / "drawn.py", **arguments)
        return [example.prompt[-1]["content"] for example in env.dataset("eval")]

    first = load()
    random.seed(5)
    assert load() == first
    assert len({*first, *load(seed=1), *load(seed=2)}) == 9
