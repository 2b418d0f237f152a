package io.latchgate;

import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Requests to any of the nodes. Nearly every request can be repeated, so a call goes on until a node has answered it. */
final class Nodes {
    static final long MS = 1_000_000, PAUSE_MIN = 100 * MS, PAUSE_MAX = 1_000 * MS, TIMEOUT_MIN = 20 * MS;
    /** The first request of a wait is short: its answer has a ticket, with which the position in the queue survives the node. */
    private static final long FIRST_WAIT = 500 * MS;

    /** The node was not reached, or did not answer in time or in full. */
    static final class NoAnswer extends Exception {
        final boolean sent;
        final long retryAfter;

        NoAnswer(String detail, boolean sent, long retryAfter) {
            super(detail, null, false, false);
            this.sent = sent;
            this.retryAfter = retryAfter;
        }
    }

    /** What is to be known of a call and its repeats. */
    static final class Call {
        /** When no node answers, the call ends then. */
        long until;
        /** Each request waits at the node, and the call goes on with tickets until `waitUntil`, and for `retryFor` after that while no
         * node answers. A wait does not begin in an outage: until a node has answered, `until` counts. */
        boolean hasWait;
        long waitUntil;
        boolean answered;
        /** A node may have carried out the call, though no answer says so. */
        boolean doubt;
        /** It is not repeated in doubt. */
        boolean isOnce;
        /** Whether an interrupt ends it. A release in a `finally` and the report that work was done go on. */
        final boolean interruptible;

        Call(long until, boolean interruptible) {
            this.until = until;
            this.interruptible = interruptible;
        }

        Call waiting(Duration wait) {
            hasWait = true;
            waitUntil = Clock.now() + Math.max(Math.min(wait.toMillis(), LockOptions.FOREVER.toMillis()), 0) * MS;
            return this;
        }

        /** Only a decision about this very call ends a doubt. A refusal for another reason says nothing about earlier requests. */
        void decided(LatchgateException error, boolean before) {
            if (List.of(409, 410, 422, 423).contains(error.status)) doubt = false;
            else if (error.status != 500 && !error.code.equals("outcome-unknown")) doubt = before;
        }
    }

    final long timeout, retryFor, waitPerCall;
    final int count;
    private final List<String> urls;
    private final String apiKey;
    private final HttpClient http;
    /** The node that is tried first. Another one takes its place when it does not answer. */
    private final AtomicInteger first = new AtomicInteger();

    Nodes(LatchgateClient.Config config) {
        urls = config.urls.stream().map(url -> url.replaceAll("/+$", "")).toList();
        if (urls.isEmpty() || urls.stream().anyMatch(url -> !url.matches("https?://[^/?#]+(/[^?#]*)?"))) {
            throw new IllegalArgumentException("not the URLs of nodes: " + urls + " (example: http://127.0.0.1:7070)");
        }
        count = urls.size();
        apiKey = config.apiKey;
        http = config.http != null ? config.http : HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        timeout = config.timeout.toNanos();
        retryFor = config.retryFor.toNanos();
        waitPerCall = config.waitPerCall.toNanos();
    }

    /** A call that ends after so long, or after `retryFor` if that is less. */
    Call within(long nanos, boolean interruptible) { return new Call(Clock.now() + Math.min(nanos, retryFor), interruptible); }

    /** A pool of threads that is full throws at once. For callers, and for renewals, that is a request without an answer. */
    private CompletableFuture<HttpResponse<String>> begin(HttpRequest request) {
        try {
            return http.sendAsync(request, HttpResponse.BodyHandlers.ofString());
        } catch (RuntimeException | Error failure) {
            return CompletableFuture.failedFuture(failure);
        }
    }

