"""`wander runs regrade`: grade runs again in another version of their environment, without their model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits
from wander_client.errors import OK, PARTIAL
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from wander_client.evaluate.regrade import RegradedRun


def regrade(
    runs: Annotated[list[str], Argument(help="folders or IDs of runs")],
    env: Annotated[str, Option("--env", help="the version that grades: OWNER/NAME@VERSION, or a folder")],
    out: Annotated[
        Path | None, Option(help="folder for the new runs  [default: the folder for runs]")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="only show what would be graded and played")] = False,
    post: Annotated[bool, Option("--post", help="post the new runs that are complete")] = False,
    concurrency: Annotated[int, Option("-c", "--concurrency", min=1, help="concurrent rollouts")] = 64,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Grade the rollouts of runs again in another version of their environment, without their model.

    \b
    wander runs regrade --env acme/wordle@2.0.0 RUN_ID RUN_ID --dry-run
    wander runs regrade --env acme/wordle@2.0.0 RUN_ID RUN_ID --post
    wander runs regrade --env ./wordle runs/RUN

    Wander plays the new version with the recorded completions. This works as long as the new version sends
    the model the same messages as the old one. Each run becomes a new run of the new version, which `--post`
    puts on the version's leaderboard. If the messages differ, or if the rollout failed, it is missing from
    the new run, and the exit status is 6. If you started the run, `wander eval --resume` plays the missing
    rollouts. After an interruption, run the same command again.
    """
    import asyncio

    from wander_client.environments.location import locate
    from wander_client.environments.sandbox import choose_policy, confines
    from wander_client.evaluate.regrade import name_folder, regrade_run, require_other_version
    from wander_client.runs.lookup import find_run
    from wander_client.runs.posting import pack, send

    here = current()
    policy = choose_policy(sandbox, sandbox_limit, default=confines(here.settings, env, in_process=False))
    location = locate(here, env)
    sources = [find_run(here, word) for word in dict.fromkeys(runs)]
    for source in sources:
        require_other_version(source, location)
    answers: list[dict[str, Any]] = []
    texts: list[str] = []
    later: list[str] = []
    for source in sources:
        folder = None if dry_run else (out or here.settings.runs_dir) / name_folder(source, location)
        done = asyncio.run(
            regrade_run(here, source, location, folder, sandbox=policy, concurrency=concurrency)
        )
        data = done.describe(here.settings.hub)
        if post and done.after is not None and done.regrading.is_complete:
            with pack(here, done.after) as parcel:
                detail, _ = send(here, parcel, private=False, sign=False, name="")
            data["url"] = detail.url
        else:
            later += _next(done, posting=location.installed is not None and not dry_run)
        answers.append(data)
        texts.append(_text(data))
    here.output.answer({"runs": answers}, "\n".join(texts))
    here.output.next(*dict.fromkeys(later))
    return OK if all(data["complete"] for data in answers) else PARTIAL


def _next(done: RegradedRun, *, posting: bool) -> list[str]:
    if done.after is None:
        return []
    if done.regrading.is_complete:
        compare = f"wander runs compare {shell_word(done.before.path)} {shell_word(done.after.path)}"
        return [f"wander post {shell_word(done.after.path)}", compare] if posting else [compare]
    return [f"wander eval --resume {shell_word(done.after.path)}"] if done.resumable else []


def _text(data: dict[str, Any]) -> str:
    lines = [
        f"{data['before_run']}: {data['rollouts']} rollouts",
        f"  graded again  {data['graded']}, {data['changed']} with another reward",
    ]
    if data["resumed"]:
        lines.append(f"  graded before {data['resumed']}")
    if data["failed"]:
        lines.append(f"  failed        {data['failed']} of them, in the new version")
    lines += [f"  to play       {count}: {reason}" for reason, count in data["to_play"].items()]
    if data["gone"]:
        lines.append(f"  left out      {data['gone']}: the new version does not have the example")
    if data["run_dir"]:
        lines.append(f"  new run       {data['after_run']} in {data['run_dir']}")
    if data.get("url"):
        lines.append(f"  posted        {data['url']}\n  compare       {data['compare_url']}")
    return "\n".join(lines)
