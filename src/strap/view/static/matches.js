// The grid of matches. Only the visible cards are in the page, so that ten thousand matches
// scroll like ten. All cards have the same size, so a card's position follows from its number.

import { Card } from "./cards.js";
import { make, oncePerFrame } from "./elements.js";

const GAP = 0.875; // rem, between two cards
const NOTHING = "No match passes these filters.";
/** Lines of cards that are ready above and below the view. */
const SPARE = 1;

export class MatchGrid {
  /** @param options {actions, choices, label}; a card's least width and its height below the
   *  film, in rem */
  constructor({ actions, choices = null, label, leastWidth = 10.5, textHeight }) {
    Object.assign(this, { actions, choices, leastWidth, textHeight });
    this.rows = null;
    this.list = [];
    this.chosen = null;
    this.camera = null;
    this.marks = null;
    this.aspect = 1;
    this.cards = new Map(); // place in the list -> card
    this.spare = [];
    this.grid = make("div", { class: "grid", role: "list", "aria-label": label });
    this.empty = make("p", { class: "empty", hidden: true });
    this.element = make("div", { class: "grid-scroll", tabindex: -1 }, this.empty, this.grid);
    this.refresh = oncePerFrame(() => this.render());
    // Captured: on wide screens the grid scrolls, on narrow ones the pane around it.
    document.addEventListener("scroll", this.refresh, { capture: true, passive: true });
    new ResizeObserver(() => this.refresh()).observe(this.element);
  }

  /** Show these rows, in this order.
   *  @param options {camera, chosen (row), isOfAll (queries), marks(row), emptyText} */
  show(rows, list, { camera, chosen, isOfAll = false, marks = null, emptyText = NOTHING }) {
    const isNew = rows !== this.rows || list !== this.list || camera !== this.camera;
    Object.assign(this, { rows, list, camera, chosen, isOfAll, marks });
    if (isNew) this.recycle(() => true);
    if (!camera) this.aspect = 4; // no images: the cards can be low
    this.empty.hidden = list.length > 0;
    this.empty.textContent = emptyText;
    this.render();
  }

  /** Scroll the chosen card into view; if a card had the focus, focus the chosen card. */
  reveal() {
    if (!this.layout) return;
    const place = Math.max(0, this.list.indexOf(this.chosen));
    const { columns, height, gap } = this.layout;
    const top = Math.floor(place / columns) * (height + gap);
    const scroller = scrollerOf(this.element);
    const offset = this.grid.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    const y = top + offset + scroller.scrollTop;
    const hadFocus = this.element.contains(document.activeElement);
    const covered = parseFloat(getComputedStyle(scroller).scrollPaddingBottom) || 0;
    const bottom = scroller.scrollTop + scroller.clientHeight - covered;
    // Its line becomes the first one, so that no line is cut off at the top.
    if (y < scroller.scrollTop || y + height > bottom) scroller.scrollTop = y - gap;
    this.render();
    if (hadFocus) this.cards.get(place)?.button.focus({ preventScroll: true });
  }

  measure() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const width = this.grid.clientWidth;
    const gap = GAP * rem;
    const columns = Math.max(1, Math.floor((width + gap) / (this.leastWidth * rem + gap)));
    const across = (width - gap * (columns - 1)) / columns;
    const film = Math.round(across / this.aspect);
    return { columns, width: across, film, height: film + this.textHeight * rem, gap };
  }

  render() {
    if (!this.rows || !this.grid.clientWidth) return;
    this.layout = this.measure();
    const { columns, height, gap, film } = this.layout;
    const lines = Math.ceil(this.list.length / columns);
    this.setSize(Math.max(0, lines * (height + gap) - gap), film);
    const top = this.grid.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / (height + gap)) - SPARE) * columns;
    const last = (Math.ceil((window.innerHeight - top) / (height + gap)) + SPARE) * columns;
    const stop = Math.min(this.list.length, last);
    this.recycle((place) => place < first || place >= stop);
    // From the last to the first, so that each card can be inserted before the next one.
    for (let place = stop - 1; place >= first; place--) this.place(place);
  }

  /** Set the heights of the grid and of its films, if they have changed. */
  setSize(height, film) {
    const size = `${height} ${film}`;
    if (size === this.size) return;
    this.size = size;
    this.grid.style.height = `${height}px`;
    this.grid.style.setProperty("--film-height", `${film}px`);
  }

  recycle(isGone) {
    for (const [place, card] of this.cards) {
      if (!isGone(place)) continue;
      // The focus must not return to the start of the page when its card scrolls away.
      if (card.element.contains(document.activeElement)) {
        this.element.focus({ preventScroll: true });
      }
      card.element.remove();
      this.cards.delete(place);
      this.spare.push(card);
    }
  }

  place(place) {
    const row = this.list[place];
    const { columns, width, height, gap } = this.layout;
    let card = this.cards.get(place);
    if (!card) {
      card = this.spare.pop() ?? this.makeCard();
      this.cards.set(place, card);
      // In order, for users of the Tab key and of screen readers.
      this.grid.insertBefore(card.element, this.cards.get(place + 1)?.element ?? null);
      const { camera, isOfAll } = this;
      card.show(this.rows, row, place, { count: this.list.length, camera, isOfAll });
    }
    const x = (place % columns) * (width + gap);
    const y = Math.floor(place / columns) * (height + gap);
    const box = `${x} ${y} ${width} ${height}`;
    if (box !== card.box) {
      card.box = box;
      card.element.style.transform = `translate(${x}px, ${y}px)`;
      card.element.style.width = `${width}px`;
      card.element.style.height = `${height}px`;
    }
    card.showChoice(this.choices, row === this.chosen, this.marks?.(row));
  }

  makeCard() {
    const card = new Card(this.actions);
    // The first thumbnail gives the shape of the images; all images of a run have the same.
    card.onShape = (aspect) => {
      if (Math.abs(aspect - this.aspect) < 0.01) return;
      this.aspect = aspect;
      this.refresh();
    };
    return card;
  }
}

function scrollerOf(element) {
  for (let own = element; own; own = own.parentElement) {
    const { overflowY } = getComputedStyle(own);
    if ((overflowY === "auto" || overflowY === "scroll") && own.scrollHeight > own.clientHeight) {
      return own;
    }
  }
  return document.scrollingElement;
}
