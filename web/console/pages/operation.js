// One operation: its state and result, and what a person says became of it.

import { Problem, call, textOf } from "../api.js";
import { h, replace } from "../dom.js";
import { plural, time } from "../format.js";
import { ask, badge, button, countdown, empty, facts, panel, toast } from "../widgets.js";
import { decisionOf } from "./decisions.js";
import { by } from "./locks.js";
import { FORCE, isJson, needsForce, resolvable, stateOf } from "./operations.js";

export function operation(view) {
  const id = view.one;
  const title = h("h1", { class: "key" }, id);
  const actions = h("div", { class: "actions" });
  const shown = h("div", {});
  view.show(
    h("div", { class: "head" }, title, actions), shown);
  const refresh = view.every(3000, async () => {
    let text;
    try {
      text = await textOf("GET", `/v1/operations/${encodeURIComponent(id)}`, { signal: view.signal });
    } catch (problem) {
      if (!(problem instanceof Problem) || problem.status !== 404) throw problem;
      replace(title, id, " ", badge("no record"));
      replace(actions);
      replace(shown, empty("There is no record of this operation: it has not been claimed, or its record has been deleted or has expired."));
      return;
    }
    const record = exact(text);
    replace(title, record.operation, " ", stateOf(record));
    replace(actions, view.may("admin") && resolvable(record) && [
      button("It succeeded…", () => resolve(view, record, "success", refresh), { "data-focus": "succeeded" }),
      button("It failed…", () => resolve(view, record, "failure", refresh), { "data-focus": "failed" }),
    ], view.may("operations") && (view.may("admin") || !needsForce(record)) && button("Forget…", () => forget(record, refresh), { class: "danger", "data-focus": "forget" }));
    replace(shown, details(view, record));
  });
}

/** Parses JSON whose numbers stay as they were sent, where the browser can do that. */
function exact(text) {
  const source = (name, value, context) =>
    typeof value === "number" && context?.source && JSON.rawJSON && String(value) !== context.source && name !== "ttl_ms"
      ? JSON.rawJSON(context.source) : value;
  return JSON.parse(text, source);
}

function details(view, record) {
  const isStarted = record.state === "started";
  return [
    record.suspected_double_runs > 0 && h("p", { class: "problem" },
      `${plural(record.suspected_double_runs, "superseded attempt")} posted a success, too: the operation may have been done more than once.`),
    decisionOf(record) && !view.may("admin") && h("p", { class: "about" }, "No pre may proceed until an API key with the scope admin says what became of it."),
    facts(
      ["Label", record.label],
      ["Id", h("span", { class: "mono key" }, record.id)],
      ["Claimed by", record.claimed_by && `API key ${record.claimed_by.name ?? record.claimed_by.api_key}`],
      ["Attempt", record.attempt],
      ["First attempt", time(record.created_at)],
      ["This attempt", record.started_at && time(record.started_at)],
      ["Lease", isStarted && (record.ttl_ms > 0 ? countdown(record.ttl_ms) : `passed at ${time(record.expires_at)}`)],
      ["Ended", record.ended_at && time(record.ended_at)],
      ["Resolved", record.resolved && `${record.resolved.by ?? (record.resolved.api_key ? `API key ${record.resolved.api_key}` : "a person")}: ${record.resolved.reason}`],
      ["Kept", record.permanent ? "forever" : !isStarted && record.expires_at && `until ${time(record.expires_at)}`],
      ["When the lease passes", isStarted && (record.on_expiry === "block" ? "no pre may proceed (block)" : "the next pre may proceed (retry)")],
      ["Durability", record.durability]),
    record.detail && panel("What the attempt has said", h("pre", { tabindex: "0" }, record.detail)),
    record.contents !== undefined && panel("Contents", json(record.contents)),
    record.metadata !== undefined && panel("Metadata", json(record.metadata)),
    record.state === "succeeded" && panel("Result", resultOf(record)),
  ];
}

function json(value) {
  return h("pre", { tabindex: "0" }, JSON.stringify(value, null, 2));
}

function resultOf(record) {
  if (record.result !== undefined) return json(record.result);
  if (record.result_omitted) return empty("The result could not be stored: it was longer than 64 KiB, or no JSON.");
  return empty("The success was posted without a result.");
}

function resolve(view, record, outcome, refresh) {
  const hasSucceeded = outcome === "success";
  ask({
    title: hasSucceeded ? "The operation has succeeded" : "The operation has failed",
    text: hasSucceeded ? "You have found out that the work was done. Every later pre gets the result."
      : "You have found out that the work was not done. The next pre may proceed; if the work was done all the same, it is done again.",
    fields: [
      { name: "reason", label: "How do you know?", placeholder: hasSucceeded ? "the bank has the transfer" : "the bank has no such transfer", required: true, hint: hasSucceeded ? "Kept with the record" : "Kept in the audit log" },
      ...(hasSucceeded ? [{ name: "result", label: "Result", placeholder: "{\"receipt\": 7}", hint: "JSON; anything else is taken as a string" }] : []),
    ],
    action: hasSucceeded ? "Record the success" : "Record the failure",
    isDanger: !hasSucceeded,
    run: async ({ reason, result }) => {
      // As text: numbers must be stored exactly as they were typed.
      const json = result && (isJson(result) ? result : JSON.stringify(result));
      const body = JSON.stringify({ outcome, reason, by: by(view) }).replace(/}$/, json ? `,"result":${json}}` : "}");
      await call("POST", `/v1/operations/${record.id}/resolve`, { body });
      toast(hasSucceeded ? "The success is recorded." : "The failure is recorded: the next pre may proceed.");
      refresh();
    },
  });
}

function forget(record, refresh) {
  const isRisky = needsForce(record);
  ask({
    title: "Forget this operation",
    text: [
      "Its record is deleted, so the next pre with the same contents may proceed.",
      ...(isRisky ? [`Its state is ${record.state}: the operation may be running or done. Then it would be done again.`] : []),
    ],
    fields: isRisky ? [FORCE] : [],
    action: "Forget",
    isDanger: true,
    run: async ({ force = false }) => {
      await call("DELETE", `/v1/operations/${record.id}`, { query: { force } });
      toast("The record is deleted.");
      refresh();
    },
  });
}
