// Shows on a run's page how far the hub's replay of it is, and what it proved once it has ended.
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
  for (const id of CHANGES) {
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
  events.addEventListener("replays", (event) => {
    if (box.contains(document.activeElement) && document.activeElement.matches("select, button")) return;
    box.replaceChildren(...parse(event.data).body.childNodes);
    box.querySelector(".look-again")?.remove();
  });
  events.addEventListener("end", finish);
}

// A browser keeps few connections to a hub: a page that nobody sees needs none.
document.addEventListener("visibilitychange", () => {
  if (!box.dataset.live) return;
  if (document.hidden) stop();
  else if (!events) follow();
});
if (box && !document.hidden) follow();
