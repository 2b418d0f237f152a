// Compiled, and not run: the declared types fit the code, and the code that users write.
import * as declared from "../src/index.js";
import * as client from "../src/client.js";
import * as errors from "../src/errors.js";

export const errorsFit: Omit<typeof declared, "Client" | "Lease" | "Attempt"> = errors;

type Public<T> = { [Name in keyof T]: T[Name] };
type Made<T> = T extends Promise<infer U> ? Public<U> : never;
type Fits<Actual extends Expected, Expected> = Actual;
export type LeaseFits = Fits<Made<ReturnType<client.Client["lock"]>>, Public<declared.Lease>>;
export type TryLockFits = Fits<keyof client.Client, keyof declared.Client>;
export type AllOfClient = Fits<keyof declared.Client, keyof client.Client>;
export type ClientFits = Fits<ConstructorParameters<typeof client.Client>, ConstructorParameters<typeof declared.Client>>;

export async function use(): Promise<number> {
  const c = new declared.Client(["http://node-1:7070"], { apiKey: "lgk_…", timeoutMs: 1_000 });
  await using lease = await c.lock("k", { ttlMs: 1_000, limit: 3 });
  lease.signal.throwIfAborted();
  const done = await c.once({ order: 42 }, () => ({ receipt: 7 }), { operation: "charge", onExpiry: "retry" });
  const text: string = await c.withLock("k", { shared: true }, async (held) => held.owner);
  const { leases, deadline } = await c.revoke("k", { reason: "deploy", graceMs: 1_000, token: lease.token });
  for await (const { id, kind } of c.events({ prefix: "orders/" }, { after: text })) if (kind === id + deadline) break;
  await c.fence("k", leases);
  // @ts-expect-error durations have their unit in their name
  await c.lock("k", { ttl: 30 });
  // @ts-expect-error the service decides nothing while it is away
  await c.once("contents", () => 1, { operation: "charge", onOutage: "open" });
  const unguarded = await c.once("contents", ({ guarded }) => !guarded, { operation: "charge", onOutage: "proceed", permanent: true });
  if (unguarded.resultOmitted) throw new Error(unguarded.omittedBecause);
  // @ts-expect-error an operation has a name
  await c.once("contents", () => 1, {});
  return done.result.receipt + text.length + ((await c.tryLock("k"))?.token ?? 0);
}
