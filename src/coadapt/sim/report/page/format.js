"use strict";
// Numbers and times in words. Nothing here touches the page.

const MINUTE_S = 60, HOUR_S = 3600, DAY_S = 86400;

function timeUnit(spanSeconds) {
  if (spanSeconds < 5 * MINUTE_S) return { name: "s", seconds: 1 };
  if (spanSeconds < 3 * HOUR_S) return { name: "min", seconds: MINUTE_S };
  if (spanSeconds < 7 * DAY_S) return { name: "h", seconds: HOUR_S };
  return { name: "days", seconds: DAY_S };
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function precise(value) {
  return Math.abs(value) < 1000 ? String(Number(value.toPrecision(4))) : number(value);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 100 * MINUTE_S) return `${(seconds / MINUTE_S).toFixed(1)} min`;
  if (seconds < 100 * HOUR_S) return `${(seconds / HOUR_S).toFixed(2)} h`;
  return `${(seconds / DAY_S).toFixed(1)} days`;
}

// Pauses last milliseconds, starts seconds.
function pauseTime(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds >= 1) return duration(seconds);
  return seconds >= 0.01 ? `${Math.round(seconds * 1000)} ms` : `${Number((seconds * 1000).toFixed(1))} ms`;
}

function changeWords(before, now, parts) {
  if (Object.keys(parts).length) return before === now ? `changed on ${now} in place` : `${before} → ${now} in place`;
  return before ? `started anew, ${before} → ${now}` : `started on ${now}`;
}

// Returns the parts of a pause that took noticeable time, the longest first.
function partsByTime(parts) {
  return Object.entries(parts).filter(([, seconds]) => seconds >= 0.0005).sort((a, b) => b[1] - a[1]);
}

function instant(seconds) {
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

// An instant of a run: the time of day in UTC, and the day of a run of several; else what has passed.
function moment(run, seconds) {
  if (run.began_at === null) return instant(seconds);
  const text = new Date((run.began_at + seconds) * 1000).toISOString();
  return run.end < DAY_S ? text.slice(11, 19) : `${text.slice(5, 10)} ${text.slice(11, 16)}`;
}

const CLOCK_STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400, 30 * 86400];

// Ticks at round times of the clock within a range in units of the run's axis.
function clockTicks(run, unit, [low, high]) {
  const first = run.began_at + low * unit.seconds, last = run.began_at + high * unit.seconds;
  const step = CLOCK_STEPS.find((each) => (last - first) / each <= 9) || (last - first) / 8;
  const times = [];
  for (let time = Math.ceil(first / step) * step; time <= last; time += step) times.push(time);
  const texts = times.map((time, index) => {
    const text = new Date(time * 1000).toISOString(), clock = text.slice(11, step < 60 ? 19 : 16);
    if (step >= DAY_S) return text.slice(5, 10);
    return !index || time % DAY_S < step ? `${clock}<br>${text.slice(0, 10)}` : clock;
  });
  return { tickvals: times.map((time) => (time - run.began_at) / unit.seconds), ticktext: texts };
}

// Ticks of a logarithmic axis in whole units of time, and in 1-2-5 steps for plain numbers.
const TIME_TICKS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000, 2592000];

function timeTicks(low, high) {
  const values = TIME_TICKS.filter((value) => value >= low / 1.15 && value <= high * 1.15);
  const every = Math.ceil(values.length / 9);
  let kept = values.filter((_, index) => index % every === 0);
  if (kept.length < 2) kept = low < high ? [low, high] : [low];
  return { tickvals: kept, ticktext: kept.map((value) => duration(value).replace(/\.0+ /, " ")) };
}

function numberTicks(values) {
  const known = values.filter((value) => value > 0);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const steps = high / low > 300 ? [1] : high / low > 30 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power += 1) {
    ticks.push(...steps.map((step) => step * 10 ** power));
  }
  return { tickvals: ticks, ticktext: ticks.map(number) };
}

function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// Plotly reads a little markup in its texts; what users wrote is shown as they wrote it.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function shortened(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
}

function wrapped(text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines[lines.length - 1].length + word.length > width) lines.push("");
    lines[lines.length - 1] += (lines[lines.length - 1] ? " " : "") + word;
  }
  return lines.map(plain).join("<br>");
}

