// @ts-check
// Requests to any of the nodes. Every request of this package can be repeated, so a call goes on until a node has answered it.

import { now } from "./clock.js";
import { LatchgateError, Unavailable, isTransient, ofProblem } from "./errors.js";

const PAUSE_MS_MIN = 100;
const PAUSE_MS_MAX = 1_000;
const TIMER_MS_MAX = 2 ** 31 - 1;
/** Why a request was certainly not sent. */
const NOT_CONNECTED = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"];

/**
 * A 2xx answer, and when its request was sent. What a lease has left counts from there.
 * @typedef {{sent: number, body: Record<string, any>}} Answer
 *
 * `waitUntil`: each request waits at the node, and the call goes on with tickets until then. `fit`: the time for each answer is chosen
 * so that other nodes can be tried before `until`. `signal` ends the call with its reason. `doubt` says afterwards whether a node may have
 * carried out the call though no answer says so.
 * @typedef {{until: number, waitUntil?: number, fit?: boolean, signal?: AbortSignal, doubt?: Doubt}} CallOptions
 * @typedef {{isSet: boolean}} Doubt
 */

/** The node was not reached, or did not answer in time or in full. It may have carried out the request. */
class NoAnswer extends Error {
  /**
   * @param {string} detail
   * @param {number} [retryAfterMs]
   * @param {boolean} [isSent] whether there was a connection
   */
  constructor(detail, retryAfterMs = 0, isSent = true) {
    super(detail);
    this.retryAfterMs = retryAfterMs;
    this.isSent = isSent;
  }
}

export class Nodes {
  #urls;
  /** @type {Record<string, string>} */
  #headers;
  #timeoutMs;
  #waitPerCallMs;
  /** The node that is tried first. Another one takes its place when it does not answer. */
  #first = 0;

