// Operations of the gate: the list, finding one by its contents, and one with its result.

import { Problem, call, post, textOf } from "../api.js";
import { h, replace } from "../dom.js";
import { plural, time } from "../format.js";
import { Pages, ask, badge, button, countdown, empty, facts, head, panel, problemBox, since, table, toast } from "../widgets.js";

const PAGE = 50;
const AGES = [["", "any time"], ["60000", "a minute"], ["3600000", "an hour"], ["86400000", "a day"]];
const STATES = { started: "held", succeeded: "good", unknown: "bad", vacant: "" };

export function operations(view) {
  const { operation: name = "", state = "", age = "", sort = "", suspect = "" } = view.query;
  const inputs = {
    operation: h("input", { type: "search", value: name, autocomplete: "off", spellcheck: "false" }),
    state: choice([["", "any"], ...Object.keys(STATES).map((known) => [known, known])], state),
    age: choice(AGES, age),
    sort: choice([["", "store"], ["oldest", "oldest state first"], ["newest", "newest state first"]], sort),
    suspect: h("input", { type: "checkbox", checked: suspect === "true" }),
  };
  let query = { operation: name, state, age, sort, suspect };
  const list = h("div", {});
  const pages = new Pages(() => refresh());
  const search = (event) => {
    event.preventDefault();
    const { operation, state: chosen, age: least, sort: order, suspect: suspected } = inputs;
    query = { operation: operation.value, state: chosen.value, age: least.value, sort: order.value, suspect: suspected.checked ? "true" : "" };
    view.remember(query);
    pages.reset();
    refresh();
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
    list, pages.element);
  const refresh = view.every(() => (isFiltered(query) ? 30_000 : 4000), async () => {
    const { age: least, ...filter } = query;
    const answer = await view.get("/v1/operations", { ...filter, older_than_ms: least, limit: PAGE, cursor: pages.cursor });
    replace(list, listed(answer, query));
    pages.show(answer.next_cursor, answer.operations.length > 0 && `, ${plural(answer.operations.length, "operation")}`);
  });
}

function choice(options, chosen) {
  return h("select", {}, options.map(([value, label]) => h("option", { value, selected: value === chosen }, label)));
}

function isFiltered({ operation, state, age, sort, suspect }) {
  return Boolean(operation || state || age || sort || suspect);
}

function listed({ operations: rows, unreadable = [], next_cursor: next, incomplete }, query) {
  const broken = unreadable.length > 0 && h("p", { class: "problem" }, "The records of these operations cannot be read: ", unreadable.join(", "));
  const part = incomplete && h("p", { class: "about" }, "There are more operations than one request looks through: some that belong here may be missing.");
  if (rows.length === 0) {
    return [broken, part, empty(next ? "None among the operations that were looked through for this page. The next page looks further." : isFiltered(query) ? "No operation fits." : "No operation has been claimed yet.")];
  }
  return [broken, part, table("Operations", [
    { label: "Id", cell: (row) => h("a", { href: `#/operations/${row.id}`, class: "mono" }, row.id.slice(0, 12), "…") },
    { label: "Operation", cell: (row) => row.operation, class: "key" },
    { label: "State", cell: stateOf },
    { label: "Label", cell: (row) => row.label, class: "key" },
    { label: "Attempt", cell: (row) => row.attempt, class: "number" },
    { label: "Since", cell: (row) => since(row.ended_at ?? row.started_at ?? row.created_at) },
    { label: "Ended", cell: (row) => (row.ended_at ? time(row.ended_at) : row.ttl_ms > 0 ? ["lease: ", countdown(row.ttl_ms)] : ""), class: "hide" },
    { label: "Durability", cell: (row) => row.durability, class: "hide" },
  ], rows)];
}

function stateOf(row) {
  const isOver = row.state === "started" && row.ttl_ms === 0;
  return [badge(isOver ? "lease passed" : row.state, isOver ? "warn" : STATES[row.state]), doubleRuns(row)];
}

function doubleRuns({ suspected_double_runs: count }) {
  return count > 0 && [" ", badge(plural(count, "double run"), "bad")];
}

/** Finds an operation by its name and contents, or by its id. */
function finder(view) {
  const found = h("div", { "aria-live": "polite" });
  const id = h("input", { class: "mono", required: true, pattern: "\\s*[0-9a-fA-F]{32}\\s*", title: "32 hexadecimal digits", autocomplete: "off", spellcheck: "false" });
  const byId = h("form", { class: "filters" }, h("label", { class: "wide" }, view.may("operations") ? "or its id" : "Id", id), h("button", { type: "submit" }, "Open"));
  byId.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/operations/${id.value.trim().toLowerCase()}`;
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
  return h("details", { class: "panel", open: true }, h("summary", {}, "Find by contents"), byContents, found, byId);
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
    ["Id", h("a", { href: `#/operations/${preview.id}`, class: "mono" }, preview.id)],
    ["State", state],
    ["Canonical contents", h("code", {}, preview.canonical)],
    ["SHA-256", h("code", {}, preview.sha256)]);
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export function operation(view) {
  const id = view.one;
  const title = h("span", {});
  const actions = h("div", { class: "actions" });
  const shown = h("div", {});
  view.show(
    h("p", { class: "crumb" }, h("a", { href: "#/operations" }, "Operations")),
    h("div", { class: "head" }, h("h1", { class: "mono key" }, id, " ", title), actions), shown);
  const refresh = view.every(3000, async () => {
    let text;
    try {
      text = await textOf("GET", `/v1/operations/${encodeURIComponent(id)}`, { signal: view.signal });
    } catch (problem) {
      if (!(problem instanceof Problem) || problem.status !== 404) throw problem;
      replace(title, badge("no record"));
      replace(actions);
      replace(shown, empty("There is no record of this operation: it has not been claimed, or its record has been deleted or has expired."));
      return;
    }
    const record = exact(text);
    replace(title, stateOf(record));
    replace(actions, view.may("admin") && resolvable(record) && [
      button("It succeeded…", () => resolve(record, "success", refresh), { "data-focus": "succeeded" }),
      button("It failed…", () => resolve(record, "failure", refresh), { "data-focus": "failed" }),
    ], view.may("operations") && button("Forget…", () => forget(record, refresh), { class: "danger", "data-focus": "forget" }));
    replace(shown, details(record));
  });
}

