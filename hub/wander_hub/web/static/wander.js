// For all pages: copy a command, show the title of a chart's mark, fill in a code from the link, focus the search box,
// and search while the reader types.
"use strict";
const WAIT = 120; // milliseconds after the last keystroke

for (const box of document.querySelectorAll("pre.command")) {
  if (box.closest(".empty")?.querySelector("input")) continue;
  const frame = document.createElement("div");
  frame.className = "copyable";
  box.replaceWith(frame);
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = [...box.childNodes].filter((one) => one.className !== "comment").map((one) => one.textContent);
    await navigator.clipboard.writeText(text.join("").trim());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  frame.append(box, button);
}

// Shows the title of a chart's mark as text, for readers who cannot hover over it.
for (const chart of document.querySelectorAll(".chart:not([data-points]):has(title)")) {
  const caption = document.createElement("p");
  caption.className = "small muted caption";
  caption.setAttribute("role", "status");
  (chart.closest(".keyed") ?? chart).after(caption);
  for (const kind of ["focusin", "pointerdown"]) {
    chart.addEventListener(kind, (event) => {
      const title = event.target.closest("a, circle, rect")?.querySelector("title");
      if (title) caption.textContent = title.textContent;
    });
  }
}

const code = document.querySelector('form[action="/login/password"] input[name="code"]');
if (code && location.hash) {
  code.value = location.hash.slice(1);
  code.form.action += location.hash; // if the password is rejected, the code stays in the fragment, which is never sent to a server
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  const search = document.querySelector('form[role="search"] input');
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
});

const results = document.getElementById("results");
const form = document.getElementById("filters");
if (results && form) {
  let waiting, asked;
  const find = async () => {
    const wanted = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    const address = `${form.getAttribute("action")}?${wanted}`;
    asked?.abort();
    asked = new AbortController();
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" }, signal: asked.signal });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("results");
      if (!answer.ok || !found) return;
      results.replaceChildren(...found.childNodes);
      history.replaceState(null, "", address);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(find, WAIT);
  };
  form.addEventListener("input", soon);
}
