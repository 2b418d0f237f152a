import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Load for Curator's InterProcessMutex: threads acquire and release locks over one client, as Curator's manual has it. Reads lines
 * `repeated|fresh|hot THREADS WARMUP_MS MEASURED_MS`, and answers each with a JSON object on a line.
 */
public class CuratorLoad {
    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 60_000, 30_000, new RetryOneTime(100));
        client.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            System.out.println(measure(client, words[0], Integer.parseInt(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3])));
            System.out.flush();
        }
        System.exit(0);
    }

    static String measure(CuratorFramework client, String keys, int threads, long warmupMs, long measuredMs) throws Exception {
        String run = "/bench-" + Long.toHexString(System.nanoTime());
        long from = System.nanoTime() + warmupMs * 1_000_000, until = from + measuredMs * 1_000_000;
        Client[] all = new Client[threads];
        CountDownLatch ended = new CountDownLatch(threads);
        for (int number = 0; number < threads; number++) {
            Client one = all[number] = new Client(client, keys, run, number, from, until);
            new Thread(() -> { try { one.run(); } finally { ended.countDown(); } }).start();
        }
        ended.await();
        long[] counts = Arrays.stream(all).mapToLong(one -> one.count).sorted().toArray();
        long failures = Arrays.stream(all).mapToLong(one -> one.failures).sum();
        return "{\"operations\":" + Arrays.stream(counts).sum() + ",\"acquire\":" + latencies(all, true)
            + ",\"release\":" + latencies(all, false) + ",\"least\":" + counts[0] + ",\"most\":" + counts[threads - 1]
            + ",\"failures\":" + failures + "}";
    }

    /** Mean, median and 99th percentile in microseconds. */
    static String latencies(Client[] all, boolean isAcquire) {
        long[] us = Arrays.stream(all)
            .flatMapToLong(one -> Arrays.stream(isAcquire ? one.acquires : one.releases, 0, one.count))
            .map(nanos -> nanos / 1_000).sorted().toArray();
        if (us.length == 0) return "[0,0,0]";
        return "[" + (long) Arrays.stream(us).average().getAsDouble() + "," + us[us.length / 2] + "," + us[us.length * 99 / 100] + "]";
    }

    static class Client {
        final CuratorFramework client;
        final String keys, run;
        final int number;
        final long from, until;
        long[] acquires = new long[1_024], releases = new long[1_024];
        int count;
        long failures;

        Client(CuratorFramework client, String keys, String run, int number, long from, long until) {
            this.client = client;
            this.keys = keys;
            this.run = run;
            this.number = number;
            this.from = from;
            this.until = until;
        }

        void run() {
            String own = run + (keys.equals("hot") ? "" : "-" + number);
            InterProcessMutex repeated = new InterProcessMutex(client, own);
            for (long sequence = 0; ; sequence++) {
                long started = System.nanoTime();
                if (started >= until) return;
                try {
                    InterProcessMutex mutex = keys.equals("fresh") ? new InterProcessMutex(client, own + "-" + sequence) : repeated;
                    long left = Math.max(1, until - started);
                    if (!mutex.acquire(left, TimeUnit.NANOSECONDS)) return;
                    long acquired = System.nanoTime();
                    mutex.release();
                    long released = System.nanoTime();
                    if (started >= from && released <= until) add(acquired - started, released - acquired);
                } catch (Exception error) {
                    if (failures++ == 0) System.err.println("client " + number + ": " + error);
                }
            }
        }

        void add(long acquire, long release) {
            if (count == acquires.length) {
                acquires = Arrays.copyOf(acquires, 2 * count);
                releases = Arrays.copyOf(releases, 2 * count);
            }
            acquires[count] = acquire;
            releases[count++] = release;
        }
    }
}
