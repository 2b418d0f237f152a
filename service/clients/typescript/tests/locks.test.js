// The scenarios of locks without faults: see ../../SCENARIOS.md.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LeaseLost, LockHeld, StaleToken, Unavailable, WaitTimeout } from "../src/index.js";
import { aborted, clientOf, eventually, freshKey, isFree, startPair, startProxy, untilRenewed, world } from "./world.js";

const nodes = world();
const both = (options = {}) => clientOf(nodes.a, nodes.b, options);

test("1: a lease is renewed for longer than its TTL", async () => {
  const key = freshKey();
  const lease = await clientOf(nodes.a).lock(key, { ttlMs: 6_000 });
  const other = clientOf(nodes.b);
  const until = performance.now() + 12_500;
  while (performance.now() < until) {
    assert.equal(await other.tryLock(key), undefined);
    assert.ok(lease.remainingMs() > 0);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  lease.check();
  assert.deepEqual((await nodes.b.lock(key)).holders.map(({ token }) => token), [lease.token]);
  await lease.release();
  await isFree(nodes.b, key);
});

test("2: a waiter gets the lock when it is released", async () => {
  const key = freshKey();
  const first = await clientOf(nodes.a).lock(key);
  const second = clientOf(nodes.b).lock(key);
  await eventually(async () => (await nodes.b.lock(key)).waiters === 1, "it waits");
  await first.release();
  const lease = await second;
  assert.ok(lease.token > first.token);
  assert.ok(lease.remainingMs() > 15_000);
  assert.match(String(lease), new RegExp(`^lease of ${key}, token ${lease.token}, owner ${lease.owner}, for \\d+ ms$`));
  await lease[Symbol.asyncDispose]();
  await isFree(nodes.b, key);
});

test("3: a long wait goes on with tickets", async () => {
  const key = freshKey();
  const proxy = await startProxy(nodes.a);
  const first = await clientOf(nodes.b).lock(key, { owner: "first" });
  const second = clientOf(proxy, { waitPerCallMs: 500 }).lock(key);
  await eventually(() => proxy.requests("acquire").filter(({ ticket }) => ticket).length >= 2, "two tickets");
  await first.release();
  await (await second).release();
  assert.equal(new Set(proxy.requests("acquire").map(({ lease_id }) => lease_id)).size, 1);
});

test("3: a wait that ends names the holders", async () => {
  const key = freshKey();
  await clientOf(nodes.b).withLock(key, { owner: "first" }, async () => {
    await assert.rejects(both({ waitPerCallMs: 500 }).lock(key, { waitMs: 1_200 }), (error) => {
      assert.ok(error instanceof WaitTimeout);
      assert.deepEqual(error.holders.map(({ owner }) => owner), ["first"]);
      assert.deepEqual([error.code, error.status], ["wait-timeout", 423]);
      return true;
    });
  });
  await isFree(nodes.b, key);
});

test("3: a node that ends waits at once is left for another one", async () => {
  const key = freshKey();
  const proxy = await startProxy(nodes.a);
  proxy.endWaits();
  const first = await clientOf(nodes.b).lock(key);
  const second = clientOf(proxy, nodes.b, { waitPerCallMs: 50_000 }).lock(key);
  await eventually(() => proxy.requests("acquire").length > 0, "the proxy is asked");
  await eventually(async () => (await nodes.b.lock(key)).waiters === 1, "it waits");
  await first.release();
  await (await second).release();
  assert.equal(proxy.requests("acquire").length, 1);
});

test("3: a wait that ends during an outage is a wait that ended", async () => {
  const key = freshKey();
  const proxy = await startProxy(nodes.a);
  proxy.refuse(1);
  await clientOf(nodes.b).withLock(key, async () => {
    await assert.rejects(clientOf(proxy).lock(key, { waitMs: 500 }), WaitTimeout);
  });
  await isFree(nodes.b, key);
});

test("9: the answer to an acquire is lost", async () => {
  const key = freshKey();
  const proxy = await startProxy(nodes.a);
  proxy.lose("acquire");
  const lease = await clientOf(proxy, nodes.b).lock(key);
  assert.deepEqual((await nodes.b.lock(key)).holders.map(({ token }) => token), [lease.token]);
  assert.deepEqual(proxy.requests("acquire").map(({ lease_id }) => lease_id), [lease.leaseId]);
  await lease.release();
  await isFree(nodes.b, key);
});

test("10: the answers to a renewal and a release are lost", async () => {
  const key = freshKey();
  const proxy = await startProxy(nodes.a);
  const lease = await clientOf(proxy).lock(key, { ttlMs: 6_000 });
  proxy.lose("renew");
  await eventually(() => proxy.requests("renew").length === 2, "the renewal is repeated");
  lease.check();
  proxy.lose("release");
  await lease.release();
  assert.equal(proxy.requests("release").length, 2);
  await isFree(nodes.b, key);
});

test("11: nothing is left behind", async () => {
  const key = freshKey();
  const client = both();
  const failing = client.withLock(key, () => {
    throw new RangeError("the work fails");
  });
  await assert.rejects(failing, RangeError);
  await isFree(nodes.b, key);
  await client.withLock(key, async () => {
    await assert.rejects(client.lock(key, { waitMs: 500 }), WaitTimeout);
    assert.equal((await nodes.b.lock(key)).waiters, 0);
    const waiting = new AbortController();
    const wait = client.lock(key, { signal: waiting.signal });
    await eventually(async () => (await nodes.b.lock(key)).waiters === 1, "it waits");
    waiting.abort(new RangeError("no longer wanted"));
    await assert.rejects(wait, RangeError);
    await eventually(async () => (await nodes.b.lock(key)).waiters === 0, "the waiter has left");
  });
  await isFree(nodes.b, key);
});

test("11: an acquire that may have been granted is given back", async () => {
  const key = freshKey();
  const proxy = await startProxy(nodes.a);
  proxy.lose("acquire", 1_000);
  await assert.rejects(clientOf(proxy, { retryForMs: 1_000 }).lock(key, { waitMs: 0 }), Unavailable);
  await eventually(() => proxy.requests("release").length > 0, "it is released");
  await isFree(nodes.b, key);
});

test("12: shared leases and permits", async () => {
  const key = freshKey();
  const client = both();
  const readers = [await client.lock(key, { shared: true }), await client.lock(key, { shared: true })];
  assert.equal(await client.tryLock(key), undefined);
  for (const reader of readers) await reader.release();
  const permits = freshKey();
  const holders = [await client.lock(permits, { permits: 2, limit: 3 }), await client.lock(permits, { limit: 3 })];
  assert.equal(await client.tryLock(permits, { limit: 3 }), undefined);
  for (const holder of holders) await holder.release();
  await isFree(nodes.b, permits);
});

test("12: a group has no more permits than its limit", async () => {
  const key = freshKey();
  const client = both();
  const holder = await client.lock(key, { limit: 3, group: "a", groupLimit: 1 });
  assert.equal(await client.tryLock(key, { limit: 3, group: "a", groupLimit: 1 }), undefined);
  await (await client.lock(key, { limit: 3, group: "b", groupLimit: 1 })).release();
  await (await client.multilock([{ key, limit: 3, group: "c" }, freshKey()])).release();
  await holder.release();
  await isFree(nodes.b, key);
});

test("12: a multilock is renewed and released as one", async () => {
  const key = freshKey();
  const other = freshKey();
  const client = both();
  let lease = await client.multilock([key, { key: other, shared: true }], { ttlMs: 6_000 });
  await untilRenewed(lease);
  assert.deepEqual([...lease.tokens.keys()], [key, other]);
  await assert.rejects(client.lock(key, { waitMs: 0 }), LockHeld);
  await (await client.lock(other, { shared: true })).release();
  await lease.release();
  await isFree(nodes.b, key);
  await isFree(nodes.b, other);

  lease = await client.multilock([key, other], { ttlMs: 6_000 });
  await nodes.a.force(other);
  await aborted(lease.signal);
  await assert.rejects(lease.release(), (error) => error instanceof LeaseLost && error.why === "forced");
  await isFree(nodes.b, key);
});

test("13: the holder sees a revocation", async () => {
  const key = freshKey();
  const lease = await both().lock(key, { ttlMs: 6_000 });
  assert.equal(lease.revocation, undefined);
  await nodes.b.revoke(key, { reason: "hotfix", by: "ann", grace_ms: 30_000 });
  await eventually(() => lease.revocation, "the revocation");
  assert.deepEqual([lease.revocation.reason, lease.revocation.by], ["hotfix", "ann"]);
  assert.ok(lease.remainingMs() <= 30_000);
  await lease.release();
});

test("46: a holder that ignores a revocation learns why its lease has ended", async () => {
  const key = freshKey();
  const client = both();
  for (const take of [() => client.lock(key, { ttlMs: 3_000 }), () => client.multilock([key, `${key}/2`], { ttlMs: 3_000 })]) {
    const lease = await take();
    await nodes.b.revoke(key, { reason: "hotfix", by: "ann", grace_ms: 2_000 });
    const loss = await aborted(lease.signal);
    assert.equal(loss.why, "revoked", loss.message);
    if (loss.status === undefined) assert.ok(loss.message.includes("ann has revoked the lease of"), loss.message);
    await assert.rejects(lease.release(), (error) => error instanceof LeaseLost && error.why === "revoked");
  }
});

test("13: a client revokes a lock", async () => {
  const key = freshKey();
  const client = both();
  assert.deepEqual(await client.revoke(key), { leases: 0, deadline: undefined });
  const lease = await client.lock(key, { ttlMs: 3_000 });
  const { leases, deadline } = await client.revoke(key, { reason: "hotfix", by: "ann", graceMs: 30_000, token: lease.token });
  assert.equal(leases, 1);
  await eventually(() => lease.revocation, "the revocation");
  assert.deepEqual(lease.revocation, { deadline, reason: "hotfix", by: "ann" });
  await lease.release();
});

test("25: a lock inside of itself is nested on request", async () => {
  const key = freshKey();
  const other = freshKey();
  const client = both();
  await client.withLock(key, async (outer) => {
    await client.withLock(key, { reentrant: true, waitMs: 0 }, async (inner) => {
      assert.deepEqual([inner.token, inner.owner], [outer.token, outer.owner]);
      const innermost = await client.lock(key, { reentrant: true, waitMs: 0 });
      assert.equal(innermost.token, outer.token);
      await innermost.release();
    });
    const many = await client.multilock([key, other], { reentrant: true, waitMs: 0 });
    assert.equal(many.tokens.get(key), outer.token);
    await many.release();
    assert.equal(await client.tryLock(key), undefined);
    assert.equal(await both().tryLock(key, { reentrant: true }), undefined);
    // Code that runs side by side inside of another lock is not inside of each other's.
    await client.withLock(other, async () => {
      assert.ok(outer.remainingMs() > 0);
    });
    await Promise.all([1, 2].map(() => client.withLock(other, { reentrant: true }, async () => {
      assert.equal((await nodes.a.lock(other)).holders.length, 1);
    })));
  });
  await isFree(nodes.b, key);
  const lease = await client.lock(key);
  // Outside of the work of `withLock`, nothing says who holds it.
  assert.equal(await client.tryLock(key, { reentrant: true }), undefined);
  await lease.release();
  await client.withLock(key, { owner: "worker" }, () => assert.rejects(client.lock(key, { reentrant: true }), TypeError));
});

test("26: the leases of a client are renewed together", async () => {
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
  const leases = [];
  for (let number = 0; number < 20; number += 1) leases.push(await client.lock(freshKey(), { ttlMs: 6_000 }));
  await untilRenewed(...leases);
  await untilRenewed(...leases);
  assert.ok(proxy.requests("renew").length < 10);
  await nodes.b.force(leases[7].key);
  const loss = await aborted(leases[7].signal);
  assert.equal(loss.why, "forced");
  const others = leases.filter((lease) => lease !== leases[7]);
  await untilRenewed(...others);
  for (const lease of others) await lease.release();
});

test("26: no request has more leases than a node accepts", async () => {
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
  const leases = [];
  for (let number = 0; number < 10; number += 1) {
    leases.push(await client.multilock(Array.from({ length: 60 }, freshKey), { ttlMs: 9_000 }));
  }
  await untilRenewed(...leases);
  assert.ok(Math.max(...proxy.requests("renew").map(({ leases }) => leases.length)) <= 500);
  for (const lease of leases) await lease.release();
});

test("29: a lock stays taken for its shortest hold", async () => {
  const key = freshKey();
  const client = both();
  await (await client.lock(key, { minHoldMs: 600_000 })).release();
  await assert.rejects(client.lock(key, { waitMs: 0 }), (error) => error instanceof LockHeld && error.code === "lock-delayed");
  await nodes.b.force(key);
});

test("30: events continue behind the last one at another node", async () => {
  const [a, b] = await startPair();
  const key = freshKey();
  const events = clientOf(a, b).events(key);
  let first;
  const reading = events.next().then(({ value }) => (first = value));
  await eventually(async () => {
    await (await clientOf(b).lock(key)).release();
    return first;
  }, "an event");
  await reading;
  assert.deepEqual([first.data.key, first.data.id], [key, first.id]);
  await a.kill();
  const last = await clientOf(b).lock(key, { owner: "last" });
  for await (const expected of clientOf(b).events(key, { after: first.id })) {
    assert.deepEqual((await events.next()).value, expected);
    if (expected.data.owner === "last") {
      assert.equal(expected.kind, "granted");
      break;
    }
  }
  const ended = new AbortController();
  const later = clientOf(b).events(key, { after: first.id, signal: ended.signal });
  await later.next();
  ended.abort(new RangeError("no longer wanted"));
  await assert.rejects(async () => {
    for (;;) await later.next();
  }, RangeError);
  await events.return();
  await last.release();
});

test("31: a token that is too low does not pass", async () => {
  const key = freshKey();
  const client = both();
  const first = await client.lock(key);
  await client.fence(key, first.token);
  await first.release();
  const second = await client.lock(key);
  await assert.rejects(client.fence(key, first.token), (error) => {
    assert.ok(error instanceof StaleToken);
    assert.deepEqual([error.status, error.current], [412, second.token]);
    return true;
  });
  await second.release();
});
