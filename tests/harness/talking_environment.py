"""The source of an environment that executes the model's replies, so that tests can act in a worker."""

from __future__ import annotations

BODY = """
import gc, os, signal, subprocess, sys, time
from wander import MultiTurnEnv, Rubric, teardown

def length(completion):
    return float(len(completion[-1]["content"]))

class Env(MultiTurnEnv):
    async def env_response(self, messages, state):
        said = messages[-1]["content"]
        if said == "pid":
            said = str(os.getpid())
        if said == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if said == "exit":
            os._exit(3)
        if said == "child":
            said = str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        if said == "roll":
            said = str(self.rng(state, "dice").random())
        if said == "big":
            said = "x" * 5_000_000
        if said == "frozen":
            said = str(gc.get_freeze_count())
        if said.startswith("block"):
            gate = said.split()[1]
            open(gate + ".blocked", "w").close()
            while not os.path.exists(gate):  # sync: nothing else goes on here
                time.sleep(0.01)
        return [{"role": "user", "content": f"you said {said}"}]

    @teardown
    async def torn_down(self):
        print("torn down", flush=True)

def load_environment(rows=4, **arguments):
    return Env(eval_dataset=[{"question": f"q{i}"} for i in range(rows)],
               rubric=Rubric([length]), max_turns=2, name="talking", **arguments)
"""
