"use strict";
// What is seen and touched; where elements lie is up to map.js.

const state = { chosen: [0, 0], now: null };

// ---- what is chosen ----

function chosen() {
  const rows = whole("rows", "rows", FACTS.most), columns = whole("columns", "columns", FACTS.most);
  const all = (name) => placement(FACTS, rows, columns, el("dtype").value, name);
  const names = [el("left").value, el("right").value];
  const seen = window_of(names.map(all), rows, columns);
  const make = (name) => windowed(FACTS, all(name), seen);
  const [left, right] = names.map(make);
  return { left, right, make, seen, rows, columns };
}

/** The part of a large matrix that is drawn: it begins with a fractal of every layout. */
function window_of(layouts, rows, columns) {
  const begin = (id, extent, side) => {
    const units = layouts.map((of) => of.fractal[side]).filter((unit) => unit < extent && FACTS.window % unit === 0);
    const unit = Math.max(1, ...units), wanted = Number(el(id).value) || 0;
    const last = Math.ceil(Math.max(0, extent - FACTS.window) / unit) * unit;
    el(id).max = last;
    el(id).step = unit;
    return Math.min(Math.floor(Math.max(0, wanted) / unit) * unit, last);
  };
  const row = begin("row", rows, 0), column = begin("column", columns, 1);
  el("row").value = row;
  el("column").value = column;
  for (const [id, extent] of [["row", rows], ["column", columns]]) el(id).parentElement.hidden = extent <= FACTS.window;
  return { row, column, rows: Math.min(FACTS.window, rows - row), columns: Math.min(FACTS.window, columns - column) };
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
  const { row, column, rows, columns } = now.seen;
  state.now = now;
  const within = (at, first, count) => Math.min(Math.max(at, first), first + count - 1);
  state.chosen = [within(state.chosen[0], row, rows), within(state.chosen[1], column, columns)];
  show_sides();
  draw_transfer();
  state.stepper.again();
  show_wrong();
}

// ---- the address ----

const CHOICE = ["rows", "columns", "dtype", "left", "right", "row", "column"];

/** What is chosen stands behind the address, so that a link shows the same. */
function show_address() {
  const words = new URLSearchParams(CHOICE.map((id) => [id, el(id).value]).filter(([, value]) => value !== "0"));
  words.set("at", state.chosen.join());
  const language = told().get("lang");
  if (language) words.set("lang", language);
  history.replaceState(null, "", `#${`${words}`.replaceAll("%2C", ",")}`);
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
  if (at.length !== 2 || !at.every((each) => Number.isInteger(each) && each >= 0)) return;
  state.chosen = at;
  // An element that is asked for is in sight.
  for (const [id, place] of [["row", at[0]], ["column", at[1]]])
    if (!words.has(id)) el(id).value = Math.max(0, place - FACTS.window / 2);
}

// ---- both layouts ----

function described({ whole }, row, column) {
  const number = whole.element(row, column);
  const bit = (number * whole.bits) % 8;
  const fractal = whole.is_nd ? "" : `, fractal ${whole.lies(number)}`;
  const low = whole.bits < 8 ? ` bit ${bit}` : "";
  return `${whole.name}: element ${number}, byte ${whole.byte(number)}${low}${fractal}`;
}

function show_sides() {
  const { left, right } = state.now;
  // Both maps of both layouts have the colours of one of them.
  const owner = right.is_nd ? left : right;
  el("owner").textContent = owner.is_nd ? "Neither layout has fractals."
    : `Colours are the fractals of ${owner.name}, in the order in which they lie in memory.`;
  const { row, column, rows, columns } = state.now.seen;
  el("seen").textContent = rows === state.now.rows && columns === state.now.columns ? ""
    : `rows ${row} to ${row + rows - 1} of ${state.now.rows}, columns ${column} to ${column + columns - 1} of ${state.now.columns}`;
  const look = { owner, is_wide: el("numbers").checked };
  for (const [side, of] of [["left", left], ["right", right]]) {
    const { whole } = of, padding = whole.nbytes - Math.ceil((whole.rows * whole.columns * whole.bits) / 8);
    const filled = padding ? `, ${padding} of them padding` : "";
    el(`${side}-caption`).textContent =
      `${whole.rows} x ${whole.columns} ${whole.dtype} as ${whole.name}, ${whole.nbytes} bytes${filled}`;
    draw_map(el(`${side}-matrix`), of, matrix_grid(of), { ...look, text: (number) => String(of.at(number)) });
    draw_map(el(`${side}-map`), of, memory_grid(of), { ...look, text: (_, r, c) => `${row + r},${column + c}` });
  }
  show_chosen();
}

function show_chosen() {
  const [row, column] = state.chosen, { left, right, seen } = state.now;
  const marked = [[row - seen.row, column - seen.column]];
  for (const [side, of] of [["left", left], ["right", right]]) {
    const fractal = of.is_nd ? 0 : Math.floor(of.element(...marked[0]) / of.size);
    const walked = el("walk").checked ? fractal : null;
    draw_marks(el(`${side}-matrix`), { marked, walked });
    draw_marks(el(`${side}-map`), { marked });
  }
  el("told").textContent =
    `(${row}, ${column})   ${described(left, row, column)}   |   ${described(right, row, column)}`;
  show_address();
}

