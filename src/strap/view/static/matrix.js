// The cost matrix of one match with the warping path on it. Rows are frames of the query,
// columns frames of the match's trajectory; dragging moves along the path.
//
//        match's trajectory →
//   q   ┊ before ┊ match          ┊ after ┊
//   u   ┊        ┊╲__             ┊       ┊
//   e   ┊        ┊   ╲___         ┊       ┊
//   r   ┊        ┊       ╲________┊       ┊
//   y ↓

import { make, oncePerFrame, sharpContext, unitOf } from "./elements.js";
import { channels, colour } from "./theme.js";

const LEFT = 52; // units for the query's frame numbers and their name
const BOTTOM = 38; // and for the match's

export class CostMatrix {
  constructor(onSeek) {
    this.onSeek = onSeek;
    this.canvas = make("canvas", { class: "matrix", role: "img", "aria-label": "Cost matrix" });
    this.least = make("span", {});
    this.most = make("span", {});
    const ramp = make("span", { class: "matrix-ramp", "aria-hidden": "true" });
    this.key = make("p", { class: "matrix-key" }, this.least, ramp, this.most);
    this.redraw = oncePerFrame(() => this.draw());
    this.data = null;
    this.step = 0;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.seekAt(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) this.seekAt(event);
    });
    new ResizeObserver(this.redraw).observe(this.canvas);
    window.addEventListener("strap-theme", () => {
      this.picture = null;
      this.redraw();
    });
  }

  /** Show an alignment; `query` and `match` have the segments' first frames. */
  show(alignment, query, match) {
    const { path, costs } = alignment;
    this.data = { path, costs, query, match };
    this.values = Uint8Array.from(atob(costs.values), (letter) => letter.charCodeAt(0));
    this.picture = null;
    const number = (cost) => cost.toPrecision(3);
    this.least.textContent = `similar ${number(costs.least)}`;
    this.most.textContent = `different ${number(costs.most)}`;
    this.canvas.setAttribute(
      "aria-label",
      `Cost matrix: ${costs.rows} query frames by ${costs.columns} frames of the match's ` +
        `trajectory, local costs ${number(costs.least)} to ${number(costs.most)}; ` +
        `the warping path has ${path.length} pairs`,
    );
    this.redraw();
  }

  setStep(step) {
    this.step = step;
    this.redraw();
  }

  /** Return the matrix's position on the canvas and the size of a cell. */
  frame(width, height) {
    const { rows, columns } = this.data.costs;
    const [across, down] = [width - LEFT - 1, height - BOTTOM - 4];
    const [cellWidth, cellHeight] = [across / columns, down / rows];
    return { left: LEFT, top: 4, across, down, cellWidth, cellHeight };
  }

  draw() {
    if (!this.data || !this.canvas.clientWidth) return;
    const { context, width, height } = sharpContext(this.canvas);
    const frame = this.frame(width, height);
    this.picture ??= this.paint();
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, frame.left, frame.top, frame.across, frame.down);
    this.drawSurroundings(context, frame);
    this.drawPath(context, frame);
    this.drawNumbers(context, frame);
    this.drawNames(context, frame);
  }

  /** Paint one pixel per cell: the lower the cost, the closer to the page's background. */
  paint() {
    const { rows, columns } = this.data.costs;
    const [low, high] = [channels("--matrix-low"), channels("--matrix-high")];
    const canvas = make("canvas", { width: columns, height: rows });
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    this.values.forEach((value, cell) => {
      for (let part = 0; part < 3; part++) {
        image.data[cell * 4 + part] = low[part] + ((high[part] - low[part]) * value) / 255;
      }
      image.data[cell * 4 + 3] = 255;
    });
    context.putImageData(image, 0, 0);
    return canvas;
  }

  /** Fade the columns before and after the match. */
  drawSurroundings(context, frame) {
    const { costs, match } = this.data;
    const start = frame.left + costs.first * frame.cellWidth;
    const stop = start + (match.stop - match.start) * frame.cellWidth;
    const right = frame.left + frame.across;
    context.fillStyle = colour("--surface");
    context.globalAlpha = 0.6;
    context.fillRect(frame.left, frame.top, start - frame.left, frame.down);
    context.fillRect(stop, frame.top, Math.max(0, right - stop), frame.down);
    context.globalAlpha = 1;
    context.strokeStyle = colour("--ink-soft");
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    for (const x of [start, stop]) {
      context.moveTo(Math.round(x) + 0.5, frame.top);
      context.lineTo(Math.round(x) + 0.5, frame.top + frame.down);
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** Return the centre of a pair's cell. */
  place([query, match], frame) {
    const column = this.data.costs.first + match + 0.5;
    return [frame.left + column * frame.cellWidth, frame.top + (query + 0.5) * frame.cellHeight];
  }

  drawPath(context, frame) {
    const { path } = this.data;
    context.lineJoin = "round";
    for (const [width, name] of [[5, "--surface"], [2.5, "--accent"]]) {
      context.strokeStyle = colour(name);
      context.lineWidth = width;
      context.beginPath();
      path.forEach((pair, step) => context[step ? "lineTo" : "moveTo"](...this.place(pair, frame)));
      context.stroke();
    }
    const now = path[Math.min(this.step, path.length - 1)];
    const [x, y] = this.place(now, frame);
    context.strokeStyle = colour("--ink");
    context.globalAlpha = 0.35;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(frame.left, y);
    context.lineTo(x, y);
    context.lineTo(x, frame.top + frame.down);
    context.stroke();
    context.globalAlpha = 1;
    context.beginPath();
    context.arc(x, y, 6, 0, 2 * Math.PI);
    context.fillStyle = colour("--accent");
    context.fill();
    context.strokeStyle = colour("--surface");
    context.lineWidth = 2;
    context.stroke();
  }

  drawNumbers(context, frame) {
    const { query, match, costs } = this.data;
    const bottom = frame.top + frame.down;
    context.fillStyle = colour("--ink-soft");
    context.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "top";
    context.fillText(query.start, frame.left - 6, frame.top);
    context.textBaseline = "bottom";
    context.fillText(query.stop - 1, frame.left - 6, bottom);
    context.textBaseline = "top";
    const start = frame.left + costs.first * frame.cellWidth;
    const stop = start + (match.stop - match.start) * frame.cellWidth;
    // Numbers that are close go on opposite sides of their lines, so they never touch.
    const isWide = stop - start > 60;
    context.textAlign = isWide ? "left" : "right";
    context.fillText(match.start, Math.max(start, frame.left), bottom + 6);
    context.textAlign = isWide ? "right" : "left";
    context.fillText(match.stop - 1, stop, bottom + 6);
  }

  /** Name the axes: the query's along the left edge, the match's below. */
  drawNames(context, frame) {
    const name = "match's trajectory, frames →";
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.fillText(name, frame.left + frame.across / 2, frame.top + frame.down + BOTTOM);
    context.save();
    context.translate(0, frame.top + frame.down / 2);
    context.rotate(-Math.PI / 2);
    context.textBaseline = "top";
    context.fillText("← query, frames", 0, 0);
    context.restore();
  }

  /** Seek the pair of the path that is nearest to the pointer. */
  seekAt(event) {
    if (!this.data) return;
    const box = this.canvas.getBoundingClientRect();
    const unit = unitOf();
    const frame = this.frame(box.width / unit, box.height / unit);
    const [x, y] = [(event.clientX - box.left) / unit, (event.clientY - box.top) / unit];
    let [best, least] = [0, Infinity];
    this.data.path.forEach((pair, step) => {
      const [across, down] = this.place(pair, frame);
      const distance = (across - x) ** 2 + (down - y) ** 2;
      if (distance < least) [best, least] = [step, distance];
    });
    this.onSeek(best);
  }
}
