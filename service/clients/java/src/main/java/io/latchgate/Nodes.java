package io.latchgate;

import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.UnresolvedAddressException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Requests to any of the nodes. Nearly every request can be repeated, so a call goes on until a node has answered it. */
final class Nodes {
    static final long MS = 1_000_000, PAUSE_MIN = 100 * MS, PAUSE_MAX = 1_000 * MS, TIMEOUT_MIN = 20 * MS;
    /** The last request of a call has this time, too: with less, an answer of an outage would be cut. */
    private static final long REQUEST_MIN = 100 * MS;
    /** Its third group is the port. */
    private static final Pattern URL = Pattern.compile("https?://(\\[[0-9A-Fa-f:.]+(?:%(?!25)[\\w.~-]+)?\\]|[^\\p{C}\\p{Z}/?#:\\[\\]\\\\]+)(:([0-9]{0,5}))?(/[^\\p{C}\\p{Z}?#\\\\]*)?");
    /** The first request of a wait is short: its answer has a ticket, with which the position in the queue survives the node. */
    private static final long FIRST_WAIT = 500 * MS;
    /** How long one request waits at most. Longer waits go on with tickets. */
    private static final long WAIT_PER_CALL = 20_000 * MS;
    private static final long ANSWER_BYTES_MAX = 4 << 20;
    private static final String EXAMPLE = " (example: http://127.0.0.1:7070)";

    /** What is to be known of a call and its repeats. */
    static final class Call {
        /** When no node answers, the call ends then. */
        long until;
        /** Each request waits at the node, and the call goes on with tickets until `waitUntil`, and for `retryFor` after that while no
         * node answers. A wait does not begin in an outage: until a node has answered, `until` counts. */
        long waitUntil = Clock.now();
        boolean answered;
        /** What is granted after a wait lasts from then on, but is counted from when the request was sent: so one request waits only for a
         * part of that. */
        long length;
        /** A node may have carried out the call, though no answer says so. */
        boolean doubt;
        /** It is not repeated in doubt. */
        boolean isOnce;
        /** Whether a 2xx is one of this service. */
        Predicate<Answer> isOurs = answer -> true;
        /** The keys that an answer must be about; none if the path has an id. */
        private List<String> keys = List.of();

        Call(long until) { this.until = until; }

        Call about(List<String> keys) {
            this.keys = keys;
            return this;
        }

        /** Something in between may change a path, a//b into a/b for example. A refusal need not name a key. */
        private void check(Answer answer) {
            boolean isGranted = answer.status() / 100 == 2;
            List<Map<String, Object>> locks = Answer.list(answer.body(), "locks");
            for (int i = 0; i < keys.size(); i++) {
                Object said = (i < locks.size() ? locks.get(i) : answer.body()).get("key");
                if (keys.get(i).equals(said) || !isGranted && (said == null || keys.size() > 1)) continue;
                String detail = "the answer is about the key " + said + ", not " + keys.get(i) + ": a proxy in front of the nodes may change the paths of requests";
                Map<String, Object> fields = new LinkedHashMap<>(answer.body());
                fields.putAll(Map.of("code", "other-key", "detail", detail));
                throw new LatchgateException.Refused(new Answer(answer.sent(), answer.status(), fields, false));
            }
        }
    }

    /** What an interrupt ends. */
    interface Interruptible<T> {
        T run() throws InterruptedException;
    }

    final long timeout, retryFor;
    final int count;
    private final List<String> urls;
    private final String apiKey;
    private final HttpClient http;
    /** The node that a call asks first. Another one takes its place when it does not answer. */
    private final AtomicInteger first = new AtomicInteger();

