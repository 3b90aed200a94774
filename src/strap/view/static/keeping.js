// The line below the matches: how many are kept for training, K, undo and redo.

import { make } from "./elements.js";

export class Keeping {
  constructor(choices) {
    this.choices = choices;
    this.kept = make("p", { class: "kept", role: "status" });
    this.value = make("output", { class: "top-k-value" });
    this.slider = make("input", {
      type: "range",
      min: 1,
      step: 1,
      "aria-label": "K: how many of the best matches are kept",
      oninput: () => this.preview(),
      onchange: () => this.ask(),
    });
    const button = (sign, label, onclick) => {
      const attributes = { type: "button", class: "icon-button", title: label };
      return make("button", { ...attributes, "aria-label": label, onclick }, sign);
    };
    this.undo = button("↶", "Undo (u)", () => choices.undo());
    this.redo = button("↷", "Redo (U)", () => choices.redo());
    const slider = make("label", { class: "top-k" }, "K", this.slider, this.value);
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
    this.showKept(now.kept);
    this.undo.disabled = !now.undo;
    this.redo.disabled = !now.redo;
    for (const control of this.controls) control.hidden = isReadOnly;
  }

  /** Count while the slider is dragged; it is asked for when it is let go. */
  preview() {
    const topK = this.chosen();
    this.value.textContent = topK ?? "all";
    this.showKept(this.choices.countWith(topK));
  }

  ask() {
    if (this.chosen() !== this.choices.now.top_k) this.choices.make({ top_k: this.chosen() });
  }

  chosen() {
    const value = Number(this.slider.value);
    return value >= this.choices.rows.count ? null : value;
  }

  showKept(count) {
    const total = this.choices.rows.count;
    const strong = make("strong", {}, count.toLocaleString("en"));
    this.kept.replaceChildren(strong, ` of ${total.toLocaleString("en")} matches kept`);
  }
}
