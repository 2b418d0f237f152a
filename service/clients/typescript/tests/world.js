// Real nodes on one Postgres. `scripts/test-clients.sh` names the binary in CLIENT_BINARY and the Postgres in CLIENT_POSTGRES.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, open } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { after, before } from "node:test";

import { Client } from "../src/index.js";

export const PATIENCE_MS = 60_000;

/** Runs what tests leave to clean up, last first. */
const cleanups = [];

export async function startNode(args = ["--locks", process.env.CLIENT_POSTGRES]) {
  const directory = await mkdtemp(join(tmpdir(), "latchgate-"));
  const log = await open(join(directory, "log"), "w");
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("LATCHGATE_"));
  // The node ends with this process, however that ends.
  const command = ["--pdeathsig", "KILL", "--", process.env.CLIENT_BINARY, "serve", "--listen", "127.0.0.1:0"];
  const child = spawn("setpriv", [...command, ...args], {
    env: Object.fromEntries(kept),
    cwd: directory,
    stdio: ["ignore", "pipe", log.fd],
  });
  const exited = once(child, "exit");
  const [line] = await Promise.race([once(createInterface(child.stdout), "line"), exited.then(() => [])]);
  if (line === undefined) throw new Error(await readFile(join(directory, "log"), "utf8"));
  const url = line.split(" ").at(-1);
  const node = {
    url,
    async kill() {
      child.kill("SIGKILL");
      await exited;
    },
    /** What the node says of the lock. */
    lock: (key) => request(url, "GET", `/v1/locks/${encodeURIComponent(key)}`),
    force: (key) => request(url, "DELETE", `/v1/locks/${encodeURIComponent(key)}`),
  };
  cleanups.push(async () => {
    await node.kill();
    await log.close();
    await rm(directory, { recursive: true });
  });
  return node;
}

export async function startPair() {
  return Promise.all([startNode(), startNode()]);
}

/** Two nodes for all tests of a file. A test that harms a node starts its own pair. */
export function world() {
  const nodes = {};
  before(async () => {
    [nodes.a, nodes.b] = await startPair();
  });
  after(cleanUp);
  return nodes;
}

/** Ends what the tests have started. */
export async function cleanUp() {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
}

async function request(url, method, path) {
  const response = await fetch(url + path, { method });
  const answer = await response.json();
  assert.equal(response.status, 200, JSON.stringify(answer));
  return answer;
}

/** Passes requests on to a node, and keeps their bodies. The answer to the first one may be lost. */
export async function startRecorder(node, { losesFirst = false } = {}) {
  const bodies = [];
  const server = createServer(async (incoming, outgoing) => {
    const body = await text(incoming);
    const answer = await fetch(node.url + incoming.url, { method: "POST", body });
    if (bodies.push(JSON.parse(body)) === 1 && losesFirst) return incoming.socket.destroy();
    outgoing.writeHead(answer.status).end(await answer.text());
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  cleanups.push(async () => server.close(() => {}).closeAllConnections());
  return { url: `http://127.0.0.1:${server.address().port}`, bodies };
}

export function clientOf(...nodes) {
  const options = nodes.at(-1).url ? {} : nodes.pop();
  // The machine may be busy.
  return new Client(nodes.map(({ url }) => url), { retryForMs: 30_000, ...options });
}

export const freshKey = () => `test/${crypto.randomUUID()}`;

export async function eventually(condition, what, withinMs = PATIENCE_MS) {
  const deadline = performance.now() + withinMs;
  while (!(await condition())) {
    assert.ok(performance.now() < deadline, `not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Checks that nothing is left of the lock. */
export async function isFree(node, key) {
  await eventually(async () => {
    const { held, waiters } = await node.lock(key);
    return !held && waiters === 0;
  }, `${key} is free`);
}

/** Waits for a renewal of each lease that was answered after this call, seen by what it has left: at most its length, right after one. */
export async function untilRenewed(...leases) {
  const before = leases.map((lease) => lease.remainingMs());
  const renewed = new Set();
  await eventually(() => {
    leases.forEach((lease, index) => {
      const left = lease.remainingMs();
      if (left > before[index]) renewed.add(lease);
      before[index] = left;
    });
    return renewed.size === leases.length || leases.some(({ signal }) => signal.aborted);
  }, "a renewal");
  for (const { signal } of leases) assert.ok(!signal.aborted, String(signal.reason));
}

/** Waits until the signal is aborted; returns its reason. */
export async function aborted(signal) {
  // A signal does not keep the process alive.
  await eventually(() => signal.aborted, "the loss");
  return signal.reason;
}
