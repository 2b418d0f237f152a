// The list of operations, what can be done to several of them, and finding one by its contents.

import { ALL_APPS, addressOf, call } from "../api.js";
import { h, replace } from "../dom.js";
import { number, plural, time } from "../format.js";
import { Selection } from "../selection.js";
import { Pages, appColumn, badge, button, choice, countdown, empty, facts, head, pageOf, panel, problemBox, since, table } from "../widgets.js";
import { needingDecision } from "./decisions.js";
import { by } from "./locks.js";

const PAGE = 50;
const AGES = [["", "any time"], ["60000", "a minute"], ["3600000", "an hour"], ["86400000", "a day"]];
const STATES = { started: "held", succeeded: "good", unknown: "bad", vacant: "" };
/** A choice of the list alone: see `decisions.js`. */
const DECISION = "decision";
/** What the API can sort by: it walks along all operations, and answers with one page. */
const BY_TIME = { newest: "oldest", oldest: "newest" };
const ORDERS = [["newest", "newest state"], ["store", "the store’s order"], ["oldest", "oldest state"], ["operation", "name"], ["state", "state"], ["attempt", "attempts"]];
const stateSince = (row) => row.ended_at ?? row.started_at ?? row.created_at;
/** Within one page. */
const COMPARED = {
  operation: (a, b) => a.operation.localeCompare(b.operation),
  state: (a, b) => a.state.localeCompare(b.state),
  attempt: (a, b) => b.attempt - a.attempt,
  newest: (a, b) => Date.parse(stateSince(b)) - Date.parse(stateSince(a)),
  oldest: (a, b) => Date.parse(stateSince(a)) - Date.parse(stateSince(b)),
};

export function operations(view) {
  const { operation: name = "", state = "", age = "", sort = "newest", suspect = "" } = view.query;
  const inputs = {
    operation: h("input", { type: "search", value: name, autocomplete: "off", spellcheck: "false" }),
    state: choice([["", "any"], [DECISION, "needs a decision"], ...Object.keys(STATES).map((known) => [known, known])], state),
    age: choice(AGES, age),
    sort: choice(ORDERS, sort),
    suspect: h("input", { type: "checkbox", checked: suspect === "true" }),
  };
  let query = { operation: name, state, age, sort, suspect };
  const list = h("div", {});
  const totals = h("p", { class: "about", "aria-live": "polite" });
  const selection = new Selection({
    idOf: ({ id }) => id, nameOf: ({ app, operation: of, label, id: known }) => `${of} ${label ?? known.slice(0, 12)}${app ? ` of ${app}` : ""}`, noun: "operation",
    actionsOf: (rows) => bulk(view, selection, rows, refresh),
  });
  const pages = new Pages(() => refresh());
  const search = (event) => {
    event?.preventDefault();
    const { operation, state: chosen, age: least, sort: order, suspect: suspected } = inputs;
    query = { operation: operation.value, state: chosen.value, age: least.value, sort: order.value, suspect: suspected.checked ? "true" : "" };
    view.remember({ ...query, sort: query.sort === "newest" ? "" : query.sort });
    pages.reset();
    refresh();
  };
  const sortBy = (by) => {
    inputs.sort.value = by === query.sort ? BY_TIME[by] ?? by : by;
    search();
  };
  for (const input of [inputs.state, inputs.age, inputs.sort, inputs.suspect]) input.addEventListener("change", search);
  view.show(
    head("Operations"),
    finder(view),
    h("form", { class: "filters", role: "search", onsubmit: search },
      h("label", {}, "Operation", inputs.operation),
      h("label", {}, "State", inputs.state),
      h("label", {}, "For at least", inputs.age),
      h("label", {}, "Sort by", inputs.sort),
      h("label", { class: "check" }, inputs.suspect, "only suspected double runs"),
      h("button", { type: "submit", class: "primary" }, "Search")),
    totals, selection.bar, list, pages.element);
  let tookMs = 0;
  // With a filter or an order, the node may look through many operations for one page.
  const refresh = view.every(() => Math.min(Math.max(4000, tookMs * 50), 30_000), async () => {
    const asked = performance.now();
    const answer = await page(view, query, pages.cursor);
    tookMs = performance.now() - asked;
    const rows = answer.operations;
    if (COMPARED[query.sort]) rows.sort(COMPARED[query.sort]);
    replace(list, listed(answer, query, selection, sortBy));
    const isOfPage = COMPARED[query.sort] && !BY_TIME[query.sort];
    pages.show(answer.next_cursor, rows.length > 0 && `, ${plural(rows.length, "operation")}${isOfPage ? ", sorted within the page" : ""}`);
    replace(totals, pages.isWhole && rows.length > 0 && inWords(rows, query));
  });
}

