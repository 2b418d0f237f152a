package io.latchgate;

import java.net.InetAddress;
import java.net.URLEncoder;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;

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
        private List<String> urls = List.of(env("LATCHGATE_URL", "http://127.0.0.1:7070").split("\\s*,\\s*"));
        private String apiKey = env("LATCHGATE_API_KEY", null);
        private Duration retryFor = Duration.ofSeconds(2), timeout = Duration.ofSeconds(5), waitPerCall = Duration.ofSeconds(20);
        private HttpClient http;

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
    public record Key(String key, LockOptions mode) {}

    /** How many leases are revoked, and when the last of them ends: RFC 3339, by the store's clock; null if the lock was free. */
    public record Revoking(long leases, String deadline) {}

    final Nodes nodes;
    final Renewals renewals;
    /** Callers of this process that want the same locks in the same way. Only the first of each stands in the service's queue, until it is
     * granted the lock with a lease of its own; then the next one does. */
    final Map<Object, Deque<CompletableFuture<Void>>> turns = new HashMap<>();

    private LatchgateClient(Config config) {
        nodes = new Nodes(config.urls, config.apiKey, config.http, config.timeout, config.retryFor, config.waitPerCall);
        renewals = new Renewals(nodes);
    }

    /** A client of the nodes in LATCHGATE_URL. It calls none yet. */
    public static LatchgateClient connect() { return new Config().connect(); }

    public DistributedLock lock(String key) { return lock(key, LockOptions.of()); }

    public DistributedLock lock(String key, LockOptions options) { return new DistributedLock(this, key, options); }

    public Lease acquire(String key) throws InterruptedException { return acquire(key, LockOptions.of()); }

    /** Takes the lock. Waits in the queue; then it throws WaitTimeout, and without a wait LockHeld. */
    public Lease acquire(String key, LockOptions options) throws InterruptedException {
        return acquire(List.of(key), List.of(options.mode), false, options, true);
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
        return acquire(keys.stream().map(Key::key).toList(), keys.stream().map(key -> key.mode().mode).toList(), true, options, true);
    }

    /** For a resource that cannot store tokens: throws StaleToken if a higher token has been granted or presented for the key. */
    public void fence(String key, long token) throws InterruptedException {
        Nodes.Call call = new Nodes.Call(Clock.now() + nodes.retryFor);
        call.interruptible = true;
        nodes.call(path(key, "fence"), new LinkedHashMap<>(Map.of("token", token)), call);
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
        Nodes.Call call = new Nodes.Call(Clock.now() + nodes.retryFor);
        call.isOnce = token == 0;
        call.interruptible = true;
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

    Lease acquire(List<String> keys, List<Map<String, Object>> modes, boolean many, LockOptions options, boolean interruptible)
            throws InterruptedException {
        Map<String, Object> body = new LinkedHashMap<>(options.more);
        if (many) {
            List<Map<String, Object>> locks = new ArrayList<>();
            for (int i = 0; i < keys.size(); i++) {
                locks.add(new LinkedHashMap<>(modes.get(i)));
                locks.get(i).put("key", keys.get(i));
            }
            body.put("locks", locks);
        } else {
            body.putAll(modes.get(0));
        }
        body.put("ttl_ms", options.ttl.toMillis());
        Duration wait = options.wait == null ? Duration.ofSeconds(60) : options.wait;
        String outer = options.owner == null && options.reentrant ? outerOwner(keys) : null;
        boolean isNested = outer != null || options.owner != null && options.reentrant;
        body.put("owner", options.owner != null ? options.owner : outer != null ? outer : ownerName());
        if (isNested) body.put("reentrant", true);
        Nodes.Call call = new Nodes.Call(Clock.now() + nodes.retryFor);
        call.hasWait = true;
        call.interruptible = interruptible;
        call.waitUntil = Clock.now() + Math.max(Math.min(wait.toMillis(), LockOptions.FOREVER.toMillis()), 0) * Nodes.MS;
        Acquire acquire = new Acquire(this, keys, many, options, body, call);
        if (wait.isZero() || wait.isNegative() || isNested || options.owner != null || options.more.containsKey("barge")) return acquire.take();
        Object name = List.of(keys, modes, many, options.more.getOrDefault("priority", 1));
        CompletableFuture<Void> turn = enter(name);
        try {
            Lease lease = turn.isDone() ? null : acquire.await(turn);
            return lease != null ? lease : acquire.take();
        } finally {
            leave(name, turn);
        }
    }

    private CompletableFuture<Void> enter(Object name) {
        CompletableFuture<Void> turn = new CompletableFuture<>();
        synchronized (turns) {
            Deque<CompletableFuture<Void>> queue = turns.computeIfAbsent(name, none -> new ArrayDeque<>());
            queue.add(turn);
            if (queue.size() == 1) turn.complete(null);
        }
        return turn;
    }

    private void leave(Object name, CompletableFuture<Void> turn) {
        synchronized (turns) {
            Deque<CompletableFuture<Void>> queue = turns.get(name);
            queue.remove(turn);
            if (queue.isEmpty()) turns.remove(name);
            else queue.peek().complete(null); // again and again does no harm
        }
    }

    /** The owner of the leases that this thread holds of these keys; null if it holds none. Only nested leases have the owner of another
     * one: otherwise a nested lease could open a lock that another thread holds. */
    private String outerOwner(List<String> keys) {
        Set<String> owners = new LinkedHashSet<>();
        for (Keeper keeper : renewals.all()) {
            if (keeper.thread != Thread.currentThread() || java.util.Collections.disjoint(keeper.keys, keys) || keeper.remaining() == 0) continue;
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
    private static final class Acquire {
        private final LatchgateClient client;
        private final Nodes nodes;
        private final List<String> keys;
        private final boolean many;
        private final LockOptions options;
        private final Map<String, Object> body;
        private final Nodes.Call call;
        private Lease.Target target;

        Acquire(LatchgateClient client, List<String> keys, boolean many, LockOptions options, Map<String, Object> body, Nodes.Call call) {
            this.client = client;
            this.nodes = client.nodes;
            this.keys = keys;
            this.many = many;
            this.options = options;
            this.body = body;
            this.call = call;
            begin();
        }

        /** With a fresh id: a repeated acquire gets the same grant. */
        private void begin() {
            target = new Lease.Target(keys, UUID.randomUUID().toString(), many);
            body.put("lease_id", target.id());
            body.remove("ticket");
            call.doubt = false;
        }

        /** Waits for the turn of this caller in this process. Before that it asks once without a wait: so it knows that a node answers, and
         * what the service refuses is refused at once. */
        Lease await(CompletableFuture<Void> turn) throws InterruptedException {
            long waitUntil = call.waitUntil;
            call.waitUntil = 0;
            try {
                return take();
            } catch (LatchgateException.LockHeld held) {
                call.answered = true;
                call.waitUntil = waitUntil;
                call.until = waitUntil + nodes.retryFor;
            }
            while (!turn.isDone()) {
                // In slices, because timers stand still while the machine is suspended.
                long left = waitUntil - Clock.now();
                if (left <= 0) {
                    call.waitUntil = Clock.now() + Nodes.MS; // the service says who holds it
                    return null;
                }
                try {
                    Nodes.await(turn, Math.min(left, Renewals.SLICE), call.interruptible);
                } catch (Nodes.NoAnswer impossible) {
                    throw new IllegalStateException(impossible);
                }
            }
            return null;
        }

        Lease take() throws InterruptedException {
            while (true) {
                boolean isGranted = false;
                try {
                    Answer answer = nodes.call(target.path("acquire"), body, call);
                    call.doubt = true;
                    Lease lease = granted(answer);
                    isGranted = true;
                    return lease;
                } catch (LatchgateException.LockHeld held) {
                    // Of a wait that has ended before this request, nothing was left to wait.
                    boolean hasWaited = call.waitUntil > 0 && "lock-held".equals(held.code);
                    throw hasWaited ? new LatchgateException.WaitTimeout(held.status, held.fields) : held;
                } catch (LatchgateException.LeaseLost lost) {
                    // It was granted in an answer that was lost, and has ended since.
                    if (Clock.now() >= Math.max(call.until, call.waitUntil)) throw lost;
                    begin();
                    call.until = Clock.now() + nodes.retryFor;
                } finally {
                    if (!isGranted && call.doubt) giveBack(target);
                }
            }
        }

        /** The caller need not wait for it: without it, the lease ends by its TTL. */
        private void giveBack(Lease.Target target) {
            Renewals.daemon("latchgate giving back", () -> {
                try {
                    long until = Clock.now() + Math.max(GIVE_BACK, nodes.retryFor);
                    nodes.callToEnd(target.path("release"), target.body(), new Nodes.Call(until));
                } catch (LatchgateException failure) {
                    // It ends by its TTL.
                }
            }).start();
        }

        private Lease granted(Answer answer) throws InterruptedException {
            Answer first = answer;
            long ttl = options.ttl.toNanos();
            if (answer.sent() + answer.left() - Clock.now() < ttl * 2 / 3) {
                // After a wait, the lease began long after the request was sent: a renewal tells until when it lasts.
                long until = Math.min(Clock.now() + Math.min(ttl, nodes.retryFor), Math.max(call.until, call.waitUntil + nodes.retryFor));
                Nodes.Call renewal = new Nodes.Call(until);
                renewal.interruptible = call.interruptible;
                first = nodes.call(target.path("renew"), target.body(), renewal);
            }
            Keeper keeper = new Keeper(String.join(", ", keys), target.leases(), null, null, ttl, first);
            keeper.thread = Thread.currentThread();
            keeper.keys = new HashSet<>(keys);
            keeper.owner = (String) answer.body().get("owner");
            keeper.isNamed = options.owner != null;
            if (options.interrupts) keeper.interruptOnLoss();
            Lease lease = new Lease(nodes, target, answer.body(), keeper);
            client.renewals.keep(keeper);
            return lease;
        }
    }
}
