package io.latchgate;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * A lease (of one key or of several) or an attempt with its heartbeat: what is known of it, and when to renew it. It knows nothing of the
 * object that the caller has: when that is forgotten without a release, the renewals stop.
 */
final class Keeper {
    final String name;
    /** Pairs of key and lease_id, as a renewal names them; none of an attempt. */
    final List<Map<String, Object>> leases;
    /** Of an attempt; null otherwise. */
    final String beatPath;
    final String stamp;
    final long length;
    /** For leases nested in this one. */
    Thread thread;
    String owner;
    boolean isNamed;

    private boolean isOver;
    private LatchgateException loss;
    boolean interrupts;
    private final List<Consumer<LatchgateException>> callbacks = new ArrayList<>();
    private long sent, left;
    private Map<String, Object> body;
    /** From `early` on it goes with leases that are due, so that leases of one length soon go together. */
    long due, early;
    private int failures;
    /** A request with it has no answer yet. */
    boolean isSent;
    /** How many may go in one request: less after a request without an answer, which may be the fault of one of them. */
    int together;

    Keeper(String name, List<Map<String, Object>> leases, String beatPath, String stamp, long length, Answer first) {
        this.name = name;
        this.leases = leases;
        this.beatPath = beatPath;
        this.stamp = stamp;
        this.length = length;
        renewed(first.sent(), first.left(), first.body());
    }

    synchronized long until() { return sent + left; }

    synchronized long sent() { return sent; }

    /** Of the last renewal. */
    synchronized Map<String, Object> body() { return body; }

    /** Until the lease may have ended; 0 if it is lost or stopped. */
    synchronized long remaining() {
        long remains = sent + left - Clock.now();
        if (!isOver && remains <= 0) end(LatchgateException.lost("no renewal of " + name + " was answered in time", "unanswered"));
        return isOver ? 0 : remains;
    }

    /** Ends the renewals, with a loss or because the lease is released (null). What comes first counts, and is returned. */
    synchronized LatchgateException end(LatchgateException how) {
        if (!isOver) {
            isOver = true;
            loss = how;
            if (loss != null) {
                // Under the mutex, so that no interrupt comes after a release.
                if (interrupts) thread.interrupt();
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

    private void start(Consumer<LatchgateException> callback) {
        LatchgateException why = loss;
        Renewals.daemon("latchgate loss", () -> callback.accept(why)).start();
    }

    private void renewed(long sent, long left, Map<String, Object> body) {
        this.sent = sent;
        this.left = left;
        this.body = body;
        // The lower bound is for leases that a revocation or `max_hold` is ending: each renewal leaves them shorter.
        long pause = Nodes.jitter(Math.max(left / 3, length / 10), 0.9, 1);
        due = sent + pause;
        early = sent + pause / 2;
        failures = 0;
        together = beatPath != null ? 1 : Renewals.LEASES_PER_CALL_MAX;
    }

    /** A renewal was not answered, or refused for another reason than a loss. When the lease has ended, `remaining` reports the loss. */
    synchronized void failed(int nodes, long retryAfter) {
        long pause = 0;
        if (++failures % nodes == 0) {
            long back = Math.min(Nodes.PAUSE_MIN << Math.min(failures / nodes - 1, 10), Nodes.PAUSE_MAX);
            pause = Nodes.jitter(Math.max(back, retryAfter), 1, 1.5);
        }
        long now = Clock.now();
        due = early = now + Math.max(Math.min(pause, (until() - now) / 4), 0);
    }

    /** The results are those of all its keys, or the answer to its heartbeat. */
    synchronized void settle(int nodes, long sent, List<Map<String, Object>> results) {
        Map<String, Object> worst = null;
        long left = Long.MAX_VALUE;
        for (Map<String, Object> result : results) {
            long status = Answer.number(result, "status");
            if (status / 100 != 2 || !(result.get("ttl_ms") instanceof Long)) {
                // A loss is more serious than what is not known of another key.
                if (worst == null || status == 410 && Answer.number(worst, "status") != 410) worst = result;
            } else {
                left = Math.min(left, Answer.number(result, "ttl_ms") * Nodes.MS);
            }
        }
        if (worst == null) {
            renewed(sent, left, Map.of("results", results));
            return;
        }
        Map<String, Object> fields = new java.util.LinkedHashMap<>(worst);
        if (results.size() > 1) fields.put("results", results);
        LatchgateException error = LatchgateException.of((int) Answer.number(worst, "status"), fields);
        if (error instanceof LatchgateException.LeaseLost || error instanceof LatchgateException.AttemptLost) end(error);
        else failed(nodes, Answer.number(worst, "retry_after_ms") * Nodes.MS);
    }
}
