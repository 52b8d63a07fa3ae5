"""The rules of a machine for boxes, from environment variables that its owner sets.

- `WANDER_BOXES`: `auto` (the default), `none`, or the name of a backend (`bwrap`, `podman`, `docker`...).
- `WANDER_BOX_LIMITS`: upper bounds for the limits of a box, such as `memory_mb=1024,seconds=600`.
- `WANDER_BOX_IMAGES`: prefixes of the allowed images, such as `ghcr.io/acme/,docker.io/library/`. If it is
  set, no Dockerfile is built. If it is empty, all images are refused.
- `WANDER_BOX_HOSTS`: hosts that boxes may reach, such as `pypi.org,*.example.org`, or `*` for all names.
  Without it, no box has a network.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic import Field, ValidationError

from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.proxy import find_unlisted
from wander.errors import ConfigError, SandboxError
from wander.types import Record, first_fault

BACKEND, LIMITS, IMAGES = "WANDER_BOXES", "WANDER_BOX_LIMITS", "WANDER_BOX_IMAGES"
HOSTS = "WANDER_BOX_HOSTS"
AUTO, NONE = "auto", "none"


class BoxPolicy(Record):
    """The backend, the upper bounds, and the allowed images and hosts of a machine."""

    backend: str = AUTO
    bounds: dict[str, int | float] = Field(default_factory=dict)
    """Upper bound of each limit that has one, of the limit's own type: the kernel refuses 512.0 processes."""
    images: list[str] | None = None
    """Prefixes of the allowed images; None allows every image, and Dockerfiles."""
    hosts: list[str] = Field(default_factory=list)
    """Hosts that boxes may reach."""

    @classmethod
    def from_environ(cls) -> BoxPolicy:
        """Return the policy of this process. Raises `ConfigError` for an invalid variable."""
        images = os.environ.get(IMAGES)
        return cls(
            backend=os.environ.get(BACKEND, "").strip() or AUTO,
            bounds=_read_bounds(os.environ.get(LIMITS, "")),
            images=None if images is None else _read_list(images),
            hosts=_read_list(os.environ.get(HOSTS, "")),
        )

    def apply(self, spec: BoxSpec) -> BoxSpec:
        """Return the spec with limits within the bounds. Raises `SandboxError` if the policy refuses it."""
        if self.backend == NONE:
            raise SandboxError("this machine does not run boxes", hint=f"unset `{BACKEND}` to allow them")
        if self.images is not None:
            if spec.dockerfile is not None:
                raise SandboxError(
                    "this machine builds no images from a Dockerfile",
                    hint=f"push the image to a registry that `{IMAGES}` allows",
                )
            if spec.image is not None and not spec.image.startswith(tuple(self.images)):
                allowed = ", ".join(f"`{prefix}`" for prefix in self.images) or "no image"
                raise SandboxError(
                    f"the image `{spec.image}` is not allowed on this machine",
                    hint=f"`{IMAGES}` allows {allowed}",
                )
        unlisted = find_unlisted(spec.allowed_hosts, self.hosts)
        if unlisted is not None:
            raise SandboxError(
                f"boxes may not reach `{unlisted}` from this machine",
                hint=f"the machine's owner can allow it with `{HOSTS}={unlisted}`",
            )
        lowered = {name: bound for name, bound in self.bounds.items() if getattr(spec.limits, name) > bound}
        return spec.model_copy(update={"limits": spec.limits.model_copy(update=lowered)}) if lowered else spec


def _read_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_bounds(text: str) -> dict[str, int | float]:
    given: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = pair.partition("=")
        given[name.strip()] = value.strip()
    try:
        checked = BoxLimits.model_validate(given)
    except ValidationError as error:
        name, fault = first_fault(error)
        raise ConfigError(
            f"`{LIMITS}` is not valid: `{name}`: {fault}",
            hint=f"write pairs like `memory_mb=1024,seconds=600`, with {', '.join(BoxLimits.model_fields)}",
        ) from error
    return {name: getattr(checked, name) for name in given}
