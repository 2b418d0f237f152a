// The list of locks, what can be done to several of them, and the way to take one.

import { ALL_APPS, addressOf, call, lockPath, post, serverNow } from "../api.js";
import { h, replace } from "../dom.js";
import { number, plural } from "../format.js";
import { Selection } from "../selection.js";
import { Pages, appColumn, ask, badge, button, choice, empty, head, heldFor, keyLink, ownerLink, table, timeLeft } from "../widgets.js";

const PAGE = 50;
/** Most keys of a page, also those that a sorted page looks through, and most pages, when all keys are counted. */
const COUNTED_PAGE = 1000;
const COUNTED_PAGES_MAX = 20;
const STATES = [["any", "any"], ["held", "held"], ["free", "free"], ["closed", "closed"]];
const ORDERS = [["", "key"], ["waiters", "most waiters"], ["held_since", "held longest"]];

export function locks(view) {
  const { prefix = view.me.prefixes[0] ?? "", owner = "", state = "held", sort = "" } = view.query;
  const inputs = {
    prefix: h("input", { type: "search", value: prefix, placeholder: "orders/", class: "mono", autocomplete: "off", spellcheck: "false" }),
    owner: h("input", { type: "search", value: owner, autocomplete: "off", spellcheck: "false" }),
    state: choice(STATES, state),
    sort: choice(ORDERS, sort),
  };
  let query = { prefix, owner, state, sort };
  const list = h("div", {});
  const totals = new Totals(view);
  const selection = new Selection({ idOf: ({ app = "", key }) => `${app}/${key}`, nameOf: ({ app, key }) => (app ? `${key} of ${app}` : key), noun: "key", actionsOf: (rows) => bulk(view, selection, rows, refresh) });
  let tookMs = 0;
  const load = async () => {
    const asked = performance.now();
    const answer = await view.get("/v1/locks", { ...parameters(query), limit: PAGE, cursor: pages.cursor });
    tookMs = performance.now() - asked;
    replace(list, listed(view, answer, query, selection, (by) => {
      inputs.sort.value = by;
      search();
    }));
    pages.show(answer.next_cursor, answer.locks.length > 0 && `, ${plural(answer.locks.length, "key")}`);
    totals.show(answer.locks, pages.isWhole, query);
  };
  const pages = new Pages(() => refresh());
  const search = (event) => {
    event?.preventDefault();
    query = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
    view.remember({ ...query, state: query.state === "held" ? "" : query.state });
    pages.reset();
    refresh();
  };
  const form = h("form", { class: "filters", role: "search", onsubmit: search },
    h("label", {}, "Key begins with", inputs.prefix),
    h("label", {}, "Held by", inputs.owner),
    h("label", {}, "State", inputs.state),
    h("label", {}, "Sort by", inputs.sort),
    h("button", { type: "submit", class: "primary" }, "Search"));
  inputs.state.addEventListener("change", search);
  inputs.sort.addEventListener("change", search);
  view.show(
    head("Locks", null, view.may("take") && button("Take a lock…", () => take(view, query.prefix))),
    form, totals.element, selection.bar, list, pages.element);
  // With a filter, the node may look through many keys for one page.
  const refresh = view.every(() => Math.min(Math.max(4000, tookMs * 50), 30_000), load);
}

/** The query of the API. */
function parameters({ state, ...query }) {
  return { ...query, held: { held: "true", free: "false" }[state], closed: state === "closed" ? "true" : undefined };
}

