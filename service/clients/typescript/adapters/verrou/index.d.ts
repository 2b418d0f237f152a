import type { LockStore } from "@verrou/core/types";
import type { ClientOptions } from "../../src/index.js";

/** For the configuration of Verrou: `stores: { latchgate: latchgateStore() }`. URLs and options are those of `new Client`. */
export function latchgateStore(urls?: string | readonly string[], options?: ClientOptions): { driver: { factory: () => LatchgateStore } };

export class LatchgateStore implements LockStore {
  constructor(urls?: string | readonly string[], options?: ClientOptions);
  save(key: string, owner: string, ttl: number | null): Promise<boolean>;
  delete(key: string, owner: string): Promise<void>;
  forceDelete(key: string): Promise<void>;
  exists(key: string): Promise<boolean>;
  extend(key: string, owner: string, duration: number): Promise<void>;
}
