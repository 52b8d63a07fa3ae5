"""Runs environments in their own processes, on this machine or on another one.

The terms, from the host inwards:

- *host*: the process that evaluates or trains, and that calls the models. `host/` is its side.
- *environment* (`WorkerEnvironment`): the handle in the host's code. One or several workers play for it.
- *pool*: these workers, each in a slot. If a worker is lost, its slot starts another one.
- *session*: one worker's life as the host sees it, from `Load` to its end.
- *link*: a session's way to its worker: a process started here, or a connection to another machine.
- *channel*: lines over a websocket, the same at both ends. `protocol` defines the messages.
- *process*: the worker's operating-system process, with or without a sandbox. `process/`.
- *worker*: `python -m wander.worker`. `child/` is its side: the *service* answers the host, and the *watch*
  ends the process if the code of one rollout blocks all others.
- *note*: memory shared by worker and host, which shows whose code was running when the process ended.
- *listener*: serves workers to hosts on other machines. `remote/` has its *address* and the *heartbeat*.
- *proxy* (`openai_proxy`): answers OpenAI clients in the code of workers on this machine, with the host's key
  or from the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.worker.host.environment import WorkerEnvironment

__all__ = [
    "WorkerEnvironment",
]

__getattr__, __dir__ = lazy_names(__name__)
