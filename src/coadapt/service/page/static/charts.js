// The life of a job as strips over one time axis: uPlot draws each, and zoom and cursor go
// through all of them.

import { clock, make, number } from "./dom.js";

const HEIGHT = 104;
const AXIS_HEIGHT = 34;
const NOTE =
  "Green: pauses of changes in place. Red: starts, until the first step. " +
  "Drag to zoom, double-click for all of it.";
const SYNC = "life";
const TICKS_S = [
  1, 2, 5, 15, 30, 60, 120, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800,
];

const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function tickText(at, index, ticks) {
  const time = clock(at, at);
  const apart = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  if (apart >= 86400) return clock(at).slice(0, 5);
  const text = apart % 60 ? time : time.slice(0, 5);
  return index && time !== "00:00:00" ? text : `${text}\n${clock(at).slice(0, 5)}`;
}

// Returns the columns of a strip, with a point at both ends of the job's life: all strips
// span the same time.
function framed(found, rows) {
  const first = [found.job.submitted_at, null],
    last = [found.until, null];
  const inside = rows.filter(([at]) => at > first[0] && at < last[0]);
  const all = [first, ...inside, last];
  return [all.map(([at]) => at), all.map(([, value]) => value)];
}

function held(found) {
  const times = [],
    gpus = [];
  for (const [start, , num] of found.spans) {
    times.push(start);
    gpus.push(num);
  }
  times.push(found.until);
  gpus.push(gpus.at(-1) ?? 0);
  return [times, gpus];
}

function stepped(rows, until) {
  return rows.length ? [...rows, [until, rows.at(-1)[1]]] : rows;
}

function column(found, index) {
  return found.points
    .map((point) => [point[0], point[index]])
    .filter(([, value]) => value !== null && value !== undefined);
}

// [title, unit, columns, whether values hold until the next one]
function strips(found) {
  const batch = stepped(column(found, 1), found.until - 1e-3);
  const names = [...new Set(found.points.flatMap((point) => Object.keys(point[6])))];
  const all = [
    ["GPUs held", "", held(found), true],
    ["Total batch", "samples", framed(found, batch), true],
    ["Noise scale", "samples", framed(found, column(found, 5)), false],
    ["Statistical efficiency", "", framed(found, column(found, 2)), false],
    ...names.slice(0, 3).map((name) => [
      name,
      "",
      framed(
        found,
        found.points
          .filter((point) => point[6][name] !== undefined)
          .map((point) => [point[0], point[6][name]]),
      ),
      false,
    ]),
  ];
  return all.filter(
    ([title, , [, values]]) => title === "GPUs held" || values.some((value) => value !== null),
  );
}

// Pauses as bars, and starts and failures as lines, over the GPUs.
function marks(plot, found) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const [at, , , cost, pause] of found.rescales) {
    const inPlace = Object.keys(pause).length > 0;
    const left = plot.valToPos(at - cost, "x", true),
      right = plot.valToPos(at, "x", true);
    ctx.fillStyle = colour(inPlace ? "--good" : "--bad");
    ctx.globalAlpha = 0.35;
    ctx.fillRect(left, bbox.top, Math.max(right - left, 2), bbox.height);
  }
  ctx.restore();
}

export function charts(root) {
  const place = make("div");
  const note = make("p", { class: "note" });
  root.append(place, note);
  let made = [],
    titles = "",
    zoomed = false,
    latest = null;

  function width() {
    return Math.max(place.clientWidth, 260);
  }

  function options(title, unit, steps, isLast, value) {
    const axis = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
    };
    return {
      width: width(),
      height: HEIGHT + (isLast ? AXIS_HEIGHT : 0),
      legend: { show: false },
      // The lowest number of an axis is half below it.
      padding: [6, 8, isLast ? 0 : 6, 0],
      cursor: { sync: { key: SYNC }, drag: { x: true, y: false }, points: { size: 5 } },
      scales: { x: { time: true }, y: { range: (_, low, high) => bounds(low, high) } },
      axes: [
        {
          ...axis,
          show: isLast,
          size: AXIS_HEIGHT,
          space: 90,
          incrs: TICKS_S,
          values: (_, ticks) => ticks.map(tickText),
        },
        {
          ...axis,
          size: 62,
          values: (_, ticks) => ticks.map((tick) => number(tick, 3)),
          space: 24,
        },
      ],
      series: [
        {},
        {
          stroke: colour("--accent"),
          width: 1.5,
          spanGaps: true,
          points: { show: false },
          paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
          fill: title === "GPUs held" ? colour("--chosen") : undefined,
        },
      ],
      hooks: {
        draw: title === "GPUs held" ? [(plot) => latest && marks(plot, latest)] : [],
        setCursor: [
          (plot) => {
            const at = plot.cursor.idx;
            const shown =
              at === null || at === undefined ? null : near(plot.data[1], at, steps);
            value.textContent = shown === null ? "" : `${number(shown)} ${unit}`;
          },
        ],
        setSelect: [
          (plot) => {
            if (plot.select.width > 0) zoomed = true;
          },
        ],
        ready: [
          (plot) =>
            plot.over.addEventListener("dblclick", () => {
              zoomed = false;
            }),
        ],
      },
    };
  }

  function build(all) {
    for (const { plot } of made) plot.destroy();
    made = all.map(([title, unit, data, steps], index) => {
      const value = make("span", { class: "value" });
      const known = data[1].filter((each) => each !== null);
      const figure = make("figure", { class: "strip" }, make("figcaption", {}, title, value));
      const canvas = make("div", { role: "img", "aria-label": summary(title, known, unit) });
      figure.append(canvas);
      return {
        title,
        figure,
        canvas,
        unit,
        data,
        options: options(title, unit, steps, index === all.length - 1, value),
      };
    });
    place.replaceChildren(...made.map(({ figure }) => figure));
    for (const each of made) each.plot = new uPlot(each.options, each.data, each.canvas);
  }

  const observer = new ResizeObserver(() => {
    for (const { plot } of made)
      if (plot.width !== width()) plot.setSize({ width: width(), height: plot.height });
  });
  observer.observe(place);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => {
    if (latest) build(strips(latest));
  };
  scheme.addEventListener("change", redraw);

  return {
    update(found) {
      latest = found;
      const hasRun = found.spans.some(([, , gpus]) => gpus > 0);
      note.textContent = hasRun ? NOTE : "It has held no GPU so far.";
      const all = hasRun ? strips(found) : [];
      const names = JSON.stringify(all.map(([title]) => title));
      if (names !== titles) {
        titles = names;
        build(all);
        return;
      }
      all.forEach(([title, unit, data], index) => {
        made[index].plot.setData(data, !zoomed);
        made[index].canvas.setAttribute(
          "aria-label",
          summary(
            title,
            data[1].filter((each) => each !== null),
            unit,
          ),
        );
      });
    },
    close() {
      observer.disconnect();
      scheme.removeEventListener("change", redraw);
      for (const { plot } of made) plot.destroy();
    },
  };
}

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5]];
const LINES = ["--accent", "--line-1", "--line-2", "--line-3", "--line-4"];

