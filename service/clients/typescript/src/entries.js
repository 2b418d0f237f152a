// @ts-check
// What was done while the gate was away is recorded as soon as a node answers, for as long as the process lives.

import { now } from "./clock.js";
import { LatchgateError, Unavailable } from "./errors.js";

const PAUSE_MS_MIN = 1_000;
const PAUSE_MS_MAX = 60_000;
/** When so many runs are not entered, no further work runs unguarded. */
const OPEN_MAX = 1_000;
export const ENTER = "/v1/operations/enter";

/**
 * The report of a success. `run`: what is entered instead if the node has lost the claim.
 * @typedef {{path: string, body: Record<string, any>, run?: Record<string, any>, isSaid?: boolean}} Entry
 */

/** What waits in all clients of the process. @type {Set<Entry>} */
const waitingHere = new Set();
/** @type {any} */ (globalThis).process?.on?.("exit", () => waitingHere.forEach((entry) => say(entry, "is not recorded: the process ends")));

export class Entries {
  #nodes;
  /** @type {Entry[]} */
  #waiting = [];
  /** Runs that have begun or ended and are not entered. */
  #open = 0;
  #isSending = false;

  /** @param {import("./nodes.js").Nodes} nodes */
  constructor(nodes) {
    this.#nodes = nodes;
  }

  /** Whether another run may begin: its entry is sure to have a place. */
  begin() {
    const isRoom = this.#open < OPEN_MAX;
    if (isRoom) this.#open += 1;
    return isRoom;
  }

  /** A run is entered, or has nothing to enter. */
  end() {
    this.#open -= 1;
  }

  /** @param {Entry} entry whose run has begun here */
  add(entry) {
    this.#waiting.push(entry);
    waitingHere.add(entry);
    if (!this.#isSending) void this.#send();
  }

  async #send() {
    this.#isSending = true;
    let pauseMs = PAUSE_MS_MIN;
    while (this.#waiting.length > 0) {
      const entry = /** @type {Entry} */ (this.#waiting.shift());
      if (await this.#isSettled(entry)) {
        waitingHere.delete(entry);
        this.end();
        pauseMs = PAUSE_MS_MIN;
        continue;
      }
      // It keeps no other waiting.
      this.#waiting.push(entry);
      // The timer does not keep the process alive.
      await new Promise((resolve) => /** @type {any} */ (setTimeout(resolve, pauseMs)).unref?.());
      pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
    }
    this.#isSending = false;
  }

  /**
   * Whether a node has recorded it, or has refused it for good.
   * @param {Entry} entry
   * @returns {Promise<boolean>}
   */
  async #isSettled(entry) {
    try {
      const { body } = await this.#nodes.call(entry.path, entry.body, { until: now() + this.#nodes.retryForMs, needs: ["outcome"] });
      if (body.double_run) say(entry, "is recorded, and may have been a second one");
      return true;
    } catch (error) {
      if (entry.run && isForgotten(error)) {
        Object.assign(entry, { path: ENTER, body: entry.run, run: undefined });
        return this.#isSettled(entry);
      }
      if (error instanceof Unavailable) return false;
      const mayPassLater = error instanceof LatchgateError && [401, 403].includes(error.status ?? 0);
      if (!mayPassLater) say(entry, `is not recorded: ${error}`);
      else if (!entry.isSaid) say(entry, `is not recorded yet: ${error}`);
      entry.isSaid = true;
      return !mayPassLater;
    }
  }
}

/**
 * Whether the store has no record of the attempt.
 * @param {unknown} error
 */
export function isForgotten(error) {
  return error instanceof LatchgateError && ["operation-not-found", "stamp-mismatch"].includes(error.code);
}

/**
 * @param {Entry} entry
 * @param {string} what
 */
function say({ path, body, run }, what) {
  const { operation, attempt_id, ran_at } = run ?? body;
  const which = path === ENTER ? `a run of ${JSON.stringify(operation)} at ${ran_at}, attempt ${attempt_id},` : `the success of ${path}`;
  console.warn(`latchgate: ${which} while the gate was away ${what}`);
}
