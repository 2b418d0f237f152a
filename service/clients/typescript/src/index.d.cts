// A client of Latchgate: distributed locks, and an idempotency gate. All durations are in milliseconds.
//
// A TypeError names an option that is unknown, or not what it may be, and a member of contents, metadata and the like that is no JSON
// (`undefined`, NaN, a Promise, a Map, an instance of a class without `toJSON`, …): nothing is left out of a request in silence.
//
//     const client = new Client(["http://node-1:7070", "http://node-2:7070"]);
//     await using lease = await client.lock("orders/42", { ttlMs: 30_000, waitMs: 600_000 });
//     await save(order, { fence: lease.token });

export interface ClientOptions {
  /** If absent, that in the variable LATCHGATE_API_KEY, or none. */
  apiKey?: string;
  /** When no node answers, a call ends after this time in all (2 000 if absent): beyond its wait, if a node has answered it before. A
   * renewal is repeated until the lease ends, and the report that work was done for as long as the attempt lasts. */
  retryForMs?: number;
  /** How long one node may take to answer, beyond the time that a call waits there: 5 000 if absent; a third of the time that the call has
   * left if that is less. */
  timeoutMs?: number;
  /** How long one call waits at a node: 20 000 if absent. Longer waits go on with tickets. */
  waitPerCallMs?: number;
}

export interface MultilockOptions {
  /** The length of the lease, which is renewed at a third of it: 30 000 if absent. */
  ttlMs?: number;
  /** How long to wait in the queue: 60 000 if absent; `Infinity`: without a limit. */
  waitMs?: number;
  /** Shown to callers that are refused: `host:pid program/…` if absent, another one for each lease. */
  owner?: string;
  /** 1 to 10, higher first. */
  priority?: number;
  /** Inside of the work of `withLock` for this key, get a nested lease with the same token at once. This needs a runtime with
   * `AsyncLocalStorage`, as Node is. With a named `owner`, so does every caller that names it. */
  reentrant?: boolean;
  /** Lock-delay after an expiry. */
  delayMs?: number;
  /** The lock stays taken until so long after the grant, also after an earlier release. */
  minHoldMs?: number;
  /** Renewals extend the lease no further than this after the grant. */
  maxHoldMs?: number;
  metadata?: Record<string, unknown>;
  /** Ends the wait: the promise rejects with its reason. */
  signal?: AbortSignal;
}

/** Which share of the lock: all of it, or `shared`, or `permits` out of `limit`, for a group. */
export interface Mode {
  shared?: boolean;
  permits?: number;
  limit?: number;
  /** Free permits go to the waiting group that has fewest, for example a tenant. */
  group?: string;
  /** The lock is not granted if the group would have more permits than this. */
  groupLimit?: number;
}

export interface LockOptions extends MultilockOptions, Mode {
  /** Take a free lock ahead of the queue. */
  barge?: boolean;
}

export interface Key extends Mode {
  key: string;
}

export interface OnceOptions {
  operation: string;
  /** What must be equal in every call but does not identify the operation. If it is there, it must not be undefined or null. */
  checked?: unknown;
  /** Without a heartbeat for so long, the attempt ends: 60 000 if absent. */
  ttlMs?: number;
  /** How long to wait for the end of another attempt: 60 000 if absent. */
  waitMs?: number;
  /** Whether an operator decides after an attempt that failed or vanished (`block`, the default), or the next caller runs (`retry`). */
  onExpiry?: "block" | "retry";
  durability?: "fast" | "durable";
  /** While the gate's store is away (503 `store-unavailable`), or no node answers within `retryForMs`, the work runs unguarded, unless a node
   * has said during the wait that another attempt runs: other callers may run it too. The run is entered in the background as soon as a node answers, for as long as the process lives. If absent,
   * the call rejects with `Unavailable`. */
  onOutage?: "proceed";
  /** How long a success is remembered: a day if absent, unless the service is configured otherwise. Afterwards the work runs again. */
  retentionMs?: number;
  /** A success is remembered for ever. */
  permanent?: boolean;
  /** What an operator reads of the operation: a line of at most 256 bytes. */
  label?: string;
  /** Ends the wait: the promise rejects with its reason. */
  signal?: AbortSignal;
}

