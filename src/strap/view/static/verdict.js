// The buttons below the films: accept or reject the chosen match, go to the next one.

import { make } from "./elements.js";

export class Verdict {
  /** @param stepMatch chooses the match this number of places further */
  constructor(choices, stepMatch) {
    this.choices = choices;
    this.row = null;
    const button = (text, style, listener) =>
      make("button", { type: "button", class: style, onclick: listener }, text);
    this.accept = button("✓ Accept", "button", () => choices.accept(this.row));
    this.reject = button("✕ Reject", "button", () => choices.reject(this.row));
    const back = button("‹", "icon-button", () => stepMatch(-1));
    const on = button("›", "icon-button", () => stepMatch(1));
    back.setAttribute("aria-label", "Previous match");
    on.setAttribute("aria-label", "Next match");
    this.element = make("div", { class: "verdict" }, back, this.accept, this.reject, on);
    choices.listen(() => this.mark());
  }

  show(row) {
    this.row = row;
    this.mark();
  }

  mark() {
    const isOpen = this.row !== null && !this.choices.isReadOnly;
    const standing = this.row === null ? null : this.choices.standing(this.row);
    for (const [button, word] of [[this.accept, "accepted"], [this.reject, "rejected"]]) {
      button.hidden = !isOpen;
      button.setAttribute("aria-pressed", String(standing === word));
    }
  }
}
