// What operators and clients with rights have done.

import { h, replace } from "../dom.js";
import { plural, time, words } from "../format.js";
import { Pages, badge, empty, head, table } from "../widgets.js";

const PAGE = 50;
const ACTIONS = [
  "force", "revoke", "forget-operation", "switch-engine", "hold-off", "create-app", "disable-app", "change-app", "create-key", "revoke-key",
  "administration", "authentication", "audit-lost",
];

export function audit(view) {
  let { action = "" } = view.query;
  const choice = h("select", {}, ["", ...ACTIONS].map((name) => h("option", { value: name, selected: name === action }, words(name) || "any")));
  choice.addEventListener("change", () => {
    action = choice.value;
    view.remember({ action });
    pages.reset();
    refresh();
  });
  const list = h("div", {}, empty("Loading…"));
  const pages = new Pages(() => refresh());
  view.show(
    head("Audit", "What operators and clients did, newest first."),
    h("div", { class: "filters" }, h("label", {}, "Action", choice)), list, pages.element);
  const refresh = view.every(10_000, async () => {
    try {
      const answer = await view.get("/v1/admin/audit", { action, limit: PAGE, cursor: pages.cursor });
      replace(list, listed(answer));
      pages.show(answer.next_cursor, answer.records.length > 0 && `, ${plural(answer.records.length, "record")}`);
    } catch (problem) {
      if (problem.isMissing) replace(list);
      throw problem;
    }
  });
}

function listed({ records, missing_engines: missing = [], next_cursor: next }) {
  const gap = missing.length > 0 && h("p", { class: "problem" }, `Records are missing: ${missing.join(", ")} does not answer.`);
  if (records.length === 0) return [gap, empty(next ? "None on this page: look at the next one." : "No record.")];
  return [gap, table("Audit records", [
    { label: "At", cell: (record) => h("time", { datetime: record.at, title: record.at }, time(record.at)) },
    { label: "Action", cell: ({ action, attempts }) => [words(action), attempts > 1 && h("span", { class: "about" }, ` ${plural(attempts, "time")}`)] },
    { label: "Target", cell: (record) => record.target ?? "", class: "key mono" },
    { label: "App", cell: (record) => record.app ?? "", class: "key" },
    { label: "API key", cell: (record) => record.key_id ?? "none", class: "mono" },
    { label: "From", cell: (record) => record.from ?? "", class: "mono" },
    { label: "Outcome", cell: ({ outcome }) => badge(words(String(outcome ?? "unknown")), outcome === "done" ? "good" : "warn") },
    { label: "Detail", cell: (record) => record.detail ?? "", class: "key" },
  ], records)];
}
