// The page of a comparison. All text of users enters through textContent, or `plain` in charts.

const DATA = JSON.parse(document.getElementById("data").textContent);
const OTHERS = DATA.policies.filter((policy) => policy !== DATA.baseline);
const RATIO_COLUMNS = ["jct_mean_s", "jct_p50_s", "jct_p99_s", "makespan_s", "rho_max"];

function at(id) { return document.getElementById(id); }

function node(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function indexOf(policy) { return DATA.policies.indexOf(policy); }

function policyCell(policy) {
  const cell = node("th", undefined, { scope: "row" }), swatch = node("span", undefined, { class: "swatch" });
  swatch.style.background = colourOf(indexOf(policy));
  cell.append(swatch, policy);
  return cell;
}

// heads: texts. rows: lists of cells, each an element or a text.
function table(heads, rows, empty) {
  if (!rows.length) return node("p", empty, { class: "empty" });
  const found = node("table"), head = node("tr");
  head.append(...heads.map((text) => node("th", text, { scope: "col" })));
  found.append(node("thead"), node("tbody"));
  found.tHead.append(head);
  for (const cells of rows) {
    const row = node("tr");
    row.append(...cells.map((cell) => (cell instanceof Node ? cell : node("td", String(cell)))));
    found.tBodies[0].append(row);
  }
  return found;
}

function withNote(text, note) {
  const cell = node("td", text);
  if (note) cell.append(" ", node("small", note, { class: "hint" }));
  return cell;
}

// -- against the baseline -----------------------------------------------------------------------------------

function ratioCell(policy, key) {
  const estimate = DATA.ratios[policy][key];
  if (policy === DATA.baseline || !estimate) return node("td", policy === DATA.baseline ? "1" : "–");
  const [mean, low, high] = estimate;
  return withNote(mean.toFixed(3), low === null ? "" : `${low.toFixed(3)} to ${high.toFixed(3)}`);
}

// What an interval is over: `3 traces`; one run has no interval.
function independent([, , , number, of]) {
  const what = of || "runs";
  return `${number} ${number === 1 ? what.replace(/s$/, "") : what}`;
}

function reactionText(seconds) {
  return seconds === null ? "in rounds alone" : `${seconds} s after each arrival and exit`;
}

function showReactions() {
  const asked = Object.entries(DATA.reactions);
  at("reactions-note").textContent = asked.length
    ? `Not asked alike: ${asked.map(([policy, seconds]) => `${policy} ${reactionText(seconds)}`).join(", ")}. This is a part of the difference; --reaction asks all alike.` : "";
}

function showRatios() {
  showReactions();
  const heads = ["policy", ...RATIO_COLUMNS.map((key) => figure(key).title), "independent runs"];
  const rows = DATA.policies.map((policy) => {
    const runs = DATA.ratios[policy].jct_mean_s;
    return [policyCell(policy), ...RATIO_COLUMNS.map((key) => ratioCell(policy, key)), runs ? independent(runs) : 0];
  });
  at("ratios-table").replaceChildren(table(heads, rows, "No run has ended."));
  const known = DATA.policies.filter((policy) => DATA.ratios[policy].jct_mean_s && DATA.ratios[policy].rho_max);
  if (known.length < 2) {
    noData(at("chart-trade"), "There is one policy only.");
    noData(at("chart-ratios"), "There is one policy only.");
    return;
  }
  // A row for each policy beside, and room for their names here.
  for (const id of ["chart-trade", "chart-ratios"]) at(id).style.height = `${Math.max(290, 90 + 17 * known.length)}px`;
  drawTrade(at("chart-trade"), known);
  drawRatios(at("chart-ratios"), known.filter((policy) => policy !== DATA.baseline));
}

function drawTrade(element, policies) {
  const points = policies.map((policy) => [DATA.ratios[policy].jct_mean_s[0], DATA.ratios[policy].rho_max[0]]);
  const wide = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)], pad = Math.max((Math.log10(high) - Math.log10(low)) * 0.15, 0.02);
    return { type: "log", range: [Math.log10(low) - pad, Math.log10(high) + pad], ...numberTicks(values) };
  };
  const x = wide(points.map(([each]) => each)), y = wide(points.map(([, each]) => each));
  const across = (value, { range: [low, high] }, pixels) => ((Math.log10(value) - low) / (high - low)) * pixels;
  const spots = points.map((point) => [across(point[0], x, element.clientWidth - 68), -across(point[1], y, element.clientHeight - 72)]);
  const places = namePlaces(spots, policies.map((policy) => shortened(policy, 24)), element.clientWidth - 68);
  const traces = policies.map((policy, index) => ({
    x: [points[index][0]], y: [points[index][1]], name: plain(policy), mode: places[index] ? "markers+text" : "markers",
    text: [plain(shortened(policy, 24))], textposition: places[index] || "top center", marker: { size: 11, color: colourOf(indexOf(policy)), symbol: policy === DATA.baseline ? "diamond" : "circle" },
    hovertemplate: `JCT × %{x:.3f}, worst ρ × %{y:.3f}<extra>${plain(policy)}</extra>`,
  }));
  Plotly.react(element, traces, layout({
    legend: false,
    x: { ...x, title: titled("mean JCT, × baseline (log scale)") }, y: { ...y, title: titled("worst ρ, × baseline") },
  }), CONFIG);
}

