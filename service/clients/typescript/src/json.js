// @ts-check
// What goes into a request, as JSON. `JSON.stringify` leaves out or changes what JSON cannot say: two orders whose amounts are a forgotten
// `await` would be one. Here that is refused, with its path.

/** The most that a node accepts. */
const DEPTH_MAX = 64;

/** @param {unknown} value */
export const isText = (value) => typeof value === "string" && value.isWellFormed();

/**
 * A copy of the value. Throws a TypeError that names the member which is no JSON.
 * @param {unknown} value
 * @param {string} path
 * @param {boolean} [isIdentity] whether it must be the same in every call: then no number may be rounded
 * @returns {any}
 */
export function jsonOf(value, path, isIdentity = false, depth = 0) {
  /** @param {string} what */
  const refuse = (what) => new TypeError(`${path} ${what}`);
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "string") {
    if (!isText(value)) throw refuse("is a string with half of a surrogate pair, which is no text");
    return value;
  }
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw refuse(`is ${value}, which JSON cannot say`);
    if (isIdentity && Math.abs(value) >= 2 ** 53) throw refuse(`is ${value}, which may have been rounded: make it a string`);
    return value;
  }
  if (typeof value !== "object") throw refuse(value === undefined ? "is undefined" : `is a ${typeof value}, which JSON cannot say`);
  if (depth === DEPTH_MAX) throw refuse(`is nested more than ${DEPTH_MAX} levels deep`);
  if (typeof (/** @type {any} */ (value).toJSON) === "function") {
    const said = /** @type {any} */ (value).toJSON("");
    // As an invalid Date says it.
    if (said === null) throw refuse("has nothing to say in JSON");
    return jsonOf(said, path, isIdentity, depth + 1);
  }
  const named = Object.keys(value);
  const hidden = Reflect.ownKeys(value).length - named.length;
  if (Array.isArray(value)) {
    if (hidden > 1 || named.length > value.length) throw refuse("is an array with members that have names, which JSON leaves out");
    return Array.from(value, (member, index) => jsonOf(member, `${path}[${index}]`, isIdentity, depth + 1));
  }
  const prototype = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    const hint = value instanceof Promise ? " (await it)" : "";
    throw refuse(`is a ${prototype.constructor?.name || "class"} and no plain object${hint}: JSON leaves out what such an object keeps elsewhere`);
  }
  if (hidden > 0) throw refuse("has members that JSON leaves out (symbols, or hidden ones)");
  return Object.fromEntries(named.map((name) => {
    if (!isText(name)) throw refuse("has a name with half of a surrogate pair, which is no text");
    const member = /^[\w$]+$/.test(name) ? `.${name}` : `[${JSON.stringify(name)}]`;
    return [name, jsonOf(/** @type {any} */ (value)[name], path + member, isIdentity, depth + 1)];
  }));
}

/**
 * As `jsonOf`, for what identifies an operation. An identity that was lost on its way here would be that of all others that were lost.
 * @param {unknown} value
 * @param {string} path
 */
export function identityOf(value, path) {
  const json = jsonOf(value, path, true);
  if (saysNothing(json)) throw new TypeError(`${path} says nothing (an empty string, object or array, or only nulls)`);
  return json;
}

/**
 * @param {any} json
 * @returns {boolean}
 */
function saysNothing(json) {
  if (typeof json === "object" && json !== null) return Object.values(json).every(saysNothing);
  return json === null || json === "";
}
