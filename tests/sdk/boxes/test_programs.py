"""Programs in a box that call models at an address inside it."""

from __future__ import annotations

import pytest
from sandboxes import needs_sandbox
from wander.boxes.base import CommandResult
from wander.endpoint.values import EndpointCall, EndpointReply
from wander.errors import SandboxError

pytestmark = needs_sandbox

PROGRAM = r"""
body='{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
printf '%s' "$body" > /tmp/body
url="$OPENAI_BASE_URL/chat/completions"
wget -q -O - --header 'Content-Type: application/json' --post-file /tmp/body "$url"
exit 5
"""


async def test_a_program_calls_a_model_and_ends(box):
    await box.start_program(PROGRAM, seconds=30)
    with pytest.raises(SandboxError, match="already runs"):
        await box.start_program("true", seconds=30)
    call = await box.next_call()
    assert isinstance(call, EndpointCall)
    assert [(message["role"], message["content"]) for message in call.messages] == [("user", "hello")]
    await box.answer(
        EndpointReply(call_id=call.call_id, message={"role": "assistant", "content": "from the host"})
    )
    result = await box.next_call()
    assert isinstance(result, CommandResult)
    assert "from the host" in result.output
    assert result.exit_status == 5
    with pytest.raises(SandboxError, match="no program"):
        await box.next_call()


@pytest.mark.parametrize("spec", ["system", pytest.param("root", marks=pytest.mark.full)], indirect=True)
async def test_several_programs_run_in_turn_and_may_time_out(box):
    for _ in range(2):
        await box.start_program("echo begun; sleep 100", seconds=3)
        result = await box.next_call()
        assert isinstance(result, CommandResult)
        assert (result.output, result.timed_out) == ("begun\n", True)


async def test_a_box_stops_while_its_program_waits_for_an_answer(box):
    await box.start_program(PROGRAM, seconds=30)
    assert isinstance(await box.next_call(), EndpointCall)
    await box.stop()
    with pytest.raises(SandboxError):
        await box.next_call()


async def test_a_port_in_use_is_an_error(box):
    await box.exec("nc -l -p 8080 127.0.0.1 >/dev/null 2>&1 & sleep 0.3")
    if "8080" in (await box.exec("grep -i 1F90 /proc/net/tcp && echo 8080")).output:
        with pytest.raises(SandboxError, match="port 8080"):
            await box.start_program("true", seconds=5)