/** Parses JSON whose numbers stay as they were sent, where the browser can do that. */
function exact(text) {
  const source = (name, value, context) =>
    typeof value === "number" && context?.source && JSON.rawJSON && String(value) !== context.source && name !== "ttl_ms"
      ? JSON.rawJSON(context.source) : value;
  return JSON.parse(text, source);
}

function details(record) {
  const isStarted = record.state === "started";
  return [
    record.suspected_double_runs > 0 && h("p", { class: "problem" },
      `${plural(record.suspected_double_runs, "superseded attempt")} posted a success, too: the operation may have been done more than once.`),
    facts(
      ["Operation", record.operation],
      ["Label", record.label],
      ["Claimed by", record.claimed_by && `API key ${record.claimed_by.api_key} of ${record.claimed_by.app}`],
      ["Attempt", record.attempt],
      ["First attempt", time(record.created_at)],
      ["This attempt", record.started_at && time(record.started_at)],
      ["Lease", isStarted && (record.ttl_ms > 0 ? countdown(record.ttl_ms) : `passed at ${time(record.expires_at)}`)],
      ["Ended", record.ended_at && time(record.ended_at)],
      ["Resolved", record.resolved && `${record.resolved.by ?? (record.resolved.api_key ? `API key ${record.resolved.api_key}` : "a person")}: ${record.resolved.reason}`],
      ["Kept", record.permanent ? "forever" : !isStarted && record.expires_at && `until ${time(record.expires_at)}`],
      ["When the lease passes", record.on_expiry === "block" ? "no pre may proceed (block)" : "the next pre may proceed (retry)"],
      ["Durability", record.durability],
      ["Claimed in", record.claimed_in === "fallback" ? "the second store (fallback)" : "the first store"],
      ["Degraded", record.degraded && "the first store's record is not merged yet"]),
    record.contents !== undefined && panel("Contents", json(record.contents)),
    record.metadata !== undefined && panel("Metadata", json(record.metadata)),
    panel("Result", resultOf(record)),
  ];
}

function json(value) {
  return h("pre", { tabindex: "0" }, JSON.stringify(value, null, 2));
}

function resultOf(record) {
  if (record.result !== undefined) return json(record.result);
  if (record.result_omitted) return empty("The result was longer than 64 KiB and was dropped.");
  return empty(record.state === "succeeded" ? "The success was posted without a result." : "Only a success has a result.");
}

/** Its outcome is unknown, and no attempt runs. */
function resolvable({ state, ttl_ms: ms }) {
  return state === "unknown" || (state === "started" && ms === 0);
}

function resolve(record, outcome, refresh) {
  const hasSucceeded = outcome === "success";
  ask({
    title: hasSucceeded ? "The operation has succeeded" : "The operation has failed",
    text: hasSucceeded ? "You have found out that the work was done. Every later pre gets the result."
      : "You have found out that the work was not done. The next pre may proceed; if the work was done all the same, it is done again.",
    fields: [
      { name: "reason", label: "How do you know?", placeholder: "the bank has the transfer", required: true, hint: "Kept with the record" },
      ...(hasSucceeded ? [{ name: "result", label: "Result", placeholder: "{\"receipt\": 7}", hint: "JSON; anything else is taken as a string" }] : []),
    ],
    action: hasSucceeded ? "Record the success" : "Record the failure",
    isDanger: !hasSucceeded,
    run: async ({ reason, result }) => {
      // As text: numbers must be stored exactly as they were typed.
      const json = result && (isJson(result) ? result : JSON.stringify(result));
      const body = JSON.stringify({ outcome, reason }).replace(/}$/, json ? `,"result":${json}}` : "}");
      await call("POST", `/v1/operations/${record.id}/resolve`, { body });
      toast(hasSucceeded ? "The success is recorded." : "The failure is recorded: the next pre may proceed.");
      refresh();
    },
  });
}

function forget(record, refresh) {
  const isRisky = record.state === "started" || record.state === "unknown";
  ask({
    title: "Forget this operation",
    text: [
      "Its record is deleted, so the next pre with the same contents may proceed.",
      ...(isRisky ? [`Its state is ${record.state}: the operation may be running or done. Then it would be done again.`] : []),
    ],
    fields: isRisky ? [{ name: "force", label: "Delete it all the same", type: "check", value: false }] : [],
    action: "Forget",
    isDanger: true,
    run: async ({ force = false }) => {
      await call("DELETE", `/v1/operations/${record.id}`, { query: { force } });
      toast("The record is deleted.");
      refresh();
    },
  });
}
