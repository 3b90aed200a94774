// Several runs side by side: the matches of the same query in columns. Matches that only one
// run has are marked.

import { AlignmentPane } from "./alignment.js";
import { make } from "./elements.js";
import { MatchGrid } from "./matches.js";
import { Panes } from "./panes.js";
import { Rows } from "./rows.js";
import { numberOf, state, subscribe, update } from "./state.js";
import { Timelines } from "./timelines.js";

/** rem, of a card's width and of its text below the film; there is one column per run */
const [LEAST_WIDTH, TEXT_HEIGHT] = [8, 8.1];
/** Facts about the outcome of a run, not about its options. */
const OUTCOMES = /^(retrieved in|matches|queries|why .*)$/;

export class ComparisonPage {
  constructor(contents) {
    this.runs = contents.runs.map((own, number) => new Rows(own, number));
    /** for each query of the first run: the query of each run, and the rows only it has */
    this.pairings = contents.alignment.map(({ queries, only }) => ({
      queries,
      only: only.map((rows) => new Set(rows)),
    }));
    this.cameras = this.runs[0].contents.cameras;
    this.timelines = new Timelines(null);
    this.alignment = new AlignmentPane(this.cameras);
    this.player = this.alignment.player;
    this.columns = this.runs.map((rows) => this.makeColumn(rows));
    this.build();
    this.timelines.show(this.runs[0]);
    subscribe((changed) => this.onState(changed));
    this.onState(new Set(["query"]));
  }

  makeColumn(rows) {
    const grid = new MatchGrid({
      label: `Matches of ${rows.contents.name}`,
      actions: { choose: (row) => this.choose(rows.number, row) },
      leastWidth: LEAST_WIDTH,
      textHeight: TEXT_HEIGHT,
    });
    const counts = make("p", { class: "subheading" });
    const element = make(
      "section",
      { class: "run-column", "aria-label": rows.contents.name },
      make("h3", {}, rows.contents.name),
      make("p", { class: "subheading" }, ownFacts(this.runs, rows.number)),
      counts,
      grid.element,
    );
    return { rows, grid, counts, element };
  }

  build() {
    this.heading = make("h2", {});
    this.subheading = make("p", { class: "subheading" });
    const left = make(
      "section",
      { class: "pane pane-demonstrations", "aria-label": "Demonstrations" },
      make("h2", {}, "Demonstrations"),
      make("p", { class: "hint" }, `With the segments of ${this.runs[0].contents.name}.`),
      this.timelines.element,
    );
    const columns = make("div", { class: "run-columns" });
    columns.append(...this.columns.map((column) => column.element));
    const middle = make(
      "section",
      { class: "pane pane-matches", "aria-label": "Matches of each run" },
      this.heading,
      this.subheading,
      columns,
    );
    this.panes = new Panes([
      ["demonstrations", "Demonstrations", left],
      ["matches", "Matches", middle],
      ["alignment", "Compare", this.alignment.element],
    ]);
    this.element = this.panes.element;
  }

  choose(run, row) {
    update({ run, match: row });
    this.panes.open("alignment");
  }

  onState(changed) {
    const query = this.query();
    if (query === null) {
      update({ query: 0 });
      return;
    }
    const camera = this.cameras.includes(state.camera) ? state.camera : this.cameras[0];
    const lists = this.lists();
    const chosen = this.chosen(lists);
    this.timelines.mark();
    this.heading.textContent = `Query ${query + 1}`;
    this.subheading.textContent = this.runs[0].query(query).name;
    for (const column of this.columns) this.showColumn(column, lists, chosen, camera);
    this.alignment.show(this.runs[chosen.run], chosen.row, camera);
    if (changed.has("query")) this.panes.open("matches");
  }

  showColumn({ rows, grid, counts }, lists, chosen, camera) {
    const { number } = rows;
    const list = lists[number];
    const only = this.pairings[this.query()].only[number];
    counts.textContent = `${list.length} matches, ${only.size} only in this run`;
    const row = chosen.run === number ? chosen.row : null;
    grid.show(rows, list, {
      camera,
      chosen: row,
      marks: (own) => (only.has(own) ? "only here" : null),
      emptyText: "This run has no matches for this query.",
    });
    if (row !== null) grid.reveal();
  }

  /** Return the chosen run and row; the first existing match if none is chosen. */
  chosen(lists) {
    const run = Math.min(numberOf("run") ?? 0, this.runs.length - 1);
    const row = numberOf("match");
    if (row !== null && lists[run].includes(row)) return { run, row };
    const first = lists.findIndex((list) => list.length);
    return first < 0 ? { run: 0, row: null } : { run: first, row: lists[first][0] };
  }

  /** Return the chosen query of the first run; null if no query has this number. */
  query() {
    const number = numberOf("query");
    return number !== null && number < this.pairings.length ? number : null;
  }

  /** Return for each run the rows of the chosen query, cheapest first. */
  lists() {
    const { queries } = this.pairings[this.query()];
    return this.runs.map((rows, number) => rows.of(queries[number]));
  }

  stepMatch(step) {
    const lists = this.lists();
    const { run, row } = this.chosen(lists);
    const place = Math.min(lists[run].length - 1, Math.max(0, lists[run].indexOf(row) + step));
    if (lists[run].length) update({ run, match: lists[run][place] });
  }

  stepRun(step) {
    const lists = this.lists();
    const count = this.runs.length;
    const run = (this.chosen(lists).run + step + count) % count;
    if (lists[run].length) update({ run, match: lists[run][0] });
  }

  stepQuery(step) {
    const next = this.query() + step;
    if (this.pairings[next]) update({ query: next, match: null });
  }

  keys() {
    return [
      ["ArrowLeft", "previous and next match", () => this.stepMatch(-1)],
      ["ArrowRight", "previous and next match", () => this.stepMatch(1)],
      ["ArrowUp", "previous and next query", () => this.stepQuery(-1)],
      ["ArrowDown", "previous and next query", () => this.stepQuery(1)],
      ["[", "previous and next run", () => this.stepRun(-1)],
      ["]", "previous and next run", () => this.stepRun(1)],
      ["Space", "play and pause", () => this.player.toggle()],
      [",", "one pair of frames back and forward", () => this.player.seek(this.player.step - 1)],
      [".", "one pair of frames back and forward", () => this.player.seek(this.player.step + 1)],
    ];
  }
}

/** Describe the options in which a run differs from the others. */
function ownFacts(runs, number) {
  const isShared = ([name, text]) =>
    runs.every((other) =>
      other.contents.facts.some(([own, same]) => own === name && same === text),
    );
  return runs[number].contents.facts
    .filter((fact) => !OUTCOMES.test(fact[0]) && !isShared(fact))
    .map(([name, text]) => `${name} ${text}`)
    .join(" · ");
}
