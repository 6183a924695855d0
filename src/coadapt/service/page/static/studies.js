// Searches over hyper-parameters: all studies, or one with its trials and charts.

import { clock, count, facts, fill, jobLink, make, number, pager, state, table } from "./dom.js";
import { get } from "./api.js";
import { draw, extent, picture, style, text } from "./svg.js";

const STATES = { complete: "succeeded", pruned: "cancelled", fail: "failed", running: "running" };

export function view(name) {
  style();
  return name ? one(name) : all();
}

function all() {
  const root = make("div");
  async function load() {
    const { studies } = await get("v1/studies");
    fill(
      root,
      make("h2", {}, "Studies"),
      studies.length
        ? table(
            "Studies",
            [
              ["study", "text", (row) => link(row.study)],
              ["state", "text", (row) => studyState(row.state)],
              ["trials", "", (row) => `${ended(row)} of ${number(row.n_trials)}`],
              ["best", "", (row) => number(row.best?.value)],
              ["metric", "text", (row) => row.metric],
              ["why", "text", (row) => row.why],
            ],
            studies.reverse(),
          )
        : make("p", { class: "empty" }, "No search was submitted: coadapt sweep search.yaml"),
    );
  }
  return { title: "Studies", root, load };
}

function link(name) {
  return make("a", { href: `#/studies/${encodeURIComponent(name)}` }, name);
}

function ended(study) {
  const { running = 0, ...others } = study.num_trials;
  return number(Object.values(others).reduce((sum, each) => sum + each, 0));
}

function studyState(name) {
  return make("span", { class: `state ${name === "done" ? "succeeded" : name}` }, name);
}

function one(name) {
  const head = make("section", { "aria-labelledby": "study-title" });
  const figures = make("section", { "aria-label": "Charts" });
  const list = make("section", { "aria-labelledby": "trials-title" });
  const root = make("div", {}, head, figures, list);
  let first = 0;

  async function load() {
    const path = `v1/page/studies/${encodeURIComponent(name)}`;
    const found = await get(path, { trials_from: first });
    fill(head, make("h2", { id: "study-title" }, found.study), summary(found));
    fill(figures, ...charts(found));
    fill(list, make("h2", { id: "trials-title" }, "Trials"), ...trials(found, turn));
    return clock(found.at, found.at);
  }

  function turn(to) {
    first = to;
    load();
  }

  return { title: name, root, load };
}

function summary(found) {
  const counts = Object.entries(found.num_trials).map(([kind, many]) => `${number(many)} ${kind}`);
  const { best, deadline_at: due, budget, cost } = found;
  const spent = budget === null ? cost && cost.toFixed(2) : `${cost.toFixed(2)} of ${budget}`;
  return facts([
    ["state", make("span", {}, studyState(found.state), found.why ? ` ${found.why}` : "")],
    ["trials", `${counts.join(", ") || "none yet"}, of ${number(found.n_trials)}`],
    [
      `best ${found.metric}`,
      best &&
        make("span", {}, `${number(best.value)} in `, jobLink(best.job, `trial ${best.number}`)),
    ],
    ["deadline", due && clock(due, found.at)],
    ["cost", spent || null],
  ]);
}

function trials(found, turn) {
  if (!found.num_all) return [make("p", { class: "empty" }, "No trial has started yet.")];
  const { first, num_all: all } = found;
  const last = first + found.trials.length;
  return [
    table(
      "Trials, newest first",
      [
        ["trial", "", (row) => (row.job ? jobLink(row.job, row.number) : row.number)],
        ["state", "text", (row) => make("span", { class: `state ${STATES[row.state]}` }, row.state)],
        [found.metric, "", (row) => number(row.last)],
        ["step", "", (row) => number(row.steps)],
        ...Object.keys(found.space).map((each) => [each, "", (row) => shown(row.params[each])]),
        ["why", "text", (row) => row.why],
      ],
      found.trials,
    ),
    pager(
      `${number(first + 1)} to ${number(last)} of ${number(all)}`,
      first > 0 && (() => turn(Math.max(first - found.trials.length, 0))),
      last < all && (() => turn(last)),
    ),
  ];
}

function shown(value) {
  return typeof value === "number" ? number(value) : String(value ?? "–");
}

