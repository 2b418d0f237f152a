package io.latchgate;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** What tests of real nodes need. */
class World {
    static final Duration PATIENCE = Duration.ofSeconds(60);
    static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    /** The URLs of the nodes that scripts/test-clients.sh starts. */
    static final String NODES = System.getenv("CLIENT_NODES");

    static Map<String, Object> request(String method, String key) throws Exception {
        URI uri = URI.create(NODES.split(",")[0] + LatchgateClient.path(key, "").replaceAll("/$", ""));
        HttpRequest request = HttpRequest.newBuilder(uri).method(method, HttpRequest.BodyPublishers.noBody()).build();
        return Json.parse(HTTP.send(request, HttpResponse.BodyHandlers.ofString()).body());
    }

    /** A client of nodes with these URLs. The machine may be busy, so calls have more time than by default. */
    static LatchgateClient client(String... urls) { return config(urls).connect(); }

    static LatchgateClient.Config config(String... urls) { return new LatchgateClient.Config().urls(urls).retryFor(Duration.ofSeconds(30)); }

    static <T> CompletableFuture<T> background(Callable<T> call) {
        CompletableFuture<T> result = new CompletableFuture<>();
        Renewals.daemon("background", () -> {
            try {
                result.complete(call.call());
            } catch (Throwable failure) {
                result.completeExceptionally(failure);
            }
        }).start();
        return result;
    }

    static <T> T result(CompletableFuture<T> future) throws Exception { return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS); }

    static void check(boolean holds, Object what) {
        if (!holds) throw new AssertionError(String.valueOf(what));
    }

    static void same(Object expected, Object found) { check(expected.equals(found), "expected " + expected + ", found " + found); }

    static <T extends Throwable> T raises(Class<T> kind, Callable<?> call) {
        Object result;
        try {
            result = call.call();
        } catch (Throwable failure) {
            if (kind.isInstance(failure)) return kind.cast(failure);
            throw new AssertionError("no " + kind.getSimpleName(), failure);
        }
        throw new AssertionError("no " + kind.getSimpleName() + ", but " + result);
    }

    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        for (long until = System.nanoTime() + PATIENCE.toNanos(); !condition.call(); Thread.sleep(20)) {
            check(System.nanoTime() < until, "not in time: " + what);
        }
    }

    static LatchgateException lost(Lease lease) throws Exception {
        CompletableFuture<LatchgateException> loss = new CompletableFuture<>();
        lease.onLoss(loss::complete);
        LatchgateException why = result(loss);
        check(lease.remaining().isZero(), "something is left");
        return why;
    }
}
