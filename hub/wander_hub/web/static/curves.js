// Training curves: values under the pointer, smoothing for all of them, and steps chosen by dragging.
"use strict";
const LEFT = 52, RIGHT = 412, BASE = 154;
const SVG = "http://www.w3.org/2000/svg";
const charts = [...document.querySelectorAll("svg[data-points]")].map((svg) => {
  const points = svg.dataset.points.split(" ").map((one) => one.split(",").map(Number));
  const values = points.map(([, y]) => y);
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const line = svg.querySelector(".curve"), said = svg.closest("figure").querySelector("figcaption span");
  return { svg, points, low, high, line, said, was: said.textContent, raw: null };
});
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
  const { points, across, up } = scales(chart);
  const path = (some) => some.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`).join(" ");
  chart.line.setAttribute("points", path(smoothed(chart.points).filter(([x]) => x >= from && x <= to)));
  chart.raw ??= chart.line.parentNode.insertBefore(document.createElementNS(SVG, "polyline"), chart.line);
  chart.raw.setAttribute("class", "curve raw");
  chart.raw.setAttribute("points", weight ? path(points) : "");
  chart.svg.classList.toggle("zoomed", from > -Infinity);
  for (const mark of chart.svg.querySelectorAll(".alert-mark")) {
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

for (const chart of charts.filter((one) => one.line)) {
  let began = null;
  chart.svg.addEventListener("pointermove", (event) => {
    const { points, step } = scales(chart);
    const wanted = step(place(chart, event));
    const near = points.reduce((best, one) => (Math.abs(one[0] - wanted) < Math.abs(best[0] - wanted) ? one : best), points[0]);
    if (near) chart.said.textContent = `step ${near[0]}: ${compact(near[1])}`;
  });
  chart.svg.addEventListener("pointerleave", () => { chart.said.textContent = chart.was; });
  chart.svg.addEventListener("pointerdown", (event) => { began = scales(chart).step(place(chart, event)); });
  chart.svg.addEventListener("pointerup", (event) => {
    const ended = scales(chart).step(place(chart, event));
    const chosen = [began, ended].sort((a, b) => a - b);
    if (began === null || chart.points.filter(([x]) => x >= chosen[0] && x <= chosen[1]).length < 2) return;
    [from, to] = chosen;
    charts.forEach((one) => one.line && draw(one));
  });
  chart.svg.addEventListener("dblclick", () => {
    [from, to] = [-Infinity, Infinity];
    charts.forEach((one) => one.line && draw(one));
  });
}

const first = document.querySelector(".curves");
if (first && charts.length) {
  const label = document.createElement("label"), slider = document.createElement("input");
  label.className = "small muted smoothing";
  Object.assign(slider, { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  slider.addEventListener("input", () => {
    weight = Number(slider.value);
    charts.forEach((one) => one.line && draw(one));
  });
  label.append("Smoothing ", slider, " Drag across a curve to look at some steps; twice a click shows all.");
  first.before(label);
}
