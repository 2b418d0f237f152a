package io.latchgate;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/** Work that is done once. */
public final class Once {
    private static final System.Logger LOG = System.getLogger("io.latchgate");
    /** The most that a node keeps. */
    private static final int RESULT_BYTES_MAX = 64 << 10;
    /** With the line about the last heartbeat, less than the 2 KiB that a node keeps. */
    private static final int DETAIL_MAX = 600;

    private final LatchgateClient client;
    private final Options options;
    private final Map<String, Object> request;
    /** A node may have claimed the operation for a run without a claim. */
    private boolean isInDoubt;

    /** The operation has been done, now or earlier. The result is what the work returned, or what the earlier attempt stored, as JSON: maps,
     * lists, strings, longs, doubles, booleans, null. Omitted: it is not stored, because it is too long or no JSON. */
    public record Done(Object result, boolean duplicate, boolean resultOmitted) {}

    /** The work: what it returns is stored if it is JSON. */
    public interface Work<E extends Exception> {
        Object run(Attempt attempt) throws E;
    }

    /** How to do it: see GATE.md. */
    public static final class Options {
        Duration ttl = Duration.ofSeconds(60), wait = Duration.ofSeconds(60);
        String onExpiry = "block";
        boolean proceeds;
        final Map<String, Object> pre = new LinkedHashMap<>();

        /** The length of the attempt's lease, kept by heartbeats. Default: 60 s. */
        public Options ttl(Duration ttl) { this.ttl = Nodes.notNegative("ttl", ttl); return this; }

        /** How long to wait for the end of another attempt. Default: 60 s. */
        public Options wait(Duration wait) { this.wait = Nodes.notNegative("wait", wait); return this; }

        /** After an attempt that failed or vanished, the next caller runs, instead of waiting for an operator. */
        public Options retry() { this.onExpiry = "retry"; return this; }

        /** JSON that must be equal in all calls, but does not identify the operation. */
        public Options checked(Object checked) { pre.put("checked", Json.Text.ofIdentity("checked", checked)); return this; }

        /** "fast" or "durable". */
        public Options durability(String durability) { pre.put("durability", Objects.requireNonNull(durability)); return this; }

        /** When no node answers or the gate's store is away, the work runs without a claim, so other callers may run it too. Its success is
         * entered afterwards, by a daemon thread, for as long as the process lives. Without this, the call throws Unavailable. */
        public Options proceedOnOutage() { this.proceeds = true; return this; }

        /** What a person reads of the operation. */
        public Options label(String label) { pre.put("label", Objects.requireNonNull(label)); return this; }

        /** How long a success is known, so that the work does not run again. Default: a day. */
        public Options retention(Duration retention) { pre.put("retention_ms", Nodes.millis("retention", retention)); return this; }

        /** A success is never forgotten. */
        public Options permanent() { pre.put("permanent", true); return this; }
    }

    public static Options options() { return new Options(); }

    /** The permission to do the operation, kept by heartbeats while the work runs. */
    public static final class Attempt {
        private final Answer granted;
        final Keeper keeper;

        private Attempt(Answer granted, Keeper keeper) {
            this.granted = granted == null ? new Answer(0, 0, Map.of(), false) : granted;
            this.keeper = keeper;
        }

        /** Empty if it is not guarded. */
        public String id() { return granted.text("id"); }

        /** From 1; 0 if it is not guarded. */
        public long number() { return Answer.number(granted.body(), "attempt"); }

        /** False if the gate did not answer and the options say {@link Options#proceedOnOutage}, so other callers may proceed too. */
        public boolean isGuarded() { return keeper != null; }

        /** An earlier attempt may have done part of the work. */
        public boolean isReentry() { return Answer.is(granted.body(), "reentry"); }

        /** The store may have lost the record of an earlier attempt. */
        public boolean isPossiblyRepeated() { return Answer.is(granted.body(), "possibly_repeated"); }

        /** Throws AttemptLost if another attempt may have begun, but never if it is not guarded. Call it before each step that cannot be undone. */
        public void check() { if (keeper != null) keeper.check(); }

        /** Calls it in a thread of its own if the attempt is lost. */
        public void onLoss(Consumer<LatchgateException> callback) { if (keeper != null) keeper.onLoss(callback); }
    }

