package io.latchgate;

import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** An answer that does not let the caller proceed, or the lack of an answer. There is one subclass for each decision that a caller takes. */
public class LatchgateException extends RuntimeException {
    /** Stable, and explained in docs/ERRORS.md. */
    public final String code;
    /** Of the answer; 0 if there was none. */
    public final int status;
    /** All fields of the answer's problem. */
    public final transient Map<String, Object> fields;
    final transient Answer answer;

    LatchgateException(Answer answer) {
        super(answer.text("code") + ": " + answer.text("detail"));
        this.code = answer.text("code");
        this.status = answer.status();
        this.fields = answer.body();
        this.answer = answer;
    }

    /** The request cannot be granted as it is: {@link #code} says why. */
    public static final class Refused extends LatchgateException {
        Refused(Answer answer) { super(answer); }
    }

    /** Another caller has the lock or comes first. */
    public static class LockHeld extends LatchgateException {
        LockHeld(Answer answer) { super(answer); }

        /** The first holders, with {@code owner}, {@code mode}, {@code token} and so on. */
        @SuppressWarnings("unchecked")
        public List<Map<String, Object>> holders() { return (List<Map<String, Object>>) fields.getOrDefault("holders", List.of()); }
    }

    /** The caller's wait has ended without the lock. */
    public static final class WaitTimeout extends LockHeld {
        WaitTimeout(Answer answer) { super(answer); }
    }

    /** A higher token has been granted or presented: refuse what the holder of this one wants to do. */
    public static final class StaleToken extends LatchgateException {
        StaleToken(Answer answer) { super(answer); }

        public long current() { return Answer.number(fields, "current"); }
    }

    /** The lease has ended before it was released: stop the work that it protects. */
    public static final class LeaseLost extends LatchgateException {
        LeaseLost(Answer answer) { super(answer); }

        /** expired, released, revoked, forced or unknown if a node has said so; unanswered if no renewal was answered in time. It is also
         * revoked if the last renewal has shown that the lease would end by a revocation. */
        public String why() {
            for (Map<String, Object> result : Answer.list(fields, "results")) if (result.get("why") != null) return result.get("why").toString();
            return String.valueOf(fields.getOrDefault("why", "unknown"));
        }
    }

    /** Another attempt runs, and the caller's wait has ended. */
    public static final class OperationInProgress extends LatchgateException {
        OperationInProgress(Answer answer) { super(answer); }
    }

    /** An earlier attempt may have done the operation: an operator finds out, and resolves it. */
    public static final class OperationUnknown extends LatchgateException {
        OperationUnknown(Answer answer) { super(answer); }
    }

    /** Another attempt may have the operation: stop. */
    public static final class AttemptLost extends LatchgateException {
        AttemptLost(Answer answer) { super(answer); }
    }

    /** The work was done, but the gate does not know it. */
    public static final class NotRecorded extends LatchgateException {
        /** What the work returned. */
        public final transient Object result;

        NotRecorded(LatchgateException cause, Object result) {
            super(cause.answer);
            this.result = result;
            initCause(cause);
        }
    }

    /** No node has given an answer to rely on, in all the time for repeating the call, or the app has used up a quota (quota-reached). Without an
     * answer, the call may have been carried out. */
    public static final class Unavailable extends LatchgateException {
        Unavailable(Answer answer) { super(answer); }
    }

    /** The work of {@code once} throws this to say that surely nothing was done: the next caller may proceed at once. */
    public static final class NotDone extends RuntimeException {
        public NotDone(String message) { super(message); }
    }

    private static final Map<String, Function<Answer, LatchgateException>> BY_CODE = Map.of(
            "stale-token", StaleToken::new, "wait-timeout", WaitTimeout::new, "lease-lost", LeaseLost::new,
            "operation-in-progress", OperationInProgress::new, "operation-unknown", OperationUnknown::new,
            "operation-superseded", AttemptLost::new, "operation-ended", AttemptLost::new,
            "operation-not-found", AttemptLost::new, "stamp-mismatch", AttemptLost::new);

    static LatchgateException of(Answer answer) {
        if (answer.status() >= 500 || answer.isTransient()) return new Unavailable(answer);
        return BY_CODE.getOrDefault(answer.text("code"), answer.status() == 423 ? LockHeld::new : Refused::new).apply(answer);
    }

    static LatchgateException foreign(String detail) { return of(Answer.none(0, Answer.FOREIGN, detail, false, 0)); }

    static LeaseLost lost(String detail, String why) {
        return new LeaseLost(new Answer(0, 0, Map.of("code", "lease-lost", "detail", detail, "why", why), false));
    }
}
