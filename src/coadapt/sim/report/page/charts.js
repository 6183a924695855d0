// The charts. Each function draws one from plain values into one element; state lives in page.js.

// Okabe and Ito's palette: people with any of the common colour deficiencies can distinguish them.
// As page.css has them: the page takes the reader's own choice of light or dark.
const DARK = window.matchMedia("(prefers-color-scheme: dark)").matches;
const INK = DARK ? "#e6edf3" : "#1f2328", GRID = DARK ? "#2b323a" : "#e6e9ed", PAPER = DARK ? "#0f1419" : "#fff";
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", DARK ? "#b8bfc6" : "#444444"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
// From ColorBrewer's YlGnBu, light to dark with the number of GPUs.
const GPU_CLASSES = [
  { upto: 0, name: "waiting", colour: "#c4c8cd" },
  { upto: 1, name: "1 GPU", colour: "#c2e699" },
  { upto: 2, name: "2 GPUs", colour: "#7fcdbb" },
  { upto: 4, name: "3–4", colour: "#41b6c4" },
  { upto: 8, name: "5–8", colour: "#1d91c0" },
  { upto: 16, name: "9–16", colour: "#225ea8" },
  { upto: 32, name: "17–32", colour: "#253494" },
  { upto: Infinity, name: "more than 32", colour: "#081d58" },
];
const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
const JCT_MARGIN = 1.15; // of the axis of completion times, on both sides
const NUM_PAUSES_SHOWN = 60; // bars in the chart of the pauses' parts
const ROW_PX_MIN = 6, ROW_PX_LABELS = 14, ROW_PX_MAX = 26, GANTT_PX = 900, LABEL_LETTERS = 26, NARROW_PX = 600;
const CROWD = 300; // marks from which on they are small

function colourOf(index) { return COLOURS[index % COLOURS.length]; }
function dashOf(index) { return DASHES[Math.floor(index / COLOURS.length) % DASHES.length]; }

function layout(options) {
  const axis = { gridcolor: GRID, zeroline: false, linecolor: GRID, ticks: "outside", tickcolor: GRID, ticklen: 4 };
  return {
    font: { family: "system-ui, -apple-system, 'Segoe UI', Arial, sans-serif", size: 12, color: INK },
    margin: { l: 56, r: 12, t: 30, b: 42, ...options.margin },
    paper_bgcolor: PAPER, plot_bgcolor: PAPER, hovermode: "closest", showlegend: options.legend !== false,
    legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", font: { size: 11 } },
    hoverlabel: { bgcolor: PAPER, bordercolor: "#9aa4af", font: { color: INK, size: 12 }, align: "left" },
    xaxis: { ...axis, ...options.x }, yaxis: { ...axis, automargin: true, ...options.y },
    ...options.more,
  };
}

function titled(text) { return { text, font: { size: 12 }, standoff: 8 }; }

function noData(element, text) {
  Plotly.purge(element);
  element.replaceChildren();
  const note = document.createElement("p");
  note.className = "empty";
  note.textContent = text;
  element.append(note);
}

function drawCompletionTimes(element, runs) {
  const longest = Math.max(0, ...runs.flatMap((run) => run.jct));
  if (!(longest > 0)) return noData(element, "No job has finished.");
  const shortest = Math.max(1, Math.min(...runs.flatMap((run) => run.jct)));
  const traces = runs.map((run, index) => {
    const x = run.jct.map((seconds) => Math.max(seconds, 1)), y = run.jct.map((_, rank) => (rank + 1) / run.num_jobs);
    return {
      x: [x[0], ...x, longest * JCT_MARGIN], y: [0, ...y, y[y.length - 1]], text: ["0 s", ...run.jct.map(duration)], name: plain(run.label), mode: "lines", line: { color: colourOf(index), dash: dashOf(index), width: 2, shape: "hv" },
      hovertemplate: `%{y:.0%} of jobs within %{text}<extra>${plain(run.label)}</extra>`,
    };
  });
  Plotly.react(element, traces, layout({
    x: { type: "log", title: titled("from submission to end (log scale)"), range: [Math.log10(shortest / JCT_MARGIN), Math.log10(longest * JCT_MARGIN)], ...timeTicks(shortest, longest) },
    y: { range: [0, 1.02], tickformat: ".0%", title: titled("share of jobs") },
  }), CONFIG);
}

