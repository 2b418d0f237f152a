package io.latchgate;

import java.util.ArrayDeque;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;

/** Runs of this process that were made without a claim, because the gate did not answer, and successes of attempts that no node has recorded. One
 * thread reports them: each is repeated until a node answers, for as long as the process lives. */
final class Unclaimed {
    /** The most that are not reported yet. With more, {@link Once.Options#proceedOnOutage} does nothing. */
    private static final int MAX = 1_000;
    private static final long PAUSE_MAX = 30_000 * Nodes.MS;
    private static final System.Logger LOG = System.getLogger("io.latchgate");

    static final String ENTER = "/v1/operations/enter";

    /** Of a success. The warning is for one that is not recorded. That of an attempt has a run, to be entered if the store has lost the attempt. */
    static final class Report {
        private final String warning;
        private String path;
        private Map<String, Object> body, run;
        private boolean isRefused;

        Report(String warning, String path, Map<String, Object> body, Map<String, Object> run) {
            this.warning = warning;
            this.path = path;
            this.body = body;
            this.run = run;
        }

        /** Whether the store has lost the attempt. Then the run is reported from now on. */
        boolean changesToRun(LatchgateException error) {
            if (run == null || !List.of("operation-not-found", "stamp-mismatch").contains(error.code)) return false;
            path = ENTER;
            body = run;
            run = null;
            return true;
        }

        /** Whether it is tried again after this error, at once or later. */
        private boolean goesOn(LatchgateException error) {
            if (error instanceof LatchgateException.Unavailable) return true;
            if (changesToRun(error)) return true;
            boolean isOfApiKey = error.status == 401 || error.status == 403;
            if (!isOfApiKey || !isRefused) LOG.log(System.Logger.Level.WARNING, warning + (isOfApiKey ? " yet: " : ": ") + error);
            return isRefused = isOfApiKey;
        }
    }

    /** Those of all clients that are not recorded. */
    private static final Set<Report> OPEN = Collections.synchronizedSet(Collections.newSetFromMap(new IdentityHashMap<>()));

    static {
        try {
            // Not with the logger: those of the JDK are closed at the same time.
            Runtime.getRuntime().addShutdownHook(new Thread(() -> OPEN.forEach(success ->
                    System.err.println("latchgate: " + success.warning + ": the process ends"))));
        } catch (IllegalStateException ending) {
            // Then nothing is reported.
        }
    }

    private final Nodes nodes;
    /** With those whose work still runs. */
    private int count;
    private final ArrayDeque<Report> ended = new ArrayDeque<>();
    private boolean isRunning;

    Unclaimed(Nodes nodes) { this.nodes = nodes; }

    /** Whether there is room for one more. */
    synchronized boolean begin() {
        if (count == MAX) return false;
        count++;
        return true;
    }

    synchronized void end() { count--; }

    synchronized void report(Report success) {
        ended.add(success);
        OPEN.add(success);
        if (!isRunning) Renewals.daemon("latchgate reporting", this::run).start();
        isRunning = true;
    }

    private synchronized Report next() {
        isRunning = !ended.isEmpty();
        return ended.poll();
    }

    private void run() {
        long pause = Nodes.PAUSE_MIN;
        for (Report success = next(); success != null; success = next()) {
            try {
                Answer answer = nodes.report(success.path, success.body, nodes.retryFor);
                if (Answer.is(answer.body(), "double_run")) LOG.log(System.Logger.Level.WARNING, "operation " + answer.text("id") + " may have run twice");
            } catch (LatchgateException error) {
                if (success.goesOn(error)) {
                    LockSupport.parkNanos(Nodes.jitter(pause, 1, 1.5));
                    pause = Math.min(2 * pause, PAUSE_MAX);
                    synchronized (this) {
                        ended.add(success);
                    }
                    continue;
                }
            }
            pause = Nodes.PAUSE_MIN;
            OPEN.remove(success);
            end();
        }
    }
}
