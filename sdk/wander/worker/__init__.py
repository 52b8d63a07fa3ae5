"""Environments in processes of their own, on this machine or on another one.

One word for each thing, from the host inwards:

- *host*: the process that evaluates or trains, and that asks the models. `host/` is its side.
- *environment* (`WorkerEnvironment`): what the host's code holds; one or several workers play for it.
- *pool*: those workers, each in a slot that is filled again when its worker is lost.
- *session*: one worker's life as the host sees it, from `Load` to its end.
- *link*: how a session reaches its worker: a process started here, or a connection to another machine.
- *channel*: lines over a websocket, the same at both ends; `protocol` says which lines there are.
- *process*: the worker's operating-system process, confined by the sandbox or not. `process/`.
- *worker*: `python -m wander.worker`. `child/` is its side: the *service* answers the host, the *watch* ends
  the process where the code of one rollout keeps all others from going on.
- *note*: memory that worker and host share, which says whose code ran when the process ended.
- *listener*: serves workers to hosts on other machines. `remote/` has its *address*, the *heartbeat* and the
  *tunnel* through which OpenAI clients of a worker's code reach the host.
- *proxy* (`openai_proxy`): what answers those clients, with the host's key and from the record.
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
