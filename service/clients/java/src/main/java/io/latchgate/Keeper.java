package io.latchgate;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * A lease (of one key or of several) or an attempt: what is known of it, and when to renew it. It knows nothing of the object that the caller
 * has: when that is forgotten without a release, the renewals stop.
 */
final class Keeper {
    final String name;
    /** Of an attempt's heartbeat; null otherwise. */
    final String beatPath;
    /** Pairs of key and lease_id, as a renewal names them; of an attempt, the stamp. */
    final List<Map<String, Object>> leases;
    /** Of the leases in a request. */
    final int bytes;
    private final long length;
    /** The thread to be interrupted if the lease is lost; null if none is. */
    private Thread interrupts;

    private boolean isOver;
    private LatchgateException loss;
    private final List<Consumer<LatchgateException>> callbacks = new ArrayList<>();
    /** When the last renewal that was answered was sent, and when the lease may have ended. */
    private long sent, until;
    private Map<?, ?> revocation;
    /** From `early` on it goes with leases that are due, so that leases of one length soon go together. */
    private long due, early;
    private int failures;
    /** The index of the node that was asked last: after a failure, each is asked in turn, whatever other calls have found meanwhile. */
    private int asked;
    /** A request with it has no answer yet. */
    private boolean isSent;
    /** How many may go in one request: less after a request without an answer, which may be the fault of one of them. */
    private int together;

    Keeper(String name, String beatPath, List<Map<String, Object>> leases, long length) {
        this.name = name;
        this.beatPath = beatPath;
        this.leases = leases;
        this.bytes = Json.write(leases).getBytes(StandardCharsets.UTF_8).length;
        this.length = length;
    }

    synchronized long until() { return until; }

    synchronized long silentSeconds() { return (Clock.now() - sent) / (1_000 * Nodes.MS); }

    synchronized Map<?, ?> revocation() { return revocation; }

    synchronized int together() { return together; }

    /** When it is due; never if a request with it has no answer yet. */
    synchronized long due() { return isSent ? Long.MAX_VALUE : due; }

    synchronized boolean isReady(long now) { return !isSent && early <= now; }

    /** The index of the node that renews it. */
    synchronized int node(Nodes nodes) { return failures == 0 ? nodes.first() : nodes.after(asked); }

    synchronized void send(int index) {
        isSent = true;
        asked = index;
    }

    /** Until the lease may have ended; 0 if it is lost or stopped. */
    long remaining() { return remaining(Clock.now()); }

    synchronized long remaining(long now) {
        if (!isOver && until <= now) end(isRevoked() ? revoked() : LatchgateException.lost("no renewal of " + name + " was answered in time", "unanswered"));
        return isOver ? 0 : until - now;
    }

    /** Whether the last renewal has shown that the lease ends by a revocation. */
    private boolean isRevoked() { return revocation != null && deadline(revocation) <= until - sent; }

    private LatchgateException revoked() {
        Object by = revocation.get("by"), reason = revocation.get("reason");
        return LatchgateException.lost((by == null ? "an operator" : by) + " has revoked " + name + (reason == null ? "" : ": " + reason), "revoked");
    }

    private static long deadline(Map<?, ?> revocation) {
        return revocation.get("deadline_ms") instanceof Number left ? left.longValue() * Nodes.MS : Long.MAX_VALUE;
    }

    /** Throws if the lease may have ended, or is released, with the trace of the caller's thread. */
    void check() {
        if (remaining() > 0) return;
        LatchgateException how = end(null);
        if (how == null) how = LatchgateException.lost(name + " is released", "released");
        throw beatPath == null ? new LatchgateException.LeaseLost(how.answer) : new LatchgateException.AttemptLost(how.answer);
    }

    /** Ends the renewals, with a loss or because the lease is released (null). What comes first counts, and is returned. */
    synchronized LatchgateException end(LatchgateException how) {
        if (!isOver) {
            isOver = true;
            loss = how;
            if (loss != null) {
                // Under the mutex, so that no interrupt comes after a release.
                if (interrupts != null) interrupts.interrupt();
                callbacks.forEach(this::start);
            }
            callbacks.clear();
        }
        return loss;
    }

    synchronized void onLoss(Consumer<LatchgateException> callback) {
        if (!isOver) callbacks.add(callback);
        else if (loss != null) start(callback);
    }

    synchronized void interruptOnLoss(Thread thread) {
        interrupts = thread;
        if (loss != null) thread.interrupt();
    }

    private void start(Consumer<LatchgateException> callback) {
        LatchgateException why = loss;
        Renewals.daemon("latchgate loss", () -> callback.accept(why)).start();
    }

    /** Reads the result of each lease, or the answer itself if it has none. */
    synchronized void settle(Answer got, Map<Map<String, Object>, Answer> results, int batch) {
        long left = Long.MAX_VALUE;
        Map<?, ?> asked = null;
        Answer worst = null;
        for (Map<String, Object> lease : leases) {
            Answer one = results.getOrDefault(lease, got);
            if (one.status() / 100 == 2 && one.left() > 0) {
                left = Math.min(left, one.left());
                // Of several keys, that with the earliest deadline.
                if (one.body().get("revocation") instanceof Map<?, ?> revoked && (asked == null || deadline(revoked) < deadline(asked))) asked = revoked;
            } else if (worst == null || one.status() == 410) {
                worst = one; // a loss is more serious than what is not known of another key
            }
        }
        isSent = false;
        if (worst == null) {
            renewed(got.sent(), left, asked);
            return;
        }
        LatchgateException error = LatchgateException.of(worst);
        if (error instanceof LatchgateException.LeaseLost || error instanceof LatchgateException.AttemptLost) end(error);
        else failed(worst.retryAfter());
        // Also if it is refused as a whole, because of one of its keys.
        if (results.isEmpty()) together = Math.max(batch / Renewals.PARTS, 1);
    }

    private void renewed(long sent, long left, Map<?, ?> revocation) {
        this.sent = sent;
        this.until = sent + left;
        this.revocation = revocation;
        // The lower bound is for leases that a revocation or `max_hold` is ending: each renewal leaves them shorter.
        long pause = Nodes.jitter(Math.max(left / 3, length / 10), 0.9, 1);
        due = sent + pause;
        early = sent + pause / 2;
        failures = 0;
        together = beatPath != null ? 1 : Renewals.LEASES_PER_CALL_MAX;
    }

    /** A renewal was not answered, or refused for another reason than a loss. When the lease has ended, `remaining` reports the loss. */
    private void failed(long retryAfter) {
        long back = Math.min(Nodes.PAUSE_MIN / 4 << Math.min(++failures, 10), Nodes.PAUSE_MAX);
        long pause = Nodes.jitter(Math.max(back, retryAfter), 1, 1.5), now = Clock.now();
        due = early = now + Math.max(Math.min(pause, (until - now) / 4), 0);
    }
}
