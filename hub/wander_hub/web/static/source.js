// Highlights the lines that the address names, such as `#L10-L20`. Shift-click on a line number selects a range.
"use strict";
const named = () => (location.hash.match(/^#L(\d+)(?:-L(\d+))?$/) || []).slice(1).map(Number);
const copy = document.createElement("button");
copy.type = "button";
copy.addEventListener("click", async () => {
  await navigator.clipboard.writeText(location.href);
  copy.textContent = "Copied";
});
document.querySelector(".browser h2")?.append(" ", copy);

function mark() {
  const [first, last] = named();
  copy.hidden = !first;
  copy.textContent = `Copy link to ${last ? `lines ${first} to ${last}` : `line ${first}`}`;
  for (const line of document.querySelectorAll(".source .marked")) line.classList.remove("marked");
  for (let number = first; number <= Math.max(first, last || first); number++) {
    document.getElementById(`L${number}`)?.classList.add("marked");
  }
  if (last) document.getElementById(`L${first}`)?.scrollIntoView({ block: "center" });
}

document.querySelector(".source")?.addEventListener("click", (event) => {
  const clicked = Number(event.target.closest("a")?.hash.slice(2));
  const [first] = named();
  if (!clicked || !first || !event.shiftKey) return;
  event.preventDefault();
  location.hash = `#L${Math.min(first, clicked)}-L${Math.max(first, clicked)}`;
});
addEventListener("hashchange", mark);
mark();
