package io.latchgate;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The background thread of one client, which renews its leases together. It ends when there is nothing to keep. */
final class Renewals {
    /** The most that a node accepts. */
    static final int LEASES_PER_CALL_MAX = 500;
    /** Longest sleep at a time: while the machine is suspended, timers stand still, and the clock of leases does not. */
    static final long SLICE = 250 * Nodes.MS;
    private static final long IDLE_MAX = 5_000 * Nodes.MS;
    /** A lease that has more than so many times the time left of another one goes in another request: the shortest decides how long an
     * answer may take. */
    private static final long SPREAD = 8;
    /** A request without an answer for its leases is repeated in so many parts. */
    private static final int PARTS = 16;

    private final Nodes nodes;
    private final List<Keeper> keepers = new ArrayList<>();
    private Thread thread;

    Renewals(Nodes nodes) { this.nodes = nodes; }

    static Thread daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        return thread;
    }

    synchronized void keep(Keeper keeper) {
        keepers.add(keeper);
        if (thread == null) {
            thread = daemon("latchgate renewals", this::run);
            thread.start();
        }
        notifyAll();
    }

    synchronized List<Keeper> all() { return List.copyOf(keepers); }

    private void run() {
        long busy = Clock.now();
        while (true) {
            List<Keeper> ready = new ArrayList<>();
            long now = Clock.now();
            synchronized (this) {
                keepers.removeIf(keeper -> keeper.remaining() == 0);
                if (!keepers.isEmpty()) busy = now;
                for (Keeper keeper : keepers) if (!keeper.isSent) ready.add(keeper);
                if (now - busy > IDLE_MAX) {
                    thread = null;
                    return;
                }
            }
            for (List<Keeper> batch : batches(ready, now)) renew(batch);
            synchronized (this) {
                long wakes = SLICE;
                for (Keeper keeper : keepers) {
                    wakes = Math.min(wakes, keeper.until() - now);
                    if (!keeper.isSent) wakes = Math.min(wakes, keeper.due - now);
                }
                try {
                    wait(Math.max(wakes / Nodes.MS, 1));
                } catch (InterruptedException ignored) {
                    // This thread is of this class alone.
                }
            }
        }
    }

    /** What to send now: each lease that is due, with others that soon are; first what ends first. A heartbeat goes alone. */
    static List<List<Keeper>> batches(List<Keeper> keepers, long now) {
        List<List<Keeper>> all = new ArrayList<>();
        List<Keeper> batch = new ArrayList<>();
        int size = 0, together = 0;
        keepers.sort(Comparator.comparingLong(Keeper::until));
        for (Keeper keeper : keepers) {
            if (keeper.early > now) continue;
            boolean isFull = size + keeper.leases.size() > LEASES_PER_CALL_MAX || batch.size() >= Math.min(keeper.together, together);
            if (!batch.isEmpty() && (isFull || keeper.until() - now > SPREAD * (batch.get(0).until() - now))) {
                all.add(batch);
                batch = new ArrayList<>();
                size = 0;
            }
            batch.add(keeper);
            size += keeper.leases.size();
            together = keeper.together;
        }
        all.add(batch);
        all.removeIf(one -> one.stream().noneMatch(keeper -> keeper.due <= now));
        return all;
    }

    private void renew(List<Keeper> batch) {
        Keeper one = batch.get(0);
        long left = batch.stream().mapToLong(Keeper::remaining).min().getAsLong();
        List<Map<String, Object>> leases = batch.stream().flatMap(keeper -> keeper.leases.stream()).toList();
        String path = one.beatPath != null ? one.beatPath : "/v1/leases/renew";
        String body = Json.write(one.beatPath != null ? Map.of("stamp", one.stamp) : Map.of("leases", leases));
        // Other nodes can be tried before the first of them ends.
        long timeout = Math.min(nodes.timeout, Math.max(left / 3, Nodes.TIMEOUT_MIN));
        synchronized (this) {
            batch.forEach(keeper -> keeper.isSent = true);
        }
        nodes.send(path, body, timeout).whenComplete((answer, failure) -> {
            try {
                settle(batch, leases, answer, failure == null ? null : failure.getCause());
            } finally {
                synchronized (this) {
                    batch.forEach(keeper -> keeper.isSent = false);
                    notifyAll();
                }
            }
        });
    }

    /** Each of the batch gets its own result. */
    private void settle(List<Keeper> batch, List<Map<String, Object>> leases, Answer answer, Throwable failure) {
        long retryAfter = answer != null ? answer.retryAfter() : failure instanceof Nodes.NoAnswer no ? no.retryAfter : 0;
        List<Map<String, Object>> results = answer == null ? List.of() : Answer.list(answer.body(), "results");
        if (answer != null && batch.get(0).beatPath != null) {
            Map<String, Object> result = new LinkedHashMap<>(answer.body());
            result.put("status", (long) answer.status());
            batch.get(0).settle(nodes.count, answer.sent(), List.of(result));
        } else if (answer != null && areOf(leases, results)) {
            int from = 0;
            for (Keeper keeper : batch) keeper.settle(nodes.count, answer.sent(), results.subList(from, from += keeper.leases.size()));
        } else {
            // Also if it is refused as a whole, because of one of its keys.
            for (Keeper keeper : batch) {
                keeper.together = Math.max(batch.size() / PARTS, 1);
                keeper.failed(nodes.count, retryAfter);
            }
        }
    }

    /** Whether there is one result for each lease that was sent. */
    private static boolean areOf(List<Map<String, Object>> leases, List<Map<String, Object>> results) {
        if (leases.size() != results.size()) return false;
        for (int i = 0; i < leases.size(); i++) {
            if (!results.get(i).entrySet().containsAll(leases.get(i).entrySet())) return false;
        }
        return true;
    }
}