    private Once(LatchgateClient client, String operation, Object contents, Options options) {
        this.client = client;
        this.options = options;
        request = new LinkedHashMap<>(options.pre);
        request.put("operation", operation);
        request.put("contents", Json.Text.ofIdentity("contents", contents));
        request.put("ttl_ms", Nodes.millis("ttl", options.ttl));
        request.put("on_expiry", options.onExpiry);
        // Names this attempt: a repeated pre gets the same stamp.
        request.put("attempt_id", UUID.randomUUID().toString());
    }

    /**
     * Runs the work if the operation with these contents (JSON) has not succeeded yet, and stores its result. If it has succeeded, the stored
     * result is returned. If another attempt runs, it waits for its end, and then throws OperationInProgress.
     *
     * <p>If the work throws or its process dies, the outcome is unknown: callers get OperationUnknown until an operator decides. If the work
     * throws {@link LatchgateException.NotDone}, or with {@link Options#retry}, the next caller runs it.
     */
    static <E extends Exception> Done once(LatchgateClient client, String operation, Object contents, Options options, Work<E> work)
            throws E, InterruptedException {
        Objects.requireNonNull(work, "the work");
        Once once = new Once(client, operation, contents, options);
        Answer granted;
        try {
            granted = once.pre();
        } catch (LatchgateException.Refused refused) {
            if (!refused.code.equals("operation-duplicate")) throw refused;
            return new Done(refused.fields.get("result"), true, Answer.is(refused.fields, "result_omitted"));
        }
        String outcome = "failure", detail = ""; // until the work begins, surely nothing was done
        Instant ranAt = Instant.now();
        Keeper keeper = null;
        try {
            if (granted != null) {
                List<Map<String, Object>> stamp = List.of(Map.of("stamp", granted.text("stamp")));
                keeper = new Keeper("operation " + granted.text("id"), path(granted, "heartbeat"), stamp, options.ttl.toNanos());
                client.renewals.keep(keeper, granted);
            }
            Attempt attempt = new Attempt(granted, keeper);
            attempt.check(); // unless the answer took too long
            outcome = options.onExpiry.equals("block") ? "unknown" : "failure";
            Object result = work.run(attempt);
            outcome = "success";
            if (keeper != null) keeper.end(null);
            return new Done(result, false, once.succeed(granted, ranAt, result));
        } catch (LatchgateException.NotDone nothing) {
            // Only the work can know that.
            outcome = "failure";
            throw nothing;
        } catch (Throwable failure) {
            detail = failure.toString();
            detail = detail.substring(0, Math.min(detail.length(), DETAIL_MAX)).replaceAll("\\p{Cs}", "?");
            if (keeper != null) detail += "\nThe last heartbeat that was answered was sent " + keeper.silentSeconds() + " s before this report.";
            throw failure;
        } finally {
            if (keeper != null) keeper.end(null);
            if (!outcome.equals("success")) once.fail(granted, outcome, detail);
        }
    }

    private static boolean isAway(LatchgateException error) { return List.of(Answer.NO_ANSWER, "store-unavailable").contains(error.code); }

    /** What a node has granted. */
    private Answer claim(Nodes.Call call) throws InterruptedException {
        call.isOurs = answer -> !answer.text("id").isEmpty() && !answer.text("stamp").isEmpty() && answer.left() > 0;
        return client.nodes.call("/v1/operations/pre", request, call);
    }

    /** Null if the work may run without a claim. */
    private Answer pre() throws InterruptedException {
        Nodes.Call call = client.nodes.within(options.wait, options.ttl);
        boolean isDecided = false;
        try {
            Answer answer = claim(call);
            isDecided = true;
            return answer;
        } catch (LatchgateException.Unavailable outage) {
            // If a node has said that another attempt runs, it would surely be a second run.
            if (!options.proceeds || call.answered || !isAway(outage) || !client.unclaimed.begin()) throw outage;
            LOG.log(System.Logger.Level.WARNING, "operation " + request.get("operation") + " runs without a claim: " + outage);
            isInDoubt = call.doubt;
            isDecided = true;
            return null;
        } finally {
            if (!isDecided && call.doubt) giveBack("failure", "");
        }
    }