export interface RevokeOptions {
  reason?: string;
  by?: string;
  /** How long the holders may keep their leases: 10 000 if absent. */
  graceMs?: number;
  /** Only the leases with this token. */
  token?: number;
}

export interface EventsOptions {
  /** The `id` of an event: begin with the next one. If absent, the events begin now. */
  after?: string;
  /** Ends the events: the iterator rejects with its reason. */
  signal?: AbortSignal;
}

export interface LockEvent {
  /** Keep it to continue behind this event later. */
  id: string;
  /** `granted`, `released`, `expired` and so on. After `dropped`, events between the ids `from` and `to` may be missing. */
  kind: string;
  data: Record<string, any>;
}

/** A client of the nodes with these base URLs. */
export class Client {
  /** One URL or several; if absent, those in the variable LATCHGATE_URL with commas in between, or http://127.0.0.1:7070. If a node does
   * not answer, the next one is called. */
  constructor(urls?: string | readonly string[], options?: ClientOptions);

  /** Takes the lock. The lease renews itself until it is released. Rejects with `WaitTimeout` when the wait is over; without a wait,
   * with `LockHeld`. */
  lock(key: string, options?: LockOptions): Promise<Lease>;

  /** Takes the lock if it is free; else resolves to undefined. */
  tryLock(key: string, options?: Omit<LockOptions, "waitMs">): Promise<Lease | undefined>;

  /** Holds the lock while `work` runs. Rejects with `LeaseLost` if the lease was lost meanwhile. */
  withLock<T>(key: string, work: (lease: Lease) => T | Promise<T>): Promise<T>;
  withLock<T>(key: string, options: LockOptions, work: (lease: Lease) => T | Promise<T>): Promise<T>;

  /** Takes all locks or none, up to 64. */
  multilock(keys: ReadonlyArray<string | Key>, options?: MultilockOptions): Promise<Lease>;

  /** For a resource that cannot store tokens: rejects with `StaleToken` if a higher token has been granted or presented for the key. */
  fence(key: string, token: number): Promise<void>;

  /** Asks the holders to release. Their leases end at `deadline`, by the store's clock. If the answer is lost, that is an `Unavailable`,
   * and not repeated without a `token`: it could ask the next holder. */
  revoke(key: string, options?: RevokeOptions): Promise<{ leases: number; deadline: string | undefined }>;

  /** The events of a key, or of all keys that begin with a prefix. After a broken connection the iterator goes on at another node, behind
   * the last event; it rejects with `Unavailable` when no node has answered for `retryForMs`. */
  events(of: string | { prefix: string }, options?: EventsOptions): AsyncGenerator<LockEvent, void, void>;

  /** Runs `work` if this operation with these contents (JSON that says something) has not succeeded within the retention (a day if not
   * said otherwise), and stores its result (JSON). If it has succeeded, resolves to the stored result. If another attempt runs, waits for
   * its end, and then rejects with `OperationInProgress`.
   *
   * If the work throws or its process dies, the outcome is unknown: callers get `OperationUnknown` until an operator decides, who sees the
   * class and the message of the error. If the work throws a `NotDone`, or with `onExpiry: "retry"`, the next caller runs it again. */
  once<T>(contents: unknown, work: (attempt: Attempt) => T | Promise<T>, options: OnceOptions): Promise<Done<T>>;
}

