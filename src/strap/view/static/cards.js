// A card shows one match: an animated thumbnail, a description, its quality, and the user's choice.

import { make, makeTail, setOptions } from "./elements.js";
import { THUMBNAIL, thumbnails } from "./films.js";
import { MEANINGS, SHAPES } from "./rows.js";

export const WEIGHTS = [0.25, 0.5, 1, 2, 4];
/** Milliseconds between two frames of a thumbnail. */
const PACE = 220;
const SIGNS = { accepted: "✓ accepted", rejected: "✕ rejected", "beyond K": "beyond K" };

/** Write a weight for readers: ×½, ×2. */
export function weightText(weight) {
  return `×${{ 0.25: "¼", 0.5: "½" }[weight] ?? weight}`;
}

/** Return the options of a weight's select, including the current weight. */
export function weightOptions(weight) {
  const weights = WEIGHTS.includes(weight) ? WEIGHTS : [...WEIGHTS, weight].sort((a, b) => a - b);
  return weights.map((own) => [own, weightText(own)]);
}

/** Milliseconds after scrolling in which thumbnails do not move, so that scrolling is smooth. */
const REST = 150;

const moving = new Set();
const isStill = matchMedia("(prefers-reduced-motion: reduce)");
let scrolledAt = -Infinity;
document.addEventListener("scroll", () => (scrolledAt = performance.now()), {
  capture: true,
  passive: true,
});

// One clock for all cards: they move together, and a page without cards has nothing to do.
setInterval(() => {
  if (document.hidden || performance.now() - scrolledAt < REST) return;
  const beat = Math.floor(performance.now() / PACE);
  for (const card of moving) card.move(beat);
}, PACE);

/** A card's elements, reused for other rows while scrolling. */
export class Card {
  /** @param actions {choose(row), accept(row), reject(row), weigh(row, weight)}; only
   *  `choose` if nothing can be changed */
  constructor(actions) {
    this.actions = actions;
    this.row = null;
    this.sheet = null;
    this.build();
    this.element.addEventListener("pointerenter", () => (this.isHovered = true));
    this.element.addEventListener("pointerleave", () => (this.isHovered = false));
  }

  build() {
    // A background, not a canvas: the browser would make each canvas a layer and scroll slowly.
    this.picture = make("span", { class: "card-picture", "aria-hidden": "true" });
    this.nothing = make("span", { class: "card-nothing", hidden: true }, "no video here");
    this.rank = make("span", { class: "card-rank" });
    this.standing = make("span", { class: "card-standing" });
    this.mark = make("span", { class: "card-mark" });
    this.quality = make("span", { class: "card-quality" });
    this.cost = make("span", { class: "card-cost" });
    this.marker = make("span", { class: "card-marker" });
    this.spread = make("span", { class: "card-spread" }, this.marker);
    this.title = make("span", { class: "card-title" });
    this.place = make("span", { class: "card-place" });
    this.segment = makeTail("span", "card-place");
    this.button = make(
      "button",
      {
        type: "button",
        class: "card-main",
        "data-plays": true,
        onclick: () => this.actions.choose(this.row),
      },
      this.makeScreen(),
      make("span", { class: "card-verdict" }, this.quality, this.cost, this.spread),
      this.title,
      this.place,
      this.segment.element,
    );
    this.element = make("div", { class: "card", role: "listitem" }, this.button);
    if (this.actions.accept) this.element.append(this.makeControls());
  }

  makeScreen() {
    const signs = [this.nothing, this.rank, this.standing, this.mark];
    return make("span", { class: "card-film" }, this.picture, ...signs);
  }

  makeControls() {
    const control = (sign, title, listener) =>
      make("button", { type: "button", class: "choice", title, onclick: listener }, sign);
    this.acceptButton = control("✓", "Accept (a)", () => this.actions.accept(this.row));
    this.rejectButton = control("✕", "Reject (r)", () => this.actions.reject(this.row));
    this.weight = make("select", {
      title: "Weight in training",
      onchange: () => this.actions.weigh(this.row, Number(this.weight.value)),
    });
    const children = [this.acceptButton, this.rejectButton, this.weight];
    return make("div", { class: "card-controls" }, ...children);
  }

