// Scrolls through all rollouts of a run in one table: rows come from the API as they come into view.
"use strict";
const PAGE = 100, MARGIN = 30, TALLEST = 8e6;
const box = document.querySelector(".explorer");
const body = box?.querySelector("tbody");
const total = Number(box?.dataset.total);
const height = body?.rows[0]?.getBoundingClientRect().height;
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff0-\ufffb]/g;
const pages = new Map();
let shown = "";

const visible = (text) => text.replace(HIDDEN, (one) => `U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
const shorten = (text, most) => {
  if (text.length <= most) return text;
  const head = (most - 1) >> 1;
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
};
const number = (value) => (value === null ? "–" : value.toFixed(3).replace("-", "−"));
const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u2009");
const duration = (s) =>
  s < 1 ? `${Math.round(s * 1000)} ms` : s < 60 ? `${s.toFixed(1)} s` : s < 3600 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`;

function cell(row, css, text) {
  const one = row.insertCell();
  one.className = css;
  one.append(text);
  return one;
}

function badge(css, text) {
  const one = document.createElement("span");
  one.className = css;
  one.textContent = text;
  return one;
}

function draw(one) {
  const row = document.createElement("tr");
  const link = document.createElement("a");
  link.href = `${box.dataset.page}/${one.number}${box.dataset.query}`;
  link.textContent = one.number;
  cell(row, "right", link);
  cell(row, "mono clip", visible(shorten(one.example_id, 32)));
  cell(row, "right narrow", one.index);
  cell(row, "right score", number(one.reward));
  const ended = cell(row, "nowrap", "");
  if (one.failure) ended.append(badge("badge error", `! ${one.failure}`));
  else ended.append(badge("mono", one.stop_reason ? visible(shorten(one.stop_reason, 24)) : "–"));
  if (one.truncated) ended.append(" ", badge("badge warn", "⋯ truncated"));
  cell(row, "right narrow", one.turns);
  cell(row, "right narrow", count(one.completion_tokens));
  cell(row, "right narrow", duration(one.seconds));
  cell(row, "clip muted", visible(shorten(one.preview, 120)));
  return row;
}

function filler(rows) {
  const row = document.createElement("tr");
  row.style.height = `${rows * height}px`;
  row.setAttribute("aria-hidden", "true");
  row.insertCell().colSpan = 9;
  return row;
}

async function fetchPage(page) {
  const query = new URLSearchParams(box.dataset.query);
  query.set("offset", page * PAGE);
  query.set("limit", PAGE);
  const answer = await fetch(`${box.dataset.rows}?${query}`);
  if (!answer.ok) throw new Error(`the hub answered ${answer.status}`);
  return (await answer.json()).data;
}

const say = (text) => { document.querySelector(".explorer-state").textContent = text; };

function load(page) {
  if (!pages.has(page)) {
    pages.set(page, null);
    fetchPage(page).then(
      (rows) => { pages.set(page, rows); say(""); show(); },
      () => { pages.delete(page); say("The hub does not answer; scroll to try again."); },
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
    rows.push(page?.[place % PAGE] ?? null);
  }
  const now = `${first}/${rows.map((one) => one?.number ?? "").join()}`;
  if (now === shown) return;
  shown = now;
  const active = document.activeElement?.closest?.(".explorer a")?.textContent;
  body.replaceChildren(filler(first), ...rows.map((one) => (one ? draw(one) : filler(1))), filler(total - last));
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