/** A lease that renews itself in the background, and keeps the process alive until it ends. `await using` releases it. */
export class Lease implements AsyncDisposable {
  private constructor();
  readonly keys: readonly string[];
  /** The key; the first one if there are several. */
  readonly key: string;
  readonly leaseId: string;
  readonly owner: string;
  /** Higher than that of every earlier lease of the key: send it with each write. */
  readonly token: number;
  /** By key. */
  readonly tokens: ReadonlyMap<string, number>;
  /** Aborted, with a `LeaseLost` as its reason, when the lease has ended before it was released. */
  readonly signal: AbortSignal;
  /** Set when a renewal has shown that an operator asks for the lock: finish, and release it. */
  readonly revocation: { readonly deadline: string; readonly reason?: string; readonly by?: string } | undefined;
  /** For how long the lease is surely live; 0 if it is lost or released. */
  remainingMs(): number;
  /** For people: its keys, token, owner and time. */
  toString(): string;
  /** Throws `LeaseLost` if the lease may have ended. Call it before each step that cannot be undone. */
  check(): void;
  /** Rejects with `LeaseLost` if the lease had ended before, and with `Unavailable` if no node answers; then it ends by its TTL. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Permission to do the operation, kept by heartbeats while the work runs. */
export class Attempt {
  private constructor();
  /** Undefined if the run is unguarded. */
  readonly id: string | undefined;
  /** Which attempt this is, from 1; undefined if the run is unguarded. */
  readonly number: number | undefined;
  /** False: the gate was away, and the call said `onOutage: "proceed"`, so other callers may proceed too. */
  readonly guarded: boolean;
  /** An earlier attempt may have done part of the work. */
  readonly reentry: boolean;
  /** The store may have lost the record of an earlier attempt. */
  readonly possiblyRepeated: boolean;
  /** Aborted when another attempt may have begun. */
  readonly signal: AbortSignal;
  /** For how long no other attempt can begin; 0 if it is lost, or not guarded. */
  remainingMs(): number;
  /** Throws `AttemptLost` if another attempt may have begun. */
  check(): void;
}

export interface Done<T> {
  /** What the work returned, now or (as JSON) in the attempt that has done it. */
  result: T;
  /** An earlier attempt has done the operation. */
  duplicate: boolean;
  /** The result is not stored, because it is longer than 64 KiB or no JSON; a duplicate's `result` is then null. */
  resultOmitted: boolean;
  /** Why, with the path of the member that is no JSON, where the work has just run. */
  omittedBecause?: string;
}

export interface Holder {
  owner: string;
  mode: "exclusive" | "shared" | "permits";
  token: number;
  granted_at: string;
  expires_at: string;
  ttl_ms: number;
  [field: string]: unknown;
}

/** The base of all errors of this package but `NotDone`. */
export class LatchgateError extends Error {
  constructor(code: string, detail: string, status?: number, fields?: Record<string, any>, options?: ErrorOptions);
  /** Stable, and explained in Latchgate's list of error codes. */
  readonly code: string;
  readonly detail: string;
  /** That of the answer, if the error is one of an answer. */
  readonly status: number | undefined;
  /** All fields of the answer's problem. */
  readonly fields: Record<string, any>;
}
/** The request cannot be granted as it is, for example because its key is not valid: `code` says why. */
export class Refused extends LatchgateError {}
/** The caller does not have the lock, because another one has it or comes first. */
export class LockHeld extends LatchgateError {
  get holders(): Holder[];
}
/** The caller's wait has ended without the lock. */
export class WaitTimeout extends LockHeld {}
/** A higher token than this one has been granted or presented: refuse what its holder wants to do. */
export class StaleToken extends LatchgateError {
  get current(): number;
}
/** The lease has ended before it was released: stop the work that it protects. */
export class LeaseLost extends LatchgateError {
  /** `expired`, `released`, `revoked`, `forced` or `unknown` if a node has said so; `unanswered` if no renewal was answered in time.
   * `revoked` is also that of a lease whose last renewal has shown that it would end by a revocation. */
  get why(): string;
}
/** Another attempt may have the operation: stop. */
export class AttemptLost extends LatchgateError {}
/** Another attempt runs, and the caller's wait has ended. */
export class OperationInProgress extends LatchgateError {}
/** An earlier attempt may have done the operation: an operator finds out, and resolves it. */
export class OperationUnknown extends LatchgateError {}
/** The work has succeeded, but the gate does not know it. */
export class NotRecorded extends LatchgateError {
  constructor(cause: LatchgateError, result: unknown);
  readonly result: unknown;
}
/** No node has given an answer to rely on, in all the time for repeating the call, or the app has used up a quota (`quota-reached`). Without
 * an answer, the call may have been carried out. */
export class Unavailable extends LatchgateError {}
/** Throw this in the work of `once` to say that surely nothing was done: the next caller may proceed at once. */
export class NotDone extends Error {
  constructor(message?: string, options?: ErrorOptions);
}
