// The scenarios in which nodes are killed or freeze: see ../../SCENARIOS.md.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import os from "node:os";
import { test } from "node:test";

import { Client, LeaseLost, Unavailable } from "../src/index.js";
import { now } from "../src/clock.js";
import { aborted, clientOf, eventually, freshKey, isFree, startPair, startProxy, untilRenewed, world } from "./world.js";

const nodes = world();

test("4: a node is killed while a lease is held", async () => {
  const [a, b] = await startPair();
  const key = freshKey();
  const lease = await clientOf(a, b).lock(key, { ttlMs: 6_000 });
  await a.kill();
  await untilRenewed(lease);
  assert.deepEqual((await b.lock(key)).holders.map(({ token }) => token), [lease.token]);
  await lease.release();
  await isFree(b, key);
});

test("5: a node is killed while a call waits there", async () => {
  const [a, b] = await startPair();
  const key = freshKey();
  const first = await clientOf(b).lock(key);
  const second = clientOf(a, b).lock(key);
  await eventually(async () => (await b.lock(key)).waiters === 1, "it waits at A");
  await a.kill();
  await first.release();
  const lease = await second;
  assert.ok(lease.token > first.token);
  await lease.release();
});

test("5: the position in the queue survives the node", async () => {
  const [a, b] = await startPair();
  const proxy = await startProxy(a);
  const key = freshKey();
  const holder = await clientOf(b).lock(key);
  const first = clientOf(proxy, b).lock(key, { owner: "first" });
  await eventually(() => proxy.requests("acquire").some(({ ticket }) => ticket), "it has a ticket", 10_000);
  const second = clientOf(b).lock(key, { owner: "second" });
  await eventually(async () => (await b.lock(key)).waiters === 2, "both wait");
  await a.kill();
  await eventually(async () => (await b.lock(key)).waiting.length === 2, "both wait at B");
  await holder.release();
  const lease = await first;
  // Between two of its requests, a waiter is not in the list.
  await eventually(async () => (await b.lock(key)).waiting.map(({ owner }) => owner).join() === "second", "second still waits");
  await lease.release();
  await (await second).release();
});

test("6: a node freezes while a lease is held", async () => {
  const [a, b] = await startPair();
  const key = freshKey();
  const lease = await clientOf(a, b).lock(key, { ttlMs: 9_000 });
  a.freeze();
  await untilRenewed(lease);
  assert.deepEqual((await b.lock(key)).holders.map(({ token }) => token), [lease.token]);
  await lease.release();
  await isFree(b, key);
});

test("7: every node freezes for longer than the TTL", async () => {
  const [a, b] = await startPair();
  const sent = now();
  const lease = await clientOf(a, b).lock(freshKey(), { ttlMs: 2_000 });
  a.freeze();
  b.freeze();
  const loss = await aborted(lease.signal);
  assert.ok(loss instanceof LeaseLost);
  assert.equal(loss.why, "unanswered");
  assert.ok(now() - sent >= 1_900);
  assert.equal(lease.remainingMs(), 0);
  assert.throws(() => lease.check(), LeaseLost);
  await assert.rejects(lease.release(), LeaseLost);
});

test("8: a lease is ended by force", async () => {
  const key = freshKey();
  const client = clientOf(nodes.a, nodes.b);
  const holding = client.withLock(key, { ttlMs: 3_000 }, async (lease) => {
    await nodes.b.force(key);
    await aborted(lease.signal);
    assert.equal(lease.remainingMs(), 0);
  });
  const forced = (error) => error instanceof LeaseLost && error.why === "forced" && error.status === 410;
  await assert.rejects(holding, forced);
  // A release says so too, if no renewal has noticed it before.
  const lease = await client.lock(key);
  await nodes.b.force(key);
  await assert.rejects(lease[Symbol.asyncDispose](), forced);
});

