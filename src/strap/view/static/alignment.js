// The right pane: a query and a match side by side, and how they are aligned.

import { load } from "./data.js";
import { make, makeSelect, makeTail, makeTransport } from "./elements.js";
import { Film } from "./films.js";
import { CostMatrix } from "./matrix.js";
import { Paths } from "./paths.js";
import { Player, evenPairs } from "./player.js";
import { MEANINGS, SHAPES } from "./rows.js";
import { Signals } from "./signals.js";
import { update } from "./state.js";

const SPEEDS = [[0.25, "¼×"], [0.5, "½×"], [1, "1×"], [2, "2×"]];

export class AlignmentPane {
  /** @param controls an element below the films with the controls for a match */
  constructor(cameras, controls = null) {
    this.cameras = cameras;
    this.controls = controls;
    this.sides = [makeSide("Query"), makeSide("Match")];
    this.player = new Player(...this.sides.map((side) => side.canvas));
    this.matrix = new CostMatrix((step) => this.player.seek(step));
    this.paths = new Paths();
    this.signals = new Signals();
    this.shownKey = null;
    this.reason = "";
    this.build();
    this.player.listen(() => this.onPair());
  }

  build() {
    this.empty = make("p", { class: "empty" }, "Choose a match to see it beside its query.");
    this.note = make("p", { class: "note", hidden: true });
    const films = make("div", { class: "films" }, ...this.sides.map((side) => side.element));
    films.classList.toggle("is-blank", !this.cameras.length);
    this.matrixPart = makePart(
      "Cost matrix and warping path",
      "Rows: frames of the query. Columns: frames of the match's trajectory; faded columns are " +
        "outside the match. Drag to move both videos along the path.",
      this.matrix.key,
      this.matrix.canvas,
    );
    this.pathsPart = makePart("End effectors", null, this.paths.canvas, this.makeJoin());
    this.signalsPart = makePart("Gripper and actions", null, makeLegend(), this.signals.element);
    this.parts = make(
      "div",
      { class: "alignment-parts" },
      this.note,
      this.matrixPart,
      this.pathsPart,
      this.signalsPart,
    );
    const transport = this.makeTransport();
    this.body = make("div", { hidden: true }, films, transport, this.controls, this.parts);
    this.element = make(
      "section",
      { class: "pane pane-alignment", id: "alignment", "aria-label": "Query and match" },
      this.empty,
      this.body,
    );
  }

  makeTransport() {
    const parts = makeTransport("Position on the warping path", {
      toggle: () => this.player.toggle(),
      seek: (place) => this.player.seek(place),
    });
    Object.assign(this, parts); // button, slider, where
    const speed = makeSelect("Speed", SPEEDS, {
      title: "Speed",
      class: "speed",
      onchange: () => (this.player.speed = Number(speed.value)),
    });
    speed.value = "1";
    this.camera = makeSelect("Camera", this.cameras.map((name) => [name, name]), {
      onchange: () => update({ camera: this.camera.value }),
    });
    this.camera.hidden = this.cameras.length < 2;
    const settings = make("div", { class: "transport-settings" }, this.where, speed, this.camera);
    return make(
      "div",
      { class: "transport" },
      make("div", { class: "transport-line" }, this.button, this.slider),
      settings,
    );
  }

  makeJoin() {
    const box = make("input", {
      type: "checkbox",
      onchange: () => this.paths.setJoined(box.checked),
    });
    return make("label", { class: "check" }, box, "Start both paths at the same point");
  }

  /** Show row `row` of `rows`, seen by `camera`; nothing for null. */
  async show(rows, row, camera) {
    const key = row === null ? null : `${rows.number} ${row} ${camera} ${rows.stamp ?? ""}`;
    if (key === this.shownKey) return;
    this.shownKey = key;
    this.empty.hidden = row !== null;
    this.body.hidden = row === null;
    if (row === null) return this.player.close();
    const { query, match } = this.describe(rows, row);
    this.openFilms(rows, query, match, camera);
    this.camera.value = camera;
    await this.align(rows, row, key, query, match);
  }

  /** Show why there is no warping path, unless the films cannot be played at all. */
  showNote(text) {
    this.reason = text;
    this.note.hidden = text === "" || Boolean(this.player.problem);
    this.note.textContent = text;
  }

  describe(rows, row) {
    const { matches } = rows;
    const query = rows.query(matches.query[row]);
    const match = {
      place: matches.dataset[row],
      trajectory: matches.trajectory[row],
      start: matches.start[row],
      stop: matches.stop[row],
    };
    const quality = rows.quality(row);
    const cost = `${rows.costText(row)} per frame`;
    const verdict = `${rows.isGraded ? `${SHAPES[quality]} ${quality} ·` : "cost"} ${cost}`;
    this.sides[0].describe(query.instruction, query.name, `${query.stop - query.start} frames`);
    this.sides[1].describe(
      rows.instruction(row),
      rows.segment(row),
      `${match.stop - match.start} frames · ${rows.dataset(row)}`,
      verdict,
      rows.isGraded ? MEANINGS[quality] : "",
    );
    return { query, match };
  }

