package io.latchgate;

import com.sun.net.httpserver.HttpServer;
import io.latchgate.LatchgateException.LeaseLost;
import io.latchgate.LatchgateException.LockHeld;
import io.latchgate.LatchgateException.NotDone;
import io.latchgate.LatchgateException.Refused;
import io.latchgate.LatchgateException.Unavailable;
import io.latchgate.LatchgateException.WaitTimeout;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** The scenarios of ../../SCENARIOS.md: the names of the tests begin with their numbers. `main` is the test runner. */
final class Scenarios extends World {
    private static final Duration SECOND = Duration.ofSeconds(1);
    private static Node nodeA, nodeB;
    private final String key = "test/" + UUID.randomUUID();

    static final class Skipped extends RuntimeException {
        Skipped(String why) { super(why); }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 3) {
            if (arguments[0].equals("first")) first(arguments[1], arguments[2]);
            else unclaimed(arguments[1], arguments[2]);
            return;
        }
        long began = System.nanoTime();
        nodeA = new Node(Map.of());
        nodeB = new Node(Map.of());
        Map<String, Callable<Void>> tests = new java.util.TreeMap<>();
        for (Method method : Scenarios.class.getDeclaredMethods()) {
            if (method.getName().startsWith("test") && (arguments.length == 0 || method.getName().contains(arguments[0]))) {
                tests.put(method.getName(), () -> { method.invoke(new Scenarios()); return null; });
            }
        }
        ExecutorService threads = Executors.newFixedThreadPool(10);
        Map<String, Future<Void>> results = new java.util.TreeMap<>();
        // Alone, because the clock steps for all.
        String alone = "test24_the_machine_was_suspended_for_longer_than_the_lease";
        if (tests.containsKey(alone)) {
            Future<Void> first = threads.submit(tests.remove(alone));
            results.put(alone, first);
            try { first.get(); } catch (java.util.concurrent.ExecutionException below) { Clock.stepped = 0; }
        }
        tests.forEach((name, test) -> results.put(name, threads.submit(test)));
        int failed = 0, skipped = 0;
        for (Map.Entry<String, Future<Void>> entry : results.entrySet()) {
            try {
                entry.getValue().get();
                System.out.println("ok      " + entry.getKey());
            } catch (java.util.concurrent.ExecutionException failure) {
                Throwable cause = failure.getCause().getCause() == null ? failure.getCause() : failure.getCause().getCause();
                System.out.println((cause instanceof Skipped ? "skipped " : "FAILED  ") + entry.getKey() + ": " + cause);
                if (cause instanceof Skipped) {
                    skipped++;
                } else {
                    failed++;
                    cause.printStackTrace(System.out);
                }
            }
        }
        System.out.printf("Ran %d tests in %d s%n%n", results.size(), (System.nanoTime() - began) / 1_000_000_000);
        System.out.printf(failed > 0 ? "FAILED (failures=%d, skipped=%d)%n" : "OK (failures=%d, skipped=%d)%n", failed, skipped);
        System.exit(failed > 0 ? 1 : 0);
    }

    private static LatchgateClient both() { return client(nodeA.url, nodeB.url); }

    private static LockOptions options() { return LockOptions.of(); }

    private void isHeld(LatchgateClient client, String key, LockOptions options) throws Exception {
        raises(LockHeld.class, () -> client.acquire(key, options.wait(Duration.ZERO)));
    }

    private void isFree(String key) throws Exception {
        eventually(key + " is free", () -> !Answer.is(nodeB.lock(key), "held") && waiters(nodeB, key) == 0);
    }

    private static long waiters(Node node, String key) throws Exception { return Answer.number(node.lock(key), "waiters"); }

    void test01_a_lease_is_renewed_for_longer_than_its_ttl() throws Exception {
        LatchgateClient other = client(nodeB.url);
        try (Lease lease = client(nodeA.url).acquire(key, options().ttl(SECOND.multipliedBy(6)))) {
            for (long until = System.nanoTime() + 12_500_000_000L; System.nanoTime() < until; Thread.sleep(100)) {
                isHeld(other, key, options());
                lease.check();
            }
            same(lease.token(), nodeB.token(key));
        }
        isFree(key);
    }

    void test02_a_waiter_gets_the_lock_when_it_is_released() throws Exception {
        Lease first = client(nodeA.url).acquire(key);
        CompletableFuture<Lease> second = background(() -> client(nodeB.url).acquire(key));
        eventually("it waits", () -> waiters(nodeB, key) == 1);
        first.release();
        try (Lease lease = result(second)) {
            check(lease.token() > first.token() && lease.remaining().toSeconds() > 15, lease);
        }
    }

    void test03_a_long_wait_goes_on_with_tickets() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        Lease first = client(nodeB.url).acquire(key);
        CompletableFuture<Lease> second = background(() -> client(proxy.url).acquire(key, options().ttl(Duration.ofMillis(1500))));
        eventually("two tickets", () -> proxy.requests("/acquire").stream().filter(one -> one.body().containsKey("ticket")).count() >= 2);
        first.release();
        result(second).release();
        same(1L, proxy.requests("/acquire").stream().map(one -> one.body().get("lease_id")).distinct().count());
    }

    void test03_a_wait_that_ends_names_the_holders() throws Exception {
        Lease lease = client(nodeB.url).acquire(key, options().owner("first"));
        LatchgateClient client = both();
        List<CompletableFuture<WaitTimeout>> waits = new ArrayList<>(); // also those that wait for their turn in this process
        for (int i = 0; i < 3; i++) {
            waits.add(background(() -> raises(WaitTimeout.class, () -> client.acquire(key, options().ttl(Duration.ofMillis(1500)).wait(Duration.ofMillis(1200))))));
        }
        for (CompletableFuture<WaitTimeout> wait : waits) {
            same("first", result(wait).holders().get(0).get("owner"));
            same(423, result(wait).status);
        }
        Proxy proxy = new Proxy(nodeA);
        proxy.refuses.set(1); // also if an outage takes all of the wait
        raises(WaitTimeout.class, () -> client(proxy.url).acquire(key, options().wait(SECOND.dividedBy(2))));
        lease.release();
        isFree(key);
    }

    void test03_a_node_that_ends_waits_at_once_is_left_for_another_one() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        proxy.endsWaits = true;
        Lease first = client(nodeB.url).acquire(key);
        CompletableFuture<Lease> second = background(() -> client(proxy.url, nodeB.url).acquire(key));
        eventually("it waits at the other", () -> nodeB.owners("waiting", key).size() == 1);
        first.release();
        result(second).release();
        check(!proxy.requests("/acquire").isEmpty(), "the proxy was not asked");
    }

    void test04_a_node_is_killed_while_a_lease_is_held() throws Exception {
        Node a = new Node(Map.of()), b = new Node(Map.of());
        survives(a, b, () -> { a.kill(); return null; });
    }

    void test06_a_node_freezes_while_a_lease_is_held() throws Exception {
        Node a = new Node(Map.of()), b = new Node(Map.of());
        survives(a, b, () -> { a.freeze(); return null; });
    }

    private void survives(Node a, Node b, Callable<Void> harm) throws Exception {
        try (Lease lease = client(a.url, b.url).acquire(key, options().ttl(SECOND.multipliedBy(9)))) {
            harm.call();
            untilRenewed(lease);
            same(lease.token(), b.token(key));
        }
        isFree(key);
    }

    void test05_the_position_in_the_queue_survives_the_node() throws Exception {
        Node a = new Node(Map.of()), b = new Node(Map.of());
        Proxy proxy = new Proxy(a);
        Lease holder = client(b.url).acquire(key);
        CompletableFuture<Lease> first = background(() -> client(proxy.url, b.url).acquire(key, options().owner("first")));
        eventually("it has a ticket", () -> proxy.requests("/acquire").stream().anyMatch(one -> one.body().containsKey("ticket")));
        CompletableFuture<Lease> second = background(() -> client(b.url).acquire(key, options().owner("second")));
        eventually("both wait", () -> waiters(b, key) == 2);
        a.kill();
        eventually("both wait at B", () -> b.owners("waiting", key).size() == 2);
        holder.release();
        try (Lease lease = result(first)) {
            // Between two of its requests, a waiter is not in the list.
            eventually("second still waits", () -> List.of("second").equals(b.owners("waiting", key)));
        }
        result(second).release();
    }

    void test07_every_node_freezes_for_longer_than_the_ttl() throws Exception {
        Node a = new Node(Map.of()), b = new Node(Map.of());
        Lease lease = client(a.url, b.url).acquire(key, options().ttl(SECOND.multipliedBy(2)).interruptOnLoss());
        a.freeze();
        b.freeze();
        raises(InterruptedException.class, () -> { Thread.sleep(60_000); return null; });
        check(Clock.now() >= lease.keeper.until(), "too early");
        same("unanswered", ((LeaseLost) lost(lease)).why());
        raises(LeaseLost.class, () -> { lease.check(); return null; });
        raises(LeaseLost.class, () -> { lease.close(); return null; });
    }

    void test08_a_lease_is_ended_by_force() throws Exception {
        LeaseLost loss = raises(LeaseLost.class, () -> {
            try (Lease lease = both().acquire(key, options().ttl(SECOND.multipliedBy(3)))) {
                nodeB.force(key);
                return lost(lease);
            }
        });
        same("forced", loss.why());
        same(410, loss.status);
        Lease lease = both().acquire(key);
        nodeB.force(key);
        same("forced", raises(LeaseLost.class, () -> { lease.release(); return null; }).why());
    }

    void test09_the_answer_to_an_acquire_is_lost() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        proxy.loses.put("acquire", 1);
        try (Lease lease = client(proxy.url, nodeB.url).acquire(key)) {
            same(lease.token(), nodeB.token(key));
            same(1, nodeB.owners("holders", key).size());
            same(lease.id(), proxy.requests("/acquire").get(0).body().get("lease_id"));
        }
        isFree(key);
    }

    void test10_the_answers_to_a_renewal_and_a_release_are_lost() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        Lease lease = client(proxy.url).acquire(key, options().ttl(SECOND.multipliedBy(6)));
        proxy.loses.put("renew", 1);
        eventually("the renewal is repeated", () -> proxy.requests("/renew").size() == 2);
        lease.check();
        proxy.loses.put("release", 1);
        lease.release();
        same(2, proxy.requests("/release").size());
        isFree(key);
    }

    void test11_nothing_is_left_behind() throws Exception {
        LatchgateClient client = both();
        raises(ArithmeticException.class, () -> {
            try (Lease lease = client.acquire(key)) {
                throw new ArithmeticException();
            }
        });
        isFree(key);
        try (Lease lease = client(nodeB.url).acquire(key)) {
            DistributedLock lock = client.lock(key);
            CompletableFuture<Thread> waiting = new CompletableFuture<>();
            CompletableFuture<Object> ended = background(() -> {
                waiting.complete(Thread.currentThread());
                return raises(InterruptedException.class, () -> { lock.lockInterruptibly(); return null; });
            });
            eventually("it waits", () -> waiters(nodeB, key) == 1);
            result(waiting).interrupt();
            result(ended);
            eventually("it waits no more", () -> waiters(nodeB, key) == 0);
        }
        client.acquire(key, options().ttl(SECOND.dividedBy(2))); // nobody releases this one
        eventually("it expires", () -> { System.gc(); return !Answer.is(nodeB.lock(key), "held"); });
    }

    void test11_an_acquire_that_may_have_been_granted_is_given_back() throws Exception {
        for (boolean hides : List.of(false, true)) {
            Proxy proxy = new Proxy(nodeA);
            proxy.loses.put("acquire", 1000);
            proxy.hides = hides;
            LatchgateClient client = config(proxy.url).retryFor(SECOND).connect();
            raises(Unavailable.class, () -> client.acquire(key));
            eventually("it is released", () -> !proxy.requests("/release").isEmpty());
            isFree(key);
        }
    }

    void test11_a_lease_that_has_ended_before_its_answer_is_taken_again() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        proxy.late.set(1);
        try (Lease lease = client(proxy.url).acquire(key, options().ttl(SECOND).interruptOnLoss())) {
            lease.check();
            check(!Thread.interrupted(), "interrupted for a lease that the caller never had");
            same(2, proxy.requests("/acquire").size());
        }
        isFree(key);
    }

    void test11_the_lease_of_a_thread_that_has_ended_expires() throws Exception {
        LatchgateClient client = both();
        result(background(() -> { client.lock(key, options().ttl(SECOND.dividedBy(2))).lock(); return 0; }));
        eventually("it expires", () -> { System.gc(); return !Answer.is(nodeB.lock(key), "held"); });
        raises(IllegalMonitorStateException.class, () -> { client.lock(key).unlock(); return null; });
    }

    void test12_shared_leases_and_permits() throws Exception {
        LatchgateClient client = both();
        try (Lease one = client.acquire(key, options().shared()); Lease two = client.acquire(key, options().shared())) {
            isHeld(client, key, options());
        }
        String permits = key + "/permits";
        try (Lease one = client.acquire(permits, options().permits(2, 3)); Lease two = client.acquire(permits, options().permits(1, 0))) {
            same(List.of(0, 1), one.slots());
            same(List.of(2), two.slots());
            isHeld(client, permits, options().permits(1, 3));
        }
        isFree(permits);
    }

    void test12_a_group_has_no_more_permits_than_its_limit() throws Exception {
        LatchgateClient client = both();
        try (Lease lease = client.acquire(key, options().permits(1, 3).group("a", 1))) {
            isHeld(client, key, options().permits(1, 3).group("a", 1));
            client.acquire(key, options().permits(1, 3).group("b", 1)).release();
        } catch (Refused refused) {
            if (refused.getMessage().contains("unknown field `group`")) throw new Skipped("this node knows no groups");
            throw refused;
        }
        isFree(key);
    }

    void test12_a_multilock_is_renewed_and_released_as_one() throws Exception {
        LatchgateClient client = both();
        String other = key + "/other";
        List<LatchgateClient.Key> keys = List.of(new LatchgateClient.Key(key, options()), new LatchgateClient.Key(other, options().shared()));
        try (Lease lease = client.multilock(keys, options().ttl(SECOND.multipliedBy(6)))) {
            untilRenewed(lease);
            same(java.util.Set.of(key, other), lease.tokens().keySet());
            isHeld(client, key, options());
            client.acquire(other, options().shared()).release();
        }
        isFree(key);
        Lease lease = client.multilock(keys, options().ttl(SECOND.multipliedBy(6)));
        nodeA.force(other);
        same("forced", ((LeaseLost) lost(lease)).why());
        raises(LeaseLost.class, () -> { lease.close(); return null; });
        isFree(key);
    }

    void test13_the_holder_sees_a_revocation() throws Exception {
        LatchgateClient client = both();
        same(0L, client.revoke(key, null).leases());
        try (Lease lease = client.acquire(key, options().ttl(SECOND.multipliedBy(3)))) {
            check(lease.revocation() == null, "revoked");
            LatchgateClient.Revoking revoking = client.revoke(key, "hotfix", "ann", SECOND.multipliedBy(30), lease.token());
            same(1L, revoking.leases());
            eventually("the revocation", () -> lease.revocation() != null);
            same(new Lease.Revocation(revoking.deadline(), "hotfix", "ann"), lease.revocation());
        }
    }

    void test46_a_holder_that_ignores_a_revocation_learns_why_its_lease_has_ended() throws Exception {
        LatchgateClient client = both();
        LockOptions options = options().ttl(SECOND.multipliedBy(3));
        for (List<String> keys : List.of(List.of(key), List.of(key, key + "/2"))) {
            Lease lease = client.multilock(keys.stream().map(one -> new LatchgateClient.Key(one, options())).toList(), options);
            client.revoke(key, "hotfix", "ann", SECOND.multipliedBy(2), lease.token());
            LeaseLost loss = (LeaseLost) lost(lease);
            same("revoked", loss.why());
            check(loss.status != 0 || loss.getMessage().contains("ann has revoked the lease of"), loss);
            raises(LeaseLost.class, () -> { lease.release(); return null; });
        }
    }

    void test14_parallel_callers_run_the_work_once() throws Exception {
        AtomicInteger runs = new AtomicInteger();
        List<CompletableFuture<Once.Done>> calls = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            LatchgateClient client = client(i % 2 == 0 ? nodeA.url : nodeB.url);
            calls.add(background(() -> client.once("charge", Map.of("order", key), attempt -> Map.of("receipt", 6 + runs.incrementAndGet()))));
        }
        int first = 0;
        for (CompletableFuture<Once.Done> call : calls) {
            same("{\"receipt\":7}", Json.write(result(call).result()));
            if (!result(call).duplicate()) first++;
        }
        same(1, first);
        same(1, runs.get());
    }

    void test15_a_duplicate_gets_the_stored_result_or_none() throws Exception {
        same(new Once.Done("receipt 7", false, false), both().once("charge", key, attempt -> "receipt 7"));
        same(new Once.Done("receipt 7", true, false), both().once("charge", key, attempt -> "receipt 8"));
        for (Object result : List.of(new Object(), new Pojo(), Double.NaN, "x".repeat(200_000), "x".repeat(80_000), "\0".repeat(20_000))) {
            String contents = key + result.hashCode();
            same(new Once.Done(result, false, true), both().once("test", contents, attempt -> result));
            Once.Done again = both().once("test", contents, attempt -> "again");
            check(again.result() == null && again.duplicate() && again.resultOmitted(), again);
        }
        both().once("test", key + "/record", attempt -> new Order(42, "19.90"));
        same(Map.of("id", 42L, "amount", "19.90"), both().once("test", key + "/record", attempt -> 7).result());
    }

    void test16_work_that_fails_may_run_again_unless_its_outcome_is_unknown() throws Exception {
        LatchgateClient client = both();
        Once.Work<RuntimeException> fails = attempt -> { throw new ArithmeticException(); };
        raises(ArithmeticException.class, () -> client.once("retry", key, Once.options().retry(), fails));
        same(1, client.once("retry", key, Once.options().retry(), attempt -> 1).result());
        raises(NotDone.class, () -> client.once("block", key, attempt -> { throw new NotDone("no card"); }));
        raises(ArithmeticException.class, () -> client.once("block", key, fails));
        same("reported", raises(LatchgateException.OperationUnknown.class, () -> client.once("block", key, attempt -> 1)).fields.get("why"));
    }

    void test17_heartbeats_keep_the_attempt() throws Exception {
        client(nodeA.url).once("test", key, Once.options().ttl(SECOND.multipliedBy(6)), (Once.Work<Exception>) attempt -> {
            for (int beats = 0; beats < 4; beats++) {
                long from = Clock.now();
                eventually("a heartbeat", () -> attempt.keeper.sent() >= from);
                raises(LatchgateException.OperationInProgress.class, () -> client(nodeB.url).once("test", key, Once.options().wait(Duration.ZERO), other -> 0));
                attempt.check();
            }
            return 4;
        });
    }

    void test18_the_answers_to_a_pre_and_a_post_are_lost() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        proxy.loses.put("pre", 1);
        proxy.loses.put("post", 1);
        AtomicInteger runs = new AtomicInteger();
        check(!client(proxy.url).once("test", key, attempt -> runs.incrementAndGet()).duplicate(), "a duplicate");
        List<Seen> pres = proxy.requests("/pre");
        same(List.of(2, 2), List.of(pres.size(), proxy.requests("/post").size()));
        same(pres.get(0).body().get("attempt_id"), pres.get(1).body().get("attempt_id"));
        same(new Once.Done(1L, true, false), both().once("test", key, attempt -> runs.incrementAndGet()));
    }

    void test19_a_node_is_killed_while_the_work_runs() throws Exception {
        Node a = new Node(Map.of()), b = new Node(Map.of());
        same("done", client(a.url, b.url).once("test", key, attempt -> { a.kill(); return "done"; }).result());
        same(new Once.Done("done", true, false), client(b.url).once("test", key, attempt -> "again"));
    }

    void test20_a_refusal_has_its_code_and_its_fields() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        LatchgateClient client = client(proxy.url);
        Refused refused = raises(Refused.class, () -> client.acquire("key\n"));
        same("400 invalid-key", refused.status + " " + refused.code);
        try (Lease lease = client.acquire(key, options().permits(1, 2))) {
            refused = raises(Refused.class, () -> client.acquire(key, options().permits(1, 3)));
            same("limit-mismatch 2", refused.code + " " + refused.fields.get("limit"));
        }
        same(3, proxy.requests("/acquire").size());
    }

    void test20_an_api_key_is_needed_where_there_is_one() throws Exception {
        Process generate = new ProcessBuilder(System.getenv("CLIENT_BINARY"), "api-key", "generate").start();
        String apiKey = generate.inputReader().readLine();
        Node node = new Node(Map.of("LATCHGATE_ADMIN_API_KEY", apiKey), "--locks", "sqlite:locks.db");
        same(401, raises(Refused.class, () -> client(node.url).acquire(key)).status);
        config(node.url).apiKey(apiKey).connect().acquire(key + "/ü %2F?#\uD83D\uDE00+").release();
    }

    void test21_no_node_answers() throws Exception {
        Node a = new Node(Map.of()), b = new Node(Map.of());
        a.kill();
        b.freeze();
        LatchgateClient client = config(a.url, b.url).timeout(Duration.ofMillis(300)).retryFor(SECOND).connect();
        raises(Unavailable.class, () -> client.acquire(key));
    }

    void test21_a_failure_to_connect_says_why_and_where() {
        for (String[] bad : new String[][] {{"127.0.0.1:1", "cannot connect: "}, {"no-such-host.invalid:7070", "the name of the host is not known: "}}) {
            LatchgateClient client = config("http://" + bad[0]).retryFor(SECOND).connect();
            String detail = raises(Unavailable.class, () -> client.acquire(key)).getMessage();
            check(detail.contains(bad[1] + bad[0]), detail);
        }
    }

    void test21_a_failure_says_more_than_the_silence_after_it() throws Exception {
        try (ServerSocket server = new ServerSocket(0)) {
            // The first connection is closed. Later ones are accepted by the system, and nothing answers there.
            background(() -> { server.accept().close(); return null; });
            LatchgateClient client = config("http://127.0.0.1:" + server.getLocalPort()).retryFor(SECOND).connect();
            String detail = raises(Unavailable.class, () -> client.acquire(key)).getMessage();
            check(!detail.contains("no answer in time"), detail);
        }
    }

    void test22_a_node_that_is_busy_is_called_again_after_its_time() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        proxy.refuses.set(2);
        client(proxy.url).acquire(key).release();
        List<Seen> calls = proxy.requests("/acquire");
        same(3, calls.size());
        check(calls.get(1).at() - calls.get(0).at() >= 1e9 && calls.get(2).at() - calls.get(1).at() >= 1e9, calls);
    }

    void test45_a_wait_goes_on_while_a_quota_is_used_up() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        Duration retryFor = Duration.ofMillis(300);
        proxy.thenRefuses.put("acquire", 430); // 429 quota-reached
        LatchgateClient client = config(proxy.url).retryFor(retryFor).connect();
        CompletableFuture<Lease> waiting = background(() -> client.acquire(key, options().wait(PATIENCE)));
        eventually("calls for longer", () -> {
            List<Seen> calls = proxy.requests("/acquire");
            return waiting.isDone() || !calls.isEmpty() && calls.get(calls.size() - 1).at() - calls.get(0).at() > 3 * retryFor.toNanos();
        });
        proxy.thenRefuses.clear();
        Lease lease = result(waiting);
        try {
            lease.release();
        } catch (Unavailable late) { // 0.3 s may be too short for this machine
        }
    }

    void test23_a_claim_in_doubt_is_given_back() throws Exception {
        for (int refusal : List.of(0, 504, 429, 500, 401)) {
            Proxy proxy = new Proxy(nodeA);
            String contents = key + refusal;
            proxy.hides = refusal == 504;
            boolean isForever = refusal == 0 || proxy.hides;
            proxy.loses.put("pre", isForever ? 1_000_000 : 1);
            if (!isForever) proxy.thenRefuses.put("pre", refusal);
            LatchgateClient client = config(proxy.url).retryFor(SECOND).connect();
            Once.Options now = Once.options().wait(Duration.ZERO);
            raises(LatchgateException.class, () -> client.once("test", contents, now, attempt -> { throw new AssertionError("it runs"); }));
            proxy.loses.clear();
            proxy.thenRefuses.clear();
            eventually("the operation is free after " + refusal, () -> {
                try {
                    return client(nodeA.url).once("test", contents, now, attempt -> 7).result().equals(7);
                } catch (LatchgateException error) {
                    return false;
                }
            });
        }
    }

    void test24_the_machine_was_suspended_for_longer_than_the_lease() throws Exception {
        Lease lease = both().acquire(key, options().ttl(SECOND.multipliedBy(300)));
        CompletableFuture<Object> loss = new CompletableFuture<>();
        lease.onLoss(loss::complete);
        Clock.stepped = 301_000_000_000L;
        loss.get(1, TimeUnit.SECONDS);
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
        nodeB.force(key);
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

    void test26_the_leases_of_a_client_are_renewed_together() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        LatchgateClient client = client(proxy.url);
        List<Lease> leases = new ArrayList<>();
        for (int i = 0; i < 20; i++) leases.add(client.acquire(key + "/" + i, options().ttl(SECOND.multipliedBy(6))));
        untilRenewed(leases.toArray(new Lease[0]));
        untilRenewed(leases.toArray(new Lease[0]));
        check(proxy.requests("/renew").size() < 12, proxy.requests("/renew").size());
        Lease forced = leases.remove(7);
        nodeB.force(forced.key());
        same("forced", ((LeaseLost) lost(forced)).why());
        untilRenewed(leases.toArray(new Lease[0]));
        leases.forEach(Lease::release);
    }

    void test26_no_request_has_more_leases_than_a_node_accepts() {
        List<Keeper> keepers = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            List<Map<String, Object>> leases = java.util.Collections.nCopies(60, Map.of());
            Keeper keeper = new Keeper("k", null, leases, 1);
            keeper.settle(new Answer(0, 200, Map.of("ttl_ms", 1L), false), Map.of(), 1);
            keepers.add(keeper);
        }
        same(List.of(8, 8, 4), Renewals.batches(keepers).stream().map(List::size).toList());
        keepers.clear();
        for (int i = 0; i < 20; i++) {
            Keeper keeper = new Keeper("k", null, List.of(Map.of("key", "k".repeat(99_000))), 1);
            keeper.settle(new Answer(0, 200, Map.of("ttl_ms", 1L), false), Map.of(), 1);
            keepers.add(keeper);
        }
        same(List.of(5, 5, 5, 5), Renewals.batches(keepers).stream().map(List::size).toList()); // nor more bytes than a proxy takes
    }

    void test27_a_lease_whose_renewal_hangs_takes_no_other_with_it() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        LatchgateClient client = client(proxy.url);
        Lease[] leases = new Lease[4];
        for (int i = 0; i < 4; i++) leases[i] = client.acquire(key + "/" + i, options().ttl(SECOND.multipliedBy(9)));
        proxy.hangs = leases[0].id();
        same("unanswered", ((LeaseLost) lost(leases[0])).why());
        Lease[] others = Arrays.copyOfRange(leases, 1, 4);
        untilRenewed(others);
        for (Lease lease : others) lease.release();
    }

    void test28_each_call_ends_in_time_when_no_node_answers() throws Exception {
        Node a = new Node(Map.of()), b = new Node(Map.of());
        LatchgateClient client = new LatchgateClient.Config().urls(a.url, b.url).connect();
        Lease lease = client.acquire(key, options().ttl(SECOND.multipliedBy(50)));
        a.freeze();
        b.freeze();
        Callable<Object> locks = () -> client.acquire(key, options().wait(SECOND.multipliedBy(600)));
        List<CompletableFuture<Long>> calls = new ArrayList<>();
        for (Callable<Object> call : List.<Callable<Object>>of(locks, locks, locks, // also those behind another one of this process
                () -> client.once("test", key, Once.options().ttl(SECOND.multipliedBy(5)), attempt -> 7),
                () -> { client.fence(key, lease.token()); return null; },
                () -> { lease.release(); return null; })) {
            calls.add(background(() -> {
                long began = System.nanoTime();
                raises(Unavailable.class, call);
                return System.nanoTime() - began;
            }));
        }
        for (CompletableFuture<Long> call : calls) check(result(call) < 10e9, result(call));
    }

    void test29_a_lock_stays_taken_for_its_shortest_hold() throws Exception {
        both().acquire(key, options().minHold(SECOND.multipliedBy(600))).release();
        same("lock-delayed", raises(LockHeld.class, () -> both().acquire(key, options().wait(Duration.ZERO))).code);
        nodeB.force(key);
    }

    void test31_a_token_that_is_too_low_does_not_pass() throws Exception {
        LatchgateClient client = both();
        Lease first = client.acquire(key);
        client.fence(key, first.token());
        first.release();
        try (Lease second = client.acquire(key)) {
            LatchgateException.StaleToken stale = raises(LatchgateException.StaleToken.class, () -> { client.fence(key, first.token()); return null; });
            same(412 + " " + second.token(), stale.status + " " + stale.current());
        }
    }

    void test32_one_thread_of_a_process_stands_in_the_queue() throws Exception {
        LatchgateClient client = both();
        Lease holder = client(nodeB.url).acquire(key);
        List<CompletableFuture<Long>> tokens = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            tokens.add(background(() -> {
                try (Lease lease = client.acquire(key)) {
                    return lease.token();
                }
            }));
        }
        eventually("all wait here", () -> client.queues.values().stream().anyMatch(queue -> queue.callers == 8));
        eventually("one waits there", () -> waiters(nodeB, key) == 1);
        CompletableFuture<Lease> remote = background(() -> client(nodeB.url).acquire(key));
        eventually("another process waits", () -> waiters(nodeB, key) == 2);
        holder.release();
        Lease lease = result(remote);
        lease.release();
        int earlier = 0;
        for (CompletableFuture<Long> token : tokens) if (result(token) < lease.token()) earlier++;
        same(1, earlier); // and not all eight before the other process
        isFree(key);
    }

    void test32_a_thread_has_a_ticket_soon_after_its_turn() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        LatchgateClient client = client(proxy.url);
        Lease holder = client(nodeB.url).acquire(key);
        CompletableFuture<Thread> first = new CompletableFuture<>();
        CompletableFuture<Object> ended = background(() -> {
            first.complete(Thread.currentThread());
            return raises(InterruptedException.class, () -> client.acquire(key));
        });
        eventually("the first waits there", () -> waiters(nodeB, key) == 1);
        CompletableFuture<Lease> second = background(() -> client.acquire(key));
        eventually("the second waits here", () -> client.queues.values().stream().anyMatch(queue -> queue.callers == 2));
        result(first).interrupt();
        result(ended);
        Object firstId = proxy.requests("/acquire").get(0).body().get("lease_id");
        List<Map<String, Object>> waits = new ArrayList<>();
        eventually("the second has a ticket", () -> {
            waits.clear();
            for (Seen one : proxy.requests("/acquire")) {
                if (!one.body().get("lease_id").equals(firstId) && one.body().containsKey("wait_ms")) waits.add(one.body());
            }
            return waits.size() > 1 && waits.get(waits.size() - 1).containsKey("ticket");
        });
        check(Answer.number(waits.get(0), "wait_ms") <= 500, waits);
        holder.release();
        result(second).release();
    }

    void test40_with_proceed_the_work_runs_in_an_outage_and_is_entered_afterwards() throws Exception {
        for (boolean isStore : List.of(true, false)) {
            Proxy proxy = new Proxy(nodeA);
            String contents = key + isStore;
            LatchgateClient client = config(proxy.url).retryFor(SECOND).connect();
            proxy.away(isStore);
            raises(Unavailable.class, () -> client.once("test", contents + "/closed", attempt -> { throw new AssertionError("it runs"); }));
            Once.Done done = client.once("test", contents, Once.options().proceedOnOutage().checked(7).label("a label"), attempt -> {
                attempt.check();
                return attempt.isGuarded() ? 0 : 7;
            });
            same(new Once.Done(7, false, false), done);
            eventually("it is being entered", () -> !proxy.requests("/enter").isEmpty());
            proxy.back();
            eventually("it is entered", () -> {
                try {
                    return both().once("test", contents, Once.options().checked(7).retry(), attempt -> { throw new NotDone("not entered yet"); }).result().equals(7L);
                } catch (NotDone notYet) {
                    return false;
                }
            });
        }
    }

    void test40_with_proceed_a_success_that_no_node_records_is_entered_afterwards() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        LatchgateClient client = config(proxy.url).retryFor(SECOND.multipliedBy(5)).connect();
        same(7, client.once("test", key, Once.options().proceedOnOutage().ttl(SECOND.multipliedBy(5)), attempt -> {
            proxy.thenRefuses.put("post", 503);
            return attempt.isGuarded() ? 7 : 0;
        }).result());
        eventually("it is entered", () -> {
            try {
                return both().once("test", key, Once.options().wait(Duration.ZERO), attempt -> 8).result().equals(7L);
            } catch (LatchgateException notYet) {
                return false;
            }
        });
    }

    void test40_a_run_without_a_claim_that_fails_is_reported_if_it_may_have_claimed() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        LatchgateClient client = config(proxy.url).retryFor(SECOND).connect();
        Once.Work<RuntimeException> fails = attempt -> { throw new ArithmeticException("no money"); };
        proxy.away(true);
        raises(ArithmeticException.class, () -> client.once("test", key, Once.options().proceedOnOutage(), fails));
        proxy.back();
        proxy.away(false);
        raises(ArithmeticException.class, () -> client.once("test", key, Once.options().proceedOnOutage(), fails)); // and was not blocked by the first one
        proxy.back();
        eventually("a person must decide", () -> {
            try {
                return both().once("test", key, Once.options().wait(Duration.ZERO), attempt -> { throw new AssertionError("it runs"); }) == null;
            } catch (LatchgateException.OperationInProgress notYet) {
                return false;
            } catch (LatchgateException.OperationUnknown unknown) {
                return true;
            }
        });
    }

    void test40_no_work_runs_without_a_claim_beside_an_attempt_that_is_known() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        proxy.endsWaits = true;
        client(nodeB.url).once("test", key, (Once.Work<Exception>) mine -> {
            CompletableFuture<Unavailable> ended = background(() -> raises(Unavailable.class, () -> config(proxy.url).retryFor(SECOND.multipliedBy(3)).connect()
                    .once("test", key, Once.options().proceedOnOutage().wait(SECOND.multipliedBy(5)), attempt -> { throw new AssertionError("it runs"); })));
            eventually("it waits", () -> proxy.requests("/pre").size() > 1);
            proxy.away(true);
            same("store-unavailable", result(ended).code);
            return 7;
        });
    }

    void test40_runs_without_a_claim_are_bounded() {
        Unclaimed unclaimed = new Unclaimed(both().nodes);
        for (int i = 0; i < 1_000; i++) check(unclaimed.begin(), i);
        check(!unclaimed.begin(), "one more");
    }

    void test38_a_person_who_must_decide_reads_how_the_work_ended() throws Exception {
        for (String message : List.of("no money", "\ud800".repeat(5_000))) {
            String contents = key + message.length();
            raises(ArithmeticException.class, () -> both().once("test", contents, attempt -> { throw new ArithmeticException(message); }));
            Object id = raises(LatchgateException.OperationUnknown.class, () -> both().once("test", contents, attempt -> 7)).fields.get("id");
            String detail = String.valueOf(nodeA.operation(id).get("detail"));
            check(detail.matches("java.lang.ArithmeticException: (no money|\\?+)\nThe last heartbeat that was answered was sent \\d+ s before this report\\."), detail);
        }
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

    void test39_what_can_be_refused_is_refused_before_the_work() {
        for (Once.Options options : List.of(Once.options().retention(Duration.ofDays(7_300)), Once.options().retention(SECOND).permanent(), Once.options().label("l".repeat(300)))) {
            raises(Refused.class, () -> both().once("test", key, options, attempt -> { throw new AssertionError("it runs"); }));
        }
    }

    record Order(int id, Object amount) {}

    static final class Pojo {
        public int id = 42;
    }

    void test37_what_json_cannot_say_is_refused_with_its_path() throws Exception {
        Proxy proxy = new Proxy(nodeA);
        LatchgateClient client = client(proxy.url);
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
        same(0, proxy.seen.size());
        same("{\"id\":42,\"amount\":[1.5,\"a\",\"b\"]}", Json.write(new Order(42, List.of(1.5, "a", "b"))));
        same("[1,2,3]", Json.write(java.util.Set.of(3, 1, 2))); // a set has no order
        same(1L, options().minHold(Duration.ofNanos(30)).more.get("min_hold_ms")); // and not 0, which is none
    }

    void test41_what_cannot_reach_a_node_is_said_at_construction_without_its_secrets() {
        for (String apiKey : List.of("lgk_0123\nlgk_4567", "Bearer lgk_0123", "lgk_0123 c", "\"lgk_0123\"", "lgk_\u00fc0123", "0123", "lgk_0123\0")) {
            String why = raises(IllegalArgumentException.class, () -> config(nodeA.url).apiKey(apiKey).connect()).toString();
            check(!why.contains("0123"), why);
        }
        Nodes nodes = config(" http://a:1/ , ,https://b/x/", "http://c,\n").apiKey(" lgk_0123_c0ffee\r\n").connect().nodes;
        same(3, nodes.count);
        for (String url : List.of("", " , ", "localhost:7070", "ftp://a", "/v1", "http://ann:secret@a", "http://a?x", "http://a,b", "http://a\nb")) {
            String why = raises(IllegalArgumentException.class, () -> config(url).connect()).toString();
            check(!why.contains("secret"), why);
        }
    }

    void test43_the_authorities_in_latchgate_ca_are_trusted() throws Exception {
        String files = System.getenv("CLIENT_TLS");
        Node node = new Node(Map.of(), "--tls-cert", files + "/cert.pem", "--tls-key", files + "/key.pem");
        client(node.url).acquire(key).release();
        String said = raises(Refused.class, () -> client(node.url.replace("https:", "http:")).acquire(key)).getMessage();
        check(said.contains("serves HTTPS"), said);
        for (String file : List.of("/absent.pem", "/key.pem")) {
            LatchgateClient.Config wrong = config(node.url);
            wrong.environment = Map.of("LATCHGATE_CA", files + file);
            said = raises(IllegalArgumentException.class, wrong::connect).getMessage();
            check(said.contains("LATCHGATE_CA"), said);
        }
        LatchgateClient.Config ofSystem = config(node.url).retryFor(Duration.ofMillis(500));
        ofSystem.environment = Map.of();
        raises(Unavailable.class, () -> ofSystem.connect().acquire(key)); // whose authorities do not know it
        node.kill();
    }

    void test44_a_variable_that_is_set_and_empty_is_no_default() {
        for (String empty : List.of("", " \n")) {
            LatchgateClient.Config config = new LatchgateClient.Config();
            config.environment = Map.of("LATCHGATE_URL", empty);
            same("LATCHGATE_URL is set and empty", raises(IllegalArgumentException.class, config::connect).getMessage());
            config.urls("http://a").connect(); // does not read it
            config.environment = Map.of("LATCHGATE_CA", empty);
            same("LATCHGATE_CA is set and empty", raises(IllegalArgumentException.class, config::connect).getMessage());
            config.http(java.net.http.HttpClient.newHttpClient()).connect();
        }
    }

    void test33_an_answer_about_another_key_grants_nothing() throws Exception {
        for (List<String> keys : List.of(List.of("a//b", "a/b"), List.of("a/../b", "b"), List.of("a b", "a+b"), List.of("\u00fc", "u\u0308"), List.of("a/", "a"))) {
            String asked = key + keys.get(0), merged = key + "'" + keys.get(1);
            Proxy proxy = new Proxy(nodeA);
            proxy.from = LatchgateClient.path(asked, "");
            proxy.into = LatchgateClient.path(merged, "");
            LatchgateClient client = client(proxy.url);
            same("other-key", raises(Refused.class, () -> client.acquire(asked)).code);
            isFree(merged);
            try (Lease lease = both().acquire(merged)) {
                same("other-key", raises(Refused.class, () -> { client.fence(asked, lease.token()); return null; }).code);
                same("other-key", raises(Refused.class, () -> client.revoke(asked, null)).code);
            }
        }
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
        int loaded = Integer.parseInt(process("first", nodeA.url).redirectError(ProcessBuilder.Redirect.INHERIT).start().inputReader().readLine());
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

    void test_an_answer_to_another_call_grants_nothing() throws Exception {
        AtomicInteger mixed = new AtomicInteger(1);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> {
            Map<String, Object> body = Json.parse(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
            Object id = mixed.getAndSet(0) == 1 ? "another" : body.getOrDefault("lease_id", "none");
            Proxy.answer(exchange, 200, Json.write(Map.of("key", key, "lease_id", id, "token", 7, "ttl_ms", 1500)));
        });
        server.start();
        LatchgateClient client = client("http://127.0.0.1:" + server.getAddress().getPort());
        LockOptions options = options().ttl(Duration.ofMillis(1500));
        raises(Unavailable.class, () -> client.acquire(key, options));
        same("unanswered", ((LeaseLost) lost(client.acquire(key, options))).why()); // a renewal has one result for each lease
        server.stop(0);
    }
}