  /** Show row `row`, number `place` of `count` in the list, seen by `camera`; with the
   *  query's number if matches of all queries are listed. */
  show(rows, row, place, { count, camera, isOfAll }) {
    const film = filmOf(rows, row, camera);
    this.row = row;
    this.choiceKey = null;
    this.element.setAttribute("aria-posinset", place + 1);
    this.element.setAttribute("aria-setsize", count);
    const query = isOfAll ? `Q${rows.matches.query[row] + 1} · ` : "";
    this.rank.textContent = `${query}#${rows.matches.rank[row]}`;
    const quality = rows.quality(row);
    this.quality.textContent = `${SHAPES[quality]} ${quality}`;
    this.quality.dataset.quality = quality;
    this.quality.title = MEANINGS[quality];
    this.quality.hidden = !rows.isGraded;
    this.cost.textContent = rows.costText(row);
    this.cost.title = "cost per frame";
    this.spread.hidden = !rows.isGraded;
    this.spread.title = `${Math.round(100 * rows.spread(row))} % of this run's matches cost less`;
    this.marker.style.left = `${100 * rows.spread(row)}%`;
    this.title.textContent = rows.instruction(row);
    this.title.title = rows.instruction(row);
    this.place.textContent = rows.dataset(row);
    this.segment.text.textContent = rows.segment(row);
    this.segment.element.title = rows.segment(row);
    const name = `match ${rows.matches.rank[row]}, ${rows.segment(row)}`;
    this.acceptButton?.setAttribute("aria-label", `Accept ${name}`);
    this.rejectButton?.setAttribute("aria-label", `Reject ${name}`);
    this.weight?.setAttribute("aria-label", `Weight of ${name}`);
    this.showFilm(film);
  }

  /** Show the user's choice for the match. */
  showChoice(choices, isChosen, mark) {
    const standing = choices ? choices.standing(this.row) : "kept";
    const weight = choices ? choices.weight(this.row) : 1;
    // This is called at every step of scrolling, but the choice seldom changes.
    const key = `${standing} ${weight} ${isChosen} ${mark}`;
    if (key === this.choiceKey) return;
    this.choiceKey = key;
    this.element.classList.toggle("is-chosen", isChosen);
    this.button.setAttribute("aria-pressed", String(isChosen));
    this.mark.textContent = mark ?? "";
    this.mark.hidden = !mark;
    this.element.classList.toggle("is-out", !["kept", "accepted"].includes(standing));
    this.element.classList.toggle("is-rejected", standing === "rejected");
    this.standing.textContent = SIGNS[standing] ?? standing;
    this.standing.hidden = standing === "kept";
    this.standing.dataset.standing = standing;
    if (!this.acceptButton) return;
    this.acceptButton.setAttribute("aria-pressed", String(standing === "accepted"));
    this.rejectButton.setAttribute("aria-pressed", String(standing === "rejected"));
    this.showWeight(weight);
  }

  showWeight(weight) {
    if (weight !== this.shownWeight) setOptions(this.weight, weightOptions(weight));
    this.shownWeight = weight;
    this.weight.value = String(weight);
    this.weight.classList.toggle("is-changed", weight !== 1);
  }

  showFilm(film) {
    const key = JSON.stringify(film);
    if (key === this.filmKey) return;
    this.filmKey = key;
    this.film = film;
    this.nothing.hidden = true;
    this.setSheet(thumbnails.get(film));
    if (this.sheet || !film.camera) return;
    this.picture.hidden = true;
    const isWanted = () => this.filmKey === key && this.element.isConnected;
    thumbnails.ask(film, isWanted, (sheet) => {
      if (!isWanted()) return;
      this.nothing.hidden = sheet !== null;
      this.setSheet(sheet);
    });
  }

  setSheet(sheet) {
    this.sheet = sheet;
    this.beat = null;
    moving.add(this);
    if (!sheet) return;
    const { image, url, columns, rows } = sheet;
    this.picture.hidden = false;
    this.picture.style.backgroundImage = `url("${url}")`;
    this.picture.style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
    this.showFrame(0);
    this.onShape?.(image.width / columns / (image.height / rows));
  }

  showFrame(index) {
    const { columns, rows } = this.sheet;
    const share = (place, count) => (count > 1 ? (100 * place) / (count - 1) : 0);
    const [x, y] = [share(index % columns, columns), share(Math.floor(index / columns), rows)];
    this.picture.style.backgroundPosition = `${x}% ${y}%`;
  }

  move(beat) {
    if (!this.element.isConnected) return moving.delete(this);
    if (!this.sheet || beat === this.beat) return undefined;
    const mayMove = !isStill.matches || this.isHovered || this.button === document.activeElement;
    // A sheet that was dropped is loaded again, from the browser's own cache.
    if (thumbnails.get(this.film) !== this.sheet) return this.reload();
    this.beat = beat;
    if (mayMove) this.showFrame(beat % this.sheet.frames);
    return undefined;
  }

  reload() {
    this.filmKey = null;
    this.showFilm(this.film);
  }
}

function filmOf(rows, row, camera) {
  const { dataset, trajectory, start, stop } = rows.matches;
  return {
    place: dataset[row],
    trajectory: trajectory[row],
    start: start[row],
    stop: stop[row],
    camera,
    run: rows.number,
    ...THUMBNAIL,
  };
}
