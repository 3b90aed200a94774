// The matches that the user accepted, rejected and re-weighted. The page shows the expected
// result of a change at once, and then the server's answer.

import { change } from "./data.js";
import { notify } from "./elements.js";

export const RESTING = "Draft: keep or discard the borders before you make choices.";

export class Choices {
  constructor(rows) {
    this.listeners = new Set();
    this.pending = 0;
    this.take(rows);
  }

  /** Start from another state of the run. */
  take(rows) {
    this.rows = rows;
    // Choices apply to the matches on disk, not to those of a draft.
    this.isResting = Boolean(rows.contents.draft);
    this.isReadOnly = Boolean(rows.contents.read_only || this.isResting);
    this.adopt(rows.contents.choices);
  }

  listen(listener) {
    this.listeners.add(listener);
  }

  /** Make these the current choices, and notify the listeners. */
  adopt(choices) {
    this.hold(choices);
    for (const listener of this.listeners) listener(this);
  }

  hold(choices) {
    this.now = choices;
    this.rejected = new Set(choices.rejected);
    this.accepted = new Set(choices.accepted);
    this.rejectedTasks = new Set(choices.rejected_tasks);
    this.quotas = quotas(this.rows, choices.top_k);
  }

  /** Return "accepted", "rejected", "task left out", "beyond K" or "kept". */
  standing(row) {
    if (this.rejected.has(row)) return "rejected";
    if (this.accepted.has(row)) return "accepted";
    if (this.rejectedTasks.has(this.rows.instruction(row))) return "task left out";
    return this.isWithin(row, this.quotas) ? "kept" : "beyond K";
  }

  isWithin(row, shares) {
    const { query, rank } = this.rows.matches;
    return shares === null || rank[row] <= shares[query[row]];
  }

  isKept(row) {
    const standing = this.standing(row);
    return standing === "kept" || standing === "accepted";
  }

  /** Return the rows that would be kept with another K. */
  keptWith(topK) {
    const shares = quotas(this.rows, topK);
    return this.rows.all.filter((row) => {
      const standing = this.standing(row);
      if (standing === "accepted") return true;
      return standing !== "rejected" && standing !== "task left out" && this.isWithin(row, shares);
    });
  }

  weight(row) {
    return this.now.match_weights[row] ?? 1;
  }

  taskWeight(task) {
    return this.rejectedTasks.has(task) ? 0 : (this.now.task_weights[task] ?? 1);
  }

  /** Return the tasks that have a choice but no match any more. */
  lostTasks() {
    const known = new Set(this.rows.contents.instructions);
    const said = [...Object.keys(this.now.task_weights), ...this.now.rejected_tasks];
    return [...new Set(said)].filter((task) => !known.has(task));
  }

  accept(row) {
    return this.make(this.accepted.has(row) ? { clear: [row] } : { accept: [row] });
  }

  reject(row) {
    return this.make(this.rejected.has(row) ? { clear: [row] } : { reject: [row] });
  }

  /** Change the weight of a task: 0 leaves it out, any other weight includes it again. */
  weighTask(task, weight) {
    return this.make({ task, weight });
  }

  undo() {
    if (this.now.undo) this.make({ undo: true });
  }

  redo() {
    if (this.now.redo) this.make({ redo: true });
  }

  /** Make a change: show the expected result at once, then the server's answer. */
  async make(body) {
    if (this.isResting) notify(RESTING);
    if (this.isReadOnly) return;
    const before = this.now;
    this.pending++;
    this.expect(body);
    try {
      const among = this.rows.contents.fingerprint;
      const answer = await change("choices", { ...body, among });
      this.pending--;
      // If later changes are pending, their answers will be newer than this one.
      if (!this.pending) this.adopt(answer);
    } catch (problem) {
      this.pending--;
      this.adopt(before);
      notify(problem.message);
    }
  }

  expect(body) {
    const expected = predict(this.now, body);
    if (!expected) return;
    this.hold(expected);
    expected.kept = this.rows.all.filter((row) => this.isKept(row)).length;
    this.adopt(expected);
  }
}

/** Return the choices after a change; null if only the server knows them (undo and redo). */
export function predict(choices, body) {
  if (body.undo || body.redo) return null;
  const next = structuredClone(choices);
  const without = (rows, gone) => rows.filter((row) => !gone.includes(row));
  const touched = body.reject ?? body.accept ?? body.clear ?? [];
  next.rejected = [...without(next.rejected, touched), ...(body.reject ?? [])];
  next.accepted = [...without(next.accepted, touched), ...(body.accept ?? [])];
  for (const row of body.clear ?? []) delete next.match_weights[row];
  for (const row of body.rows ?? []) next.match_weights[row] = body.weight;
  next.rejected = without(next.rejected, body.rows ?? []); // a new weight undoes the rejection
  if (body.task !== undefined) {
    next.rejected_tasks = without(next.rejected_tasks, [body.task]);
    if (body.weight === 0) next.rejected_tasks.push(body.task);
    else next.task_weights[body.task] = body.weight;
  }
  if ("top_k" in body) next.top_k = body.top_k;
  next.undo++;
  next.redo = 0;
  return next;
}

/** Return how many of its cheapest matches each query keeps, by retrieval's rule `even`.
 *
 *  Every query keeps the same number. If a query has fewer matches, the others keep more. The
 *  remainder goes to the queries whose next match is cheapest. Null if all are kept.
 */
export function quotas(rows, topK) {
  if (topK === null || topK === undefined) return null;
  const queries = rows.byQuery;
  const taken = queries.map(() => 0);
  let remaining = Math.min(topK, rows.count);
  while (remaining > 0) {
    let open = queries.flatMap((own, query) => (taken[query] < own.length ? [query] : []));
    let each = Math.floor(remaining / open.length);
    if (each === 0) {
      const next = (query) => rows.matches.cost[queries[query][taken[query]]];
      open = open.sort((a, b) => next(a) - next(b) || a - b).slice(0, remaining);
      each = 1;
    }
    for (const query of open) {
      const count = Math.min(each, queries[query].length - taken[query]);
      taken[query] += count;
      remaining -= count;
    }
  }
  return taken;
}
