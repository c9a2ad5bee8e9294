// The micro-ops behind the spans of a summary, unpacked where somebody looks at them.

const MOST_CHUNKS = 128, MOST_PARTS = 400;

class Details {
  // *changed* is called when micro-ops are there that were asked for.
  constructor(data, changed) {
    this.data = data;
    this.changed = changed;
    this.us = 1e6 / data.clock_hz;
    this.chunks = new Map();
    this.parts = new Map();
    this.starts = [];
    this.awaited = 0;
  }
  // The micro-ops of a part of lane *l* as a lane; null while they are unpacked.
  of(l, part) {
    const key = `${l} ${part}`;
    if (!this.parts.has(key)) {
      const [n] = this.data.lanes[l].details[part], times = this.times(this.data.lanes[l].chunks[n]);
      if (!times) return null;
      if (this.parts.size > MOST_PARTS) this.parts.clear();
      this.parts.set(key, this.lane(l, part, times));
    }
    return this.parts.get(key);
  }
  times([packed, count]) {
    if (this.chunks.has(packed)) return this.chunks.get(packed);
    if (this.chunks.size > MOST_CHUNKS) this.chunks.clear();
    this.chunks.set(packed, null);
    this.awaited++;
    inflated(this.data.chunks[packed]).then((bytes) => {
      const all = new Int32Array(bytes);
      const [start, free, end, back] = [0, 1, 2, 3].map((n) => all.subarray(n * count, (n + 1) * count));
      for (let i = 1; i < count; i++) start[i] += start[i - 1];
      this.chunks.set(packed, { start, free, end, back });
      this.awaited--;
      this.changed();
    });
    return null;
  }
  lane(l, part, times) {
    const own = this.data.lanes[l], [n, from, calls, number] = own.details[part], first = own.chunks[n][2];
    const ops = calls.flatMap(([body]) => this.data.bodies[body]);
    const shift = calls.flatMap(([body, words]) => this.data.bodies[body].map(() => words));
    const start = ops.map((_, i) => (first + times.start[from + i]) * this.us);
    const cycles = ops.map((_, i) => times.free[from + i]), free = cycles.map((held, i) => start[i] + held * this.us);
    const end = free.map((at, i) => at + times.end[from + i] * this.us);
    // Of each wait the number of its set, in the program.
    const sets = new Map(ops.map((_, i) => [i, times.back[from + i]]).filter(([, back]) => back).map(([i, back]) => [i, number + i - back]));
    return { name: own.name, cores: own.cores, kind: own.kind, start, free, end, cycles, ops, shift, sets, path: [], ...sorted(ops, this.data.pipes) };
  }
  // The micro-op with this number in the program of lane *l*; null while it is unpacked.
  find(l, number) {
    const { details, shown } = this.data.lanes[l];
    this.starts[l] ??= [...details.map(([, , , first], part) => ({ first, part })), ...shown.map(([first, place]) => ({ first, place }))]
      .sort((one, other) => one.first - other.first);
    const { first, part, place } = this.starts[l].findLast((each) => each.first <= number);
    if (part === undefined) return { lane: l, op: place + number - first };
    return this.of(l, part) && { lane: l, op: number - first, part };
  }
}

// Of each pipe its micro-ops, with and without those that order others.
function sorted(ops, names) {
  const pipes = names.map(() => []), all = names.map(() => []);
  ops.forEach((op, i) => { all[op[0]].push(i); if (!op[7]) pipes[op[0]].push(i); });
  return { pipes, all };
}
