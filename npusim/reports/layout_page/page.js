"use strict";
// What is seen and touched; where elements lie is up to map.js.

const state = { chosen: [0, 0], now: null };

// ---- what is chosen ----

function chosen() {
  const rows = whole("rows", "rows", FACTS.most), columns = whole("columns", "columns", FACTS.most);
  const make = (name) => placement(FACTS, rows, columns, el("dtype").value, name);
  return { left: make(el("left").value), right: make(el("right").value), make };
}

function show_all() {
  let now;
  try {
    now = chosen();
  } catch (error) {
    el("error").textContent = error.message;
    return;
  }
  el("error").textContent = "";
  const { rows, columns } = now.left;
  state.now = now;
  state.chosen = [Math.min(state.chosen[0], rows - 1), Math.min(state.chosen[1], columns - 1)];
  show_sides();
  draw_transfer();
  state.stepper.again();
  show_wrong();
}

// ---- the address ----

const CHOICE = ["rows", "columns", "dtype", "left", "right"];

/** What is chosen stands behind the address, so that a link shows the same. */
function show_address() {
  const words = new URLSearchParams(CHOICE.map((id) => [id, el(id).value]));
  words.set("at", state.chosen.join());
  history.replaceState(null, "", `#${words}`);
}

/** Choose what stands behind the address; what the page does not have is left as it is. */
function read_address() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const id of CHOICE) {
    const before = el(id).value;
    if (words.has(id)) el(id).value = words.get(id);
    if (!el(id).value) el(id).value = before;
  }
  const at = (words.get("at") ?? "").split(",").map(Number);
  if (at.length === 2 && at.every((each) => Number.isInteger(each) && each >= 0)) state.chosen = at;
}

// ---- both layouts ----

function told(of, row, column) {
  const number = of.element(row, column);
  const bit = (number * of.bits) % 8;
  const fractal = of.is_nd ? "" : `, fractal ${Math.floor(number / of.size)}`;
  const low = of.bits < 8 ? ` bit ${bit}` : "";
  return `${of.name}: element ${number}, byte ${of.byte(number)}${low}${fractal}`;
}

function show_sides() {
  const { left, right } = state.now;
  // Both maps of both layouts have the colours of one of them.
  const owner = right.is_nd ? left : right;
  el("owner").textContent = owner.is_nd ? "Neither layout has fractals."
    : `Colours are the fractals of ${owner.name}, in the order in which they lie in memory.`;
  const look = { owner, is_wide: el("numbers").checked };
  for (const [side, of] of [["left", left], ["right", right]]) {
    const padding = of.nbytes - Math.ceil((of.rows * of.columns * of.bits) / 8);
    const filled = padding ? `, ${padding} of them padding` : "";
    el(`${side}-caption`).textContent =
      `${of.rows} x ${of.columns} ${of.dtype} as ${of.name}, ${of.nbytes} bytes${filled}`;
    draw_map(el(`${side}-matrix`), of, matrix_grid(of), { ...look, text: String });
    draw_map(el(`${side}-map`), of, memory_grid(of), { ...look, text: (_, r, c) => `${r},${c}` });
  }
  show_chosen();
}

function show_chosen() {
  const [row, column] = state.chosen, { left, right } = state.now;
  for (const [side, of] of [["left", left], ["right", right]]) {
    const fractal = of.is_nd ? 0 : Math.floor(of.element(row, column) / of.size);
    const walked = el("walk").checked ? fractal : null;
    draw_marks(el(`${side}-matrix`), { marked: [[row, column]], walked });
    draw_marks(el(`${side}-map`), { marked: [[row, column]] });
  }
  el("told").textContent =
    `(${row}, ${column})   ${told(left, row, column)}   |   ${told(right, row, column)}`;
  show_address();
}

function choose(row, column) {
  const { rows, columns } = state.now.left;
  if (row < 0 || column < 0 || row >= rows || column >= columns) return;
  if (row === state.chosen[0] && column === state.chosen[1]) return;
  state.chosen = [row, column];
  show_chosen();
}

/** From the chosen element to the one next to it on this map, over padding and the map's edges. */
function move(canvas, [down, across]) {
  const { of, grid } = canvas;
  let [y, x] = grid.place(of.element(...state.chosen));
  for (;;) {
    [y, x] = [y + down, x + across];
    const number = y < 0 || x < 0 || x >= grid.columns || y >= grid.rows ? null : grid.number(y, x);
    if (number === null) return;
    const { row, column, padding } = of.spot(number);
    if (!padding) return choose(row, column);
  }
}

function listen_to_side(canvas) {
  const point = (event) => {
    const number = number_at(canvas, event);
    if (number === null) return;
    const { row, column, padding } = canvas.of.spot(number);
    if (padding) {
      el("told").textContent =
        `${canvas.of.name}: element ${number}, byte ${canvas.of.byte(number)} is padding`;
    } else choose(row, column);
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (!arrow) return;
    event.preventDefault();
    move(canvas, arrow);
  });
}

// ---- burst by burst ----

function draw_transfer() {
  const nd = state.now.make("ND"), nz = state.now.make("FRACTAL_NZ");
  const look = { owner: nz, is_wide: false, text: (_, r, c) => `${r},${c}` };
  draw_map(el("nd-map"), nd, memory_grid(nd), look);
  draw_map(el("nz-map"), nz, memory_grid(nz), look);
}