// spots: pixels, downwards, in a chart of `width`. Returns where each name is written beside its point so that none lies on another
// name or point, the one nearest to the lower left first; undefined where there is no room: it shows on hover.
function namePlaces(spots, names, width) {
  const taken = spots.map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]), places = [];
  const free = ([left, top, right, bottom]) => left >= 0 && right <= width && !taken.some((box) => left < box[2] && right > box[0] && top < box[3] && bottom > box[1]);
  const order = spots.map((_, index) => index).sort((a, b) => spots[a][0] - spots[a][1] - spots[b][0] + spots[b][1]);
  for (const index of order) {
    const [x, y] = spots[index], wide = 6.6 * names[index].length;
    const boxes = {
      "top center": [x - wide / 2, y - 20, x + wide / 2, y - 7], "bottom center": [x - wide / 2, y + 7, x + wide / 2, y + 20],
      "middle right": [x + 8, y - 7, x + 8 + wide, y + 7], "middle left": [x - 8 - wide, y - 7, x - 8, y + 7],
    };
    places[index] = Object.keys(boxes).find((place) => free(boxes[place]));
    if (places[index]) taken.push(boxes[places[index]]);
  }
  return places;
}

function drawRatios(element, policies) {
  const sorted = [...policies].sort((a, b) => DATA.ratios[b].jct_mean_s[0] - DATA.ratios[a].jct_mean_s[0]);
  const found = sorted.map((policy) => DATA.ratios[policy].jct_mean_s);
  Plotly.react(element, [{
    type: "scatter", mode: "markers", x: found.map(([mean]) => mean), y: sorted.map((policy) => plain(shortened(policy, 28))),
    marker: { size: 9, color: sorted.map((policy) => colourOf(indexOf(policy))) },
    error_x: { type: "data", symmetric: false, array: found.map(([mean, , high]) => (high === null ? 0 : high - mean)),
      arrayminus: found.map(([mean, low]) => (low === null ? 0 : mean - low)), color: "#59636e", thickness: 1.2 },
    hovertemplate: "× %{x:.3f}<extra>%{y}</extra>",
  }], layout({
    legend: false,
    x: { title: titled("mean JCT, × baseline"), rangemode: "normal" }, y: { type: "category", dtick: 1 },
    more: { shapes: [{ type: "line", x0: 1, x1: 1, y0: 0, y1: 1, yref: "paper", line: { color: "#9aa4af", dash: "dot", width: 1 } }] },
  }), CONFIG);
}

// -- one trace on one cluster -------------------------------------------------------------------------------

function showPart(index) {
  const part = DATA.parts[index];
  const policies = DATA.policies.filter((policy) => part.means[policy]);
  const keys = Object.keys(part.means[policies[0]] || {});
  const rows = policies.map((policy) => [policyCell(policy), ...keys.map((key) => meanCell(part, policies, policy, key))]);
  at("means-table").replaceChildren(table(["policy", ...keys.map((key) => figure(key).title)], rows, "No run of it has ended."));
  at("part-note").textContent = policies.map((policy) => `${policy}: ${count(part.means[policy][keys[0]][3], "run")}`).join(", ");
  if (!policies.length) return noData(at("chart-jct"), "No run of it has ended.");
  at("chart-jct").style.height = `${290 + 6 * policies.length}px`; // their legend takes rows
  drawQuantiles(at("chart-jct"), part, policies);
}

