// What the page shows at the moment. The address' hash holds it, so that a link leads to
// the same query, match and filters: #query=3&match=17&camera=wrist&text=mug

const NAMES = [
  "query", // number of a query, or "all"
  "match", // row of a match
  "run", // number of the run the match belongs to, where several are compared
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

/** The present state: each name of the hash is null or text. */
export const state = Object.fromEntries(NAMES.map((name) => [name, null]));

const listeners = new Set();

/** Call `listener(changed names)` after each change; returns how to stop that. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Change the state, write it into the address and tell everyone. */
export function update(changes) {
  const changed = new Set();
  for (const [name, value] of Object.entries(changes)) {
    const text = value === null || value === undefined || value === "" ? null : String(value);
    if (state[name] === text) continue;
    state[name] = text;
    changed.add(name);
  }
  if (!changed.size) return;
  // Replaced and not pushed: stepping through a hundred matches is one visit, not a hundred.
  history.replaceState(null, "", `#${writeHash()}`);
  tell(changed);
}

/** Read the state out of the address. */
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

/** Read a number of the state; null where it is none. */
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
