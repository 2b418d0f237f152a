// @ts-check
// Requests to any of the nodes. Nearly every request of this package can be repeated, so a call goes on until a node has answered it.

import { now } from "./clock.js";
import { LatchgateError, Unavailable, isTransient, ofProblem, otherKey } from "./errors.js";
import { checked } from "./options.js";

const PAUSE_MS_MIN = 100;
const PAUSE_MS_MAX = 1_000;
/** The last request of a call has this time, too: with less, an answer of an outage would be cut. */
const REQUEST_MS_MIN = 100;
/** A body comes with its head, so it has this time also if the head came late. */
const BODY_MS_MIN = 100;
/** The first request of a wait is short: its answer has a ticket, with which the position in the queue survives the node. */
const FIRST_WAIT_MS = 500;
/** Longest silence of a stream: the node sends a comment every 15 s. */
const SILENCE_MS_MAX = 45_000;
const TIMER_MS_MAX = 2 ** 31 - 1;
/** Why a request was certainly not sent. */
const NOT_CONNECTED = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"];

/**
 * An answer, and when its request was sent. What a lease has left counts from there.
 * @typedef {{sent: number, status: number, body: Record<string, any>}} Answer
 *
 * `until`: when the call ends, if no node has answered. Each node gets a part of that time, so that others can be tried. `waitUntil`: each
 * request waits at the node, and the call goes on with tickets until then, and for `retryForMs` after that while no node answers. A wait
 * does not begin in an outage: until a node has answered, `until` counts. `keys`: those that the answer must be about. `needs`: what an
 * answer must have that lets the caller proceed. `signal` ends the call with its reason. `doubt` says afterwards whether a node may have
 * carried out the call though no answer says so; without `repeatInDoubt` the call ends then.
 * @typedef {{until: number, waitUntil?: number, repeatInDoubt?: boolean, keys?: readonly string[], needs?: readonly string[], signal?: AbortSignal, doubt?: Doubt}} CallOptions
 * @typedef {{isSet: boolean, isOfOther?: boolean}} Doubt `isOfOther`: a node has said that another caller was first
 */

const ANSWER_LENGTH_MAX = 4 * 1024 * 1024;

/** The code of an answer that is none of Latchgate's, and does not say that a node is away. */
const FOREIGN = "foreign-answer";

/** The node was not reached, or did not answer in time or in full. It may have carried out the request. */
export class NoAnswer extends Error {
  /**
   * @param {string} detail
   * @param {{retryAfterMs?: number, isSent?: boolean, isLate?: boolean, code?: string}} [more] `isSent`: whether it may have reached the node.
   * `isLate`: whether its time has passed
   */
  constructor(detail, { retryAfterMs = 0, isSent = true, isLate = false, code = "no-answer" } = {}) {
    super(detail);
    this.retryAfterMs = retryAfterMs;
    this.isSent = isSent;
    this.isLate = isLate;
    this.code = code;
  }
}

export class Nodes {
  #urls;
  /** @type {Record<string, string>} */
  #headers;
  /** What `fetch` needs to trust other authorities than Node does. */
  #trust;
  #waitPerCallMs;
  /** The node that a call asks first. Another one takes its place when it does not answer. */
  #first = 0;