    /** Repeats a pre until a node says whether it was claimed, at most for the length of its lease, and reports the outcome: a failure if the
     * work has not begun. */
    private void giveBack(String outcome, String detail) {
        Thread giver = new Thread(() -> {
            long until = Clock.now() + options.ttl.toNanos(), pause = 2 * Nodes.PAUSE_MIN;
            while (Clock.now() < until) {
                Nodes.Call call = client.nodes.within();
                call.doubt = true;
                try {
                    Answer granted = Nodes.uninterrupted(() -> claim(call));
                    post(granted, outcome, detail, Math.max(client.nodes.retryFor, options.ttl.toNanos()));
                    return;
                } catch (LatchgateException error) {
                    if (error.code.equals("operation-unknown")) break; // this claim may be what has ended
                    if (!call.doubt) return;
                }
                LockSupport.parkNanos(pause);
                pause = Math.min(2 * pause, options.ttl.toNanos() / 10);
            }
            LOG.log(System.Logger.Level.WARNING, "no node says whether an operation was claimed: it may stay blocked");
        }, "latchgate giving back");
        giver.setDaemon(false); // the process goes on for it: a claim that stays would block the operation
        giver.start();
    }

    private static String path(Answer granted, String verb) { return "/v1/operations/" + granted.text("id") + "/" + verb; }

    /** Reports the success: that of a run without a claim later, and with `proceedOnOutage` another one too, if it must be. Whether the result
     * was omitted. */
    private boolean succeed(Answer granted, Instant ranAt, Object result) {
        Map<String, Object> run = new LinkedHashMap<>(request);
        run.keySet().removeAll(List.of("ttl_ms", "on_expiry"));
        run.put("ran_at", ranAt.toString());
        boolean isOmitted = !put(run, result);
        if (granted == null) {
            client.unclaimed.report(new Unclaimed.Report("a run of operation " + request.get("operation") + " without a claim is not entered", Unclaimed.ENTER, run, null));
            return isOmitted;
        }
        Map<String, Object> body = new LinkedHashMap<>(Map.of("stamp", granted.text("stamp"), "outcome", "success"));
        for (String name : List.of("result", "result_omitted")) if (run.containsKey(name)) body.put(name, run.get(name));
        try {
            Answer posted = client.nodes.report(path(granted, "post"), body, Math.max(client.nodes.retryFor, granted.left()));
            return isOmitted || Answer.is(posted.body(), "result_omitted");
        } catch (LatchgateException error) {
            var later = new Unclaimed.Report("the success of operation " + granted.text("id") + " is not recorded", path(granted, "post"), body, run);
            boolean isForLater = later.changesToRun(error) || error instanceof LatchgateException.Unavailable;
            if (!options.proceeds || !isForLater || !client.unclaimed.begin()) throw new LatchgateException.NotRecorded(error, result);
            client.unclaimed.report(later);
            return isOmitted;
        }
    }

    /** A result that cannot be stored is omitted, and the success is recorded all the same. */
    private boolean put(Map<String, Object> body, Object result) {
        try {
            Json.Text written = Json.Text.of("the result", result);
            if (written.text().getBytes(StandardCharsets.UTF_8).length > RESULT_BYTES_MAX) throw new IllegalArgumentException("the result is too long");
            body.put("result", written);
            return true;
        } catch (IllegalArgumentException failure) {
            LOG.log(System.Logger.Level.WARNING, "a result of operation " + request.get("operation") + " is not stored: " + failure.getMessage());
            body.put("result_omitted", true);
            return false;
        }
    }

    private void fail(Answer granted, String outcome, String detail) {
        if (granted != null) {
            post(granted, outcome, detail, client.nodes.retryFor);
            return;
        }
        client.unclaimed.end();
        if (isInDoubt) giveBack(outcome, detail);
    }

    /** After a failure, which is more important than that of the post. A person who must decide reads the detail. */
    private void post(Answer granted, String outcome, String detail, long patience) {
        Map<String, Object> body = new LinkedHashMap<>(Map.of("stamp", granted.text("stamp"), "outcome", outcome));
        if (outcome.equals("unknown")) body.put("detail", detail);
        try {
            client.nodes.report(path(granted, "post"), body, patience);
        } catch (LatchgateException failure) {
            LOG.log(System.Logger.Level.WARNING, "the outcome " + outcome + " of operation " + granted.text("id") + " is not recorded: " + failure);
        }
    }
}
