// Pictures that are drawn as SVG: studies, and the cost of what-if futures.

import { make } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

// The style sheet of these pictures is loaded with the first view that has one.
export function style() {
  if (document.getElementById("svg-style")) return;
  document.head.append(
    make("link", { id: "svg-style", rel: "stylesheet", href: "page/svg.css" }),
  );
}

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function picture(width, height, label, ...children) {
  return draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "drawn", role: "img", "aria-label": label },
    ...children,
  );
}

export function extent(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = high > low ? 0.05 * (high - low) : Math.abs(low) * 0.1 || 1;
  return [low - room, high + room];
}

export const text = (x, y, words, anchor = "start") =>
  draw("text", { x, y, "text-anchor": anchor }, words);
