// @ts-check
// Keeps the leases and attempts of one client alive from one timer, and notices when one is lost. Leases that are due go in one request
// together.

import { now } from "./clock.js";
import { AttemptLost, LeaseLost, ofProblem } from "./errors.js";
import { NoAnswer } from "./nodes.js";

/** Longest timer: while the machine is suspended, timers stand still, and the clock of leases does not. */
const SLICE_MS = 250;
/** The most that a node accepts. */
const LEASES_PER_CALL_MAX = 500;
/** Gateways may accept less than a node: 500 kB with what is around the leases. */
const BYTES_PER_CALL_MAX = 499_000;
/** A request without an answer is repeated in so many parts. */
const PARTS = 16;
/** A lease that has more than so many times the time left of another one goes in another request: the shortest decides how long an answer
 * may take. */
const SPREAD = 8;
const TIMEOUT_MS_MIN = 20;
const PAUSE_MS_MIN = 100;
const PAUSE_MS_MAX = 1_000;

/**
 * What a renewal has shown: when it was sent, and what the lease had left then.
 * @typedef {{sent: number, leftMs: number, body: Record<string, any>}} Renewed
 *
 * The leases, one for each key, or the heartbeat of an attempt.
 * @typedef {{leases?: ReadonlyArray<{key: string, lease_id: string}>, heartbeat?: {path: string, body: Record<string, any>}}} Kept
 */

/**
 * The lease ends no earlier, by this machine's clock.
 * @param {Renewed} renewed
 */
export function untilOf({ sent, leftMs }) {
  return sent + leftMs;
}

/**
 * What an operator asks; of several keys, that with the earliest deadline.
 * @param {Renewed} renewed
 */
export function revocationOf({ body }) {
  /** @type {any[]} */
  const leases = body.results ?? [body];
  const asked = leases.map(({ revocation }) => revocation).filter(Boolean);
  return asked.sort((one, other) => one.deadline_ms - other.deadline_ms)[0];
}

/**
 * Why the lease has ended now, for all that this machine knows.
 * @param {string} name
 * @param {Renewed} last
 */
function endOf(name, last) {
  const { deadline_ms, by, reason } = revocationOf(last) ?? {};
  if (!(deadline_ms <= last.leftMs)) {
    return new LeaseLost("lease-lost", `no renewal of ${name} was answered in time`, undefined, { why: "unanswered" });
  }
  const detail = `${by ?? "an operator"} has revoked the lease of ${name}${reason ? `: ${reason}` : ""}`;
  return new LeaseLost("lease-lost", detail, undefined, { why: "revoked", by, reason });
}

/** Stops the renewals of leases that are forgotten without a release. */
const forgotten = new FinalizationRegistry((/** @type {Keeper} */ keeper) => keeper.stop());

/** What is known of a lease or an attempt, and when to renew it. It knows nothing of the object that the caller holds. */
export class Keeper {
  #name;
  #lengthMs;
  #lost = new AbortController();
  #isStopped = false;
  #failures = 0;

  /**
   * @param {string} name
   * @param {number} lengthMs
   * @param {Renewed} first
   * @param {Kept} kept
   */
  constructor(name, lengthMs, first, { leases = [], heartbeat }) {
    this.#name = name;
    this.#lengthMs = lengthMs;
    this.leases = leases;
    /** In a request, with a comma after each lease. */
    this.bytes = new TextEncoder().encode(JSON.stringify(leases)).length;
    this.heartbeat = heartbeat;
    /** Whether a request with it has no answer yet. */
    this.isSent = false;
    /**
     * The index of the node that was asked last and has not renewed it: each is asked in turn, whatever other calls have found meanwhile.
     * @type {number | undefined}
     */
    this.asked = undefined;
    /** With how many others it may go in one request. Less after a request without an answer, which may be the fault of one of them. */
    this.together = LEASES_PER_CALL_MAX;
    this.last = first;
    this.due = 0;
    /** From then on it goes with leases that are due, so that leases of one length soon go together. */
    this.early = 0;
    /** Called when the renewals end. @type {(() => void) | undefined} */
    this.stopped = undefined;
    this.renewed(first);
  }

  /** Aborted, with the loss as its reason, when the lease is lost. */
  get signal() {
    return this.#lost.signal;
  }

  /** @returns {LeaseLost | AttemptLost | undefined} */
  get loss() {
    return this.signal.reason;
  }

  get isOver() {
    return this.#isStopped || this.signal.aborted;
  }

