"""The `--data` option, which every command of a hub takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="folder of database and files  [default: wander-hub-data]", envvar="WANDER_HUB_DATA"
    ),
]