// What jobs took from a word on, against what it said: on the diagonal it came true.
function drawForetold(element, runs) {
  const words = runs.flatMap((run) => run.foretold.drawn), ends = words.flatMap(([said, , , took]) => [Math.max(said, 1), Math.max(took, 1)]);
  const low = Math.min(...ends) / JCT_MARGIN, high = Math.max(...ends) * JCT_MARGIN;
  const isWithin = ([, least, most, took]) => least <= took && took <= most;
  const traces = runs.flatMap((run) => [true, false].map((within) => {
    const shown = run.foretold.drawn.filter((word) => isWithin(word) === within);
    return {
      type: "scatter", mode: "markers", name: `${runs.length > 1 ? `${plain(run.label)}, ` : ""}${within ? "within the interval" : "outside"}`,
      x: shown.map(([said]) => Math.max(said, 1)), y: shown.map(([, , , took]) => Math.max(took, 1)), hoverinfo: "text",
      hovertext: shown.map(([said, least, most, took]) => `said: ${duration(said)} (${duration(least)} to ${duration(most)})<br>took: ${duration(took)}`),
      marker: { color: within ? run.colour : PAPER, size: words.length > CROWD ? 4 : 7, opacity: 0.7, line: { width: 1, color: run.colour } },
    };
  })).filter((trace) => trace.x.length);
  const diagonal = { mode: "lines", x: [low, high], y: [low, high], line: { color: "#9aa4af", width: 1 }, hoverinfo: "skip", showlegend: false };
  const range = [Math.log10(low), Math.log10(high)];
  Plotly.react(element, [diagonal, ...traces], layout({
    x: { type: "log", title: titled("said to be left (log scale)"), range, ...timeTicks(low, high) },
    y: { type: "log", title: titled("it took"), range, ...timeTicks(low, high) },
  }), CONFIG);
}

function drawOverTime(element, runs, unit, key, y) {
  const drawn = runs.filter((run) => run.curves[key].some((value) => value !== null));
  if (!drawn.length) return noData(element, "Nothing was measured.");
  const traces = runs.map((run, index) => ({
    x: run.curves.at.map((at) => at / unit.seconds), y: run.curves[key], name: plain(run.label), mode: "lines",
    line: { color: colourOf(index), dash: dashOf(index), width: 1.6 },
    hovertemplate: `%{y${y.tickformat ? ":.1%" : ":.1f"}} at %{x:.2f} ${unit.name}<extra>${plain(run.label)}</extra>`,
  }));
  const x = runs.length === 1 ? timeAxis(runs[0], unit, null) : { title: titled(`time, ${unit.name}`), rangemode: "tozero" };
  Plotly.react(element, traces, layout({ x, y }), CONFIG);
}

// The axis of a run's time: by the clock where there was one, else by what has passed since the first job.
function timeAxis(run, unit, range) {
  const shown = range || wholeRange(run, unit);
  if (run.began_at === null) return { title: titled(`time, ${unit.name}`), range: shown };
  return { title: titled("time, UTC"), range: shown, tickmode: "array", ...clockTicks(run, unit, shown) };
}

function clockRelayout(run, range) {
  if (run.began_at === null) return {};
  const { tickvals, ticktext } = clockTicks(run, timeUnit(run.end), range);
  return { "xaxis.tickvals": tickvals, "xaxis.ticktext": ticktext };
}

function planlessShapes(run, unit) {
  return run.planless.map(([start, end]) => ({
    type: "rect", yref: "paper", y0: 0, y1: 1, x0: start / unit.seconds, x1: end / unit.seconds, layer: "below",
    line: { width: 0 }, fillcolor: DARK ? "#4a2226" : "#f9dcdc",
  }));
}

function wholeRange(run, unit) { return [0, (run.end / unit.seconds) * 1.005]; }

function spanText(run, job, span) {
  const [start, end, gpus, shape, idle, reason] = span;
  const what = gpus ? `${count(gpus, "GPU")} (${shape} per node)` : "waits";
  const lines = [`<b>${plain(job.label)}</b>`, `${what}, ${moment(run, start)} to ${moment(run, end)} (${duration(end - start)})`];
  if (idle > 0) lines.push(`of which ${duration(idle)} without training: starts, pauses, stops`);
  if (reason >= 0) lines.push(wrapped(run.texts[reason], 70));
  return lines.join("<br>");
}

