// @ts-check
// A store for Verrou: its locks are locks of Latchgate. See README.md.

import { E_LOCK_NOT_OWNED } from "@verrou/core";

import { now } from "../../src/clock.js";
import { LeaseLost, LockHeld } from "../../src/errors.js";
import { Nodes } from "../../src/nodes.js";
import { Keeper, Renewals } from "../../src/renewals.js";
import { ownerOf } from "../../src/scope.js";

/** The lease of a lock without a TTL, which this process renews. */
const TTL_MS = 30_000;

/** For the configuration of Verrou. @param {ConstructorParameters<typeof Nodes>} options */
export function latchgateStore(...options) {
  return { driver: { factory: () => new LatchgateStore(...options) } };
}

/** It keeps nothing of a lock with a TTL, so another process can restore it: the lease is found by what the key's holder shows. */
export class LatchgateStore {
  #nodes;
  #renewals;
  /** The renewals of the locks without a TTL, by lease id. @type {Map<string, Keeper>} */
  #kept = new Map();
  /** The last save of each key: those of one process are sent in their order. @type {Map<string, Promise<boolean>>} */
  #saves = new Map();

  /** @param {ConstructorParameters<typeof Nodes>} options */
  constructor(...options) {
    this.#nodes = new Nodes(...options);
    this.#renewals = new Renewals(this.#nodes);
  }

  /** @type {(key: string, owner: string, ttl: number | null) => Promise<boolean>} */
  async save(key, owner, ttl) {
    const before = this.#saves.get(key) ?? Promise.resolve(false);
    const mine = before.catch(() => false).then(() => this.#acquire(key, owner, ttl));
    this.#saves.set(key, mine);
    try {
      return await mine;
    } finally {
      if (this.#saves.get(key) === mine) this.#saves.delete(key);
    }
  }

  /** @type {(key: string, owner: string, ttl: number | null) => Promise<boolean>} */
  async #acquire(key, owner, ttl) {
    // A lease id is used once, and Verrou's owner acquires again: the second part of the id is another one for each lease.
    const part = crypto.randomUUID();
    const lease_id = `${owner}.${part}`;
    const shown = { owner: ownerOf(this.#nodes, [key], false).owner, metadata: { verrou: part } };
    const doubt = { isSet: false };
    try {
      const body = { lease_id, ttl_ms: ttl ?? TTL_MS, ...shown };
      const { sent, body: granted } = await this.#call(key, "/acquire", body, doubt);
      if (ttl === null) this.#keep(key, lease_id, { sent, leftMs: granted.ttl_ms, body: granted });
      return true;
    } catch (error) {
      if (doubt.isSet) void this.#call(key, "/release", { lease_id }).catch(() => {});
      // A lease that was lost was granted in an answer that did not arrive.
      if (error instanceof LockHeld || error instanceof LeaseLost) return false;
      throw error;
    }
  }

  /** @type {(key: string, owner: string) => Promise<void>} */
  async delete(key, owner) {
    await this.#ofOwner(key, owner, "/release", {});
  }

  /** @type {(key: string) => Promise<void>} */
  async forceDelete(key) {
    await this.#call(key, "/revoke", { reason: "forceRelease", grace_ms: 0 });
  }

  /** @type {(key: string) => Promise<boolean>} */
  async exists(key) {
    return (await this.#holder(key)) !== undefined;
  }

  /** @type {(key: string, owner: string, duration: number) => Promise<void>} */
  async extend(key, owner, duration) {
    await this.#ofOwner(key, owner, "/renew", { ttl_ms: duration });
  }

  /** @type {(key: string, lease_id: string, first: import("../../src/renewals.js").Renewed) => void} */
  #keep(key, lease_id, first) {
    const keeper = new Keeper(key, TTL_MS, first, { leases: [{ key, lease_id }] });
    keeper.signal.addEventListener("abort", () => this.#kept.delete(lease_id));
    this.#kept.set(lease_id, keeper);
    this.#renewals.keep(keeper);
  }

  /** @type {(key: string, owner: string, verb: string, fields: Record<string, any>) => Promise<void>} */
  async #ofOwner(key, owner, verb, fields) {
    const lease_id = `${owner}.${(await this.#holder(key))?.metadata?.verrou}`;
    this.#kept.get(lease_id)?.stop();
    this.#kept.delete(lease_id);
    try {
      await this.#call(key, verb, { lease_id, ...fields });
    } catch (error) {
      throw error instanceof LeaseLost ? new E_LOCK_NOT_OWNED() : error;
    }
  }

  /** @type {(key: string) => Promise<Record<string, any> | undefined>} */
  async #holder(key) {
    const { holders } = (await this.#call(key, "")).body;
    return holders.find((/** @type {any} */ holder) => holder.ttl_ms > 0);
  }

  /** @type {(key: string, verb: string, body?: Record<string, any>, doubt?: {isSet: boolean}) => ReturnType<Nodes["call"]>} */
  #call(key, verb, body, doubt) {
    // A revocation that is repeated could end the next lease.
    const options = { until: now() + this.#nodes.retryForMs, keys: verb === "/release" ? undefined : [key], repeatInDoubt: verb !== "/revoke", doubt };
    return this.#nodes.call(`/v1/locks/${encodeURIComponent(key)}${verb}`, body, options);
  }
}
