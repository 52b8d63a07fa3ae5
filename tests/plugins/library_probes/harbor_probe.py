"""Reads tasks with the models of the package `harbor`: prints one JSON value for each line of input.

A line is the text of a `task.toml` or the path of a task folder, as JSON with one of the keys `toml` and
`folder`.
"""

from __future__ import annotations

import json
import sys
import warnings

from harbor.models.task.config import TaskConfig
from harbor.models.task.task import Task

warnings.simplefilter("ignore")


def read(request: dict[str, str]) -> dict[str, object]:
    try:
        if "toml" in request:
            config = TaskConfig.model_validate_toml(request["toml"])
            return {"ok": True, "settings": config.model_dump(mode="json")}
        task = Task(request["folder"])
        return {"ok": True, "name": task.name, "instruction": task.instruction.strip()}
    except Exception as error:  # noqa: BLE001 - the test compares it
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


for line in sys.stdin:
    print(json.dumps(read(json.loads(line))))