function ganttTraces(run, unit) {
  const traces = GPU_CLASSES.map((gpuClass, index) => ({
    type: "bar", orientation: "h", base: [], x: [], y: [], hovertext: [], hoverinfo: "text", customdata: [],
    name: gpuClass.name, width: index ? 0.86 : 0.3, marker: { color: gpuClass.colour, line: { width: 0 } },
  }));
  run.jobs.forEach((job, row) => {
    for (const span of job.spans) {
      const trace = traces[GPU_CLASSES.findIndex((gpuClass) => span[2] <= gpuClass.upto)];
      trace.base.push(span[0] / unit.seconds);
      trace.x.push((span[1] - span[0]) / unit.seconds);
      trace.y.push(row);
      trace.hovertext.push(spanText(run, job, span));
      trace.customdata.push(row);
    }
  });
  for (const [state, symbol, colour] of [["failed", "x", "#c0272d"], ["cancelled", "x-thin", "#59636e"]]) {
    const rows = run.jobs.map((job, row) => [job, row]).filter(([job]) => job.state === state);
    traces.push({
      type: "scatter", mode: "markers", name: state, x: rows.map(([job]) => job.ended / unit.seconds),
      y: rows.map(([, row]) => row), customdata: rows.map(([, row]) => row), hoverinfo: "text",
      hovertext: rows.map(([job]) => `<b>${plain(job.label)}</b><br>${state} at ${instant(job.ended)}`),
      marker: { symbol, color: colour, size: 8, line: { width: 2, color: colour } },
    });
  }
  return traces.filter((trace) => trace.y.length);
}

function drawGantt(element, run, unit, { job: selected, tall, range }) {
  const rows = run.jobs.length;
  const fitting = Math.max(ROW_PX_MIN, Math.min(ROW_PX_MAX, GANTT_PX / rows));
  const rowPx = tall ? Math.max(fitting, ROW_PX_LABELS) : fitting;
  // Every row has a label where rows are tall enough to hold one; else every so many.
  const every = Math.ceil((ROW_PX_LABELS - 3) / rowPx);
  const labelled = run.jobs.map((_, row) => row).filter((row) => row % every === 0);
  const shapes = planlessShapes(run, unit);
  if (selected >= 0) shapes.push({
    type: "rect", xref: "paper", x0: 0, x1: 1, y0: selected - 0.5, y1: selected + 0.5, layer: "below",
    line: { width: 0 }, fillcolor: DARK ? "#4a3d12" : "#ffe9a8",
  });
  const height = rows * rowPx + 78, narrow = element.clientWidth < NARROW_PX;
  element.style.height = `${height}px`;
  return Plotly.react(element, ganttTraces(run, unit), layout({
    margin: { l: narrow ? 96 : 190, t: 34, b: 44 },
    x: { ...timeAxis(run, unit, range), mirror: "allticks" },
    y: {
      range: [rows - 0.5, -0.5], tickvals: labelled, showgrid: false, ticks: "", tickfont: { size: rowPx < 13 ? 9 : 11 },
      ticktext: labelled.map((row) => plain(shortened(run.jobs[row].label, narrow ? LABEL_LETTERS / 2 : LABEL_LETTERS))),
    },
    more: { barmode: "overlay", bargap: 0, shapes, height, legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 11 } } },
  }), CONFIG);
}

function changeText(job, change) {
  const [when, before, now, seconds, parts] = change;
  const lines = [`<b>${plain(job.label)}</b>`, `${changeWords(before, now, parts)} at ${instant(when)}: ${pauseTime(seconds)}`];
  const named = partsByTime(parts).map(([part, time]) => `${part} ${pauseTime(time)}`);
  if (named.length) lines.push(plain(named.join(", ")));
  return lines.join("<br>");
}

const CHANGE_KINDS = [
  { name: "in place", symbol: "circle", colour: COLOURS[0], of: (change) => Object.keys(change[4]).length > 0 },
  { name: "start or restart", symbol: "diamond-open", colour: COLOURS[1], of: (change) => !Object.keys(change[4]).length },
];

function drawChanges(element, run, unit, { job: selected, range }) {
  const traces = CHANGE_KINDS.map((kind) => {
    const rows = run.jobs.flatMap((job, row) => (selected < 0 || row === selected ? job.changes.filter(kind.of).map((change) => [job, row, change]) : []));
    return {
      type: "scatter", mode: "markers", name: kind.name, x: rows.map(([, , change]) => change[0] / unit.seconds),
      y: rows.map(([, , change]) => Math.max(change[3], 0.001)), customdata: rows.map(([, row]) => row), hoverinfo: "text",
      hovertext: rows.map(([job, , change]) => changeText(job, change)), marker: { symbol: kind.symbol, color: kind.colour, size: 8, line: { width: 1.5, color: kind.colour } },
    };
  }).filter((trace) => trace.x.length);
  if (!traces.length) return noData(element, "No job has reported one.");
  const seconds = traces.flatMap((trace) => trace.y);
  if (seconds.length > CROWD) for (const trace of traces) Object.assign(trace.marker, { size: 4, opacity: 0.6 });
  const [low, high] = [Math.min(...seconds), Math.max(...seconds)];
  const ticks = numberTicks([low / 2, high * 2]);
  return Plotly.react(element, traces, layout({
    x: timeAxis(run, unit, range),
    y: { type: "log", title: titled("seconds (log scale)"), range: [Math.log10(low / 2), Math.log10(high * 2)], tickvals: ticks.tickvals, ticktext: ticks.tickvals.map(pauseTime) },
  }), CONFIG);
}

