"""The host's side: environments that run in worker processes, here or on other machines."""

from wander.worker.host.environment import WorkerEnvironment

__all__ = ["WorkerEnvironment"]
