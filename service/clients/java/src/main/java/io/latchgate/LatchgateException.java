package io.latchgate;

import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;

/** An answer that does not let the caller proceed, or the lack of an answer. There is one subclass for each decision that a caller takes. */
public class LatchgateException extends RuntimeException {
    /** Stable, and explained in docs/ERRORS.md. */
    public final String code;
    /** Of the answer; 0 if there was none. */
    public final int status;
    /** All fields of the answer's problem. */
    public final transient Map<String, Object> fields;

    LatchgateException(int status, Map<String, Object> fields) {
        super(fields.getOrDefault("code", "no-answer") + ": " + fields.getOrDefault("detail", fields.getOrDefault("title", "")));
        this.code = String.valueOf(fields.getOrDefault("code", "no-answer"));
        this.status = status;
        this.fields = fields;
    }

    /** The request cannot be granted as it is: {@link #code} says why. */
    public static final class Refused extends LatchgateException {
        Refused(int status, Map<String, Object> fields) { super(status, fields); }
    }

    /** Another caller has the lock or comes first. */
    public static class LockHeld extends LatchgateException {
        LockHeld(int status, Map<String, Object> fields) { super(status, fields); }

        /** The first holders, with {@code owner}, {@code mode}, {@code token} and so on. */
        @SuppressWarnings("unchecked")
        public List<Map<String, Object>> holders() { return (List<Map<String, Object>>) fields.getOrDefault("holders", List.of()); }
    }

    /** The caller's wait has ended without the lock. */
    public static final class WaitTimeout extends LockHeld {
        WaitTimeout(int status, Map<String, Object> fields) { super(status, fields); }
    }

    /** A higher token has been granted or presented: refuse what the holder of this one wants to do. */
    public static final class StaleToken extends LatchgateException {
        StaleToken(int status, Map<String, Object> fields) { super(status, fields); }

        public long current() { return Answer.number(fields, "current"); }
    }

    /** The lease has ended before it was released: stop the work that it protects. */
    public static final class LeaseLost extends LatchgateException {
        LeaseLost(int status, Map<String, Object> fields) { super(status, fields); }

        /** expired, released, revoked, forced or unknown if a node has said so; unanswered if no renewal was answered in time. */
        public String why() {
            for (Map<String, Object> result : Answer.list(fields, "results")) if (result.get("why") != null) return result.get("why").toString();
            return String.valueOf(fields.getOrDefault("why", "unknown"));
        }
    }

    /** Another attempt runs, and the caller's wait has ended. */
    public static final class OperationInProgress extends LatchgateException {
        OperationInProgress(int status, Map<String, Object> fields) { super(status, fields); }
    }

    /** An earlier attempt may have done the operation: an operator finds out, and resolves it. */
    public static final class OperationUnknown extends LatchgateException {
        OperationUnknown(int status, Map<String, Object> fields) { super(status, fields); }
    }

    /** Another attempt may have the operation: stop. */
    public static final class AttemptLost extends LatchgateException {
        AttemptLost(int status, Map<String, Object> fields) { super(status, fields); }
    }

    /** The work was done, but the gate does not know it. */
    public static final class NotRecorded extends LatchgateException {
        /** What the work returned. */
        public final transient Object result;

        NotRecorded(LatchgateException cause, Object result) {
            super(cause.status, cause.fields);
            this.result = result;
            initCause(cause);
        }
    }

    /** No node has given an answer to rely on, in all the time for repeating the call. It may have been carried out. */
    public static final class Unavailable extends LatchgateException {
        Unavailable(int status, Map<String, Object> fields) { super(status, fields); }
    }

    /** The work of {@code once} throws this to say that surely nothing was done: the next caller may proceed at once. */
    public static final class NotDone extends RuntimeException {
        public NotDone(String message) { super(message); }
    }

    private static final Map<String, BiFunction<Integer, Map<String, Object>, LatchgateException>> BY_CODE = Map.of(
            "stale-token", StaleToken::new, "wait-timeout", WaitTimeout::new, "lease-lost", LeaseLost::new,
            "operation-in-progress", OperationInProgress::new, "operation-unknown", OperationUnknown::new,
            "operation-superseded", AttemptLost::new, "operation-ended", AttemptLost::new,
            "operation-not-found", AttemptLost::new, "stamp-mismatch", AttemptLost::new);

    static LatchgateException of(int status, Map<String, Object> fields) {
        if (status >= 500 || isTransient(status)) return new Unavailable(status, fields);
        return BY_CODE.getOrDefault(String.valueOf(fields.get("code")), status == 423 ? LockHeld::new : Refused::new).apply(status, fields);
    }

    static Unavailable noAnswer(String detail) { return new Unavailable(0, Map.of("code", "no-answer", "detail", detail)); }

    static LeaseLost lost(String detail, String why) {
        return new LeaseLost(0, Map.of("code", "lease-lost", "detail", detail, "why", why));
    }

    /** Whether the same request may pass later. A node sends 503; a proxy in front of it may send the others. */
    static boolean isTransient(int status) { return status == 429 || status == 502 || status == 503 || status == 504; }
}
