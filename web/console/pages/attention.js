// What a person opens the overview for: keys that many wait for, leases that are held long, operations that need a decision, closed keys.

import { addressOf } from "../api.js";
import { h, replace } from "../dom.js";
import { number, plural, time } from "../format.js";
import { badge, countdown, empty, heldFor, keyLink, pageOf, panel, problemBox, since, table, timeLeft } from "../widgets.js";
import { decisionOf, needingDecision, undecidedSince } from "./decisions.js";
import { heldBy } from "./locks.js";

const ROWS = 6;
/** Most pages that one list reads: a page looks through 1 000 keys. */
const PAGES_MAX = 5;

const LISTS = [
  {
    title: "Most contended keys", address: { sort: "waiters", state: "any" }, query: { sort: "waiters" }, none: "No request waits.",
    rank: (lock) => -lock.waiters, total: (rows) => plural(rows.reduce((sum, lock) => sum + lock.waiters, 0), "waiting request"),
    columns: [
      { label: "Key", cell: keyLink, class: "key" },
      { label: "Waiting", cell: (lock) => number(lock.waiters), class: "number" },
      { label: "Held by", cell: heldBy, class: "key" },
    ],
  },
  {
    title: "Leases held longest", address: { sort: "held_since" }, query: { sort: "held_since" }, none: "No lease holds a lock.",
    rank: ({ holders }) => Date.parse(holders[0].granted_at), total: (rows) => plural(rows.length, "held key"),
    columns: [
      { label: "Key", cell: keyLink, class: "key" },
      { label: "Held for", cell: ({ holders: [first] }) => heldFor(first) },
      { label: "Held by", cell: heldBy, class: "key" },
      { label: "Time left", cell: ({ holders: [first] }) => timeLeft(first), class: "hide" },
    ],
  },
  {
    title: "Closed keys", address: { state: "closed" }, query: { closed: "true" }, none: "No key is closed.",
    rank: ({ closed }) => Date.parse(closed.since), total: (rows) => plural(rows.length, "closed key"),
    columns: [
      { label: "Key", cell: keyLink, class: "key" },
      { label: "Closed for", cell: ({ closed }) => since(closed.since) },
      { label: "Opens in", cell: ({ closed }) => (closed.until ? h("span", { title: time(closed.until) }, countdown(closed.until_ms)) : "–"), class: "hide" },
      { label: "Reason", cell: ({ closed }) => closed.reason, class: "key" },
    ],
  },
];

const DECISIONS = [
  { label: "Operation", cell: (row) => h("a", { href: pageOf("operations", row.id, row.app) }, row.operation), class: "key" },
  { label: "Label", cell: (row) => row.label, class: "key" },
  { label: "Why", cell: (row) => badge(...decisionOf(row)) },
  { label: "For", cell: (row) => since(undecidedSince(row)) },
];

export function attention(view, parent) {
  // One after the other: together they may be more than the app's quota lets come at once.
  let asked = Promise.resolve();
  const inTurn = (load) => () => {
    const loading = asked.then(load);
    asked = loading.catch(() => {});
    return loading;
  };
  const decisions = show(view, "Operations that need a decision", addressOf("operations", { state: "decision" }), inTurn(async () => {
    const { rows, isAll } = await needingDecision(view);
    return { rows, isAll, columns: DECISIONS, none: "No operation needs a decision.", total: (all) => plural(all.length, "operation"), of: "operations" };
  }));
  const [contended, held, closed] = LISTS.map((list) => show(view, list.title, addressOf("locks", list.address), inTurn(() => locks(view, list))));
  replace(parent, contended, held, decisions, closed);
}

/** The app in front of the name: another column would be too wide here. */
function withApp([first, ...others]) {
  return [{ ...first, cell: (row) => [row.app && h("span", { class: "about" }, row.app, " "), first.cell(row)] }, ...others];
}

/** A list that asks again, less often the more the node had to read. */
function show(view, title, href, load) {
  const heading = h("h2", {}, h("a", { href }, title));
  const shown = h("div", { class: "stack" }, empty("Loading…"));
  let pauseMs = 5000;
  view.every(() => pauseMs, async () => {
    try {
      const { rows, isAll, columns, none, total, of = "keys", scanned = 1 } = await load();
      pauseMs = scanned * 5000;
      const rest = !isAll && h("p", { class: "about" }, `Among the ${of} that were looked through: there are more.`);
      replace(shown, rows.length === 0 ? empty(none) : table(title, withApp(columns), rows.slice(0, ROWS)),
        rows.length > ROWS && h("p", { class: "about" }, h("a", { href }, `All: ${total(rows)}`)), rest);
    } catch (problem) {
      if (problem.status === 429) {
        // What was known stays, and is asked for again when the quota lets more come: not at the moment of the other lists.
        pauseMs = 2000;
        if (!shown.querySelector("table")) replace(shown, empty("The app has used up its quota of requests: asked again in a moment."));
        return;
      }
      // While the node or its store is away, what was known stays.
      if (problem.status === 0 || problem.status === 503 || problem.status === undefined) throw problem;
      replace(shown, problemBox(problem));
    }
  });
  return panel(null, heading, shown);
}

/** The locks of a list, from as many pages as it may read. */
async function locks(view, list) {
  const rows = [];
  let scanned = 0;
  let isAll = true;
  for (const prefix of view.me.prefixes.length > 0 ? view.me.prefixes : [""]) {
    let cursor = "";
    do {
      const answer = await view.get("/v1/locks", { ...list.query, prefix, limit: 100, cursor });
      rows.push(...answer.locks);
      cursor = answer.next_cursor;
      scanned += 1;
    } while (cursor && scanned < PAGES_MAX);
    isAll &&= !cursor;
  }
  return { ...list, rows: rows.sort((a, b) => list.rank(a) - list.rank(b)), isAll, scanned };
}
