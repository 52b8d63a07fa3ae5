"""Faults of a page's layout: columns off the screen, tall rows, small letters, findings of axe."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

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
# The OpenAPI viewer is a third-party script, but this repository sets its colors.
_SERIOUS = """async () => {
  const options = {resultTypes: ["violations"], rules: {"target-size": {enabled: true}}};
  const found = await axe.run({exclude: ["#viewer"]}, options);
  const viewer = document.querySelector("#viewer")
    ? (await axe.run({include: ["#viewer"]}, {runOnly: ["color-contrast"]})).violations : [];
  const named = ["landmark-unique", "heading-order"];
  const bad = (one) => ["serious", "critical"].includes(one.impact) || named.includes(one.id);
  return [...found.violations, ...viewer].filter(bad).map(
    (one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).slice(0, 3).join(" ")}`);
}"""


def find_faults(page: Any, *, axe: bool = True) -> list[str]:
    """Return the faults of a page's layout and the serious findings of axe."""
    faults = list(page.evaluate(_FAULTS))
    if axe:
        page.evaluate(f"() => {{ {_axe()} }}")
        faults += page.evaluate(_SERIOUS)
    return faults


@cache
def _axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text()
