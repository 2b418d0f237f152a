// @ts-check
// Which options there are: a typing error in a name must not silently mean the default.

const MODE = ["shared", "permits", "limit", "group", "groupLimit"];
const MULTILOCK = ["ttlMs", "waitMs", "owner", "priority", "reentrant", "delayMs", "minHoldMs", "maxHoldMs", "metadata", "signal"];
const LOCK = [...MULTILOCK, ...MODE, "barge"];
const ONCE = ["operation", "checked", "ttlMs", "waitMs", "onExpiry", "durability", "onOutage", "retentionMs", "permanent", "signal"];

const KNOWN = {
  Client: ["apiKey", "retryForMs", "timeoutMs", "waitPerCallMs"],
  lock: LOCK,
  tryLock: LOCK.filter((name) => name !== "waitMs"),
  withLock: LOCK,
  multilock: MULTILOCK,
  "a key of multilock": ["key", ...MODE],
  once: ONCE,
  revoke: ["reason", "by", "graceMs", "token"],
  events: ["after", "signal"],
  "the first argument of events": ["prefix"],
};

/**
 * Returns the options. Throws a TypeError that names an unknown one.
 * @template {object} T
 * @param {keyof typeof KNOWN} where
 * @param {T} options
 */
export function checked(where, options) {
  if (typeof options !== "object" || options === null) throw new TypeError(`${where} takes an object, not ${String(options)}`);
  const unknown = Object.keys(options).find((name) => !KNOWN[where].includes(name));
  if (unknown !== undefined) throw new TypeError(`${where} has no option ${JSON.stringify(unknown)}: it has ${KNOWN[where].join(", ")}`);
  return options;
}