function listed(view, { locks: rows, unreadable = [], next_cursor }, query, selection, onSort) {
  const broken = unreadable.length > 0 && h("p", { class: "problem" }, "The state of these keys cannot be read: ", unreadable.join(", "));
  const mayActOn = view.may("locks") || view.may("admin");
  const chosen = selection.column(rows);
  if (rows.length === 0) {
    const isFiltered = query.prefix || query.owner || query.sort || !["any", "held"].includes(query.state);
    return [broken, empty(next_cursor ? "None among the keys that were looked through for this page. The next page looks further."
      : isFiltered ? "No lock fits." : query.state === "held" ? "No lock is held." : "No lock has been taken yet.")];
  }
  // The order is that of one page, which is cut.
  const part = query.sort && (next_cursor || rows.length === PAGE) && h("p", { class: "about" },
    `In this order, a page looks through ${number(COUNTED_PAGE)} keys and shows the first ${PAGE} of those that fit: others that belong here may be missing.`);
  return [broken, part, table("Locks", [
    mayActOn && chosen,
    appColumn(rows),
    { label: "Key", cell: keyLink, class: "key title", sort: "" },
    { label: "State", cell: stateOf },
    { label: "Held by", cell: heldBy, class: "key" },
    { label: "Held for", cell: ({ holders }) => holders[0] && heldFor(holders[0]), sort: "held_since", isDescending: true },
    { label: "Time left", cell: (lock) => lock.held && timeLeft(lock.holders.reduce((first, holder) => (holder.ttl_ms < first.ttl_ms ? holder : first))) },
    { label: "Waiting", cell: (lock) => lock.waiters || "", class: "number", sort: "waiters", isDescending: true },
  ].filter(Boolean), rows, { sorted: query.sort, onSort })];
}

export function stateOf(lock) {
  if (lock.closed) return badge("closed", "warn");
  if (lock.holders.some((holder) => holder.revocation)) return badge("revoked", "warn");
  if (lock.limit) return badge(`${lock.permits_held} of ${lock.limit}`, lock.held ? "held" : "");
  if (lock.held) return badge(lock.holders[0]?.mode === "shared" ? "shared" : "held", "held");
  return lock.delayed_until ? badge("delayed", "warn") : badge("free");
}

export function heldBy({ holders, holders_count: count }) {
  if (count === 0) return "";
  return [ownerLink(holders[0].owner), count > 1 && h("span", { class: "about" }, ` and ${count - 1} more`)];
}

// Totals.

function inWords(rows) {
  const count = (fits) => rows.filter(fits).length;
  const waiters = rows.reduce((sum, lock) => sum + lock.waiters, 0);
  const leases = rows.reduce((sum, lock) => sum + lock.holders_count, 0);
  return [`${plural(rows.length, "key")}, ${number(count(({ held }) => held))} held by ${plural(leases, "lease")}`,
    waiters > 0 && `, ${plural(waiters, "request waits", "requests wait")}`, count(({ closed }) => closed) > 0 && `, ${count(({ closed }) => closed)} closed`].filter(Boolean).join("");
}

class Totals {
  element = h("p", { class: "about", "aria-live": "polite" });

  constructor(view) {
    this.view = view;
  }

  /** After a page was loaded. More than a page is counted only when a person wants it, because the node reads all of it. */
  show(rows, isWhole, query) {
    if (isWhole) replace(this.element, rows.length > 0 && inWords(rows));
    else if (this.query !== query) replace(this.element, button("Count all", () => this.count(query), { class: "plain" }));
    this.query = isWhole ? null : query;
  }

  async count(query) {
    try {
      let [rows, cursor, pages] = [[], "", 0];
      do {
        const answer = await this.view.get("/v1/locks", { ...parameters(query), sort: "", limit: COUNTED_PAGE, cursor });
        rows = rows.concat(answer.locks.map(({ held, waiters, closed, holders_count }) => ({ held, waiters, closed, holders_count })));
        cursor = answer.next_cursor;
        pages += 1;
        if (this.query !== query) return;
        replace(this.element, `${number(rows.length)} keys so far…`);
      } while (cursor && pages < COUNTED_PAGES_MAX);
      replace(this.element, cursor ? "Of the first: " : "", inWords(rows));
    } catch (problem) {
      this.view.fail(problem);
    }
  }
}

// Several at once.