async function page(view, { state, age, sort, ...named }, cursor) {
  const filter = { ...named, older_than_ms: age };
  if (state !== DECISION) return view.get("/v1/operations", { ...filter, state, sort: BY_TIME[sort] && sort, limit: PAGE, cursor });
  const { rows, isAll } = await needingDecision(view, filter);
  return { operations: rows, incomplete: !isAll };
}

function isFiltered({ operation, state, age, suspect }) {
  return Boolean(operation || state || age || suspect);
}

function inWords(rows, { state: wanted, sort }) {
  if (BY_TIME[sort] && wanted !== DECISION && rows.length === PAGE) return `The ${PAGE} ${sort}, by the time at which the state of each began.`;
  const states = new Map();
  for (const row of rows) states.set(stateName(row), (states.get(stateName(row)) ?? 0) + 1);
  return `${plural(rows.length, "operation")}: ${[...states].map(([state, count]) => `${number(count)} ${state}`).join(", ")}`;
}

function bulk(view, selection, rows, refresh) {
  const open = rows.filter(resolvable);
  const isRisky = rows.some(needsForce);
  const resolveAll = (outcome, hasSucceeded) => () => selection.ask({
    rows: open, refresh, isDanger: !hasSucceeded,
    title: `${plural(open.length, "operation")} ${open.length === 1 ? "has" : "have"} ${hasSucceeded ? "succeeded" : "failed"}`,
    text: hasSucceeded ? "You have found out that the work of each was done." : "You have found out that the work of none was done. The next pre of each may proceed.",
    fields: [{ name: "reason", label: "How do you know?", required: true, hint: hasSucceeded ? "Kept with the records" : "Kept in the audit log" }],
    action: hasSucceeded ? "Record the successes" : "Record the failures",
    each: ({ app, id }, { reason }) => call("POST", `/v1/operations/${id}/resolve`, { query: { app }, body: { outcome, reason, by: by(view) } }),
    said: (count) => `${plural(count, "outcome")} recorded.`,
  });
  return [
    view.may("admin") && button("They succeeded…", resolveAll("success", true), { disabled: open.length === 0, "data-focus": "bulk-succeeded" }),
    view.may("admin") && button("They failed…", resolveAll("failure", false), { disabled: open.length === 0, "data-focus": "bulk-failed" }),
    view.may("operations") && button("Forget…", () => selection.ask({
      rows, refresh, isDanger: true, title: `Forget ${plural(rows.length, "operation")}`,
      text: ["Their records are deleted, so the next pre with the same contents may proceed.", ...(isRisky ? ["Some may be running or done. Then they would be done again."] : [])],
      fields: isRisky ? [FORCE] : [],
      action: "Forget all",
      each: (row, { force = false }) => call("DELETE", `/v1/operations/${row.id}`, { query: { app: row.app, force: force && needsForce(row) } }),
      said: (count) => `${plural(count, "record")} deleted.`,
    }), { class: "danger", disabled: isRisky && !view.may("admin"), "data-focus": "bulk-forget" }),
  ];
}

