// The list of jobs: filtered and cut into pages by the scheduler. The address has the
// filter, so it can be shared.

import {
  clock,
  duration,
  fill,
  gpuRange,
  jobLink,
  make,
  number,
  pager,
  state,
  table,
} from "./dom.js";
import { get } from "./api.js";

const STATES = [
  "pending",
  "starting",
  "running",
  "rescaling",
  "stopping",
  "succeeded",
  "failed",
  "cancelled",
];
const TYPING_MS = 300;

export function view(query) {
  const given = {
    state: query.get("state") ?? "",
    tenant: query.get("tenant") ?? "",
    name: query.get("name") ?? "",
    cursor: query.get("cursor") ?? "",
    newest: query.get("newest") ?? "true",
  };
  const list = make("section", { "aria-label": "Jobs" });
  const root = make("div", {}, filters(given), list);

  async function load() {
    const found = await get("v1/page/jobs", given);
    const total = Object.values(found.num_jobs).reduce((sum, value) => sum + value, 0);
    fill(list, ...show(found, total, given));
    return `${number(total)} jobs · ${clock(found.at, found.at)}`;
  }

  return { title: "Jobs", root, load };
}

function address(given) {
  const kept = Object.entries(given).filter(
    ([name, value]) => value !== "" && !(name === "newest" && value === "true"),
  );
  return `#/jobs${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

function filters(given) {
  let timer = null;
  const field = (name, label, type = "search") =>
    make(
      "label",
      { for: name },
      label,
      make("input", { id: name, type, value: given[name], oninput: soon, autocomplete: "off" }),
    );
  const options = (values, chosen) =>
    values.map(([value, text]) => make("option", { value, selected: value === chosen }, text));
  const choose = (name, label, values) =>
    make(
      "label",
      { for: name },
      label,
      make("select", { id: name, onchange: apply }, ...options(values, given[name])),
    );
  const form = make(
    "form",
    {
      class: "bar",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        apply();
      },
    },
    field("name", "Name or id, * and ? allowed"),
    choose("state", "State", [
      ["", "all"],
      ["starting,running,rescaling,stopping", "with GPUs"],
      ...STATES.map((name) => [name, name]),
    ]),
    field("tenant", "Tenant"),
    choose("newest", "Order", [
      ["true", "newest first"],
      ["false", "oldest first"],
    ]),
    make("button", { type: "submit" }, "Filter"),
  );

  function apply() {
    clearTimeout(timer);
    const asked = { cursor: "" };
    for (const name of ["name", "state", "tenant", "newest"])
      asked[name] = form.querySelector(`#${name}`).value.trim();
    const focused = document.activeElement?.id;
    location.hash = address(asked);
    // The view is made again for the new address: the field that was typed in goes on.
    setTimeout(() => {
      const again = focused && document.getElementById(focused);
      if (!again) return;
      again.focus();
      if (again.type === "search")
        again.setSelectionRange(again.value.length, again.value.length);
    });
  }

  function soon() {
    clearTimeout(timer);
    timer = setTimeout(apply, TYPING_MS);
  }

  return form;
}

function show(found, total, given) {
  if (!found.jobs.length) {
    return [
      make(
        "p",
        { class: "empty" },
        total ? "No job fits this filter." : "No job was submitted yet.",
      ),
    ];
  }
  const columns = [
    ["Job", "name", (job) => jobLink(job.id, job.name)],
    ["State", "text", (job) => state(job.state)],
    [
      "GPUs",
      "",
      (job) =>
        job.num_gpus
          ? `${job.num_gpus} of ${gpuRange(job.gpus_min, job.gpus_max)}`
          : gpuRange(job.gpus_min, job.gpus_max),
    ],
    ["Done", "", done],
    ["Tenant", "text", (job) => job.tenant],
    ["Submitted", "", (job) => clock(job.submitted_at, found.at)],
    ["Took", "", (job) => duration((job.ended_at ?? found.at) - job.submitted_at)],
    ["Why", "wide", (job) => job.explanation],
  ];
  const on = found.next
    ? () => {
        location.hash = address({ ...given, cursor: found.next });
      }
    : null;
  const back = given.cursor ? () => history.back() : null;
  return [table("Jobs", columns, found.jobs), pager(`${found.jobs.length} shown`, back, on)];
}

function done(job) {
  if (job.state === "succeeded") return "100 %";
  if (!job.progress_target) return "–";
  return `${Math.round(100 * Math.min(job.progress / job.progress_target, 1))} %`;
}
