// The paths of both end effectors in 3-D: a small orthographic projection that can be
// turned by dragging or with the arrow keys.

import { make, oncePerFrame, sharpContext } from "./elements.js";
import { colour } from "./theme.js";

const STEP = 0.12; // radians per key press
const FLOOR_LINES = 5;

export class Paths {
  constructor() {
    this.azimuth = -0.9;
    this.elevation = 0.45;
    this.isJoined = false;
    this.lines = null;
    this.now = [0, 0];
    this.canvas = make("canvas", {
      class: "paths",
      tabindex: 0,
      role: "img",
      "aria-label": "Paths of both end effectors in space; arrow keys turn the view",
    });
    this.redraw = oncePerFrame(() => this.draw());
    this.canvas.addEventListener("pointerdown", (event) =>
      this.canvas.setPointerCapture(event.pointerId),
    );
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) this.turn(event.movementX * 0.01, event.movementY * 0.01);
    });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(this.redraw).observe(this.canvas);
    window.addEventListener("strap-theme", this.redraw);
  }

  /** Show two lists of positions [[x, y, z], …]; either may be null. */
  show(query, match) {
    this.given = [query, match];
    this.arrange();
  }

  /** Choose whether both paths are moved to start at the same point. */
  setJoined(isJoined) {
    this.isJoined = isJoined;
    this.arrange();
  }

  setPair(query, match) {
    this.now = [query, match];
    this.redraw();
  }

  arrange() {
    const [query, match] = this.given;
    const offset = this.isJoined && query && match ? minus(query[0], match[0]) : [0, 0, 0];
    this.lines = [query, match && match.map((point) => plus(point, offset))];
    const points = this.lines.flatMap((line) => line ?? []);
    const least = [0, 1, 2].map((axis) => Math.min(...points.map((point) => point[axis])));
    const most = [0, 1, 2].map((axis) => Math.max(...points.map((point) => point[axis])));
    this.middle = least.map((low, axis) => (low + most[axis]) / 2);
    this.radius = Math.max(1e-6, Math.hypot(...minus(most, least)) / 2);
    this.floor = least[2];
    this.redraw();
  }

  turn(azimuth, elevation) {
    this.azimuth -= azimuth;
    this.elevation = Math.min(1.5, Math.max(-0.2, this.elevation + elevation));
    this.redraw();
  }

  onKey(event) {
    const turns = {
      ArrowLeft: [-STEP, 0],
      ArrowRight: [STEP, 0],
      ArrowUp: [0, -STEP],
      ArrowDown: [0, STEP],
    };
    if (!turns[event.key]) return;
    this.turn(...turns[event.key]);
    event.preventDefault();
    event.stopPropagation(); // otherwise the arrows would also choose another match
  }

  project(point, view) {
    const [x, y, z] = minus(point, this.middle);
    const across = x * Math.cos(this.azimuth) - y * Math.sin(this.azimuth);
    const away = x * Math.sin(this.azimuth) + y * Math.cos(this.azimuth);
    const up = z * Math.cos(this.elevation) + away * Math.sin(this.elevation);
    return [view.x + across * view.scale, view.y - up * view.scale];
  }

  draw() {
    if (!this.lines || !this.canvas.clientWidth) return;
    const { context, width, height } = sharpContext(this.canvas);
    const scale = (0.52 * Math.min(width, height)) / this.radius;
    const view = { x: width / 2, y: height / 2, scale };
    context.clearRect(0, 0, width, height);
    this.drawFloor(context, view);
    const styles = [
      { name: "--ink", dash: [] },
      { name: "--accent", dash: [5, 3] },
    ];
    this.lines.forEach((line, which) => {
      if (line) this.drawLine(context, view, line, styles[which]);
    });
    this.lines.forEach((line, which) => {
      if (line) this.drawHand(context, view, line, which, styles[which]);
    });
    this.drawAxes(context, height);
  }

  /** Draw a grid below both paths: without it, a rotation is hard to see. */
  drawFloor(context, view) {
    const [x, y] = this.middle;
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.beginPath();
    for (let line = 0; line < FLOOR_LINES; line++) {
      const along = this.radius * ((2 * line) / (FLOOR_LINES - 1) - 1) * 0.9;
      const reach = this.radius * 0.9;
      const ends = [
        [[x + along, y - reach, this.floor], [x + along, y + reach, this.floor]],
        [[x - reach, y + along, this.floor], [x + reach, y + along, this.floor]],
      ];
      for (const [from, to] of ends) {
        context.moveTo(...this.project(from, view));
        context.lineTo(...this.project(to, view));
      }
    }
    context.stroke();
  }

  drawLine(context, view, line, { name, dash }) {
    context.strokeStyle = colour(name);
    context.lineJoin = "round";
    context.globalAlpha = 0.18;
    context.lineWidth = 2;
    this.trace(context, view, line.map(([x, y]) => [x, y, this.floor]));
    context.globalAlpha = 1;
    context.setLineDash(dash);
    this.trace(context, view, line);
    context.setLineDash([]);
  }

  trace(context, view, line) {
    context.beginPath();
    line.forEach((point, index) =>
      context[index ? "lineTo" : "moveTo"](...this.project(point, view)),
    );
    context.stroke();
  }

  /** Draw the current position of the hand: a disc for the query, a diamond for the match. */
  drawHand(context, view, line, which, { name }) {
    const point = line[Math.min(this.now[which], line.length - 1)];
    const [x, y] = this.project(point, view);
    const [footX, footY] = this.project([point[0], point[1], this.floor], view);
    context.strokeStyle = colour(name);
    context.globalAlpha = 0.4;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(footX, footY);
    context.stroke();
    context.globalAlpha = 1;
    context.fillStyle = colour(name);
    context.beginPath();
    if (which === 0) context.arc(x, y, 5.5, 0, 2 * Math.PI);
    else [[0, -7], [7, 0], [0, 7], [-7, 0]].forEach(([dx, dy]) => context.lineTo(x + dx, y + dy));
    context.closePath();
    context.fill();
    context.strokeStyle = colour("--surface");
    context.lineWidth = 1.5;
    context.stroke();
  }

  drawAxes(context, height) {
    const corner = { x: 30, y: height - 28, scale: 18 };
    context.strokeStyle = context.fillStyle = colour("--ink-soft");
    context.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    const ends = { x: [1, 0, 0], y: [0, 1, 0], z: [0, 0, 1] };
    for (const [name, end] of Object.entries(ends)) {
      const [x, y] = this.project(plus(this.middle, end), corner);
      context.beginPath();
      context.moveTo(corner.x, corner.y);
      context.lineTo(x, y);
      context.stroke();
      context.fillText(name, corner.x + (x - corner.x) * 1.45, corner.y + (y - corner.y) * 1.45);
    }
  }
}

function minus(one, other) {
  return one.map((value, axis) => value - other[axis]);
}

function plus(one, other) {
  return one.map((value, axis) => value + other[axis]);
}
