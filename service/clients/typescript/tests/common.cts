// Compiled, and not run: `require` has the types too.
import { Client, type Lease } from "latchgate";

export async function use(client: Client): Promise<number> {
  const lease: Lease = await client.lock("k", { ttlMs: 1_000 });
  // @ts-expect-error durations have their unit in their name
  await client.lock("k", { ttl: 30 });
  return lease.token;
}