// What is known of a figure by its name: group, title, kind, which end is better (-1: less, 1: more), meaning.
const FIGURES = {
  jct_mean_s: ["Completion", "Mean JCT", "time", -1, "from submission to end"],
  jct_p50_s: ["Completion", "Median JCT", "time", -1, "half of the jobs took less"],
  jct_p90_s: ["Completion", "p90 JCT", "time", -1, "nine of ten jobs took less"],
  jct_p99_s: ["Completion", "p99 JCT", "time", -1, "99 of 100 jobs took less"],
  makespan_s: ["Completion", "Makespan", "time", -1, "from the first arrival to the last end"],
  rho_max: ["Fairness", "Worst ρ", "number", -1, "finish-time fairness: JCT over the JCT on an isolated fair share"],
  unfair_share: ["Fairness", "Unfair jobs", "share", -1, "jobs with ρ above 1.05"],
  rho_isolated_max: ["Fairness", "Worst ρ, isolated", "number", -1, "JCT over the time alone on the GPUs asked for, times jobs per GPU (Shockwave)"],
  unfair_isolated_share: ["Fairness", "Unfair jobs, isolated", "share", -1, "jobs with isolated ρ above 1.05"],
  num_deadlines: ["Deadlines", "Jobs with a deadline", "number", 0, "jobs that were to end by a certain time"],
  num_deadlines_met: ["Deadlines", "Deadlines met", "number", 1, "jobs that ended by their deadline"],
  utilisation: ["Use of the cluster", "Utilisation", "share", 1, "GPU-time held, of all there was"],
  efficiency: ["Use of the cluster", "Statistical efficiency", "share", 1, "progress per sample, against the initial batch"],
  time_goodput: ["Use of the cluster", "Time goodput", "share", 1, "share of the jobs' time spent in training steps"],
  time_wait: ["Use of the cluster", "Time waiting", "share", -1, "share of the jobs' time spent without a GPU"],
  time_start: ["Use of the cluster", "Time starting", "share", -1, "share of the jobs' time spent in first starts"],
  time_rescale: ["Use of the cluster", "Time rescaling", "share", -1, "share of the jobs' time spent in changes of allocation"],
  time_idle: ["Use of the cluster", "Time not training", "share", -1, "share of the jobs' time in which GPUs were held for starts, pauses and stops"],
  num_rescales: ["Changes of replicas", "Rescales", "number", -1, "changes of allocation after the first start"],
  num_in_place: ["Changes of replicas", "In place", "number", 1, "changes without a restart: no step is lost"],
  pause_ms_p50: ["Changes of replicas", "Pause, median", "milliseconds", -1, "how long a change in place kept training waiting"],
  pause_ms_max: ["Changes of replicas", "Pause, longest", "milliseconds", -1, "how long a change in place kept training waiting"],
  decision_ms_p50: ["Cost", "Decision, median", "milliseconds", -1, "CPU time of the policy for one round"],
  decision_ms_max: ["Cost", "Decision, worst", "milliseconds", -1, "CPU time of the policy for one round"],
  cpu_s: ["Cost", "CPU time", "time", -1, "of the whole run"],
  peak_rss_mb: ["Cost", "Peak memory", "megabytes", -1, "of the process that ran it"],
};

function figure(key) {
  const [group, title, kind, better, meaning] = FIGURES[key] || ["Others", key.replace(/_/g, " "), "number", 0, key];
  return { key, group, title, kind, better, meaning };
}

// Returns a function that writes a value of this column; all values of a time column share one unit.
function columnFormat(kind, values) {
  if (kind === "share") return (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);
  if (kind === "milliseconds") return (value) => (value === null ? "–" : `${number(value)} ms`);
  if (kind === "megabytes") return (value) => (value === null ? "–" : `${number(value)} MB`);
  if (kind !== "time") return number;
  const unit = timeUnit(Math.max(0, ...values.filter((value) => value !== null)));
  const digits = unit.seconds === 1 ? 1 : 2;
  return (value) => (value === null ? "–" : `${(value / unit.seconds).toFixed(digits)} ${unit.name}`);
}
