// @ts-check
// A lease that is held, of one key or of several.

import { now } from "./clock.js";
import { LatchgateError, LeaseLost, Unavailable } from "./errors.js";
import { Keeper, revocationOf } from "./renewals.js";

/** Where the calls about a lease go, and what they carry. */
export class Target {
  /**
   * @param {import("./nodes.js").Nodes} nodes
   * @param {readonly string[]} keys
   * @param {string} leaseId
   * @param {boolean} many
   */
  constructor(nodes, keys, leaseId, many) {
    this.nodes = nodes;
    this.keys = keys;
    this.leaseId = leaseId;
    this.many = many;
    this.name = keys.join(", ");
  }

  /** @param {"acquire" | "renew" | "release"} verb */
  path(verb) {
    if (this.many) return `/v1/${verb === "acquire" ? "multilocks" : "leases"}/${verb}`;
    return `/v1/locks/${encodeURIComponent(this.keys[0])}/${verb}`;
  }

  get leases() {
    return this.keys.map((key) => ({ key, lease_id: this.leaseId }));
  }

  /** Of a renewal or a release. */
  body() {
    return this.many ? { leases: this.leases } : { lease_id: this.leaseId };
  }

  /**
   * @param {number} until
   * @param {AbortSignal} [signal]
   * @returns {Promise<import("./renewals.js").Renewed>}
   */
  async renew(until, signal) {
    const expected = this.many ? { needs: ["results"] } : { needs: ["ttl_ms"], keys: this.keys };
    const { sent, body } = await this.nodes.call(this.path("renew"), this.body(), { until, signal, ...expected });
    /** @type {any[]} */
    const leases = this.many ? body.results : [body];
    const left = leases.map((lease) => lease?.ttl_ms);
    if (left.length !== this.keys.length || !left.every((ms) => Number.isInteger(ms) && ms > 0)) {
      throw new Unavailable("foreign-answer", `the answer to a renewal of ${this.name} does not say how long each lease lasts`);
    }
    return { sent, leftMs: Math.min(...left), body };
  }
}

export class Lease {
  #target;
  #keeper;
  #released = false;

  /**
   * @param {Target} target
   * @param {Record<string, any>} granted
   * @param {number} lengthMs
   * @param {import("./renewals.js").Renewed} first
   * @param {import("./renewals.js").Renewals} renewals
   * @param {boolean} hasNamedOwner
   */
  constructor(target, granted, lengthMs, first, renewals, hasNamedOwner) {
    this.#target = target;
    this.#keeper = new Keeper(target.name, lengthMs, first, target);
    this.#keeper.endWith(this);
    renewals.keep(this.#keeper);
    /** Whether the caller has named the owner. Then it may be that of other leases, too. */
    this.hasNamedOwner = hasNamedOwner;
    this.keys = target.keys;
    this.leaseId = target.leaseId;
    /** @type {string} */
    this.owner = granted.owner;
    /** @type {Array<{key: string, token: number}>} */
    const locks = target.many ? granted.locks : [granted];
    /** @type {ReadonlyMap<string, number>} */
    this.tokens = new Map(locks.map(({ key, token }) => [key, token]));
    /** @type {number} */
    this.token = locks[0].token;
    this.signal = this.#keeper.signal;
  }

  get key() {
    return this.keys[0];
  }

  get revocation() {
    const asked = revocationOf(this.#keeper.last);
    return asked && { deadline: asked.deadline, reason: asked.reason ?? undefined, by: asked.by ?? undefined };
  }

  /** @param {import("./nodes.js").Nodes} nodes */
  isOf(nodes) {
    return this.#target.nodes === nodes;
  }

  toString() {
    return `lease of ${this.#target.name}, token ${this.token}, owner ${this.owner}, for ${Math.round(this.remainingMs())} ms`;
  }

  remainingMs() {
    return this.#released ? 0 : this.#keeper.remainingMs();
  }

  check() {
    if (this.remainingMs() <= 0) throw this.#loss();
  }

  async release() {
    if (this.#released) return;
    const leftMs = this.remainingMs();
    this.#released = true;
    this.#keeper.stop();
    const { loss } = this.#keeper;
    try {
      if (loss?.status === undefined || this.#target.many) {
        // Also if the loss is only presumed, or of one key of several: no lease shall stay behind.
        const { nodes } = this.#target;
        const until = now() + Math.min(leftMs || 1_000, nodes.retryForMs);
        await nodes.call(this.#target.path("release"), this.#target.body(), { until });
      }
    } catch (error) {
      if (!loss) throw error;
    }
    if (loss) throw this.#loss();
  }

  /** A lease that cannot be released because no node answers ends by its TTL. */
  async [Symbol.asyncDispose]() {
    try {
      await this.release();
    } catch (error) {
      if (error instanceof LeaseLost || !(error instanceof LatchgateError)) throw error;
    }
  }

  #loss() {
    const { loss } = this.#keeper;
    if (loss) return new LeaseLost(loss.code, loss.detail, loss.status, loss.fields, { cause: loss });
    return new LeaseLost("lease-lost", `the lease of ${this.#target.name} is released`, undefined, { why: "released" });
  }
}