  /** How long until the lease may have ended; 0 if it is lost. */
  remainingMs(at = now()) {
    if (this.signal.aborted) return 0;
    const leftMs = untilOf(this.last) - at;
    if (leftMs <= 0) this.lose(endOf(this.#name, this.last));
    return Math.max(leftMs, 0);
  }

  /**
   * Ends the renewals when this object is forgotten.
   * @param {object} holder
   */
  endWith(holder) {
    forgotten.register(holder, this);
  }

  /** Ends the renewals. Afterwards the lease is not reported as lost. */
  stop() {
    this.#isStopped = true;
    this.stopped?.();
  }

  /** @param {LeaseLost | AttemptLost} loss */
  lose(loss) {
    if (!this.isOver) this.#lost.abort(loss);
  }

  /** @param {Renewed} renewed */
  renewed(renewed) {
    const { sent, leftMs } = renewed;
    // The lower bound is for leases that a revocation or `maxHoldMs` is ending: each renewal leaves them shorter.
    const pauseMs = Math.max(leftMs / 3, this.#lengthMs / 10) * (0.9 + Math.random() / 10);
    this.last = renewed;
    this.due = sent + pauseMs;
    this.early = sent + pauseMs / 2;
    this.together = LEASES_PER_CALL_MAX;
    this.asked = undefined;
    this.#failures = 0;
  }

  /**
   * A renewal was not answered, or refused for another reason than a loss. That is reported when the lease has ended.
   * @param {number} nodes
   * @param {number} retryAfterMs
   */
  failed(nodes, retryAfterMs) {
    this.#failures += 1;
    let pauseMs = 0;
    if (this.#failures % nodes === 0) {
      const rounds = Math.min(this.#failures / nodes - 1, 10);
      pauseMs = Math.max(Math.min(PAUSE_MS_MIN * 2 ** rounds, PAUSE_MS_MAX), retryAfterMs) * (1 + Math.random() / 2);
    }
    const at = now();
    this.due = this.early = at + Math.max(Math.min(pauseMs, (untilOf(this.last) - at) / 4), 0);
  }
}

export class Renewals {
  #nodes;
  /** @type {Set<Keeper>} */
  #keepers = new Set();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #wakesAt = Infinity;

  /** @param {import("./nodes.js").Nodes} nodes */
  constructor(nodes) {
    this.#nodes = nodes;
  }

  /** @param {Keeper} keeper */
  keep(keeper) {
    this.#keepers.add(keeper);
    keeper.stopped = () => this.#drop(keeper);
    this.#wakeAt(Math.min(keeper.due, untilOf(keeper.last)));
  }

  /**
   * The timer keeps the process alive for as long as a lease is held, and no longer.
   * @param {Keeper} keeper
   */
  #drop(keeper) {
    this.#keepers.delete(keeper);
    if (this.#keepers.size > 0) return;
    clearTimeout(this.#timer);
    this.#wakesAt = Infinity;
  }

  /** @param {number} time */
  #wakeAt(time) {
    if (time >= this.#wakesAt) return;
    clearTimeout(this.#timer);
    this.#wakesAt = time;
    this.#timer = setTimeout(() => this.#look(), Math.min(Math.max(Math.ceil(time - now()), 0), SLICE_MS));
  }

  #look() {
    this.#wakesAt = Infinity;
    const at = now();
    const live = [];
    for (const keeper of this.#keepers) {
      if (keeper.isOver || keeper.remainingMs(at) <= 0) this.#keepers.delete(keeper);
      else if (!keeper.isSent) live.push(keeper);
    }
    for (const batch of batches(live, at)) {
      for (const keeper of batch) keeper.isSent = true;
      void this.#renew(batch);
    }
    for (const keeper of this.#keepers) this.#wakeAt(Math.min(keeper.isSent ? Infinity : keeper.due, untilOf(keeper.last)));
  }

  /** @param {Keeper[]} batch */
  async #renew(batch) {
    let retryAfterMs = 0;
    let isSettled = false;
    try {
      const { path, body } = requestOf(batch);
      const leftMs = Math.min(...batch.map((keeper) => untilOf(keeper.last))) - now();
      // Other nodes can be tried before the first of them ends.
      const timeoutMs = Math.min(this.#nodes.timeoutMs, Math.max(leftMs / 3, TIMEOUT_MS_MIN));
      const index = this.#nodes.after(batch[0].asked);
      for (const keeper of batch) keeper.asked = index;
      const { sent, status, body: answer } = await this.#nodes.send(path, body, timeoutMs, index);
      const results = batch[0].heartbeat ? [[{ ...answer, status }]] : resultsOf(batch, answer);
      if (results) batch.forEach((keeper, place) => this.#settle(keeper, sent, results[place]));
      else retryAfterMs = Number(answer.retry_after_ms) || 0;
      const isApart = !results && setApart(batch, answer);
      if (isApart) for (const keeper of batch) keeper.asked = undefined; // the node has answered
      isSettled = Boolean(results) || isApart;
    } catch (error) {
      if (error instanceof NoAnswer) {
        retryAfterMs = error.retryAfterMs;
        for (const keeper of batch) keeper.together = Math.max(Math.floor(batch.length / PARTS), 1);
      }
    }
    for (const keeper of batch) {
      keeper.isSent = false;
      if (!isSettled) keeper.failed(this.#nodes.size, retryAfterMs);
    }
    this.#look();
  }

  /**
   * @param {Keeper} keeper
   * @param {number} sent
   * @param {Array<Record<string, any>>} results
   */
  #settle(keeper, sent, results) {
    const refused = results.filter(({ status, ttl_ms }) => status >= 300 || !Number.isInteger(ttl_ms));
    if (refused.length === 0) {
      return keeper.renewed({ sent, leftMs: Math.min(...results.map(({ ttl_ms }) => ttl_ms)), body: { results } });
    }
    // A loss is more serious than what is not known of another key.
    const worst = refused.find(({ status }) => status === 410) ?? refused[0];
    const error = ofProblem(worst.status, { code: "no-answer", ...worst });
    if (error instanceof LeaseLost || error instanceof AttemptLost) {
      const Kind = /** @type {typeof LeaseLost} */ (error.constructor);
      keeper.lose(new Kind(error.code, error.detail, error.status, results.length > 1 ? { results } : worst));
    } else keeper.failed(this.#nodes.size, Number(worst.retry_after_ms) || 0);
  }
}

/**
 * What to send now: each lease that is due, with others that soon are.
 * @param {Keeper[]} keepers
 * @param {number} at
 * @returns {Keeper[][]}
 */
export function batches(keepers, at) {
  const all = keepers.filter(({ heartbeat, due }) => heartbeat && due <= at).map((keeper) => [keeper]);
  const leases = keepers.filter(({ heartbeat, early }) => !heartbeat && early <= at);
  leases.sort((a, b) => untilOf(a.last) - untilOf(b.last));
  /** @type {Keeper[]} */
  let batch = [];
  let size = 0;
  let bytes = 0;
  for (const keeper of leases) {
    const first = batch[0];
    const isFull =
      size + keeper.leases.length > LEASES_PER_CALL_MAX ||
      bytes + keeper.bytes > BYTES_PER_CALL_MAX ||
      batch.length >= Math.min(keeper.together, batch.at(-1)?.together ?? Infinity);
    if (first && (isFull || untilOf(keeper.last) - at > SPREAD * (untilOf(first.last) - at))) {
      all.push(batch);
      batch = [];
      size = bytes = 0;
    }
    batch.push(keeper);
    size += keeper.leases.length;
    bytes += keeper.bytes;
  }
  all.push(batch);
  return all.filter((batch) => batch.some(({ due }) => due <= at));
}

/** @param {Keeper[]} batch */
function requestOf(batch) {
  return batch[0].heartbeat ?? { path: "/v1/leases/renew", body: { leases: batch.flatMap(({ leases }) => leases) } };
}

/**
 * The results of each of the batch, if the answer has one for each lease.
 * @param {Keeper[]} batch
 * @param {Record<string, any>} answer
 * @returns {Array<Array<Record<string, any>>> | undefined}
 */
function resultsOf(batch, answer) {
  const { results } = answer;
  const sent = batch.flatMap(({ leases }) => leases);
  if (!Array.isArray(results) || results.length !== sent.length) return undefined;
  const fits = results.every((result, index) => {
    const { key, lease_id } = sent[index];
    return result?.key === key && result.lease_id === lease_id && Number.isInteger(result.status);
  });
  if (!fits) return undefined;
  let next = 0;
  return batch.map(({ leases }) => results.slice(next, (next += leases.length)));
}

/**
 * A request is refused as a whole if the API key may not use one of its keys: the others are sent again without that one.
 * @param {Keeper[]} batch
 * @param {Record<string, any>} problem
 */
function setApart(batch, { index }) {
  if (!Number.isInteger(index) || batch.length === 1) return false;
  for (const keeper of batch) {
    index -= keeper.leases.length;
    if (index < 0) {
      keeper.together = 1;
      return true;
    }
  }
  return false;
}
