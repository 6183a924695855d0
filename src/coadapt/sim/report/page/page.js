// The page: tables, lists, tabs and the selected job. All text of users enters through textContent.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DECISIONS_MAX = 400;
// range: the stretch of time that the user zoomed to, in the unit of the run; null is all of it.
const view = { run: 0, job: -1, tall: false, range: null, sort: { column: -1, down: false }, zooming: false };

// Charts over the run's time: zoomed together.
const TIMED = ["chart-gantt", "chart-batch", "chart-job-efficiency", "chart-changes"];

function at(id) { return document.getElementById(id); }

function node(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function swatch(index) {
  const element = node("span", undefined, { class: "swatch" });
  element.style.background = colourOf(index);
  return element;
}

// -- header and summary ---------------------------------------------------------------------------------

function showSubtitle() {
  const [first] = DATA.runs;
  const same = (key) => DATA.runs.every((run) => run[key] === first[key]);
  const parts = [];
  if (same("num_jobs")) parts.push(count(first.num_jobs, "job"));
  if (first.num_left_out) parts.push(`${count(first.num_left_out, "job")} that ended earlier left out`);
  if (same("gpus") && first.gpus) parts.push(count(first.gpus, "GPU"));
  if (DATA.runs.length > 1) parts.push(count(DATA.runs.length, "run"));
  parts.push(duration(Math.max(...DATA.runs.map((run) => run.end))) + (DATA.runs.length > 1 ? " at most" : ""));
  if (first.began_at !== null) parts.push(`first job at ${new Date(first.began_at * 1000).toISOString().replace("T", " ").slice(0, 19)} UTC`);
  at("subtitle").textContent = parts.join(" · ");
}

function summaryFigures() {
  const named = new Set(DATA.runs.flatMap((run) => Object.keys(run.metrics)));
  const known = Object.keys(FIGURES).filter((key) => named.has(key));
  const others = [...named].filter((key) => !(key in FIGURES) && key !== "num_jobs");
  return [...known, ...others].map(figure);
}

function showSummary() {
  const figures = summaryFigures();
  at("summary").hidden = !figures.length;
  if (DATA.runs.length === 1) return showTiles(figures);
  const table = node("table"), head = node("tr");
  head.append(node("td"), ...DATA.runs.map((run, index) => {
    const cell = node("th", undefined, { scope: "col" });
    cell.append(swatch(index), run.label);
    return cell;
  }));
  table.append(node("thead"));
  table.tHead.append(head);
  for (const group of new Set(figures.map((each) => each.group))) {
    const body = node("tbody"), title = node("tr");
    title.append(node("th", group, { scope: "rowgroup", class: "group", colspan: DATA.runs.length + 1 }));
    body.append(title, ...figures.filter((each) => each.group === group).map(summaryRow));
    table.append(body);
  }
  at("summary-table").replaceChildren(table);
  at("summary-note").textContent = "Shaded: the best of its row. Grey: distance from the best.";
}

function showTiles(figures) {
  const [run] = DATA.runs;
  const tiles = node("dl", undefined, { class: "tiles" });
  for (const each of figures) {
    const tile = node("div", undefined, { title: each.meaning }), value = run.metrics[each.key];
    tile.append(node("dt", each.title), node("dd", columnFormat(each.kind, [value])(value)));
    tiles.append(tile);
  }
  at("summary-table").replaceChildren(tiles);
}

function valueOf(run, key) {
  return key in run.metrics ? run.metrics[key] : null;
}

function summaryRow(each) {
  const row = node("tr"), values = DATA.runs.map((run) => valueOf(run, each.key));
  row.append(node("th", each.title, { scope: "row", title: each.meaning }), ...values.map((value) => summaryCell(each, value, values)));
  return row;
}

function summaryCell(each, value, values) {
  const cell = node("td", columnFormat(each.kind, values)(value));
  const known = values.filter((other) => other !== null);
  const best = each.better > 0 ? Math.max(...known) : Math.min(...known);
  if (!each.better || value === null || known.every((other) => other === best)) return cell;
  if (value === best) cell.className = "best";
  cell.append(node("small", value === best ? "best" : distance(each, value, best)));
  return cell;
}

function distance(each, value, best) {
  if (each.kind === "share") return `${value > best ? "+" : "−"}${(100 * Math.abs(value - best)).toFixed(1)} points`;
  if (!(best > 0)) return "";
  const ratio = value / best;
  return ratio < 10 ? `${ratio > 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(0)} %` : `× ${number(ratio)}`;
}

// Says of the curves that end below 100 % what became of the others.
function othersThanFinished() {
  const texts = DATA.runs.map((run) => {
    const others = Object.entries(run.states).filter(([state]) => state !== "succeeded").map(([state, jobs]) => `${number(jobs)} ${state}`);
    return others.length ? (DATA.runs.length > 1 ? `${run.label}: ` : "") + others.join(", ") : "";
  });
  return texts.filter(Boolean).join(" · ");
}

// How many ends came within their intervals, of the runs whose policy foretells.
function intervalsText(runs) {
  return runs.map(({ label, foretold: { number: count, within } }) =>
    `${DATA.runs.length > 1 ? `${label}: ` : ""}${(100 * within / count).toFixed(0)} % of ${number(count)} within their 90 % interval`).join(" · ");
}

function showComparison() {
  const others = othersThanFinished();
  at("jct-note").textContent = others ? `of those that finished; ${others}` : "";
  const unit = timeUnit(Math.max(...DATA.runs.map((run) => run.end)));
  drawCompletionTimes(at("chart-jct"), DATA.runs);
  drawOverTime(at("chart-used"), DATA.runs, unit, "used", { range: [0, 1.04], tickformat: ".0%", title: titled("share of all GPUs") });
  drawOverTime(at("chart-waiting"), DATA.runs, unit, "waiting", { rangemode: "tozero", title: titled("jobs without a GPU") });
  drawOverTime(at("chart-efficiency"), DATA.runs, unit, "efficiency", { range: [0, 1.04], tickformat: ".0%", title: titled("progress per sample") });
  const foretelling = DATA.runs.map((run, index) => ({ ...run, colour: colourOf(index) })).filter((run) => run.foretold.number);
  at("foretold").hidden = !foretelling.length;
  if (!foretelling.length) return;
  at("foretold-note").textContent = intervalsText(foretelling);
  drawForetold(at("chart-foretold"), foretelling);
}

// -- one run --------------------------------------------------------------------------------------------

function showTabs() {
  at("tabs").hidden = DATA.runs.length < 2;
  at("tabs").replaceChildren(...DATA.runs.map((run, index) => {
    const tab = node("button", undefined, { type: "button", role: "tab", "aria-controls": "run-body" });
    tab.append(swatch(index), run.label);
    tab.addEventListener("click", () => showRun(index));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (index + step + DATA.runs.length) % DATA.runs.length;
      showRun(next);
      at("tabs").children[next].focus();
    });
    return tab;
  }));
}

