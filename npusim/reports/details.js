// The micro-ops behind the spans of a summary, unpacked where somebody looks at them.

const MOST_CHUNKS = 64, MOST_PARTS = 400;

class Details {
  // *changed* is called when micro-ops are there that were asked for.
  constructor(data, changed) {
    this.data = data;
    this.changed = changed;
    this.us = 1e6 / data.clock_hz;
    this.chunks = new Map();
    this.parts = new Map();
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
    inflated(this.data.chunks[packed]).then((bytes) => {
      const all = new Int32Array(bytes), [start, free, end] = [0, 1, 2].map((n) => all.subarray(n * count, (n + 1) * count));
      for (let i = 1; i < count; i++) start[i] += start[i - 1];
      this.chunks.set(packed, { start, free, end });
      this.changed();
    });
    return null;
  }
  lane(l, part, times) {
    const own = this.data.lanes[l], [n, from, calls] = own.details[part], first = own.chunks[n][2];
    const ops = calls.flatMap(([body]) => this.data.bodies[body]);
    const shift = calls.flatMap(([body, words]) => this.data.bodies[body].map(() => words));
    const start = ops.map((_, i) => (first + times.start[from + i]) * this.us);
    const cycles = ops.map((_, i) => times.free[from + i]), free = cycles.map((held, i) => start[i] + held * this.us);
    const end = free.map((at, i) => at + times.end[from + i] * this.us);
    const none = { setter: new Map(), waiters: new Map(), path: [] };
    return { name: own.name, cores: own.cores, kind: own.kind, start, free, end, cycles, ops, shift, ...none, ...sorted(ops, this.data.pipes) };
  }
}

// Of each pipe its micro-ops, with and without those that order others.
function sorted(ops, names) {
  const pipes = names.map(() => []), all = names.map(() => []);
  ops.forEach((op, i) => { all[op[0]].push(i); if (!op[7]) pipes[op[0]].push(i); });
  return { pipes, all };
}
