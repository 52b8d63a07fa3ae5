"""`wander import`: bring in what others have: results of evaluations, and environments."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.command import command_app
from wander_client.invocation import current

if TYPE_CHECKING:
    from wander_client.packaging.adoption import Adoption

app = command_app(help="Bring in results and environments of other libraries.", group=True)


@app.command()
def results(
    folder: Annotated[Path, typer.Argument(help="the folder of one evaluation")],
    out: Annotated[Path | None, typer.Option(help="the run folder to write")] = None,
) -> None:
    """Turn results of verifiers into a run folder.

    \b
    wander import results outputs/evals/my-env--gpt-5/1a2b3c4d
    wander import results ./old --out runs/old --json

    Reads `metadata.json` with `results.jsonl`, in both of their schemas, and `traces.jsonl` of verifiers.v1.
    Failed rollouts have no reward, whatever the file says. A posted run of this kind counts as claimed.
    """
    from wander.evals.imports import import_results

    here = current()
    source = folder.expanduser().resolve()
    target = out or here.settings.runs_dir / f"imported-{source.name}"
    run = import_results(source, target)
    summary = run.summary()
    data: dict[str, Any] = {
        "folder": str(target),
        "run_id": run.manifest.run_id,
        "environment": run.manifest.environment.name,
        "model": run.manifest.model.name,
        "source": run.manifest.notes,
        "summary": None if summary is None else summary.model_dump(mode="json"),
    }
    lines = [f"imported {data['environment']} with {data['model']} to {target}"]
    if summary is not None:
        mean = "none" if summary.reward_mean is None else f"{summary.reward_mean:.4g}"
        lines.append(f"  {summary.rollouts} rollouts, {summary.failed} failed, mean reward {mean}")
    here.output.answer(data, "\n".join(lines))
    here.output.next(f"wander view {target}")


@app.command()
def environment(
    source: Annotated[str, typer.Argument(help="a folder, an sdist, a wheel, or git+URL")],
    owner: Annotated[str | None, typer.Option(help="publish under this owner")] = None,
    out: Annotated[Path | None, typer.Option(help="keep the completed project in this folder")] = None,
    entry_point: Annotated[
        str | None, typer.Option("--entry-point", help="MODULE:FUNCTION, where there are several")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="complete and build, send nothing")] = False,
) -> None:
    """Make an existing package an environment of the hub, its code as it is.

    \b
    wander import environment ./wordle --dry-run
    wander import environment sophistry_bench_sprint-0.1.6-py3-none-any.whl --owner acme
    wander import environment git+https://example.org/envs.git#subdirectory=environments/wordle

    Works out which library and generation it is written for, writes what is missing into a copy (entry point,
    build system, README, a note of origin), builds and publishes it. None of its code runs here: check it
    after installing it.
    """
    import shutil

    from wander_client.errors import ClientError
    from wander_client.packaging.adoption import adopt
    from wander_client.packaging.origins import brought
    from wander_client.packaging.publish import built, upload

    here = current()
    with tempfile.TemporaryDirectory(prefix="wander-import-") as work:
        adopted = adopt(brought(source, Path(work)), _origin(source), entry_point)
        _show(adopted)
        if out is not None:
            if out.exists() and any(out.iterdir()):
                raise ClientError(f"`{out}` is not empty", hint="choose another folder")
            shutil.copytree(adopted.folder, out, dirs_exist_ok=True)
        with built(adopted.folder) as package:
            for warning in package.warnings:
                here.output.warn(warning)
            sent: list[Any] = []
            under = owner
            if not dry_run:
                with here.hub(login=True) as hub:
                    under = owner or hub.whoami().user
                    sent = upload(hub, under, package)
            _answer(adopted, package, under, bool(sent), dry_run=dry_run)


def _origin(source: str) -> str:
    """Return what the note of origin names: the address, or the file's name without its folders."""
    remote = "://" in source or source.startswith("git@")
    return source if remote else Path(source).expanduser().resolve().name


def _show(adopted: Adoption) -> None:
    output = current().output
    kind = adopted.library
    if adopted.generation is not None:
        kind = f"{kind}, generation {adopted.generation}"  # type: ignore[assignment]
    output.note(f"{adopted.name}: an environment of {kind}, loaded by `{adopted.target}`")
    if adopted.written:
        output.note(f"written: {', '.join(adopted.written)}")


def _answer(adopted: Adoption, package: Any, owner: str | None, sent: bool, *, dry_run: bool) -> None:
    from packaging.utils import canonicalize_name

    here = current()
    name = canonicalize_name(adopted.name)
    full = f"{owner}/{name}" if owner else name
    data = {
        "environment": full,
        "version": package.version,
        "library": adopted.library,
        "generation": adopted.generation,
        "entry_point": adopted.target,
        "written": adopted.written,
        "dry_run": dry_run,
        "sent": sent,
        "url": None if dry_run else f"{here.settings.hub}/{full}",
    }
    verb = "would publish" if dry_run else "published" if sent else "already published"
    here.output.answer(data, f"{verb} {full} {package.version}")
    if not dry_run:
        here.output.next(f"wander eval {full} --model ...")
