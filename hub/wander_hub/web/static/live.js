// Updates the progress of jobs on an open page. When a run's replay ends, it also updates the run's verification.
"use strict";
const box = document.querySelector("[data-live]");
const CHANGES = ["standing", "proofs", "replays"];
let events;

const parse = (text) => new DOMParser().parseFromString(text, "text/html");

async function finish() {
  stop();
  box.removeAttribute("data-live");
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = parse(await answer.text());
  for (const id of new Set([...CHANGES, box.id])) {
    const found = page.getElementById(id);
    if (found) document.getElementById(id)?.replaceChildren(...found.childNodes);
  }
}

function stop() {
  events?.close();
  events = undefined;
}

function follow() {
  events = new EventSource(box.dataset.live);
  events.addEventListener("changed", (event) => {
    if (box.querySelector("details[open], :is(select, button, summary):focus")) return;
    box.replaceChildren(...parse(event.data).body.childNodes);
    box.querySelector(".look-again")?.remove();
  });
  events.addEventListener("end", finish);
}

// A browser allows few connections to a hub, so a hidden page closes its own.
document.addEventListener("visibilitychange", () => {
  if (!box.dataset.live) return;
  if (document.hidden) stop();
  else if (!events) follow();
});
if (box && !document.hidden) follow();