function showRun(index) {
  const before = DATA.runs[view.run].jobs[view.job];
  view.run = index;
  view.range = null;
  const run = DATA.runs[index];
  // The same job stays selected from policy to policy, to be compared.
  view.job = before ? run.jobs.findIndex((job) => job.id === before.id) : -1;
  [...at("tabs").children].forEach((tab, number) => {
    tab.setAttribute("aria-selected", String(number === index));
    tab.tabIndex = number === index ? 0 : -1;
  });
  const states = Object.entries(run.states).map(([state, number_]) => `${number(number_)} ${state}`);
  if (run.jobs.length < run.num_jobs) states.push(`the newest ${number(run.jobs.length)} are shown`);
  at("states").textContent = states.join(" · ");
  at("planless-note").hidden = !run.planless.length;
  const inPlace = run.jobs.some((job) => job.in_place);
  at("parts").hidden = !inPlace;
  at("changes").hidden = !inPlace && (run.began_at === null || !run.jobs.some((job) => job.changes.length > 1));
  at("labels-toggle").hidden = run.jobs.length * ROW_PX_LABELS <= GANTT_PX;
  const options = run.jobs.map((job, row) => node("option", job.label, { value: row }));
  at("job-select").replaceChildren(node("option", "all jobs", { value: -1 }), ...options);
  showSelection();
}

