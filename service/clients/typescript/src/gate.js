// @ts-check
// `once`: work that is done once.

import { now } from "./clock.js";
import { ENTER, isForgotten } from "./entries.js";
import { AttemptLost, LatchgateError, NotDone, NotRecorded, Unavailable } from "./errors.js";
import { jsonOf } from "./json.js";
import { sleep } from "./nodes.js";
import { Keeper, untilOf } from "./renewals.js";

const PRE = "/v1/operations/pre";
/** Without these, an answer is no claim. */
const CLAIM = ["id", "stamp", "ttl_ms"];
/** The most that a node keeps. */
const RESULT_BYTES_MAX = 64 * 1024;
const DETAIL_LENGTH_MAX = 500;

export class Attempt {
  #keeper;

  /**
   * @param {Record<string, any>} granted
   * @param {Keeper} [keeper] none if the run is unguarded
   */
  constructor(granted, keeper) {
    this.#keeper = keeper;
    /** @type {string | undefined} */
    this.id = granted.id;
    /** @type {number | undefined} */
    this.number = granted.attempt;
    this.guarded = keeper !== undefined;
    this.reentry = Boolean(granted.reentry);
    this.possiblyRepeated = Boolean(granted.possibly_repeated);
    this.signal = keeper?.signal ?? new AbortController().signal;
  }

  remainingMs() {
    return this.#keeper?.remainingMs() ?? 0;
  }

