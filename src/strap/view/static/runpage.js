// The page of one run: demonstrations, matches, and the chosen match beside its query.

import { AlignmentPane } from "./alignment.js";
import { Choices } from "./choices.js";
import { change, load } from "./data.js";
import { Distributions } from "./distributions.js";
import { make, notify } from "./elements.js";
import { Filters } from "./filters.js";
import { Keeping } from "./keeping.js";
import { MatchGrid } from "./matches.js";
import { Panes } from "./panes.js";
import { FILTERS, Rows } from "./rows.js";
import { numberOf, state, subscribe, update } from "./state.js";
import { Timelines } from "./timelines.js";
import { Verdict } from "./verdict.js";

/** rem of a card's text below its film, with and without controls */
const TEXT_HEIGHT = { changing: 10.6, reading: 8.1 };
const BUSY = {
  borders: "Searching for matches of the new segments …",
  "borders/keep": "Making the run again with these borders …",
  "borders/drop": "Restoring the saved borders …",
};

export class RunPage {
  constructor(contents) {
    this.rows = new Rows(contents);
    this.choices = new Choices(this.rows);
    const canChange = !contents.read_only;
    this.timelines = new Timelines(
      canChange ? (...borders) => this.moveBorders(...borders) : null,
    );
    this.distributions = new Distributions(this.choices);
    this.filters = new Filters();
    this.keeping = new Keeping(this.choices);
    this.verdict = new Verdict(this.choices, (step) => this.stepMatch(step));
    this.alignment = new AlignmentPane(contents.cameras, this.verdict.element);
    this.player = this.alignment.player;
    this.grid = new MatchGrid({
      label: "Matches",
      choices: this.choices,
      actions: this.actions(canChange),
      textHeight: TEXT_HEIGHT[canChange ? "changing" : "reading"],
    });
    this.build();
    this.choices.listen(() => this.onChoices());
    subscribe((changed) => this.onState(changed));
    if (canChange) window.addEventListener("focus", () => this.refresh());
    const isLink = state.match !== null;
    this.showContents();
    if (isLink) this.panes.open("alignment"); // a link to a match opens the comparison
  }

  actions(canChange) {
    const choose = (row) => {
      update({ match: row });
      this.panes.open("alignment");
    };
    if (!canChange) return { choose };
    return {
      choose,
      accept: (row) => this.choices.accept(row),
      reject: (row) => this.choices.reject(row),
      weigh: (row, weight) => this.choices.make({ rows: [row], weight }),
    };
  }

  build() {
    this.draft = make("div", { class: "draft", role: "status", hidden: true });
    const left = make(
      "section",
      { class: "pane pane-demonstrations", "aria-label": "Demonstrations" },
      make("h2", {}, "Demonstrations"),
      make("p", { class: "hint" }, this.hint()),
      this.draft,
      this.timelines.element,
      this.distributions.element,
    );
    this.heading = make("h2", {});
    this.subheading = make("p", { class: "subheading" });
    this.scope = make("button", {
      type: "button",
      class: "button",
      onclick: () => this.toggleScope(),
    });
    const titles = make("div", {}, this.heading, this.subheading);
    const middle = make(
      "section",
      { class: "pane pane-matches", "aria-label": "Matches" },
      make("div", { class: "matches-head" }, titles, this.scope),
      this.filters.element,
      this.grid.element,
      this.keeping.element,
    );
    this.panes = new Panes([
      ["demonstrations", "Demonstrations", left],
      ["matches", "Matches", middle],
      ["alignment", "Compare", this.alignment.element],
    ]);
    this.element = this.panes.element;
  }

  hint() {
    const { demonstrations, read_only: isReadOnly } = this.rows.contents;
    const curve = demonstrations.some((own) => own.movement)
      ? "The curve shows the movement; below the dashed line the robot is at rest. "
      : "";
    return isReadOnly
      ? `${curve}Choose a segment to see its matches.`
      : `${curve}Choose a segment to see its matches; drag a border to move a cut.`;
  }

  /** Show everything again, after the contents have changed. */
  showContents() {
    const { contents } = this.rows;
    this.timelines.show(this.rows);
    this.filters.offer(this.rows);
    this.keeping.mark();
    this.showDraft();
    this.onState(new Set(["query"]));
  }

