// The scheduler's HTTP API. The token goes into a header, never into an address; it is kept
// for this tab only.

const KEY = "coadapt-token";
// A stream that says nothing for so long is taken for dead: the scheduler says something
// every second.
const SILENT_MS = 4000;
const AGAIN_MS = 1000;

export class NeedsToken extends Error {}
export class Refused extends Error {}
export class Away extends Error {}

export function takeToken() {
  const match = /^#token=([^&]*)(?:&to=(.*))?$/.exec(location.hash);
  if (!match) return;
  keepToken(decodeURIComponent(match[1]));
  history.replaceState(
    null,
    "",
    `${location.pathname}#${match[2] ? decodeURIComponent(match[2]) : "/"}`,
  );
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token.trim());
}

function headers() {
  return { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      ...options,
      headers: { ...headers(), ...(options.headers ?? {}) },
    });
  } catch {
    throw new Away("the scheduler does not answer");
  }
  if (answer.status === 401) throw new NeedsToken("the scheduler does not know this token");
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Refused(body?.error?.message ?? `HTTP ${answer.status}`);
  }
  return answer;
}

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== "" && value !== null && value !== undefined,
  );
  const asked = given.length ? `?${new URLSearchParams(given)}` : "";
  return (await ask(path + asked)).json();
}

export async function post(path, body) {
  return send("POST", path, body);
}

export async function put(path, body) {
  return send("PUT", path, body);
}

export async function remove(path) {
  return send("DELETE", path);
}

async function send(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  return (await ask(path, options)).json();
}

// Calls changed() whenever something happened, here() while the scheduler answers, away()
// once it does not.
export async function follow({ changed, here, away, needsToken }) {
  for (;;) {
    const controller = new AbortController();
    let timer = setTimeout(() => controller.abort(), SILENT_MS);
    try {
      const answer = await ask("v1/page/stream", { signal: controller.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => controller.abort(), SILENT_MS);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        if (!events.length) continue;
        here();
        if (events.some((event) => event.startsWith("event: changed"))) changed();
      }
    } catch (error) {
      if (error instanceof NeedsToken) {
        clearTimeout(timer);
        needsToken();
        return;
      }
    }
    clearTimeout(timer);
    away();
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
