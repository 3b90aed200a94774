// How the matches are distributed: over tasks, positions in their trajectories, lengths
// and costs. Every bar is a button that filters the matches; a second click removes the filter.

import { weightOptions } from "./cards.js";
import { make, setOptions } from "./elements.js";
import { rangeOf } from "./rows.js";
import { state, update } from "./state.js";

const BINS = 12;
const FEW_TASKS = 6;
const SHARE = "position in its trajectory";
const CHARTS = [
  { name: "start", title: "Starts at", low: 0, high: 1, unit: "of the trajectory", of: SHARE },
  { name: "end", title: "Ends at", low: 0, high: 1, unit: "of the trajectory", of: SHARE },
  { name: "length", title: "Length", unit: "frames" },
  { name: "cost", title: "Cost per frame", unit: "" },
];

export class Distributions {
  constructor(choices) {
    this.choices = choices;
    this.areAllTasks = false;
    this.tasks = make("div", { class: "tasks" });
    this.charts = CHARTS.map((chart) => ({ ...chart, element: make("div", { class: "chart" }) }));
    this.element = make(
      "section",
      { class: "distributions", "aria-labelledby": "distributions-title" },
      make("h2", { id: "distributions-title" }, "Distributions"),
      make("p", { class: "hint" }, "Click a bar to see only its matches; click again to see all."),
      this.tasks,
      make("div", { class: "charts" }, ...this.charts.map((chart) => chart.element)),
    );
  }

  /** Show the rows of the chosen query; each chart with the other charts' filters applied. */
  show(rows, list) {
    this.rows = rows;
    this.list = list;
    this.showTasks();
    for (const chart of this.charts) this.showChart(chart);
  }

  showTasks() {
    const { rows } = this;
    const counts = countBy(rows.passing(this.list, state, "task"), (row) => rows.instruction(row));
    const tasks = [...new Set(this.list.map((row) => rows.instruction(row)))];
    tasks.sort((a, b) => (counts.get(b) ?? 0) - (counts.get(a) ?? 0) || (a < b ? -1 : 1));
    const most = Math.max(1, ...counts.values());
    const shown = this.areAllTasks ? tasks : tasks.slice(0, FEW_TASKS);
    const focused = document.activeElement?.dataset?.key;
    const all = make(
      "button",
      {
        type: "button",
        class: "link",
        onclick: () => {
          this.areAllTasks = !this.areAllTasks;
          this.showTasks();
        },
      },
      this.areAllTasks ? "Show fewer" : `Show all ${tasks.length} tasks`,
    );
    this.tasks.replaceChildren(
      make("h3", {}, "Tasks"),
      make(
        "ul",
        { class: "task-list" },
        ...shown.map((task) => this.makeTask(task, counts.get(task) ?? 0, most)),
      ),
      tasks.length > FEW_TASKS ? all : "",
    );
    this.focusAgain(this.tasks, focused);
  }

  makeTask(task, count, most) {
    const isPressed = state.task === task;
    const bar = make("span", { class: "task-bar" });
    bar.style.width = `${(100 * count) / most}%`;
    const button = make(
      "button",
      {
        type: "button",
        class: "task",
        title: task,
        "data-key": `task ${task}`,
        "aria-pressed": String(isPressed),
        onclick: () => update({ task: isPressed ? null : task }),
      },
      make("span", { class: "task-name" }, task || "(no instruction)"),
      make("span", { class: "task-count" }, String(count)),
      make("span", { class: "task-track" }, bar),
    );
    const item = make("li", {}, button);
    if (!this.choices.isReadOnly) item.append(this.makeTaskWeight(task));
    return item;
  }

  makeTaskWeight(task) {
    const weight = this.choices.taskWeight(task);
    const select = make("select", {
      class: "task-weight",
      title: "Weight of this task in training",
      "aria-label": `Weight of the task ${task}`,
      "data-key": `weight ${task}`,
      onchange: () => this.choices.weighTask(task, Number(select.value)),
    });
    const options = weightOptions(weight === 0 ? 1 : weight);
    setOptions(select, [[0, "left out"], ...options]);
    select.value = String(weight);
    select.classList.toggle("is-changed", weight !== 1);
    return select;
  }

