// Rollouts: the same initial state of one or two policies side by side, with the sub-goals
// that each reached on its timeline.

import { videoAddress } from "./data.js";
import { make, makeTransport } from "./elements.js";
import { Panes } from "./panes.js";
import { numberOf, subscribe, update } from "./state.js";

/** Seconds by which a video may differ from the clock: when still, and while it plays. */
const TOLERANCE = { still: 0.01, playing: 0.1 };

export class EvaluationPage {
  constructor(contents) {
    this.evaluations = contents.evaluations;
    this.fps = contents.fps || 20;
    const states = this.evaluations.flatMap((own) => own.episodes.map((episode) => episode.state));
    this.states = [...new Set(states)].sort((a, b) => a - b);
    this.sides = this.evaluations.map((own, number) => this.makeSide(own, number));
    this.step = 0;
    this.build();
    subscribe(() => this.show());
    this.show();
    this.follow();
  }

  build() {
    this.list = make("ul", { class: "state-list" });
    const left = make(
      "section",
      { class: "pane", "aria-label": "Initial states" },
      make("h2", {}, "Initial states"),
      this.makeSummary(),
      this.list,
    );
    this.heading = make("h2", {});
    const parts = makeTransport("Step", {
      toggle: () => this.toggle(),
      seek: (step) => this.seek(step),
    });
    Object.assign(this, parts); // button, slider, where
    const rollouts = make("div", { class: "rollouts" }, ...this.sides.map((own) => own.element));
    const right = make(
      "section",
      { class: "pane", "aria-label": "Rollouts" },
      this.heading,
      rollouts,
      make("div", { class: "transport transport-line" }, this.button, this.slider, this.where),
    );
    this.panes = new Panes([["states", "States", left], ["rollouts", "Rollouts", right]]);
    this.element = this.panes.element;
  }

  makeSummary() {
    const lines = this.evaluations.map(({ name, episodes }) => {
      const wins = episodes.filter((episode) => episode.success).length;
      const rate = episodes.length ? Math.round((100 * wins) / episodes.length) : 0;
      const text = `${wins} of ${episodes.length} succeed, ${rate} %`;
      return make("div", {}, make("dt", {}, name), make("dd", {}, text));
    });
    return make("dl", { class: "facts summary" }, ...lines);
  }

  makeSide({ name }, number) {
    const video = make("video", { muted: true, playsinline: true, preload: "auto" });
    video.muted = true;
    video.setAttribute("aria-label", `Rollout of ${name}`);
    const outcome = make("p", { class: "film-title" });
    const goals = make("div", { class: "goals" });
    const list = make("ul", { class: "goal-list" });
    const nothing = make("p", { class: "empty" }, "No video of this state.");
    const element = make(
      "figure",
      { class: "film" },
      make("div", { class: "film-head" }, make("span", { class: "film-role" }, name)),
      make("div", { class: "film-screen" }, video, nothing),
      make("figcaption", {}, outcome, goals, list),
    );
    return { number, video, outcome, goals, list, nothing, element, episode: null };
  }

  episodeOf(number, state) {
    return this.evaluations[number].episodes.find((own) => own.state === state) ?? null;
  }

  /** Show the chosen initial state. */
  show() {
    const chosen = numberOf("state");
    const state = this.states.includes(chosen) ? chosen : this.states[0];
    this.showStates(state);
    if (state === this.shown) return;
    this.shown = state;
    this.heading.textContent = `State ${state}`;
    for (const side of this.sides) this.showSide(side, this.episodeOf(side.number, state));
    const steps = this.sides.map((side) => side.episode?.steps ?? 0);
    this.slider.max = Math.max(1, ...steps);
    if (this.isPlaying) this.toggle();
    this.seek(0);
  }

  showStates(chosen) {
    const items = this.states.map((state) => {
      const outcomes = this.evaluations.map((_, number) => {
        const episode = this.episodeOf(number, state);
        return make("span", { class: "outcome" }, outcomeText(episode));
      });
      const button = make(
        "button",
        {
          type: "button",
          class: "state",
          "data-plays": true,
          "aria-pressed": String(state === chosen),
          onclick: () => {
            update({ state });
            this.panes.open("rollouts");
          },
        },
        make("span", { class: "state-name" }, `State ${state}`),
        ...outcomes,
      );
      return make("li", {}, button);
    });
    const hadFocus = this.list.contains(document.activeElement);
    this.list.replaceChildren(...items);
    const pressed = this.list.querySelector("[aria-pressed=true]");
    if (hadFocus) pressed?.focus();
    pressed?.scrollIntoView({ block: "nearest" });
  }

