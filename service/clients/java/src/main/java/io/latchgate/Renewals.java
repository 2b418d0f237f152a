package io.latchgate;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;

/** The background thread of one client, which renews its leases together. It ends when there is nothing to keep. */
final class Renewals {
    /** The most that a node accepts, and a proxy in front of it. */
    static final int LEASES_PER_CALL_MAX = 500, BYTES_PER_CALL_MAX = 500_000;
    /** A request without an answer for its leases is repeated in so many parts. */
    static final int PARTS = 16;
    /** Longest sleep at a time: while the machine is suspended, timers stand still, and the clock of leases does not. */
    private static final long SLICE = 250 * Nodes.MS;

    private final Nodes nodes;
    private final List<Keeper> keepers = new ArrayList<>();
    private boolean isRunning;

    Renewals(Nodes nodes) { this.nodes = nodes; }

    static Thread daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        return thread;
    }

    /** Renews what was granted in this answer. */
    void keep(Keeper keeper, Answer granted) {
        keeper.settle(granted, Map.of(), 1);
        synchronized (this) {
            keepers.add(keeper);
            if (!isRunning) daemon("latchgate renewals", this::run).start();
            isRunning = true;
            notifyAll();
        }
    }

    private synchronized void run() {
        while (true) {
            long now = Clock.now(), wakes = SLICE;
            keepers.removeIf(keeper -> keeper.remaining(now) == 0);
            if (keepers.isEmpty()) {
                isRunning = false;
                return;
            }
            if (keepers.stream().anyMatch(keeper -> keeper.due() <= now)) {
                batches(keepers.stream().filter(keeper -> keeper.isReady(now)).toList()).forEach(this::renew);
            }
            for (Keeper keeper : keepers) wakes = Math.min(wakes, Math.min(keeper.due(), keeper.until()) - now);
            try {
                wait(Math.max(wakes / Nodes.MS, 1));
            } catch (InterruptedException ignored) {
                // This thread is of this class alone.
            }
        }
    }

    /** The requests to send, first what ends first. A heartbeat goes alone. */
    static List<List<Keeper>> batches(List<Keeper> ready) {
        List<List<Keeper>> all = new ArrayList<>();
        List<Keeper> batch = new ArrayList<>();
        int size = 0, bytes = 0, together = 0;
        for (Keeper keeper : ready.stream().sorted(Comparator.comparingLong(Keeper::until)).toList()) {
            boolean isFull = size + keeper.leases.size() > LEASES_PER_CALL_MAX || bytes + keeper.bytes > BYTES_PER_CALL_MAX || batch.size() >= Math.min(keeper.together(), together);
            if (isFull || batch.isEmpty()) {
                batch = new ArrayList<>();
                all.add(batch);
                size = bytes = 0;
            }
            batch.add(keeper);
            size += keeper.leases.size();
            bytes += keeper.bytes;
            together = keeper.together();
        }
        return all;
    }

    private void renew(List<Keeper> batch) {
        Keeper one = batch.get(0);
        int index = one.node(nodes);
        batch.forEach(keeper -> keeper.send(index));
        String path = one.beatPath != null ? one.beatPath : "/v1/leases/renew";
        Map<String, Object> body = Map.of("leases", batch.stream().flatMap(keeper -> keeper.leases.stream()).toList());
        // Other nodes can be tried before the first of them ends.
        long timeout = Math.min(nodes.timeout, Math.max((one.until() - Clock.now()) / 3, Nodes.TIMEOUT_MIN));
        nodes.send(index, path, one.beatPath != null ? one.leases.get(0) : body, timeout).thenAccept(got -> {
            Map<Map<String, Object>, Answer> results = got.results();
            // Each lease has a result of its own.
            Answer whole = one.beatPath != null || got.status() / 100 != 2 ? got : new Answer(got.sent(), got.status(), Map.of(), false);
            batch.forEach(keeper -> keeper.settle(whole, results, batch.size()));
            synchronized (this) {
                notifyAll();
            }
        });
    }
}
