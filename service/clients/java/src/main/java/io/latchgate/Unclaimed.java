package io.latchgate;

import java.util.ArrayDeque;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;

/** Runs of this process that were made without a claim, because the gate did not answer. One thread enters them: each is repeated until a node
 * answers, for as long as the process lives. */
final class Unclaimed {
    /** The most runs that are not entered yet. With more, {@link Once.Options#proceedOnOutage} does nothing. */
    private static final int MAX = 1_000;
    private static final long PAUSE_MAX = 30_000 * Nodes.MS;
    private static final System.Logger LOG = System.getLogger("io.latchgate");

    /** Those of all clients that have ended and are not entered. */
    private static final Set<Map<String, Object>> OPEN = Collections.synchronizedSet(Collections.newSetFromMap(new IdentityHashMap<>()));

    static {
        try {
            // Not with the logger: those of the JDK are closed at the same time.
            Runtime.getRuntime().addShutdownHook(new Thread(() -> OPEN.forEach(run ->
                    System.err.println("latchgate: a run of operation " + run.get("operation") + " without a claim is not entered: the process ends"))));
        } catch (IllegalStateException ending) {
            // Then nothing is reported.
        }
    }

    private final Nodes nodes;
    /** With those whose work still runs. */
    private int count;
    private final ArrayDeque<Map<String, Object>> ended = new ArrayDeque<>();
    private boolean isRunning;

    Unclaimed(Nodes nodes) { this.nodes = nodes; }

    /** Whether there is room for one more. */
    synchronized boolean begin() {
        if (count == MAX) return false;
        count++;
        return true;
    }

    synchronized void end() { count--; }

    synchronized void enter(Map<String, Object> run) {
        ended.add(run);
        OPEN.add(run);
        if (!isRunning) Renewals.daemon("latchgate entering runs", this::run).start();
        isRunning = true;
    }

    private synchronized Map<String, Object> next() {
        isRunning = !ended.isEmpty();
        return ended.poll();
    }

    private void run() {
        long pause = Nodes.PAUSE_MIN;
        for (Map<String, Object> run = next(); run != null; run = next()) {
            String operation = "operation " + run.get("operation");
            try {
                Answer entered = nodes.callToEnd("/v1/operations/enter", run, nodes.retryFor);
                if (Answer.is(entered.body(), "double_run")) LOG.log(System.Logger.Level.WARNING, operation + " (" + entered.text("id") + ") may have run twice");
            } catch (LatchgateException.Unavailable outage) {
                LockSupport.parkNanos(Nodes.jitter(pause, 1, 1.5));
                pause = Math.min(2 * pause, PAUSE_MAX);
                synchronized (this) {
                    ended.add(run);
                }
                continue;
            } catch (LatchgateException refused) {
                LOG.log(System.Logger.Level.WARNING, "a run of " + operation + " without a claim is not entered: " + refused);
            }
            pause = Nodes.PAUSE_MIN;
            OPEN.remove(run);
            end();
        }
    }
}
