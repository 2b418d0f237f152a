// Metrics as numbers: rates and quantiles from the counters of the nodes.

/** How long samples of a node count, in ms. Behind a load balancer, each answer comes from one of the nodes. */
const NODE_SEEN_MS = 30_000;
/** The time that quantiles are of, in ms. */
const WINDOW_MS = 20_000;

/** Parses OpenMetrics text: a map from each name to its series. */
export function parse(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const [, name, labels, value] = match;
    if (!metrics.has(name)) metrics.set(name, []);
    metrics.get(name).push({ labels: labelsOf(labels ?? ""), value: Number(value) });
  }
  return metrics;
}

function labelsOf(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value.replace(/\\(.)/g, "$1");
  return labels;
}

/** The last samples of each node that answered. */
export class Samples {
  nodes = new Map();

  add(node, text, at = performance.now()) {
    const samples = this.nodes.get(node) ?? [];
    samples.push({ at, metrics: parse(text) });
    while (samples.length > 2 && samples[1].at < at - WINDOW_MS) samples.shift();
    this.nodes.set(node, samples);
    for (const [name, of] of this.nodes) {
      if (of.at(-1).at < at - NODE_SEEN_MS) this.nodes.delete(name);
    }
  }

  get count() {
    return this.nodes.size;
  }

  has(name) {
    return [...this.nodes.values()].some((samples) => samples.at(-1).metrics.has(name));
  }

  /** The sum of a gauge over the nodes; null if no node has it. */
  gauge(name) {
    if (!this.has(name)) return null;
    let sum = 0;
    for (const samples of this.nodes.values()) sum += total(samples.at(-1).metrics.get(name));
    return sum;
  }

  /** How much a counter grows in a second, summed over the nodes and over the series that are `wanted`. */
  rate(name, wanted) {
    let sum = 0;
    let isKnown = false;
    for (const samples of this.nodes.values()) {
      if (samples.length < 2) continue;
      const [before, last] = samples.slice(-2);
      isKnown = true;
      const grown = total(last.metrics.get(name), wanted) - total(before.metrics.get(name), wanted);
      // A counter that is less than it was belongs to a node that has been restarted.
      if (grown > 0) sum += (grown * 1000) / (last.at - before.at);
    }
    return isKnown ? sum : null;
  }

  /**
   * A quantile of a histogram over the last seconds, of the series that are `wanted`, without the values that the histogram `minus` has
   * too; null if nothing was measured.
   */
  quantile(name, q, wanted = () => true, minus = null) {
    const grown = new Map();
    const grow = (samples, buckets, sign) => {
      for (const { labels, value } of samples.metrics.get(buckets) ?? []) if (wanted(labels)) add(grown, labels.le, sign * value);
    };
    for (const samples of this.nodes.values()) {
      if (samples.length < 2) continue;
      for (const [at, sign] of [[samples.at(-1), 1], [samples[0], -1]]) {
        grow(at, `${name}_bucket`, sign);
        if (minus) grow(at, `${minus}_bucket`, -sign);
      }
    }
    return quantileOf([...grown].map(([le, count]) => [le === "+Inf" ? Infinity : Number(le), count]), q);
  }
}

function add(map, name, value) {
  map.set(name, (map.get(name) ?? 0) + value);
}

function total(series = [], wanted = () => true) {
  return series.reduce((sum, { labels, value }) => (wanted(labels) ? sum + value : sum), 0);
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