function select(row) {
  view.job = row === view.job ? -1 : row;
  showSelection();
}

function showSelection() {
  const run = DATA.runs[view.run];
  at("job-select").value = String(view.job);
  const unit = timeUnit(run.end);
  if (!run.jobs.length) {
    for (const id of TIMED) noData(at(id), "No job was submitted.");
    noData(at("chart-parts"), "No job was submitted.");
  } else {
    drawGantt(at("chart-gantt"), run, unit, view);
    drawJobLines(at("chart-batch"), run, unit, 1, view, { type: "log", title: titled("samples per step (log scale)") });
    drawJobLines(at("chart-job-efficiency"), run, unit, 2, view, { range: [0, 1.04], tickformat: ".0%", title: titled("progress per sample") });
    drawChanges(at("chart-changes"), run, unit, view);
    drawParts(at("chart-parts"), run, view);
    listenToCharts();
  }
  showJobs(run);
  showDecisions(run);
}

function listenToCharts() {
  const timed = TIMED.map(at).filter((chart) => chart.data);
  for (const chart of timed) {
    chart.removeAllListeners("plotly_relayout");
    chart.on("plotly_relayout", (change) => zoomTogether(timed, change));
  }
  for (const chart of ["chart-gantt", "chart-changes"].map(at).filter((each) => each.data)) {
    chart.removeAllListeners("plotly_click");
    chart.on("plotly_click", (event) => select(event.points[0].customdata));
  }
}

async function zoomTogether(charts, change) {
  const zoomed = "xaxis.range[0]" in change || "xaxis.autorange" in change;
  if (view.zooming || !zoomed) return;
  view.zooming = true;
  view.range = "xaxis.autorange" in change ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  const run = DATA.runs[view.run], range = view.range || wholeRange(run, timeUnit(run.end));
  await Promise.all(charts.map((chart) => Plotly.relayout(chart, { "xaxis.range": [...range], ...clockRelayout(run, range) })));
  view.zooming = false;
}

// -- jobs and decisions ---------------------------------------------------------------------------------

function jobColumns(run) {
  const named = [...new Set(run.jobs.flatMap((job) => Object.keys(job.metrics)))].slice(0, 4);
  const waited = (job) => (job.started === null ? null : job.started - job.submitted);
  const inPlace = run.jobs.some((job) => job.in_place);
  // A column in which all jobs are alike tells nothing.
  const varied = (key) => new Set(run.jobs.map((job) => job[key])).size > 1;
  return [
    { title: "Job", text: true, value: (job) => job.label },
    varied("application") && { title: "Application", text: true, value: (job) => job.application },
    varied("contract") && { title: "Contract", text: true, value: (job) => job.contract },
    (varied("state") || run.jobs.length < 20) && { title: "State", text: true, value: (job) => job.state },
    ...named.map((key) => ({ title: key, value: (job) => (key in job.metrics ? job.metrics[key] : null), show: precise })),
    { title: "Submitted", value: (job) => job.submitted, show: (seconds) => moment(run, seconds) },
    { title: "Waited", value: waited, show: duration },
    { title: "JCT", value: (job) => (job.ended === null ? null : job.ended - job.submitted), show: duration },
    { title: "GPU h", value: (job) => job.gpu_s / HOUR_S, show: number },
    { title: "Rescales", value: (job) => job.rescales, show: number, meaning: "changes of allocation after the first start" },
    inPlace && { title: "In place", value: (job) => job.in_place, show: number, meaning: "changes without a restart; none loses a step" },
    inPlace && { title: "Pause, median", value: (job) => job.pause_p50_s, show: pauseTime, meaning: "how long a change in place kept training waiting" },
    inPlace && { title: "Longest", value: (job) => job.pause_max_s, show: pauseTime, meaning: "the longest pause of a change in place" },
    { title: "Starts, pauses", value: (job) => job.rescale_s, show: duration, meaning: "training time that starts and changes cost, as the job measured it" },
  ].filter(Boolean);
}

