// Rows of a list that a person has chosen, and what is done to all of them.

import { h, replace } from "./dom.js";
import { plural } from "./format.js";
import { ask, button, toast } from "./widgets.js";

/** Most rows that a question names. */
const NAMED_MAX = 8;

/** `idOf` and `nameOf` tell of a row what it is; `noun` is what one row is called. `actionsOf` makes buttons for the chosen rows. */
export class Selection {
  chosen = new Set();
  shown = new Map();
  bar = h("div", { class: "selected", role: "group", "aria-label": "Selected", hidden: true });

  constructor({ idOf, nameOf, noun, actionsOf }) {
    Object.assign(this, { idOf, nameOf, noun, actionsOf });
  }

  /** The first column of the list of these rows. A row that is not in the list any more is not chosen any more. */
  column(rows) {
    this.shown = new Map(rows.map((row) => [this.idOf(row), row]));
    this.chosen = new Set([...this.chosen].filter((id) => this.shown.has(id)));
    this.all = h("input", { type: "checkbox", "aria-label": "Select all", "data-focus": "select-all", onchange: () => this.choose([...this.shown.keys()], this.all.checked) });
    this.boxes = new Map();
    this.draw();
    return {
      label: this.all, class: "choice",
      cell: (row) => {
        const id = this.idOf(row);
        const box = h("input", { type: "checkbox", checked: this.chosen.has(id), "aria-label": `Select ${this.nameOf(row)}`, "data-focus": `select-${id}`,
          onchange: () => this.choose([id], box.checked) });
        this.boxes.set(id, box);
        return box;
      },
    };
  }

  choose(ids, isChosen) {
    for (const id of ids) {
      if (isChosen) this.chosen.add(id);
      else this.chosen.delete(id);
      if (this.boxes.has(id)) this.boxes.get(id).checked = isChosen;
    }
    this.draw();
  }

  draw() {
    const rows = [...this.chosen].map((id) => this.shown.get(id));
    this.all.checked = rows.length > 0 && rows.length === this.shown.size;
    this.all.indeterminate = rows.length > 0 && rows.length < this.shown.size;
    this.bar.hidden = rows.length === 0;
    replace(this.bar, h("b", {}, `${plural(rows.length, this.noun)} selected`),
      h("div", { class: "actions" }, this.actionsOf(rows), button("Clear", () => this.choose([...this.chosen], false), { class: "plain", "data-focus": "clear" })));
  }

  /** Asks once, and then calls `each` for one row after the other. A row that fails stays chosen, and the dialog says why. */
  ask({ rows, each, refresh, said, text, ...question }) {
    const names = rows.slice(0, NAMED_MAX).map((row) => h("li", { class: "mono key" }, this.nameOf(row)));
    const rest = rows.length > NAMED_MAX && h("li", {}, `and ${rows.length - NAMED_MAX} more`);
    let left = rows;
    ask({
      ...question,
      text: [...[text].flat(), h("ul", { class: "named" }, names, rest)],
      run: async (values, progress) => {
        const total = left.length;
        const failed = [];
        for (const row of left) {
          progress(`${total - left.length + 1} of ${total}…`);
          try {
            await each(row, values);
            this.chosen.delete(this.idOf(row));
          } catch (problem) {
            problem.message = `${this.nameOf(row)}: ${problem.message}`;
            failed.push([row, problem]);
          }
          left = left.filter((other) => other !== row);
        }
        refresh();
        left = failed.map(([row]) => row);
        if (failed.length === 0) return toast(said(total));
        const [[, problem]] = failed;
        problem.message = `${total - failed.length} of ${total} done. ${problem.message}`;
        throw problem;
      },
    });
  }
}
