// Films: the server sends sheets of frames, which are cut into frames and drawn on canvases.

import { addressOf, isReport, loadImage, loadSheet } from "./data.js";

/** The size and the number of frames of a card's thumbnail. */
export const THUMBNAIL = { size: 192, count: 8 };
/** Pixels of a frame's longer side in the player. */
const SIZE = isReport ? 192 : 384; // a report should be small
/** Frames per sheet in the player: few enough to load quickly and to keep the image small. */
const PIECE = 48;
/** Pixels of all thumbnails that are kept decoded (4 bytes each). */
const KEPT_PIXELS = 32e6;
/** Thumbnails requested at a time: a browser opens six connections, and the player has priority. */
const AT_A_TIME = 3;

/** Draw frame `index` of a sheet into a canvas; the canvas takes the frame's size. */
export function drawFrame(canvas, sheet, index) {
  const width = Math.floor(sheet.bitmap.width / sheet.columns);
  const height = Math.floor(sheet.bitmap.height / sheet.rows);
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const [x, y] = [(index % sheet.columns) * width, Math.floor(index / sheet.columns) * height];
  canvas.getContext("2d").drawImage(sheet.bitmap, x, y, width, height, 0, 0, width, height);
}

/** A segment's film, loaded piece by piece, starting from the frame that is played. Without a
 *  camera it is blank: it draws nothing, and the other film plays. */
export class Film {
  /** @param source {place, trajectory, start, stop, camera, run} as the server takes them */
  constructor(source) {
    this.source = source;
    this.length = source.stop - source.start;
    this.isBlank = !source.camera;
    this.pieces = new Map();
    this.loading = new Map();
    this.stopped = new AbortController();
    /** for each piece that cannot be shown, the reason */
    this.problems = new Map();
  }

  /** Return whether frame `index` (0 is the segment's first) can be drawn at once. */
  has(index) {
    return this.isBlank || this.pieces.has(Math.floor(index / PIECE));
  }

  /** Return why frame `index` cannot be shown, or null. */
  problemAt(index) {
    return this.problems.get(Math.floor(index / PIECE)) ?? null;
  }

  draw(canvas, index) {
    if (this.isBlank) return;
    drawFrame(canvas, this.pieces.get(Math.floor(index / PIECE)), index % PIECE);
  }

  /** Load the piece that holds frame `index`. */
  load(index) {
    const piece = Math.floor(index / PIECE);
    if (this.isBlank || this.pieces.has(piece)) return Promise.resolve();
    if (!this.loading.has(piece)) this.loading.set(piece, this.fetch(piece));
    return this.loading.get(piece);
  }

  async fetch(piece) {
    const start = this.source.start + piece * PIECE;
    const stop = Math.min(this.source.stop, start + PIECE);
    try {
      const asked = { ...this.source, start, stop, size: SIZE };
      const sheet = await loadSheet(asked, this.stopped.signal);
      if (this.stopped.signal.aborted) sheet.bitmap.close();
      else this.pieces.set(piece, sheet);
    } catch (problem) {
      if (problem.name !== "AbortError") this.problems.set(piece, problem.message);
    }
  }

  /** Load the next piece while this one is played. */
  prefetch(index) {
    const next = (Math.floor(index / PIECE) + 1) * PIECE;
    this.load(next < this.length ? next : 0);
  }

  close() {
    this.stopped.abort();
    for (const sheet of this.pieces.values()) sheet.bitmap.close();
    this.pieces.clear();
  }
}

/** Thumbnails of visible cards. If a card leaves the view before its turn, it is skipped. */
class Thumbnails {
  constructor() {
    this.sheets = new Map();
    this.waiting = [];
    this.running = 0;
    this.pixels = 0;
  }

  /** Return the sheet if it is loaded, otherwise null. */
  get(source) {
    const key = addressOf("film", source);
    const sheet = this.sheets.get(key);
    if (!sheet) return null;
    this.sheets.delete(key); // move to the end: the least recently used sheet is dropped first
    this.sheets.set(key, sheet);
    return sheet;
  }

  /** Load a sheet while `isWanted()`, then call `then(sheet or null)`. */
  ask(source, isWanted, then) {
    this.waiting.push({ source, isWanted, then });
    this.next();
  }

  next() {
    while (this.running < AT_A_TIME && this.waiting.length) {
      const asked = this.waiting.shift();
      if (asked.isWanted()) this.start(asked);
    }
  }

  async start({ source, then }) {
    this.running++;
    let sheet = this.get(source);
    try {
      sheet ??= this.keep(addressOf("film", source), await loadImage(source));
    } catch {
      sheet = null; // the card says that there is no video; the player says why
    }
    this.running--;
    then(sheet);
    this.next();
  }

  keep(key, sheet) {
    this.sheets.set(key, sheet);
    this.pixels += sheet.image.width * sheet.image.height;
    for (const [oldest, old] of this.sheets) {
      if (this.pixels <= KEPT_PIXELS || oldest === key) break;
      this.pixels -= old.image.width * old.image.height;
      this.sheets.delete(oldest);
      URL.revokeObjectURL(old.url);
    }
    return sheet;
  }
}

export const thumbnails = new Thumbnails();
