// A dataset: its episodes in a list, and the chosen one with all its cameras.

import { make, makeTransport, oncePerFrame } from "./elements.js";
import { Film } from "./films.js";
import { Panes } from "./panes.js";
import { Player } from "./player.js";
import { state, subscribe, update } from "./state.js";

const LINE = 3.6; // rem, of an episode in the list

export class DatasetPage {
  constructor(contents) {
    this.contents = contents;
    this.episodes = contents.episodes;
    this.haystacks = this.episodes.map((own) => `${own.id} ${own.instruction}`.toLowerCase());
    this.cameras = contents.cameras.map((name) => makeScreen(name));
    this.player = new Player(...this.cameras.map((camera) => camera.canvas));
    this.build();
    this.player.listen(() => this.mark());
    subscribe(() => this.show());
    this.show();
  }

  build() {
    this.search = make("input", {
      type: "search",
      placeholder: "Search  /",
      "aria-label": "Search episodes",
      oninput: () => update({ text: this.search.value.trim() }),
    });
    this.count = make("p", { class: "subheading" });
    this.list = make("ul", { class: "episode-list", "aria-label": "Episodes" });
    this.refresh = oncePerFrame(() => this.render());
    document.addEventListener("scroll", this.refresh, { capture: true, passive: true });
    window.addEventListener("resize", this.refresh);
    const left = make(
      "section",
      { class: "pane", "aria-label": "Episodes" },
      make("h2", {}, "Episodes"),
      this.count,
      make("div", { class: "filter-lines" }, this.search),
      this.list,
    );
    this.heading = make("h2", {});
    this.subheading = make("p", { class: "subheading" });
    this.problem = make("p", { class: "note", hidden: true });
    const right = make(
      "section",
      { class: "pane", "aria-label": "Episode" },
      this.heading,
      this.subheading,
      make("div", { class: "rollouts" }, ...this.cameras.map((camera) => camera.element)),
      this.makeTransport(),
      this.problem,
    );
    this.panes = new Panes([["episodes", "Episodes", left], ["episode", "Episode", right]]);
    this.element = this.panes.element;
  }

  makeTransport() {
    const parts = makeTransport("Frame", {
      toggle: () => this.player.toggle(),
      seek: (place) => this.player.seek(place),
    });
    Object.assign(this, parts); // button, slider, where
    return make("div", { class: "transport transport-line" }, this.button, this.slider, this.where);
  }

  show() {
    const words = (state.text ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    this.found = this.episodes.filter((_, place) =>
      words.every((word) => this.haystacks[place].includes(word)),
    );
    if (document.activeElement !== this.search) this.search.value = state.text ?? "";
    const total = this.episodes.length.toLocaleString("en");
    const count = this.found.length.toLocaleString("en");
    this.count.textContent = words.length ? `${count} of ${total} episodes` : `${total} episodes`;
    const episode = this.episodes.find((own) => own.id === state.episode) ?? this.found[0];
    if (episode && episode !== this.shown) this.open(episode);
    this.render();
  }

  open(episode) {
    this.shown = episode;
    this.heading.textContent = episode.instruction || episode.id;
    this.subheading.textContent = `${episode.id} · ${episode.length} frames`;
    this.problem.hidden = true;
    this.slider.max = episode.length - 1;
    const films = this.contents.cameras.map((camera) => {
      const source = { place: "target", trajectory: episode.id, start: 0, stop: episode.length };
      return new Film({ ...source, camera });
    });
    const steps = Array.from({ length: episode.length }, (_, frame) => films.map(() => frame));
    if (films.length) this.player.open(films, steps, this.contents.fps);
  }

  mark() {
    const { player } = this;
    this.button.textContent = player.playing ? "❚❚" : "▶";
    this.button.setAttribute("aria-label", player.playing ? "Pause" : "Play");
    this.problem.hidden = !player.problem;
    this.problem.textContent = player.problem ?? "";
    if (!player.shown) {
      this.where.textContent = "";
      return;
    }
    this.slider.value = player.shown.step;
    this.where.textContent = `frame ${player.shown.step} of ${player.pairs.length}`;
  }

  /** Add the visible episodes to the list; all lines have the same height. */
  render() {
    if (!this.list.clientWidth) return;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const height = LINE * rem;
    this.list.style.height = `${this.found.length * height}px`;
    const top = this.list.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - 2);
    const stop = Math.min(this.found.length, Math.ceil((innerHeight - top) / height) + 2);
    const focused = this.list.contains(document.activeElement)
      ? document.activeElement.dataset.id
      : null;
    const items = this.found.slice(first, stop).map((episode, place) => {
      const item = this.makeItem(episode, first + place);
      item.style.transform = `translateY(${(first + place) * height}px)`;
      return item;
    });
    this.list.replaceChildren(...items);
    const buttons = [...this.list.querySelectorAll("button")];
    const again = buttons.find((own) => own.dataset.id === focused);
    again?.focus({ preventScroll: true });
  }

  makeItem(episode, place) {
    const button = make(
      "button",
      {
        type: "button",
        class: "state",
        "data-plays": true,
        "data-id": episode.id,
        "aria-pressed": String(episode === this.shown),
        onclick: () => {
          update({ episode: episode.id });
          this.panes.open("episode");
        },
      },
      make("span", { class: "state-name" }, episode.instruction || episode.id),
      make("span", { class: "outcome" }, `${episode.id} · ${episode.length} frames`),
    );
    const numbers = { "aria-posinset": place + 1, "aria-setsize": this.found.length };
    return make("li", numbers, button);
  }

  stepEpisode(step) {
    const place = this.found.indexOf(this.shown) + step;
    if (!(place in this.found)) return;
    update({ episode: this.found[place].id });
    const chosen = this.list.querySelector("[aria-pressed=true]");
    chosen?.scrollIntoView({ block: "nearest" });
  }

  onShown() {
    this.render();
  }

  keys() {
    return [
      ["ArrowUp", "previous and next episode", () => this.stepEpisode(-1)],
      ["ArrowDown", "previous and next episode", () => this.stepEpisode(1)],
      ["Space", "play and pause", () => this.player.toggle()],
      ["ArrowLeft", "one frame back and forward", () => this.player.seek(this.player.step - 1)],
      ["ArrowRight", "one frame back and forward", () => this.player.seek(this.player.step + 1)],
      ["/", "search", () => this.search.focus()],
      ["Escape", "leave the search field", null],
    ];
  }
}

function makeScreen(name) {
  const canvas = make("canvas", { role: "img", "aria-label": `Camera ${name}` });
  const element = make(
    "figure",
    { class: "film" },
    make("div", { class: "film-head" }, make("span", { class: "film-role" }, name)),
    make("div", { class: "film-screen" }, canvas),
  );
  return { canvas, element };
}
