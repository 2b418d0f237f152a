// @ts-check
// The client. See index.d.cts.

import { now } from "./clock.js";
import { Entries } from "./entries.js";
import { LatchgateError, LeaseLost, LockHeld, Refused } from "./errors.js";
import { events } from "./events.js";
import { once } from "./gate.js";
import { identityOf, jsonOf } from "./json.js";
import { Lease, Target } from "./lease.js";
import { Nodes } from "./nodes.js";
import { checkKey, checkWork, checked } from "./options.js";
import { Renewals, untilOf } from "./renewals.js";
import { inside, ownerOf } from "./scope.js";

/** For giving back a lease that may have been granted to a caller that has gone. */
const GIVE_BACK_MS = 2_000;
const TTL_MS = 30_000;
const WAIT_MS = 60_000;
const LEASE_MS = 60_000;

export class Client {
  #nodes;
  #renewals;
  #entries;

  /**
   * @param {string | readonly string[]} [urls]
   * @param {import("./index.js").ClientOptions} [options]
   */
  constructor(urls, options = {}) {
    this.#nodes = new Nodes(urls, options);
    this.#renewals = new Renewals(this.#nodes);
    this.#entries = new Entries(this.#nodes);
  }

  /**
   * @param {string} key
   * @param {import("./index.js").LockOptions} [options]
   */
  async lock(key, options = {}) {
    return this.#lock(key, checked("lock", options));
  }