function listed({ operations: rows, unreadable = [], next_cursor: next, incomplete }, query, selection, onSort) {
  const broken = unreadable.length > 0 && h("p", { class: "problem" }, "The records of these operations cannot be read: ", unreadable.join(", "));
  const part = incomplete && h("p", { class: "about" }, "There are more operations than were looked through: some that belong here may be missing.");
  const chosen = selection.column(rows);
  if (rows.length === 0) {
    return [broken, part, empty(next ? "None among the operations that were looked through for this page. The next page looks further." : isFiltered(query) ? "No operation fits." : "No operation has been claimed yet.")];
  }
  return [broken, part, table("Operations", [
    chosen,
    appColumn(rows),
    { label: "Operation", cell: (row) => h("a", { href: pageOf("operations", row.id, row.app) }, row.operation), class: "key title", sort: "operation" },
    { label: "Label", cell: (row) => row.label, class: "key" },
    { label: "State", cell: stateOf, sort: "state" },
    { label: "For", cell: (row) => since(stateSince(row)), sort: BY_TIME[query.sort] ? query.sort : "newest", isDescending: query.sort === "oldest" },
    { label: "Attempt", cell: (row) => row.attempt, class: "number", sort: "attempt", isDescending: true },
    { label: "Time left", cell: (row) => row.state === "started" && row.ttl_ms > 0 && countdown(row.ttl_ms) },
    { label: "Id", cell: (row) => h("a", { href: pageOf("operations", row.id, row.app), class: "mono quiet" }, row.id.slice(0, 8), "…"), class: "hide" },
  ].filter(Boolean), rows, { sorted: query.sort, onSort })];
}

function stateName(row) {
  return row.state === "started" && row.ttl_ms === 0 ? "lease passed" : row.state;
}

export function stateOf(row) {
  const name = stateName(row);
  return [badge(name, name === row.state ? STATES[name] : "warn"), doubleRuns(row)];
}

function doubleRuns({ suspected_double_runs: count }) {
  return count > 0 && [" ", badge(plural(count, "double run"), "bad")];
}

/** Finds an operation by its name and contents, or by its id. */
function finder(view) {
  if (view.app === ALL_APPS) return h("p", { class: "about" }, "To find an operation by its contents or id, choose its app.");
  const found = h("div", { "aria-live": "polite" });
  const id = h("input", { class: "mono", required: true, pattern: "\\s*[0-9a-fA-F]{32}\\s*", title: "32 hexadecimal digits", autocomplete: "off", spellcheck: "false" });
  const byId = h("form", { class: "filters" }, h("label", { class: "wide" }, view.may("operations") ? "or its id" : "Id", id), h("button", { type: "submit" }, "Open"));
  byId.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = addressOf(`operations/${id.value.trim().toLowerCase()}`);
  });
  if (!view.may("operations")) {
    return panel("Find by id", byId, h("p", { class: "about" }, "To find an operation by its contents, the API key needs the scope operations."));
  }
  const name = h("input", { required: true, placeholder: "charge", autocomplete: "off", spellcheck: "false" });
  const contents = h("textarea", { rows: 2, class: "mono", required: true, placeholder: "{\"order\": 42, \"amount\": \"19.90\"}", spellcheck: "false" });
  const byContents = h("form", { class: "finder" },
    h("label", { class: "field" }, "Operation", name),
    h("label", { class: "field" }, "Contents", contents, h("span", { class: "hint" }, "JSON as in the pre; anything else is taken as a string")),
    h("button", { type: "submit" }, "Find"));
  byContents.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      replace(found, await find(view, name.value, contents.value));
    } catch (problem) {
      if (!view.signal.aborted) replace(found, problemBox(problem));
    }
  });
  return h("details", { class: "panel" }, h("summary", {}, "Find by contents or id"), byContents, found, byId);
}

async function find(view, name, contents) {
  // As text: numbers must arrive exactly as they were typed.
  const body = `{"operation":${JSON.stringify(name)},"contents":${isJson(contents) ? contents : JSON.stringify(contents)}}`;
  const preview = await call("POST", "/v1/operations/preview", { body, signal: view.signal });
  let state;
  try {
    const shown = await view.get(`/v1/operations/${preview.id}`);
    state = [stateOf(shown), ` attempt ${shown.attempt}, ${time(shown.created_at)}`];
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    state = [badge("no record"), " A pre with these contents would go."];
  }
  return facts(
    ["Id", h("a", { href: addressOf(`operations/${preview.id}`), class: "mono" }, preview.id)],
    ["State", state],
    ["Canonical contents", h("code", {}, preview.canonical)],
    ["SHA-256", h("code", {}, preview.sha256)]);
}

export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export const FORCE = { name: "force", label: "Delete it all the same", type: "check", required: true };

/** The work may run, or may have been done. */
export function needsForce({ state }) {
  return state === "started" || state === "unknown";
}

/** Its outcome is unknown, and no attempt runs. */
export function resolvable({ state, ttl_ms: ms }) {
  return state === "unknown" || (state === "started" && ms === 0);
}
