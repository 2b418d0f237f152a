// One lock: who holds it, who waits, and what has happened.

import { call, lockPath, post } from "../api.js";
import { h, replace } from "../dom.js";
import { plural, time, words } from "../format.js";
import {
  ask, badge, button, countdown, empty, eventDetails, eventDot, facts, heldFor, ownerLink, panel, problemBox, since, table, timeLeft, toast,
} from "../widgets.js";
import { by, closeFields, closingOf, eachLease, stateOf, take, taken } from "./locks.js";

const HISTORY_PAGE = 30;

export function lock(view) {
  const key = view.one;
  const title = h("span", {});
  const actions = h("div", { class: "actions" });
  const now = h("div", {});
  const timeline = new Timeline(view, key);
  const tokens = h("div", {});
  view.show(
    h("div", { class: "head" }, h("h1", { class: "mono key" }, key, " ", title), actions),
    now, timeline.element, h("details", { class: "panel" }, h("summary", {}, "Fencing tokens"), tokens));
  let before = "";
  view.refresh = view.every(2000, async () => {
    const shown = await view.get(lockPath(key));
    replace(title, stateOf(shown));
    replace(actions, actionsOf(view, shown));
    replace(now, own(view, key), nowOf(shown));
    replace(tokens, fencing(shown));
    // A change of the holders is an event.
    const holders = JSON.stringify([shown.last_token, shown.holders_count, shown.holders.map((holder) => [holder.token, holder.revocation?.deadline])]);
    if (holders !== before) await timeline.load();
    before = holders;
  });
}

function actionsOf(view, shown) {
  const { key } = shown;
  return [
    view.may("take", key) && button("Take it…", () => take(view, key, true), { "data-focus": "take" }),
    view.may("locks", key) && shown.held && button("Revoke…", () => revoke(view, shown), { "data-focus": "revoke" }),
    view.may("admin", key) && shown.held && button("Force…", () => force(view, shown), { class: "danger", "data-focus": "force" }),
    view.may("admin", key) && (shown.closed
      ? button("Open", () => open(view, shown), { "data-focus": "close" })
      : button("Close…", () => close(view, shown), { "data-focus": "close" })),
  ];
}

function revoke(view, { key, holders, holders_count: count }) {
  ask({
    title: `Revoke ${key}`,
    text: `The ${count === 1 ? "holder learns" : `${count} holders learn`} it from the next renewal, and can end the work within the grace period. Then the lease ends.`,
    fields: [
      { name: "grace_s", label: "Grace period, in seconds", type: "number", value: "10" },
      { name: "reason", label: "Reason", placeholder: "deploy", hint: "The holder reads it" },
    ],
    action: "Revoke",
    isDanger: true,
    run: async ({ grace_s: grace, reason }) => {
      const body = { grace_ms: (grace ?? 10) * 1000, by: by(view), ...(reason && { reason }) };
      await eachLease(holders, (token) => post(lockPath(key, "revoke"), { ...body, token }));
      toast(`Revoked ${plural(count, "lease")} of ${key}.`);
      view.refresh();
    },
  });
}

function force(view, { key, holders, holders_count: count }) {
  const first = holders[0]?.owner ?? "the holder";
  ask({
    title: `Force ${key}`,
    text: [
      `${count === 1 ? `The lease of ${first} ends` : `All ${count} leases end`} now, and the first waiter gets the lock.`,
      "A holder that still works does not know it until its next renewal: two clients may work at once. Revoke, if you can wait.",
    ],
    fields: [{ name: "reason", label: "Reason", placeholder: "the host is gone" }],
    action: "End the leases now",
    isDanger: true,
    run: async ({ reason }) => {
      await eachLease(holders, (token) => call("DELETE", lockPath(key), { query: { token, reason, by: by(view) } }));
      toast(`Ended ${plural(count, "lease")} of ${key}.`);
      view.refresh();
    },
  });
}

function close(view, { key }) {
  ask({
    title: `Close ${key}`,
    text: "From now on no client is granted the lock. Holders keep their leases, and waiters their positions.",
    fields: closeFields(),
    action: "Close",
    isDanger: true,
    run: async (values) => {
      await call("PUT", lockPath(key, "closed"), { body: closingOf(values) });
      toast(`Closed ${key}.`);
      view.refresh();
    },
  });
}

async function open(view, { key }) {
  try {
    await call("DELETE", lockPath(key, "closed"));
    toast(`Opened ${key}.`);
  } catch (problem) {
    toast(problem.message);
  }
  view.refresh();
}

/** The lease that this page has taken. */
function own(view, key) {
  const lease = taken.get(key);
  if (!lease) return null;
  const act = (verb, said) => async () => {
    try {
      const answer = await post(lockPath(key, verb), { lease_id: lease.lease_id });
      if (verb === "release") taken.delete(key);
      else Object.assign(lease, answer);
      toast(said);
    } catch (problem) {
      if (problem.status === 410) taken.delete(key);
      toast(problem.message);
    }
    view.refresh();
  };
  return h("div", { class: "own" }, h("p", {}, "This page holds the lock."),
    h("div", { class: "actions" },
      button("Renew", act("renew", "Renewed."), { "data-focus": "renew" }),
      button("Release", act("release", "Released."), { "data-focus": "release", class: "primary" })));
}

