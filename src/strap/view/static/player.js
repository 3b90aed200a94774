// The player: it plays films in step, as a list of pairs (query frame, match frame) along the
// warping path. A step shows one pair, on both canvases or on neither. The cameras of one
// episode are played in the same way: there a "pair" has one frame per camera.

/** Seconds for which the last pair is shown before the films start again. */
const PAUSE_AT_END = 0.6;

export class Player {
  constructor(...canvases) {
    this.canvases = canvases;
    this.films = null;
    this.pairs = [];
    this.fps = 20;
    this.speed = 1;
    this.step = 0;
    this.playing = false;
    /** The pair on the canvases: {step, query, match}, frames counted from each segment's
     *  first. Null while nothing is shown. */
    this.shown = null;
    /** Why the current pair cannot be shown, or null. */
    this.problem = null;
    this.listeners = new Set();
    this.clock = null;
    this.tick = this.tick.bind(this);
  }

  /** Call `listener(player)` when another pair is shown, or playing starts or stops. */
  listen(listener) {
    this.listeners.add(listener);
  }

  /** Play these films along these pairs, from the first one. */
  open(films, pairs, fps) {
    this.close();
    this.films = films;
    this.pairs = pairs;
    this.fps = fps || 20;
    this.seek(0);
  }

  /** Replace the pairs of the open films, and stay at the same frame of the query. */
  follow(pairs) {
    const query = this.shown ? this.shown.query : 0;
    const nearest = pairs.findIndex(([frame]) => frame >= query);
    this.pairs = pairs;
    this.seek(Math.max(0, nearest));
  }

  close() {
    for (const film of this.films ?? []) film.close();
    this.films = null;
    this.pairs = [];
    this.step = 0;
    this.clear();
    this.tell();
  }

  /** Clear the canvases: frames of one match must not be shown with the name of another. */
  clear(problem = null) {
    for (const canvas of this.canvases) {
      canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    }
    this.shown = null;
    this.problem = problem;
  }

  /** Show pair `step` of the path. */
  seek(step) {
    this.step = Math.min(this.pairs.length - 1, Math.max(0, Math.round(step)));
    this.clock = null;
    this.show();
  }

  /** Draw the current pair on both canvases, once both frames are loaded. */
  show() {
    if (!this.films || !this.pairs.length) return false;
    const { films, step } = this;
    const pair = this.pairs[step];
    const isThere = films.map((film, which) => film.has(pair[which]));
    if (!isThere.every(Boolean)) {
      this.wait(films, pair);
      return false;
    }
    films.forEach((film, which) => {
      film.draw(this.canvases[which], pair[which]);
      film.prefetch(pair[which]);
    });
    this.problem = null;
    this.shown = { step, query: pair[0], match: pair[1] };
    this.tell();
    return true;
  }

  async wait(films, pair) {
    await Promise.all(films.map((film, which) => film.load(pair[which])));
    // Meanwhile another match or another pair may have been chosen.
    if (this.films !== films || this.pairs[this.step] !== pair) return;
    const problems = films.map((film, which) => film.problemAt(pair[which]));
    const problem = problems.find(Boolean) ?? null;
    if (problem) this.fail(problem);
    else if (this.shown?.step !== this.step) this.show();
  }

  fail(problem) {
    this.playing = false;
    this.clear(problem);
    this.tell();
  }

  play() {
    if (this.playing || !this.films || this.problem) return;
    this.playing = true;
    this.clock = null;
    requestAnimationFrame(this.tick);
    this.tell();
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.tell();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  tick(now) {
    if (!this.playing) return;
    requestAnimationFrame(this.tick);
    // The clock restarts at each pair that is shown, so it waits for films that are still loading,
    // and no pair is skipped because of them.
    if (this.clock === null || this.shown?.step !== this.step) {
      this.clock = now;
      return;
    }
    const rate = this.fps * this.speed;
    const isLast = this.step === this.pairs.length - 1;
    const due = isLast ? PAUSE_AT_END * 1000 : 1000 / rate;
    if (now - this.clock < due) return;
    const steps = isLast ? 1 : Math.max(1, Math.floor(((now - this.clock) * rate) / 1000));
    const next = isLast ? 0 : Math.min(this.pairs.length - 1, this.step + steps);
    this.clock = isLast ? now : this.clock + (steps * 1000) / rate;
    this.step = next;
    this.show();
  }

  tell() {
    for (const listener of this.listeners) listener(this);
  }
}

/** Return pairs that run evenly through both segments, for matches without a warping path. */
export function evenPairs(queryLength, matchLength) {
  const steps = Math.max(queryLength, matchLength);
  const at = (length, step) => Math.round((step * (length - 1)) / Math.max(1, steps - 1));
  return Array.from({ length: steps }, (_, step) => [at(queryLength, step), at(matchLength, step)]);
}
