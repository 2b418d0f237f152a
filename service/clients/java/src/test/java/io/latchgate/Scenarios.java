package io.latchgate;

import io.latchgate.LatchgateException.LeaseLost;
import io.latchgate.LatchgateException.LockHeld;
import io.latchgate.LatchgateException.Unavailable;
import java.lang.management.ManagementFactory;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** What only this client has: ../../python/tests runs the scenarios that all have. The names of tests begin with the numbers in
 * ../../SCENARIOS.md. `main` is the test runner. */
final class Scenarios extends World {
    private static final Duration SECOND = Duration.ofSeconds(1);
    private final String key = "test/" + UUID.randomUUID();

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 3) {
            if (arguments[0].equals("first")) first(arguments[1], arguments[2]);
            else unclaimed(arguments[1], arguments[2]);
            return;
        }
        long began = System.nanoTime();
        int ran = 0, failed = 0;
        for (Method test : Scenarios.class.getDeclaredMethods()) {
            if (!test.getName().startsWith("test") || arguments.length > 0 && !test.getName().contains(arguments[0])) continue;
            ran++;
            try {
                test.invoke(new Scenarios());
                System.out.println("ok      " + test.getName());
            } catch (InvocationTargetException failure) {
                System.out.println("FAILED  " + test.getName() + ": " + failure.getCause());
                failure.getCause().printStackTrace(System.out);
                failed++;
                Clock.stepped = 0;
            }
        }
        System.out.printf("Ran %d tests in %d s%n%n", ran, (System.nanoTime() - began) / 1_000_000_000);
        System.out.printf(failed > 0 ? "FAILED (failures=%d)%n" : "OK (failures=%d)%n", failed);
        System.exit(failed > 0 ? 1 : 0);
    }

    private static LatchgateClient both() { return client(NODES); }

    private static LockOptions options() { return LockOptions.of(); }

    private void isHeld(LatchgateClient client, String key, LockOptions options) throws Exception {
        raises(LockHeld.class, () -> client.acquire(key, options.wait(Duration.ZERO)));
    }

    private void isFree(String key) throws Exception {
        eventually(key + " is free", () -> {
            Map<String, Object> lock = request("GET", key);
            return !Answer.is(lock, "held") && Answer.number(lock, "waiters") == 0;
        });
    }

    void test08_a_thread_is_interrupted_if_its_lease_is_lost() throws Exception {
        Lease lease = both().acquire(key, options().ttl(SECOND.multipliedBy(3)).interruptOnLoss());
        request("DELETE", key);
        raises(InterruptedException.class, () -> { Thread.sleep(60_000); return null; });
        raises(LeaseLost.class, () -> { lease.close(); return null; });
    }

    void test11_the_lease_of_a_thread_that_has_ended_expires() throws Exception {
        LatchgateClient client = both();
        result(background(() -> { client.lock(key, options().ttl(SECOND.dividedBy(2))).lock(); return 0; }));
        eventually("it expires", () -> { System.gc(); return !Answer.is(request("GET", key), "held"); });
        raises(IllegalMonitorStateException.class, () -> { client.lock(key).unlock(); return null; });
    }

    void test36_a_result_that_is_no_json_is_omitted() throws Exception {
        for (Object result : List.of(new Object(), new Pojo(), Double.NaN)) {
            String contents = key + result.hashCode();
            same(new Once.Done(result, false, true), both().once("test", contents, attempt -> result));
            Once.Done again = both().once("test", contents, attempt -> "again");
            check(again.result() == null && again.duplicate() && again.resultOmitted(), again);
        }
        both().once("test", key + "/record", attempt -> new Order(42, "19.90"));
        same(Map.of("id", 42L, "amount", "19.90"), both().once("test", key + "/record", attempt -> 7).result());
    }

    void test21_a_failure_to_connect_says_why_and_where() {
        for (String[] bad : new String[][] {{"127.0.0.1:1", "cannot connect: "}, {"no-such-host.invalid:7070", "the name of the host is not known: "}}) {
            LatchgateClient client = config("http://" + bad[0]).retryFor(SECOND).connect();
            String detail = raises(Unavailable.class, () -> client.acquire(key)).getMessage();
            check(detail.contains(bad[1] + bad[0]), detail);
        }
    }

    void test24_the_machine_was_suspended_for_longer_than_the_lease() throws Exception {
        Lease lease = both().acquire(key, options().ttl(SECOND.multipliedBy(300)));
        CompletableFuture<Object> loss = new CompletableFuture<>();
        lease.onLoss(loss::complete);
        Clock.stepped = 301_000_000_000L;
        loss.get(60, TimeUnit.SECONDS);
        Clock.stepped = 0;
    }

    void test25_a_lock_inside_of_itself_is_refused_without_the_request() throws Exception {
        LatchgateClient client = both();
        DistributedLock lock = client.lock(key);
        lock.lock();
        isHeld(client, key, options());
        check(!both().lock(key).tryLock(), "another client");
        DistributedLock again = client.lock(key);
        check(again.tryLock() && client.lock(key, options().shared()).tryLock(), "another object");
        same(lock.token(), again.token());
        again.unlock();
        again.unlock();
        request("DELETE", key);
        lost(lock.lease());
        check(again.tryLock() && again.token() > 0 && again.isHeldByCurrentThread(), "the lost lease is used again");
        again.unlock();
        raises(LeaseLost.class, () -> { lock.unlock(); return null; });
        DistributedLock shared = client.lock(key, options().shared());
        shared.lock();
        raises(IllegalMonitorStateException.class, () -> lock.tryLock());
        shared.unlock();
        isFree(key);
    }

    void test25_a_lock_of_java_is_reentrant_for_its_thread() throws Exception {
        DistributedLock lock = both().lock(key);
        lock.lock();
        long token = lock.token();
        check(lock.tryLock() && lock.tryLock(1, TimeUnit.SECONDS) && lock.token() == token, "not reentrant");
        check(!result(background(() -> lock.tryLock() || lock.tryLock(100, TimeUnit.MILLISECONDS))), "another thread has it too");
        result(background(() -> raises(IllegalMonitorStateException.class, () -> { lock.unlock(); return null; })));
        for (int i = 0; i < 3; i++) {
            check(lock.isHeldByCurrentThread(), "released too early");
            lock.unlock();
        }
        check(!lock.isHeldByCurrentThread(), "still held");
        // `lock` is not ended by an interrupt, and keeps it.
        Thread.currentThread().interrupt();
        lock.lock();
        lock.unlock();
        check(Thread.interrupted(), "the interrupt is lost");
        isFree(key);
    }

    void test40_runs_without_a_claim_are_bounded() {
        Unclaimed unclaimed = new Unclaimed(both().nodes);
        for (int i = 0; i < 1_000; i++) check(unclaimed.begin(), i);
        check(!unclaimed.begin(), "one more");
    }

    void test42_a_negative_duration_and_an_absent_key_are_named() {
        LatchgateClient client = both();
        Duration bad = Duration.ofSeconds(-1);
        Map<String, Callable<?>> calls = Map.of(
                "ttl", () -> options().ttl(bad), "wait", () -> options().wait(bad), "delay", () -> options().delay(bad), "minHold", () -> options().minHold(bad),
                "maxHold", () -> options().maxHold(bad), "grace", () -> client.revoke(key, null, null, bad, 0), "retention", () -> Once.options().retention(bad),
                "retryFor", () -> config().retryFor(bad), "timeout", () -> config().timeout(bad));
        calls.forEach((name, call) -> check(raises(IllegalArgumentException.class, call).getMessage().startsWith(name + " is PT-1S"), name));
        raises(IllegalArgumentException.class, () -> Once.options().ttl(bad));
        raises(IllegalArgumentException.class, () -> Once.options().wait(bad));
        for (Callable<?> call : List.<Callable<?>>of(() -> client.acquire(null), () -> client.lock(null).tryLock(), () -> new LatchgateClient.Key(null, options()))) {
            same("the key is null", raises(NullPointerException.class, call).getMessage());
        }
    }

    record Order(int id, Object amount) {}

    static final class Pojo {
        public int id = 42;
    }

    void test37_what_json_cannot_say_is_refused_with_its_path() throws Exception {
        LatchgateClient client = client("http://127.0.0.1:1"); // nothing is sent
        List<Object> circle = new ArrayList<>();
        circle.add(circle);
        Map<String, Object> refused = new HashMap<>(Map.of(
                "contents.amount is NaN", Map.of("amount", Double.NaN), "contents[1] is -Infinity", List.of(1, Float.NEGATIVE_INFINITY),
                "contents is no JSON: io.latchgate.Scenarios$Pojo", new Pojo(), "contents.amount is no JSON: java.lang.Object", new Order(42, new Object()),
                "contents[0] is no JSON: [I", List.of(new int[] {7}), "a key of contents is no text: io.latchgate.Scenarios$Pojo", Map.of(new Pojo(), 1),
                "contents.name has half of a surrogate pair", Map.of("name", "a\ud800"), "a key of contents has half", Map.of("\udc00", 1),
                "is nested too deeply", circle, "contents says nothing", ""));
        refused.put("contents says nothing:", null);
        refused.put("contents says nothing: it is null", Map.of());
        refused.put("contents says nothing: it is null or", Arrays.asList(null, List.of("")));
        refused.put("contents says nothing: it is null or empty", Map.of("order", List.of()));
        refused.put("contents is no JSON: java.util.ArrayDeque", new java.util.ArrayDeque<>(List.of(1)));
        refused.put("contents has a key twice: 1", Map.of(1, "a", "1", "b"));
        refused.forEach((path, contents) -> {
            String why = raises(IllegalArgumentException.class, () -> client.once("test", contents, attempt -> 7)).getMessage();
            check(why.contains(path), path + ", not: " + why);
        });
        raises(IllegalArgumentException.class, () -> Once.options().checked(null));
        raises(IllegalArgumentException.class, () -> client.acquire("\ud800"));
        raises(IllegalArgumentException.class, () -> client.acquire(key, options().owner("\ud800")));
        raises(IllegalArgumentException.class, () -> client.once("\ud800", 1, attempt -> 7));
        raises(NullPointerException.class, () -> options().group(null, 1));
        raises(NullPointerException.class, () -> client.once("test", 1, null));
        same("{\"id\":42,\"amount\":[1.5,\"a\",\"b\"]}", Json.write(new Order(42, List.of(1.5, "a", "b"))));
        same("[1,2,3]", Json.write(java.util.Set.of(3, 1, 2))); // a set has no order
        same(1L, options().minHold(Duration.ofNanos(30)).more.get("min_hold_ms")); // and not 0, which is none
    }

    void test_a_lock_and_a_lease_say_what_they_are() throws Exception {
        DistributedLock lock = both().lock(key);
        same("lock " + key, lock.toString());
        lock.lock();
        Lease lease = lock.lease();
        check(lock.toString().startsWith("lock " + key + ", held by this thread: lease of " + key + ", token " + lease.token() + ", owner "), lock);
        check(!lock.toString().contains(lease.id()), lock);
        lock.unlock();
        check(lease.toString().endsWith(", lost or released"), lease);
    }

    /** In a process of its own. */
    private static void first(String url, String key) throws Exception {
        DistributedLock lock = config(url).connect().lock(key);
        long before = ManagementFactory.getClassLoadingMXBean().getTotalLoadedClassCount();
        check(lock.tryLock(1, TimeUnit.SECONDS), "not free");
        System.out.println(ManagementFactory.getClassLoadingMXBean().getTotalLoadedClassCount() - before);
        lock.unlock();
    }

    void test_the_first_call_of_a_process_loads_no_classes() throws Exception {
        int loaded = Integer.parseInt(process("first", NODES).redirectError(ProcessBuilder.Redirect.INHERIT).start().inputReader().readLine());
        check(loaded < 20, loaded);
    }

    private ProcessBuilder process(String what, String url) {
        return new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp", System.getProperty("java.class.path"), "io.latchgate.Scenarios", what, url, key);
    }

    /** In a process of its own. */
    private static void unclaimed(String url, String key) throws Exception {
        config(url).retryFor(SECOND.dividedBy(10)).connect().once("test", key, Once.options().proceedOnOutage(), attempt -> 7);
    }

    void test48_a_run_that_could_not_be_entered_is_reported_when_the_process_ends() throws Exception {
        List<String> said = process("unclaimed", "http://127.0.0.1:1").start().errorReader().lines().toList();
        String last = said.get(said.size() - 1);
        check(last.startsWith("latchgate: a run of operation test without a claim is not entered: "), said);
        same(1L, said.stream().filter(line -> line.contains("is not entered")).count());
    }
}
