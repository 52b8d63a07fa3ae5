"""Redirects `import verifiers` to `wander_compat.verifiers`."""

import sys

import wander_compat.verifiers
from wander_compat.alias import serve_imports

serve_imports()
sys.modules[__name__] = wander_compat.verifiers
