// Small charts of the last two minutes.

import { h, replace, svg } from "./dom.js";

const POINTS = 60;
const WIDTH = 240;
const HEIGHT = 56;

/** `series`: [{ name, format }], drawn in the order given. `add` takes one value for each; null leaves a gap. */
export class Chart {
  constructor(title, series, format) {
    this.title = title;
    this.series = series.map((name) => ({ name, values: [] }));
    this.format = format;
    this.now = h("p", { class: "chart-now" }, "–");
    this.plot = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "chart-plot",
    });
    this.element = h("section", { class: "chart" }, h("h2", {}, title), this.now, this.plot);
    this.draw();
  }

  add(...values) {
    values.forEach((value, index) => {
      const kept = this.series[index].values;
      kept.push(value);
      if (kept.length > POINTS) kept.shift();
    });
    this.draw();
  }

  draw() {
    const known = this.series.flatMap(({ values }) => values).filter((value) => value !== null && value !== undefined);
    const top = Math.max(...known, 0) * 1.08 || 1;
    const shapes = this.series.flatMap(({ values }, index) => lines(values, top).map(([line, area]) => [
      index === 0 && svg("path", { d: area, class: "area" }),
      svg("path", { d: line, class: `line line-${index}` }),
    ]));
    replace(this.plot, svg("path", { d: `M0 ${HEIGHT - 0.5}H${WIDTH}`, class: "axis" }), shapes);
    const highest = known.length ? `, at most ${this.format(Math.max(...known))} in the last two minutes` : "";
    const latest = this.series.map(({ name, values }) => [name, this.format(values.at(-1) ?? null)]);
    this.plot.setAttribute("aria-label", `${this.title}: ${latest.map((pair) => pair.join(" ")).join(", ")}${highest}`);
    replace(this.now, latest.map(([name, value], index) => h("span", { class: `chart-value value-${index}` },
      h("b", {}, value), name && h("span", { class: "chart-name" }, name))));
  }
}

/** The line and the area under it, for each run of values without a gap. */
function lines(values, top) {
  const step = WIDTH / (POINTS - 1);
  const begin = POINTS - values.length;
  const runs = [[]];
  values.forEach((value, index) => {
    if (value === null || value === undefined) runs.push([]);
    else runs.at(-1).push([((begin + index) * step).toFixed(1), (HEIGHT - 1 - (value / top) * (HEIGHT - 4)).toFixed(1)]);
  });
  return runs.filter((run) => run.length > 0).map((run) => {
    // A single value is a dot.
    const points = run.length === 1 ? [run[0], [Number(run[0][0]) + 0.1, run[0][1]]] : run;
    const line = `M${points.map((point) => point.join(" ")).join("L")}`;
    return [line, `${line}L${points.at(-1)[0]} ${HEIGHT}L${points[0][0]} ${HEIGHT}Z`];
  });
}
