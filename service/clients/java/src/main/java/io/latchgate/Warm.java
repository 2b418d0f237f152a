package io.latchgate;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** The first call of a process loads some hundred classes, which takes longer than a call may on a busy machine. So they are loaded before, by
 * a lock that this process grants itself. */
final class Warm {
    private static boolean isWarm;

    static synchronized void up() {
        if (isWarm) return;
        isWarm = true;
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Renewals.daemon("latchgate warming up", () -> grant(server)).start();
            HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).proxy(HttpClient.Builder.NO_PROXY).build();
            LatchgateClient client = new LatchgateClient.Config().urls("http://127.0.0.1:" + server.getLocalPort()).apiKey(null)
                    .retryFor(Duration.ofSeconds(10)).http(http).connect();
            Nodes.uninterrupted(() -> client.lock("warm").tryLock(1, TimeUnit.SECONDS));
            client.lock("warm").unlock();
        } catch (IOException | RuntimeException failure) {
            // Then the first call is slower.
        }
    }

    private static void grant(ServerSocket server) {
        try (Socket socket = server.accept()) {
            for (InputStream in = socket.getInputStream(); ; ) {
                StringBuilder head = new StringBuilder();
                while (head.indexOf("\r\n\r\n") < 0) {
                    int next = in.read();
                    if (next < 0) return;
                    head.append((char) next);
                }
                int length = Integer.parseInt(head.toString().replaceFirst("(?is).*content-length: (\\d+).*", "$1"));
                Map<String, Object> body = Json.parse(new String(in.readNBytes(length), StandardCharsets.UTF_8));
                body.putAll(Map.of("key", "warm", "token", 1));
                byte[] answer = Json.write(body).getBytes(StandardCharsets.UTF_8);
                socket.getOutputStream().write(("HTTP/1.1 200 OK\r\nContent-Length: " + answer.length + "\r\n\r\n").getBytes(StandardCharsets.UTF_8));
                socket.getOutputStream().write(answer);
            }
        } catch (IOException | RuntimeException gone) {
            // The client has ended.
        }
    }
}
