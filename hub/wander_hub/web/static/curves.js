// Training curves: shows the values at a step (pointer or arrow keys), smooths, and zooms (drag, or + and -).
"use strict";
const SVG = "http://www.w3.org/2000/svg";
// Each chart with the points of its runs, and a line for each run that has more than one point.
const charts = [...document.querySelectorAll("svg[data-points]")].map((svg) => {
  const runs = svg.dataset.points.split(";").map((points) =>
    points.split(" ").filter(Boolean).map((one) => one.split(",").map(Number)));
  const points = runs.flat().sort(([a], [b]) => a - b);
  const values = points.map(([, y]) => y);
  let low = Math.min(...values), high = Math.max(...values);
  const room = low === high ? Math.abs(low) / 2 || 0.5 : 0;
  [low, high] = [low - room, high + room];
  const [left, right, base] = svg.dataset.frame.split(" ").map(Number);
  const caption = svg.closest("figure").querySelector("figcaption span");
  const lines = [...svg.querySelectorAll(".curve")].map((line) => ({ line, points: runs[line.dataset.series], raw: null }));
  return { svg, left, right, base, runs, points, low, high, lines, caption, summary: caption.textContent };
}).filter((chart) => chart.lines.length);
let from = -Infinity, to = Infinity, weight = 0;

const compact = (value) => String(Number(value.toPrecision(3))).replace("-", "−");
const within = (chart) => chart.points.filter(([x]) => x >= from && x <= to);

function smoothed(points) {
  let mean = 0, share = 0;
  return points.map(([x, y]) => {
    mean = weight * mean + (1 - weight) * y;
    share = weight * share + (1 - weight);
    return [x, mean / share];
  });
}

function scales(chart) {
  const points = within(chart);
  const start = points[0]?.[0] ?? 0, end = points.at(-1)?.[0] ?? 1;
  const { left, base } = chart, wide = chart.right - left;
  const across = (x) => left + ((x - start) / (end - start || 1)) * wide;
  const up = (y) => base - ((y - chart.low) / (chart.high - chart.low)) * (base - 10);
  return { points, start, end, across, up, step: (px) => start + ((px - left) / wide) * (end - start) };
}

function element(chart, name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return chart.svg.appendChild(made);
}

// Draws ticks at round, whole steps below the axis, each with its number.
function drawTicks(chart) {
  const { start, end, across } = scales(chart);
  const rough = (end - start) / 5, power = 10 ** Math.floor(Math.log10(rough || 1));
  const width = chart.svg.viewBox.baseVal.width;
  const by = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999));
  chart.svg.querySelectorAll(".axis, .below").forEach((one) => one.remove());
  for (let step = Math.ceil(start / by) * by; step <= end; step += by) {
    const x = across(step).toFixed(1);
    element(chart, "line", { class: "axis", x1: x, x2: x, y1: chart.base, y2: chart.base + 4 });
    const past = Number(x) + ((width > 400 ? 12 : 7) * String(step).length) / 2 > width;
    const at = { x: past ? width : x, y: chart.base + 20, "text-anchor": past ? "end" : "middle" };
    element(chart, "text", { class: "tick below", ...at }, step);
  }
}