  showSide(side, episode) {
    side.episode = episode;
    const address = episode?.video
      ? videoAddress({ evaluation: side.number, state: episode.state })
      : null;
    side.video.hidden = !address;
    side.nothing.hidden = Boolean(address);
    if (address) side.video.src = address;
    else side.video.removeAttribute("src");
    const after = episode ? ` after ${episode.steps} steps` : "";
    side.outcome.textContent = `${outcomeText(episode)}${after}`;
    const goals = episode?.sub_goals ?? [];
    side.goals.replaceChildren(
      ...goals.map(({ name, step }) => {
        const mark = make("span", { class: "goal", title: `${name}: step ${step}` });
        mark.style.left = `${(100 * step) / Math.max(1, episode.steps)}%`;
        return mark;
      }),
      (side.cursor = make("span", { class: "goal-cursor" })),
    );
    side.list.replaceChildren(
      ...goals.map(({ name, step }) => {
        const go = () => this.seek(step);
        const label = make("span", {}, name);
        const number = make("span", { class: "goal-step" }, `step ${step}`);
        const attributes = { type: "button", class: "goal-link", onclick: go };
        return make("li", {}, make("button", attributes, label, number));
      }),
    );
    if (episode && !goals.length) {
      side.list.append(make("li", { class: "subheading" }, "No sub-goal was reached."));
    }
  }

  /** Show one step in every video; a rollout that has ended shows its last frame. */
  seek(step) {
    this.step = Math.min(Number(this.slider.max), Math.max(0, step));
    const tolerance = TOLERANCE[this.isPlaying ? "playing" : "still"];
    for (const side of this.sides) {
      const time = this.timeOf(side);
      if (time === null) continue;
      if (Math.abs(side.video.currentTime - time) > tolerance) side.video.currentTime = time;
    }
    this.mark();
  }

  /** Return the time of the current step in a video; null if there is no video yet. */
  timeOf({ video, episode }) {
    if (!episode || !Number.isFinite(video.duration)) return null;
    const share = Math.min(1, this.step / Math.max(1, episode.steps));
    return share * Math.max(0, video.duration - TOLERANCE.still);
  }

  mark() {
    this.slider.value = this.step;
    this.where.textContent = `step ${Math.round(this.step)} of ${this.slider.max}`;
    this.button.textContent = this.isPlaying ? "❚❚" : "▶";
    this.button.setAttribute("aria-label", this.isPlaying ? "Pause" : "Play");
    for (const { cursor, episode } of this.sides) {
      const share = episode ? Math.min(1, this.step / Math.max(1, episode.steps)) : 0;
      if (cursor) cursor.style.left = `${100 * share}%`;
    }
  }

  toggle() {
    this.isPlaying = !this.isPlaying;
    if (this.isPlaying && this.step >= Number(this.slider.max)) this.step = 0;
    this.run();
    this.mark();
  }

  /** Play the videos at the speed of the clock, or stop them at its time. */
  run() {
    for (const { video, episode } of this.sides) {
      if (!this.isPlaying) video.pause();
      else if (episode && Number.isFinite(video.duration)) {
        const rate = (video.duration * this.fps) / Math.max(1, episode.steps);
        video.playbackRate = Math.min(16, Math.max(0.0625, rate));
        video.play().catch(() => {}); // if the browser blocks playing, the clock seeks
      }
    }
    if (!this.isPlaying) this.seek(this.step);
  }

  /** Run one clock for both videos: a video that differs from it is corrected. */
  follow() {
    let before = null;
    const tick = (now) => {
      const seconds = before === null ? 0 : (now - before) / 1000;
      before = now;
      if (this.isPlaying) {
        const next = this.step + seconds * this.fps;
        this.seek(next);
        if (next >= Number(this.slider.max)) this.toggle();
      }
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
    for (const { video } of this.sides) {
      video.addEventListener("loadedmetadata", () => this.seek(this.step));
    }
  }

  stepState(step) {
    const place = this.states.indexOf(this.shown) + step;
    if (place in this.states) update({ state: this.states[place] });
  }

  keys() {
    return [
      ["ArrowUp", "previous and next state", () => this.stepState(-1)],
      ["ArrowDown", "previous and next state", () => this.stepState(1)],
      ["Space", "play and pause", () => this.toggle()],
      ["ArrowLeft", "ten steps back and forward", () => this.seek(this.step - 10)],
      ["ArrowRight", "ten steps back and forward", () => this.seek(this.step + 10)],
    ];
  }
}

/** Describe an outcome by a word and a sign, not by colour. */
function outcomeText(episode) {
  if (!episode) return "– not run";
  return episode.success ? "✓ success" : "✕ failure";
}