  openFilms(rows, query, match, camera) {
    const { trajectory, start, stop } = query;
    const films = [
      new Film({ place: "target", trajectory, start, stop, camera, run: rows.number }),
      new Film({ ...match, camera, run: rows.number }),
    ];
    // Both films start together; until the path is loaded, only its first pair is shown.
    this.player.open(films, [[0, 0]], rows.contents.fps);
  }

  /** Load the warping path and everything that is drawn along it. */
  async align(rows, row, key, query, match) {
    this.showNote("");
    let alignment;
    try {
      alignment = await load("alignment", { match: row, run: rows.number });
    } catch (problem) {
      alignment = { path: null, reason: problem.message };
    }
    if (this.shownKey !== key) return;
    const { path, reason } = alignment;
    const pairs = path ?? evenPairs(query.stop - query.start, match.stop - match.start);
    this.showNote(path ? "" : `Both videos play at an even rate: ${reason}`);
    this.slider.max = pairs.length - 1;
    this.matrixPart.hidden = !path;
    if (path) this.matrix.show(alignment, query, match);
    this.showSignals(alignment, pairs);
    this.player.follow(pairs);
  }

  showSignals(alignment, pairs) {
    const { query = {}, match = {} } = alignment;
    const hasPositions = Boolean(query.position?.length || match.position?.length);
    this.pathsPart.hidden = !hasPositions;
    if (hasPositions) this.paths.show(query.position ?? null, match.position ?? null);
    this.signals.show(query, match, pairs);
    this.signalsPart.hidden = !this.signals.charts.length;
  }

  onPair() {
    const { player } = this;
    this.button.textContent = player.playing ? "❚❚" : "▶";
    this.button.setAttribute("aria-label", player.playing ? "Pause" : "Play");
    for (const side of this.sides) side.setProblem(player.problem);
    this.showNote(this.reason);
    if (!player.shown) return this.clearPair();
    const { step, query, match } = player.shown;
    this.slider.value = step;
    const place = `pair ${step + 1} of ${player.pairs.length}`;
    this.slider.setAttribute("aria-valuetext", `${place}: query ${query}, match ${match}`);
    this.where.textContent = place;
    const [left, right] = player.films.map((film) => film.source.start);
    this.sides[0].setFrame(left + query);
    this.sides[1].setFrame(right + match);
    this.matrix.setStep(step);
    this.paths.setPair(query, match);
    this.signals.setStep(step);
    return undefined;
  }

  clearPair() {
    this.slider.value = 0;
    this.slider.removeAttribute("aria-valuetext");
    this.where.textContent = "";
    for (const side of this.sides) side.setFrame(null);
  }
}

/** Make one film with a description below it. */
function makeSide(role) {
  const canvas = make("canvas", { role: "img", "aria-label": role, width: 384, height: 384 });
  const frame = make("span", { class: "frame-number" });
  const problem = make("p", { class: "film-problem", hidden: true });
  const title = make("p", { class: "film-title" });
  const place = makeTail("p", "film-place");
  const size = make("p", { class: "film-size" });
  const verdict = make("p", { class: "film-verdict" });
  const mark = make("span", { class: `key key-${role.toLowerCase()}`, "aria-hidden": "true" });
  const element = make(
    "figure",
    { class: "film" },
    make("div", { class: "film-head" }, make("span", { class: "film-role" }, mark, role), frame),
    make("div", { class: "film-screen" }, canvas, problem),
    make("figcaption", {}, title, place.element, size, verdict),
  );
  return {
    element,
    canvas,
    describe(instruction, name, text, judgement = "", meaning = "") {
      title.textContent = instruction;
      title.title = instruction;
      place.text.textContent = name;
      place.element.title = name;
      size.textContent = text;
      verdict.textContent = judgement;
      verdict.title = meaning;
      canvas.setAttribute("aria-label", `${role}: ${instruction}, ${name}`);
      frame.textContent = "";
    },
    setFrame: (number) => (frame.textContent = number === null ? "" : `frame ${number}`),
    setProblem(text) {
      problem.hidden = !text;
      problem.textContent = text ?? "";
    },
  };
}

function makePart(title, hint, ...content) {
  return make(
    "section",
    { class: "part" },
    make("h3", {}, title),
    hint ? make("p", { class: "hint" }, hint) : null,
    ...content,
  );
}

function makeLegend() {
  const entry = (name) =>
    make("span", {}, make("span", { class: `key key-${name}`, "aria-hidden": "true" }), name);
  return make("p", { class: "legend" }, entry("query"), entry("match"));
}
