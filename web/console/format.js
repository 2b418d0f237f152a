// Numbers and times as text.

const toTheSecond = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const toTheMinute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function number(value) {
  return whole.format(value);
}

/** A rate: few digits, whatever its size. */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100) return whole.format(value);
  if (value >= 10) return value.toFixed(1);
  return value === 0 ? "0" : value.toFixed(2);
}

/** A duration in ms, with at most two units: 850 ms, 4.2 s, 1 min 5 s, 3 h 10 min, 2 d 4 h. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0 ms" : `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? trimmed(ms, 1) : Math.round(ms)} ms`;
  if (ms < 10_000) return `${trimmed(ms / 1000, 1)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return pair(seconds, 60, "min", 1, "s");
  if (seconds < 86_400) return pair(seconds, 3600, "h", 60, "min");
  return pair(seconds, 86_400, "d", 3600, "h");
}

function trimmed(value, digits) {
  return String(Number(value.toFixed(digits)));
}

/** A duration that ticks: whole seconds. */
export function ticking(ms) {
  return ms < 10_000 ? `${Math.max(0, Math.ceil(ms / 1000))} s` : duration(ms);
}

function pair(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** A time of the server; with its day unless that is today. */
export function time(iso) {
  if (!iso) return "–";
  const at = new Date(iso);
  const today = new Date().toDateString() === at.toDateString();
  return today ? clock(at) : `${day.format(at)}, ${clock(at)}`;
}

/** The time of day. */
export function clock(at, hasSeconds = true) {
  return (hasSeconds ? toTheSecond : toTheMinute).format(at);
}

/** How a person reads a name of the API: `held_too_long` is `held too long`. */
export function words(name) {
  return name.replaceAll("_", " ").replaceAll("-", " ");
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}
