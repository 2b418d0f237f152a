// The metrics of the nodes over the last minutes: rates, values and quantiles at any time of them.

/** How long a node counts after its last answer, in ms. Behind a load balancer, each answer comes from one of the nodes. */
const NODE_SEEN_MS = 30_000;
/** The time that quantiles are of, in ms. */
const WINDOW_MS = 20_000;

/** What each node has said last: its samples of a quarter of an hour. */
export class Samples {
  nodes = new Map();

  /** `answer`: that of `/metrics/samples`, at a time in ms. */
  add({ node, ages_ms: ages, series }, at) {
    const metrics = new Map();
    for (const [text, values] of Object.entries(series)) {
      const [, name, label = ""] = /^(\w+)(?:\{\w+="(.*)"\})?$/.exec(text) ?? [];
      if (!metrics.has(name)) metrics.set(name, []);
      metrics.get(name).push([label, values]);
    }
    this.nodes.set(node, { times: ages.map((age) => at - age), metrics, seenAt: at });
  }

  /** How many nodes answered lately. */
  count(at) {
    return [...this.nodes.values()].filter(({ seenAt }) => seenAt > at - NODE_SEEN_MS).length;
  }

  has(name) {
    return [...this.nodes.values()].some(({ metrics }) => metrics.has(name));
  }

  /** The sum of a gauge over the nodes; null if none has it. */
  gauge(name, at) {
    return this.sum(at, name, (series, index) => total(series, index));
  }

  /** How much a counter grows in a second, summed over the nodes and over the labels that are `wanted`. */
  rate(name, at, wanted) {
    return this.sum(at, name, (series, index, times) => {
      if (index === 0) return null;
      const grown = total(series, index, wanted) - total(series, index - 1, wanted);
      return (Math.max(0, grown) * 1000) / Math.max(1, times[index] - times[index - 1]);
    });
  }

  /** A quantile of a histogram over the seconds before; null if nothing was measured. */
  quantile(name, at, q) {
    const grown = new Map();
    this.sum(at, `${name}_bucket`, (series, index, times) => {
      const before = times.findIndex((time) => time >= times[index] - WINDOW_MS);
      for (const [le, values] of series) grown.set(le, (grown.get(le) ?? 0) + values[index] - values[before]);
      return 0;
    });
    return quantileOf([...grown].map(([le, count]) => [le === "+Inf" ? Infinity : Number(le), count]), q);
  }

  /** The sum over the nodes of `of`, which gets the series of a metric, and the index of the sample at that time. */
  sum(at, name, of) {
    let sum = null;
    for (const { times, metrics } of this.nodes.values()) {
      const index = indexAt(times, at);
      const value = index === null ? null : of(metrics.get(name) ?? [], index, times);
      if (value !== null) sum = (sum ?? 0) + value;
    }
    return sum;
  }
}

/** The first sample that was not taken before; the last one for a while after it. */
function indexAt(times, at) {
  if (times.length === 0 || times[0] > at + 5000) return null;
  const index = times.findIndex((time) => time >= at);
  if (index >= 0) return index;
  return at - times.at(-1) < NODE_SEEN_MS ? times.length - 1 : null;
}

function total(series, index, wanted = () => true) {
  return series.reduce((sum, [label, values]) => (wanted(label) ? sum + values[index] : sum), 0);
}

/** `buckets`: pairs of an upper bound and the count of all values up to it. */
export function quantileOf(buckets, q) {
  buckets.sort(([a], [b]) => a - b);
  const count = buckets.at(-1)?.[1] ?? 0;
  if (count <= 0) return null;
  const wanted = q * count;
  let [low, below] = [0, 0];
  for (const [le, upTo] of buckets) {
    if (upTo >= wanted) {
      if (le === Infinity) return low;
      return low + ((le - low) * (wanted - below)) / Math.max(upTo - below, 1e-9);
    }
    [low, below] = [le, upTo];
  }
  return low;
}
