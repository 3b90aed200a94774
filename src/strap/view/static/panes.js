// Two or three panes: side by side on wide screens, one at a time with tabs on narrow ones.

import { make } from "./elements.js";

export class Panes {
  /** @param panes [name, label, element], in order */
  constructor(panes) {
    this.panes = panes;
    this.tabs = new Map(
      panes.map(([name, label]) => [
        name,
        make("button", { type: "button", class: "tab", onclick: () => this.open(name) }, label),
      ]),
    );
    const navigation = make("nav", { class: "tabs", "aria-label": "Parts of the page" });
    navigation.append(...this.tabs.values());
    this.element = make("div", { class: `panes panes-${panes.length}` });
    this.element.append(...panes.map(([, , pane]) => pane), navigation);
    this.open(panes[Math.min(1, panes.length - 1)][0]);
  }

  open(wanted) {
    for (const [name, , pane] of this.panes) {
      pane.classList.toggle("is-open", name === wanted);
      this.tabs.get(name).setAttribute("aria-current", name === wanted ? "page" : "false");
    }
    // A hidden pane had no size: it is measured when it becomes visible.
    window.dispatchEvent(new Event("resize"));
  }
}