  onState(changed) {
    if (!this.settle()) return; // settling changes the state, which calls this again
    this.timelines.mark();
    this.showList();
    this.grid.reveal();
    if (changed.has("query")) this.panes.open("matches");
  }

  /** If nothing is chosen, choose a query with matches and its first match. Remove filters of a
   *  link that do not exist in this run. */
  settle() {
    const { contents } = this.rows;
    const unknown = FILTERS.filter((name) => !this.rows.isFilter(name, state[name]));
    if (unknown.length) {
      update(Object.fromEntries(unknown.map((name) => [name, null])));
      return false;
    }
    const query = this.query();
    if (query === null) {
      const first = this.rows.byQuery.findIndex((own) => own.length);
      update({ query: this.queryOfMatch() ?? (first < 0 ? "all" : first) });
      return false;
    }
    const camera = contents.cameras.includes(state.camera) ? state.camera : contents.cameras[0];
    this.camera = camera ?? null;
    this.findRows(query);
    // A hidden match is never chosen, so that nobody rejects a match without seeing it.
    if (this.list.includes(numberOf("match"))) return true;
    const first = this.list[0] ?? null;
    if (first === null && state.match === null) return true;
    update({ match: first });
    return false;
  }

  /** Find the rows to list; nothing changes for another match of the same list. */
  findRows(query) {
    const key = JSON.stringify([query, ...FILTERS.map((name) => state[name])]);
    if (key === this.listKey && this.listed === this.rows) return;
    this.listKey = key;
    this.listed = this.rows;
    this.scopeRows = this.rows.of(query);
    this.list = this.rows.passing(this.scopeRows, state);
    this.distributions.show(this.rows, this.scopeRows);
  }

  /** Return the chosen query: its number, "all", or null. */
  query() {
    if (state.query === "all") return "all";
    const number = numberOf("query");
    return number !== null && number < this.rows.contents.queries.length ? number : null;
  }

  queryOfMatch() {
    const row = numberOf("match");
    return row !== null && row < this.rows.count ? this.rows.matches.query[row] : null;
  }

  showList() {
    const query = this.query();
    const row = numberOf("match");
    const shown = this.list.length.toLocaleString("en");
    const total = this.scopeRows.length.toLocaleString("en");
    const noun = total === "1" ? "match" : "matches";
    const count = shown === total ? `${total} ${noun}` : `${shown} of ${total} ${noun}`;
    this.heading.textContent = query === "all" ? "All queries" : `Query ${query + 1}`;
    this.subheading.textContent =
      query === "all" ? count : `${count} for ${this.rows.query(query).name}`;
    this.scope.textContent = query === "all" ? "One query" : "All queries";
    this.filters.mark();
    this.grid.show(this.rows, this.list, {
      camera: this.camera,
      chosen: row,
      isOfAll: state.query === "all",
      emptyText: this.scopeRows.length ? undefined : "There are no matches.",
    });
    this.verdict.show(row);
    this.alignment.show(this.rows, row, this.camera);
  }

  toggleScope() {
    update({ query: state.query === "all" ? (this.queryOfMatch() ?? 0) : "all" });
  }

  onChoices() {
    this.grid.refresh();
    if (this.distributions.rows === this.rows) this.distributions.showTasks();
  }

  /** Load the state on disk, because another tab may have changed it. */
  async refresh() {
    if (this.choices.pending || this.isBusy) return;
    try {
      this.takeIfChanged(await load("contents"));
    } catch (problem) {
      notify(problem.message);
    }
  }

  takeIfChanged(contents) {
    const shown = (own) => JSON.stringify([own.queries, own.draft, own.fingerprint]);
    if (shown(contents) !== shown(this.rows.contents)) this.take(contents);
    else if (JSON.stringify(contents.choices) !== JSON.stringify(this.choices.now)) {
      this.choices.adopt(contents.choices);
    }
  }

  /** Show other contents of the run: other borders, other matches. */
  take(contents) {
    this.rows = new Rows(contents);
    this.rows.stamp = performance.now(); // the same row number may be another match now
    this.choices.take(this.rows);
    this.showContents();
    this.timelines.restoreFocus();
  }

  moveBorders(demonstration, boundaries) {
    return this.ask("borders", { demonstration, boundaries });
  }