  /**
   * @param {string | readonly string[]} [urls]
   * @param {import("./index.js").ClientOptions} [options]
   */
  constructor(urls, options = {}) {
    const env = /** @type {any} */ (globalThis).process?.env ?? {};
    const { timeoutMs = 5_000, retryForMs = 2_000, waitPerCallMs = 20_000 } = checked("Client", options);
    if (typeof urls === "object" && !Array.isArray(urls)) throw new TypeError("Client takes the URLs first: new Client(urls, { apiKey })");
    if (retryForMs === 0) throw new TypeError("retryForMs is the time for a whole call: it must be more than 0");
    const given = [urls ?? variable(env, "LATCHGATE_URL") ?? "http://127.0.0.1:7070"].flat().join();
    if (given.includes("@")) throw new TypeError("a URL has a login, which no node takes: give an API key");
    // As files and lists leave them: with a line end, or a comma at the end.
    this.#urls = given.split(",").map((url) => url.trim()).filter((url) => url !== "").map(checkUrl);
    if (this.#urls.length === 0) throw new TypeError("at least one URL is needed");
    this.#headers = { "Content-Type": "application/json", Accept: "application/json" };
    const apiKey = (options.apiKey ?? env.LATCHGATE_API_KEY ?? "").trim();
    // No message shows it: most of it may be an API key.
    if (!/^(lgk_[A-Za-z0-9_]+)?$/.test(apiKey)) throw new TypeError("the API key has the wrong form: it is one line, and begins with lgk_");
    if (apiKey) this.#headers.Authorization = `Bearer ${apiKey}`;
    this.#trust = trustIn(variable(env, "LATCHGATE_CA"));
    this.timeoutMs = timeoutMs;
    this.#waitPerCallMs = waitPerCallMs;
    this.retryForMs = retryForMs;
  }

  get size() {
    return this.#urls.length;
  }

  /**
   * One request to one node: a POST, or a GET without a body. Rejects with `NoAnswer`. If that node cannot
   * serve, the next call begins at another one.
   * @param {string} path
   * @param {Record<string, any> | undefined} body
   * @param {number} timeoutMs
   * @param {number} index
   * @param {AbortSignal} [signal]
   * @returns {Promise<Answer>}
   */
  async send(path, body, timeoutMs, index, signal) {
    const sent = now();
    try {
      const { status, answer } = await this.#request(this.#urls[index], path, body, timeoutMs, signal);
      if (isTransient(status)) this.#avoid(index);
      return { sent, status, body: answer };
    } catch (error) {
      if (error instanceof NoAnswer) this.#avoid(index);
      throw error;
    }
  }

  /**
   * The index of the node to ask after another one; that of the first if none was asked.
   * @param {number} [asked]
   */
  after(asked) {
    return asked === undefined ? this.#first : (asked + 1) % this.#urls.length;
  }

  /** @param {number} index */
  #avoid(index) {
    // Other calls may have moved on already.
    if (this.#first === index) this.#first = this.after(index);
  }

  /**
   * Sends the request, and repeats it until a node has answered it or it is `until`. Rejects with `Unavailable` if there was no answer,
   * and with the error of an answer that does not let the caller proceed.
   * @param {string} path
   * @param {Record<string, any>} body
   * @param {CallOptions} options
   * @returns {Promise<Answer>}
   */
  async call(path, body, { until, waitUntil, repeatInDoubt = true, keys, needs = [], signal, doubt = { isSet: false } }) {
    let tried = 0;
    /** Other calls change which node is the first: this one asks each in turn. */
    let index = this.#first;
    let pauseMs = PAUSE_MS_MIN;
    /** The longest that a node has asked for since the last pause. */
    let retryAfterMs = 0;
    const waits = waitUntil !== undefined && waitUntil > now();
    let wasAnswered = false;
    /** What a node has said last. @type {LatchgateError | undefined} */
    let said;
    /** Why an earlier request had no answer. @type {Unavailable | undefined} */
    let seen;
    for (;;) {
      signal?.throwIfAborted();
      let leftMs = until - now();
      let waitMs = 0;
      if (waitUntil !== undefined) {
        const longestMs = wasAnswered ? this.#waitPerCallMs : Math.min(FIRST_WAIT_MS, leftMs / 4, this.#waitPerCallMs);
        waitMs = Math.max(Math.min(waitUntil - now(), longestMs), 0);
        // A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
        body.wait_ms = waits ? Math.max(Math.ceil(waitMs), 1) : 0;
      }
      const timeoutMs = Math.min(this.timeoutMs, Math.max(Math.min(leftMs / 3, leftMs - waitMs), REQUEST_MS_MIN));
      /** @type {LatchgateError} */
      let error;
      const wasInDoubt = doubt.isSet;
      doubt.isSet = true;
      const sent = now();
      try {
        const answer = await this.send(path, body, timeoutMs + waitMs, index, signal);
        const { status } = answer;
        if (keys) checkKeys(keys, answer);
        if (status < 300) {
          if (needs.every((name) => has(answer.body, name))) return answer;
          this.#avoid(index);
          throw new NoAnswer(`the answer has no ${needs.join(", ")}`, { code: FOREIGN });
        }
        error = said = ofProblem(status, answer.body);
        // Only a decision about this very call ends a doubt: a refusal for another reason says nothing about earlier requests.
        if ([409, 410, 422, 423].includes(status)) doubt.isSet = false;
        // Of the answers of 500 and above, those of a gateway and those about a defect say nothing.
        else if (status < 500 || ["overloaded", "store-unavailable", "shutting-down", "state-unreadable"].includes(error.code)) doubt.isSet = wasInDoubt;
        // A wait that ended leaves a ticket, with which the next request returns to its position.
        if (answer.body.ticket) body.ticket = answer.body.ticket;
        if (error.code === "invalid-ticket" && body.ticket) {
          delete body.ticket;
          continue;
        }
        const isOfWait = status === 423 || error.code === "operation-in-progress";
        if (isOfWait && waitUntil !== undefined && now() < waitUntil) {
          wasAnswered = doubt.isOfOther = true;
          until = waitUntil + this.retryForMs;
          // A node that is about to stop ends waits early.
          if (now() - sent >= waitMs / 2) {
            tried = retryAfterMs = 0;
            pauseMs = PAUSE_MS_MIN;
            continue;
          }
          this.#avoid(index);
        } else if (!isTransient(status)) throw error;
        else {
          retryAfterMs = Math.max(retryAfterMs, Number(answer.body.retry_after_ms) || 0);
          if (error.code === "quota-reached" && waitUntil !== undefined && now() < waitUntil) until = waitUntil + this.retryForMs;
        }
      } catch (noAnswer) {
        if (!(noAnswer instanceof NoAnswer)) throw noAnswer;
        const unanswered = new Unavailable(noAnswer.code, noAnswer.message);
        if (noAnswer.code === FOREIGN) said = unanswered;
        // The last of the time is too short for an answer, so what earlier requests have shown says more.
        if (!seen || !noAnswer.isLate) seen = unanswered;
        // A node that has answered before is not away.
        error = said ?? seen;
        retryAfterMs = Math.max(retryAfterMs, noAnswer.retryAfterMs);
        doubt.isSet = wasInDoubt || noAnswer.isSent;
      }
      tried += 1;
      index = (index + 1) % this.#urls.length;
      leftMs = until - now();
      if (doubt.isSet && !repeatInDoubt) throw error;
      // As many requests as nodes are made in any case, so that each of them is asked.
      if (tried >= this.#urls.length && retryAfterMs > leftMs - REQUEST_MS_MIN) throw error;
      if (tried % this.#urls.length === 0) {
        await sleep(Math.min(Math.max(retryAfterMs, pauseMs) * (1 + Math.random() / 2), leftMs - REQUEST_MS_MIN), signal);
        pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
        retryAfterMs = 0;
      }
    }
  }

  /**
   * A stream of text, until its connection breaks or is silent for too long. Rejects with `NoAnswer`, and with the error of an answer but 200.
   * @param {string} path
   * @param {string | undefined} lastId
   * @param {number} index
   * @param {number} until
   * @param {AbortSignal} [signal]
   * @returns {Promise<AsyncGenerator<string, void, void>>}
   */
  async stream(path, lastId, index, until, signal) {
    const ended = new AbortController();
    const end = () => ended.abort();
    signal?.throwIfAborted();
    signal?.addEventListener("abort", end);
    let timer = setTimeout(end, Math.min(this.timeoutMs, Math.max((until - now()) / this.size, REQUEST_MS_MIN)));
    const headers = { ...this.#headers, Accept: "text/event-stream", ...(lastId === undefined ? {} : { "Last-Event-ID": lastId }) };
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
    };
    try {
      const response = await fetch(this.#urls[index] + path, { ...this.#trust, headers, redirect: "manual", signal: ended.signal });
      const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
      if (response.status !== 200 || !response.body || !isStream) {
        const { status, answer } = await read(this.#urls[index], response);
        if (status >= 300) throw ofProblem(status, answer);
        throw new NoAnswer(`${this.#urls[index]}: the answer with status ${status} is no stream of events`, { code: FOREIGN });
      }
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      return (async function* () {
        try {
          for (;;) {
            clearTimeout(timer);
            timer = setTimeout(end, SILENCE_MS_MAX);
            const { done, value } = await reader.read();
            if (done) return;
            yield value;
          }
        } catch {
          // The connection is broken.
        } finally {
          done();
          end();
        }
      })();
    } catch (error) {
      done();
      signal?.throwIfAborted();
      if (error instanceof NoAnswer || error instanceof Unavailable) this.#avoid(index);
      if (error instanceof NoAnswer || error instanceof LatchgateError) throw error;
      this.#avoid(index);
      throw new NoAnswer(`${this.#urls[index]}: ${/** @type {any} */ (error).cause?.message ?? error}`);
    }
  }

  /**
   * For giving back what may never have been granted: a failure does not matter.
   * @param {string} path
   * @param {Record<string, any>} body
   * @param {number} ms
   */
  async callQuietly(path, body, ms) {
    await this.call(path, body, { until: now() + ms }).catch(() => {});
  }

  /**
   * @param {string} url
   * @param {string} path
   * @param {Record<string, any> | undefined} body
   * @param {number} timeoutMs
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<{status: number, answer: Record<string, any>}>}
   */
  async #request(url, path, body, timeoutMs, signal) {
    const text = JSON.stringify(body);
    const ended = new AbortController();
    const end = () => ended.abort();
    const until = now() + timeoutMs;
    let timer = setTimeout(end, Math.min(timeoutMs, TIMER_MS_MAX));
    signal?.addEventListener("abort", end);
    try {
      const response = await fetch(url + path, {
        ...this.#trust,
        method: body ? "POST" : "GET",
        headers: this.#headers,
        body: text,
        redirect: "manual",
        signal: ended.signal,
      });
      clearTimeout(timer);
      timer = setTimeout(end, Math.min(Math.max(until - now(), BODY_MS_MIN), TIMER_MS_MAX));
      return await read(url, response);
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof NoAnswer) throw error;
      const cause = /** @type {any} */ (error).cause ?? error;
      const isLate = ended.signal.aborted;
      const detail = isLate ? `no answer within ${Math.round(timeoutMs)} ms` : cause.message;
      throw new NoAnswer(`${url}: ${detail}`, { isSent: !NOT_CONNECTED.includes(cause.code), isLate });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
    }
  }
}

/** @param {Response} response */
async function whole({ body }) {
  const reader = body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
    if (done) return text;
    text += value;
    if (text.length > ANSWER_LENGTH_MAX) {
      await reader?.cancel();
      throw new Error("the answer is too long");
    }
  }
}

/**
 * Once there is a status, the call has an answer. Without a type that names its code, a refusal is that of a gateway: with 502, 503 and 504 it says
 * that it does not reach the node, and a 2xx that is not JSON, or is cut, is as good as none. Every other one is foreign: the URL may be wrong.
 * @param {string} url
 * @param {Response} response
 * @returns {Promise<{status: number, answer: Record<string, any>}>}
 */
async function read(url, response) {
  const { ok, status, headers } = response;
  const text = await whole(response).catch((error) => {
    if (ok) throw error;
  });
  const value = text === undefined ? undefined : parse(text);
  const answer = typeof value === "object" && !Array.isArray(value) ? value : undefined;
  if (answer && (ok || (has(answer, "code") && answer.type === `/errors/${answer.code}`))) return { status, answer };
  const retryAfterMs = Number(headers.get("Retry-After")) * 1_000 || 0;
  const isOutage = ok ? value === undefined : text !== undefined && [502, 503, 504].includes(status);
  const code = isOutage ? undefined : FOREIGN;
  // A gateway that refuses has not passed the request on; 408 may come after it has.
  const isSent = ok || status >= 500 || status === 408;
  throw new NoAnswer(`${url}: the answer with status ${status} is none of Latchgate's`, { retryAfterMs, isSent, code });
}

/**
 * @param {Record<string, any>} body
 * @param {string} name
 */
function has(body, name) {
  const value = body[name];
  if (name === "results") return Array.isArray(value) && value.length > 0;
  return name === "ttl_ms" ? Number.isInteger(value) && value > 0 : typeof value === "string" && value !== "";
}

/**
 * A refusal need not name its key.
 * @param {readonly string[]} keys
 * @param {Answer} answer
 */
function checkKeys(keys, { status, body }) {
  const said = (status < 300 && body.locks ? body.locks : [body]).map((/** @type {any} */ lock) => lock.key);
  if (status < 300 ? keys.every((key, index) => key === said[index]) : said[0] === undefined || keys.includes(said[0])) return;
  throw otherKey(said, keys);
}

/**
 * @param {Record<string, string | undefined>} env
 * @param {string} name
 */
function variable(env, name) {
  const value = env[name]?.trim();
  // The default would be another service, or other authorities.
  if (value === "") throw new TypeError(`${name} is set and empty`);
  return value;
}

/**
 * @param {string | undefined} ca a PEM file
 * @returns {any}
 */
function trustIn(ca) {
  if (!ca) return undefined;
  const runtime = /** @type {any} */ (globalThis);
  let pem;
  try {
    pem = runtime.process.getBuiltinModule("node:fs").readFileSync(ca, "utf8");
  } catch (error) {
    throw new TypeError(`cannot read certificates from ${ca} (LATCHGATE_CA): ${error}`);
  }
  if (!pem.includes("-----BEGIN CERTIFICATE-----")) throw new TypeError(`${ca} (LATCHGATE_CA) has no certificate in PEM`);
  // Node has its class of dispatchers once this is loaded.
  new Headers();
  const Dispatcher = runtime[Symbol.for("undici.globalDispatcher.1")]?.constructor;
  if (!Dispatcher) throw new TypeError("the fetch of this runtime cannot be given LATCHGATE_CA: use its own setting");
  return { dispatcher: new Dispatcher({ connect: { ca: pem } }) };
}

/** @param {string} url */
function checkUrl(url) {
  // The parser leaves out, encodes or completes what these exclude.
  if (/[\p{C}\p{Z}?#\\]/u.test(url) || !/^https?:\/\/[^/]/i.test(url) || !URL.canParse(url)) {
    // It is not shown: it may have a login or an API key.
    throw new TypeError("one of the URLs is not that of a node (example: http://127.0.0.1:7070)");
  }
  return url.replace(/\/+$/, "");
}

/**
 * @param {string} text
 * @returns {any} undefined if it is not JSON
 */
function parse(text) {
  try {
    return JSON.parse(text);
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