function meanCell(part, policies, policy, key) {
  const each = figure(key), values = policies.map((other) => part.means[other][key][0]);
  const [mean, low, high] = part.means[policy][key], format = columnFormat(each.kind, values);
  const cell = withNote(format(mean), low === null ? "" : `± ${format((high - low) / 2)}`);
  const best = each.better > 0 ? Math.max(...values) : Math.min(...values);
  if (each.better && mean === best && values.some((value) => value !== best)) cell.className = "best";
  return cell;
}

function drawQuantiles(element, part, policies) {
  const all = policies.flatMap((policy) => part.jct[policy]), shortest = Math.max(1, Math.min(...all)), longest = Math.max(...all);
  const traces = policies.map((policy) => ({
    x: part.jct[policy].map((seconds) => Math.max(seconds, 1)), y: part.jct[policy].map((_, rank, list) => (rank + 1) / list.length),
    name: plain(policy), mode: "lines", line: { color: colourOf(indexOf(policy)), dash: dashOf(indexOf(policy)), width: 2 },
    text: part.jct[policy].map(duration), hovertemplate: `%{y:.0%} of jobs within %{text}<extra>${plain(policy)}</extra>`,
  }));
  Plotly.react(element, traces, layout({
    x: { type: "log", title: titled("from submission to end (log scale)"), range: [Math.log10(shortest / JCT_MARGIN), Math.log10(longest * JCT_MARGIN)], ...timeTicks(shortest, longest) },
    y: { range: [0, 1.02], tickformat: ".0%", title: titled("share of jobs") },
  }), CONFIG);
}

// -- jobs won and lost --------------------------------------------------------------------------------------

// Whether there is more than one run of a policy that a job may be of.
const SEVERAL = DATA.parts.length > 1 || DATA.num_runs > DATA.policies.length;

function showPicks(policy) {
  const found = DATA.picks[policy] || { won: [], lost: [], applications: [] };
  const none = "No job ended under both.";
  at("applications-table").replaceChildren(table(
    ["application", "jobs", "median JCT, × baseline", "jobs that gained"],
    found.applications.map(([name, jobs, middle, gained]) => [node("th", name, { scope: "row" }), jobs, middle.toFixed(3), `${gained} (${((100 * gained) / jobs).toFixed(0)} %)`]), none,
  ));
  const heads = ["job", "application", "×", "JCT", "baseline", "GPUs", ...(SEVERAL ? ["trace, cluster, seed"] : [])];
  for (const [id, picks] of [["won-table", found.won], ["lost-table", found.lost]]) {
    at(id).replaceChildren(table(heads, picks.map(pickRow), none));
  }
  at("picks-note").textContent = policy ? `${policy} against ${DATA.baseline}` : "";
}

function pickRow([job, application, gpus, trace, cluster, seed, baseline, jct]) {
  return [node("th", job, { scope: "row" }), application, (jct / baseline).toFixed(2), duration(jct), duration(baseline), gpus, ...(SEVERAL ? [`${trace}, ${cluster}, ${seed === null ? "all seeds" : seed}`] : [])];
}

// -- all of it ----------------------------------------------------------------------------------------------

function fill(select, texts, onChange) {
  select.replaceChildren(...texts.map((text, index) => node("option", text, { value: index })));
  select.addEventListener("change", () => onChange(Number(select.value)));
  select.disabled = texts.length < 2;
}

function show() {
  at("subtitle").textContent = [
    count(DATA.policies.length, "policy").replace("policys", "policies"), count(DATA.parts.length, "pair") + " of trace and cluster",
    count(DATA.num_runs, "run") + (DATA.errors.length ? `, ${DATA.errors.length} of them did not end` : ""), `baseline ${DATA.baseline}`,
  ].join(" · ");
  showRatios();
  fill(at("part-select"), DATA.parts.map((part) => `${part.trace} on ${part.cluster}`), showPart);
  showPart(0);
  fill(at("policy-select"), OTHERS, (index) => showPicks(OTHERS[index]));
  showPicks(OTHERS[0]);
  at("errors").hidden = !DATA.errors.length;
  at("errors-table").replaceChildren(table(["trace", "cluster", "policy", "seed", "why"], DATA.errors, ""));
}

show();
