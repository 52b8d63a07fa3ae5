"""Leads `import verifiers` to `wander.compat.verifiers`."""

import sys

import wander.compat.verifiers
from wander.compat.alias import serve_verifiers

serve_verifiers()
sys.modules[__name__] = wander.compat.verifiers
