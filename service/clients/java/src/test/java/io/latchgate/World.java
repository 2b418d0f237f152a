package io.latchgate;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.File;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Real nodes on one Postgres, and a proxy in front of a node that loses answers. `scripts/test-clients.sh` names the binary in CLIENT_BINARY
 * and the Postgres in CLIENT_POSTGRES. */
class World {
    static final Duration PATIENCE = Duration.ofSeconds(60);
    static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    static final class Node {
        final String url;
        private final Process process;

        Node(Map<String, String> environment, String... arguments) throws IOException {
            if (arguments.length == 0) arguments = new String[] {"--locks", System.getenv("CLIENT_POSTGRES")};
            // The node ends with this process, however that ends.
            List<String> command = new ArrayList<>(List.of("setpriv", "--pdeathsig", "KILL", "--", System.getenv("CLIENT_BINARY"), "serve", "--listen", "127.0.0.1:0"));
            command.addAll(Arrays.asList(arguments));
            File directory = Files.createTempDirectory("latchgate-").toFile();
            ProcessBuilder builder = new ProcessBuilder(command).directory(directory).redirectError(new File(directory, "log"));
            builder.environment().keySet().removeIf(name -> name.startsWith("LATCHGATE_"));
            builder.environment().putAll(environment);
            process = builder.start();
            String line = process.inputReader().readLine();
            url = line.substring(line.lastIndexOf(' ') + 1);
            Runtime.getRuntime().addShutdownHook(new Thread(this::kill));
        }

        void kill() { process.destroyForcibly().onExit().join(); }

        void freeze() throws Exception { new ProcessBuilder("kill", "-STOP", String.valueOf(process.pid())).start().waitFor(); }

        Map<String, Object> operation(Object id) throws Exception {
            return Json.parse(HTTP.send(HttpRequest.newBuilder(URI.create(url + "/v1/operations/" + id)).build(), HttpResponse.BodyHandlers.ofString()).body());
        }

        Map<String, Object> lock(String key) throws Exception { return request("GET", key); }

        void force(String key) throws Exception { request("DELETE", key); }

        List<Object> owners(String list, String key) throws Exception {
            return new ArrayList<>(Answer.list(lock(key), list).stream().map(one -> one.get("owner")).toList());
        }

        long token(String key) throws Exception { return Answer.number(Answer.list(lock(key), "holders").get(0), "token"); }

        private Map<String, Object> request(String method, String key) throws Exception {
            URI uri = URI.create(url + LatchgateClient.path(key, "").replaceAll("/$", ""));
            HttpRequest request = HttpRequest.newBuilder(uri).method(method, HttpRequest.BodyPublishers.noBody()).build();
            return Json.parse(HTTP.send(request, HttpResponse.BodyHandlers.ofString()).body());
        }
    }

    record Seen(String path, long at, Map<String, Object> body) {}

    /** Passes requests on to a node. It loses answers, or refuses requests, as often as it is told to. */
    static final class Proxy {
        final String url;
        final List<Seen> seen = new CopyOnWriteArrayList<>();
        /** How many of the next answers to requests of paths that end so are lost. */
        final Map<String, Integer> loses = new ConcurrentHashMap<>();
        /** The status for requests of these paths, after those whose answers were lost. */
        final Map<String, Integer> thenRefuses = new ConcurrentHashMap<>();
        /** So many of the next requests are answered with 503. */
        final AtomicInteger refuses = new AtomicInteger();
        /** Answers that are lost are replaced by a problem of a gateway. */
        volatile boolean hides;
        /** So many of the next answers come only after a lease of a second has ended. */
        final AtomicInteger late = new AtomicInteger();
        /** Waits end at once, as at a node that is about to stop. */
        volatile boolean endsWaits;
        /** Requests with this text in their body get no answer. */
        volatile String hangs;
        /** A part of paths into another one. */
        volatile String from = "", into = "";
        private final Node node;

        Proxy(Node node) throws IOException {
            this.node = node;
            HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
            server.setExecutor(Executors.newCachedThreadPool(work -> Renewals.daemon("proxy", work)));
            server.createContext("/", this::pass);
            server.start();
            url = "http://127.0.0.1:" + server.getAddress().getPort();
        }

        /** The gate answers nothing, or refuses because of its store. */
        void away(boolean isStore) {
            for (String verb : List.of("pre", "enter")) {
                if (isStore) thenRefuses.put(verb, 503);
                else loses.put(verb, 1_000_000); // but it is carried out
            }
        }

        void back() {
            loses.clear();
            thenRefuses.clear();
        }

        List<Seen> requests(String verb) { return seen.stream().filter(one -> one.path.endsWith(verb)).toList(); }

        private void pass(HttpExchange exchange) throws IOException {
            String path = exchange.getRequestURI().getRawPath(), verb = path.substring(path.lastIndexOf('/') + 1);
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            seen.add(new Seen(path, System.nanoTime(), Json.parse(body)));
            Integer refusal = loses.getOrDefault(verb, 0) == 0 ? thenRefuses.get(verb) : null;
            if (refusal == null && refuses.getAndUpdate(left -> Math.max(left - 1, 0)) > 0) refusal = 503;
            if (refusal != null) {
                String code = Map.of(503, "store-unavailable", 430, "quota-reached").getOrDefault(refusal, "proxy-refuses");
                answer(exchange, refusal == 430 ? 429 : refusal, "{\"code\":\"" + code + "\",\"retry_after_ms\":" + (refusal == 503 ? 1000 : 0) + "}");
                return;
            }
            try {
                if (hangs != null && body.contains(hangs)) new CountDownLatch(1).await();
                if (endsWaits) body = body.replaceFirst("\"wait_ms\":\\d+", "\"wait_ms\":1");
                HttpRequest request = HttpRequest.newBuilder(URI.create(node.url + path.replace(from, into))).POST(HttpRequest.BodyPublishers.ofString(body)).build();
                HttpResponse<String> got = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
                Integer left = loses.computeIfPresent(verb, (name, count) -> count - 1);
                if (late.getAndUpdate(count -> Math.max(count - 1, 0)) > 0) Thread.sleep(1_500);
                if (left == null || left < 0) answer(exchange, got.statusCode(), got.body());
                else if (hides) answer(exchange, 504, "{\"code\":\"timeout\",\"detail\":\"This gateway has waited long enough.\"}");
                else exchange.close();
                if (left != null && left <= 0) loses.remove(verb);
            } catch (IOException | InterruptedException gone) {
                exchange.close();
            }
        }

        static void answer(HttpExchange exchange, int status, String body) throws IOException {
            byte[] text = body.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(status, text.length);
            exchange.getResponseBody().write(text);
            exchange.close();
        }
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

    /** Waits for a renewal of each lease that was sent from now on. */
    static void untilRenewed(Lease... leases) throws Exception {
        long from = Clock.now();
        eventually("a renewal", () -> {
            for (Lease lease : leases) lease.check();
            return Arrays.stream(leases).allMatch(lease -> lease.keeper.sent() >= from);
        });
    }
}