function ahead(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Number((seconds / 60).toFixed(1))} min`;
  if (seconds < 172800) return `${Number((seconds / 3600).toFixed(1))} h`;
  return `${Number((seconds / 86400).toFixed(1))} days`;
}

// Draws how many jobs are left in each future over the seconds from now.
export function curves(place, futures) {
  const last = Math.max(...futures.map(({ left }) => left.at(-1)[0]), 1);
  const columns = futures.map(({ left }) => {
    const all = left.at(-1)[0] < last ? [...left, [last, left.at(-1)[1]]] : left;
    return [all.map(([at]) => at), all.map(([, jobs]) => jobs)];
  });
  const canvas = make("div", {
    role: "img",
    "aria-label": futures
      .map(({ name, left }) => {
        const half = left.find(([, jobs]) => jobs <= left[0][1] / 2) ?? left.at(-1);
        return `${name}: ${number(left[0][1])} jobs, half of them ended in ${ahead(half[0])}`;
      })
      .join("; "),
  });
  const legend = make("p", { class: "legend" });
  place.append(legend, canvas);
  let plot = null;

  function draw() {
    plot?.destroy();
    legend.replaceChildren(
      ...futures.map(({ name }, index) => {
        const key = make("span", { class: `key key-${index}` });
        return make("span", {}, key, name);
      }),
    );
    const axis = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
    };
    plot = new uPlot(
      {
        width: Math.max(place.clientWidth, 260),
        height: 240,
        legend: { show: false },
        padding: [6, 16, 0, 0],
        cursor: { drag: { x: true, y: false }, points: { size: 5 } },
        scales: { x: { time: false }, y: { range: (_, low, high) => bounds(0, high) } },
        axes: [
          {
            ...axis,
            size: AXIS_HEIGHT,
            space: 80,
            incrs: TICKS_S,
            values: (_, ticks) => ticks.map(ahead),
          },
          { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => number(tick, 3)) },
        ],
        series: [
          {},
          ...futures.map((_, index) => ({
            stroke: colour(LINES[index]),
            width: 2,
            dash: DASHES[index],
            spanGaps: true,
            points: { show: false },
            paths: uPlot.paths.stepped({ align: 1 }),
          })),
        ],
      },
      uPlot.join(columns),
      canvas,
    );
  }

  const observer = new ResizeObserver(() => {
    if (!plot) draw();
    const width = Math.max(place.clientWidth, 260);
    if (plot.width !== width) plot.setSize({ width, height: plot.height });
  });
  observer.observe(place);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", draw);
  return {
    close() {
      observer.disconnect();
      scheme.removeEventListener("change", draw);
      plot?.destroy();
    },
  };
}

function bounds(low, high) {
  if (low === null || high === null) return [0, 1];
  const least = low >= 0 && low < high / 2 ? 0 : low;
  if (least === high) return [Math.min(0, high), high > 0 ? 1.2 * high : 1];
  const room = 0.08 * (high - least);
  return [least === 0 ? 0 : least - room, high + room];
}

// The value at a place of the axis; where the strip has none there, the one before it.
function near(values, index, steps) {
  for (let at = index; at >= 0; at -= 1) if (values[at] !== null) return values[at];
  return steps ? null : (values.find((value) => value !== null) ?? null);
}

function summary(title, known, unit) {
  if (!known.length) return `${title}: nothing known`;
  const low = Math.min(...known),
    high = Math.max(...known);
  const range = `between ${number(low)} and ${number(high)}`;
  return `${title}: ${number(known.at(-1))} ${unit} at the end, ${range}`;
}
