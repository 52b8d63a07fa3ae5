// Keyboard shortcuts of a rollout's page, the same as in `wander view`. Keys other than j, k, o and O follow a link.
"use strict";
const messages = [...document.querySelectorAll("article.message")];
const keys = document.getElementById("keys");
let at = Math.max(-1, messages.findIndex((one) => `#${one.id}` === location.hash));

function go(step) {
  at = Math.min(Math.max(at + step, 0), messages.length - 1);
  const one = messages[at];
  if (!one) return;
  one.focus({ preventScroll: true });
  one.scrollIntoView({ block: "start" });
  history.replaceState(null, "", `#${one.id}`);
}

function fold(places) {
  const found = places.flatMap((one) => [...one.querySelectorAll("details")]);
  const open = found.some((one) => !one.open);
  for (const one of found) one.open = open;
}

const actions = {
  j: () => go(1),
  k: () => go(-1),
  o: () => messages[at] && fold([messages[at]]),
  O: () => fold(messages),
  "?": () => (keys.open ? keys.close() : keys.showModal()),
};
for (const button of document.querySelectorAll(".keys-button")) {
  button.hidden = false;
  button.addEventListener("click", actions["?"]);
}
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
  const act = actions[event.key] || (link && (() => link.click()));
  if (!act) return;
  event.preventDefault();
  act();
});
