// The nodes that `scripts/test-clients.sh` starts, on one Postgres.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { text } from "node:stream/consumers";

import { Client } from "../src/index.js";

const PATIENCE_MS = 60_000;

export const [a, b] = process.env.CLIENT_NODES.split(",").map((url) => ({
  url,
  /** What the node says of the lock. */
  lock: (key) => request(url, "GET", `/v1/locks/${encodeURIComponent(key)}`),
  force: (key) => request(url, "DELETE", `/v1/locks/${encodeURIComponent(key)}`),
}));

async function request(url, method, path) {
  const response = await fetch(url + path, { method });
  const answer = await response.json();
  assert.equal(response.status, 200, JSON.stringify(answer));
  return answer;
}

/** Passes requests on to a node until the test has ended, and keeps their bodies. The answer to the first one may be lost. */
export async function startRecorder(context, { losesFirst = false } = {}) {
  const bodies = [];
  const server = createServer(async (incoming, outgoing) => {
    const body = await text(incoming);
    const answer = await fetch(a.url + incoming.url, { method: "POST", body });
    if (bodies.push(JSON.parse(body)) === 1 && losesFirst) return incoming.socket.destroy();
    outgoing.writeHead(answer.status).end(await answer.text());
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  context.after(() => server.close(() => {}).closeAllConnections());
  return { url: `http://127.0.0.1:${server.address().port}`, bodies };
}

/** A client of these nodes; without any, of both. */
export function clientOf(...nodes) {
  // The machine may be busy.
  return new Client((nodes.length > 0 ? nodes : [a, b]).map(({ url }) => url), { retryForMs: 30_000 });
}

export const freshKey = () => `test/${crypto.randomUUID()}`;

export async function eventually(condition, what) {
  const deadline = performance.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert.ok(performance.now() < deadline, `not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Checks that nothing is left of the lock. */
export async function isFree(key) {
  await eventually(async () => {
    const { held, waiters } = await b.lock(key);
    return !held && waiters === 0;
  }, `${key} is free`);
}

/** Waits until the signal is aborted; returns its reason. */
export async function aborted(signal) {
  // A signal does not keep the process alive.
  await eventually(() => signal.aborted, "the loss");
  return signal.reason;
}
