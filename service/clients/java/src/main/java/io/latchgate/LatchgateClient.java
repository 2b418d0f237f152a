package io.latchgate;

import java.lang.management.ManagementFactory;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
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
        List<String> urls;
        Map<String, String> environment = System.getenv();
        String apiKey = environment.get("LATCHGATE_API_KEY");
        Duration retryFor = Duration.ofSeconds(2), timeout = Duration.ofSeconds(5);
        HttpClient http;

        /** Each may be several with commas in between; if absent, those in LATCHGATE_URL. If a node does not answer, the next one is called. */
        public Config urls(String... urls) { this.urls = List.of(urls); return this; }

        /** If absent, that in LATCHGATE_API_KEY, or none. */
        public Config apiKey(String apiKey) { this.apiKey = apiKey; return this; }

        /** When no node answers, a call ends after this time in all (2 s): beyond its wait, if a node has answered it before. A renewal is
         * repeated until the lease ends, and the report that work was done for as long as the attempt lasts. */
        public Config retryFor(Duration retryFor) { this.retryFor = Nodes.notNegative("retryFor", retryFor); return this; }

        /** How long one node may take to answer, beyond the time that a call waits there (5 s); a third of the time that the call has left
         * if that is less. */
        public Config timeout(Duration timeout) { this.timeout = Nodes.notNegative("timeout", timeout); return this; }

        /** For TLS settings of your own. Without it, the authorities in the file that LATCHGATE_CA names are trusted, or those of the
         * system. */
        public Config http(HttpClient http) { this.http = http; return this; }

        public LatchgateClient connect() { return new LatchgateClient(this); }

        String variable(String name, String otherwise) {
            String value = environment.getOrDefault(name, otherwise);
            // The default would be another service, or other authorities.
            if (value != null && value.isBlank()) throw new IllegalArgumentException(name + " is set and empty");
            return value;
        }
    }

    /** A key of a multilock, with its mode: that of the options; the rest of them is not read. */
    public record Key(String key, LockOptions mode) {
        public Key { Objects.requireNonNull(key, "the key is null"); }

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
    final Unclaimed unclaimed;
    final Map<Object, Queue> queues = new ConcurrentHashMap<>();
    /** What the current thread holds through a DistributedLock. It ends with the thread: its leases are forgotten, and expire. */
    final ThreadLocal<Map<String, Deque<DistributedLock.Hold>>> held = ThreadLocal.withInitial(HashMap::new);

    private LatchgateClient(Config config) {
        Warm.up();
        nodes = new Nodes(config);
        renewals = new Renewals(nodes);
        unclaimed = new Unclaimed(nodes);
    }

    /** A client of the nodes in LATCHGATE_URL. It calls none yet. The first one of a process loads the classes that calls need. */
    public static LatchgateClient connect() { return new Config().connect(); }

    public DistributedLock lock(String key) { return lock(key, LockOptions.of()); }

    public DistributedLock lock(String key, LockOptions options) { return new DistributedLock(this, key, options); }

    public Lease acquire(String key) throws InterruptedException { return acquire(key, LockOptions.of()); }

    /** Takes the lock. Waits in the queue; then it throws WaitTimeout, or LockHeld without a wait ({@code wait(Duration.ZERO)}). */
    public Lease acquire(String key, LockOptions options) throws InterruptedException { return acquire(key, options, options.waitOrDefault()); }

    Lease acquire(String key, LockOptions options, Duration wait) throws InterruptedException {
        return acquire(path(key, "acquire"), options.mode, List.of(new Key(key, options)), options, wait);
    }

    /** Takes all locks or none, up to 64. Each Key says its mode. Otherwise it is like acquire. */
    public Lease multilock(List<Key> keys, LockOptions options) throws InterruptedException {
        Map<String, Object> locks = Map.of("locks", keys.stream().map(Key::fields).toList());
        return acquire("/v1/multilocks/acquire", locks, keys, options, options.waitOrDefault());
    }

    /** For a resource that cannot store tokens: throws StaleToken if a higher token has been granted or presented for the key. */
    public void fence(String key, long token) throws InterruptedException {
        nodes.call(path(key, "fence"), Map.of("token", token), nodes.within().about(List.of(key)));
    }

    public Revoking revoke(String key, String reason) throws InterruptedException { return revoke(key, reason, null, null, 0); }

    /** Asks the holders to release, or only those with this token (not 0). Their leases end after the grace (null: 10 s). If the answer is
     * lost, that is Unavailable, and not repeated without a token: it could ask the next holder. */
    public Revoking revoke(String key, String reason, String by, Duration grace, long token) throws InterruptedException {
        Map<String, Object> body = new LinkedHashMap<>();
        if (reason != null) body.put("reason", reason);
        if (by != null) body.put("by", by);
        if (grace != null) body.put("grace_ms", Nodes.millis("grace", grace));
        if (token != 0) body.put("token", token);
        Nodes.Call call = nodes.within().about(List.of(key));
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

    private Lease acquire(String path, Map<String, Object> locks, List<Key> keys, LockOptions options, Duration wait) throws InterruptedException {
        Map<String, Object> body = new LinkedHashMap<>(options.more);
        body.putAll(locks);
        body.put("ttl_ms", Nodes.millis("ttl", options.ttl));
        body.put("owner", options.owner != null ? options.owner : ownerName());
        List<String> names = keys.stream().map(Key::key).toList();
        Acquire acquire = new Acquire(this, path, names, options, body, nodes.within(wait, options.ttl).about(names));
        if (wait.isZero() || wait.isNegative()) return acquire.take();
        return acquire.takeInTurn(List.of(keys.stream().map(Key::fields).toList(), options.more.getOrDefault("priority", 1)));
    }

    static String path(String key, String verb) {
        Json.check("the key", Objects.requireNonNull(key, "the key is null")); // URLEncoder would make another one of it
        return "/v1/locks/" + URLEncoder.encode(key, StandardCharsets.UTF_8).replace("+", "%20") + "/" + verb;
    }

    /** host:pid program/…: another one for each lease. */
    private static String ownerName() {
        String process = ManagementFactory.getRuntimeMXBean().getName().replaceFirst("(\\d+)@(.{0,60}).*", "$2:$1");
        String program = System.getProperty("sun.java.command", "java").split(" ")[0].replaceAll(".*[/.](?=.)", "");
        return String.format("%s %.40s/%.12s", process, program, UUID.randomUUID().toString().replace("-", ""));
    }

    /** One call of acquire, with what is known of it. */
    private record Acquire(LatchgateClient client, String path, List<String> keys, LockOptions options, Map<String, Object> body, Nodes.Call call) {
        /** Waits for the turn of this caller in this process. Before that it asks once without a wait: so it knows that a node answers, and
         * what the service refuses is refused at once. */
        Lease takeInTurn(Object name) throws InterruptedException {
            Queue queue = client.queues.compute(name, (same, old) -> (old == null ? new Queue() : old).enter());
            boolean isMine = false;
            try {
                isMine = queue.turn.tryAcquire(0, TimeUnit.NANOSECONDS);
                if (isMine) return take();
                long waitUntil = call.waitUntil;
                call.waitUntil = Clock.now();
                try {
                    return take();
                } catch (LatchgateException.LockHeld held) {
                    isMine = queue.turn.tryAcquire(waitUntil - Clock.now(), TimeUnit.NANOSECONDS);
                }
                // When the wait is over, the service says who holds it.
                call.waitUntil = Math.max(waitUntil, Clock.now() + 50 * Nodes.MS);
                call.until = call.waitUntil + client.nodes.retryFor;
                try {
                    return take();
                } catch (LatchgateException.LockHeld held) {
                    // On a busy machine, nothing of the wait was left for the service.
                    throw held instanceof LatchgateException.WaitTimeout ? held : new LatchgateException.WaitTimeout(held.answer);
                }
            } finally {
                if (isMine) queue.turn.release();
                client.queues.compute(name, (same, mine) -> mine.leave());
            }
        }

        Lease take() throws InterruptedException {
            while (true) {
                // A repeated acquire gets the same grant.
                String id = UUID.randomUUID().toString();
                List<Map<String, Object>> leases = new ArrayList<>();
                for (String key : keys) leases.add(Map.of("key", key, "lease_id", id));
                body.put("lease_id", id);
                call.doubt = false;
                boolean isGranted = false;
                try {
                    Answer answer = client.nodes.call(path, body, call);
                    if (!answer.text("lease_id").equals(id)) throw LatchgateException.foreign("the answer is none to this call");
                    Keeper keeper = new Keeper("the lease of " + String.join(", ", keys), null, leases, options.ttl.toNanos());
                    client.renewals.keep(keeper, answer);
                    Lease lease = new Lease(client.nodes, answer, keeper);
                    lease.check(); // unless the answer took too long
                    isGranted = true;
                    if (options.interrupts) keeper.interruptOnLoss(Thread.currentThread());
                    return lease;
                } catch (LatchgateException.LeaseLost lost) {
                    // It was granted in an answer that was lost, and has ended since.
                    if (Clock.now() >= Math.max(call.until, call.waitUntil)) throw lost;
                    call.until = Clock.now() + client.nodes.retryFor;
                } catch (LatchgateException.Refused other) {
                    // It is another lock that was granted.
                    if (id.equals(other.fields.get("lease_id"))) leases.add(Map.of("key", other.answer.text("key"), "lease_id", id));
                    throw other;
                } finally {
                    if (!isGranted && call.doubt) giveBack(leases);
                }
            }
        }

        /** The caller need not wait for it: without it, the lease ends by its TTL. */
        private void giveBack(List<Map<String, Object>> leases) {
            Renewals.daemon("latchgate giving back", () -> {
                try {
                    Lease.release(client.nodes, leases, Math.max(GIVE_BACK, client.nodes.retryFor));
                } catch (LatchgateException failure) {
                    // It ends by its TTL.
                }
            }).start();
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
    }
}
