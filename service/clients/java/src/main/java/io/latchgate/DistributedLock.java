package io.latchgate;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock of the service as a {@link Lock}: {@code lock.lock(); try { … } finally { lock.unlock(); }}. A thread that holds it may lock it again;
 * each {@code lock} needs its {@code unlock}. All methods throw a {@link LatchgateException} if the service refuses or does not answer.
 */
public final class DistributedLock implements Lock {
    private final LatchgateClient client;
    private final String key;
    private final LockOptions options;
    private final Map<Thread, Deque<Lease>> held = new ConcurrentHashMap<>();

    DistributedLock(LatchgateClient client, String key, LockOptions options) {
        this.client = client;
        this.key = key;
        this.options = options.copy().reentrant();
    }

    /** Waits without a limit, unless the options have one; an interrupt does not end the wait. */
    @Override
    public void lock() {
        takeToEnd(options.wait == null ? LockOptions.FOREVER : options.wait);
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(options.wait == null ? LockOptions.FOREVER : options.wait, true);
    }

    @Override
    public boolean tryLock() {
        try {
            takeToEnd(Duration.ZERO);
            return true;
        } catch (LatchgateException.LockHeld held) {
            return false;
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        try {
            take(Duration.ofNanos(unit.toNanos(time)), true);
            return true;
        } catch (LatchgateException.LockHeld held) {
            return false;
        }
    }

    private void takeToEnd(Duration wait) {
        try {
            take(wait, false);
        } catch (InterruptedException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private void take(Duration wait, boolean interruptible) throws InterruptedException {
        if (interruptible && Thread.interrupted()) throw new InterruptedException();
        Lease lease = client.acquire(List.of(new LatchgateClient.Key(key, options)), false, options.copy().wait(wait), interruptible);
        held.computeIfAbsent(Thread.currentThread(), thread -> new ArrayDeque<>()).push(lease);
    }

    /** Throws LeaseLost if the lease had ended before: other threads may have had the lock since. */
    @Override
    public void unlock() {
        Deque<Lease> mine = held.get(Thread.currentThread());
        if (mine == null) throw new IllegalMonitorStateException("this thread does not hold " + key);
        Lease lease = mine.pop();
        if (mine.isEmpty()) held.remove(Thread.currentThread());
        lease.close();
    }

    /** What this thread holds. */
    public Lease lease() {
        Deque<Lease> mine = held.get(Thread.currentThread());
        if (mine == null) throw new IllegalMonitorStateException("this thread does not hold " + key);
        return mine.peek();
    }

    /** Higher than that of every earlier holder: send it with each write. */
    public long token() { return lease().token(); }

    public boolean isHeldByCurrentThread() { return held.containsKey(Thread.currentThread()) && lease().keeper.remaining() > 0; }

    @Override
    public Condition newCondition() { throw new UnsupportedOperationException("a lock of the service has no conditions"); }
}
