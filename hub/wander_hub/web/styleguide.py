"""The design system as a page, for who works on the pages: its tokens, and every part that a macro draws."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter, Request
from starlette.responses import Response
from wander.wire import EnvironmentSummary, LeaderboardRow, VerificationLevel
from wander.wire.environments import ProjectStatus

from wander_hub.http.answers import REVALIDATE
from wander_hub.web.templates import STATIC, page

router = APIRouter(include_in_schema=False)

_TOKEN = re.compile(r"^\s+--([\w-]+): (.+?);$", re.M)
_DAY = datetime(2026, 11, 26, tzinfo=UTC)


def _list_tokens() -> dict[str, str]:
    """Return the tokens of the light theme by their names."""
    light, _, _ = STATIC["wander.css"].body.decode().partition("@media")
    return dict(_TOKEN.findall(light))


@router.get("/styleguide")
def show_styleguide(request: Request) -> Response:
    """Every token and every part."""
    shown: list[tuple[str, float, VerificationLevel]] = [
        ("a-model-with-a-rather-long-name-8b-instruct", 0.81, "rerun"),
        ("another-model", 0.74, "replayed"),
        ("third", 0.52, "complete"),
    ]
    rows = [
        LeaderboardRow(
            rank_low=place + 1,
            rank_high=place + 2 if place % 2 == 0 else place + 1,
            run_id=f"01example{place}",
            model=model,
            model_kind="openai",
            reward_mean=mean,
            reward_low=mean - 0.06,
            reward_high=mean + 0.05,
            examples=100,
            rollouts_per_example=4,
            rollouts=400,
            failed=0,
            version="0.1.0",
            level=level,
            ranked_with="replayed" if level == "rerun" else level,
            posted_by="alice",
            posted_at=_DAY - timedelta(days=place),
            url="",
        )
        for place, (model, mean, level) in enumerate(shown)
    ]
    states: list[ProjectStatus] = ["active", "deprecated"]
    environments = [
        EnvironmentSummary(
            owner="alice",
            name="example",
            latest_version="0.1.0",
            summary="What it asks of a model, in a sentence.",
            tags=["game", "multi-turn"],
            updated_at=_DAY,
            versions=1,
            runs=3,
            best_reward=0.81,
            best_model=rows[0].model,
            status=status,
            stars=2,
        )
        for status in states
    ]
    tokens = _list_tokens()
    colours = [name for name, value in tokens.items() if value.startswith("#")]
    spaces = [name for name in tokens if name.startswith("space-")]
    others = {name: value for name, value in tokens.items() if name not in [*colours, *spaces]}
    return page(
        request,
        "styleguide.html",
        colours=colours,
        spaces=spaces,
        others=others,
        rows=rows,
        environments=environments,
    )


@router.get("/styleguide.css")
def style_swatches() -> Response:
    """A class for each token, which no page but the style guide needs."""
    tokens = _list_tokens()
    colours = (f".swatch-{name} {{ background: var(--{name}); }}" for name in tokens)
    spaces = (f".space-{name} {{ width: var(--{name}); }}" for name in tokens)
    body = "\n".join([*colours, *spaces, ".swatch { display: inline-block; width: 48px; height: 24px; }"])
    body += "\n.bar-of { height: 12px; background: var(--bar); }\n"
    return Response(body, media_type="text/css", headers={"Cache-Control": REVALIDATE})
