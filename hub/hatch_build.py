"""Ships the migrations with the hub: they live at the repository's root, beside the packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShipMigrations(BuildHookInterface[Any]):
    """Puts `migrations/` into the wheel as `wander_hub/migrations`, and into the source archive as it is."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder to what is built; an editable install reads the repository's own."""
        if version == "editable":
            return
        root = Path(self.root)
        beside, inside = root.parent / "migrations", root / "migrations"
        source = inside if inside.is_dir() else beside
        target = "wander_hub/migrations" if self.target_name == "wheel" else "migrations"
        for file in sorted(source.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                build_data["force_include"][str(file)] = f"{target}/{file.relative_to(source).as_posix()}"
