// @ts-check
// `once`: work that is done once.

import { now } from "./clock.js";
import { AttemptLost, LatchgateError, NotDone, NotRecorded } from "./errors.js";
import { sleep } from "./nodes.js";
import { Keeper, untilOf } from "./renewals.js";

export class Attempt {
  #keeper;

  /**
   * @param {Record<string, any>} granted
   * @param {Keeper | undefined} keeper
   */
  constructor(granted, keeper) {
    this.#keeper = keeper;
    /** @type {string} */
    this.id = granted.id;
    /** @type {number | undefined} */
    this.number = granted.attempt ?? undefined;
    /** @type {boolean} */
    this.guarded = granted.guarded;
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
 * Runs the work if the gate permits it, and posts its outcome.
 * @template T
 * @param {import("./nodes.js").Nodes} nodes
 * @param {import("./renewals.js").Renewals} renewals
 * @param {Record<string, any>} request
 * @param {(attempt: Attempt) => T | Promise<T>} work
 * @param {{lengthMs: number, waitMs: number, keep: Record<string, any>, signal?: AbortSignal}} options
 */
export async function once(nodes, renewals, request, work, { lengthMs, waitMs, keep, signal }) {
  const waitUntil = now() + waitMs;
  const until = now() + nodes.retryForMs;
  // The id names this attempt: a repeated pre gets the same stamp.
  const body = { ...request, attempt_id: crypto.randomUUID() };
  const doubt = { isSet: false };
  let answer;
  try {
    answer = await nodes.call("/v1/operations/pre", body, { until, waitUntil, signal, doubt });
  } catch (error) {
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
  /** @param {"failure" | "unknown"} outcome */
  const postFailure = (outcome) => nodes.callQuietly(`${path}/post`, { stamp: granted.stamp, outcome }, nodes.retryForMs);

  let keeper;
  if (granted.guarded) {
    let first = { sent: answer.sent, leftMs: granted.ttl_ms, body: granted };
    try {
      // After a wait, the lease began long after the pre was sent: a heartbeat tells until when it lasts.
      if (untilOf(first) - now() < (lengthMs * 2) / 3) {
        const beatUntil = now() + Math.min(lengthMs, nodes.retryForMs);
        const { sent, body } = await nodes.call(heartbeat.path, heartbeat.body, { until: beatUntil, signal });
        first = { sent, leftMs: body.ttl_ms, body };
      }
    } catch (error) {
      // The work has not begun.
      if (!(error instanceof AttemptLost)) await postFailure("failure");
      throw error;
    }
    keeper = new Keeper(`operation ${granted.id}`, lengthMs, first, { heartbeat });
    renewals.keep(keeper);
  }
  let result;
  try {
    result = await work(new Attempt(granted, keeper));
  } catch (error) {
    keeper?.stop();
    // For `block`, a second run is worse than none; and only the work can know that nothing was done.
    await postFailure(request.on_expiry === "block" && !(error instanceof NotDone) ? "unknown" : "failure");
    throw error;
  }
  keeper?.stop();
  const success = { stamp: granted.stamp, outcome: "success", ...keep };
  return { result, duplicate: false, resultOmitted: await postSuccess(nodes, `${path}/post`, success, result, granted.ttl_ms) };
}

/**
 * Repeats a pre until a node says whether it was claimed, at most for the length of its lease. Its work has not begun, so the attempt is
 * reported as a failure.
 * @param {import("./nodes.js").Nodes} nodes
 * @param {Record<string, any>} request
 * @param {number} lengthMs
 */
async function giveBack(nodes, request, lengthMs) {
  // An unguarded permission says nothing about the claim.
  const onOutage = request.on_outage === "open" ? "closed" : request.on_outage;
  const body = { ...request, wait_ms: 0, on_outage: onOutage };
  const until = now() + lengthMs;
  while (now() < until) {
    const doubt = { isSet: true };
    try {
      const { body: granted } = await nodes.call("/v1/operations/pre", body, { until: now() + nodes.retryForMs, doubt });
      await nodes.callQuietly(`/v1/operations/${granted.id}/post`, { stamp: granted.stamp, outcome: "failure" }, Math.max(nodes.retryForMs, lengthMs));
      return;
    } catch (error) {
      if (!doubt.isSet || !(error instanceof LatchgateError)) return;
      await sleep(200, undefined);
    }
  }
}

/**
 * Returns whether the result was omitted.
 * @param {import("./nodes.js").Nodes} nodes
 * @param {string} path
 * @param {Record<string, any>} success
 * @param {unknown} result
 * @param {number} [leaseMs]
 */
async function postSuccess(nodes, path, success, result, leaseMs = 0) {
  const until = now() + Math.max(nodes.retryForMs, leaseMs);
  try {
    if (isJson(result)) {
      try {
        const { body } = await nodes.call(path, { ...success, result }, { until });
        return Boolean(body.result_omitted);
      } catch (error) {
        if (!(error instanceof LatchgateError) || (error.status !== 400 && error.status !== 413)) throw error;
      }
    }
    await nodes.call(path, success, { until });
    return true;
  } catch (error) {
    throw error instanceof LatchgateError ? new NotRecorded(error, result) : error;
  }
}

/**
 * Nothing at all is stored as null.
 * @param {unknown} value
 */
function isJson(value) {
  try {
    return value === undefined || JSON.stringify(value) !== undefined;
  } catch {
    return false;
  }
}
