// The line of filters above the matches: text, task, dataset, quality, and the bars chosen in
// the charts.

import { describeFilters } from "./distributions.js";
import { make, makeSelect, setOptions } from "./elements.js";
import { FILTERS, MEANINGS, QUALITIES, SHAPES } from "./rows.js";
import { state, update } from "./state.js";

export class Filters {
  constructor() {
    this.text = make("input", {
      type: "search",
      placeholder: "Search  /",
      "aria-label": "Search instructions, datasets and trajectories",
      oninput: () => update({ text: this.text.value.trim() }),
    });
    const select = (name, label) => {
      const own = makeSelect(label, [], { onchange: () => update({ [name]: own.value }) });
      return own;
    };
    this.task = select("task", "Task");
    this.dataset = select("dataset", "Dataset");
    this.quality = select("quality", "Quality");
    this.chips = make("div", { class: "chips" });
    this.line = make("div", { class: "filters" }, this.text, this.task, this.dataset, this.quality);
    this.element = make("div", { class: "filter-lines", role: "search" }, this.line, this.chips);
  }

  /** List the tasks, datasets and qualities by which a run's matches can be filtered. */
  offer(rows) {
    this.rows = rows;
    const tasks = [...rows.contents.instructions].sort();
    setOptions(this.task, [["", "Any task"], ...tasks.map((task) => [task, task])]);
    const names = rows.datasetNames.map((name) => [name, name]);
    setOptions(this.dataset, [["", "Any dataset"], ...names]);
    this.dataset.hidden = names.length < 2;
    const words = QUALITIES.map((word) => [word, `${SHAPES[word]} ${word}`]);
    setOptions(this.quality, [["", "Any quality"], ...words]);
    this.quality.title = QUALITIES.map((word) => `${word}: ${MEANINGS[word]}`).join("\n");
  }

  /** Show the filters of the state. */
  mark() {
    if (document.activeElement !== this.text) this.text.value = state.text ?? "";
    for (const name of ["task", "dataset", "quality"]) {
      this[name].value = state[name] ?? "";
      this[name].classList.toggle("is-changed", state[name] !== null);
    }
    const chips = describeFilters(this.rows).map(([name, text]) =>
      make(
        "button",
        { type: "button", class: "chip", onclick: () => update({ [name]: null }) },
        `${text}  ✕`,
      ),
    );
    const isAny = FILTERS.some((name) => state[name] !== null);
    const clear = () => {
      this.text.value = "";
      update(Object.fromEntries(FILTERS.map((name) => [name, null])));
    };
    if (isAny) {
      const attributes = { type: "button", class: "link", onclick: clear };
      chips.push(make("button", attributes, "Clear filters"));
    }
    this.chips.replaceChildren(...chips);
    this.chips.hidden = !isAny;
  }

  focus() {
    this.text.focus();
    this.text.select();
  }
}
