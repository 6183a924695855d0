// Elements and words. Every text of a user enters the page as text: nothing here makes
// markup of it.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Replaces what is in `place`; the element that has the focus keeps it, found again by its
// link or id.
export function fill(place, ...children) {
  const active = place.contains(document.activeElement) ? document.activeElement : null;
  const sought = active && (active.getAttribute("href") || active.id);
  place.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  if (!sought) return;
  const again = [...place.querySelectorAll("a, button, input, select")].find(
    (each) => each.getAttribute("href") === sought || each.id === sought,
  );
  if (again) again.focus({ preventScroll: true });
}

export function jobLink(id, text) {
  return make("a", { href: `#/jobs/${encodeURIComponent(id)}` }, text ?? id);
}

export function tiles(pairs) {
  return make(
    "dl",
    { class: "tiles" },
    ...pairs.map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value)),
    ),
  );
}

export function facts(pairs) {
  const kept = pairs.filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return make(
    "dl",
    { class: "facts" },
    ...kept.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
  );
}

// columns: [heading, class, value of a row]. On a phone each row becomes a block, and its
// cells get their headings.
export function table(caption, columns, rows) {
  const head = make(
    "tr",
    {},
    ...columns.map(([name, kind]) =>
      make("th", { scope: "col", class: kind === "" ? null : "text" }, name),
    ),
  );
  const body = rows.map((row) =>
    make(
      "tr",
      {},
      ...columns.map(([name, kind, value]) =>
        make("td", { class: kind || null, "data-name": name }, value(row)),
      ),
    ),
  );
  return make(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    make("table", { class: "stack" }, make("thead", {}, head), make("tbody", {}, ...body)),
  );
}

export function pager(text, back, on) {
  if (!back && !on) return null;
  return make(
    "div",
    { class: "pager" },
    make("button", { type: "button", id: "page-back", disabled: !back, onclick: back }, "Back"),
    make("button", { type: "button", id: "page-on", disabled: !on, onclick: on }, "Next"),
    make("span", {}, text),
  );
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e7 || (size && size < 1e-4)
    ? value.toExponential(2)
    : String(Number(value.toPrecision(digits)));
}

export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 1) return `${Math.max(Math.round(1000 * seconds), 1)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export function clock(at, now) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString("en-GB");
  const sameDay =
    now !== undefined && date.toDateString() === new Date(now * 1000).toDateString();
  const two = (figure) => String(figure).padStart(2, "0");
  const day = `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return sameDay ? time : `${day} ${time}`;
}

export function gpuRange(least, most) {
  return least === most ? String(least) : `${least}..${most}`;
}

// A job keeps its colour on all nodes and in all views.
export function colourOf(id) {
  let sum = 0;
  for (const letter of id) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return `c${sum % 7}`;
}

export function state(name) {
  return make("span", { class: `state ${name}` }, name);
}
