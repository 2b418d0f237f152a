// The list of locks, and the way to take one.

import { lockPath, post } from "../api.js";
import { h, replace } from "../dom.js";
import { plural } from "../format.js";
import { Pages, ask, badge, button, countdown, empty, head, table } from "../widgets.js";

const PAGE = 50;

export function locks(view) {
  const { prefix = view.me.prefixes[0] ?? "", owner = "", held = "", sort = "" } = view.query;
  const inputs = {
    prefix: h("input", { type: "search", value: prefix, placeholder: "orders/", class: "mono", autocomplete: "off", spellcheck: "false" }),
    owner: h("input", { type: "search", value: owner, autocomplete: "off", spellcheck: "false" }),
    held: h("select", {}, [["", "held or free"], ["true", "held"], ["false", "free"]].map(([value, name]) =>
      h("option", { value, selected: value === held }, name))),
    sort: h("select", {}, [["", "key"], ["waiters", "most waiters"]].map(([value, name]) =>
      h("option", { value, selected: value === sort }, name))),
  };
  let query = { prefix, owner, held, sort };
  const list = h("div", {});
  const load = async () => {
    const answer = await view.get("/v1/locks", { ...query, limit: PAGE, cursor: pages.cursor });
    replace(list, listed(answer, query));
    pages.show(answer.next_cursor, answer.locks.length > 0 && `, ${plural(answer.locks.length, "key")}`);
  };
  const pages = new Pages(() => refresh());
  const search = (event) => {
    event.preventDefault();
    query = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
    view.remember(query);
    pages.reset();
    refresh();
  };
  const form = h("form", { class: "filters", role: "search", onsubmit: search },
    h("label", {}, "Key begins with", inputs.prefix),
    h("label", {}, "Held by", inputs.owner),
    h("label", {}, "State", inputs.held),
    h("label", {}, "Sort by", inputs.sort),
    h("button", { type: "submit", class: "primary" }, "Search"));
  inputs.held.addEventListener("change", search);
  inputs.sort.addEventListener("change", search);
  view.show(
    head("Locks", null, view.may("take") && button("Take a lock…", () => take(view, query.prefix))),
    form, list, pages.element);
  // With a filter, the node looks through many keys for one page.
  const refresh = view.every(() => (query.owner || query.held || query.sort ? 30_000 : 4000), load);
}

function listed({ locks: rows, unreadable = [], next_cursor }, query) {
  const broken = unreadable.length > 0 && h("p", { class: "problem" }, "The state of these keys cannot be read: ", unreadable.join(", "));
  if (rows.length === 0) {
    const isFiltered = query.prefix || query.owner || query.held || query.sort;
    return [broken, empty(next_cursor ? "None among the keys that were looked through for this page. The next page looks further."
      : isFiltered ? "No lock fits." : "No lock has been taken yet.")];
  }
  return [broken, table("Locks", [
    { label: "Key", cell: (lock) => h("a", { href: `#/locks/${encodeURIComponent(lock.key)}`, class: "mono" }, lock.key), class: "key" },
    { label: "State", cell: stateOf },
    { label: "Held by", cell: heldBy, class: "key" },
    { label: "Time left", cell: (lock) => lock.held && countdown(Math.min(...lock.holders.map(({ ttl_ms: ms }) => ms))) },
    { label: "Waiting", cell: (lock) => lock.waiters || "", class: "number" },
    { label: "Token", cell: (lock) => lock.last_token || "", class: "number hide" },
  ], rows)];
}

export function stateOf(lock) {
  if (lock.closed) return badge("closed", "warn");
  if (lock.holders.some((holder) => holder.revocation)) return badge("revoked", "warn");
  if (lock.limit) return badge(`${lock.permits_held} of ${lock.limit}`, lock.held ? "held" : "");
  if (lock.held) return badge(lock.holders[0]?.mode === "shared" ? "shared" : "held", "held");
  return lock.delayed_until ? badge("delayed", "warn") : badge("free");
}

function heldBy({ holders, holders_count: count }) {
  if (count === 0) return "";
  return [holders[0].owner, count > 1 && h("span", { class: "about" }, ` and ${count - 1} more`)];
}

/** The leases that this page has taken, by key. They are not kept: a lease ends by itself. */
export const taken = new Map();

/** Asks for a lock, for trying out. */
export function take(view, key = "", isFixed = false) {
  ask({
    title: isFixed ? `Take ${key}` : "Take a lock",
    text: "For trying out: the console holds the lock until you release it, or until the lease expires.",
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
      const page = `#/locks/${encodeURIComponent(named)}`;
      if (location.hash === page) view.refresh?.();
      else location.hash = page;
    },
  });
}
