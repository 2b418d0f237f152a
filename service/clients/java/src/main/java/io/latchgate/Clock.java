package io.latchgate;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicLong;

/** The clock by which leases are counted, in nanoseconds: it cannot be set, and on Linux it goes on while the machine is suspended. */
final class Clock {
    private static final Path UPTIME = Path.of("/proc/uptime");
    /** How far the time since the machine started is ahead of nanoTime, which stands still during a suspension. It only grows. */
    private static final AtomicLong AHEAD = new AtomicLong(Long.MIN_VALUE);
    /** Only tests move the clock. */
    static volatile long stepped;

    static long now() {
        long nanos = System.nanoTime();
        try {
            String text = Files.readString(UPTIME);
            long uptime = (long) (Double.parseDouble(text.substring(0, text.indexOf(' '))) * 1e9);
            return nanos + AHEAD.accumulateAndGet(uptime - nanos, Math::max) + stepped;
        } catch (IOException | RuntimeException noLinux) {
            long ahead = AHEAD.get();
            return nanos + (ahead == Long.MIN_VALUE ? 0 : ahead) + stepped;
        }
    }

    private Clock() {}
}
