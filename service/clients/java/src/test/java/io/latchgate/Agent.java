package io.latchgate;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.SynchronousQueue;

/** Makes the calls that ../../python/tests/remote.py sends, which runs the scenarios. */
final class Agent {
    /** A lease, or an attempt: the keeper of one without a claim is null. */
    private record Holding(Lease lease, Keeper keeper) {
        void check() { if (keeper != null) keeper.check(); }
    }

    /** What the test makes the work of a call throw. */
    private static final class WorkFailed extends Exception {
        WorkFailed(String why) { super(why); }
    }

    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final Map<Object, LatchgateClient> clients = new ConcurrentHashMap<>();
    private final Map<Object, Holding> held = new ConcurrentHashMap<>();
    private final Map<Object, SynchronousQueue<Map<String, Object>>> works = new ConcurrentHashMap<>();
    private final Map<Object, Thread> threads = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        Agent agent = new Agent();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> call = Json.parse(line);
            Thread thread = Renewals.daemon("call", () -> agent.answer(call));
            agent.threads.put(call.get("number"), thread);
            thread.start();
        }
        System.exit(0);
    }

    private static void say(Object number, String name, Object value) {
        Map<String, Object> message = new HashMap<>(Map.of("number", number));
        message.put(name, value);
        synchronized (OUT) { OUT.println(Json.write(message)); }
    }

    private void answer(Map<String, Object> call) {
        try {
            Object value = make(call);
            if (Answer.number(call, "number") != 0) say(call.get("number"), "value", value);
        } catch (Exception error) {
            say(call.get("number"), "error", said(error));
        }
    }

    private static Map<String, Object> said(Exception error) {
        String detail = String.valueOf(error.getMessage());
        if (error instanceof LatchgateException problem) {
            Map<String, Object> said = new HashMap<>(Map.of("kind", error.getClass().getSimpleName(), "code", problem.code, "detail", detail, "status", problem.status));
            said.put("fields", problem.fields);
            if (error instanceof LatchgateException.NotRecorded done) said.put("result", done.result);
            return said;
        }
        if (error instanceof WorkFailed || error instanceof LatchgateException.NotDone) return Map.of("kind", "work");
        return Map.of("kind", error instanceof InterruptedException ? "cancelled" : "options", "detail", detail);
    }

    private Map<String, Object> granted(Object number, Lease lease) {
        held.put(number, new Holding(lease, lease.keeper));
        return Map.of("lease", number, "key", lease.key(), "lease_id", lease.id(), "token", lease.token(), "tokens", lease.tokens(),
                "owner", lease.owner(), "slots", lease.slots());
    }

    private static Duration ms(Map<String, Object> call, String name) { return call.get(name) == null ? null : Duration.ofMillis(Answer.number(call, name)); }

    private static LockOptions options(Map<String, Object> call) {
        LockOptions options = LockOptions.of();
        if (Answer.is(call, "shared")) options.shared();
        if (call.containsKey("limit")) options.permits((int) Math.max(Answer.number(call, "permits"), 1), (int) Answer.number(call, "limit"));
        if (call.get("group") instanceof String group) options.group(group, (int) Answer.number(call, "groupLimit"));
        if (call.get("owner") instanceof String owner) options.owner(owner);
        if (call.containsKey("ttlMs")) options.ttl(ms(call, "ttlMs"));
        if (call.containsKey("waitMs")) options.wait(ms(call, "waitMs"));
        if (call.containsKey("minHoldMs")) options.minHold(ms(call, "minHoldMs"));
        return options;
    }

    private static LatchgateClient client(Map<String, Object> call) {
        LatchgateClient.Config config = new LatchgateClient.Config();
        if (call.get("urls") instanceof List<?> urls) config.urls(urls.stream().map(String::valueOf).toArray(String[]::new));
        if (call.get("apiKey") instanceof String apiKey) config.apiKey(apiKey);
        if (Answer.is(call, "ownHttp")) config.http(World.HTTP);
        if (call.containsKey("retryForMs")) config.retryFor(ms(call, "retryForMs"));
        if (call.containsKey("timeoutMs")) config.timeout(ms(call, "timeoutMs"));
        return config.connect();
    }

    private Object make(Map<String, Object> call) throws Exception {
        if (call.get("do").equals("forget")) {
            held.remove(call.get("lease"));
            System.gc();
            return null;
        }
        LatchgateClient client = clients.get(call.getOrDefault("client", 0L));
        Holding holding = held.get(call.getOrDefault("lease", 0L));
        String key = (String) call.get("key");
        switch ((String) call.get("do")) {
            case "client": clients.put(call.get("client"), client(call)); break;
            case "lock":
                Lease lease = client.acquire(key, options(call).interruptOnLoss());
                if (Thread.interrupted()) throw new IllegalStateException("interrupted for a lease that the caller never had");
                return granted(call.get("number"), lease);
            case "multilock":
                List<LatchgateClient.Key> keys = Answer.list(call, "keys").stream().map(one -> new LatchgateClient.Key((String) one.get("key"), options(one))).toList();
                return granted(call.get("number"), client.multilock(keys, options(call)));
            case "fence": client.fence(key, Answer.number(call, "token")); break;
            case "revoke":
                LatchgateClient.Revoking revoking = client.revoke(key, (String) call.get("reason"), (String) call.get("by"), ms(call, "graceMs"), Answer.number(call, "token"));
                Map<String, Object> said = new HashMap<>(Map.of("leases", revoking.leases()));
                said.put("deadline", revoking.deadline());
                return said;
            case "state": return state(holding);
            case "lost":
                CompletableFuture<LatchgateException> loss = new CompletableFuture<>();
                holding.lease.onLoss(loss::complete);
                return said(loss.get());
            case "release": holding.lease.release(); break;
            case "once": return once(client, call);
            case "ended": works.get(call.get("call")).put(call); break;
            case "cancel": threads.get(call.get("call")).interrupt(); break;
            case "queued": return client.queues.values().stream().mapToInt(queue -> queue.callers).sum();
            default: throw new IllegalArgumentException("no call: " + call);
        }
        return null;
    }

    private static Map<String, Object> state(Holding holding) {
        Map<String, Object> state = new HashMap<>(Map.of("remaining_ms", holding.keeper == null ? 0 : holding.keeper.remaining() / Nodes.MS));
        if (holding.lease != null) state.put("revocation", holding.lease.revocation());
        try {
            holding.check();
        } catch (LatchgateException error) {
            state.put("lost", said(error));
        }
        return state;
    }

    private Map<String, Object> once(LatchgateClient client, Map<String, Object> call) throws Exception {
        Once.Options options = Once.options();
        if (call.containsKey("ttlMs")) options.ttl(ms(call, "ttlMs"));
        if (call.containsKey("waitMs")) options.wait(ms(call, "waitMs"));
        if (call.containsKey("retentionMs")) options.retention(ms(call, "retentionMs"));
        if (call.containsKey("checked")) options.checked(call.get("checked"));
        if (call.get("label") instanceof String label) options.label(label);
        if (Answer.is(call, "permanent")) options.permanent();
        if ("retry".equals(call.get("onExpiry"))) options.retry();
        if ("proceed".equals(call.get("onOutage"))) options.proceedOnOutage();
        SynchronousQueue<Map<String, Object>> ended = new SynchronousQueue<>();
        works.put(call.get("number"), ended);
        Once.Done done = client.once((String) call.get("operation"), call.get("contents"), options, (Once.Work<Exception>) attempt -> {
            Object number = call.get("number");
            held.put(number, new Holding(null, attempt.keeper));
            say(number, "work", attempt.isGuarded() ? Map.of("lease", number, "guarded", true, "id", attempt.id()) : Map.of("lease", number, "guarded", false));
            Map<String, Object> end = ended.take();
            if (end.get("notDone") instanceof String why) throw new LatchgateException.NotDone(why);
            if (end.get("failed") instanceof String why) throw new WorkFailed(why);
            return end.get("result");
        });
        Map<String, Object> said = new HashMap<>(Map.of("duplicate", done.duplicate(), "result_omitted", done.resultOmitted()));
        said.put("result", done.result());
        return said;
    }
}