  check() {
    if (!this.#keeper || this.#keeper.remainingMs() > 0) return;
    const { loss } = this.#keeper;
    throw new AttemptLost(loss?.code ?? "lease-lost", loss?.detail ?? "the attempt has ended", loss?.status, loss?.fields, { cause: loss });
  }
}

/**
 * Runs the work if the gate permits it, and posts its outcome. With `entries`, it runs also while the gate is away.
 * @template T
 * @param {import("./nodes.js").Nodes} nodes
 * @param {import("./renewals.js").Renewals} renewals
 * @param {Record<string, any>} request
 * @param {(attempt: Attempt) => T | Promise<T>} work
 * @param {{lengthMs: number, waitMs: number, entries?: import("./entries.js").Entries, signal?: AbortSignal}} options
 */
export async function once(nodes, renewals, request, work, { lengthMs, waitMs, entries, signal }) {
  const waitUntil = now() + waitMs;
  const until = now() + nodes.retryForMs;
  // The id names this attempt: a repeated pre gets the same stamp.
  const body = { ...request, attempt_id: crypto.randomUUID() };
  const doubt = { isSet: false, isOfOther: false };
  let answer;
  try {
    answer = await nodes.call(PRE, body, { until, waitUntil, needs: CLAIM, signal, doubt });
  } catch (error) {
    if (entries && !doubt.isOfOther && isAway(error) && entries.begin()) {
      console.warn(`latchgate: ${JSON.stringify(request.operation)} runs unguarded, because the gate is away: ${error}`);
      return runUnguarded(nodes, entries, body, work, doubt.isSet ? lengthMs : 0);
    }
    if (!(error instanceof LatchgateError) || error.code !== "operation-duplicate") {
      // It goes on after the call, and the process stays for it.
      if (doubt.isSet) void giveBack(nodes, body, lengthMs);
      throw error;
    }
    return { result: error.fields.result, duplicate: true, resultOmitted: Boolean(error.fields.result_omitted) };
  }
  const granted = answer.body;
  const path = `/v1/operations/${granted.id}`;

  const heartbeat = { path: `${path}/heartbeat`, body: { stamp: granted.stamp } };
  /** @param {Record<string, any>} outcome */
  const post = (outcome) => nodes.callQuietly(`${path}/post`, { stamp: granted.stamp, ...outcome }, nodes.retryForMs);

  let first = { sent: answer.sent, leftMs: granted.ttl_ms, body: granted };
  try {
    // After a wait, the lease began long after the pre was sent: a heartbeat tells until when it lasts.
    if (untilOf(first) - now() < (lengthMs * 2) / 3) {
      const beatUntil = now() + Math.min(lengthMs, nodes.retryForMs);
      const { sent, body } = await nodes.call(heartbeat.path, heartbeat.body, { until: beatUntil, needs: ["ttl_ms"], signal });
      first = { sent, leftMs: body.ttl_ms, body };
    }
  } catch (error) {
    // The work has not begun.
    if (!(error instanceof AttemptLost)) await post({ outcome: "failure" });
    throw error;
  }
  const keeper = new Keeper(`operation ${granted.id}`, lengthMs, first, { heartbeat });
  renewals.keep(keeper);
  const run = runOf(body);
  let result;
  try {
    result = await work(new Attempt(granted, keeper));
  } catch (error) {
    keeper.stop();
    const silentMs = now() - keeper.last.sent;
    await post(isNotDone(request, error) ? { outcome: "failure" } : { outcome: "unknown", detail: detailOf(error, silentMs) });
    throw error;
  }
  keeper.stop();
  const kept = keptOf(result);
  const success = { stamp: granted.stamp, outcome: "success", ...kept.fields };
  try {
    const forMs = entries ? nodes.retryForMs : Math.max(nodes.retryForMs, granted.ttl_ms);
    const { body: posted } = await nodes.call(`${path}/post`, success, { until: now() + forMs, needs: ["outcome"] });
    return { ...kept.done, resultOmitted: Boolean(posted.result_omitted) };
  } catch (error) {
    const isLost = isForgotten(error);
    if (entries && (error instanceof Unavailable || isLost) && entries.begin()) {
      const entry = { ...run, ...kept.fields };
      entries.add(isLost ? { path: ENTER, body: entry } : { path: `${path}/post`, body: success, run: entry });
      return kept.done;
    }
    throw error instanceof LatchgateError ? new NotRecorded(error, result) : error;
  }
}

/**
 * Whether the gate's store, or every node, is away.
 * @param {unknown} error
 */
function isAway(error) {
  return error instanceof Unavailable && ["no-answer", "store-unavailable"].includes(error.code);
}

/**
 * Whether the next caller may run the work. For `block`, a second run is worse than none; and only the work can know that nothing was done.
 * @param {Record<string, any>} request
 * @param {unknown} error
 */
function isNotDone({ on_expiry }, error) {
  return on_expiry !== "block" || error instanceof NotDone;
}

/**
 * Runs the work without a claim, and enters the run when it has succeeded.
 * @template T
 * @param {import("./nodes.js").Nodes} nodes
 * @param {import("./entries.js").Entries} entries
 * @param {Record<string, any>} request
 * @param {(attempt: Attempt) => T | Promise<T>} work
 * @param {number} doubtMs for how long a claim may be there after all
 */
async function runUnguarded(nodes, entries, request, work, doubtMs) {
  const run = runOf(request);
  let result;
  try {
    result = await work(new Attempt({}));
  } catch (error) {
    entries.end();
    if (doubtMs > 0 && isNotDone(request, error)) void giveBack(nodes, request, doubtMs);
    throw error;
  }
  const { fields, done } = keptOf(result);
  entries.add({ path: ENTER, body: { ...run, ...fields } });
  return done;
}

/**
 * What is entered of a run that begins now.
 * @param {Record<string, any>} request
 */
function runOf({ operation, contents, checked, attempt_id, label, durability, retention_ms, permanent }) {
  return { operation, contents, checked, attempt_id, label, durability, retention_ms, permanent, ran_at: new Date().toISOString() };
}

/**
 * Repeats a pre until a node says whether it was claimed, at most for the length of its lease. The work has not been done, so the attempt is
 * reported as a failure.
 * @param {import("./nodes.js").Nodes} nodes
 * @param {Record<string, any>} request
 * @param {number} lengthMs
 */
async function giveBack(nodes, request, lengthMs) {
  const body = { ...request, wait_ms: 0 };
  const until = now() + lengthMs;
  for (let pauseMs = 200; now() < until; pauseMs = Math.min(pauseMs * 2, lengthMs / 10)) {
    const doubt = { isSet: true };
    try {
      const { body: granted } = await nodes.call(PRE, body, { until: now() + nodes.retryForMs, needs: CLAIM, doubt });
      await nodes.callQuietly(`/v1/operations/${granted.id}/post`, { stamp: granted.stamp, outcome: "failure" }, Math.max(nodes.retryForMs, lengthMs));
      return;
    } catch (error) {
      // This claim may be what has ended.
      if (error instanceof LatchgateError && error.code === "operation-unknown") break;
      if (!doubt.isSet || !(error instanceof LatchgateError)) return;
      await sleep(pauseMs, undefined);
    }
  }
  console.warn("latchgate: no node says whether an operation was claimed: it may stay blocked");
}

/**
 * What the report of a success says of the result, and what the caller gets.
 * @template T
 * @typedef {{fields: Record<string, any>, done: {result: T, duplicate: boolean, resultOmitted: boolean, omittedBecause?: string}}} Kept
 */

/**
 * After the work, nothing is refused for its result. Nothing at all is stored as null.
 * @template T
 * @param {T} result
 * @returns {Kept<T>}
 */
function keptOf(result) {
  const done = { result, duplicate: false, resultOmitted: false };
  try {
    if (result === undefined) return { fields: {}, done };
    const json = jsonOf(result, "result");
    const bytes = new TextEncoder().encode(JSON.stringify(json)).length;
    if (bytes > RESULT_BYTES_MAX) throw new TypeError(`result has ${bytes} bytes, and ${RESULT_BYTES_MAX} are kept`);
    return { fields: { result: json }, done };
  } catch (error) {
    const omittedBecause = /** @type {any} */ (error)?.message ?? "result is no JSON";
    return { fields: { result_omitted: true }, done: { ...done, resultOmitted: true, omittedBecause } };
  }
}

/**
 * For the person who must find out what became of the operation.
 * @param {any} error what the work has thrown
 * @param {number} silentMs
 */
function detailOf(error, silentMs) {
  const last = `The last heartbeat that was answered was sent ${Math.floor(silentMs / 1000)} s before this report.`;
  try {
    const what = error instanceof Error ? `${error.constructor.name}: ${error.message}` : `${typeof error}: ${String(error)}`;
    return `${what.slice(0, DETAIL_LENGTH_MAX).toWellFormed()}\n${last}`;
  } catch {
    return `an error that cannot be shown\n${last}`;
  }
}
