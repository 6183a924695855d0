// The frame of the page: views, the address, the token, and whether the scheduler is there.

import { clock, fill, make } from "./dom.js";
import { Away, NeedsToken, follow, keepToken, takeToken } from "./api.js";
import * as now from "./now.js";
import * as jobs from "./jobs.js";
import * as job from "./job.js";
import * as tenants from "./tenants.js";
import * as policy from "./policy.js";

const VIEWS = [
  ["/", "Now"],
  ["/jobs", "Jobs"],
  ["/studies", "Studies"],
  ["/tenants", "Tenants"],
  ["/policy", "Policy"],
  ["/what-if", "What if"],
];
// Changes come by the dozen; a view is loaded at most so often.
const APART_MS = 1000;

const main = document.getElementById("main");
const banner = document.getElementById("banner");
let view = null;
let loading = false;
let again = false;
let loadedAt = 0;
let lostAt = null;
let following = false;

function place() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { path: path || "/", query: new URLSearchParams(query) };
}

function viewOf({ path, query }) {
  const [, first = "", ...rest] = path.split("/");
  const id = decodeURIComponent(rest.join("/"));
  if (first === "jobs" && id) return job.view(id, query);
  if (first === "studies") return lazy("./studies.js", id || "Studies", id);
  if (first === "what-if") return lazy("./what-if.js", "What if", query);
  return { "": now, jobs, tenants, policy }[first]?.view(query) ?? null;
}

// A view whose script is loaded when it is first shown.
function lazy(file, title, given) {
  const root = make("div");
  let inner = null;
  async function load() {
    const { view } = await import(file);
    if (!inner) {
      inner = view(given);
      root.replaceChildren(inner.root);
    }
    return inner.load();
  }
  return { title, root, load, close: () => inner?.close?.() };
}

function show() {
  if (location.hash === "#main") return;
  const found = place();
  const [, first = ""] = found.path.split("/");
  fill(
    document.getElementById("views"),
    ...VIEWS.map(([path, name]) =>
      make(
        "a",
        { href: `#${path}`, "aria-current": path === `/${first}` ? "page" : null },
        name,
      ),
    ),
  );
  view?.close?.();
  view = viewOf(found);
  if (!view) {
    main.replaceChildren(
      make(
        "p",
        { class: "empty" },
        `There is no page ${found.path}. `,
        make("a", { href: "#/" }, "Now"),
      ),
    );
    return;
  }
  document.title = `${view.title} – Coadapt`;
  main.replaceChildren(view.root);
  load();
}

async function load() {
  if (loading) {
    again = true;
    return;
  }
  const shown = view;
  if (!shown) return;
  loading = true;
  loadedAt = performance.now();
  try {
    const about = await shown.load();
    if (about && shown === view) document.getElementById("about").textContent = about;
    if (!following) start();
  } catch (error) {
    if (error instanceof NeedsToken) askForToken(error.message);
    else if (error instanceof Away) start();
    else if (shown === view)
      shown.root.replaceChildren(make("p", { class: "empty" }, error.message));
  } finally {
    loading = false;
  }
  if (again || shown !== view) {
    again = false;
    later();
  }
}

let timer = null;
function later() {
  if (timer !== null) return;
  timer = setTimeout(
    () => {
      timer = null;
      load();
    },
    Math.max(APART_MS - (performance.now() - loadedAt), 0),
  );
}

function start() {
  if (following) return;
  following = true;
  follow({
    changed: later,
    here() {
      if (lostAt === null) return;
      lostAt = null;
      banner.hidden = true;
      document.body.classList.remove("away");
      later();
    },
    away() {
      lostAt ??= Date.now() / 1000;
      banner.textContent =
        `The scheduler has not answered since ${clock(lostAt, lostAt)}. ` +
        "Jobs keep running without it. This page shows what was last known, " +
        "and tries again every second.";
      banner.hidden = false;
      document.body.classList.add("away");
    },
    needsToken() {
      following = false;
      askForToken("the scheduler does not know this token any more");
    },
  });
}

function askForToken(why) {
  view = null;
  const input = make("input", {
    id: "token",
    type: "password",
    autocomplete: "off",
    size: "48",
    required: true,
  });
  const form = make(
    "form",
    {
      class: "bar",
      onsubmit(event) {
        event.preventDefault();
        keepToken(input.value);
        show();
      },
    },
    make("label", { for: "token" }, "Token", input),
    make("button", { type: "submit" }, "Show the cluster"),
  );
  main.replaceChildren(
    make("h2", {}, "This page needs the scheduler's token"),
    make(
      "p",
      {},
      `${why}. Run `,
      make("code", {}, "coadapt page"),
      " on the scheduler's machine: it prints an address that has it. " +
        "Or paste the content of the file ",
      make("code", {}, "token"),
      " in the state directory.",
    ),
    form,
  );
  input.focus();
}

document.addEventListener("keydown", (event) => {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.target.closest("input, select, textarea, dialog")
  )
    return;
  const chosen = VIEWS[Number(event.key) - 1];
  if (chosen) location.hash = chosen[0];
  if (event.key === "/") {
    const field = main.querySelector("input");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});

// A link may give a token again, for instance after the scheduler made a new one.
window.addEventListener("hashchange", () => {
  takeToken();
  show();
});
takeToken();
show();