test("19: a node is killed while the work runs", async () => {
  const [a, b] = await startPair();
  const contents = freshKey();
  const work = async () => {
    await a.kill();
    return "done";
  };
  assert.equal((await clientOf(a, b).once(contents, work, { operation: "test" })).result, "done");
  assert.equal((await clientOf(b).once(contents, work, { operation: "test" })).duplicate, true);
});

test("21: a failure says more than the silence after it", async () => {
  const opened = [];
  const server = createServer((socket) => {
    socket.on("error", () => {});
    if (opened.push(socket) === 1) socket.once("data", () => socket.destroy());
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const client = clientOf({ url: `http://127.0.0.1:${server.address().port}` }, { retryForMs: 1_000 });
  await assert.rejects(client.lock("k"), (error) => error instanceof Unavailable && !error.detail.includes("no answer within"));
  assert.ok(opened.length > 1);
  for (const socket of opened) socket.destroy();
  server.close();
});

test("21: no node answers", async () => {
  const [a, b] = await startPair();
  await a.kill();
  b.freeze();
  await assert.rejects(clientOf(a, b, { timeoutMs: 300, retryForMs: 1_000 }).lock(freshKey(), { waitMs: 0 }), Unavailable);
});

test("23: a claim in doubt is given back", async () => {
  const refusals = [undefined, "hidden", [429, "rate-limited"], [500, "internal-error"], [401, "unauthorized"]];
  for (const refusal of refusals) {
    const proxy = await startProxy(nodes.a);
    const contents = freshKey();
    if (refusal === "hidden") proxy.hide();
    proxy.lose("pre", Array.isArray(refusal) ? 1 : Infinity);
    if (Array.isArray(refusal)) proxy.thenRefuse.set("pre", { status: refusal[0], code: refusal[1] });
    const work = () => assert.fail("it runs");
    const client = clientOf(proxy, { retryForMs: 1_000 });
    await assert.rejects(client.once(contents, work, { operation: "test", waitMs: 0 }));
    proxy.lose("pre", 0);
    proxy.thenRefuse.clear();
    const isDone = async () => {
      try {
        return (await clientOf(nodes.a).once(contents, () => 7, { operation: "test", waitMs: 0 })).result === 7;
      } catch {
        return false;
      }
    };
    await eventually(isDone, `the operation is free after ${refusal}`);
  }
});

test("24: the machine was suspended for longer than the lease", async (context) => {
  const lease = await clientOf(nodes.a).lock(freshKey(), { ttlMs: 300_000 });
  let suspendedMs = 300;
  const began = now();
  // The time since the machine started has gone on, and its timers have not.
  const { uptime } = os;
  context.mock.method(os, "uptime", () => uptime() + suspendedMs / 1_000);
  assert.ok(now() - began >= suspendedMs, "a short suspension counts too");
  lease.check();
  suspendedMs = 601_000;
  await aborted(lease.signal);
  assert.equal(lease.remainingMs(), 0);
});

test("27: a lease whose renewal hangs takes no other with it", async () => {
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
  const leases = [];
  for (let number = 0; number < 4; number += 1) leases.push(await client.lock(freshKey(), { ttlMs: 9_000 }));
  const [hanging, ...others] = leases;
  proxy.hang(hanging.leaseId);
  await aborted(hanging.signal);
  await untilRenewed(...others);
  for (const lease of others) await lease.release();
});

test("28: each call ends in time when no node answers", async () => {
  const [a, b] = await startPair();
  const client = new Client([a.url, b.url]);
  const key = freshKey();
  const lease = await client.lock(key, { ttlMs: 50_000 });
  a.freeze();
  b.freeze();
  const calls = [
    () => client.lock(key, { waitMs: 600_000 }),
    () => client.once(key, () => 7, { operation: "test", ttlMs: 5_000 }),
    () => client.fence(key, lease.token),
    () => lease.release(),
  ];
  for (const call of calls) {
    const began = performance.now();
    await assert.rejects(call, Unavailable);
    assert.ok(performance.now() - began < 10_000);
  }
});
