// The policy: how long its decisions take, and which ones failed.

import { clock, duration, fill, make, number, table, tiles } from "./dom.js";
import { get } from "./api.js";

const SHOWN = 60;

export function view() {
  const figures = make("section", { "aria-labelledby": "policy-title" });
  const list = make("section", { "aria-labelledby": "decisions-title" });
  const root = make("div", {}, figures, list);

  async function load() {
    const found = await get("v1/page/policy");
    fill(
      figures,
      make("h2", { id: "policy-title" }, `Policy ${found.policy}`),
      ...summary(found.decisions),
    );
    fill(list, make("h2", { id: "decisions-title" }, "Latest decisions"), ...show(found));
    return clock(found.at, found.at);
  }

  return { title: "Policy", root, load };
}

function quantile(sorted, share) {
  return sorted.length
    ? sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)]
    : null;
}

function summary(decisions) {
  if (!decisions.length) return [];
  const took = decisions.map(([, , seconds]) => seconds).sort((a, b) => a - b);
  const failed = decisions.filter(([, , , , error]) => error).length;
  return [
    tiles([
      ["Decisions", number(decisions.length)],
      ["Without a plan", number(failed)],
      ["Decision time, median", duration(quantile(took, 0.5))],
      ["Decision time, 99 of 100 within", duration(quantile(took, 0.99))],
      ["Longest", duration(took.at(-1))],
    ]),
  ];
}

function show(found) {
  if (!found.decisions.length)
    return [make("p", { class: "empty" }, "No decision was made since the scheduler started.")];
  const figures = (row) =>
    Object.entries(row[5])
      .map(([name, value]) => `${name} ${number(value, 3)}`)
      .join(", ");
  const columns = [
    ["Round", "text", ([round]) => number(round)],
    ["At", "", ([, at]) => clock(at, found.at)],
    ["Took", "", ([, , seconds]) => duration(seconds)],
    ["Jobs", "", ([, , , jobs]) => number(jobs)],
    ["What came of it", "wide", (row) => row[4] || figures(row) || "a plan"],
  ];
  return [table("Latest decisions", columns, found.decisions.slice(-SHOWN).reverse())];
}
