/** A client of Latchgate: {@link io.latchgate.LatchgateClient} is where to begin. All times are {@link java.time.Duration}. */
package io.latchgate;
