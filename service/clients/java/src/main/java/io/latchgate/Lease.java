package io.latchgate;

import java.lang.ref.Cleaner;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/** A lease that renews itself in the background until it is released: {@code try (Lease lease = client.acquire("orders/42")) { … }}. It is of
 * the process that has taken it, and cannot be serialised. */
public final class Lease implements AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create();
    private static final System.Logger LOG = System.getLogger("io.latchgate");

    /** An operator asks the holder to release. The lease ends at the deadline (RFC 3339, by the store's clock). */
    public record Revocation(String deadline, String reason, String by) {}

    private final Nodes nodes;
    final Keeper keeper;
    private final String owner;
    private final Map<String, Long> tokens = new LinkedHashMap<>();
    private final List<?> slots;
    private final AtomicBoolean released = new AtomicBoolean();

    Lease(Nodes nodes, Answer granted, Keeper keeper) {
        this.nodes = nodes;
        this.keeper = keeper;
        this.owner = granted.text("owner");
        this.slots = granted.body().get("slots") instanceof List<?> list ? list : List.of();
        tokens.put(key(), Answer.number(granted.body(), "token"));
        for (Map<String, Object> lock : Answer.list(granted.body(), "locks")) tokens.put(String.valueOf(lock.get("key")), Answer.number(lock, "token"));
        // A lease that is forgotten is not renewed any more, and expires.
        CLEANER.register(this, () -> keeper.end(null));
    }

    /** Without the id, which proves that the lease is the caller's. */
    @Override
    public String toString() {
        return "lease of " + key() + ", token " + token() + ", owner " + owner + ", " + (keeper.remaining() > 0 ? "for " + remaining().toMillis() + " ms" : "lost or released");
    }

    /** The first one if there are several. */
    public String key() { return (String) keeper.leases.get(0).get("key"); }

    /** Proves that the lease is the caller's. */
    public String id() { return (String) keeper.leases.get(0).get("lease_id"); }

    /** Shown to callers that are refused. */
    public String owner() { return owner; }

    /** Higher than that of every earlier lease of the key: send it with each write. */
    public long token() { return tokens.get(key()); }

    /** The tokens of all keys. */
    public Map<String, Long> tokens() { return Map.copyOf(tokens); }

    /** The numbers of the permits. */
    public List<Integer> slots() { return slots.stream().map(slot -> ((Number) slot).intValue()).toList(); }

    /** For how long the lease is surely live; zero if it is lost or released. */
    public Duration remaining() { return Duration.ofNanos(keeper.remaining()); }

    /** Throws LeaseLost if the lease may have ended. Call it before each step that cannot be undone. */
    public void check() { keeper.check(); }

    /** Calls it in a thread of its own if the lease is lost before it is released, also if that has happened already. */
    public void onLoss(Consumer<LatchgateException> callback) { keeper.onLoss(callback); }

    /** Not null when a renewal has shown that an operator asks for the lock: finish, and release it. */
    public Revocation revocation() {
        Map<?, ?> asked = keeper.revocation();
        return asked == null ? null : new Revocation((String) asked.get("deadline"), (String) asked.get("reason"), (String) asked.get("by"));
    }

    /** Throws LeaseLost if the lease had ended before, and Unavailable if no node answers; then it ends by its TTL. A second release does
     * nothing. An interrupt does not end it. */
    public void release() {
        long left = keeper.remaining();
        if (released.getAndSet(true)) return;
        LatchgateException loss = keeper.end(null);
        // Also if the loss is only presumed, or of one key of several: no lease shall stay behind.
        if (loss == null || loss.status == 0 || keeper.leases.size() > 1) {
            try {
                release(nodes, keeper.leases, Math.min(left > 0 ? left : 1_000 * Nodes.MS, nodes.retryFor));
            } catch (LatchgateException failure) {
                if (loss == null) throw failure;
            }
        }
        if (loss != null) keeper.check();
    }

    static void release(Nodes nodes, List<Map<String, Object>> leases, long patience) {
        nodes.callToEnd("/v1/leases/release", Map.of("leases", leases), patience);
    }

    /** Releases the lease. Throws LeaseLost if it had ended before. If no node answers, it ends by its TTL. */
    @Override
    public void close() {
        try {
            release();
        } catch (LatchgateException.Unavailable failure) {
            LOG.log(System.Logger.Level.WARNING, keeper.name + " is not released, and ends by its TTL: " + failure);
        }
    }
}
