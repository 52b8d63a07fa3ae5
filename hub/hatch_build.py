"""Ships with the hub what lives at the repository's root: the migrations, and the pages of `/docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = {
    "migrations": "wander_hub/migrations",
    "docs": "wander_hub/web/docs/pages",
}
"""Folders of the repository and of the wheel. The source archive keeps the repository's layout."""
LEFT_OUT = {"__pycache__", "images"}


class ShipNeighbors(BuildHookInterface[Any]):
    """Adds the `SHIPPED` files to the wheel, and unchanged to the source archive."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to the build. An editable install reads the files of the repository instead."""
        if version == "editable":
            return
        root = Path(self.root)
        for name, place in SHIPPED.items():
            inside = root / name
            source = inside if inside.exists() else root.parent / name
            target = place if self.target_name == "wheel" else name
            for file in [source] if source.is_file() else sorted(source.rglob("*")):
                parts = file.relative_to(source).parts
                if file.is_file() and not LEFT_OUT & {*parts}:
                    build_data["force_include"][str(file)] = "/".join((target, *parts))
