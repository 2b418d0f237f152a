// @ts-check
// What was done while the gate was away is recorded as soon as a node answers, for as long as the process lives.

import { now } from "./clock.js";
import { LatchgateError, Unavailable } from "./errors.js";

const PAUSE_MS_MIN = 1_000;
const PAUSE_MS_MAX = 60_000;
/** What may wait to be recorded. */
const BYTES_MAX = 16 * 1024 * 1024;

/** What waits in all clients of the process. @type {Set<{path: string, text: string}>} */
const open = new Set();
/** @type {any} */ (globalThis).process?.on?.("exit", () => open.forEach(({ path, text }) => lost(path, text, "the process ends")));

export class Entries {
  #nodes;
  /** @type {Array<{path: string, text: string}>} */
  #waiting = [];
  #bytes = 0;
  #isSending = false;

  /** @param {import("./nodes.js").Nodes} nodes */
  constructor(nodes) {
    this.#nodes = nodes;
  }

  /**
   * @param {string} path of a call that can be repeated
   * @param {Record<string, any>} body
   */
  add(path, body) {
    const text = JSON.stringify(body);
    if (this.#bytes + text.length > BYTES_MAX) return lost(path, text, "too many others wait for the gate");
    this.#bytes += text.length;
    const entry = { path, text };
    this.#waiting.push(entry);
    open.add(entry);
    if (!this.#isSending) void this.#send();
  }

  async #send() {
    this.#isSending = true;
    let pauseMs = PAUSE_MS_MIN;
    while (this.#waiting.length > 0) {
      const entry = this.#waiting[0];
      const { path, text } = entry;
      try {
        await this.#nodes.call(path, JSON.parse(text), { until: now() + this.#nodes.retryForMs });
      } catch (error) {
        if (error instanceof Unavailable) {
          // The timer does not keep the process alive.
          await new Promise((resolve) => /** @type {any} */ (setTimeout(resolve, pauseMs)).unref?.());
          pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
          continue;
        }
        // With 409 the node has counted it as a suspected double run.
        if (!(error instanceof LatchgateError && error.status === 409)) lost(path, text, String(error));
      }
      pauseMs = PAUSE_MS_MIN;
      this.#bytes -= text.length;
      this.#waiting.shift();
      open.delete(entry);
    }
    this.#isSending = false;
  }
}

/**
 * @param {string} path
 * @param {string} text
 * @param {string} why
 */
function lost(path, text, why) {
  const { operation, attempt_id, ran_at } = JSON.parse(text);
  const what = operation ? `a run of ${JSON.stringify(operation)} at ${ran_at}, attempt ${attempt_id},` : `the success of ${path}`;
  console.warn(`latchgate: ${what} while the gate was away is not recorded: ${why}`);
}