  async ask(name, body) {
    // While a request is running, only the last later request waits for it.
    if (this.isBusy) {
      this.next = [name, body];
      return;
    }
    this.isBusy = true;
    this.element.classList.add("is-busy");
    this.draft.hidden = false;
    this.draft.replaceChildren(make("p", {}, BUSY[name]));
    try {
      const among = this.rows.contents.fingerprint;
      this.take(await change(name, { ...body, among }));
    } catch (problem) {
      notify(problem.message);
      this.timelines.show(this.rows); // a refused border returns to its place
      this.timelines.mark();
      this.showDraft();
    }
    this.isBusy = false;
    this.element.classList.remove("is-busy");
    const { next } = this;
    this.next = null;
    if (next) await this.ask(...next);
  }

  showDraft() {
    const { draft, demonstrations } = this.rows.contents;
    this.draft.hidden = !draft;
    this.element.classList.toggle("is-draft", Boolean(draft));
    if (!draft) return this.draft.replaceChildren();
    const id = demonstrations[draft.demonstration]?.id ?? "";
    const button = (text, name, style) =>
      make(
        "button",
        { type: "button", class: `button ${style}`, onclick: () => this.ask(name, {}) },
        text,
      );
    this.draft.replaceChildren(
      make("p", {}, `Draft: new borders of ${id} and their matches. Nothing is saved yet.`),
      button("Keep these borders", "borders/keep", "is-primary"),
      button("Discard them", "borders/drop", ""),
    );
  }

  /** Choose the match `step` places further in the list. */
  stepMatch(step) {
    const place = this.list.indexOf(numberOf("match"));
    const next = Math.min(this.list.length - 1, Math.max(0, place + step));
    if (this.list.length) update({ match: this.list[next] });
  }

  /** Choose the next query that has matches; among all queries, the next line of cards. */
  stepQuery(step) {
    if (state.query === "all") return this.stepMatch(step * (this.grid.layout?.columns ?? 1));
    let next = this.query() + step;
    while (this.rows.byQuery[next] && !this.rows.byQuery[next].length) next += step;
    if (this.rows.byQuery[next]) update({ query: next, match: null });
    return undefined;
  }

  stepCamera() {
    const { cameras } = this.rows.contents;
    update({ camera: cameras[(cameras.indexOf(this.camera) + 1) % cameras.length] });
  }

  rejectAndGoOn(row) {
    if (this.choices.standing(row) !== "rejected") this.choices.reject(row);
    if (!this.choices.isResting) this.stepMatch(1);
  }

  keys() {
    const chosen = (action) => () => {
      const row = numberOf("match");
      if (row === null) notify("No match is chosen.");
      else action(row);
    };
    const reading = [
      ["ArrowLeft", "previous and next match", () => this.stepMatch(-1)],
      ["ArrowRight", "previous and next match", () => this.stepMatch(1)],
      ["ArrowUp", "previous and next query", () => this.stepQuery(-1)],
      ["ArrowDown", "previous and next query", () => this.stepQuery(1)],
      ["Space", "play and pause", () => this.player.toggle()],
      [",", "one pair of frames back and forward", () => this.player.seek(this.player.step - 1)],
      [".", "one pair of frames back and forward", () => this.player.seek(this.player.step + 1)],
      ["c", "next camera", () => this.stepCamera()],
      ["q", "one query, all queries", () => this.toggleScope()],
      ["/", "search", () => this.filters.focus()],
      ["Escape", "leave the search field", null],
    ];
    if (this.rows.contents.read_only) return reading;
    return [
      ...reading,
      ["a", "accept; press again to take it back", chosen((row) => this.choices.accept(row))],
      ["r", "reject; press again to take it back", chosen((row) => this.choices.reject(row))],
      ["R", "reject and go to the next match", chosen((row) => this.rejectAndGoOn(row))],
      ["u", "undo and redo a choice", () => this.choices.undo()],
      ["U", "undo and redo a choice", () => this.choices.redo()],
      ["Tab", "to a border; then ← → move it, Delete removes it, + adds one", null],
      ["Shift+← →", "at a border: move it by ten frames", null],
      ["double-click", "on a timeline: add a border", null],
    ];
  }
}