  /**
   * @param {string} key
   * @param {import("./index.js").LockOptions} options
   */
  async #lock(key, options) {
    const fields = { ...mode(options), barge: options.barge };
    // `fetch` would drop these keys from the path.
    if (key === "." || key === "..") return this.#acquire([key], true, options, { locks: [{ key, ...fields }] });
    return this.#acquire([key], false, options, fields);
  }

  /**
   * @param {string} key
   * @param {import("./index.js").LockOptions} [options]
   */
  async tryLock(key, options = {}) {
    try {
      return await this.#lock(key, { ...checked("tryLock", options), waitMs: 0 });
    } catch (error) {
      if (error instanceof LockHeld) return undefined;
      throw error;
    }
  }

  /**
   * @template T
   * @param {string} key
   * @param {import("./index.js").LockOptions | ((lease: Lease) => T | Promise<T>)} options
   * @param {(lease: Lease) => T | Promise<T>} [work]
   * @returns {Promise<T>}
   */
  async withLock(key, options, work) {
    if (typeof options === "function") {
      if (work !== undefined) throw new TypeError("withLock takes the options before the work: withLock(key, options, work)");
      return this.withLock(key, {}, options);
    }
    checkWork("withLock", work, "lease");
    const run = /** @type {(lease: Lease) => T | Promise<T>} */ (work);
    const lease = await this.#lock(key, checked("withLock", options));
    let result;
    try {
      result = await inside(lease, () => run(lease));
    } catch (error) {
      // It is more important than that of the release.
      await lease.release().catch(() => {});
      throw error;
    }
    await lease[Symbol.asyncDispose]();
    return result;
  }

  /**
   * @param {ReadonlyArray<string | import("./index.js").Key>} keys
   * @param {import("./index.js").MultilockOptions} [options]
   */
  async multilock(keys, options = {}) {
    const each = keys.map((key) => (typeof key === "string" ? { key } : checked("a key of multilock", key)));
    const locks = each.map((key) => ({ key: key.key, ...mode(key) }));
    return this.#acquire(each.map(({ key }) => key), true, checked("multilock", options), { locks });
  }

  /**
   * @template T
   * @param {unknown} contents
   * @param {(attempt: import("./gate.js").Attempt) => T | Promise<T>} work
   * @param {import("./index.js").OnceOptions} options
   */
  async once(contents, work, options) {
    checkWork("once", work, "attempt");
    if (typeof options?.operation !== "string") throw new TypeError("once needs the name of the operation: once(contents, work, { operation })");
    const { ttlMs = LEASE_MS, waitMs = WAIT_MS, onExpiry = "block", onOutage, signal } = checked("once", options);
    const request = {
      operation: options.operation,
      contents: identityOf(contents, "contents"),
      checked: "checked" in options ? checkedOf(options.checked) : undefined,
      ttl_ms: ttlMs,
      on_expiry: onExpiry,
      durability: options.durability,
      retention_ms: options.retentionMs,
      permanent: options.permanent,
      label: options.label,
    };
    const entries = onOutage === "proceed" ? this.#entries : undefined;
    return once(this.#nodes, this.#renewals, request, work, { lengthMs: ttlMs, waitMs, entries, signal });
  }

  /**
   * @param {string} key
   * @param {number} token
   */
  async fence(key, token) {
    if (!Number.isSafeInteger(token)) throw new TypeError(`fence needs the token of a lease, not ${String(token)}`);
    await this.#nodes.call(pathOf(key, "fence"), { token }, { until: now() + this.#nodes.retryForMs, keys: [key] });
  }

  /**
   * @param {string} key
   * @param {import("./index.js").RevokeOptions} [options]
   */
  async revoke(key, options = {}) {
    const { reason, by, graceMs, token } = checked("revoke", options);
    const call = { until: now() + this.#nodes.retryForMs, keys: [key], repeatInDoubt: token !== undefined };
    const { body } = await this.#nodes.call(pathOf(key, "revoke"), { reason, by, grace_ms: graceMs, token }, call);
    return { leases: body.leases, deadline: body.deadline ?? undefined };
  }

  /**
   * @param {string | {prefix: string}} of
   * @param {import("./index.js").EventsOptions} [options]
   */
  events(of, options = {}) {
    const prefix = typeof of === "string" ? "" : encodeURIComponent(checked("the first argument of events", of).prefix);
    const path = typeof of === "string" ? pathOf(of, "events") : `/v1/events?prefix=${prefix}`;
    return events(this.#nodes, path, of, checked("events", options));
  }

  /**
   * @param {string[]} keys
   * @param {boolean} many
   * @param {import("./index.js").MultilockOptions} options
   * @param {Record<string, unknown>} fields
   */
  async #acquire(keys, many, options, fields) {
    const { ttlMs = TTL_MS, waitMs = WAIT_MS, signal } = options;
    keys.forEach(checkKey);
    const metadata = options.metadata && jsonOf(options.metadata, "metadata");
    const waitUntil = now() + waitMs;
    let until = now() + this.#nodes.retryForMs;
    const hasNamedOwner = options.owner !== undefined;
    const { owner, isNested } = hasNamedOwner
      ? { owner: options.owner, isNested: options.reentrant }
      : ownerOf(this.#nodes, keys, options.reentrant);
    for (;;) {
      // A fresh id for each lease: a repeated acquire gets the same grant.
      const target = new Target(this.#nodes, keys, crypto.randomUUID(), many);
      const body = {
        ...fields,
        lease_id: target.leaseId,
        ttl_ms: ttlMs,
        owner,
        priority: options.priority,
        reentrant: isNested || undefined,
        delay_ms: options.delayMs,
        min_hold_ms: options.minHoldMs,
        max_hold_ms: options.maxHoldMs,
        metadata,
      };
      const doubt = { isSet: false };
      try {
        const { sent, body: granted } = await this.#nodes.call(target.path("acquire"), body, { until, waitUntil, keys, needs: ["ttl_ms"], signal, doubt });
        /** @type {import("./renewals.js").Renewed} */
        let first = { sent, leftMs: granted.ttl_ms, body: granted };
        // After a wait, the lease began long after the request was sent: a renewal tells until when it lasts.
        if (untilOf(first) - now() < (ttlMs * 2) / 3) {
          const { retryForMs } = this.#nodes;
          const ends = Math.max(until, waitUntil + retryForMs);
          first = await target.renew(Math.min(now() + Math.min(ttlMs, retryForMs), ends), signal);
        }
        return new Lease(target, granted, ttlMs, first, this.#renewals, hasNamedOwner);
      } catch (error) {
        if (error instanceof LeaseLost && now() < Math.max(until, waitUntil)) {
          // It was granted in an answer that was lost, and has ended since.
          until = now() + this.#nodes.retryForMs;
          continue;
        }
        const isDecided = error instanceof LockHeld || error instanceof Refused;
        if (doubt.isSet || !isDecided) {
          // The caller of an error of this package need not wait for it: without it, the lease ends by its TTL.
          const givenBack = this.#nodes.callQuietly(target.path("release"), target.body(), GIVE_BACK_MS);
          if (!(error instanceof LatchgateError)) await givenBack;
        }
        throw error;
      }
    }
  }
}

/**
 * @param {string} key
 * @param {string} verb
 */
function pathOf(key, verb) {
  return `/v1/locks/${encodeURIComponent(checkKey(key))}/${verb}`;
}

/**
 * A member that was forgotten must not mean that nothing is compared.
 * @param {unknown} value
 */
function checkedOf(value) {
  if (value === null) throw new TypeError("checked is null");
  return jsonOf(value, "checked", true);
}

/** @param {import("./index.js").Mode} options */
function mode({ shared, permits, limit, group, groupLimit }) {
  const isPlain = [permits, limit, group, groupLimit].every((value) => value === undefined);
  if (isPlain) return { mode: shared ? "shared" : undefined };
  if (shared) throw new TypeError("a lock is either shared or has permits");
  return { mode: "permits", permits, limit, group, group_limit: groupLimit };
}
