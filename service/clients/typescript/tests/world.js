// Real nodes on one Postgres, and a proxy in front of a node that loses answers. `scripts/test-clients.sh` names the binary in
// CLIENT_BINARY and the Postgres in CLIENT_POSTGRES.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, open } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before } from "node:test";

import { Client } from "../src/index.js";

export const PATIENCE_MS = 60_000;

/** Runs what tests leave to clean up, last first. */
const cleanups = [];

export async function startNode(args = ["--locks", process.env.CLIENT_POSTGRES], environment = {}) {
  const directory = await mkdtemp(join(tmpdir(), "latchgate-"));
  const log = await open(join(directory, "log"), "w");
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("LATCHGATE_"));
  // The node ends with this process, however that ends.
  const command = ["--pdeathsig", "KILL", "--", process.env.CLIENT_BINARY, "serve", "--listen", "127.0.0.1:0"];
  const child = spawn("setpriv", [...command, ...args], {
    env: { ...Object.fromEntries(kept), ...environment },
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
    freeze: () => child.kill("SIGSTOP"),
    thaw: () => child.kill("SIGCONT"),
    /** What the node says of the lock. */
    lock: (key) => request(url, "GET", `/v1/locks/${encodeURIComponent(key)}`),
    force: (key) => request(url, "DELETE", `/v1/locks/${encodeURIComponent(key)}`),
    revoke: (key, body) => request(url, "POST", `/v1/locks/${encodeURIComponent(key)}/revoke`, body),
  };
  cleanups.push(async () => {
    node.thaw();
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

async function request(url, method, path, body) {
  const response = await fetch(url + path, { method, body: body && JSON.stringify(body) });
  const answer = await response.json();
  assert.equal(response.status, 200, JSON.stringify(answer));
  return answer;
}

/** Passes requests on to a node. It loses answers, or refuses requests, as often as it is told to. */
export async function startProxy(node) {
  const lose = new Map();
  const seen = [];
  const thenRefuse = new Map();
  let refuse = 0;
  let endsWaits = false;
  let rewrite = (path) => path;
  let hides = false;
  let hanging;
  const server = createServer(async (incoming, outgoing) => {
    const chunks = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const body = Buffer.concat(chunks).toString();
    const verb = incoming.url.split("/").at(-1);
    seen.push({ verb, at: performance.now(), body: JSON.parse(body) });
    if (refuse > 0) {
      refuse -= 1;
      outgoing.writeHead(503, { "Retry-After": "1" });
      outgoing.end(JSON.stringify({ code: "overloaded", detail: "This proxy refuses.", retry_after_ms: 1_000 }));
      return;
    }
    if (!lose.get(verb) && thenRefuse.has(verb)) {
      const { status, ...problem } = thenRefuse.get(verb);
      outgoing.writeHead(status);
      outgoing.end(JSON.stringify({ detail: "This proxy refuses.", ...problem }));
      return;
    }
    // It gets no answer until the proxy stops.
    if (hanging && body.includes(hanging)) return;
    const passedOn = endsWaits && body.includes('"wait_ms"') ? JSON.stringify({ ...JSON.parse(body), wait_ms: 1 }) : body;
    let answer, text;
    try {
      answer = await fetch(node.url + rewrite(incoming.url), { method: "POST", body: passedOn });
      text = await answer.text();
    } catch {
      incoming.socket.destroy();
      return;
    }
    if ((lose.get(verb) ?? 0) > 0) {
      lose.set(verb, lose.get(verb) - 1);
      if (hides) {
        outgoing.writeHead(504);
        outgoing.end(JSON.stringify({ code: "upstream-timeout", detail: "This gateway has waited too long." }));
      } else incoming.socket.destroy();
      return;
    }
    outgoing.writeHead(answer.status);
    outgoing.end(text);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  cleanups.push(async () => {
    server.close();
    server.closeAllConnections();
  });
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    seen,
    /** Loses the next answers to requests of paths that end so. */
    lose: (verb, times = 1) => lose.set(verb, times),
    /** Instead of a lost answer there is one of a gateway, with a code of its own. */
    hide: () => (hides = true),
    /** Answers the next requests with 503 and `Retry-After: 1`. */
    refuse: (times) => (refuse = times),
    /** Of requests of paths that end so, after those whose answers were lost: their status, and the fields of the problem. */
    thenRefuse,
    /** Ends waits at once, as a node does that is about to stop. */
    endWaits: () => (endsWaits = true),
    /** Changes paths, as some proxies do. */
    rewrite: (change) => (rewrite = change),
    /** Requests with this text in their body get no answer. */
    hang: (text) => (hanging = text),
    requests: (verb) => seen.filter((request) => request.verb === verb).map(({ body }) => body),
  };
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
