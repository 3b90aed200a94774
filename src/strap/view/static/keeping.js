// The line below the matches: the number of matches kept for training, K, undo and redo.

import { RESTING } from "./choices.js";
import { make } from "./elements.js";

const LABEL = "Keep the best K matches in total, spread over the queries";

export class Keeping {
  constructor(choices) {
    this.choices = choices;
    this.kept = make("p", { class: "kept", role: "status" });
    this.value = make("output", { class: "top-k-value" });
    this.slider = make("input", {
      type: "range",
      min: 1,
      step: 1,
      oninput: () => this.preview(),
      onchange: () => this.ask(),
    });
    const button = (sign, label, onclick) => {
      const attributes = { type: "button", class: "icon-button", title: label };
      return make("button", { ...attributes, "aria-label": label, onclick }, sign);
    };
    this.undo = button("↶", "Undo (u)", () => choices.undo());
    this.redo = button("↷", "Redo (U)", () => choices.redo());
    const label = make("span", { class: "top-k-label" }, LABEL);
    const slider = make("label", { class: "top-k" }, label, this.slider, this.value);
    this.controls = [slider, this.undo, this.redo];
    this.element = make("div", { class: "keeping" }, this.kept, ...this.controls);
    choices.listen(() => this.mark());
    this.mark();
  }

  mark() {
    const { now, rows, isReadOnly } = this.choices;
    this.slider.max = Math.max(1, rows.count);
    this.slider.value = now.top_k ?? rows.count;
    this.value.textContent = now.top_k ?? "all";
    this.showKept(now.kept, this.choices.keptWith(now.top_k));
    this.undo.disabled = !now.undo;
    this.redo.disabled = !now.redo;
    for (const control of this.controls) control.hidden = isReadOnly;
    if (this.choices.isResting) this.kept.textContent = RESTING;
  }

  /** Count while the slider is dragged; the change is made when it is released. */
  preview() {
    const topK = this.chosen();
    this.value.textContent = topK ?? "all";
    const kept = this.choices.keptWith(topK);
    this.showKept(kept.length, kept);
  }

  ask() {
    if (this.chosen() !== this.choices.now.top_k) this.choices.make({ top_k: this.chosen() });
  }

  chosen() {
    const value = Number(this.slider.value);
    return value >= this.choices.rows.count ? null : value;
  }

  /** Show how many matches are kept, and how many queries with matches keep none. */
  showKept(count, kept) {
    const { rows } = this.choices;
    const strong = make("strong", {}, count.toLocaleString("en"));
    const keeping = new Set(kept.map((row) => rows.matches.query[row]));
    const none = rows.byQuery.filter((own, query) => own.length && !keeping.has(query)).length;
    const without = none === 1 ? "1 query keeps none" : `${none} queries keep none`;
    this.kept.replaceChildren(strong, ` of ${rows.count.toLocaleString("en")} matches kept`);
    if (none) this.kept.append(make("span", { class: "kept-none" }, without));
    for (const task of this.choices.lostTasks()) {
      const text = `no match has the task of an earlier choice any more: “${task}”`;
      this.kept.append(make("span", { class: "kept-none" }, text));
    }
  }
}
