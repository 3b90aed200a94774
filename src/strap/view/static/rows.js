// The matches of a run: the columns of each row, and the rows that pass the filters, by cost.

export const QUALITIES = ["good", "middle", "poor"];
/** The meanings of the words, which compare matches of one run. */
export const MEANINGS = {
  good: "the cheapest third of this run's matches",
  middle: "the middle third of this run's matches, by cost",
  poor: "the most expensive third of this run's matches",
};
/** Shapes beside the words, so that the page does not depend on colours. */
export const SHAPES = { good: "●", middle: "◐", poor: "○" };
export const RANGES = ["start", "end", "length", "cost"];
export const FILTERS = ["text", "task", "dataset", "quality", ...RANGES];

/** One run's contents, with the values that the page shows. */
export class Rows {
  constructor(contents, number = null) {
    this.contents = contents;
    this.matches = contents.matches;
    this.count = contents.matches.query.length;
    /** the run's number if several are compared; null for a single run */
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

  /** Return the rows of a query, or of all queries for "all", cheapest first. */
  of(query) {
    return query === "all" ? this.all : (this.byQuery[query] ?? []);
  }

  instruction(row) {
    return this.contents.instructions[this.matches.instruction[row]];
  }

  dataset(row) {
    return this.datasetNames[this.matches.dataset[row]];
  }

  /** Return the frames of a match in STRAP's notation for segments. */
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

  /** Whether the words of quality apply: not to several runs, because each has its own thirds. */
  get isGraded() {
    return this.number === null;
  }

  /** Return a match's relative rank by cost: 0 is the cheapest, 1 the most expensive. */
  spread(row) {
    return this.places[row];
  }

  costText(row) {
    return this.matches.cost_per_frame[row].toFixed(this.digits);
  }

  /** Return the value that a range filter tests: a fraction of the trajectory, frames or a cost. */
  value(name, row) {
    const { start, stop, length, cost_per_frame: cost } = this.matches;
    if (name === "start") return start[row] / Math.max(1, length[row]);
    if (name === "end") return stop[row] / Math.max(1, length[row]);
    if (name === "length") return stop[row] - start[row];
    return cost[row];
  }

  /** Return a query with its demonstration and name. */
  query(number) {
    const query = this.contents.queries[number];
    const demonstration = this.contents.demonstrations[query.demonstration];
    const name = `${demonstration.id}[${query.start}:${query.stop}]`;
    return { ...query, trajectory: demonstration.id, instruction: demonstration.instruction, name };
  }

  /** Return the rows that pass every filter except `except`, in the given order. */
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

  /** Return whether a filter's value exists in this run; null means no filter. */
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

/** Parse a range such as "0.2..0.3"; any other text means an unlimited range. */
export function rangeOf(text) {
  const [low, high] = text.split("..").map(Number);
  return Number.isFinite(low) && Number.isFinite(high) ? [low, high] : [-Infinity, Infinity];
}

/** Return the last parts of the paths, with enough folders to make them differ. */
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

/** Return how many decimal places distinguish costs of this size. */
function digitsFor(cost) {
  if (!(cost > 0)) return 2;
  return Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(cost))));
}
