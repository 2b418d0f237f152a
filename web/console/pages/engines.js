// The engines, which of them is in use, and the nodes.

import { call } from "../api.js";
import { h, replace } from "../dom.js";
import { duration, time } from "../format.js";
import { ask, badge, button, countdown, empty, facts, head, panel, table, toast } from "../widgets.js";

const USES = [["locks", "Locks"], ["gate", "Gate"]];
const STATES = { active: "good", standby: "", filling: "warn", moving: "warn", retired: "" };
/** A switch copies all states before it answers. */
const SWITCH_MS = 60_000;

export function engines(view) {
  const uses = h("div", {});
  const nodes = panel("Nodes", empty("Loading…"));
  view.show(head("Engines", "Which stores there are, and which of them this node uses."), uses, nodes);
  const refresh = view.every(3000, async () => {
    const answer = await view.get("/v1/admin/engines");
    replace(uses, USES.filter(([name]) => answer[name]).map(([name, title]) => usePanel(name, title, answer[name], () => refresh())));
    replace(nodes, h("h2", {}, "Nodes"), nodesTable(answer.nodes));
  });
}

function usePanel(name, title, use, refresh) {
  const others = use.engines.filter((engine) => engine.name !== use.active);
  const actions = h("div", { class: "actions" },
    others.map((engine) => button(`Switch to ${engine.name}…`, () => switchTo(name, engine, refresh), { "data-focus": `${name}-${engine.name}` })),
    use.hold_off_ms > 0 && button("End the hold-off…", () => endHoldOff(name, refresh), { class: "danger", "data-focus": `${name}-end` }),
    use.hold_off_ms === 0 && button("Begin a hold-off…", () => beginHoldOff(name, refresh), { "data-focus": `${name}-begin` }));
  return h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, title), actions),
    use.trouble && h("p", { class: "problem" }, use.trouble),
    facts(
      ["In use", use.active ?? badge("none", "bad")],
      ["Hold-off", use.hold_off_ms > 0 ? [badge(name === "locks" ? "no new leases" : "records may be missing", "warn"), " for ", countdown(use.hold_off_ms)] : "none"],
      ["Ended early", use.forced_ms > 0 && ["leases may be missing for ", countdown(use.forced_ms)]]),
    table(`Engines of ${title.toLowerCase()}`, [
      { label: "Engine", cell: (engine) => engine.name },
      { label: "Kind", cell: (engine) => engine.kind, class: "hide" },
      { label: "Answers", cell: (engine) => (engine.answers ? badge("yes", "good") : [badge("no", "bad"), engine.trouble && h("p", { class: "about" }, engine.trouble)]) },
      { label: "State", cell: (engine) => (engine.state ? badge(engine.state, STATES[engine.state]) : "–") },
      use.engines.some(({ copied }) => copied !== undefined) && { label: "Copied", cell: (engine) => engine.copied ?? "", class: "number" },
      { label: "Longest lease", cell: (engine) => (engine.ttl_ms_max === undefined ? "–" : duration(engine.ttl_ms_max)), class: "hide" },
    ].filter(Boolean), use.engines),
    h("details", {}, h("summary", {}, "Epochs"), facts(["This node", use.epoch ?? "none"], ...use.engines.map((engine) => [engine.name, engine.epoch]))));
}

function switchTo(name, engine, refresh) {
  ask({
    title: `Switch to ${engine.name}`,
    text: `All states are copied to ${engine.name}, and then all nodes use it. Leases and waiters stay. During the copy, calls get 503 and can be repeated.`,
    fields: [
      { name: "stopped", type: "check", label: "The active engine is stopped", hint: "Its states are lost, and a hold-off begins" },
      { name: "force", type: "check", label: "Skip the hold-off", hint: "Two clients may hold one lock, until the longest lease has run out" },
    ],
    action: "Switch",
    isDanger: true,
    run: async ({ stopped, force }) => {
      await call("POST", `/v1/admin/engines/${name}`, { body: { engine: engine.name, stopped, force }, patienceMs: SWITCH_MS });
      toast(`This node uses ${engine.name}.`);
      refresh();
    },
  });
}

function beginHoldOff(name, refresh) {
  ask({
    title: "Begin a hold-off",
    text: name === "locks"
      ? "No node grants new leases until it ends. Leases can be renewed and released. Begin one when leases may have been lost."
      : "Until it ends, an operation without a record is refused, unless its pre says on_expiry: retry.",
    fields: [{ name: "seconds", type: "number", label: "Seconds", hint: "Empty: as long as the longest lease allowed" }],
    action: "Begin",
    isDanger: true,
    run: async ({ seconds }) => {
      const body = { of: name, ...(seconds !== null && { for_ms: seconds * 1000 }) };
      const { hold_off_ms: ms } = await call("POST", "/v1/admin/hold-off", { body });
      toast(`A hold-off lasts ${duration(ms)}.`);
      refresh();
    },
  });
}

function endHoldOff(name, refresh) {
  ask({
    title: "End the hold-off",
    text: "End it only if no lease was lost: otherwise two clients may hold one lock.",
    action: "End it now",
    isDanger: true,
    run: async () => {
      await call("POST", "/v1/admin/hold-off", { body: { of: name, for_ms: 0 } });
      toast("The hold-off has ended.");
      refresh();
    },
  });
}

export function nodesTable(nodes, isShort = false) {
  if (nodes.length === 0) return empty("No node has entered itself yet.");
  // All nodes use the same engine in the same epoch, but for a moment during a switch.
  const newest = (name) => Math.max(...nodes.map((node) => node[name]?.epoch ?? 0));
  const used = (name) => ({ [name]: use }) => (use ? [use.engine, use.epoch < newest(name) && [" ", badge("not yet switched", "warn")]] : badge("none", "bad"));
  return table("Nodes", [
    { label: "Address", cell: (node) => node.address, class: "mono key" },
    !isShort && { label: "Node", cell: (node) => node.node, class: "mono hide" },
    { label: "Version", cell: (node) => node.version },
    !isShort && { label: "Locks", cell: used("locks") },
    !isShort && { label: "Gate", cell: used("gate") },
    !isShort && { label: "Started", cell: (node) => time(node.started_at), class: "hide" },
    { label: "Last seen", cell: (node) => (node.seen_ms_ago === 0 ? "this node" : `${duration(node.seen_ms_ago)} ago`) },
  ].filter(Boolean), nodes);
}
