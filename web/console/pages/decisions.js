// Operations that no client goes on with until a person has decided.

/** Most pages that are read of each state. */
const PAGES_MAX = 15;
/** A longer page counts as several requests. */
const PAGE = 100;

/** Why an operation needs a decision, and the kind of its badge; null if it needs none. */
export function decisionOf({ state, ttl_ms: ms, on_expiry: onExpiry }) {
  if (state === "unknown") return ["outcome unknown", "bad"];
  if (state === "started" && ms === 0 && onExpiry === "block") return ["lease passed", "warn"];
  return null;
}

/** Since when it needs one. */
export function undecidedSince({ ended_at: ended, expires_at: passed }) {
  return ended ?? passed;
}

/** The operations that fit a filter of the API, those first that need it longest, and whether these are all. */
export async function needingDecision(view, filter = {}) {
  const rows = [];
  let isAll = true;
  for (const state of ["unknown", "started"]) {
    let cursor = "";
    let pages = 0;
    do {
      let answer;
      try {
        answer = await view.get("/v1/operations", { ...filter, state, limit: PAGE, cursor });
      } catch (problem) {
        // The app's quota of requests is used up: what was found is shown. Nothing found does not mean that there is none.
        if (problem.status !== 429 || rows.length === 0) throw problem;
        return { rows: inOrder(rows), isAll: false };
      }
      rows.push(...answer.operations.filter(decisionOf));
      cursor = answer.next_cursor;
      pages += 1;
    } while (cursor && pages < PAGES_MAX);
    isAll &&= !cursor;
  }
  return { rows: inOrder(rows), isAll };
}

function inOrder(rows) {
  return rows.sort((a, b) => Date.parse(undecidedSince(a)) - Date.parse(undecidedSince(b)));
}