    Nodes(LatchgateClient.Config config) {
        String given = config.urls != null ? String.join(",", config.urls) : config.variable("LATCHGATE_URL", "http://127.0.0.1:7070");
        if (given.contains("@")) throw new IllegalArgumentException("a URL has a login, which no node takes: give an API key");
        urls = Arrays.stream(given.split(",")).map(url -> url.strip().replaceAll("/+$", "")).filter(url -> !url.isEmpty()).toList();
        for (String url : urls) {
            Matcher form = URL.matcher(url);
            boolean isOne = form.matches() && Integer.parseInt("0" + Objects.requireNonNullElse(form.group(3), "")) <= 65_535;
            try {
                HttpRequest.newBuilder(URI.create(url));
            } catch (IllegalArgumentException other) {
                isOne = false;
            }
            // It is not shown: it may have a login or an API key.
            if (!isOne) throw new IllegalArgumentException("one of the URLs is not that of a node" + EXAMPLE);
        }
        if (urls.isEmpty()) throw new IllegalArgumentException("no URL of a node" + EXAMPLE);
        count = urls.size();
        apiKey = config.apiKey == null ? "" : config.apiKey.strip();
        if (!apiKey.matches("(lgk_[0-9A-Za-z_]+)?")) {
            // The message shows nothing of it.
            throw new IllegalArgumentException("the API key has the wrong form: it is one line of letters, digits and _, and begins with lgk_");
        }
        http = config.http != null ? config.http : client(config.variable("LATCHGATE_CA", null));
        timeout = config.timeout.toNanos();
        retryFor = config.retryFor.toNanos();
    }

