// Scrolls through all rollouts of a run in one table. Rows are loaded from the hub as they come into view.
"use strict";
const PAGE = 100, MARGIN = 30, TALLEST = 8e6;
const KEPT = 40; // pages of rows in memory; older ones are dropped and loaded again
const box = document.querySelector(".explorer");
const body = box?.querySelector("tbody");
const total = Number(box?.dataset.total);
const height = body?.rows[0]?.getBoundingClientRect().height;
const sent = [...(body?.rows ?? [])]; // the page's own rows stay until those of the hub have arrived
const pages = new Map();
let shown = "";

function filler(rows) {
  const row = document.createElement("tr");
  row.style.height = `${rows * height}px`;
  row.hidden = rows === 0; // an empty cell would still be one line high
  row.setAttribute("aria-hidden", "true");
  row.insertCell().colSpan = 9;
  return row;
}

async function fetchPage(page) {
  const query = new URLSearchParams(box.dataset.query);
  query.set("offset", page * PAGE);
  query.set("limit", PAGE);
  const answer = await fetch(`${box.dataset.rows}?${query}`);
  if (!answer.ok) throw new Error(`the hub returned status ${answer.status}`);
  return [...new DOMParser().parseFromString(await answer.text(), "text/html").querySelectorAll("tbody > tr")];
}

const showState = (text) => { document.querySelector(".explorer-state").textContent = text; };

function load(page) {
  if (!pages.has(page)) {
    pages.set(page, null);
    fetchPage(page).then(
      (rows) => {
        pages.set(page, rows);
        if (pages.size > KEPT) pages.delete(pages.keys().next().value);
        showState("");
        show();
      },
      () => { pages.delete(page); showState("The hub does not respond. Scroll to try again."); },
    );
  }
  return pages.get(page);
}

function show() {
  const first = Math.max(0, Math.floor(box.scrollTop / height) - MARGIN);
  const last = Math.min(total, Math.ceil((box.scrollTop + box.clientHeight) / height) + MARGIN);
  const rows = [];
  for (let place = first; place < last; place++) {
    const page = load(Math.floor(place / PAGE));
    rows.push(page?.[place % PAGE] ?? sent[place - Number(box.dataset.offset)] ?? null);
  }
  if (rows.includes(null)) showState("Loading…");
  const now = `${first}/${rows.map((one) => (one ? 1 : 0)).join("")}`;
  if (now === shown) return;
  shown = now;
  const active = document.activeElement?.closest?.(".explorer a")?.textContent;
  body.replaceChildren(filler(first), ...rows.map((one) => one ?? filler(1)), filler(total - last));
  if (active) [...body.querySelectorAll("a")].find((one) => one.textContent === active)?.focus({ preventScroll: true });
}

function step(by) {
  const links = [...body.querySelectorAll("a")];
  const place = links.indexOf(document.activeElement);
  links[Math.min(Math.max(place < 0 ? links.findIndex((one) => one.getBoundingClientRect().top > box.getBoundingClientRect().top + height) : place + by, 0), links.length - 1)]?.focus();
}

if (height && total > body.rows.length && total * height < TALLEST) {
  box.classList.add("all");
  document.querySelector(".explorer ~ .pager")?.remove();
  box.scrollTop = Number(box.dataset.offset) * height;
  box.addEventListener("scroll", () => requestAnimationFrame(show), { passive: true });
  addEventListener("resize", show);
  show();
}
addEventListener("keydown", (event) => {
  if (!body || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "/") document.querySelector(".explorer-form [name=text]")?.focus();
  else return;
  event.preventDefault();
});