/** Choose an element of the window. */
function choose(row, column) {
  const { left, seen } = state.now;
  if (row < 0 || column < 0 || row >= left.rows || column >= left.columns) return;
  const at = [seen.row + row, seen.column + column];
  if (at.join() === state.chosen.join()) return;
  state.chosen = at;
  show_chosen();
}

/** From the chosen element to the one next to it on this map, over padding and the map's edges. */
function move(canvas, [down, across]) {
  const { of, grid } = canvas;
  const { seen } = state.now;
  let [y, x] = grid.place(of.element(state.chosen[0] - seen.row, state.chosen[1] - seen.column));
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
        `${canvas.of.name}: element ${canvas.of.at(number)}, byte ${canvas.of.byte(number)} is padding`;
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
  const look = { owner: nz, is_wide: false, text: (_, r, c) => `${nd.row + r},${nd.column + c}` };
  draw_map(el("nd-map"), nd, memory_grid(nd), look);
  draw_map(el("nz-map"), nz, memory_grid(nz), look);
}

function show_burst(step) {
  const nd = state.now.make("ND");
  const width = row_bytes(nd.whole);
  const odd = "rows of an odd number of int4 do not begin with a byte: no copy takes them";
  const refusal = FACTS.device.nd2nz_refusal || (width === null ? odd : null);
  el("step-name").textContent =
    refusal === null ? `${nd.row + step}, burst ${nd.row + step + 1} of ${nd.whole.rows}` : "";
  state.stepper.enable(refusal === null);
  if (refusal !== null) fill_table(el("costs"), [[[refusal]]]);
  else show_costs(nd, width, step);
  const row = Array.from({ length: nd.columns }, (_, column) => [step, column]);
  for (const id of ["nd-map", "nz-map"]) draw_marks(el(id), { marked: refusal === null ? row : [] });
}

function show_costs(nd, width, step) {
  const bursts = [];
  const now = nd.row + step;
  for (let row = 0; row < nd.whole.rows; row++) bursts.push(burst(FACTS, row * width, width));
  const lines = [["bursts", "bytes", "moved", "lines touched", "blocks of 32 bytes written",
    "turning takes at least, from memory", "from L2"].map((text) => [text])];
  const device = FACTS.device;
  const parts = [
    [`burst ${now + 1}`, [bursts[now]]],
    ["so far", bursts.slice(0, now + 1)],
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
  const { left, right, make, seen, rows, columns } = state.now;
  const found = misread(left.whole, right.whole, seen);
  const wanted = (place) => (seen.row + Math.floor(place / left.columns)) * columns + seen.column + (place % left.columns);
  const wrong = found.filter((got, place) => got !== wanted(place)).length;
  el("wrong-intro").textContent =
    `A kernel takes a matrix that lies as ${left.name} for ${right.name}: ` +
    `${wrong} of ${found.length} elements${seen.rows * seen.columns < rows * columns ? " here" : ""} are not the ones it wants.`;
  const canvas = el("wrong-map"), colors = palette();
  const name = (got) => (got < 0 ? "" : `${Math.floor(got / columns)},${got % columns}`);
  const letters = name(rows * columns - 1).length;
  const pen = prepare(canvas, matrix_grid(make("ND")), letters, el("numbers").checked);
  found.forEach((got, place) => {
    const color = got === wanted(place) ? colors.right : got === -2 ? colors.beyond
      : got === -1 ? colors.padding : colors.wrong;
    const at = [Math.floor(place / left.columns), place % left.columns];
    fill_cell(pen, canvas.cell, at, color, colors.ink, canvas.has_text ? name(got) : "");
  });
  canvas.found = found;
  canvas.told = null;
  el("wrong-told").textContent = "";
  show_sums(left.whole, right.whole, { ...seen, row: 0, rows, columns: Math.min(SHOWN_SUMS, seen.columns) });
}

/** The sums of all rows of some columns. */
function show_sums(written, read, some) {
  const wanted = sums(misread(read, read, some), some.columns), got = sums(misread(written, read, some), some.columns);
  fill_table(el("sums"), [
    [["column"], ...wanted.map((_, column) => [String(some.column + column)])],
    [["right"], ...wanted.map((sum) => [String(sum)])],
    [["computed"], ...got.map((sum, column) => [
      sum === null ? "?" : String(sum), sum === wanted[column] ? "" : "wrong"])],
  ]);
}

function tell_wrong(row, column) {
  const canvas = el("wrong-map"), { left, seen, columns } = state.now;
  if (row < 0 || column < 0 || row >= left.rows || column >= left.columns) return;
  canvas.told = [row, column];
  const got = canvas.found[row * left.columns + column];
  const what = got === -2 ? "what lies beyond the tensor" : got === -1 ? "padding"
    : `(${Math.floor(got / columns)}, ${got % columns})`;
  el("wrong-told").textContent = `(${seen.row + row}, ${seen.column + column}) is wanted, and ${what} is there`;
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
  for (const id of ["row", "column"]) el(id).value = 0;
  options("dtype", Object.keys(bits), start.dtype);
  options("left", Object.keys(layouts), "ND");
  options("right", Object.keys(layouts), start.layout === "ND" ? "FRACTAL_NZ" : start.layout);
  read_address();
  window.addEventListener("hashchange", () => {
    read_address();
    show_all();
  });
  el("device").textContent = `Costs are those of ${device.name}.`;
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
  window.addEventListener("language", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  show_all();
  show_mmad();
}

begin();
