// The last minutes, what needs attention, and the engines and nodes at a glance.

import { addressOf } from "../api.js";
import { Chart } from "../charts.js";
import { h, replace } from "../dom.js";
import { duration, number, plural, rate } from "../format.js";
import { Samples } from "../metrics.js";
import { badge, choice, empty, facts, head, panel, problemBox } from "../widgets.js";
import { attention } from "./attention.js";
import { nodesTable } from "./engines.js";

/** The time between two points of a chart, and between two answers: nodes take a sample as often. */
const STEP_MS = 5000;
/** Behind a load balancer, any node may answer: how soon to ask again for the others, and how often in a row. */
const OTHERS_MS = 300;
const OTHERS_MAX = 20;
/** How many minutes the charts may show. Nodes keep samples of the last 15. */
const RANGES = ["15", "5", "1"];

const seconds = (value) => (value === null ? "–" : duration(value * 1000));
const count = (value) => (value === null ? "–" : Number.isInteger(value) ? number(value) : rate(value));
const first = (digit) => (code) => code.startsWith(digit);
const quantiles = (samples, metric, at) => [samples.quantile(metric.replace(/_bucket$/, ""), at, 0.5), samples.quantile(metric.replace(/_bucket$/, ""), at, 0.99)];

/** A lease may be granted by one node and end at another: without the first one's count, their sum may be below 0, and says nothing. */
const atLeast0 = (value) => (value < 0 ? null : value);

/** Each chart, the metric that it needs, and its values at a time. */
const CHARTS = [
  { title: "Requests per second", metric: "latchgate_requests_total", series: ["2xx", "4xx", "5xx"], format: rate, path: "events",
    values: (samples, metric, at) => ["2", "4", "5"].map((digit) => samples.rate(metric, at, first(digit))) },
  { title: "Leases granted per second", metric: "latchgate_leases_granted_total", series: [""], format: rate, path: "events",
    values: (samples, metric, at) => [samples.rate(metric, at)] },
  { title: "Live leases", metric: "latchgate_leases_live", series: [""], format: count, path: "locks", query: { sort: "held_since" },
    values: (samples, metric, at) => [atLeast0(samples.gauge(metric, at))] },
  { title: "Waiting requests", metric: "latchgate_waiters", series: [""], format: count, path: "locks", query: { sort: "waiters", state: "any" },
    values: (samples, metric, at) => [samples.gauge(metric, at)] },
  { title: "Time in the queue", metric: "latchgate_wait_seconds_bucket", series: ["p50", "p99"], format: seconds, path: "locks", query: { sort: "waiters", state: "any" }, values: quantiles },
  { title: "Hand-off to the next waiter", metric: "latchgate_handoff_seconds_bucket", series: ["p50", "p99"], format: seconds, path: "locks", query: { sort: "waiters", state: "any" }, values: quantiles },
  { title: "Requests that do not wait", metric: "latchgate_request_seconds_bucket", series: ["p50", "p99"], format: seconds, path: "events", values: quantiles },
  { title: "Operations per second", metric: "latchgate_operations_total", series: [""], format: rate, path: "operations",
    values: (samples, metric, at) => [samples.rate(metric, at)] },
];

export function overview(view) {
  const about = h("span", {}, "");
  const chosen = RANGES.includes(view.query.range) ? view.query.range : RANGES[0];
  const range = choice(RANGES.map((minutes) => [minutes, `the last ${plural(Number(minutes), "minute")}`]), chosen);
  const charts = h("div", { class: "charts" });
  const lists = h("div", { class: "columns" });
  const rest = h("div", { class: "columns" });
  view.show(head("Overview", about, h("label", { class: "range" }, h("span", { class: "unseen" }, "Range"), range)), charts, lists, rest);
  if (view.may("read")) {
    showCharts(view, charts, about, range);
    attention(view, lists);
  } else replace(charts, empty("Charts and lists need an API key with the scope read."));
  if (view.me.operator) showEngines(view, rest);
}

function showCharts(view, parent, about, range) {
  const samples = new Samples();
  const charts = CHARTS.map((of) => [of, new Chart({ ...of, href: addressOf(of.path, of.query) })]);
  let nodes = view.me.operator ? null : 0;
  let tries = 0;
  const pauseMs = () => {
    tries = samples.count(Date.now()) < nodes ? tries + 1 : 0;
    return tries > 0 && tries <= OTHERS_MAX ? OTHERS_MS : STEP_MS;
  };
  const draw = () => {
    const now = Date.now();
    const last = Math.floor(now / STEP_MS) * STEP_MS;
    const steps = (Number(range.value) * 60_000) / STEP_MS;
    const times = Array.from({ length: steps }, (_, index) => last - (steps - 1 - index) * STEP_MS);
    const shown = charts.filter(([{ metric }]) => samples.has(metric));
    for (const [{ metric, values }, chart] of shown) chart.draw(times.map((at) => ({ at, values: values(samples, metric, at) })));
    if (parent.childElementCount !== shown.length) {
      replace(parent, shown.length ? shown.map(([, chart]) => chart.element) : empty("No request of this app was counted in the last 15 minutes."));
    }
    const of = nodes > samples.count(now) ? ` of ${nodes}` : "";
    about.textContent = `Of ${plural(samples.count(now), "node")}${of} that answered in the last 30 seconds`;
  };
  view.every(pauseMs, async () => {
    // Operators alone may know how many nodes there are.
    nodes ??= await view.get("/v1/admin/engines").then(({ nodes: all }) => all.length, () => 0);
    samples.add(await view.get("/metrics/samples"), Date.now());
    draw();
  });
  range.addEventListener("change", () => {
    view.remember({ range: range.value === RANGES[0] ? "" : range.value });
    draw();
  });
}

function showEngines(view, parent) {
  const engines = panel("Engines", empty("Loading…"));
  const nodes = panel("Nodes", empty("Loading…"));
  replace(parent, engines, nodes);
  view.every(5000, async () => {
    const show = (content) => {
      replace(engines, h("h2", {}, h("a", { href: "#/engines" }, "Engines")), content(enginesInShort));
      replace(nodes, h("h2", {}, h("a", { href: "#/engines" }, "Nodes")), content(({ nodes: all }) => nodesTable(all, true)));
    };
    try {
      const answer = await view.get("/v1/admin/engines");
      show((of) => of(answer));
    } catch (problem) {
      // While the node is away, what was known stays.
      if (problem.status !== 0) show(() => problemBox(problem));
      throw problem;
    }
  });
}

function enginesInShort(answer) {
  const parts = [["Locks", answer.locks], ["Gate", answer.gate]];
  return parts.map(([name, use]) => {
    const silent = use.engines.filter((engine) => !engine.answers).map((engine) => engine.name);
    return facts(
      [name, h("span", {}, use.active ?? "none", " ", stateOf(use))],
      [silent.length > 0 && "No answer from", silent.join(", ") || null],
      ["Hold-off for", use.hold_off_ms > 0 ? duration(use.hold_off_ms) : null]);
  });
}

function stateOf(use) {
  if (use.trouble) return badge(use.trouble, "bad");
  if (use.hold_off_ms > 0) return badge("hold-off", "warn");
  if (use.engines.some((engine) => engine.answers && engine.name === use.active)) return badge("answers", "good");
  return badge("does not answer", "bad");
}
