// What if: futures of the live jobs, as it is and with a change, side by side. Another
// process computes them, one question at a time, and all open pages see the same answer.

import { clock, duration, fill, jobLink, make, number, table } from "./dom.js";
import { Away, get, post, remove } from "./api.js";
import { curves } from "./charts.js";
import { costCurve } from "./cost.js";

const PATH = "v1/page/what-if";
const POLL_MS = 1000;
// Of the horizon of the computation, in roll.py.
const HORIZON = "14 days";

export function view(query) {
  const answer = make("section", { "aria-label": "Answer" });
  const problem = make("p", { role: "alert", class: "problem", hidden: true });
  const status = make("p", { role: "status", class: "note" });
  const fields = form(query, ask);
  const stop = make(
    "button",
    { type: "button", id: "what-if-stop", hidden: true, onclick: halt },
    "Stop",
  );
  fields.append(stop);
  const root = make(
    "div",
    {},
    make("h2", {}, "What if"),
    make(
      "p",
      { class: "note" },
      "Computes twenty futures of the live jobs as it is, and twenty with the change. " +
        "The scheduler runs on undisturbed, and nothing is changed.",
    ),
    fields,
    problem,
    status,
    answer,
  );
  let timer = null;
  let shown = null;
  let chart = null;

  async function load() {
    const found = await get(PATH);
    offer(fields, found, query);
    clearTimeout(timer);
    const last = found.last;
    const busy = last?.state === "busy";
    if (busy) timer = setTimeout(poll, POLL_MS);
    fields.querySelector("#what-if-ask").disabled = busy || !found.available;
    stop.hidden = !busy;
    status.textContent = busy
      ? `Computing ${words(last.asked)}, for ${Math.round(found.at - last.began_at)} s so far${progress(last)}.`
      : "";
    root.setAttribute("aria-busy", String(busy));
    const key = `${last?.number}/${last?.state}/${found.available}`;
    if (key !== shown) {
      chart?.close();
      chart = null;
      fill(answer, ...show(found));
    }
    shown = key;
    return `${found.policy} · ${clock(found.at, found.at)}`;
  }

  function show(found) {
    const last = found.last;
    if (!found.available)
      return empty("A recorded journal is shown. Ask it with: coadapt what-if --state DIR");
    if (!last) return empty("Nothing was asked yet. Choose a change, and compute.");
    if (last.state === "busy") return empty("The answer comes here.");
    if (last.state === "stopped") return empty("The computation was stopped.");
    if (last.state === "failed")
      return [
        make(
          "p",
          { class: "problem", role: "alert" },
          `No answer to ${words(last.asked)}: ${last.error}`,
        ),
      ];
    const answer = last.answer;
    if (!answer.num_jobs) return empty("No job was live: there was nothing to compute.");
    const place = make("div");
    chart = curves(place, answer.scenarios);
    return [
      make("h3", {}, `${words(last.asked)}, asked at ${clock(answer.at, found.at)}`),
      figures(answer),
      ...costCurve(answer),
      make("h3", {}, "Jobs that have not ended, by their median ends"),
      place,
      make("h3", {}, "Jobs"),
      jobs(answer),
      make(
        "p",
        { class: "note" },
        `Median, and in brackets the interval of nine in ten futures. ` +
          (answer.jobs.length < answer.num_jobs
            ? `The ${answer.jobs.length} of ${number(answer.num_jobs)} jobs whose ends differ most. `
            : "") +
          leftOut(answer) +
          `Computed in ${duration(last.took_s)}.`,
      ),
    ];
  }

  function poll() {
    load().catch((error) => {
      if (!(error instanceof Away)) say(error);
      timer = setTimeout(poll, POLL_MS);
    });
  }

  function say(error) {
    problem.hidden = !error;
    problem.textContent = error ? error.message : "";
  }

  async function ask(asked, address) {
    say(null);
    history.replaceState(null, "", address);
    try {
      await post(PATH, asked);
      await load();
    } catch (error) {
      say(error);
    }
  }

  async function halt() {
    try {
      await remove(PATH);
      await load();
    } catch (error) {
      say(error);
    }
  }

  return {
    title: "What if",
    root,
    load,
    close() {
      clearTimeout(timer);
      chart?.close();
    },
  };
}

function empty(text) {
  return [make("p", { class: "empty" }, text)];
}

