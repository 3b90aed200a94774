// Gripper and actions of both segments as small line charts along the warping path, so that
// values of the same pair are one above the other.

import { draw, make } from "./elements.js";

const [WIDTH, HEIGHT] = [200, 44];

export class Signals {
  constructor() {
    this.element = make("div", { class: "signals" });
    this.charts = [];
  }

  /** Show the signals of query and match along the pairs. */
  show(query, match, pairs) {
    this.pairs = pairs;
    this.charts = listSignals(query, match).map((signal) => makeChart(signal, pairs));
    this.element.replaceChildren(...this.charts.map((chart) => chart.element));
  }

  /** Move the cursors to pair `step`. */
  setStep(step) {
    const last = Math.max(1, this.pairs?.length - 1);
    const x = ((step / last) * WIDTH).toFixed(1);
    const pair = this.pairs?.[step];
    for (const chart of this.charts) {
      chart.cursor.setAttribute("x1", x);
      chart.cursor.setAttribute("x2", x);
      if (pair) chart.values.textContent = chart.read(pair);
    }
  }
}

/** List the signals of both sides: [name, values of the query, values of the match]. */
function listSignals(query, match) {
  const signals = [];
  if (query.gripper || match.gripper) signals.push(["gripper", query.gripper, match.gripper]);
  const names = query.action_names?.length ? query.action_names : (match.action_names ?? []);
  const column = (actions, index) =>
    actions?.length && index < actions[0].length ? actions.map((action) => action[index]) : null;
  names.forEach((name, index) => {
    const own = [column(query.actions, index), column(match.actions, index)];
    if (own.some(Boolean)) signals.push([actionName(name), ...own]);
  });
  return signals;
}

function actionName(name) {
  return name.startsWith("action") ? name : `action ${name}`;
}

function makeChart([name, query, match], pairs) {
  const all = [...(query ?? []), ...(match ?? [])];
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const line = (values, which) =>
    values &&
    draw("polyline", {
      points: pointsOf(pairs.map((pair) => values[pair[which]]), least, most),
      class: which ? "line-match" : "line-query",
    });
  const cursor = draw("line", { y1: 0, y2: HEIGHT, class: "cursor" });
  const values = make("span", { class: "signal-values" });
  const picture = draw(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    line(query, 0),
    line(match, 1),
    cursor,
  );
  const caption = make("figcaption", {}, make("span", {}, name), values);
  const text = (own, frame) => (own ? own[frame].toFixed(2).replace("-", "−") : "–");
  return {
    element: make("figure", { class: "signal" }, caption, picture),
    cursor,
    values,
    read: ([i, j]) => `${text(query, i)}  |  ${text(match, j)}`,
  };
}

function pointsOf(values, least, most) {
  const spread = most - least || 1;
  const last = Math.max(1, values.length - 1);
  return values
    .map((value, step) => {
      const y = 3 + (1 - (value - least) / spread) * (HEIGHT - 6);
      return `${((step / last) * WIDTH).toFixed(1)},${y.toFixed(1)}`;
    })
    .join(" ");
}
