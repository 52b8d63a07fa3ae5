"""Records that a rollout makes by `Record.assemble` have every field, as if pydantic had made them."""

from __future__ import annotations

from pydantic import BaseModel
from wander import ScriptedClient, SingleTurnEnv
from wander.clients.base import ModelRequest, ModelResponse
from wander.clients.replay import ReplayClient
from wander.types import Usage

ROWS = [{"question": "one", "answer": "1", "info": {"deep": [1, {"two": 2}]}, "stratum": 3, "more": "column"}]


def assert_whole(record: BaseModel) -> None:
    """A field that was added later and is not given would be missing here."""
    kind = type(record)
    assert set(record.__dict__) == set(kind.model_fields) == record.model_fields_set
    assert record == kind.model_construct(**record.__dict__)
    assert kind.model_validate_json(record.model_dump_json()).model_dump() == record.model_dump()


async def test_assembled_rollouts_have_every_field() -> None:
    seen: list[BaseModel] = []

    def reply(request: ModelRequest) -> str:
        seen.append(request)
        return "1"

    class Kept(SingleTurnEnv):
        def setup_state(self, state: dict[str, object]) -> None:
            seen.append(state["example"])  # type: ignore[arg-type]

    environment = Kept(dataset=ROWS)
    example = environment.dataset("train").examples(0, 1)[0]
    rollout = await environment.rollout(ScriptedClient(reply), example)
    for record in (*seen, rollout, *rollout.turns, rollout.usage):
        assert_whole(record)
    assert len(seen) == 2
    assert seen[0] == example


async def test_replayed_rollouts_have_every_field() -> None:
    environment = SingleTurnEnv(dataset=ROWS)
    example = environment.dataset("train").examples(0, 1)[0]
    recorded = await environment.rollout(ScriptedClient(["1"]), example)
    response = await ReplayClient([recorded]).complete(ModelRequest(rollout_id="0/0", turn=0, messages=[]))
    assert isinstance(response, ModelResponse)
    assert_whole(response.model_copy(update={"usage": Usage()}))


def test_an_assembled_record_can_be_copied_and_changed() -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=2)
    assert usage + Usage(prompt_tokens=1) == Usage(prompt_tokens=2, completion_tokens=2)
    copy = usage.model_copy(update={"prompt_tokens": 5})
    copy.completion_tokens = 7
    assert copy == Usage(prompt_tokens=5, completion_tokens=7)
    assert usage == Usage(prompt_tokens=1, completion_tokens=2)
