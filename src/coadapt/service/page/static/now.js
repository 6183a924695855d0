// Now: what is wrong, which jobs hold which GPUs, which jobs wait and why.

import {
  clock,
  colourOf,
  count,
  duration,
  fill,
  gpuRange,
  jobLink,
  make,
  number,
  pager,
  table,
  tiles,
} from "./dom.js";
import { get } from "./api.js";

// As the server has it, in routes.py.
const NODES_SHOWN = 48,
  QUEUE_SHOWN = 30;
const ENDED = ["succeeded", "failed", "cancelled"];

export function view() {
  const wrong = make("section", { "aria-labelledby": "wrong-title" });
  const figures = make("section", { "aria-label": "Figures" });
  const nodes = make("section", { "aria-labelledby": "nodes-title" });
  const queue = make("section", { "aria-labelledby": "queue-title" });
  const root = make("div", {}, figures, wrong, nodes, queue);
  const from = { nodes_from: 0, queue_from: 0 };

  async function load() {
    const found = await get("v1/page/now", from);
    fill(figures, showFigures(found));
    fill(wrong, make("h2", { id: "wrong-title" }, "What is wrong"), ...showWrong(found));
    fill(
      nodes,
      make("h2", { id: "nodes-title" }, "GPUs"),
      ...showNodes(found, from.nodes_from, turn("nodes_from")),
    );
    fill(
      queue,
      make("h2", { id: "queue-title" }, "Queue"),
      ...showQueue(found, from.queue_from, turn("queue_from")),
    );
    const what = found.recorded
      ? `recorded, as of ${clock(found.at)}`
      : clock(found.at, found.at);
    return `${found.policy} · round ${number(found.round)} · ${what}`;
  }

  function turn(name) {
    return (first) => {
      from[name] = first;
      load();
    };
  }

  return { title: "Now", root, load };
}

function showFigures(found) {
  const waiting = found.num_jobs.pending ?? 0;
  const ended = ENDED.reduce((sum, name) => sum + (found.num_jobs[name] ?? 0), 0);
  const all = Object.values(found.num_jobs).reduce((sum, value) => sum + value, 0);
  return tiles([
    ["GPUs held", `${number(found.num_gpus_used)} of ${number(found.num_gpus)}`],
    ["Jobs with GPUs", number(all - waiting - ended)],
    ["Jobs waiting", number(waiting)],
    ["Succeeded", number(found.num_jobs.succeeded ?? 0)],
    ["Failed", number(found.num_jobs.failed ?? 0)],
    ["Cancelled", number(found.num_jobs.cancelled ?? 0)],
  ]);
}

function showWrong(found) {
  if (!found.num_troubles) return [make("p", { class: "good" }, "Nothing is wrong.")];
  const rows = found.troubles.map(([kind, text, job, node]) =>
    make("li", {}, job ? jobLink(job) : make("b", {}, node || kind), make("span", {}, text)),
  );
  const more = found.num_troubles - rows.length;
  return [
    make("ul", { class: "wrong" }, ...rows),
    more > 0 ? make("p", { class: "note" }, `and ${number(more)} more`) : null,
  ];
}

function showNodes(found, first, turn) {
  const bought = showBought(found.buying);
  if (!found.num_nodes) return [bought, make("p", { class: "empty" }, "There is no node.")];
  const rows = found.nodes.map(([id, type, gpus, rack, holders, leaving]) => {
    const used = holders.reduce((sum, [, , held]) => sum + held, 0);
    const parts = holders.map(([job, name, held]) => {
      const part = jobLink(job, name);
      part.className = colourOf(job);
      part.style.flex = `${held} 0 0`;
      part.title = `${job}: ${count(held, "GPU")}`;
      part.setAttribute("aria-label", `${name}: ${count(held, "GPU")}`);
      return part;
    });
    if (gpus > used) {
      const free = make("span", { class: "free" }, `${number(gpus - used)} free`);
      free.style.flex = `${gpus - used} 0 0`;
      parts.push(free);
    }
    return make(
      "li",
      {},
      make(
        "div",
        { class: "head" },
        make("b", {}, id),
        make(
          "span",
          {},
          `${number(used)} of ${gpus} ${kind(type)}${rack ? `, rack ${rack}` : ""}` +
            (leaving ? `, ${leaving}` : ""),
        ),
      ),
      make("div", { class: "slots" }, ...parts),
    );
  });
  return [
    bought,
    make("ul", { class: "nodes" }, ...rows),
    slicePager(first, rows.length, found.num_nodes, NODES_SHOWN, turn),
  ];
}

// What is had of each offer, its price and cost, and the sizer's reason.
function showBought(buying) {
  if (!buying) return null;
  const costs = Object.fromEntries(buying.costs.map((row) => [row.offer, row]));
  const money = (amount) => `${amount.toFixed(2)} ${buying.currency}`.trim();
  const columns = [
    ["Offer", "name", (offer) => offer.id],
    ["Nodes", "", (offer) => `${number(offer.num_live)} of ${number(offer.most)}`],
    ["Idle", "", (offer) => number(offer.num_idle)],
    ["Ordered", "", (offer) => number(offer.num_ordered)],
    ["Leaving", "", (offer) => number(offer.num_leaving)],
    ["Price per hour", "", (offer) => money(offer.price_per_h)],
    ["Node-hours", "", (offer) => costs[offer.id].node_hours.toFixed(2)],
    ["Cost", "", (offer) => money(costs[offer.id].cost)],
  ];
  const failed = buying.error && `The number of nodes stays as it is: ${buying.error}. `;
  return make(
    "div",
    {},
    table("Nodes that are bought", columns, buying.offers),
    make("p", { class: "note" }, `${failed}${buying.reason}`),
  );
}

function kind(type) {
  if (type === "cpu") return "CPU slots";
  return type === "gpu" ? "GPUs" : `GPUs, ${type}`;
}

function showQueue(found, first, turn) {
  if (!found.num_waiting) return [make("p", { class: "empty" }, "No job waits.")];
  const columns = [
    ["Job", "name", ([id, name]) => jobLink(id, name)],
    ["Tenant", "text", ([, , tenant]) => tenant],
    ["Priority", "", ([, , , priority]) => number(priority)],
    ["GPUs", "", ([, , , , least, most]) => gpuRange(least, most)],
    ["Has waited", "", ([, , , , , , at]) => duration(Math.max(found.at - at, 0))],
    ["Why", "wide", (row) => row[7]],
  ];
  return [
    table("Jobs that wait", columns, found.queue),
    make(
      "p",
      { class: "note" },
      "By priority, then by submission. The policy decides which job starts first.",
    ),
    slicePager(first, found.queue.length, found.num_waiting, QUEUE_SHOWN, turn),
  ];
}

function slicePager(first, shown, all, size, turn) {
  if (all <= size) return null;
  const last = first + shown;
  return pager(
    `${number(first + 1)} to ${number(last)} of ${number(all)}`,
    first > 0 ? () => turn(Math.max(first - size, 0)) : null,
    last < all ? () => turn(last) : null,
  );
}