function charts(found) {
  if (!found.history.length) return [];
  const parts = [
    make("h3", {}, `${found.metric} of each trial`),
    make("div", { class: "scroll", tabindex: "0" }, history(found)),
    make(
      "p",
      { class: "note" },
      "Filled: complete. Hollow: the newest value of a trial that runs or was pruned. " +
        "The line is the best completed value so far.",
    ),
    make("h3", {}, "Parameters"),
    make("div", { class: "scroll", tabindex: "0" }, parallel(found)),
    make(
      "p",
      { class: "note" },
      `A line per trial, ${count(found.lines.length, "trial")}; the best completed one is strong, ` +
        "the others that are not completed are dashed.",
    ),
  ];
  const weights = Object.entries(found.importance);
  if (weights.length) {
    parts.push(
      make("h3", {}, "Importance of parameters"),
      ...weights.map(([name, part]) =>
        make(
          "div",
          { class: "importance" },
          make("span", {}, name),
          make("meter", { min: 0, max: 1, value: part, "aria-label": name }),
          make("span", {}, `${Math.round(100 * part)} %`),
        ),
      ),
      make("p", { class: "note" }, "By PED-ANOVA over the completed trials, computed by Optuna."),
    );
  }
  return parts;
}

function history(found) {
  const [width, height, left, bottom] = [900, 240, 70, 24];
  const rows = found.history;
  const [low, high] = extent(rows.map(([, , value]) => value));
  const [from, to] = [rows[0][0], Math.max(rows.at(-1)[0], rows[0][0] + 1)];
  const x = (at) => left + ((at - from) / (to - from)) * (width - left - 10);
  const y = (value) => 8 + (1 - (value - low) / (high - low)) * (height - bottom - 16);
  const known = rows.filter((row) => row[3] !== null);
  const steps = known.map(([at, , , best], index) => {
    const corner = index ? `H${x(at)}` : `M${x(at)} ${y(best)}`;
    return `${corner}V${y(best)}`;
  });
  const ticks = [low + 0.05 * (high - low), (low + high) / 2, high - 0.05 * (high - low)];
  return picture(
    width,
    height,
    `${found.metric} by trial: ${count(rows.length, "value")}, the best ${number(found.best?.value)}`,
    ...ticks.flatMap((tick) => [
      draw("line", { class: "grid", x1: left, x2: width - 10, y1: y(tick), y2: y(tick) }),
      text(left - 6, y(tick) + 4, number(tick, 3), "end"),
    ]),
    text(x(from), height - 4, `trial ${from}`),
    text(x(to), height - 4, `trial ${to}`, "end"),
    draw("path", { class: "best", d: `${steps.join("")}${known.length ? `H${x(to)}` : ""}` }),
    ...rows.map(([at, kind, value]) =>
      draw(
        "circle",
        { cx: x(at), cy: y(value), r: 3.5, class: kind === "complete" ? "complete" : "hollow" },
        draw("title", {}, `trial ${at}, ${kind}: ${number(value)}`),
      ),
    ),
  );
}

// An axis: where a value is on it (0 at the bottom, 1 at the top), and its marks.
function axisOf(name, given) {
  if (given.type === "categorical") {
    const last = Math.max(given.choices.length - 1, 1);
    return {
      name,
      place: (value) => given.choices.indexOf(value) / last,
      marks: given.choices.map((each, index) => [index / last, String(each)]),
    };
  }
  const scale = given.log ? Math.log : (value) => value;
  const width = scale(given.high) - scale(given.low) || 1;
  return {
    name,
    place: (value) => (scale(value) - scale(given.low)) / width,
    marks: [
      [0, number(given.low)],
      [1, number(given.high)],
    ],
  };
}

function parallel(found) {
  const values = found.lines.map((line) => line.value);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const axes = [
    ...Object.entries(found.space).map(([name, given]) => axisOf(name, given)),
    axisOf(found.metric, { type: "float", low, high }),
  ];
  const [height, top, bottom] = [280, 30, 16];
  const width = Math.max(900, 140 * axes.length);
  const x = (index) => 60 + (index * (width - 160)) / (axes.length - 1);
  const y = (part) => top + (1 - part) * (height - top - bottom);
  const path = (line) =>
    axes
      .map((axis, index) => {
        const value = index < axes.length - 1 ? line.params[axis.name] : line.value;
        return `${index ? "L" : "M"}${x(index)} ${y(axis.place(value))}`;
      })
      .join("");
  const best = found.best?.number;
  const kind = (line) => (line.number === best ? "chosen" : line.state);
  return picture(
    width,
    height,
    `Parameters of ${count(found.lines.length, "trial")} as parallel coordinates`,
    // The best one is drawn last, above all others.
    ...[...found.lines]
      .sort((one, other) => (one.number === best) - (other.number === best))
      .map((line) =>
        draw(
          "path",
          { class: `line ${kind(line)}`, d: path(line) },
          draw("title", {}, `trial ${line.number}: ${number(line.value)}`),
        ),
      ),
    ...axes.flatMap((axis, index) => [
      draw("line", { class: "axis", x1: x(index), x2: x(index), y1: y(1), y2: y(0) }),
      text(x(index), 14, axis.name, "middle"),
      ...axis.marks.map(([part, words]) => text(x(index) + 5, y(part) + (part ? 10 : -3), words)),
    ]),
  );
}
