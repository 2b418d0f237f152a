// Verrou's own tests for stores, and two more, of the store in adapters/verrou. scripts/test-clients.sh runs it.

import { assert } from "@japa/assert";
import { configure, run, test } from "@japa/runner";
import { LockFactory, Verrou } from "@verrou/core";
import { registerStoreTestSuite } from "@verrou/core/test_suite";
import { LatchgateStore, latchgateStore } from "latchgate/verrou";

import { a, b } from "./world.js";

const options = [[a.url, b.url], { retryForMs: 30_000 }];
const createStore = () => new LatchgateStore(...options);
const counts = { tests: 0, fail: 0 };

configure({
  files: () => [new URL(import.meta.url)],
  plugins: [assert()],
  timeout: 10_000,
  // Verrou's own tests give half a second to a call, and a busy machine may need more.
  retries: 3,
  reporters: { activated: ["counts"], list: [{ name: "counts", handler: (_, emitter) => emitter.on("test:end", count) }] },
  importer: () => test.group("Verrou", (group) => {
    // What a test has left is taken by the next one.
    group.each.setup(async () => {
      for (const key of ["foo", "foo1"]) await createStore().forceDelete(key);
    });
    registerStoreTestSuite({ test, createStore });
    test("another process restores and releases a lock", async ({ assert }) => {
      const lock = new LockFactory(createStore()).createLock("foo");
      await lock.acquire();
      await new LockFactory(createStore()).restoreLock(lock.serialize()).release();
      assert.isFalse(await lock.isLocked());
      await lock.acquire();
      await lock.release();
    });
    test("a configuration names the store", async ({ assert }) => {
      const verrou = new Verrou({ default: "latchgate", stores: { latchgate: latchgateStore(...options) } });
      assert.deepEqual(await verrou.createLock("foo", null).run(async () => 7), [true, 7]);
    });
  }),
});

function count({ title, hasError, errors }) {
  counts.tests += 1;
  counts.fail += Number(hasError);
  console.log(hasError ? "not ok" : "ok", title.expanded, ...errors.map(({ error }) => error));
}

process.on("exit", () => console.log(`# tests ${counts.tests}\n# fail ${counts.fail}`));
await run();
process.exit();
