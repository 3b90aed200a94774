// The demonstrations as timelines: segments to choose, the movement that decided the cuts,
// and borders that can be moved by mouse or keyboard.

import { draw, make, makeTail } from "./elements.js";
import { state, update } from "./state.js";

const [WIDTH, HEIGHT] = [1000, 100];
/** Milliseconds after the last key press before a border moved by keys is sent to the server. */
const KEY_DELAY = 600;
const FIXED = "The segments leave frames out or overlap, so the borders cannot be moved here.";

export class Timelines {
  /** @param onBorders called with (demonstration, boundaries) when borders were changed;
   *  null if they are fixed */
  constructor(onBorders) {
    this.onBorders = onBorders;
    this.element = make("ol", { class: "timelines" });
    this.keyTimer = 0;
  }

  show(rows) {
    this.rows = rows;
    const { demonstrations } = rows.contents;
    const longest = Math.max(1, ...demonstrations.map((own) => own.length));
    this.element.replaceChildren(
      ...demonstrations.map((own, number) => this.makeTimeline(own, number, longest)),
    );
    this.mark();
  }

  /** Mark the chosen query. */
  mark() {
    for (const button of this.element.querySelectorAll(".segment")) {
      const isChosen = button.dataset.query === state.query;
      button.classList.toggle("is-chosen", isChosen);
      button.setAttribute("aria-pressed", String(isChosen));
      if (isChosen) button.scrollIntoView({ block: "nearest" });
    }
  }

  makeTimeline(demonstration, number, longest) {
    const { id, length, queries, is_tiled: isTiled } = demonstration;
    const track = make("div", { class: "track" });
    // All timelines have the same scale, so that a longer demonstration looks longer.
    track.style.width = `${(100 * length) / longest}%`;
    const segments = queries.map((query, place) => this.makeSegment(query, place, length));
    track.append(makeMovement(demonstration), ...segments);
    track.classList.toggle("is-fixed", !this.onBorders || !isTiled);
    if (this.onBorders && isTiled) {
      const borders = queries.slice(1).map((query) => this.rows.contents.queries[query].start);
      borders.forEach((frame, place) =>
        track.append(this.makeBorder({ number, id, length, borders, place }, frame)),
      );
      track.addEventListener("dblclick", (event) => {
        const box = track.getBoundingClientRect();
        const frame = Math.round(((event.clientX - box.left) / box.width) * length);
        this.ask(number, [...borders, frame], length);
      });
    }
    const name = makeTail("span", "timeline-name");
    name.text.textContent = id;
    name.element.title = id;
    const head = make(
      "p",
      { class: "timeline-head" },
      name.element,
      make("span", { class: "timeline-length" }, `${length} frames`),
    );
    const note = this.onBorders && !isTiled ? [make("p", { class: "timeline-note" }, FIXED)] : [];
    return make("li", { class: "timeline" }, head, track, ...note);
  }

  makeSegment(query, place, length) {
    const { start, stop } = this.rows.contents.queries[query];
    const count = this.rows.of(query).length;
    const label = `Query ${query + 1}, frames ${start} to ${stop - 1}, ${count} matches`;
    const button = make(
      "button",
      {
        type: "button",
        class: "segment",
        title: label,
        "aria-label": label,
        "data-query": query,
        "data-plays": true,
        onclick: () => update({ query, match: null }),
      },
      make("span", { "aria-hidden": "true" }, String(query + 1)),
    );
    button.classList.toggle("is-odd", place % 2 === 1);
    button.style.left = `${(100 * start) / length}%`;
    button.style.width = `${(100 * (stop - start)) / length}%`;
    return button;
  }

