/**
 * Fails the step, with this line in its log.
 * @param {string} text
 */
export function fail(text) {
  const escaped = text.replaceAll("%", "%25").replaceAll("\r", "%0D").replaceAll("\n", "%0A");
  console.log(`::error title=Latchgate::${escaped}`);
  process.exitCode = 1;
}