function showJobs(run) {
  const columns = jobColumns(run), table = node("table"), head = node("tr");
  columns.forEach((column, index) => {
    const sorted = view.sort.column === index;
    const cell = node("th", undefined, { scope: "col", class: column.text ? "text" : "number" });
    if (sorted) cell.setAttribute("aria-sort", view.sort.down ? "descending" : "ascending");
    const button = node("button", column.title + (sorted ? (view.sort.down ? " ▾" : " ▴") : ""), { type: "button", title: column.meaning || "" });
    button.addEventListener("click", () => {
      view.sort = { column: index, down: sorted && !view.sort.down };
      showJobs(run);
    });
    cell.append(button);
    head.append(cell);
  });
  table.append(node("thead"), node("tbody"));
  table.tHead.append(head);
  const column = columns[view.sort.column];
  const order = run.jobs.map((_, row) => row);
  if (column) order.sort((a, b) => compare(column.value(run.jobs[a]), column.value(run.jobs[b])) || a - b);
  if (view.sort.down) order.reverse();
  table.tBodies[0].append(...order.map((row) => jobRow(run, row, columns)));
  at("jobs-table").replaceChildren(run.jobs.length ? table : node("p", "No job was submitted.", { class: "empty" }));
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

function jobRow(run, row, columns) {
  const job = run.jobs[row];
  const element = node("tr", undefined, { "aria-selected": String(row === view.job) });
  for (const column of columns) {
    const value = column.value(job);
    const cell = node("td", value === null ? "–" : column.show ? column.show(value) : value, column.text ? { class: "text" } : {});
    if (column.title === "Job") cell.title = `${job.name} (${job.id})`;
    element.append(cell);
  }
  element.addEventListener("click", () => select(row));
  return element;
}

function showDecisions(run) {
  const chosen = view.job < 0 ? run.jobs : [run.jobs[view.job]];
  const lines = chosen.flatMap((job) => job.reasons.map(([when, text]) => [when, job.label, run.texts[text]]));
  if (view.job < 0) for (const [when, round, error] of run.refused) lines.push([when, `round ${round}`, `no new plan: ${error}`]);
  for (const job of chosen) for (const [when, before, now, seconds, parts] of job.changes) {
    if (Object.keys(parts).length) lines.push([when, job.label, changeSentence(before, now, seconds, parts)]);
  }
  lines.sort((a, b) => a[0] - b[0]);
  const shown = lines.slice(-DECISIONS_MAX);
  at("decisions-title").textContent = view.job < 0 ? "Decisions" : `Decisions about ${run.jobs[view.job].label}`;
  const items = shown.map(([when, name, text]) => {
    const item = node("li"), body = node("span");
    if (view.job < 0) body.append(node("b", name), " ");
    body.append(text);
    item.append(node("time", moment(run, when)), body);
    return item;
  });
  if (shown.length < lines.length) items.unshift(node("li", `… and ${number(lines.length - shown.length)} earlier ones: select a job to see its own`, { class: "wide" }));
  at("decisions").replaceChildren(...(items.length ? items : [node("p", "No decision was made.", { class: "empty" })]));
}

function changeSentence(before, now, seconds, parts) {
  const named = partsByTime(parts).map(([part, time]) => `${part} ${pauseTime(time)}`).join(", ");
  return `${changeWords(before, now, parts)}: training stood still for ${pauseTime(seconds)}, no step lost${named ? ` (${named})` : ""}`;
}

// -- start ----------------------------------------------------------------------------------------------

function showNothing(text) {
  document.querySelector("main").replaceChildren(node("p", text, { class: "empty" }));
}

function start() {
  if (!DATA.runs.length) return showNothing("This report holds no run.");
  showSubtitle();
  if (DATA.runs.every((run) => !run.num_jobs)) return showNothing("No job was submitted.");
  showSummary();
  showComparison();
  showTabs();
  at("job-select").addEventListener("change", (event) => { view.job = Number(event.target.value); showSelection(); });
  at("labels-toggle").addEventListener("click", (event) => {
    view.tall = !view.tall;
    event.target.setAttribute("aria-pressed", String(view.tall));
    showSelection();
  });
  showRun(0);
}

start();
