package io.latchgate;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** An answer, or one of several results in it, and when its request was sent: what a lease has left counts from there. The status is 0 if the
 * node was not reached, or did not answer in time or in full. Unsent: the node cannot have carried out the request. */
record Answer(long sent, int status, Map<String, Object> body, boolean isUnsent) {
    /** The codes of what is no answer of a node. A foreign answer is that of a gateway. */
    static final String NO_ANSWER = "no-answer", FOREIGN = "foreign-answer";

    static Answer none(long sent, String code, String detail, boolean isUnsent, long retryAfterMs) {
        return new Answer(sent, 0, Map.of("code", code, "detail", detail, "retry_after_ms", retryAfterMs), isUnsent);
    }

    static long number(Map<String, Object> body, String name) { return body.get(name) instanceof Number number ? number.longValue() : 0; }

    static boolean is(Map<String, Object> body, String name) { return Boolean.TRUE.equals(body.get(name)); }

    @SuppressWarnings("unchecked")
    static List<Map<String, Object>> list(Map<String, Object> body, String name) {
        return body.get(name) instanceof List<?> list && list.stream().allMatch(one -> one instanceof Map) ? (List<Map<String, Object>>) list : List.of();
    }

    String text(String name) { return body.get(name) instanceof String text ? text : ""; }

    long retryAfter() { return number(body, "retry_after_ms") * Nodes.MS; }

    /** What the lease had left. */
    long left() { return number(body, "ttl_ms") * Nodes.MS; }

    /** Those of the leases that the request has named. */
    Map<Map<String, Object>, Answer> results() {
        Map<Map<String, Object>, Answer> all = new HashMap<>();
        for (Map<String, Object> result : list(body, "results")) {
            Answer one = new Answer(sent, (int) number(result, "status"), result, false);
            all.put(Map.of("key", one.text("key"), "lease_id", one.text("lease_id")), one);
        }
        return all;
    }

    /** Codes of 500 and above with which a node says that it has done nothing. */
    private static final List<String> NOTHING_DONE = List.of("overloaded", "store-unavailable", "shutting-down", "state-unreadable");

    /** Whether a node may have carried out the call, though no answer says so. Only a decision about this very call ends a doubt: a refusal
     * for another reason says nothing about earlier requests. */
    boolean leavesDoubt(boolean before) {
        return switch (status) {
            case 409, 410, 422, 423 -> false;
            case 0 -> before || !isUnsent;
            // Of the answers of 500 and above, those of a gateway and those about a defect say nothing.
            default -> before || status < 300 || status >= 500 && !NOTHING_DONE.contains(text("code"));
        };
    }

    /** Whether the same request may pass later: there was no answer, or a node has sent 503, or a proxy in front of it one of the others. */
    boolean isTransient() { return List.of(0, 429, 502, 503, 504).contains(status); }
}