function draw(chart) {
  const { across, up } = scales(chart);
  drawTicks(chart);
  chart.at.setAttribute("class", "at hidden");
  const path = (some) => some.filter(([x]) => x >= from && x <= to)
    .map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`).join(" ");
  for (const one of chart.lines) {
    one.line.setAttribute("points", path(smoothed(one.points)));
    one.raw ??= one.line.parentNode.insertBefore(document.createElementNS(SVG, "polyline"), one.line);
    one.raw.setAttribute("class", `${one.line.getAttribute("class")} raw`);
    one.raw.setAttribute("points", weight ? path(one.points) : "");
  }
  chart.svg.classList.toggle("zoomed", from > -Infinity);
  for (const mark of chart.svg.querySelectorAll("[data-step]")) {
    const x = Number(mark.dataset.step);
    mark.setAttribute("x1", across(x));
    mark.setAttribute("x2", across(x));
    mark.style.display = x >= from && x <= to ? "" : "none";
  }
}

const place = (chart, event) => {
  const box = chart.svg.getBoundingClientRect();
  return ((event.clientX - box.left) / box.width) * chart.svg.viewBox.baseVal.width;
};

const nearest = (points, wanted) =>
  points.reduce((best, one) => (Math.abs(one[0] - wanted) < Math.abs(best[0] - wanted) ? one : best), points[0]);

function showStep(chart, wanted) {
  const { points, across, start, end } = scales(chart);
  const step = nearest(points, wanted)?.[0];
  if (step === undefined) return;
  const values = chart.runs.map((one) => one.find(([x]) => x === step)).map((one) => (one ? compact(one[1]) : "–"));
  chart.step = step;
  chart.caption.textContent = `step ${step}: ${values.join(" · ")}`;
  const attributes = { valuemin: start, valuemax: end, valuenow: step, valuetext: chart.caption.textContent };
  for (const [name, value] of Object.entries(attributes)) chart.svg.setAttribute(`aria-${name}`, value);
  for (const name of ["x1", "x2"]) chart.at.setAttribute(name, across(step));
  chart.at.setAttribute("class", "at");
}

function hideStep(chart) {
  chart.caption.textContent = chart.summary;
  chart.at.setAttribute("class", "at hidden");
}

function showRange(range) {
  [from, to] = range;
  all.hidden = from === -Infinity;
  charts.forEach(draw);
}

// Applies a key to a chart. Returns the step to show, or undefined if the key does nothing.
function press(chart, key) {
  const { points, start, end } = scales(chart);
  const steps = [...new Set(points.map(([x]) => x))], place = steps.indexOf(chart.step);
  const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[key];
  if (by) return steps[Math.min(Math.max(place + by, 0), steps.length - 1)];
  if (key === "Home" || key === "End") return steps.at(key === "Home" ? 0 : -1);
  const half = (end - start) / 4;
  if (key === "+" && steps.length > 3) showRange([chart.step - half, chart.step + half]);
  else if (key === "-" || key === "Escape") showRange([-Infinity, Infinity]);
  else return undefined;
  return chart.step;
}

const all = document.createElement("button");
Object.assign(all, { type: "button", textContent: "Show all steps", hidden: true });
all.addEventListener("click", () => showRange([-Infinity, Infinity]));

for (const chart of charts) {
  let began = null;
  chart.step = chart.points[0][0];
  chart.at = element(chart, "line", { class: "at hidden", y1: 10, y2: chart.base });
  for (const [name, value] of Object.entries({ role: "slider", tabindex: 0, "aria-valuenow": chart.step })) chart.svg.setAttribute(name, value);
  chart.svg.addEventListener("pointermove", (event) => showStep(chart, scales(chart).step(place(chart, event))));
  chart.svg.addEventListener("pointerleave", () => hideStep(chart));
  chart.svg.addEventListener("focus", () => showStep(chart, chart.step));
  chart.svg.addEventListener("blur", () => hideStep(chart));
  chart.svg.addEventListener("keydown", (event) => {
    const step = event.ctrlKey || event.metaKey || event.altKey ? undefined : press(chart, event.key);
    if (step === undefined) return;
    event.preventDefault();
    showStep(chart, step);
  });
  chart.svg.addEventListener("pointerdown", (event) => { began = scales(chart).step(place(chart, event)); });
  chart.svg.addEventListener("pointerup", (event) => {
    const ended = scales(chart).step(place(chart, event));
    const chosen = [began, ended].sort((a, b) => a - b);
    if (began === null || chart.points.filter(([x]) => x >= chosen[0] && x <= chosen[1]).length < 2) return;
    showRange(chosen);
  });
  chart.svg.addEventListener("dblclick", () => showRange([-Infinity, Infinity]));
}

const first = document.querySelector(".curves");
if (first && charts.length) {
  const bar = document.createElement("div"), label = document.createElement("label"), slider = document.createElement("input");
  bar.className = "small muted smoothing";
  Object.assign(slider, { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  slider.addEventListener("input", () => {
    weight = Number(slider.value);
    charts.forEach(draw);
  });
  label.append("Smoothing ", slider);
  bar.append(label, "Drag across a curve to zoom in. On the keyboard, use the arrow keys, + and −.", all);
  first.before(bar);
}
