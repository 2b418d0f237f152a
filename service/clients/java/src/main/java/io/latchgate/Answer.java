package io.latchgate;

import java.util.List;
import java.util.Map;

/** An answer, and when its request was sent: what a lease has left counts from there. */
record Answer(long sent, int status, Map<String, Object> body) {
    static long number(Map<String, Object> body, String name) { return body.get(name) instanceof Number number ? number.longValue() : 0; }

    static boolean is(Map<String, Object> body, String name) { return Boolean.TRUE.equals(body.get(name)); }

    @SuppressWarnings("unchecked")
    static List<Map<String, Object>> list(Map<String, Object> body, String name) {
        return body.get(name) instanceof List<?> list && list.stream().allMatch(one -> one instanceof Map) ? (List<Map<String, Object>>) list : List.of();
    }

    long retryAfter() { return number(body, "retry_after_ms") * 1_000_000; }

    /** What the lease, or the shortest of several, had left. */
    long left() {
        return list(body, "results").stream().mapToLong(one -> number(one, "ttl_ms")).min().orElse(number(body, "ttl_ms")) * 1_000_000;
    }
}
