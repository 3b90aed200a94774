// What the user accepted, rejected and re-weighed. A change is shown at once, as the page
// expects it to be, and then as the server answers it.

import { change } from "./data.js";
import { notify } from "./elements.js";

export const RESTING = "Draft: choices rest until the borders are kept or put back.";

export class Choices {
  constructor(rows) {
    this.listeners = new Set();
    this.pending = 0;
    this.take(rows);
  }

  /** Start from another state of the run, as it lies on disk. */
  take(rows) {
    this.rows = rows;
    // Choices are about the matches on disk, not about those of a draft.
    this.isResting = Boolean(rows.contents.draft);
    this.isReadOnly = Boolean(rows.contents.read_only || this.isResting);
    this.adopt(rows.contents.choices);
  }

  listen(listener) {
    this.listeners.add(listener);
  }

  /** Take these choices as the present ones. */
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

  /** "accepted", "rejected", "task left out", "beyond K" or "kept". */
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

  /** The rows that would be kept with another K. */
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

  /** Tasks of which something was said and that no match has any more. */
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

  /** Re-weigh a task: 0 leaves it out, any other weight takes that back. */
  weighTask(task, weight) {
    return this.make({ task, weight });
  }

  undo() {
    if (this.now.undo) this.make({ undo: true });
  }

  redo() {
    if (this.now.redo) this.make({ redo: true });
  }

  /** Make a change: expected at once, then as the server says. */
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
      // While later changes are on their way, their answers will say more than this one.
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

/** What the choices become by a change; null where only the server knows (undo and redo). */
export function predict(choices, body) {
  if (body.undo || body.redo) return null;
  const next = structuredClone(choices);
  const without = (rows, gone) => rows.filter((row) => !gone.includes(row));
  const touched = body.reject ?? body.accept ?? body.clear ?? [];
  next.rejected = [...without(next.rejected, touched), ...(body.reject ?? [])];
  next.accepted = [...without(next.accepted, touched), ...(body.accept ?? [])];
  for (const row of body.clear ?? []) delete next.match_weights[row];
  for (const row of body.rows ?? []) next.match_weights[row] = body.weight;
  next.rejected = without(next.rejected, body.rows ?? []); // a new weight takes it back
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

/** How many of its cheapest matches each query keeps: the even rule of retrieval.
 *
 *  Every query the same number; what a query has not goes to the others; the remainder to
 *  the queries whose next match is cheapest. Null where all are kept.
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
