// The matches of a run: which row is what, which rows pass the filters, in order of cost.

export const QUALITIES = ["good", "middle", "poor"];
/** What the words mean: they compare matches of one run. */
export const MEANINGS = {
  good: "the cheapest third of this run's matches",
  middle: "the middle third of this run's matches, by cost",
  poor: "the dearest third of this run's matches",
};
/** Shapes beside the words, so that nobody depends on colours. */
export const SHAPES = { good: "●", middle: "◐", poor: "○" };
export const RANGES = ["start", "end", "length", "cost"];
export const FILTERS = ["text", "task", "dataset", "quality", ...RANGES];

/** One run's contents with what the page asks of them. */
export class Rows {
  constructor(contents, number = null) {
    this.contents = contents;
    this.matches = contents.matches;
    this.count = contents.matches.query.length;
    /** the run's number, where several are compared; null for the only one */
    this.number = number;
    this.datasetNames = shortNames(contents.datasets);
    this.digits = digitsFor(contents.quality.poor);
    this.haystacks = contents.instructions.map((text) => text.toLowerCase());
    this.byQuery = contents.queries.map(() => []);
    for (let row = 0; row < this.count; row++) this.byQuery[this.matches.query[row]].push(row);
    const rank = this.matches.rank;
    for (const rows of this.byQuery) rows.sort((a, b) => rank[a] - rank[b] || a - b);
    const cost = this.matches.cost_per_frame;
    this.all = Array.from({ length: this.count }, (_, row) => row);
    this.all.sort((a, b) => cost[a] - cost[b] || a - b);
    this.places = new Float64Array(this.count);
    this.all.forEach((row, place) => (this.places[row] = place / Math.max(1, this.count - 1)));
  }

  /** Rows of a query, cheapest first; of all queries for "all". */
  of(query) {
    return query === "all" ? this.all : (this.byQuery[query] ?? []);
  }

  instruction(row) {
    return this.contents.instructions[this.matches.instruction[row]];
  }

  dataset(row) {
    return this.datasetNames[this.matches.dataset[row]];
  }

  /** The frames a match covers, as STRAP writes segments everywhere. */
  segment(row) {
    const { trajectory, start, stop } = this.matches;
    return `${trajectory[row]}[${start[row]}:${stop[row]}]`;
  }

  quality(row) {
    const cost = this.matches.cost_per_frame[row];
    const { good, poor } = this.contents.quality;
    if (cost <= good) return "good";
    return cost > poor ? "poor" : "middle";
  }

  /** Whether the words of quality say something: of several runs, each has its own thirds. */
  get isGraded() {
    return this.number === null;
  }

  /** Where a match lies in the run's spread of costs: 0 the cheapest, 1 the dearest. */
  spread(row) {
    return this.places[row];
  }

  costText(row) {
    return this.matches.cost_per_frame[row].toFixed(this.digits);
  }

  /** What a filter by range looks at: fractions of the trajectory, frames, cost per frame. */
  value(name, row) {
    const { start, stop, length, cost_per_frame: cost } = this.matches;
    if (name === "start") return start[row] / Math.max(1, length[row]);
    if (name === "end") return stop[row] / Math.max(1, length[row]);
    if (name === "length") return stop[row] - start[row];
    return cost[row];
  }

  /** The query as a piece of its demonstration. */
  query(number) {
    const query = this.contents.queries[number];
    const demonstration = this.contents.demonstrations[query.demonstration];
    const name = `${demonstration.id}[${query.start}:${query.stop}]`;
    return { ...query, trajectory: demonstration.id, instruction: demonstration.instruction, name };
  }

  /** Rows that pass every filter but `except`, in the order they were given. */
  passing(rows, filters, except = null) {
    const tests = FILTERS.filter((name) => name !== except && filters[name] !== null)
      .map((name) => this.test(name, filters[name]));
    return tests.length ? rows.filter((row) => tests.every((passes) => passes(row))) : rows;
  }

  test(name, wanted) {
    if (name === "task") return (row) => this.instruction(row) === wanted;
    if (name === "dataset") return (row) => this.dataset(row) === wanted;
    if (name === "quality") return (row) => this.quality(row) === wanted;
    if (name === "text") return this.textTest(wanted);
    const [low, high] = rangeOf(wanted);
    return (row) => {
      const value = this.value(name, row);
      return value >= low && value < high;
    };
  }

  /** Whether a value of a filter means something in this run; null is no filter. */
  isFilter(name, value) {
    if (value === null || name === "text") return true;
    if (name === "task") return this.contents.instructions.includes(value);
    if (name === "dataset") return this.datasetNames.includes(value);
    if (name === "quality") return QUALITIES.includes(value);
    return rangeOf(value)[0] > -Infinity;
  }

  textTest(wanted) {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    return (row) => {
      const place = `${this.dataset(row)} ${this.matches.trajectory[row]}`.toLowerCase();
      const text = `${this.haystacks[this.matches.instruction[row]]} ${place}`;
      return words.every((word) => text.includes(word));
    };
  }
}

/** Read "0.2..0.3"; what is no range lets everything pass. */
export function rangeOf(text) {
  const [low, high] = text.split("..").map(Number);
  return Number.isFinite(low) && Number.isFinite(high) ? [low, high] : [-Infinity, Infinity];
}

/** Last parts of the paths, with as many folders before them as make them differ. */
export function shortNames(paths) {
  const parts = paths.map((path) => path.split("/").filter(Boolean));
  return parts.map((own) => {
    for (let kept = 1; kept < own.length; kept++) {
      const name = own.slice(-kept).join("/");
      const others = parts.filter((other) => other.slice(-kept).join("/") === name);
      if (others.length === 1) return name;
    }
    return own.join("/");
  });
}

/** How many digits after the point tell costs of this size apart. */
function digitsFor(cost) {
  if (!(cost > 0)) return 2;
  return Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(cost))));
}
