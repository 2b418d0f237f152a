package io.latchgate;

import java.time.Duration;
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

    private final LatchgateClient client;
    private final Options options;
    private final Map<String, Object> request;

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
        final Map<String, Object> pre = new LinkedHashMap<>(), post = new LinkedHashMap<>();

        /** The length of the attempt's lease, kept by heartbeats. Default: 60 s. */
        public Options ttl(Duration ttl) { this.ttl = ttl; return this; }

        /** How long to wait for the end of another attempt. Default: 60 s. */
        public Options wait(Duration wait) { this.wait = wait; return this; }

        /** After an attempt that failed or vanished, the next caller runs, instead of waiting for an operator. */
        public Options retry() { this.onExpiry = "retry"; return this; }

        /** JSON that must be equal in all calls, but does not identify the operation. */
        public Options checked(Object checked) { pre.put("checked", Json.Text.ofIdentity("checked", checked)); return this; }

        /** "fast" or "durable". */
        public Options durability(String durability) { pre.put("durability", Objects.requireNonNull(durability)); return this; }

        /** "closed", "fallback" or "open". */
        public Options onOutage(String onOutage) { pre.put("on_outage", onOutage); return this; }

        /** What a person reads of the operation. */
        public Options label(String label) { pre.put("label", Objects.requireNonNull(label)); return this; }

        /** How long a success is known. Default: a day. */
        public Options retention(Duration retention) { post.put("retention_ms", Nodes.millis(retention)); return this; }

        /** A success is never forgotten. */
        public Options permanent() { post.put("permanent", true); return this; }
    }

    public static Options options() { return new Options(); }

    /** The permission to do the operation, kept by heartbeats while the work runs. */
    public static final class Attempt {
        private final Answer granted;
        final Keeper keeper;

        private Attempt(Answer granted, Keeper keeper) {
            this.granted = granted;
            this.keeper = keeper;
        }

        public String id() { return granted.text("id"); }

        /** From 1; 0 if it is not guarded. */
        public long number() { return Answer.number(granted.body(), "attempt"); }

        /** False if the store does not answer and the options say "open", so other callers may proceed too. */
        public boolean isGuarded() { return keeper != null; }

        /** An earlier attempt may have done part of the work. */
        public boolean isReentry() { return Answer.is(granted.body(), "reentry"); }

        /** The store may have lost the record of an earlier attempt. */
        public boolean isPossiblyRepeated() { return Answer.is(granted.body(), "possibly_repeated"); }

        /** Throws AttemptLost if another attempt may have begun. Call it before each step that cannot be undone. */
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
        request.put("ttl_ms", Nodes.millis(options.ttl));
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
        String outcome = "failure"; // until the work begins, surely nothing was done
        Keeper keeper = null;
        try {
            if (Answer.is(granted.body(), "guarded")) {
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
            return new Done(result, false, once.postSuccess(granted, result));
        } catch (LatchgateException.NotDone nothing) {
            // Only the work can know that.
            outcome = "failure";
            throw nothing;
        } finally {
            if (keeper != null) keeper.end(null);
            if (!outcome.equals("success")) once.post(granted, outcome, client.nodes.retryFor);
        }
    }

    private Answer pre() throws InterruptedException {
        Nodes.Call call = client.nodes.within(options.wait, options.ttl);
        boolean isGranted = false;
        try {
            Answer answer = client.nodes.call("/v1/operations/pre", request, call);
            isGranted = !answer.text("id").isEmpty() && !answer.text("stamp").isEmpty();
            if (!isGranted) throw LatchgateException.noAnswer("the answer is none of a gate");
            return answer;
        } finally {
            if (!isGranted && call.doubt) {
                Thread giver = new Thread(this::giveBack, "latchgate giving back");
                giver.setDaemon(false); // the process goes on for it: a claim that stays would block the operation
                giver.start();
            }
        }
    }

    /** Repeats a pre until a node says whether it was claimed, at most for the length of its lease. Its work has not begun, so the attempt is
     * reported as a failure. */
    private void giveBack() {
        // An unguarded permission says nothing about the claim.
        if ("open".equals(request.get("on_outage"))) request.put("on_outage", "closed");
        long until = Clock.now() + options.ttl.toNanos();
        while (Clock.now() < until) {
            Nodes.Call call = client.nodes.within();
            call.doubt = true;
            try {
                Answer granted = Nodes.uninterrupted(() -> client.nodes.call("/v1/operations/pre", request, call));
                post(granted, "failure", Math.max(client.nodes.retryFor, options.ttl.toNanos()));
                return;
            } catch (LatchgateException error) {
                if (!call.doubt) return;
            }
            LockSupport.parkNanos(2 * Nodes.PAUSE_MIN);
        }
        LOG.log(System.Logger.Level.WARNING, "no node says whether an operation was claimed: it may stay blocked");
    }

    private static String path(Answer granted, String verb) { return "/v1/operations/" + granted.text("id") + "/" + verb; }

    /** Whether the result was omitted. */
    private boolean postSuccess(Answer granted, Object result) {
        Map<String, Object> body = new LinkedHashMap<>(options.post);
        body.put("stamp", granted.text("stamp"));
        body.put("outcome", "success");
        long patience = Math.max(client.nodes.retryFor, granted.left());
        try {
            try {
                body.put("result", Json.Text.of("the result", result));
                return Answer.is(client.nodes.callToEnd(path(granted, "post"), body, patience).body(), "result_omitted");
            } catch (LatchgateException | IllegalArgumentException failure) {
                boolean isOfResult = !(failure instanceof LatchgateException error) || error.status == 400 || error.status == 413;
                if (!isOfResult) throw failure;
                LOG.log(System.Logger.Level.WARNING, "the result of operation " + granted.text("id") + " is not stored: " + failure);
            }
            body.remove("result");
            client.nodes.callToEnd(path(granted, "post"), body, patience);
            return true;
        } catch (LatchgateException error) {
            throw new LatchgateException.NotRecorded(error, result);
        }
    }

    /** After a failure, which is more important than that of the post. */
    private void post(Answer granted, String outcome, long patience) {
        try {
            client.nodes.callToEnd(path(granted, "post"), Map.of("stamp", granted.text("stamp"), "outcome", outcome), patience);
        } catch (LatchgateException failure) {
            LOG.log(System.Logger.Level.WARNING, "the outcome " + outcome + " of operation " + granted.text("id") + " is not recorded: " + failure);
        }
    }
}
