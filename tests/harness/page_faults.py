"""What a page may not look like: columns off the screen, rows too tall, small letters, faults by axe."""

from __future__ import annotations

import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

AXE = "axe-core@4"
_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "axe"
_FAULTS = """() => {
  const faults = [], phone = innerWidth <= 600, seen = (one) => one.checkVisibility();
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) faults.push(`${wide} pixels wider than the window`);
  for (const region of document.querySelectorAll(".scroll")) {
    const hidden = region.scrollWidth - region.clientWidth;
    if (hidden > 1 && seen(region) && region.querySelector("table") &&
        !region.closest(".readme") && (!phone || region.matches(".board")))
      faults.push(`${hidden} pixels of the table "${region.getAttribute("aria-label")}" are off the screen`);
  }
  for (const row of document.querySelectorAll("tbody tr")) {
    const high = row.getBoundingClientRect().height;
    const free = phone ? ".board, .readme, .sample" : ".readme, .sample";
    if (high > 80 && row.innerText.trim() && !row.closest(free))
      faults.push(`a row is ${Math.round(high)} pixels tall: ${row.innerText.slice(0, 60)}`);
  }
  const small = new Set();
  for (const text of document.querySelectorAll("svg text")) {
    const own = text.getBoundingClientRect(), all = text.closest("svg").getBoundingClientRect();
    const drawn = parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().d;
    if (own.width && drawn < 9.9) small.add(drawn.toFixed(1));
    if (own.width && (own.left < all.left - 1 || own.right > all.right + 1 ||
        own.top < all.top - 1 || own.bottom > all.bottom + 1))
      faults.push(`a chart cuts "${text.textContent}"`);
  }
  if (small.size) faults.push(`letters of charts are ${[...small].join(", ")} pixels tall`);
  return faults;
}"""
# What draws the OpenAPI document is not of this repository.
_SERIOUS = """async () => {
  const found = await axe.run({exclude: ["#viewer"]}, {resultTypes: ["violations"]});
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact)).map(
    (one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).slice(0, 3).join(" ")}`);
}"""


def find_faults(page: Any, axe: str | None = None) -> list[str]:
    """Return what is wrong with how a page is laid out, and its serious faults by axe where that is given."""
    faults = list(page.evaluate(_FAULTS))
    if axe is not None:
        page.evaluate(f"() => {{ {axe} }}")
        faults += page.evaluate(_SERIOUS)
    return faults


@cache
def axe_source() -> str | None:
    """Return axe-core as npm has it, None where there is no npm, or it cannot reach its registry."""
    if not any(_CACHE.glob("*.tgz")):
        _CACHE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", AXE, "--silent", "--pack-destination", str(_CACHE)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
    with tarfile.open(max(_CACHE.glob("*.tgz"))) as archive:
        taken = archive.extractfile("package/axe.min.js")
        return taken.read().decode() if taken is not None else None
