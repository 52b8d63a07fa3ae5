// Training curves: values under the pointer, smoothing for all of them, and steps chosen by dragging.
"use strict";
const LEFT = 52, RIGHT = 352, BASE = 134;
const SVG = "http://www.w3.org/2000/svg";
// Of each chart the points of its runs, and a line for each run with more than one point.
const charts = [...document.querySelectorAll("svg[data-points]")].map((svg) => {
  const runs = svg.dataset.points.split(";").map((points) =>
    points.split(" ").filter(Boolean).map((one) => one.split(",").map(Number)));
  const points = runs.flat().sort(([a], [b]) => a - b);
  const values = points.map(([, y]) => y);
  let low = Math.min(...values), high = Math.max(...values);
  const room = low === high ? Math.abs(low) / 2 || 0.5 : 0;
  [low, high] = [low - room, high + room];
  const said = svg.closest("figure").querySelector("figcaption span");
  const lines = [...svg.querySelectorAll(".curve")].map((line) => ({ line, points: runs[line.dataset.series], raw: null }));
  return { svg, runs, points, low, high, lines, said, was: said.textContent };
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
  const across = (x) => LEFT + ((x - start) / (end - start || 1)) * (RIGHT - LEFT);
  const up = (y) => BASE - ((y - chart.low) / (chart.high - chart.low)) * (BASE - 10);
  return { points, start, end, across, up, step: (px) => start + ((px - LEFT) / (RIGHT - LEFT)) * (end - start) };
}

function draw(chart) {
  const { across, up } = scales(chart);
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

for (const chart of charts) {
  let began = null;
  chart.svg.addEventListener("pointermove", (event) => {
    const { points, step } = scales(chart);
    const near = nearest(points, step(place(chart, event)));
    if (!near) return;
    const values = chart.runs.map((one) => one.find(([x]) => x === near[0])).map((one) => (one ? compact(one[1]) : "–"));
    chart.said.textContent = `step ${near[0]}: ${values.join(" · ")}`;
  });
  chart.svg.addEventListener("pointerleave", () => { chart.said.textContent = chart.was; });
  chart.svg.addEventListener("pointerdown", (event) => { began = scales(chart).step(place(chart, event)); });
  chart.svg.addEventListener("pointerup", (event) => {
    const ended = scales(chart).step(place(chart, event));
    const chosen = [began, ended].sort((a, b) => a - b);
    if (began === null || chart.points.filter(([x]) => x >= chosen[0] && x <= chosen[1]).length < 2) return;
    [from, to] = chosen;
    charts.forEach(draw);
  });
  chart.svg.addEventListener("dblclick", () => {
    [from, to] = [-Infinity, Infinity];
    charts.forEach(draw);
  });
}

const first = document.querySelector(".curves");
if (first && charts.length) {
  const label = document.createElement("label"), slider = document.createElement("input");
  label.className = "small muted smoothing";
  Object.assign(slider, { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  slider.addEventListener("input", () => {
    weight = Number(slider.value);
    charts.forEach(draw);
  });
  label.append("Smoothing ", slider, " Drag across a curve to see some of its steps; double-click to see all.");
  first.before(label);
}