function drawParts(element, run, { job: selected }) {
  const rows = run.jobs.flatMap((job, row) => (selected < 0 || row === selected ? job.changes.filter(CHANGE_KINDS[0].of).map((change) => [job, change]) : []));
  if (!rows.length) return noData(element, "No change was in place.");
  const shown = rows.sort((a, b) => a[1][0] - b[1][0]).slice(-NUM_PAUSES_SHOWN);
  const parts = [...new Set(shown.flatMap(([, change]) => Object.keys(change[4])))];
  const traces = parts.map((part, index) => ({
    type: "bar", name: plain(part), x: shown.map((_, number) => number), y: shown.map(([, change]) => 1000 * (change[4][part] || 0)),
    marker: { color: colourOf(index) }, hoverinfo: "text", hovertext: shown.map(([job, change]) => changeText(job, change)),
  }));
  const every = Math.ceil(shown.length / 12), labels = shown.map(([, change]) => `${change[1]}→${change[2]}`);
  const ticks = shown.map((_, number) => number).filter((number) => number % every === 0);
  return Plotly.react(element, traces, layout({
    x: { title: titled("replicas before → after, in order of time"), tickvals: ticks, ticktext: ticks.map((number) => labels[number]), showgrid: false, range: [-0.5, Math.max(shown.length, 8) - 0.5] },
    y: { title: titled("milliseconds"), rangemode: "tozero" }, more: { barmode: "stack", bargap: 0.25 },
  }), CONFIG);
}

// The points of a job as a line: it ends with the job, and it breaks where the job waits.
function jobLine(job, column, unit) {
  const x = [], y = [];
  const waits = job.spans.filter((span) => span[2] === 0).map((span) => span[0]);
  const last = job.spans.length ? job.spans[job.spans.length - 1][1] : 0;
  job.points.forEach((point, index) => {
    const next = index + 1 < job.points.length ? job.points[index + 1][0] : last;
    x.push(point[0] / unit.seconds); y.push(point[column]);
    const wait = waits.find((at) => at > point[0] && at <= next);
    if (wait === undefined && index + 1 < job.points.length) return;
    x.push((wait === undefined ? next : wait) / unit.seconds, null); y.push(point[column], null);
  });
  return { x, y };
}

function drawJobLines(element, run, unit, column, { job: selected, range }, y) {
  const byJob = run.jobs.length <= COLOURS.length;
  const groups = new Map();
  run.jobs.forEach((job) => {
    const key = byJob ? job.id : job.application || "jobs";
    if (!groups.has(key)) groups.set(key, { name: byJob ? job.label : key, x: [], y: [], text: [] });
    const group = groups.get(key), line = jobLine(job, column, unit);
    line.x.forEach((at, index) => { group.x.push(at); group.y.push(line.y[index]); group.text.push(plain(job.label)); });
  });
  const traces = [...groups.values()].map((group, index) => ({
    x: group.x, y: group.y, text: group.text, name: plain(shortened(group.name, LABEL_LETTERS)), mode: "lines",
    line: { color: colourOf(index), dash: byJob ? "solid" : dashOf(index), width: byJob ? 2 : 1, shape: "hv" },
    opacity: selected >= 0 ? 0.25 : byJob ? 1 : 0.6, showlegend: selected < 0, hovertemplate: "%{text}<br>%{y} at %{x:.2f} " + unit.name + "<extra></extra>",
  }));
  if (selected >= 0) {
    const job = run.jobs[selected];
    traces.push({
      ...jobLine(job, column, unit), name: plain(shortened(job.label, LABEL_LETTERS)), mode: "lines", connectgaps: false,
      line: { color: INK, width: 2.5, shape: "hv" }, showlegend: true, hovertemplate: `%{y} at %{x:.2f} ${unit.name}<extra>${plain(job.label)}</extra>`,
    });
  }
  const values = traces.flatMap((trace) => trace.y).filter((value) => value !== null);
  if (!values.length) return noData(element, "No job has reported it.");
  if (y.type === "log") y = { ...y, ...numberTicks(values) };
  return Plotly.react(element, traces, layout({
    x: timeAxis(run, unit, range), y,
  }), CONFIG);
}
