// The current state of the page. It is in the hash of the address, so that a link leads to
// the same query, match and filters: #query=3&match=17&camera=wrist&text=mug

const NAMES = [
  "query", // number of a query, or "all"
  "match", // row of a match
  "run", // number of the match's run, if several are compared
  "camera",
  "text",
  "task", // an instruction
  "dataset", // a dataset's short name
  "quality", // good, middle or poor
  "start", // "0.2..0.3": where in its trajectory a match starts; the same for the others
  "end",
  "length",
  "cost",
  "state", // an evaluation's initial state
  "episode", // a dataset's episode
];

/** The current state: each name of the hash is null or text. */
export const state = Object.fromEntries(NAMES.map((name) => [name, null]));

const listeners = new Set();

/** Call `listener(changed names)` after each change; return a function that stops this. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Change the state, write it into the address and call the listeners. */
export function update(changes) {
  const changed = new Set();
  for (const [name, value] of Object.entries(changes)) {
    const text = value === null || value === undefined || value === "" ? null : String(value);
    if (state[name] === text) continue;
    state[name] = text;
    changed.add(name);
  }
  if (!changed.size) return;
  // Replaced, not pushed: a hundred matches should not be a hundred entries of the history.
  history.replaceState(null, "", `#${writeHash()}`);
  tell(changed);
}

/** Read the state from the address. */
export function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const changed = new Set();
  for (const name of NAMES) {
    const value = given.get(name) || null;
    if (state[name] !== value) changed.add(name);
    state[name] = value;
  }
  if (changed.size) tell(changed);
}

/** Read a number of the state; null if it is not a number. */
export function numberOf(name) {
  const value = state[name];
  return value !== null && /^\d+$/.test(value) ? Number(value) : null;
}

function writeHash() {
  const search = new URLSearchParams();
  for (const name of NAMES) if (state[name] !== null) search.set(name, state[name]);
  return search.toString();
}

function tell(changed) {
  for (const listener of [...listeners]) listener(changed);
}

window.addEventListener("hashchange", readHash);
