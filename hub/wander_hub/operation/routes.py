"""`GET /metrics`, for a Prometheus server with an administrator's token."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from wander_hub.http.boundary import Caller
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter

router = HubRouter(tags=["health"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusals(401, 403)},
)
def show_metrics(request: Request, caller: Caller) -> Response:
    """Return the hub's metrics. Requires any token of an administrator; the scope `read` is sufficient."""
    if not caller.admin:
        hint = "`wander-hub token create admin --scope read --name prometheus` makes a token for this"
        raise HubProblem(403, "not_permitted", "only administrators may read the metrics", hint=hint)
    body, media_type = request.app.state.metrics.render()
    return Response(body, media_type=media_type)
