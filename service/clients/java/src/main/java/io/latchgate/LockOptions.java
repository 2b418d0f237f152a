package io.latchgate;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/** How to take a lock: {@code LockOptions.of().ttl(Duration.ofSeconds(30)).shared()}. Without more, it is exclusive. */
public final class LockOptions {
    /** A wait without a limit. */
    public static final Duration FOREVER = Duration.ofDays(36_500);

    Duration ttl = Duration.ofSeconds(30);
    Duration wait;
    String owner;
    boolean interrupts;
    final Map<String, Object> mode = new LinkedHashMap<>();
    final Map<String, Object> more = new LinkedHashMap<>();

    private LockOptions() {}

    Duration waitOrDefault() { return wait == null ? Duration.ofSeconds(60) : wait; }

    public static LockOptions of() { return new LockOptions(); }

    /** The length of the lease, which renews itself. Default: 30 s. */
    public LockOptions ttl(Duration ttl) { this.ttl = Nodes.notNegative("ttl", ttl); return this; }

    /** How long to wait in the queue. Default: 60 s; of {@link DistributedLock#lock} without a limit. */
    public LockOptions wait(Duration wait) { this.wait = Nodes.notNegative("wait", wait); return this; }

    /** Together with other shared leases. */
    public LockOptions shared() { mode.put("mode", "shared"); return this; }

    /** Permits out of a limit; 0 for the limit in force. */
    public LockOptions permits(int permits, int limit) {
        mode.put("mode", "permits");
        mode.put("permits", permits);
        if (limit > 0) mode.put("limit", limit);
        return this;
    }

    /** After {@link #permits}: free permits go to the waiting group that has fewest. With a limit (or 0), the group has no more than that. */
    public LockOptions group(String group, int limit) {
        mode.put("group", Objects.requireNonNull(group));
        if (limit > 0) mode.put("group_limit", limit);
        return this;
    }

    /** Shown to callers that are refused. By default each lease has one of its own: host:pid program/… */
    public LockOptions owner(String owner) { this.owner = owner; return this; }

    /** If the lease is lost, the thread that has taken it is interrupted. */
    public LockOptions interruptOnLoss() { this.interrupts = true; return this; }

    /** 1 to 10, higher first. */
    public LockOptions priority(int priority) { more.put("priority", priority); return this; }

    /** If the lease expires, no caller gets the lock for this long. */
    public LockOptions delay(Duration delay) { more.put("delay_ms", Nodes.millis("delay", delay)); return this; }

    /** The lock stays taken until so long after the grant, also after an earlier release. */
    public LockOptions minHold(Duration minHold) { more.put("min_hold_ms", Nodes.millis("minHold", minHold)); return this; }

    /** It is not renewed for longer. */
    public LockOptions maxHold(Duration maxHold) { more.put("max_hold_ms", Nodes.millis("maxHold", maxHold)); return this; }
}