  showChart(chart) {
    const { rows } = this;
    const values = (list) => list.map((row) => rows.value(chart.name, row));
    const bins = binsOf(chart, values(this.list));
    // A bin excludes its second number, and lengths are integers.
    const last = bins[bins.length - 1][1] - (chart.name === "length" ? 1 : 0);
    const totals = countInto(bins, values(this.list));
    const counts = countInto(bins, values(rows.passing(this.list, state, chart.name)));
    const most = Math.max(1, ...totals);
    const focused = document.activeElement?.dataset?.key;
    const bars = bins.map((bin, place) =>
      this.makeBar(chart, bin, counts[place], totals[place], most),
    );
    chart.element.replaceChildren(
      make("h3", {}, chart.title),
      chart.of ? make("p", { class: "axis" }, chart.of) : "",
      make("div", { class: "bars", role: "group", "aria-label": chart.title }, ...bars),
      make(
        "p",
        { class: "axis" },
        make("span", {}, this.text(chart, bins[0][0])),
        make("span", {}, this.text(chart, last)),
      ),
    );
    this.focusAgain(chart.element, focused);
  }

  makeBar(chart, [low, high], count, total, most) {
    const range = `${low}..${high}`;
    const isPressed = state[chart.name] === range;
    const end = chart.name === "length" ? high - 1 : high;
    const about = `${this.text(chart, low)} to ${this.text(chart, end)} ${chart.unit}`;
    const label = `${about}: ${count} ${count === 1 ? "match" : "matches"}`;
    const whole = make("span", { class: "bar-all" });
    const part = make("span", { class: "bar-part" });
    whole.style.height = `${(100 * total) / most}%`;
    part.style.height = `${(100 * count) / most}%`;
    const attributes = {
      type: "button",
      class: "bar",
      title: label,
      "aria-label": label,
      "aria-pressed": String(isPressed),
      "data-key": `${chart.name} ${low}`,
      onclick: () => update({ [chart.name]: isPressed ? null : range }),
    };
    return make("button", attributes, whole, part);
  }

  text(chart, value) {
    if (chart.name === "cost") return value.toFixed(this.rows.digits);
    return chart.name === "length" ? String(Math.round(value)) : `${Math.round(100 * value)} %`;
  }

  /** Charts are rebuilt at each change: return the focus to the same bar as before. */
  focusAgain(element, key) {
    if (!key) return;
    const same = [...element.querySelectorAll("[data-key]")].find((own) => own.dataset.key === key);
    same?.focus({ preventScroll: true });
  }
}

/** Return the active filters of the state as [name, text]. */
export function describeFilters(rows) {
  const found = [];
  for (const { name, title } of CHARTS) {
    if (state[name] === null) continue;
    const [low, high] = rangeOf(state[name]);
    const digits = name === "cost" ? rows.digits : 0;
    const factor = name === "cost" || name === "length" ? 1 : 100;
    const text = [low, high].map((value) => (value * factor).toFixed(digits)).join("–");
    found.push([name, `${title}: ${text}${factor === 100 ? " %" : ""}`]);
  }
  return found;
}

function countBy(list, key) {
  const counts = new Map();
  for (const row of list) counts.set(key(row), (counts.get(key(row)) ?? 0) + 1);
  return counts;
}

/** Return bins of equal width [low, high) that contain all values. */
function binsOf(chart, values) {
  let low = chart.low ?? values.reduce((least, value) => Math.min(least, value), Infinity);
  let high = chart.high ?? values.reduce((most, value) => Math.max(most, value), -Infinity);
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  // Frames are integers, so bins have integer widths: otherwise some would hold fewer numbers.
  const isWhole = chart.name === "length";
  const spread = isWhole ? high + 1 - low : high - low;
  const width = isWhole ? Math.max(1, Math.ceil(spread / BINS)) : spread / BINS || 1;
  const count = isWhole ? Math.max(1, Math.ceil(spread / width)) : BINS;
  const bins = Array.from({ length: count }, (_, place) =>
    [place, place + 1].map((own) => Number((low + own * width).toPrecision(6))),
  );
  // The largest value belongs to the last bin.
  if (!isWhole) bins[count - 1][1] = Number((high + width / 1000).toPrecision(6));
  bins[0][0] = Math.min(bins[0][0], low);
  return bins;
}

function countInto(bins, values) {
  const counts = bins.map(() => 0);
  for (const value of values) {
    const place = bins.findIndex(([low, high]) => value >= low && value < high);
    if (place >= 0) counts[place]++;
  }
  return counts;
}
