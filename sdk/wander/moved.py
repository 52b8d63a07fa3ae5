"""Old import paths of public modules, which still work and warn.

An import of an old name gives the very module that has the new one, so classes stay the same classes. Nothing
is looked up before such an import; the finder costs each other import one comparison.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # `importlib.abc` loads two dozen modules, `tempfile` and `shutil` among them

MOVED = {
    "wander.answers": "wander.rubrics.boxed",
    "wander.clients.limiter": "wander.clients.rate_limit",
    "wander.clients.policy": "wander.models.policy",
    "wander.clients.response_cache": "wander.clients.cache",
    "wander.clients.transformers": "wander.models.client",
    "wander.compat": "wander_compat",
    "wander.compat.taskset_harness": "wander_compat.tasksets.harness",  # exported task sets import it
    "wander.envs.calls": "wander.rollout.calls",
    "wander.envs.hooks": "wander.rollout.hooks",
    "wander.envs.mcp_connection": "wander.envs.mcp.connection",
    "wander.envs.stateful_tool": "wander.envs.tool.env",
    "wander.envs.tool.stateful": "wander.envs.tool.env",
    "wander.envs.tool_schema": "wander.envs.tool.schema",
    "wander.evals.agreement": "wander.evals.stats.agreement",
    "wander.evals.bootstrap": "wander.evals.stats.bootstrap",
    "wander.evals.comparison": "wander.evals.stats.comparison",
    "wander.evals.manifest": "wander.evals.store.manifest",
    "wander.evals.passes": "wander.evals.stats.pass_at_k",
    "wander.evals.runner": "wander.evals.run.runner",
    "wander.evals.statistics": "wander.evals.stats.summary",
    "wander.posting": "wander.wire.postings",
    "wander.source_tree": "wander.wire.source_tree",
    "wander.uploads": "wander.wire.uploads",
    "wander.verification": "wander.wire.verification",
}
"""New names by old ones. What lay below an old name lies below the new one, or has a row of its own."""


def new_name(name: str) -> str | None:
    """Return the new name of a module that was moved, None for every other."""
    above = name
    while above not in MOVED:
        above = above.rpartition(".")[0]
        if not above:
            return None
    return MOVED[above] + name[len(above) :]


class MovedFinder:
    """Finds modules under their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where a moved module is; None for every other module."""
        if not fullname.startswith("wander.") or (new := new_name(fullname)) is None:
            return None
        warnings.warn(f"`{fullname}` has moved: import `{new}`", DeprecationWarning, stacklevel=2)
        return importlib.machinery.ModuleSpec(fullname, AliasLoader(new))


class AliasLoader(Loader):
    """Puts a module in the place of another name."""

    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Leave the making of a module to Python."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Import the module that has the new name, and drop the one that was made."""
        sys.modules[module.__name__] = importlib.import_module(self._new)


def serve_moved_modules() -> None:
    """Let old names be imported; safe to call often."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        # First: below a package that was moved, Python's own finders would load a module a second time.
        sys.meta_path.insert(0, MovedFinder())
