// What operators and clients with rights have changed.

import { h, replace } from "../dom.js";
import { plural, time, words } from "../format.js";
import { Pages, badge, empty, head, table } from "../widgets.js";

const PAGE = 50;

export function audit(view) {
  const list = h("div", {}, empty("Loading…"));
  const pages = new Pages(() => refresh());
  view.show(head("Audit", "What was changed through the API, newest first."), list, pages.element);
  const refresh = view.every(10_000, async () => {
    let answer;
    try {
      answer = await view.get("/v1/admin/audit", { limit: PAGE, cursor: pages.cursor });
    } catch (problem) {
      if (problem.isMissing) replace(list);
      throw problem;
    }
    const { records, next_cursor: next } = answer;
    replace(list, records.length === 0 ? empty("No record yet.") : table("Audit records", [
      { label: "At", cell: (record) => h("time", { datetime: record.at, title: record.at }, time(record.at)) },
      { label: "Action", cell: (record) => words(record.action) },
      { label: "Target", cell: (record) => record.target ?? "", class: "key mono" },
      { label: "App", cell: (record) => record.app ?? "", class: "key hide" },
      { label: "API key", cell: (record) => record.key_id ?? "none", class: "mono" },
      { label: "From", cell: (record) => record.from ?? "", class: "mono hide" },
      { label: "Outcome", cell: (record) => outcomeOf(record.outcome) },
      { label: "Detail", cell: (record) => detailOf(record.detail), class: "key hide" },
    ], records));
    pages.show(next, records.length > 0 && `, ${plural(records.length, "record")}`);
  });
}

function outcomeOf(outcome) {
  if (outcome === undefined || outcome === null) return "";
  const isDone = ["ok", "done", "success", "200"].includes(String(outcome));
  return badge(words(String(outcome)), isDone ? "good" : "warn");
}

function detailOf(detail) {
  if (detail === undefined || detail === null) return "";
  return typeof detail === "string" ? detail : JSON.stringify(detail);
}
