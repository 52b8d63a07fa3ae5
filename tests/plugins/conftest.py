"""The command in this process, and an environment's folder, as for the tests of the client."""

from client_home import folder, home, say_env, wander

__all__ = ["folder", "home", "say_env", "wander"]  # fixtures