    private static HttpClient client(String ca) {
        HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1);
        if (ca == null) return builder.build();
        try (InputStream file = Files.newInputStream(Path.of(ca.strip()))) {
            KeyStore authorities = KeyStore.getInstance(KeyStore.getDefaultType());
            authorities.load(null, null);
            for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
                authorities.setCertificateEntry("authority " + authorities.size(), one);
            }
            if (authorities.size() == 0) throw new CertificateException("there is none");
            TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
            trust.init(authorities);
            SSLContext tls = SSLContext.getInstance("TLS");
            tls.init(null, trust.getTrustManagers(), null);
            return builder.sslContext(tls).build();
        } catch (IOException | GeneralSecurityException failure) {
            throw new IllegalArgumentException("cannot read certificates from " + ca + " (LATCHGATE_CA): " + failure, failure);
        }
    }

    /** A call that ends in time when no node answers. */
    Call within() { return new Call(Clock.now() + retryFor); }

    /** A call that also waits, for what has this length. */
    Call within(Duration wait, Duration length) {
        Call call = within();
        call.length = length.toNanos();
        call.waitUntil += Math.max(Math.min(wait.toMillis(), LockOptions.FOREVER.toMillis()), 0) * MS;
        return call;
    }

    /** A pool of threads that is full throws at once. For callers, and for renewals, that is a request without an answer. */
    private CompletableFuture<HttpResponse<String>> begin(HttpRequest request, HttpResponse.BodyHandler<String> reader) {
        try {
            return http.sendAsync(request, reader);
        } catch (RuntimeException | Error failure) {
            return CompletableFuture.failedFuture(failure);
        }
    }

    /** The index of the node that a call asks first. */
    int first() { return first.get(); }

    int after(int index) { return (index + 1) % count; }

    /** One request to one node. If that node cannot serve, the next call begins at another one. The future does not fail. */
    CompletableFuture<Answer> send(int index, String path, Map<String, Object> body, long timeout) {
        String url = urls.get(index) + path;
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url))
                .header("Content-Type", "application/json").header("User-Agent", "latchgate-java")
                .POST(HttpRequest.BodyPublishers.ofString(Json.write(body)));
        if (!apiKey.isEmpty()) request.header("Authorization", "Bearer " + apiKey);
        long sent = Clock.now();
        AtomicReference<HttpResponse.ResponseInfo> head = new AtomicReference<>();
        CompletableFuture<HttpResponse<String>> response = begin(request.build(), info -> {
            head.set(info);
            return new Bounded(HttpResponse.BodyHandlers.ofString().apply(info));
        });
        CompletableFuture<HttpResponse<String>> inTime = response.copy().orTimeout(timeout, TimeUnit.NANOSECONDS);
        CompletableFuture<Answer> answer = inTime.thenApply(got -> read(sent, url, head.get(), got.body(), got.previousResponse().isEmpty())).exceptionally(failure -> {
            response.cancel(true);
            if (head.get() != null) return read(sent, url, head.get(), null, http.followRedirects() == HttpClient.Redirect.NEVER);
            Throwable cause = failure instanceof CompletionException ? failure.getCause() : failure;
            return Answer.none(sent, Answer.NO_ANSWER, url + ": " + why(cause, URI.create(url).getAuthority()), cause instanceof ConnectException, 0);
        }).thenApply(read -> {
            if (read.isTransient()) avoid(index);
            return read;
        });
        // The node sees that the caller has gone.
        answer.whenComplete((got, failure) -> { if (answer.isCancelled()) response.cancel(true); });
        return answer;
    }

    /** The JDK says it in a cause, and there by its name alone. */
    private static String why(Throwable failure, String address) {
        if (failure instanceof TimeoutException) return "no answer in time";
        if (!(failure instanceof ConnectException)) return failure.toString();
        String said = failure.getCause() instanceof UnresolvedAddressException ? "the name of the host is not known: " : "cannot connect: ";
        return said + address + " (" + failure + ", cause: " + failure.getCause() + ")";
    }

    /** The text is null if it is not whole. A refusal of a node has a type that names its code. An answer that is none of a node is an outage only
     * if a gateway says that it reaches no node, or if it does not say what was granted: a 2xx that is no JSON, and direct. A client of HTTP of the
     * caller may follow redirections. */
    private static Answer read(long sent, String url, HttpResponse.ResponseInfo head, String text, boolean isDirect) {
        int status = head.statusCode();
        boolean isWhole = text != null, isJson = false;
        try {
            Object value = isWhole ? Json.parseAny(text) : null;
            isJson = isWhole;
            if (value instanceof Map<?, ?> fields && (status < 300 || fields.get("code") instanceof String code && !code.isEmpty() && ("/errors/" + code).equals(fields.get("type"))))
                return new Answer(sent, status, Json.object(fields), false);
        } catch (IllegalArgumentException | StackOverflowError noJson) {
            // as below
        }
        String seconds = head.headers().firstValue("Retry-After").filter(after -> after.matches("\\d{1,5}")).orElse("0");
        String detail = url + ": the answer with status " + status + " is " + (isWhole ? "none of Latchgate's" : "not whole");
        boolean isOutage = status < 300 ? !isJson && isDirect : isWhole && List.of(502, 503, 504).contains(status);
        // A gateway that refuses has not passed the request on; 408 may come after it has.
        boolean isUnsent = status >= 300 && status < 500 && status != 408;
        return Answer.none(sent, isOutage ? Answer.NO_ANSWER : Answer.FOREIGN, detail, isUnsent, Long.parseLong(seconds) * 1_000);
    }

    /** A body is read up to a length. */
    private static final class Bounded implements HttpResponse.BodySubscriber<String> {
        private final HttpResponse.BodySubscriber<String> reader;
        private Flow.Subscription source;
        private long left = ANSWER_BYTES_MAX;

        Bounded(HttpResponse.BodySubscriber<String> reader) { this.reader = reader; }

        @Override public CompletionStage<String> getBody() { return reader.getBody(); }

        @Override public void onSubscribe(Flow.Subscription subscription) {
            source = subscription;
            reader.onSubscribe(subscription);
        }

        @Override public void onNext(List<ByteBuffer> pieces) {
            for (ByteBuffer piece : pieces) left -= piece.remaining();
            if (left >= 0) {
                reader.onNext(pieces);
                return;
            }
            source.cancel();
            reader.onError(new IOException("the answer is too long"));
        }

        @Override public void onError(Throwable failure) { reader.onError(failure); }

        @Override public void onComplete() { reader.onComplete(); }
    }

    private void avoid(int index) {
        // Other threads may have moved on already.
        first.compareAndSet(index, after(index));
    }

    /** Posts the request, and repeats it until a node has answered it or its time is over. Each node gets a part of that time. */
    Answer call(String path, Map<String, Object> body, Call call) throws InterruptedException {
        Json.write(body); // what JSON cannot say is refused before anything is sent
        Map<String, Object> request = new LinkedHashMap<>(body);
        boolean waits = call.waitUntil > Clock.now();
        long pause = PAUSE_MIN, retryAfter = 0; // the longest that a node has asked for since the last pause
        LatchgateException error = null; // the last answer; if there was none, why
        int index = first.get(); // other calls change it: this one asks each node in turn
        for (int tried = 0; ; ) {
            long left = call.until - Clock.now(), wait = Math.min(WAIT_PER_CALL, call.length / 3);
            if (!call.answered) wait = Math.min(wait, Math.min(FIRST_WAIT, left / 4));
            wait = Math.max(Math.min(wait, call.waitUntil - Clock.now()), 0);
            // A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
            if (waits) request.put("wait_ms", Math.max((wait + MS - 1) / MS, 1));
            long timeout = Math.min(this.timeout, Math.max(Math.min(left / 3, left - wait), REQUEST_MIN));
            boolean before = call.doubt;
            call.doubt = true; // also if an interrupt ends it
            Answer answer = await(send(index, path, request, timeout + wait));
            call.check(answer);
            call.doubt = answer.leavesDoubt(before);
            if (answer.status() / 100 == 2) {
                if (call.isOurs.test(answer)) return answer;
                avoid(index);
                String detail = "the answer to " + path + " with status " + answer.status() + " is none of Latchgate's";
                answer = Answer.none(answer.sent(), Answer.FOREIGN, detail, false, 0);
            }
            LatchgateException said = LatchgateException.of(answer);
            // With its ticket, the next request returns to its position.
            if (!answer.text("ticket").isEmpty()) request.put("ticket", answer.text("ticket"));
            if (said.code.equals("invalid-ticket") && request.remove("ticket") != null) continue;
            // Silence is no outage once a node has answered. And the last of the time is too short for an answer: why there was none before
            // says more.
            boolean isSilent = said.code.equals(Answer.NO_ANSWER), isLate = Clock.now() - answer.sent() >= timeout + wait;
            if (error == null || !isSilent || error.code.equals(Answer.NO_ANSWER) && !isLate) error = said;
            boolean isOfWait = said.status == 423 || said instanceof LatchgateException.OperationInProgress;
            if (isOfWait && Clock.now() < call.waitUntil) {
                call.answered = true;
                call.until = call.waitUntil + retryFor;
                if (Clock.now() - answer.sent() >= wait / 2) {
                    tried = 0;
                    pause = PAUSE_MIN;
                    retryAfter = 0;
                    continue;
                }
                avoid(index); // a node that is about to stop ends waits early
            } else if (!answer.isTransient()) {
                throw error;
            } else {
                retryAfter = Math.max(retryAfter, answer.retryAfter());
                if (said.code.equals("quota-reached") && Clock.now() < call.waitUntil) call.until = call.waitUntil + retryFor;
            }
            left = call.until - Clock.now();
            index = after(index);
            // As many requests as nodes are made in any case, so that each of them is asked.
            boolean isOver = ++tried >= count && retryAfter > left - REQUEST_MIN;
            if (isOver || call.doubt && call.isOnce) throw error;
            if (tried % count == 0) {
                TimeUnit.NANOSECONDS.sleep(Math.min(jitter(Math.max(retryAfter, pause), 1, 1.5), left - REQUEST_MIN));
                pause = Math.min(pause * 2, PAUSE_MAX);
                retryAfter = 0;
            }
        }
    }

    private static Answer await(CompletableFuture<Answer> answer) throws InterruptedException {
        try {
            return answer.get();
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        } catch (InterruptedException interrupt) {
            answer.cancel(true);
            throw interrupt;
        }
    }

    /** A call that an interrupt does not end: it can be repeated. */
    Answer callToEnd(String path, Map<String, Object> body, long patience) { return callToEnd(path, body, new Call(Clock.now() + patience)); }

    /** Such a call whose answer has the outcome that it has recorded. */
    Answer report(String path, Map<String, Object> body, long patience) {
        Call call = new Call(Clock.now() + patience);
        call.isOurs = answer -> !answer.text("outcome").isEmpty();
        return callToEnd(path, body, call);
    }

    private Answer callToEnd(String path, Map<String, Object> body, Call call) {
        return uninterrupted(() -> call(path, body, call));
    }

    /** An interrupt begins the work again, and is remembered until its end. */
    static <T> T uninterrupted(Interruptible<T> work) {
        boolean interrupted = Thread.interrupted();
        try {
            while (true) {
                try {
                    return work.run();
                } catch (InterruptedException again) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    static Duration notNegative(String name, Duration duration) {
        if (Objects.requireNonNull(duration, name).isNegative()) throw new IllegalArgumentException(name + " is " + duration + ", and must not be negative");
        return duration;
    }

    /** Never none: a duration of less than a millisecond is one. */
    static long millis(String name, Duration duration) {
        long floor = notNegative(name, duration).toMillis();
        return duration.equals(Duration.ofMillis(floor)) ? floor : floor + 1;
    }

    static long jitter(long pause, double low, double high) { return (long) (pause * ThreadLocalRandom.current().nextDouble(low, high)); }
}
