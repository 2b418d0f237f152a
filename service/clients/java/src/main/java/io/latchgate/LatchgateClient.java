package io.latchgate;

import java.net.InetAddress;
import java.net.URLEncoder;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/**
 * A client of Latchgate: distributed locks, and work that is done once. Threads share it, and should: the leases of one client are renewed
 * together.
 *
 * <pre>{@code
 * LatchgateClient client = LatchgateClient.connect();
 * try (Lease lease = client.acquire("orders/42")) {
 *     save(order, lease.token());
 * }
 * }</pre>
 */
public final class LatchgateClient {
    private static final long GIVE_BACK = 2_000 * Nodes.MS;

    /** How to reach the nodes. */
    public static final class Config {
        List<String> urls = List.of(env("LATCHGATE_URL", "http://127.0.0.1:7070").split("\\s*,\\s*"));
        String apiKey = env("LATCHGATE_API_KEY", null);
        Duration retryFor = Duration.ofSeconds(2), timeout = Duration.ofSeconds(5), waitPerCall = Duration.ofSeconds(20);
        HttpClient http;

        /** If absent, those in LATCHGATE_URL with commas in between. If a node does not answer, the next one is called. */
        public Config urls(String... urls) { this.urls = List.of(urls); return this; }

        /** If absent, that in LATCHGATE_API_KEY, or none. */
        public Config apiKey(String apiKey) { this.apiKey = apiKey; return this; }

        /** When no node answers, a call ends after this time in all (2 s): beyond its wait, if a node has answered it before. A renewal is
         * repeated until the lease ends, and the report that work was done for as long as the attempt lasts. */
        public Config retryFor(Duration retryFor) { this.retryFor = retryFor; return this; }

        /** How long one node may take to answer, beyond the time that a call waits there (5 s); a third of the time that the call has left
         * if that is less. */
        public Config timeout(Duration timeout) { this.timeout = timeout; return this; }

        /** How long one request waits at a node (20 s). Longer waits go on with tickets. */
        public Config waitPerCall(Duration waitPerCall) { this.waitPerCall = waitPerCall; return this; }

        /** For TLS settings of your own. */
        public Config http(HttpClient http) { this.http = http; return this; }

        public LatchgateClient connect() { return new LatchgateClient(this); }

        private static String env(String name, String otherwise) {
            String value = System.getenv(name);
            return value == null || value.isEmpty() ? otherwise : value;
        }
    }

    /** A key of a multilock, with its mode: that of the options; the rest of them is not read. */
    public record Key(String key, LockOptions mode) {
        Map<String, Object> fields() {
            Map<String, Object> fields = new LinkedHashMap<>(mode.mode);
            fields.put("key", key);
            return fields;
        }
    }

    /** How many leases are revoked, and when the last of them ends: RFC 3339, by the store's clock; null if the lock was free. */
    public record Revoking(long leases, String deadline) {}

    final Nodes nodes;
    final Renewals renewals;
    final Map<Object, Queue> queues = new ConcurrentHashMap<>();

    private LatchgateClient(Config config) {
        nodes = new Nodes(config);
        renewals = new Renewals(nodes);
    }

    /** A client of the nodes in LATCHGATE_URL. It calls none yet. */
    public static LatchgateClient connect() { return new Config().connect(); }

    public DistributedLock lock(String key) { return lock(key, LockOptions.of()); }

    public DistributedLock lock(String key, LockOptions options) { return new DistributedLock(this, key, options); }

    public Lease acquire(String key) throws InterruptedException { return acquire(key, LockOptions.of()); }

    /** Takes the lock. Waits in the queue; then it throws WaitTimeout, and without a wait LockHeld. */
    public Lease acquire(String key, LockOptions options) throws InterruptedException {
        return acquire(List.of(new Key(key, options)), false, options, true);
    }

    /** Takes the lock if it is free; otherwise null. */
    public Lease tryAcquire(String key, LockOptions options) throws InterruptedException {
        try {
            return acquire(key, options.copy().wait(Duration.ZERO));
        } catch (LatchgateException.LockHeld held) {
            return null;
        }
    }

    /** Takes all locks or none, up to 64. Each Key says its mode. Otherwise it is like acquire. */
    public Lease multilock(List<Key> keys, LockOptions options) throws InterruptedException {
        return acquire(keys, true, options, true);
    }

    /** For a resource that cannot store tokens: throws StaleToken if a higher token has been granted or presented for the key. */
    public void fence(String key, long token) throws InterruptedException {
        nodes.call(path(key, "fence"), new LinkedHashMap<>(Map.of("token", token)), nodes.within(nodes.retryFor, true));
    }

