// Small charts of the last minutes, with axes. Under the pointer, a chart shows the values of that time.

import { h, replace, svg } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 240;
const HEIGHT = 72;
const TIMES = 4;

/** `series`: names, in the order of the values. `href`: where a person finds what the chart counts. */
export class Chart {
  points = [];

  constructor({ title, series, format, href }) {
    Object.assign(this, { title, series, format });
    this.now = h("p", { class: "chart-now" }, "–");
    this.top = h("span", {});
    this.middle = h("span", {});
    this.plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "chart-plot" });
    this.times = h("div", { class: "chart-times", "aria-hidden": "true" });
    this.cursor = svg("path", { class: "cursor" });
    this.element = h("section", { class: "chart" },
      h("h2", {}, href ? h("a", { href }, title) : title), this.now,
      h("div", { class: "chart-frame" }, h("div", { class: "chart-values", "aria-hidden": "true" }, this.top, this.middle, h("span", {}, "0")), this.plot), this.times);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
  }

  /** `points`: [{ at, values }], evenly spaced, the oldest first; null leaves a gap. */
  draw(points) {
    this.points = points;
    const known = points.flatMap(({ values }) => values).filter((value) => value !== null);
    const top = roundTop(Math.max(...known, 0));
    const shapes = this.series.flatMap((_, index) => lines(points.map(({ values }) => values[index]), top).map(([line, area]) => [
      index === 0 && svg("path", { d: area, class: "area" }),
      svg("path", { d: line, class: `line line-${index}` }),
    ]));
    replace(this.plot, svg("path", { d: `M0 .5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}`, class: "axis" }), shapes, this.cursor);
    this.top.textContent = this.onAxis(top);
    this.middle.textContent = this.onAxis(top / 2);
    replace(this.times, points.length > 1 && Array.from({ length: TIMES }, (_, index) =>
      h("span", {}, clock(points[Math.round((index * (points.length - 1)) / (TIMES - 1))].at, false))));
    const highest = known.length ? `, between ${this.format(Math.min(...known))} and ${this.format(Math.max(...known))} since ${clock(points[0].at)}` : "";
    const latest = this.series.map((name, index) => `${name} ${this.format(points.at(-1)?.values[index] ?? null)}`);
    this.plot.setAttribute("aria-label", `${this.title}: ${latest.join(", ")}${highest}`);
    if (this.pointed === undefined) this.show(points.at(-1));
    else this.show(points[this.pointed], true);
  }

  /** The ends of axes are round. */
  onAxis(value) {
    return this.format(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  }

  show(point, isPast = false) {
    replace(this.now, this.series.map((name, index) => h("span", { class: `chart-value value-${index}` },
      h("b", {}, this.format(point?.values[index] ?? null)), name && h("span", { class: "chart-name" }, name))),
    isPast && h("span", { class: "about" }, `at ${clock(point.at)}`));
  }

  point(event) {
    const { left, width } = this.plot.getBoundingClientRect();
    const last = this.points.length - 1;
    if (last < 1) return;
    this.pointed = Math.min(last, Math.max(0, Math.round(((event.clientX - left) / width) * last)));
    const x = (this.pointed * WIDTH) / last;
    this.cursor.setAttribute("d", `M${x} 0V${HEIGHT}`);
    this.show(this.points[this.pointed], true);
  }

  leave() {
    this.pointed = undefined;
    this.cursor.removeAttribute("d");
    this.show(this.points.at(-1));
  }
}

/** The end of the axis: a round number that is not below the highest value. */
function roundTop(highest) {
  if (highest <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * unit).find((step) => step >= highest * 0.999) ?? 10 * unit;
}

/** The line and the area under it, for each run of values without a gap. */
function lines(values, top) {
  const step = WIDTH / Math.max(1, values.length - 1);
  const runs = [[]];
  values.forEach((value, index) => {
    if (value === null) runs.push([]);
    else runs.at(-1).push([(index * step).toFixed(1), (HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)]);
  });
  return runs.filter((run) => run.length > 0).map((run) => {
    // A single value is a dot.
    const points = run.length === 1 ? [run[0], [Number(run[0][0]) + 0.1, run[0][1]]] : run;
    const line = `M${points.map((point) => point.join(" ")).join("L")}`;
    return [line, `${line}L${points.at(-1)[0]} ${HEIGHT}L${points[0][0]} ${HEIGHT}Z`];
  });
}
