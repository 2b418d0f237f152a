// @ts-check
// Which options there are, and what they may be: a typing error must not silently mean the default, and JSON has no NaN.

import { isText } from "./json.js";

/** What it is called, and whether a value is one. @typedef {[string, (value: any) => boolean]} Kind */

/** @type {Kind} */
const WHOLE = ["a whole number of at least 0", (value) => Number.isSafeInteger(value) && value >= 0];
/** For this machine only, so it may be without end. @type {Kind} */
const TIME = ["a number of milliseconds", (value) => typeof value === "number" && value >= 0];
/** @type {Kind} */
const FLAG = ["true or false", (value) => typeof value === "boolean"];
/** @type {Kind} */
const TEXT = ["a string", isText];
/** @type {Kind} */
const OBJECT = ["an object", (value) => typeof value === "object" && value !== null && !Array.isArray(value)];
/** It is checked as JSON. @type {Kind} */
const ANY = ["JSON", () => true];
/** It is sent in a header. @type {Kind} */
const EVENT_ID = ["the id of an event", (value) => typeof value === "string" && /^[!-~]+$/.test(value.trim())];
/** @type {Kind} */
const SIGNAL = ["an AbortSignal", (value) => typeof value?.aborted === "boolean" && typeof value.addEventListener === "function"];
/** @type {(...texts: string[]) => Kind} */
const oneOf = (...texts) => [texts.map((text) => JSON.stringify(text)).join(" or "), (value) => texts.includes(value)];

const MODE = { shared: FLAG, permits: WHOLE, limit: WHOLE, group: TEXT, groupLimit: WHOLE };
const TRY_MULTILOCK = {
  ttlMs: WHOLE,
  owner: TEXT,
  priority: WHOLE,
  reentrant: FLAG,
  delayMs: WHOLE,
  minHoldMs: WHOLE,
  maxHoldMs: WHOLE,
  metadata: OBJECT,
  signal: SIGNAL,
};
const MULTILOCK = { ...TRY_MULTILOCK, waitMs: TIME };
const LOCK = { ...MULTILOCK, ...MODE, barge: FLAG };

/** @satisfies {Record<string, Record<string, Kind>>} */
const KNOWN = {
  Client: { apiKey: TEXT, retryForMs: TIME, timeoutMs: TIME, waitPerCallMs: TIME },
  lock: LOCK,
  tryLock: { ...TRY_MULTILOCK, ...MODE, barge: FLAG },
  withLock: LOCK,
  multilock: MULTILOCK,
  "a key of multilock": { key: TEXT, ...MODE },
  once: {
    operation: TEXT,
    checked: ANY,
    ttlMs: WHOLE,
    waitMs: TIME,
    onExpiry: oneOf("block", "retry"),
    durability: oneOf("fast", "durable"),
    onOutage: oneOf("proceed"),
    retentionMs: WHOLE,
    permanent: FLAG,
    label: TEXT,
    signal: SIGNAL,
  },
  revoke: { reason: TEXT, by: TEXT, graceMs: WHOLE, token: WHOLE },
  events: { after: EVENT_ID, signal: SIGNAL },
  "the first argument of events": { prefix: TEXT },
};

/**
 * Returns the options. Throws a TypeError that names an unknown one, or one that is not what it may be.
 * @template {object} T
 * @param {keyof typeof KNOWN} where
 * @param {T} options
 */
export function checked(where, options) {
  if (typeof options !== "object" || options === null) throw new TypeError(`${where} takes an object, not ${String(options)}`);
  const known = /** @type {Record<string, Kind>} */ (KNOWN[where]);
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(known, name)) {
      throw new TypeError(`${where} has no option ${JSON.stringify(name)}: it has ${Object.keys(known).join(", ")}`);
    }
    const [what, isOne] = known[name];
    if (value !== undefined && !isOne(value)) throw new TypeError(`${name} of ${where} must be ${what}`);
  }
  return options;
}

/**
 * Throws a TypeError if the work is no function, or expects more than it is given.
 * @param {string} where
 * @param {unknown} work
 * @param {string} given
 */
export function checkWork(where, work, given) {
  const order = where === "once" ? "contents, work, options" : "key, options, work";
  if (typeof work !== "function") throw new TypeError(`${where}(${order}) needs a function as the work: it gets (${given})`);
  if (work.length > 1) throw new TypeError(`the work of ${where} takes ${work.length} arguments, and gets one: (${given})`);
}

/**
 * @param {unknown} key
 * @returns {string}
 */
export function checkKey(key) {
  if (!isText(key)) throw new TypeError(`a key is a string, not ${key === null ? "null" : typeof key}`);
  return /** @type {string} */ (key);
}
