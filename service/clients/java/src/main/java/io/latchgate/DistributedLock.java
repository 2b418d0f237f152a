package io.latchgate;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock of the service as a {@link Lock}: {@code lock.lock(); try { … } finally { lock.unlock(); }}. A thread that holds it may lock it again,
 * also through another object of the same client and key; each {@code lock} needs its {@code unlock}. All methods throw a
 * {@link LatchgateException} if the service refuses or does not answer.
 */
public final class DistributedLock implements Lock {
    /** A thread that has the lock shared cannot have it exclusively at the same time. */
    record Hold(Lease lease, Map<String, Object> mode) {}

    private final LatchgateClient client;
    private final String key;
    private final LockOptions options;

    DistributedLock(LatchgateClient client, String key, LockOptions options) {
        this.client = client;
        this.key = key;
        this.options = options;
    }

    /** Waits without a limit, unless the options have one. An interrupt does not end the wait, but it begins anew, at the end of the queue. */
    @Override
    public void lock() {
        Nodes.uninterrupted(() -> take(options.wait == null ? LockOptions.FOREVER : options.wait));
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(options.wait == null ? LockOptions.FOREVER : options.wait);
    }

    @Override
    public boolean tryLock() {
        return Nodes.uninterrupted(() -> tryLock(0, TimeUnit.SECONDS));
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        try {
            take(Duration.ofNanos(unit.toNanos(time)));
            return true;
        } catch (LatchgateException.LockHeld held) {
            return false;
        }
    }

    private Hold take(Duration wait) throws InterruptedException {
        if (Thread.interrupted()) throw new InterruptedException();
        Deque<Hold> mine = mine();
        Hold hold = mine.peek();
        if (hold == null || hold.lease.keeper.remaining() == 0) {
            hold = new Hold(client.acquire(key, options, wait), Map.copyOf(options.mode));
        } else if (!hold.mode.isEmpty() && !hold.mode.equals(options.mode)) {
            throw new IllegalMonitorStateException("this thread holds " + key + " in another mode");
        }
        mine.push(hold);
        client.held.get().put(key, mine);
        return hold;
    }

    private Deque<Hold> mine() { return client.held.get().getOrDefault(key, new ArrayDeque<>()); }

    /** Throws LeaseLost if the lease had ended before: other threads may have had the lock since. */
    @Override
    public void unlock() {
        Lease lease = lease();
        Deque<Hold> mine = mine();
        Hold hold = mine.pop();
        if (mine.isEmpty()) client.held.get().remove(key);
        if (!mine.contains(hold)) lease.close();
    }

    /** What this thread holds. */
    public Lease lease() {
        if (mine().isEmpty()) throw new IllegalMonitorStateException("this thread does not hold " + key);
        return mine().peek().lease;
    }

    /** Higher than that of every earlier holder: send it with each write. */
    public long token() { return lease().token(); }

    public boolean isHeldByCurrentThread() { return !mine().isEmpty() && lease().keeper.remaining() > 0; }

    @Override
    public String toString() { return "lock " + key + (mine().isEmpty() ? "" : ", held by this thread: " + lease()); }

    @Override
    public Condition newCondition() { throw new UnsupportedOperationException("a lock of the service has no conditions"); }
}