  makeBorder(line, frame) {
    const { id, length, place } = line;
    const handle = make("div", {
      class: "border",
      role: "slider",
      tabindex: 0,
      "aria-label": `Border ${place + 1} of ${id}`,
      "aria-valuemin": 1,
      "aria-valuemax": length - 1,
      title: "Drag it or use the arrow keys; Delete removes it, + adds a border after it",
    });
    const move = (to) => {
      handle.dataset.frame = to;
      handle.style.left = `${(100 * to) / length}%`;
      handle.setAttribute("aria-valuenow", to);
      handle.setAttribute("aria-valuetext", `frame ${to}`);
    };
    move(frame);
    this.makeDraggable(handle, line, move);
    handle.addEventListener("keydown", (event) => this.onBorderKey(event, handle, line, move));
    return handle;
  }

  makeDraggable(handle, line, move) {
    let from = null;
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      from = Number(handle.dataset.frame);
      handle.classList.add("is-moving");
    });
    handle.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const box = handle.parentElement.getBoundingClientRect();
      const frame = Math.round(((event.clientX - box.left) / box.width) * line.length);
      move(within(frame, line));
    });
    const release = () => {
      const isMoved = from !== null && Number(handle.dataset.frame) !== from;
      from = null;
      handle.classList.remove("is-moving");
      if (isMoved) this.askFor(handle, line);
    };
    handle.addEventListener("pointerup", release);
    handle.addEventListener("pointercancel", release);
    handle.addEventListener("dblclick", (event) => event.stopPropagation());
  }

  onBorderKey(event, handle, line, move) {
    const frame = Number(handle.dataset.frame);
    const step = event.shiftKey ? 10 : 1;
    const steps = { ArrowLeft: -step, ArrowDown: -step, ArrowRight: step, ArrowUp: step };
    const { borders, place, number, length } = line;
    if (event.key in steps) {
      move(within(frame + steps[event.key], line));
      clearTimeout(this.keyTimer);
      this.keyTimer = setTimeout(() => this.askFor(handle, line), KEY_DELAY);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.ask(number, borders.filter((_, other) => other !== place), length);
    } else if (event.key === "+") {
      const next = borders[place + 1] ?? length;
      this.ask(number, [...borders, Math.round((frame + next) / 2)], length);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  askFor(handle, { number, borders, place, length }) {
    const moved = borders.map((own, other) =>
      other === place ? Number(handle.dataset.frame) : own,
    );
    this.focusAfter = { number, place };
    this.ask(number, moved, length);
  }

  ask(number, borders, length) {
    const inside = borders.filter((frame) => frame > 0 && frame < length);
    this.onBorders(number, [...new Set(inside)].sort((a, b) => a - b));
  }

  /** Return the focus to the moved border, once the new segments are shown. */
  restoreFocus() {
    if (!this.focusAfter) return;
    const { number, place } = this.focusAfter;
    this.focusAfter = null;
    this.element.children[number]?.querySelectorAll(".border")[place]?.focus();
  }
}

/** Limit a border to the range between its neighbours, at least one frame from each. */
function within(frame, { borders, place, length }) {
  const low = (borders[place - 1] ?? 0) + 1;
  const high = (borders[place + 1] ?? length) - 1;
  return Math.min(high, Math.max(low, frame));
}

/** Draw the movement of each frame, and the threshold below which the robot is at rest. */
function makeMovement({ movement, threshold }) {
  const picture = draw("svg", {
    class: "movement",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  if (!movement?.length) return picture;
  const most = Math.max(...movement, threshold ?? 0) || 1;
  const y = (value) => (HEIGHT - 4 - (value / most) * (HEIGHT - 10)).toFixed(1);
  const x = (frame) => (((frame + 0.5) / movement.length) * WIDTH).toFixed(1);
  const line = movement.map((value, frame) => `${x(frame)},${y(value)}`).join(" ");
  picture.append(
    draw("polygon", { class: "movement-area", points: `0,${HEIGHT} ${line} ${WIDTH},${HEIGHT}` }),
    draw("polyline", { class: "movement-line", points: line }),
  );
  if (threshold !== null) {
    const at = y(threshold);
    picture.append(draw("line", { class: "threshold", x1: 0, x2: WIDTH, y1: at, y2: at }));
  }
  return picture;
}