function show_burst(step) {
  const nd = state.now.make("ND");
  const width = row_bytes(nd);
  const odd = "rows of an odd number of int4 do not begin with a byte: no copy takes them";
  const refusal = FACTS.device.nd2nz_refusal || (width === null ? odd : null);
  el("step-name").textContent =
    refusal === null ? `${step}, burst ${step + 1} of ${nd.rows}` : "";
  state.stepper.enable(refusal === null);
  if (refusal !== null) fill_table(el("costs"), [[[refusal]]]);
  else show_costs(nd, width, step);
  const row = Array.from({ length: nd.columns }, (_, column) => [step, column]);
  for (const id of ["nd-map", "nz-map"]) draw_marks(el(id), { marked: refusal === null ? row : [] });
}

function show_costs(nd, width, step) {
  const bursts = [];
  for (let row = 0; row < nd.rows; row++) bursts.push(burst(FACTS, row * width, width));
  const lines = [["bursts", "bytes", "moved", "lines touched", "blocks of 32 bytes written",
    "turning takes at least, from memory", "from L2"].map((text) => [text])];
  const device = FACTS.device;
  const parts = [
    [`burst ${step + 1}`, [bursts[step]]],
    ["so far", bursts.slice(0, step + 1)],
    ["all", bursts],
  ];
  for (const [name, some] of parts) {
    const sum = (key) => some.reduce((total, one) => total + one[key], 0);
    const pieces = sum("lines");
    const numbers = [sum("width"), sum("moved"), pieces, sum("blocks"),
      `${(pieces * device.gm_row_ns).toFixed(1)} ns`, `${(pieces * device.l2_row_ns).toFixed(1)} ns`];
    lines.push([[name], ...numbers.map((text) => [String(text)])]);
  }
  fill_table(el("costs"), lines);
}

// ---- the wrong layout ----

const SHOWN_SUMS = 16;

function show_wrong() {
  const { left, right, make } = state.now;
  const found = misread(left, right);
  const wrong = found.filter((got, place) => got !== place).length;
  el("wrong-intro").textContent =
    `A kernel takes a matrix that lies as ${left.name} for ${right.name}: ` +
    `${wrong} of ${found.length} elements are not the ones it wants.`;
  const canvas = el("wrong-map"), colors = palette();
  const name = (got) => (got < 0 ? "" : `${Math.floor(got / left.columns)},${got % left.columns}`);
  const letters = name(left.rows * left.columns - 1).length;
  const pen = prepare(canvas, matrix_grid(make("ND")), letters, el("numbers").checked);
  found.forEach((got, place) => {
    const color = got === place ? colors.right : got === -2 ? colors.beyond
      : got === -1 ? colors.padding : colors.wrong;
    const at = [Math.floor(place / left.columns), place % left.columns];
    fill_cell(pen, canvas.cell, at, color, colors.ink, canvas.has_text ? name(got) : "");
  });
  canvas.found = found;
  canvas.told = null;
  el("wrong-told").textContent = "";
  show_sums(found, left.columns);
}

function show_sums(found, columns) {
  const wanted = sums(found.map((_, place) => place), columns).slice(0, SHOWN_SUMS);
  const got = sums(found, columns).slice(0, SHOWN_SUMS);
  fill_table(el("sums"), [
    [["column"], ...wanted.map((_, column) => [String(column)])],
    [["right"], ...wanted.map((sum) => [String(sum)])],
    [["computed"], ...got.map((sum, column) => [
      sum === null ? "?" : String(sum), sum === wanted[column] ? "" : "wrong"])],
  ]);
}

function tell_wrong(row, column) {
  const canvas = el("wrong-map"), { rows, columns } = state.now.left;
  if (row < 0 || column < 0 || row >= rows || column >= columns) return;
  canvas.told = [row, column];
  const got = canvas.found[row * columns + column];
  const what = got === -2 ? "what lies beyond the tensor" : got === -1 ? "padding"
    : `(${Math.floor(got / columns)}, ${got % columns})`;
  el("wrong-told").textContent = `(${row}, ${column}) is wanted, and ${what} is there`;
}

function listen_to_wrong(canvas) {
  canvas.addEventListener("pointermove", (event) => tell_wrong(...hit(canvas, event)));
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (!arrow) return;
    event.preventDefault();
    const [row, column] = canvas.told ?? [-arrow[0], -arrow[1]];
    tell_wrong(row + arrow[0], column + arrow[1]);
  });
}

// ---- begin ----

function begin() {
  const { start, layouts, bits, most, device } = FACTS;
  for (const id of ["rows", "columns"]) {
    el(id).max = most;
    el(id).value = start[id];
  }
  options("dtype", Object.keys(bits), start.dtype);
  options("left", Object.keys(layouts), "ND");
  options("right", Object.keys(layouts), start.layout === "ND" ? "FRACTAL_NZ" : start.layout);
  read_address();
  window.addEventListener("hashchange", () => {
    read_address();
    show_all();
  });
  el("device").textContent = device.name;
  el("choice").addEventListener("input", show_all);
  el("choice").addEventListener("submit", (event) => event.preventDefault());
  for (const side of ["left", "right"]) {
    listen_to_side(el(`${side}-matrix`));
    listen_to_side(el(`${side}-map`));
  }
  state.stepper = stepper("", () => state.now.left.rows, show_burst);
  listen_to_wrong(el("wrong-map"));
  begin_mmad();
  const draw = () => { if (state.now) show_all(); show_mmad(); };
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  show_all();
  show_mmad();
}

begin();