function form(query, ask) {
  const field = (id, label, attributes) =>
    make("label", { for: id }, label, make("input", { id, autocomplete: "off", ...attributes }));
  const policy = (id, label) =>
    make("label", { for: id }, label, make("select", { id }, make("option", { value: "" }, "")));
  const text = (name) => ({ value: query.get(name) ?? "" });
  const made = make(
    "form",
    {
      class: "bar",
      onsubmit(event) {
        event.preventDefault();
        const value = (id) => made.querySelector(`#${id}`).value.trim();
        const policies = [value("policy"), value("policy-2")].filter((each) => each);
        const tenant = value("quota-tenant"),
          gpus = value("quota-gpus");
        const given = {
          policy: value("policy"),
          "policy-2": value("policy-2"),
          nodes: value("nodes"),
          "quota-tenant": tenant,
          "quota-gpus": gpus,
          without: value("without"),
        };
        const kept = Object.entries(given).filter(([, each]) => each);
        ask(
          {
            policies,
            nodes: listed(value("nodes")).map(Number),
            quotas: tenant ? { [tenant]: gpus === "" ? null : Number(gpus) } : {},
            without: listed(value("without")),
          },
          `#/what-if${kept.length ? `?${new URLSearchParams(kept)}` : ""}`,
        );
      },
    },
    policy("policy", "Policy"),
    policy("policy-2", "Also under"),
    field("nodes", "Nodes, as +4 or +1,+2,+4", text("nodes")),
    field("quota-tenant", "Quota of tenant", text("quota-tenant")),
    field("quota-gpus", "GPUs, empty for no quota", {
      type: "number",
      step: "1",
      min: "0",
      ...text("quota-gpus"),
    }),
    field("without", "Without the job", text("without")),
    make("button", { type: "submit", id: "what-if-ask" }, "Compute"),
  );
  return made;
}

// Fills the lists of policies, once.
function offer(fields, found, query) {
  for (const id of ["policy", "policy-2"]) {
    const select = fields.querySelector(`#${id}`);
    if (select.options.length > 1) continue;
    const first = id === "policy" ? `${found.policy}, as it is` : "no other";
    const values = [["", first], ...found.policies.map((name) => [name, name])];
    const chosen = query.get(id) ?? "";
    select.replaceChildren(
      ...values.map(([value, text]) =>
        make("option", { value, selected: value === chosen }, text),
      ),
    );
  }
}

function words(asked) {
  const parts = [];
  if (asked.policies.length) parts.push(asked.policies.join(" and "));
  if (asked.nodes.length)
    parts.push(`nodes ${asked.nodes.map((each) => (each > 0 ? `+${each}` : each)).join(", ")}`);
  for (const [tenant, gpus] of Object.entries(asked.quotas))
    parts.push(gpus === null ? `no quota of ${tenant}` : `${tenant} with a quota of ${gpus}`);
  if (asked.without.length) parts.push(`without ${asked.without.join(", ")}`);
  return parts.join(", ");
}

function progress(last) {
  return last.progress.length ? `; ${last.progress.join(" of ")} futures are computed` : "";
}

// What was not computed, because the time for an answer was over.
function leftOut(answer) {
  const parts = [];
  if (answer.num_futures < answer.futures_wanted)
    parts.push(
      `${answer.num_futures} of ${answer.futures_wanted} futures were computed, so that intervals are too narrow`,
    );
  if (answer.ahead_s !== null)
    parts.push(
      `they reach ${duration(answer.ahead_s)} ahead, and means count a job that ends later as if it ended then`,
    );
  return parts.length ? `The time for an answer was over: ${parts.join("; ")}. ` : "";
}

// How far the futures of an answer reach, in words.
function reach(answer) {
  return answer.ahead_s === null ? HORIZON : duration(answer.ahead_s);
}

function interval(range, answer) {
  const span = (seconds) =>
    seconds === null ? `more than ${reach(answer)}` : duration(seconds);
  const text = span(range.median);
  if (span(range.low) === span(range.high)) return text;
  return `${text} (${span(range.low)} to ${span(range.high)})`;
}

function listed(text) {
  return text.split(/[\s,]+/).filter((each) => each);
}

function figures(answer) {
  const columns = [
    ["Future", "name", (each) => each.name],
    ["Against as it is", "", (each) => each.compared],
    ["Cost", "", (each) => each.cost || "no prices"],
    ["Mean time to the end", "", (each) => interval(each.mean_end_s, answer)],
    ["Last end", "", (each) => interval(each.last_end_s, answer)],
    ["Jobs", "", (each) => number(each.num_jobs)],
    [`Not ended in ${reach(answer)}`, "", (each) => number(each.num_later)],
  ];
  return table("Futures", columns, answer.scenarios);
}

function sizes(gpus) {
  const changed = gpus.filter((size, place) => place === 0 || size !== gpus[place - 1]);
  const more = changed.length > 3 ? " …" : "";
  const noun = changed.length === 1 && changed[0] === 1 ? "GPU" : "GPUs";
  return `on ${changed.slice(0, 3).join(" then ")}${more} ${noun}`;
}

function cell(job, answer) {
  if (!job) return "does not run";
  if (job.ends_s.median === null) return `more than ${reach(answer)}`;
  return `${interval(job.ends_s, answer)}, ${sizes(job.gpus)}`;
}

function jobs(answer) {
  const columns = [
    ["Job", "name", ([id, name]) => jobLink(id, name)],
    ...answer.scenarios.map((scenario, place) => [
      `Ends in, ${scenario.name}`,
      "wide",
      ([, , cells]) => cell(cells[place], answer),
    ]),
  ];
  return table("Jobs in each future", columns, answer.jobs);
}
