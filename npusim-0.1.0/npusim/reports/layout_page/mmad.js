"use strict";
// An Mmad, a product of two fractals after the other.

/** A, B and C of m x k by k x n where an Mmad has them. */
function operands(facts, m, n, k, dtype) {
  const { a, b, c } = facts.mmad.layouts;
  return {
    a: placement(facts, m, k, dtype, a),
    b: placement(facts, k, n, dtype, b),
    c: placement(facts, m, n, facts.mmad.dtypes[dtype].sum, c),
  };
}

/** The products of two fractals in an Mmad: all of k for a fractal of C, then the next one.
 *  Each has the first row and column of its fractal of C, its first k, and which fractals of
 *  A, B and C take part, counted as they lie in memory. */
function products({ a, b, c }) {
  const found = [], depth = a.fractal[1];
  for (let number = 0; number < c.count; number += c.size) {
    const { row, column } = c.spot(number);
    for (let k = 0; k < a.columns; k += depth) {
      found.push({
        row, column, k, end: Math.min(k + depth, a.columns),
        a: a.element(row, k) / a.size, b: b.element(k, column) / b.size, c: number / c.size,
      });
    }
  }
  return found;
}

/** What element (row, column) of C gains by the k from *start* to *end*: a term for each. */
function terms({ a, b }, row, column, start, end) {
  const found = [];
  for (let k = start; k < end; k++) {
    const left = value(row * a.columns + k), right = value(k * b.columns + column);
    found.push({ k, left, right, product: left * right });
  }
  return found;
}

const MMAD = { inner: [0, 0], now: null, steps: [] };

function read_mmad() {
  const [m, n, k] = ["m", "n", "k"].map((name) => whole(`mmad-${name}`, name, FACTS.mmad.most));
  MMAD.now = operands(FACTS, m, n, k, el("mmad-dtype").value);
  MMAD.steps = products(MMAD.now);
}

function show_mmad() {
  el("mmad-error").textContent = "";
  try {
    read_mmad();
  } catch (error) {
    el("mmad-error").textContent = error.message;
    return;
  }
  for (const [name, of] of Object.entries(MMAD.now)) {
    const look = { owner: of, is_wide: false, text: (_, r, c) => `${r},${c}` };
    draw_map(el(`mmad-${name}-matrix`), of, matrix_grid(of), look);
    draw_map(el(`mmad-${name}-memory`), of, memory_grid(of), look);
    const buffer = FACTS.mmad.buffers[name];
    el(`mmad-${name}-caption`).textContent =
      `${name.toUpperCase()}, ${of.rows} x ${of.columns} ${of.dtype}, in ${buffer}` +
      `${of.name === buffer ? "" : ` as ${of.name}`}: ${of.nbytes} bytes`;
  }
  MMAD.stepper.again();
}

/** The element of C that is looked at: at the same place of each step's fractal. */
function watched(step) {
  const { c } = MMAD.now;
  return [
    Math.min(step.row + MMAD.inner[0], c.rows - 1),
    Math.min(step.column + MMAD.inner[1], c.columns - 1),
  ];
}

function show_product(place) {
  const step = MMAD.steps[place], [row, column] = watched(step);
  const depth = Array.from({ length: step.end - step.k }, (_, inner) => step.k + inner);
  const marked = {
    a: depth.map((k) => [row, k]), b: depth.map((k) => [k, column]), c: [[row, column]],
  };
  for (const name of Object.keys(MMAD.now)) {
    for (const kind of ["matrix", "memory"]) {
      draw_marks(el(`mmad-${name}-${kind}`), { marked: marked[name], ringed: step[name] });
    }
  }
  tell_product(place, step, row, column);
}

function tell_product(place, step, row, column) {
  const { now } = MMAD, cycles = FACTS.mmad.dtypes[now.a.dtype].cycles;
  el("mmad-step-name").textContent = `step ${place + 1} of ${MMAD.steps.length}`;
  const at = (name) => {
    const byte = now[name].byte(step[name] * now[name].size);
    return `fractal ${step[name]} of ${name.toUpperCase()} (byte ${byte} of ${FACTS.mmad.buffers[name]})`;
  };
  const sum = (some) => some.reduce((total, { product }) => total + product, 0);
  const found = terms(now, row, column, step.k, step.end);
  const before = sum(terms(now, row, column, 0, step.k));
  el("mmad-told").textContent =
    `${at("c")} += ${at("a")} @ ${at("b")}: ${cycles} ${cycles === 1 ? "cycle" : "cycles"} of ` +
    `${FACTS.device.name}\n` +
    `C(${row}, ${column}) = ${before} + A(${row}, ${step.k} to ${step.end - 1}) · ` +
    `B(${step.k} to ${step.end - 1}, ${column}) = ${before} + ${sum(found)} = ${before + sum(found)}`;
  const line = (name, text) => [[name], ...found.map((term) => [String(text(term))])];
  fill_table(el("mmad-terms"), [
    line("k", ({ k }) => k),
    line(`A(${row}, k)`, ({ left }) => left),
    line("byte of L0A", ({ k }) => now.a.byte(now.a.element(row, k))),
    line(`B(k, ${column})`, ({ right }) => right),
    line("byte of L0B", ({ k }) => now.b.byte(now.b.element(k, column))),
    line("product", ({ product }) => product),
  ]);
}

/** Look at element (row, column) of C, at the k of the present step. */
function watch(row, column) {
  const { c } = MMAD.now;
  if (row < 0 || column < 0 || row >= c.rows || column >= c.columns) return;
  const fractal = Math.floor(c.element(row, column) / c.size), first = c.spot(fractal * c.size);
  MMAD.inner = [row - first.row, column - first.column];
  const each = MMAD.steps.length / (c.count / c.size);
  MMAD.stepper.go(fractal * each + (Number(el("mmad-step").value) % each));
}

function listen_to_sums(canvas) {
  canvas.addEventListener("pointerdown", (event) => {
    const number = number_at(canvas, event);
    if (number === null) return;
    const { row, column } = canvas.of.spot(number);
    watch(row, column);
  });
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (!arrow) return;
    event.preventDefault();
    const [row, column] = watched(MMAD.steps[Number(el("mmad-step").value)]);
    watch(row + arrow[0], column + arrow[1]);
  });
}

function begin_mmad() {
  const { most, dtypes, start } = FACTS.mmad;
  for (const name of ["m", "n", "k"]) {
    el(`mmad-${name}`).max = most;
    el(`mmad-${name}`).value = start[name];
  }
  options("mmad-dtype", Object.keys(dtypes), start.dtype);
  el("mmad-choice").addEventListener("input", show_mmad);
  el("mmad-choice").addEventListener("submit", (event) => event.preventDefault());
  MMAD.stepper = stepper("mmad-", () => MMAD.steps.length, show_product);
  for (const kind of ["matrix", "memory"]) listen_to_sums(el(`mmad-c-${kind}`));
}
