// @ts-check
// The events of locks.

import { now } from "./clock.js";
import { Unavailable, otherKey } from "./errors.js";
import { NoAnswer, sleep } from "./nodes.js";

const PAUSE_MS_MIN = 100;
const PAUSE_MS_MAX = 1_000;
const LINE_LENGTH_MAX = 1024 * 1024;

/** @typedef {{id: string, kind: string, data: Record<string, any>}} LockEvent */

/**
 * The events, without end. After a broken connection it goes on at another node, behind the last event.
 * @param {import("./nodes.js").Nodes} nodes
 * @param {string} path
 * @param {string | {prefix: string}} of
 * @param {{after?: string, signal?: AbortSignal}} options
 * @returns {AsyncGenerator<LockEvent, void, void>}
 */
export async function* events(nodes, path, of, { after, signal }) {
  let lastId = after?.trim();
  for (;;) {
    const lines = await open(nodes, path, lastId, signal);
    let id;
    let kind = "";
    let data = "";
    for await (const line of lines) {
      const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
      if (name === "id") id = value;
      else if (name === "event") kind = value;
      else if (name === "data") data += value;
      else if (line === "") {
        // The node sends the id before the data: until here, the connection may break off within the event.
        lastId = id ?? lastId;
        if (kind && lastId !== undefined) yield checked(of, { id: lastId, kind, data: JSON.parse(data) });
        [id, kind, data] = [undefined, "", ""];
      }
    }
    // It may end at once again.
    await sleep(PAUSE_MS_MIN + Math.random() * (PAUSE_MS_MAX - PAUSE_MS_MIN), signal);
  }
}

/**
 * The event, if it is of what was asked for: something between the client and the node may change the path of a request.
 * @param {string | {prefix: string}} of
 * @param {LockEvent} event
 */
function checked(of, event) {
  const { key } = event.data;
  if (key === undefined || (typeof of === "string" ? key === of : key.startsWith(of.prefix))) return event;
  throw otherKey([key], [typeof of === "string" ? of : of.prefix]);
}

/**
 * @param {import("./nodes.js").Nodes} nodes
 * @param {string} path
 * @param {string | undefined} lastId
 * @param {AbortSignal | undefined} signal
 */
async function open(nodes, path, lastId, signal) {
  const until = now() + nodes.retryForMs;
  let pauseMs = PAUSE_MS_MIN;
  let index = nodes.after();
  for (let tried = 1; ; tried += 1) {
    try {
      return linesOf(await nodes.stream(path, lastId, index, until, signal));
    } catch (error) {
      if (!(error instanceof NoAnswer || error instanceof Unavailable)) throw error;
      index = nodes.after(index);
      if (tried >= nodes.size && now() >= until) throw error instanceof Unavailable ? error : new Unavailable(error.code, error.message);
    }
    if (tried % nodes.size === 0) {
      await sleep(Math.min(pauseMs, Math.max(until - now(), 0)), signal);
      pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
    }
  }
}

/**
 * The lines of the response, until the connection breaks.
 * @param {AsyncIterable<string>} pieces
 */
async function* linesOf(pieces) {
  let unread = "";
  for await (const piece of pieces) {
    const lines = (unread + piece).split("\n");
    unread = /** @type {string} */ (lines.pop());
    yield* lines;
    if (unread.length > LINE_LENGTH_MAX) return;
  }
}