  /**
   * @param {readonly string[]} urls
   * @param {string | undefined} apiKey
   * @param {{timeoutMs?: number, retryForMs?: number, waitPerCallMs?: number}} options
   */
  constructor(urls, apiKey, { timeoutMs = 5_000, retryForMs = 15_000, waitPerCallMs = 20_000 }) {
    if (urls.length === 0) throw new TypeError("at least one URL is needed");
    this.#urls = urls.map((url) => {
      const { protocol, search, hash } = new URL(url);
      if (!/^https?:$/.test(protocol) || search || hash) {
        throw new TypeError("not the URL of a node (example: http://127.0.0.1:7070)");
      }
      return url.replace(/\/+$/, "");
    });
    this.#headers = { "Content-Type": "application/json", Accept: "application/json" };
    if (apiKey) this.#headers.Authorization = `Bearer ${apiKey}`;
    this.#timeoutMs = timeoutMs;
    this.#waitPerCallMs = waitPerCallMs;
    this.retryForMs = retryForMs;
  }

  /**
   * Posts the request, and repeats it until a node has answered it or it is `until`. Rejects with `Unavailable` if there was no answer,
   * and with the error of an answer that does not let the caller proceed.
   * @param {string} path
   * @param {Record<string, any>} body
   * @param {CallOptions} options
   * @returns {Promise<Answer>}
   */
  async call(path, body, { until, waitUntil, fit = false, signal, doubt = { isSet: false } }) {
    let tried = 0;
    let pauseMs = PAUSE_MS_MIN;
    const waits = waitUntil !== undefined && waitUntil > now();
    for (;;) {
      signal?.throwIfAborted();
      let waitMs = 0;
      if (waitUntil !== undefined) {
        waitMs = Math.max(Math.min(waitUntil - now(), this.#waitPerCallMs), 0);
        // A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
        body.wait_ms = waits ? Math.max(Math.ceil(waitMs), 1) : 0;
      }
      const index = this.#first;
      const sent = now();
      const timeoutMs = fit ? Math.min(this.#timeoutMs, Math.max((until - sent) / 3, 20)) : this.#timeoutMs;
      let retryAfterMs = 0;
      /** @type {LatchgateError} */
      let error;
      const wasInDoubt = doubt.isSet;
      doubt.isSet = true;
      try {
        const { status, answer } = await this.#post(this.#urls[index], path, body, timeoutMs + waitMs, signal);
        if (status < 300) return { sent, body: answer };
        error = ofProblem(status, answer);
        // Only a decision about this very call ends a doubt: a refusal for another reason says nothing about earlier requests.
        if ([409, 410, 422, 423].includes(status)) doubt.isSet = false;
        else if (status !== 500 && error.code !== "outcome-unknown") doubt.isSet = wasInDoubt;
        // A wait that ended leaves a ticket, with which the next request returns to its position.
        if (answer.ticket) body.ticket = answer.ticket;
        if (error.code === "invalid-ticket" && body.ticket) {
          delete body.ticket;
          continue;
        }
        const isOfWait = error.code === "wait-timeout" || error.code === "operation-in-progress";
        if (isOfWait && waitUntil !== undefined && now() < waitUntil) {
          // A node that is about to stop ends waits early.
          if (now() - sent >= waitMs / 2) {
            tried = 0;
            pauseMs = PAUSE_MS_MIN;
            continue;
          }
        } else if (!isTransient(status)) throw error;
        else retryAfterMs = Number(answer.retry_after_ms ?? 0);
      } catch (noAnswer) {
        if (!(noAnswer instanceof NoAnswer)) throw noAnswer;
        error = new Unavailable("no-answer", noAnswer.message);
        retryAfterMs = noAnswer.retryAfterMs;
        doubt.isSet = wasInDoubt || noAnswer.isSent;
      }
      tried += 1;
      // Other calls may have moved on already.
      if (this.#first === index) this.#first = (index + 1) % this.#urls.length;
      const leftMs = until - now();
      if (leftMs <= 0) throw error;
      if (tried % this.#urls.length === 0) {
        const restMs = Math.max(retryAfterMs, pauseMs) * (1 + Math.random() / 2);
        if (retryAfterMs > leftMs && !fit) throw error;
        await sleep(Math.min(restMs, fit ? leftMs / 4 : leftMs), signal);
        pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
      }
    }
  }

  /**
   * For giving back what may never have been granted: a failure does not matter.
   * @param {string} path
   * @param {Record<string, any>} body
   * @param {number} ms
   */
  async callQuietly(path, body, ms) {
    await this.call(path, body, { until: now() + ms, fit: true }).catch(() => {});
  }

  /**
   * @param {string} url
   * @param {string} path
   * @param {Record<string, any>} body
   * @param {number} timeoutMs
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<{status: number, answer: Record<string, any>}>}
   */
  async #post(url, path, body, timeoutMs, signal) {
    const text = JSON.stringify(body);
    const ended = new AbortController();
    const end = () => ended.abort();
    const timer = setTimeout(end, Math.min(timeoutMs, TIMER_MS_MAX));
    signal?.addEventListener("abort", end);
    try {
      const response = await fetch(url + path, {
        method: "POST",
        headers: this.#headers,
        body: text,
        redirect: "error",
        signal: ended.signal,
      });
      const answer = parse(await response.text());
      if (!answer || (!response.ok && typeof answer.code !== "string")) {
        const seconds = Number(response.headers.get("Retry-After") ?? 0);
        throw new NoAnswer(`${url}: the answer with status ${response.status} is none of Latchgate's`, seconds * 1_000 || 0);
      }
      return { status: response.status, answer };
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof NoAnswer) throw error;
      const cause = /** @type {any} */ (error).cause ?? error;
      const detail = ended.signal.aborted ? `no answer within ${Math.round(timeoutMs)} ms` : cause.message;
      throw new NoAnswer(`${url}: ${detail}`, 0, !NOT_CONNECTED.includes(cause.code));
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
    }
  }
}

/**
 * @param {string} text
 * @returns {Record<string, any> | undefined}
 */
function parse(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Rejects with the signal's reason when that is aborted.
 * @param {number} ms
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<void>}
 */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, Math.min(ms, TIMER_MS_MAX));
    if (signal?.aborted) return aborted();
    signal?.addEventListener("abort", aborted, { once: true });
  });
}
