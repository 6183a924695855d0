// Tenants: what each holds against what its weight entitles it to.

import { clock, fill, make, number, table } from "./dom.js";
import { get } from "./api.js";

export function view() {
  const list = make("section", { "aria-labelledby": "tenants-title" });
  const root = make("div", {}, list);

  async function load() {
    const found = await get("v1/page/tenants");
    fill(list, make("h2", { id: "tenants-title" }, "Tenants"), ...show(found.tenants));
    return clock(found.at, found.at);
  }

  return { title: "Tenants", root, load };
}

function show(rows) {
  if (!rows.length) return [make("p", { class: "empty" }, "No tenant has jobs or a quota.")];
  const link = (row) =>
    row.id === "*"
      ? "all tenants"
      : make("a", { href: `#/jobs?${new URLSearchParams({ tenant: row.id })}` }, row.id);
  const known = (value) => (value === null || value === undefined ? "–" : number(value, 3));
  const columns = [
    ["Tenant", "name", link],
    ["GPUs held", "", (row) => known(row.num_gpus)],
    ["Entitled to", "", (row) => known(row.entitled_gpus)],
    ["Held, not training", "", (row) => known(row.num_gpus_idle)],
    ["Quota", "", (row) => known(row.quota_gpus)],
    ["Weight", "", (row) => known(row.weight)],
    ["Priority", "", (row) => known(row.priority)],
    ["Live jobs", "", (row) => known(row.num_jobs)],
    ["With GPUs", "", (row) => known(row.num_jobs_with_gpus)],
    ["Ended, 7 days", "", (row) => known(row.num_ended)],
    ["GPU-hours", "", (row) => known(row.gpu_h)],
  ];
  return [
    table("Tenants", columns, rows),
    make(
      "p",
      { class: "note" },
      "Entitled to: the GPUs of the cluster by weight among tenants with live jobs, " +
        "at most the quota. " +
        "Held, not training: GPUs of jobs that start or stop. " +
        "GPU-hours: of live jobs, and of those that ended in the last 7 days.",
    ),
  ];
}
