// How leases are renewed together, by answers that real nodes seldom give.

import assert from "node:assert/strict";
import { test } from "node:test";

import { now } from "../src/clock.js";
import { NoAnswer } from "../src/nodes.js";
import { Keeper, Renewals, batches } from "../src/renewals.js";
import { aborted, eventually } from "./world.js";

/** One node that answers so. */
function nodesOf(answer) {
  const calls = [];
  const send = async (path, body) => {
    const sent = now();
    calls.push(body.leases.map(({ key }) => key));
    const results = body.leases.map((lease) => ({ ...lease, status: 200, ttl_ms: 900, revocation: null }));
    return { sent, ...answer(calls.at(-1), results) };
  };
  return { calls, timeoutMs: 5_000, size: 1, send };
}

function keep(nodes) {
  const renewals = new Renewals(nodes);
  return Array.from({ length: 40 }, (_, number) => {
    const lease = { key: `k${number}`, lease_id: `k${number}` };
    const keeper = new Keeper(lease.key, 900, { sent: now(), leftMs: 900, body: {} }, { leases: [lease] });
    renewals.keep(keeper);
    return keeper;
  });
}

async function onlyTheSeventhIsLost(keepers) {
  await aborted(keepers[7].signal);
  const others = keepers.filter((keeper) => keeper !== keepers[7]);
  const lostAt = now();
  await eventually(() => others.every(({ last }) => last.sent > lostAt), "renewals");
  assert.ok(!others.some(({ signal }) => signal.aborted));
  for (const keeper of others) keeper.stop();
}

test("a key that the API key may not use takes no other with it", async () => {
  const nodes = nodesOf((keys, results) => {
    const index = keys.indexOf("k7");
    return index >= 0 ? { status: 403, body: { code: "forbidden", index } } : { status: 200, body: { results } };
  });
  await onlyTheSeventhIsLost(keep(nodes));
  assert.ok(nodes.calls.filter((keys) => keys.includes("k7") && keys.length > 1).length < 3);
});

test("a key whose renewals hang takes no other with it", async () => {
  const nodes = nodesOf((keys, results) => {
    if (keys.includes("k7")) throw new NoAnswer("it hangs");
    return { status: 200, body: { results } };
  });
  await onlyTheSeventhIsLost(keep(nodes));
});

test("an answer whose results are of other leases renews none", async () => {
  const keepers = keep(nodesOf((_, results) => ({ status: 200, body: { results: results.map((result) => ({ ...result, lease_id: "other" })) } })));
  await eventually(() => keepers.every(({ signal }) => signal.aborted), "all are lost");
});

test("no request with renewals is longer than gateways accept", () => {
  const keepers = Array.from({ length: 500 }, (_, number) => {
    const lease = { key: `${number}/${"ü".repeat(700)}`, lease_id: crypto.randomUUID() };
    return new Keeper("k", 900, { sent: now(), leftMs: 900, body: {} }, { leases: [lease] });
  });
  const sent = batches(keepers, now() + 500);
  assert.deepEqual(sent.flat().length, 500);
  for (const batch of sent) {
    assert.ok(Buffer.byteLength(JSON.stringify({ leases: batch.flatMap(({ leases }) => leases) })) <= 500_000);
  }
});
