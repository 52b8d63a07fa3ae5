"""The host's side: environments that run in worker processes, on this machine or on others."""

from wander.worker.host.environment import WorkerEnvironment

__all__ = ["WorkerEnvironment"]
