// @ts-check
// Which leases the running code is inside of, and the names of owners.

const process = /** @type {any} */ (globalThis).process;
/** @param {string} name */
const builtin = (name) => process?.getBuiltinModule?.(name) ?? {};

/** @typedef {import("./lease.js").Lease} Lease */

/** The leases that the running code is inside of, where the runtime can tell. */
const { AsyncLocalStorage } = builtin("node:async_hooks");
/** @type {{run<T>(leases: Lease[], work: () => T): T, getStore(): Lease[] | undefined} | undefined} */
const entered = AsyncLocalStorage && new AsyncLocalStorage();

/**
 * Runs the work inside of the lease.
 * @template T
 * @param {Lease} lease
 * @param {() => T} work
 * @returns {T}
 */
export function inside(lease, work) {
  return entered ? entered.run([...(entered.getStore() ?? []), lease], work) : work();
}

/**
 * The owner for a lease of these keys, and whether it is to be nested in one that the caller is inside of. Only nested leases have the owner
 * of another one: otherwise a nested lease could open a lock that other code holds.
 * @param {import("./nodes.js").Nodes} nodes
 * @param {readonly string[]} keys
 * @param {boolean | undefined} reentrant
 */
export function ownerOf(nodes, keys, reentrant) {
  if (reentrant && !entered) throw new TypeError("this runtime has no AsyncLocalStorage: name an owner for reentrant locks");
  const mine = (reentrant && entered?.getStore()) || [];
  const outer = mine.filter((lease) => lease.isOf(nodes) && lease.remainingMs() > 0 && keys.some((key) => lease.keys.includes(key)));
  if (outer.some(({ hasNamedOwner }) => hasNamedOwner)) {
    throw new TypeError("the lease around this one has an owner that the caller has named: name it here too");
  }
  const owners = new Set(outer.map(({ owner }) => owner));
  if (owners.size > 1) throw new TypeError("a multilock cannot be nested in several leases: name one owner for all of them");
  const [owner] = owners;
  return owner ? { owner, isNested: true } : { owner: freshOwner(), isNested: false };
}

function freshOwner() {
  const host = String(builtin("node:os").hostname?.() ?? process?.env?.HOSTNAME ?? "client");
  const name = host.replace(/[^\x21-\x7e]/g, "").slice(0, 60);
  const script = String(process?.argv?.[1] ?? "").split(/[\\/]/).at(-1) ?? "";
  const program = script.replace(/[^\x21-\x7e]/g, "").slice(0, 40);
  return `${name}${process?.pid ? `:${process.pid}` : ""}${program && ` ${program}`}/${crypto.randomUUID().slice(-12)}`;
}
