// The agent of this client: see ../../python/tests/remote.py, which runs the scenarios.

import { createInterface } from "node:readline";

import { Client, LatchgateError, NotDone } from "../src/index.js";
import { aborted } from "./world.js";

const clients = new Map();
const leases = new Map();
const works = new Map();
const waits = new Map();
const streams = new Map();
const thrown = new WeakSet();

const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");

function keep(lease) {
  const { key, leaseId: lease_id, token, tokens = [], owner, id, guarded } = lease;
  leases.set(leases.size + 1, lease);
  return { lease: leases.size, key, lease_id, token, tokens: Object.fromEntries(tokens), owner, id, guarded };
}

function said(error) {
  if (thrown.has(error)) return { kind: "work" };
  if (!(error instanceof LatchgateError)) return { kind: error.name === "AbortError" ? "cancelled" : "options", detail: error.message };
  const { name: kind, code, detail, status, fields, result } = error;
  return { kind, code, detail, status, fields, result };
}

const calls = {
  client: ({ client, urls, ...options }) => void clients.set(client, new Client(urls?.length === 1 ? urls[0] : urls, options)),
  lock: async ({ client, key, ...options }) => keep(await clients.get(client).lock(key, options)),
  multilock: async ({ client, keys, ...options }) => keep(await clients.get(client).multilock(keys, options)),
  fence: ({ client, key, token }) => clients.get(client).fence(key, token),
  revoke: ({ client, key, ...options }) => clients.get(client).revoke(key, options),
  state({ lease }) {
    const state = { remaining_ms: leases.get(lease).remainingMs(), revocation: leases.get(lease).revocation };
    try {
      leases.get(lease).check();
      return state;
    } catch (error) {
      return { ...state, lost: said(error) };
    }
  },
  lost: async ({ lease }) => said(await aborted(leases.get(lease).signal)),
  release: ({ lease }) => leases.get(lease).release(),
  forget() {},
  async once({ client, contents, ...options }, number) {
    const work = (attempt) => new Promise((resolve, reject) => {
      works.set(number, { resolve, reject });
      say({ number, work: keep(attempt) });
    });
    const { result, duplicate, resultOmitted: result_omitted } = await clients.get(client).once(contents, work, options);
    return { result, duplicate, result_omitted };
  },
  ended({ call, result, failed, notDone }) {
    const { resolve, reject } = works.get(call);
    const error = failed !== undefined ? new Error(failed) : notDone !== undefined ? new NotDone(notDone) : undefined;
    if (error) thrown.add(error);
    return error ? reject(error) : resolve(result);
  },
  cancel: ({ call }) => waits.get(call)?.abort(),
  events({ client, key, after }, number) {
    streams.set(number, clients.get(client).events(key, { after }));
    return number;
  },
  next: async ({ events }) => (await streams.get(events).next()).value,
};

for await (const line of createInterface(process.stdin)) {
  const { number, do: name, ...given } = JSON.parse(line);
  const waiting = new AbortController();
  waits.set(number, waiting);
  (async () => calls[name](name === "lock" ? { ...given, signal: waiting.signal } : given, number))()
    .then((value) => ({ value }), (error) => ({ error: said(error) }))
    .then((answer) => number && say({ number, ...answer }));
}
process.exit();
