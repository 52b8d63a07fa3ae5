"""An environment and runs with scripts and broken markup in all their texts."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from wander.evals.stats.summary import summarize
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_manifest
from wander.types import EnvironmentInfo, Example, Failure, RewardFunctionInfo, Rollout, Turn
from wander.wire import EnvironmentPin, ModelPin

ACTS = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
TALL, WIDE = "Z" + "\u0316\u0317\u0318\u0319\u0320" * 60, "W" * 400
NAME, STEM = "say-evil", "say_evil-0.1.0"
README = f"""# {ACTS}

{TALL} {WIDE} {ACTS} [click](javascript:document.title='taken') ![x](javascript:document.title='taken')
<svg onload="document.title='taken'"></svg> $\\frac{{a}}{{b}}{ACTS}$

| {WIDE} | {ACTS} |
|---|---|
| {TALL} | `{ACTS}` |

```python
print('''{ACTS} {WIDE}''')
```
"""
MODULE = f"# {ACTS} \u202e\nTEXT = '''{WIDE}'''\n\n\ndef load_environment(): ...\n"


def publish(url: str, token: str) -> tuple[str, list[str]]:
    """Publish the environment, post two runs of it, and return its name and their ids."""
    wheel = _build()
    headers = {"Authorization": f"Bearer {token}"}
    about = {":action": "file_upload", "protocol_version": "1"}
    sent = {"content": (f"{STEM}-py3-none-any.whl", wheel)}
    answer = httpx.post(f"{url}/admin/legacy/", headers=headers, data=about, files=sent, timeout=60)
    assert answer.status_code == 200, answer.text
    runs = []
    for number in (1, 2):
        run = httpx.post(f"{url}/api/v1/runs", headers=headers, files=_play(number, wheel), timeout=60)
        assert run.status_code == 201, run.text
        runs.append(run.json()["run_id"])
    return f"admin/{NAME}", runs


def _build() -> bytes:
    told = f"{ACTS} {TALL[:120]}{WIDE[:120]}"
    info = f"{STEM}.dist-info"
    files = {
        "say_evil.py": MODULE,
        f"say_data/{WIDE[:60]} \u0316' onerror=x & $.py": MODULE,
        f"{info}/METADATA": "Metadata-Version: 2.4\n"
        f"Name: {NAME}\nVersion: 0.1.0\nSummary: {told}\nRequires-Python: >=3.11\nRequires-Dist: wander-sdk\n"
        f"License: {ACTS}\nKeywords: {ACTS},{WIDE[:60]}\nDescription-Content-Type: text/markdown\n\n{README}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[wander.environments]\n{NAME} = say_evil:load_environment\n",
    }
    sums = [
        (path, hashlib.sha256(text.encode()).digest(), len(text.encode())) for path, text in files.items()
    ]
    lines = [
        f'"{path}",sha256={base64.urlsafe_b64encode(sha).decode().rstrip("=")},{size}'
        for path, sha, size in sums
    ]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return packed.getvalue()


def _play(number: int, wheel: bytes) -> dict[str, Any]:
    """Return the files of a run with tool calls; run 0 has failed rollouts, too."""
    functions = [RewardFunctionInfo(name="right", weight=1.0)]
    pin = EnvironmentPin(
        owner="admin",
        name=NAME,
        version="0.1.0",
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        arguments={"text": ACTS},
        info=EnvironmentInfo(name=NAME, kind="single_turn", reward_functions=functions),
    )
    asked = [{"role": "system", "content": ACTS}, {"role": "user", "content": f"{ACTS} {TALL}"}]
    examples = [
        Example(example_id=f"{n}{ACTS[:30]}{WIDE[:200]}", index=n, seed=n, prompt=asked) for n in range(4)
    ]
    model = ModelPin(name=f"evil{number}{ACTS}{WIDE[:60]}", kind="ScriptedClient")
    with TemporaryDirectory() as place:
        folder = RunFolder.create(
            Path(place) / "run", new_manifest(environment=pin, model=model, examples=examples)
        )
        for one in examples:
            folder.append(_rollout(one, failed=number == 1 and one.index == 3, reward=float(one.index % 2)))
        folder.finish(summarize(folder.rollouts(), expected=len(examples)))
        manifest, rollouts = (Path(place) / "run" / name for name in ("run.json", "rollouts.jsonl.zst"))
        return {
            "manifest": ("run.json", manifest.read_bytes()),
            "rollouts": (rollouts.name, rollouts.read_bytes()),
        }


def _rollout(example: Example, *, failed: bool, reward: float) -> Rollout:
    function = {"name": ACTS[:60], "arguments": json.dumps({"q": f"{ACTS}{WIDE}"})}
    said = {
        "role": "assistant",
        "content": f"{ACTS} {WIDE}",
        "reasoning_content": ACTS * 50,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    failure = Failure(boundary="model", type="Boom", message=f"{ACTS}{WIDE}") if failed else None
    ended: dict[str, Any] = (
        {"failure": failure} if failed else {"reward": reward, "metrics": {"right": reward}}
    )
    return Rollout(
        example_id=example.example_id,
        index=0,
        seed=example.seed,
        prompt=example.prompt,
        completion=[said, {"role": "tool", "tool_call_id": "1", "content": f"{ACTS}{TALL}{WIDE}"}],
        turns=[Turn(message=said, context_messages=2)],
        stop_reason=None if failed else f"x{ACTS[:40]}{WIDE[:24]}",
        started_at=datetime.now(UTC).isoformat(),
        **ended,
    )
