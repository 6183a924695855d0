// The log of a replica: its end, or the lines with a text. Progress bars that overwrite
// their line show their last state.

import { count, fill, make, number } from "./dom.js";
import { get } from "./api.js";

const TYPING_MS = 300;
const AT_END_PX = 24;

export function logView(id) {
  const text = make("pre", { class: "log", tabindex: "0", role: "group", "aria-label": "Log" });
  const note = make("p", { class: "note" });
  let timer = null,
    shown = null;
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(load, TYPING_MS);
  };
  const search = make("input", {
    id: "log-search",
    type: "search",
    autocomplete: "off",
    oninput: soon,
  });
  const rank = make("input", {
    id: "log-rank",
    type: "number",
    min: "0",
    value: "0",
    oninput: soon,
  });
  const root = make(
    "section",
    { "aria-labelledby": "log-title" },
    make("h3", { id: "log-title" }, "Log"),
    text,
    note,
    make(
      "div",
      { class: "bar" },
      make("label", { for: "log-search" }, "Search", search),
      make("label", { for: "log-rank" }, "Rank", rank),
    ),
  );

  async function load() {
    const sought = search.value.trim();
    const found = await get(`v1/page/jobs/${encodeURIComponent(id)}/log`, {
      rank: rank.value || 0,
      search: sought,
    });
    const key = `${sought}/${rank.value}/${found.end}`;
    if (key === shown) return;
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - AT_END_PX;
    fill(text, ...marked(folded(found.text), sought));
    if (shown === null || atEnd) text.scrollTop = text.scrollHeight;
    shown = key;
    note.textContent = words(found);
  }

  return { root, load };
}

// A terminal shows of a line what came after its last carriage return; colours and other
// controls are left out.
export function folded(text) {
  return text
    .split("\n")
    .map((line) => {
      const kept = line.replace(/\r+$/, "");
      return kept.slice(kept.lastIndexOf("\r") + 1);
    })
    .join("\n")
    .replace(
      /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[\u0000-\u0008\u000b-\u001f\u007f]/g,
      "",
    );
}

function marked(text, sought) {
  if (!sought) return [text];
  const parts = [],
    low = text.toLowerCase(),
    want = sought.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(want); at >= 0; at = low.indexOf(want, from)) {
    parts.push(text.slice(from, at), make("mark", {}, text.slice(at, at + want.length)));
    from = at + want.length;
  }
  return [...parts, text.slice(from)];
}

function words(found) {
  const size = `${number(found.end)} bytes`;
  if (found.num_found !== null) return `${count(found.num_found, "line")} found in ${size}`;
  if (!found.end) return "This replica has printed nothing yet.";
  return found.begin ? `the last ${number(found.end - found.begin)} of ${size}` : size;
}
