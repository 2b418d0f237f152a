// @ts-check
// What can go wrong: one class for each decision that a caller takes. See index.d.cts.

export class LatchgateError extends Error {
  /**
   * @param {string} code
   * @param {string} detail
   * @param {number} [status]
   * @param {Record<string, any>} [fields]
   * @param {ErrorOptions} [options]
   */
  constructor(code, detail, status, fields = {}, options) {
    super(`${code}: ${detail}`, options);
    this.name = new.target.name;
    this.code = code;
    this.detail = detail;
    this.status = status;
    this.fields = fields;
  }
}

export class Refused extends LatchgateError {}

export class LockHeld extends LatchgateError {
  get holders() {
    return this.fields.holders ?? [];
  }
}

export class WaitTimeout extends LockHeld {}

export class StaleToken extends LatchgateError {
  get current() {
    return this.fields.current ?? 0;
  }
}

export class LeaseLost extends LatchgateError {
  get why() {
    return this.fields.why ?? this.fields.results?.find((/** @type {any} */ lease) => lease.why)?.why ?? "unknown";
  }
}

export class AttemptLost extends LatchgateError {}

export class OperationInProgress extends LatchgateError {}

export class OperationUnknown extends LatchgateError {}

export class NotRecorded extends LatchgateError {
  /**
   * @param {LatchgateError} cause
   * @param {unknown} result
   */
  constructor(cause, result) {
    super(cause.code, `the work was done, but its outcome is not recorded: ${cause.detail}`, cause.status, cause.fields, { cause });
    this.result = result;
  }
}

export class Unavailable extends LatchgateError {}

export class NotDone extends Error {
  /**
   * @param {string} [message]
   * @param {ErrorOptions} [options]
   */
  constructor(message, options) {
    super(message, options);
    this.name = "NotDone";
  }
}

/** @type {Map<string, typeof LatchgateError>} */
const BY_CODE = new Map([
  ["stale-token", StaleToken],
  ["wait-timeout", WaitTimeout],
  ["lease-lost", LeaseLost],
  ["operation-in-progress", OperationInProgress],
  ["operation-unknown", OperationUnknown],
  ["operation-superseded", AttemptLost],
  ["operation-ended", AttemptLost],
  ["operation-not-found", AttemptLost],
  ["stamp-mismatch", AttemptLost],
]);

/**
 * The error for an answer that is `application/problem+json`.
 * @param {number} status
 * @param {Record<string, any>} problem
 */
export function ofProblem(status, problem) {
  const Kind = status >= 500 || isTransient(status) ? Unavailable : BY_CODE.get(problem.code) ?? (status === 423 ? LockHeld : Refused);
  return new Kind(problem.code, problem.detail ?? problem.title ?? "", status, problem);
}

/**
 * Something between the client and the node may change the path of a request, `a//b` into `a/b` say.
 * @param {unknown[]} said
 * @param {readonly string[]} asked
 */
export function otherKey(said, asked) {
  const keys = `${JSON.stringify(said)}, not ${JSON.stringify(asked)}`;
  return new Refused("other-key", `the answer is about ${keys}: a proxy in front of the node may change the paths of requests`);
}

/**
 * Whether the same request may pass later. A node sends 503; a proxy in front of it may send the others.
 * @param {number} status
 */
export function isTransient(status) {
  return [429, 502, 503, 504].includes(status);
}