    public Revoking revoke(String key, String reason) throws InterruptedException { return revoke(key, reason, null, null, 0); }

    /** Asks the holders to release, or only those with this token (not 0). Their leases end after the grace (null: 10 s). If the answer is
     * lost, that is Unavailable, and not repeated without a token: it could ask the next holder. */
    public Revoking revoke(String key, String reason, String by, Duration grace, long token) throws InterruptedException {
        Map<String, Object> body = new LinkedHashMap<>();
        if (reason != null) body.put("reason", reason);
        if (by != null) body.put("by", by);
        if (grace != null) body.put("grace_ms", grace.toMillis());
        if (token != 0) body.put("token", token);
        Nodes.Call call = nodes.within(nodes.retryFor, true);
        call.isOnce = token == 0;
        Map<String, Object> answer = nodes.call(path(key, "revoke"), body, call).body();
        return new Revoking(Answer.number(answer, "leases"), (String) answer.get("deadline"));
    }

    /** See {@link Once#once}. */
    public <E extends Exception> Once.Done once(String operation, Object contents, Once.Work<E> work) throws E, InterruptedException {
        return once(operation, contents, Once.options(), work);
    }

    /** See {@link Once#once}. */
    public <E extends Exception> Once.Done once(String operation, Object contents, Once.Options options, Once.Work<E> work)
            throws E, InterruptedException {
        return Once.once(this, operation, contents, options, work);
    }

    Lease acquire(List<Key> keys, boolean many, LockOptions options, boolean interruptible) throws InterruptedException {
        Map<String, Object> body = new LinkedHashMap<>(options.more);
        if (many) body.put("locks", keys.stream().map(Key::fields).toList());
        else body.putAll(options.mode);
        body.put("ttl_ms", options.ttl.toMillis());
        String outer = options.owner == null && options.reentrant ? outerOwner(keys) : options.owner;
        boolean isNested = outer != null && options.reentrant;
        body.put("owner", outer != null ? outer : ownerName());
        if (isNested) body.put("reentrant", true);
        Duration wait = options.wait == null ? Duration.ofSeconds(60) : options.wait;
        Nodes.Call call = nodes.within(nodes.retryFor, interruptible).waiting(wait);
        String path = many ? "/v1/multilocks/acquire" : path(keys.get(0).key, "acquire");
        Acquire acquire = new Acquire(this, path, keys.stream().map(Key::key).toList(), options, body, call);
        boolean waits = !wait.isZero() && !wait.isNegative();
        if (!waits || isNested || options.owner != null || options.more.containsKey("barge")) return acquire.take();
        return acquire.takeInTurn(List.of(keys.stream().map(Key::fields).toList(), options.more.getOrDefault("priority", 1)));
    }

    /** The owner of the leases that this thread holds of these keys; null if it holds none. Only nested leases have the owner of another
     * one: otherwise a nested lease could open a lock that another thread holds. */
    private String outerOwner(List<Key> keys) {
        Set<String> owners = new LinkedHashSet<>();
        for (Keeper keeper : renewals.all()) {
            boolean isOfAny = keys.stream().anyMatch(key -> keeper.leases.stream().anyMatch(lease -> lease.get("key").equals(key.key)));
            if (keeper.thread != Thread.currentThread() || !isOfAny || keeper.remaining() == 0) continue;
            if (keeper.isNamed) throw new IllegalArgumentException("the lease around this one has an owner that the caller has named: name it here too");
            owners.add(keeper.owner);
        }
        if (owners.size() > 1) throw new IllegalArgumentException("a multilock cannot be nested in several leases: name one owner for all of them");
        return owners.isEmpty() ? null : owners.iterator().next();
    }

    static String path(String key, String verb) {
        return "/v1/locks/" + URLEncoder.encode(key, StandardCharsets.UTF_8).replace("+", "%20") + "/" + verb;
    }

    /** Another one for each lease. */
    private static String ownerName() { return String.format("%s/%.12s", PROCESS, UUID.randomUUID().toString().replace("-", "")); }

    private static final String PROCESS = processName();

