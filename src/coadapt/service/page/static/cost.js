// What futures cost against how soon their jobs end: a point each, with its interval.

import { duration, make, number } from "./dom.js";
import { draw, extent, picture, style, text } from "./svg.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [760, 300, 80, 150, 14, 44];

// Returns the picture and its heading; nothing where fewer than two futures have a cost.
export function costCurve(answer) {
  const futures = answer.scenarios.filter(
    ({ cost_range: cost, mean_end_s: mean }) => cost && mean.median !== null,
  );
  if (futures.length < 2) return [];
  style();
  return [
    make("h3", {}, "Cost and mean time to the end"),
    make("div", { class: "scroll", tabindex: "0" }, drawn(futures, answer.currency)),
    make(
      "p",
      { class: "note" },
      "A point for each future, further left is sooner, lower is cheaper. " +
        "Bars: nine in ten futures.",
    ),
  ];
}

function drawn(futures, currency) {
  const finite = (value, other) => (value === null ? other : value);
  const rows = futures.map(({ name, cost_range: cost, mean_end_s: mean }) => ({
    name,
    cost,
    mean: { ...mean, high: finite(mean.high, mean.median) },
  }));
  const [left, right] = extent(rows.flatMap(({ mean }) => [mean.low, mean.high]));
  const [low, high] = extent(rows.flatMap(({ cost }) => [cost.low, cost.high]));
  const x = (at) => LEFT + ((at - left) / (right - left)) * (WIDTH - LEFT - RIGHT);
  const y = (cost) => TOP + ((high - cost) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const label = rows
    .map(({ name, cost, mean }) => {
      return `${name}: ${number(cost.median)} ${currency}, mean ${duration(mean.median)}`;
    })
    .join("; ");
  const inOrder = [...rows].sort((one, other) => one.mean.median - other.mean.median);
  const path = inOrder.map(({ mean, cost }) => `${x(mean.median)} ${y(cost.median)}`);
  return picture(
    WIDTH,
    HEIGHT,
    label,
    ...ticks(low, high).flatMap((tick) => [
      draw("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }),
      text(LEFT - 8, y(tick) + 4, number(tick, 3), "end"),
    ]),
    ...ticks(left, right).map((tick) => text(x(tick), HEIGHT - 26, duration(tick), "middle")),
    text(LEFT, HEIGHT - 6, `mean time to the end; cost in ${currency}, upwards`),
    draw("path", { class: "line complete", d: `M${path.join("L")}` }),
    ...rows.flatMap((row) => point(row, x, y)),
    ...names(rows, x, y),
  );
}

function point({ mean, cost }, x, y) {
  const [across, up] = [x(mean.median), y(cost.median)];
  return [
    draw("line", { class: "axis", x1: x(mean.low), x2: x(mean.high), y1: up, y2: up }),
    draw("line", { class: "axis", x1: across, x2: across, y1: y(cost.low), y2: y(cost.high) }),
    draw("circle", { class: "complete", cx: across, cy: up, r: 5 }),
  ];
}

// Names stand right of their points, the lower of two that would overlap further down.
function names(rows, x, y) {
  const placed = [];
  const sorted = [...rows].sort((one, other) => y(one.cost.median) - y(other.cost.median));
  for (const { name, mean, cost } of sorted) {
    const at = { x: x(mean.median) + 9, y: y(cost.median) - 7 };
    const near = () => placed.some((each) => Math.abs(each.y - at.y) < 14 && Math.abs(each.x - at.x) < 110);
    while (near()) at.y += 15;
    placed.push({ ...at, name });
  }
  return placed.map((each) => text(each.x, each.y, each.name.slice(0, 40)));
}

function ticks(low, high) {
  return [0.1, 0.5, 0.9].map((part) => low + part * (high - low));
}
