"""The sandbox around an environment's process: bubblewrap, a system call filter and limits.

    environment = await WorkerEnvironment.start(python, "wordle", log_path=log, sandbox=SandboxPolicy())

`docs/sandbox.md` explains which attacks it stops, and which it does not.
"""

from wander.sandbox.policy import SandboxPolicy, parse_limits

__all__ = ["SandboxPolicy", "parse_limits"]