    private static String processName() {
        String host = "client";
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException unknown) {
            // as above
        }
        String program = System.getProperty("sun.java.command", "java").split(" ")[0].replaceAll(".*[/.](?=.)", "");
        return String.format("%.60s:%d %.40s", host, ProcessHandle.current().pid(), program);
    }

    /** One call of acquire, with what is known of it. */
    private record Acquire(LatchgateClient client, String path, List<String> keys, LockOptions options, Map<String, Object> body, Nodes.Call call) {
        /** Waits for the turn of this caller in this process. */
        Lease takeInTurn(Object name) throws InterruptedException {
            Queue queue = client.queues.compute(name, (same, old) -> (old == null ? new Queue() : old).enter());
            boolean isMine = !queue.turn.hasQueuedThreads() && queue.turn.tryAcquire();
            try {
                if (!isMine) {
                    Lease lease = ask();
                    if (lease != null) return lease;
                    isMine = queue.await(call.waitUntil, call.interruptible);
                    // When the wait is over, the service says who holds it.
                    call.waitUntil = Math.max(call.waitUntil, Clock.now() + 50 * Nodes.MS);
                }
                return take();
            } finally {
                if (isMine) queue.turn.release();
                client.queues.compute(name, (same, mine) -> mine.leave());
            }
        }

        /** Before it waits, the caller asks once without a wait: so it knows that a node answers, and what the service refuses is refused at
         * once. */
        private Lease ask() throws InterruptedException {
            long waitUntil = call.waitUntil;
            call.waitUntil = 0;
            try {
                return take();
            } catch (LatchgateException.LockHeld held) {
                call.answered = true;
                call.waitUntil = waitUntil;
                call.until = waitUntil + client.nodes.retryFor;
                return null;
            }
        }

        Lease take() throws InterruptedException {
            while (true) {
                // A repeated acquire gets the same grant.
                String id = UUID.randomUUID().toString();
                List<Map<String, Object>> leases = keys.stream().map(key -> Map.<String, Object>of("key", key, "lease_id", id)).toList();
                body.put("lease_id", id);
                body.remove("ticket");
                call.doubt = false;
                boolean isGranted = false;
                try {
                    Answer answer = client.nodes.call(path, body, call);
                    call.doubt = true;
                    Lease lease = granted(answer, leases);
                    isGranted = true;
                    return lease;
                } catch (LatchgateException.LeaseLost lost) {
                    // It was granted in an answer that was lost, and has ended since.
                    if (Clock.now() >= Math.max(call.until, call.waitUntil)) throw lost;
                    call.until = Clock.now() + client.nodes.retryFor;
                } finally {
                    if (!isGranted && call.doubt) giveBack(leases);
                }
            }
        }

        /** The caller need not wait for it: without it, the lease ends by its TTL. */
        private void giveBack(List<Map<String, Object>> leases) {
            Renewals.daemon("latchgate giving back", () -> {
                try {
                    Lease.release(client.nodes, leases, new Nodes.Call(Clock.now() + Math.max(GIVE_BACK, client.nodes.retryFor), false));
                } catch (LatchgateException failure) {
                    // It ends by its TTL.
                }
            }).start();
        }

        private Lease granted(Answer answer, List<Map<String, Object>> leases) throws InterruptedException {
            Answer first = answer;
            long ttl = options.ttl.toNanos();
            if (answer.sent() + answer.left() - Clock.now() < ttl * 2 / 3) {
                // After a wait, the lease began long after the request was sent: a renewal tells until when it lasts.
                long until = Math.min(Clock.now() + Math.min(ttl, client.nodes.retryFor), Math.max(call.until, call.waitUntil + client.nodes.retryFor));
                Map<String, Object> renewal = new LinkedHashMap<>(Map.of("leases", leases));
                first = client.nodes.call("/v1/leases/renew", renewal, new Nodes.Call(until, call.interruptible));
            }
            Keeper keeper = new Keeper(String.join(", ", keys), leases, null, null, ttl, first);
            keeper.thread = Thread.currentThread();
            keeper.owner = (String) answer.body().get("owner");
            keeper.isNamed = options.owner != null;
            keeper.interrupts = options.interrupts;
            Lease lease = new Lease(client.nodes, answer.body(), keeper);
            client.renewals.keep(keeper);
            return lease;
        }
    }

    /** Callers of this process that want the same locks in the same way. Only one of them stands in the service's queue, until it is granted
     * the lock with a lease of its own; then the next one does. */
    static final class Queue {
        final Semaphore turn = new Semaphore(1, true);
        int callers;

        Queue enter() {
            callers++;
            return this;
        }

        Queue leave() { return --callers == 0 ? null : this; }

        /** Whether the caller's turn has come. An interrupt ends the wait, or is remembered until the end. */
        boolean await(long until, boolean interruptible) throws InterruptedException {
            boolean isMine = false, interrupted = false;
            for (long left; !isMine && (left = until - Clock.now()) > 0; ) {
                try {
                    isMine = turn.tryAcquire(left, TimeUnit.NANOSECONDS);
                } catch (InterruptedException interrupt) {
                    if (interruptible) throw interrupt;
                    interrupted = true;
                }
            }
            if (interrupted) Thread.currentThread().interrupt();
            return isMine;
        }
    }
}
