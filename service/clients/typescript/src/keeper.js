// @ts-check
// Keeps a lease alive in the background, and notices when it is lost.

import { now } from "./clock.js";
import { AttemptLost, LeaseLost } from "./errors.js";

/** Longest timer: while the machine is suspended, timers stand still, and the clock of leases does not. */
const SLICE_MS = 250;

/**
 * What a renewal has shown: when it was sent, and what the lease had left then.
 * @typedef {{sent: number, leftMs: number, body: Record<string, any>}} Renewed
 *
 * Sends a renewal, and repeats it until the time given or until the signal is aborted.
 * @typedef {(until: number, signal?: AbortSignal) => Promise<Renewed>} Renew
 */

/**
 * The lease ends no earlier, by this machine's clock.
 * @param {Renewed} renewed
 */
export function untilOf({ sent, leftMs }) {
  return sent + leftMs;
}

/** Stops the renewals of leases that are forgotten without a release. */
const forgotten = new FinalizationRegistry((/** @type {Keeper} */ keeper) => keeper.stop());

/**
 * Renews at a third of the lease, counted from the moment the last renewal was sent.
 *
 * It knows nothing of the object that the caller holds. Its timers do not keep the process alive.
 */
export class Keeper {
  #name;
  #lengthMs;
  #renew;
  #last;
  #lost = new AbortController();
  #stopped = new AbortController();
  /** @type {(() => void) | undefined} */
  #renewal;
  /** @type {(() => void) | undefined} */
  #watch;

  /**
   * @param {string} name
   * @param {number} lengthMs
   * @param {Renewed} first
   * @param {Renew} renew
   */
  constructor(name, lengthMs, first, renew) {
    this.#name = name;
    this.#lengthMs = lengthMs;
    this.#renew = renew;
    this.#last = first;
    this.#schedule(this.#pauseMs());
  }

  get last() {
    return this.#last;
  }

  /** Aborted, with the loss as its reason, when the lease is lost. */
  get signal() {
    return this.#lost.signal;
  }

  /** @returns {LeaseLost | AttemptLost | undefined} */
  get loss() {
    return this.signal.reason;
  }

  /** How long until the lease may have ended; 0 if it is lost. */
  remainingMs() {
    if (this.signal.aborted) return 0;
    const leftMs = untilOf(this.#last) - now();
    if (leftMs <= 0) this.#lose(this.#unanswered());
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
    this.#stopped.abort();
    this.#renewal?.();
    this.#watch?.();
  }

  /** When to renew next. The lower bound is for leases that a revocation or `maxHoldMs` is ending: each renewal leaves them shorter. */
  #pauseMs() {
    const { sent, leftMs } = this.#last;
    const pauseMs = Math.max(leftMs / 3, this.#lengthMs / 10) * (0.9 + Math.random() / 10);
    return Math.max(sent + pauseMs - now(), 0);
  }

  /** @param {number} pauseMs */
  #schedule(pauseMs) {
    this.#watch?.();
    this.#watch = at(untilOf(this.#last), () => void this.remainingMs());
    this.#renewal = at(now() + pauseMs, () => void this.#renewOnce());
  }

  async #renewOnce() {
    const until = untilOf(this.#last);
    let pauseMs;
    try {
      this.#last = await this.#renew(until, this.#stopped.signal);
      pauseMs = this.#pauseMs();
    } catch (error) {
      if (error instanceof LeaseLost || error instanceof AttemptLost) return this.#lose(error);
      // Not a loss yet: the watch reports that when the lease has ended.
      pauseMs = Math.max(Math.min((until - now()) / 4, 1_000), 50);
    }
    if (!this.#stopped.signal.aborted && !this.signal.aborted) this.#schedule(pauseMs);
  }

  /** @param {LeaseLost | AttemptLost} loss */
  #lose(loss) {
    if (this.#stopped.signal.aborted || this.signal.aborted) return;
    this.stop();
    this.#lost.abort(loss);
  }

  #unanswered() {
    const fields = { why: "unanswered" };
    return new LeaseLost("lease-lost", `no renewal of ${this.#name} was answered in time`, undefined, fields);
  }
}

/**
 * Runs once, at this time by the clock of leases. Returns what cancels it.
 * @param {number} time
 * @param {() => void} run
 */
function at(time, run) {
  /** @type {ReturnType<typeof setTimeout>} */
  let timer;
  const look = () => {
    const leftMs = time - now();
    if (leftMs > 0) sleep(leftMs);
    else run();
  };
  /** @param {number} ms */
  const sleep = (ms) => {
    timer = setTimeout(look, Math.min(Math.max(Math.ceil(ms), 0), SLICE_MS));
    /** @type {any} */ (timer).unref?.();
  };
  sleep(time - now());
  return () => clearTimeout(timer);
}