function bulk(view, selection, rows, refresh) {
  const held = rows.filter((lock) => lock.held);
  const closed = rows.filter((lock) => lock.closed);
  const open = rows.filter((lock) => !lock.closed);
  const askFor = (title, of, question) => () => selection.ask({ rows: of, refresh, title: `${title} ${plural(of.length, "key")}`, isDanger: true, ...question });
  return [
    view.may("locks") && button("Revoke…", askFor("Revoke", held, {
      text: "Each holder learns it from its next renewal, and can end its work within the grace period. Then its lease ends.",
      fields: [{ name: "grace_s", label: "Grace period, in seconds", type: "number", value: "10" }, { name: "reason", label: "Reason", placeholder: "deploy", hint: "The holders read it" }],
      action: "Revoke all",
      each: ({ app, key, holders }, { grace_s: grace, reason }) => eachLease(holders, (token) =>
        post(lockPath(key, "revoke"), { token, grace_ms: (grace ?? 10) * 1000, by: by(view), ...(reason && { reason }) }, { query: { app } })),
      said: (count) => `Revoked the leases of ${plural(count, "key")}.`,
    }), { disabled: held.length === 0, "data-focus": "bulk-revoke" }),
    view.may("admin") && button("Force…", askFor("Force", held, {
      text: "All their leases end now. A holder that still works does not know it until its next renewal: two clients may work at once.",
      fields: [{ name: "reason", label: "Reason", placeholder: "the host is gone" }, { name: "sure", label: "Two clients may work at once", type: "check", required: true }],
      action: "End the leases now",
      each: ({ app, key, holders }, { reason }) => eachLease(holders, (token) => call("DELETE", lockPath(key), { query: { app, token, reason, by: by(view) } })),
      said: (count) => `Ended the leases of ${plural(count, "key")}.`,
    }), { disabled: held.length === 0, class: "danger", "data-focus": "bulk-force" }),
    view.may("admin") && button("Close…", askFor("Close", open, {
      text: "From now on no client is granted these locks. Holders keep their leases, and waiters their positions.",
      fields: closeFields(),
      action: "Close all",
      each: ({ app, key }, values) => call("PUT", lockPath(key, "closed"), { query: { app }, body: closingOf(values) }),
      said: (count) => `Closed ${plural(count, "key")}.`,
    }), { disabled: open.length === 0, "data-focus": "bulk-close" }),
    view.may("admin") && button("Open…", askFor("Open", closed, {
      text: "The first waiter of each may be granted at once.",
      action: "Open all",
      each: ({ app, key }) => call("DELETE", lockPath(key, "closed"), { query: { app } }),
      said: (count) => `Opened ${plural(count, "key")}.`,
    }), { disabled: closed.length === 0, "data-focus": "bulk-open" }),
  ];
}

export function closeFields() {
  return [
    { name: "reason", label: "Reason", placeholder: "release weekend", hint: "Refused clients see it", required: true },
    { name: "for_h", label: "For how long, in hours", type: "number", hint: "Until it is opened, if empty" },
  ];
}

/** The body of a request that closes a key. */
export function closingOf({ reason, for_h: hours }) {
  return { reason, ...(hours && { until: new Date(serverNow() + hours * 3_600_000).toISOString() }) };
}

/** Ends the leases that are on the screen, and no other one that was granted since. */
export async function eachLease(holders, end) {
  for (const token of new Set(holders.map(({ token: one }) => one))) await end(token);
}

/** Who ends leases, as events and holders are told. */
export function by(view) {
  return view.me.api_key_id ? `console, API key ${view.me.api_key_name ?? view.me.api_key_id}` : "console";
}

/** The leases that this page has taken, by key. They are not kept: a lease ends by itself. */
export const taken = new Map();

/** Asks for a lock, for trying out. */
export function take(view, key = "", isFixed = false) {
  ask({
    title: isFixed ? `Take ${key}` : "Take a lock",
    text: `For trying out: the console holds the lock${view.app === ALL_APPS ? ` in the app ${view.me.app}` : ""} until you release it, or until the lease expires.`,
    fields: [
      ...(isFixed ? [] : [{ name: "key", label: "Key", value: key, required: true }]),
      { name: "owner", label: "Owner", value: "console", required: true },
      { name: "mode", label: "Mode", type: "select", options: ["exclusive", "shared"], value: "exclusive" },
      { name: "ttl_s", label: "Lease, in seconds", type: "number", value: "60" },
      { name: "wait_s", label: "Wait for it, in seconds", type: "number", value: "0", hint: "0 does not wait" },
    ],
    action: "Take it",
    run: async ({ key: named = key, owner, mode, ttl_s: ttl, wait_s: wait }) => {
      const body = { owner, mode, ttl_ms: (ttl ?? 60) * 1000, wait_ms: (wait ?? 0) * 1000 };
      const lease = await post(lockPath(named, "acquire"), body, { patienceMs: 15_000 + body.wait_ms });
      taken.set(named, lease);
      const page = addressOf(`locks/${encodeURIComponent(named)}`);
      if (location.hash === page) view.refresh?.();
      else location.hash = page;
    },
  });
}