function nowOf(shown) {
  return [
    facts(
      ["Closed", shown.closed && `${shown.closed.until ? `until ${time(shown.closed.until)}` : "until it is opened"}: “${shown.closed.reason}”`],
      ["Permits", shown.limit && `${shown.permits_held ?? 0} of ${shown.limit} held${shown.permits_kept ? `, ${shown.permits_kept} of them kept after an early end` : ""}`],
      ["Not granted before", shown.delayed_until && time(shown.delayed_until)]),
    panel("Held by", shown.held ? holdersTable(shown.holders) : empty(shown.closed || shown.delayed_until ? "No lease holds the lock." : "No lease: the lock is free.")),
    panel("Waiting", waitingOf(shown)),
  ];
}

/** Tokens are long numbers that only programs compare, so they are shown on request. */
function fencing({ last_token: last, fence, holders }) {
  return [
    facts(["Highest token granted", last || "none yet"], ["Highest token presented", fence]),
    holders.length > 0 && table("Tokens", [
      { label: "Owner", cell: ({ owner }) => owner, class: "key" },
      { label: "Token", cell: ({ token }) => token, class: "number" },
    ], holders),
  ];
}

function holdersTable(holders) {
  return table("Holders", [
    { label: "Owner", cell: ownerOf, class: "key" },
    { label: "Mode", cell: ({ mode, permits, slots, group }) => (permits ? `${plural(permits, "permit")}${slots ? `: ${slots.join(", ")}` : ""}${group ? ` for ${group}` : ""}` : mode) },
    { label: "Held for", cell: heldFor },
    { label: "Time left", cell: timeLeft },
  ], holders);
}

function ownerOf({ owner, revocation, metadata, hold_until: until }) {
  return [ownerLink(owner),
    revocation && h("p", { class: "about" }, badge("revoked", "warn"), " ends within ", countdown(revocation.deadline_ms),
      revocation.reason && ` · “${revocation.reason}”`, revocation.by && ` · by ${revocation.by}`),
    until && h("p", { class: "about" }, `Not renewed beyond ${time(until)}`),
    metadata && h("p", { class: "about mono" }, JSON.stringify(metadata))];
}

function waitingOf({ waiters, waiting, waiting_elsewhere: elsewhere }) {
  if (!waiting) return empty(waiters === 0 ? "No request waits." : `${plural(waiters, "request waits", "requests wait")}. This node does not tell which.`);
  const others = Array.isArray(elsewhere) ? elsewhere.length : Number(elsewhere ?? 0);
  const rest = others > 0 && h("p", { class: "about" }, `${plural(others, "more request waits", "more requests wait")} at other nodes.`);
  if (waiting.length === 0) return others > 0 ? rest : empty("No request waits.");
  const beyond = waiters - waiting.length - others;
  return [table("Waiting requests", [
    { label: "Owner", cell: ({ owner }) => (owner ? ownerLink(owner) : h("span", { class: "about" }, "without a name")), class: "key" },
    { label: "Mode", cell: ({ mode, permits }) => (permits ? plural(permits, "permit") : mode) },
    { label: "Priority", cell: ({ priority }) => priority, class: "number" },
    { label: "Waits for", cell: ({ since: from }) => since(from) },
  ], waiting), rest, beyond > 0 && h("p", { class: "about" }, `${plural(beyond, "more request waits", "more requests wait")}.`)];
}

/** The history, newest first. */
class Timeline {
  events = [];
  element = panel("History");

  constructor(view, key) {
    this.view = view;
    this.key = key;
  }

  /** Loads what is new, or the page before what is shown. */
  async load(cursor) {
    let answer;
    try {
      answer = await this.view.get(lockPath(this.key, "history"), { limit: HISTORY_PAGE, cursor });
    } catch (problem) {
      if (problem.status === 0 || problem.status === 503) throw problem;
      const off = problem.code === "history-off" && empty("This node keeps no history.");
      replace(this.element, h("h2", {}, "History"), off || problemBox(problem));
      return;
    }
    if (cursor) this.events.push(...answer.events);
    else this.events = answer.events;
    this.next = answer.next_cursor;
    this.show();
  }

  show() {
    const older = () => this.load(this.next).catch((problem) => this.view.fail(problem));
    replace(this.element, h("h2", {}, "History"),
      this.events.length === 0 ? empty("No event, or none that is still kept.") : h("ol", { class: "timeline" }, this.events.map(entry)),
      this.next && button("Older events", older, { "data-focus": "older" }));
  }
}

function entry(event) {
  return h("li", {}, eventDot(event.kind),
    h("time", { datetime: event.at, title: event.at }, time(event.at)),
    h("div", {}, h("b", {}, words(event.kind)), event.owner && [" ", h("span", { class: "key" }, ownerLink(event.owner))],
      h("span", { class: "about" }, " ", eventDetails(event))));
}