    /** One request to one node: the answer, or a NoAnswer. If that node cannot serve, the next request goes to another one. */
    CompletableFuture<Answer> send(String path, String body, long timeout) {
        int index = first.get();
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(urls.get(index) + path))
                .header("Content-Type", "application/json").header("User-Agent", "latchgate-java")
                .POST(HttpRequest.BodyPublishers.ofString(body));
        if (apiKey != null) request.header("Authorization", "Bearer " + apiKey);
        long sent = Clock.now();
        CompletableFuture<HttpResponse<String>> response = begin(request.build());
        CompletableFuture<Answer> answer = response.copy().orTimeout(timeout, TimeUnit.NANOSECONDS).handle((got, failure) -> {
            if (failure != null) {
                response.cancel(true);
                avoid(index);
                Throwable cause = failure instanceof CompletionException ? failure.getCause() : failure;
                throw new CompletionException(new NoAnswer(urls.get(index) + ": " + cause, !(cause instanceof ConnectException), 0));
            }
            if (LatchgateException.isTransient(got.statusCode())) avoid(index);
            try {
                Map<String, Object> fields = Json.parse(got.body());
                if (got.statusCode() < 300 || fields.get("code") instanceof String) return new Answer(sent, got.statusCode(), fields);
            } catch (IllegalArgumentException noJson) {
                // as below
            }
            String seconds = got.headers().firstValue("Retry-After").filter(text -> text.matches("\\d{1,5}")).orElse("0");
            String detail = urls.get(index) + ": the answer with status " + got.statusCode() + " is none of Latchgate's";
            throw new CompletionException(new NoAnswer(detail, true, Long.parseLong(seconds) * 1_000 * MS));
        });
        // The node sees that the caller has gone.
        answer.whenComplete((got, failure) -> { if (answer.isCancelled()) response.cancel(true); });
        return answer;
    }

    private void avoid(int index) {
        // Other threads may have moved on already.
        first.compareAndSet(index, (index + 1) % count);
    }

    /** Posts the request, and repeats it until a node has answered it or its time is over. Each node gets a part of that time. */
    Answer call(String path, Map<String, Object> body, Call call) throws InterruptedException {
        boolean waits = call.hasWait && call.waitUntil > Clock.now();
        long pause = PAUSE_MIN;
        for (int tried = 0; ; ) {
            long left = call.until - Clock.now(), wait = 0;
            if (call.hasWait) {
                wait = Math.min(call.answered ? waitPerCall : Math.min(Math.min(FIRST_WAIT, left / 4), waitPerCall), call.waitUntil - Clock.now());
                wait = Math.max(wait, 0);
                // A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
                body.put("wait_ms", waits ? Math.max((wait + MS - 1) / MS, 1) : 0);
            }
            long timeout = Math.max(Math.min(Math.min(this.timeout, left / 3), left - wait), TIMEOUT_MIN);
            LatchgateException error;
            long retryAfter = 0;
            boolean before = call.doubt;
            int index = first.get();
            String text = Json.write(body);
            call.doubt = true;
            try {
                Answer answer = await(send(path, text, timeout + wait), call.interruptible);
                if (answer.status() < 300) return answer;
                error = LatchgateException.of(answer.status(), answer.body());
                call.decided(error, before);
                // With its ticket, the next request returns to its position.
                if (answer.body().get("ticket") != null) body.put("ticket", answer.body().get("ticket"));
                if (error.code.equals("invalid-ticket") && body.remove("ticket") != null) continue;
                boolean isOfWait = error.status == 423 || error instanceof LatchgateException.OperationInProgress;
                if (isOfWait && call.hasWait && Clock.now() < call.waitUntil) {
                    call.answered = true;
                    call.until = call.waitUntil + retryFor;
                    if (Clock.now() - answer.sent() >= wait / 2) {
                        tried = 0;
                        pause = PAUSE_MIN;
                        continue;
                    }
                    avoid(index); // a node that is about to stop ends waits early
                } else if (!LatchgateException.isTransient(error.status)) {
                    throw error;
                } else {
                    retryAfter = answer.retryAfter();
                }
            } catch (NoAnswer failure) {
                error = LatchgateException.noAnswer(failure.getMessage());
                retryAfter = failure.retryAfter;
                call.doubt = before || failure.sent;
            }
            left = call.until - Clock.now();
            if (left <= 0 || retryAfter > left || call.doubt && call.isOnce) throw error;
            if (++tried % count == 0) {
                sleep(Math.min(jitter(Math.max(retryAfter, pause), 1, 1.5), left), call.interruptible);
                pause = Math.min(pause * 2, PAUSE_MAX);
            }
        }
    }

    /** For calls that an interrupt does not end. */
    Answer callToEnd(String path, Map<String, Object> body, Call call) {
        try {
            return call(path, body, call);
        } catch (InterruptedException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** An interrupt cancels the future, or is remembered until the end. */
    private static <T> T await(CompletableFuture<T> future, boolean interruptible) throws InterruptedException, NoAnswer {
        try {
            return interruptible ? future.get() : future.join();
        } catch (InterruptedException interrupt) {
            future.cancel(true);
            throw interrupt;
        } catch (ExecutionException | CompletionException failure) {
            throw failure.getCause() instanceof NoAnswer noAnswer ? noAnswer : new NoAnswer(String.valueOf(failure.getCause()), true, 0);
        }
    }

    private static void sleep(long nanos, boolean interruptible) throws InterruptedException {
        try {
            await(new CompletableFuture<Void>().completeOnTimeout(null, nanos, TimeUnit.NANOSECONDS), interruptible);
        } catch (NoAnswer impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    static long jitter(long pause, double low, double high) { return (long) (pause * ThreadLocalRandom.current().nextDouble(low, high)); }
}
