// One job: what it is, its life on one time axis, its log, and what may be done with it.

import { clock, count, duration, facts, fill, gpuRange, make, number, state } from "./dom.js";
import { Refused, get, post, put } from "./api.js";
import { charts } from "./charts.js";
import { logView } from "./log.js";

const ENDED = ["succeeded", "failed", "cancelled"];

export function view(id) {
  const head = make("section", { "aria-label": "Job" });
  const life = make(
    "section",
    { "aria-labelledby": "life-title" },
    make("h3", { id: "life-title" }, "Over time"),
  );
  const strips = charts(life);
  const decisions = make("div");
  const log = logView(id);
  const root = make(
    "div",
    {},
    head,
    life,
    make(
      "div",
      { class: "split" },
      make(
        "section",
        { "aria-labelledby": "story-title" },
        make("h3", { id: "story-title" }, "Decisions"),
        decisions,
      ),
      log.root,
    ),
  );
  let shown = null;

  async function load() {
    const found = await get(`v1/page/jobs/${encodeURIComponent(id)}`);
    fill(head, ...showHead(found));
    strips.update(found);
    const last = JSON.stringify(found.story.at(-1));
    if (last !== shown) fill(decisions, ...showStory(found));
    shown = last;
    await log.load();
    return `${found.job.state} · ${clock(found.at, found.at)}`;
  }

  return { title: id, root, load, close: strips.close };
}

function showHead(found) {
  const { job, spec } = found;
  const nodes = job.allocation.map(([node, gpus]) => `${node}: ${gpus}`).join(", ");
  const age = duration(found.until - job.submitted_at);
  const since = job.ended_at ? "from there to the end" : "ago";
  const submitted = `${clock(job.submitted_at, found.at)}, ${age} ${since}`;
  const range = gpuRange(job.gpus_min, job.gpus_max);
  return [
    make("h2", {}, job.name, " ", state(job.state)),
    make("p", { class: "why" }, job.explanation),
    facts([
      ["Id", job.id],
      [
        "GPUs",
        job.num_gpus
          ? `${job.num_gpus} of ${range}${nodes ? ` (${nodes})` : ""}`
          : gpuRange(job.gpus_min, job.gpus_max),
      ],
      [
        "Batch",
        job.batch
          ? `${number(job.batch.total)} now, ${number(spec.batch.initial)} at first, ` +
            `${number(spec.batch.max_total)} at most`
          : `${number(spec.batch.initial)} at first`,
      ],
      [
        "Efficiency",
        job.efficiency === null
          ? null
          : `${(100 * job.efficiency).toFixed(0)} %, ` +
            `noise scale ${number(job.noise_scale, 3)} samples`,
      ],
      ["Progress", progress(job)],
      ["Step", job.step_time_s === null ? null : `${number(1000 * job.step_time_s)} ms`],
      ["Last report", job.silent_s === null ? null : `${duration(job.silent_s)} ago`],
      [
        "Metrics",
        Object.entries(job.metrics)
          .map(([name, value]) => `${name} ${number(value)}`)
          .join(", "),
      ],
      ["Submitted", submitted],
      ["Service", `${number(Math.round(job.attained_service_gpu_s))} GPU-seconds`],
      ["Rescales", `${job.num_rescales}, ${job.num_in_place} of them in place`],
      ["Failures", `${job.num_failures}, given up after more than ${spec.max_failures}`],
      ["Set aside", job.sizes_set_aside.join("; ")],
      ["Not used", Object.values(job.nodes_unfit).join("; ")],
      ["Contract", `${job.contract}, tenant ${job.tenant}, priority ${job.priority}`],
      ["Command", spec.launch.run],
      ["Directory", spec.launch.workdir],
    ]),
    ENDED.includes(job.state) || found.recorded ? null : actions(job),
  ];
}

function progress(job) {
  const samples = count(Math.round(job.progress), "sample");
  return job.progress_target
    ? `${samples}, ${(100 * Math.min(job.progress / job.progress_target, 1)).toFixed(0)} %`
    : samples;
}

function actions(job) {
  return make(
    "div",
    { class: "bar" },
    make(
      "button",
      { type: "button", id: "priority", onclick: () => askForPriority(job) },
      "Change its priority",
    ),
    make(
      "button",
      { type: "button", class: "danger", id: "cancel", onclick: () => askToCancel(job) },
      "Cancel the job",
    ),
  );
}

function askForPriority(job) {
  const dialog = document.getElementById("dialog");
  const problem = make("p", { role: "alert" });
  const field = make("input", {
    id: "priority-value",
    type: "number",
    step: "1",
    required: "",
    value: String(job.priority),
  });
  async function change(event) {
    event.preventDefault();
    try {
      await put(`v1/jobs/${encodeURIComponent(job.id)}/priority`, {
        priority: Number(field.value),
      });
      dialog.close();
    } catch (error) {
      problem.textContent = errorText(error);
    }
  }
  dialog.replaceChildren(
    make("h2", { id: "dialog-title" }, `Priority of ${job.name}`),
    make(
      "form",
      { onsubmit: change },
      make(
        "p",
        {},
        `Higher goes first among the jobs of tenant ${job.tenant}, from the next round on.`,
      ),
      make("label", { for: "priority-value" }, "Priority "),
      field,
      problem,
      make(
        "div",
        { class: "bar" },
        make("button", { type: "button", onclick: () => dialog.close() }, "Keep it"),
        make("button", { id: "priority-sure" }, "Change it"),
      ),
    ),
  );
  dialog.showModal();
}

function errorText(error) {
  return error instanceof Refused ? error.message : "The scheduler does not answer.";
}

function askToCancel(job) {
  const dialog = document.getElementById("dialog");
  const problem = make("p", { role: "alert" });
  const close = () => dialog.close();
  async function cancel() {
    try {
      await post(`v1/jobs/${encodeURIComponent(job.id)}/cancel`);
      close();
    } catch (error) {
      problem.textContent = errorText(error);
    }
  }
  dialog.replaceChildren(
    make("h2", { id: "dialog-title" }, `Cancel ${job.name}?`),
    make(
      "p",
      {},
      `${job.id} is stopped, and gives up its ${count(job.num_gpus, "GPU")}. ` +
        "It does not run again.",
    ),
    problem,
    make(
      "div",
      { class: "bar" },
      make("button", { type: "button", onclick: close }, "Keep it"),
      make(
        "button",
        { type: "button", class: "danger", id: "cancel-sure", onclick: cancel },
        "Cancel the job",
      ),
    ),
  );
  dialog.showModal();
}

function showStory(found) {
  if (!found.story.length) return [make("p", { class: "empty" }, "Nothing was decided yet.")];
  const lines = [...found.story]
    .reverse()
    .map(([at, text]) =>
      make(
        "li",
        {},
        make("time", { datetime: new Date(at * 1000).toISOString() }, clock(at, found.at)),
        make("span", {}, text),
      ),
    );
  const left = found.story_left_out;
  return [
    make(
      "ol",
      { class: "story", tabindex: "0", "aria-label": "Decisions, the latest first" },
      ...lines,
    ),
    left
      ? make(
          "p",
          { class: "note" },
          `${count(left, "earlier line")}: coadapt story ${found.job.id}`,
        )
      : null,
  ];
}
