// Rates, latencies, engines and nodes at a glance.

import { bodyOf, request } from "../api.js";
import { Chart } from "../charts.js";
import { h, replace } from "../dom.js";
import { duration, number, plural, rate } from "../format.js";
import { Samples } from "../metrics.js";
import { badge, empty, facts, head, panel, problemBox } from "../widgets.js";
import { nodesTable } from "./engines.js";

const seconds = (value) => (value === null ? "–" : duration(value * 1000));
const count = (value) => (value === null ? "–" : number(value));
const is = (label, first) => (labels) => (labels[label] ?? "").startsWith(first);

/** Each chart, the metric that it needs, and its values. */
const CHARTS = [
  ["Requests per second", "latchgate_requests_total", ["2xx", "4xx", "5xx"], rate,
    (samples, name) => ["2", "4", "5"].map((first) => samples.rate(name, is("code", first)))],
  ["Leases granted per second", "latchgate_leases_granted_total", [""], rate, (samples, name) => [samples.rate(name)]],
  ["Hand-off to the next waiter", "latchgate_handoff_seconds_bucket", ["p50", "p99"], seconds, quantiles],
  ["Time of a request without waits", "latchgate_request_seconds_bucket", ["p50", "p99"], seconds, withoutWaits],
  ["Time in the queue", "latchgate_wait_seconds_bucket", ["p50", "p99"], seconds, quantiles],
  ["Waiting requests", "latchgate_waiters", [""], count, (samples, name) => [samples.gauge(name)]],
  ["Live leases", "latchgate_leases_live", [""], count, (samples, name) => [samples.gauge(name)]],
  ["Operations per second", "latchgate_operations_total", [""], rate, (samples, name) => [samples.rate(name)]],
];

function quantiles(samples, name) {
  const histogram = name.replace(/_bucket$/, "");
  return [samples.quantile(histogram, 0.5), samples.quantile(histogram, 0.99)];
}

/** Routes whose requests may wait. Of those to `acquire`, the ones that may are counted as waits. */
const WAITING = new Set(["multilock_acquire", "pre", "pre_batch", "inspect", "operation", "events"]);

function withoutWaits(samples) {
  const wanted = ({ route }) => !WAITING.has(route);
  return [0.5, 0.99].map((q) => samples.quantile("latchgate_request_seconds", q, wanted, "latchgate_wait_seconds"));
}

export function overview(view) {
  const about = h("span", {}, "");
  const charts = h("div", { class: "charts" });
  const rest = h("div", { class: "columns" });
  view.show(head("Overview", about), charts, rest);
  showCharts(view, charts, about);
  if (view.me.operator) showEngines(view, rest);
}

function showCharts(view, parent, about) {
  const samples = new Samples();
  const drawn = new Map();
  let nodes = null;
  const load = async () => {
    let response;
    try {
      response = await request("GET", "/metrics", { signal: view.signal });
      samples.add(response.headers.get("x-latchgate-node") ?? "", await bodyOf(response, view.signal));
    } catch (problem) {
      if (problem.status !== 401 && problem.status !== 403) throw problem;
      replace(parent, empty("The metrics need an API key of the app default with the scope read."));
      return;
    }
    for (const [title, name, series, format, values] of CHARTS) {
      if (!samples.has(name)) continue;
      if (!drawn.has(name)) drawn.set(name, new Chart(title, series, format));
      drawn.get(name).add(...values(samples, name));
    }
    const shown = CHARTS.map(([, name]) => drawn.get(name)?.element).filter(Boolean);
    if (parent.childElementCount !== shown.length) {
      replace(parent, shown.length ? shown : empty("This node has none of the metrics that the charts show."));
    }
    const of = nodes !== null && nodes > samples.count ? ` of ${nodes}` : "";
    about.textContent = `Live, of ${plural(samples.count, "node")}${of} that answered in the last 30 seconds`;
  };
  view.every(2000, load);
  if (view.me.operator) view.get("/v1/admin/engines").then(({ nodes: all }) => (nodes = all.length), () => {});
}

function showEngines(view, parent) {
  const engines = panel("Engines", empty("Loading…"));
  const nodes = panel("Nodes", empty("Loading…"));
  replace(parent, engines, nodes);
  view.every(5000, async () => {
    const show = (content) => {
      replace(engines, h("h2", {}, "Engines"), content(enginesInShort));
      replace(nodes, h("h2", {}, "Nodes"), content(({ nodes: all }) => nodesTable(all, true)));
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
  const parts = [["Locks", answer.locks], ["Gate", answer.gate], ["Durable operations", answer.durable]];
  return parts.filter(([, use]) => use).map(([name, use]) => {
    const silent = use.engines.filter((engine) => !engine.answers).map((engine) => engine.name);
    return facts(
      [name, h("span", {}, use.active ?? "none", " ", stateOf(use))],
      ["Epoch", use.epoch],
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
