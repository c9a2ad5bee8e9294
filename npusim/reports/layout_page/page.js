"use strict";
// What is seen and touched; where elements lie is up to map.js.

const FACTS = JSON.parse(document.getElementById("facts").textContent);
const INK = "#222", PADDING = "#ececec", MARK = "#d55e00", MARKED = "#f2a57a";
const RIGHT = "#c9ebdd", WRONG = "#f6c7b6", BEYOND = "#b9a3c6";
const el = (id) => document.getElementById(id);
const state = { chosen: [0, 0], step: 0, timer: null };

// ---- drawing ----

/** Cells of a side of memory: fractals in their order, some beside each other. */
function memory_grid(of) {
  const [high, wide] = of.is_nd ? [of.rows, of.columns] : of.lines;
  const fractals = of.count / (high * wide);
  const abreast = Math.max(1, Math.min(fractals, Math.floor(64 / wide)));
  const place = (number) => {
    const fractal = Math.floor(number / (high * wide)), inside = number % (high * wide);
    return [
      Math.floor(fractal / abreast) * high + Math.floor(inside / wide),
      (fractal % abreast) * wide + (inside % wide),
    ];
  };
  const number = (y, x) => {
    const fractal = Math.floor(y / high) * abreast + Math.floor(x / wide);
    const found = fractal * high * wide + (y % high) * wide + (x % wide);
    return x < abreast * wide && found < of.count ? found : null;
  };
  const rows = Math.ceil(fractals / abreast) * high;
  return { rows, columns: abreast * wide, high, wide, place, number };
}

function prepare(canvas, rows, columns) {
  const room = Math.max(240, canvas.parentElement.clientWidth - 2);
  const cell = Math.max(5, Math.min(34, Math.floor(room / columns)));
  const scale = window.devicePixelRatio || 1;
  canvas.width = columns * cell * scale;
  canvas.height = rows * cell * scale;
  canvas.style.width = `${columns * cell}px`;
  canvas.style.height = `${rows * cell}px`;
  canvas.cell = cell;
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.font = `${Math.min(11, Math.floor(cell / 2.9))}px ui-monospace, monospace`;
  return pen;
}

function square(pen, cell, y, x, color, text, marked) {
  pen.fillStyle = marked ? MARKED : color;
  pen.fillRect(x * cell, y * cell, cell - 0.5, cell - 0.5);
  if (text && cell >= 22) {
    pen.fillStyle = INK;
    pen.fillText(text, (x + 0.5) * cell, (y + 0.5) * cell);
  }
  if (marked) {
    pen.strokeStyle = MARK;
    pen.lineWidth = 1;
    pen.strokeRect(x * cell + 0.5, y * cell + 0.5, cell - 1.5, cell - 1.5);
  }
}

/** A side of memory; *marked* says which elements stand out. */
function draw_memory(canvas, of, marked) {
  const grid = memory_grid(of);
  const pen = prepare(canvas, grid.rows, grid.columns);
  for (let number = 0; number < of.count; number++) {
    const { row, column, padding } = of.spot(number);
    const [y, x] = grid.place(number);
    const shade = FACTS.shades[of.is_nd ? 0 : Math.floor(number / of.size) % FACTS.shades.length];
    const name = padding ? "" : `${row},${column}`;
    const stands_out = marked(row, column, number, padding);
    square(pen, canvas.cell, y, x, padding ? PADDING : shade, name, stands_out);
  }
  if (!of.is_nd) frame(pen, canvas.cell, grid);
  canvas.grid = grid;
  canvas.of = of;
}

function frame(pen, cell, grid) {
  pen.strokeStyle = INK;
  pen.lineWidth = 1;
  for (let y = 0; y < grid.rows; y += grid.high) {
    for (let x = 0; x < grid.columns; x += grid.wide) {
      if (grid.number(y, x) !== null) {
        pen.strokeRect(x * cell, y * cell, grid.wide * cell - 0.5, grid.high * cell - 0.5);
      }
    }
  }
}

function hit(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const y = Math.floor((event.clientY - box.top) / canvas.cell);
  const x = Math.floor((event.clientX - box.left) / canvas.cell);
  return [y, x];
}

// ---- what is chosen ----

function chosen() {
  const whole = (id) => {
    const size = Number(el(id).value);
    if (!Number.isInteger(size) || size < 1 || size > FACTS.most) {
      throw new Error(`${id} must be a whole number from 1 to ${FACTS.most}`);
    }
    return size;
  };
  const make = (name) => placement(FACTS, whole("rows"), whole("columns"), el("dtype").value, name);
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
  state.step = Math.min(state.step, rows - 1);
  show_sides();
  show_transfer();
  show_wrong();
}

// ---- both sides ----

function told(of, row, column) {
  const number = of.element(row, column);
  const bit = (number * of.bits) % 8;
  const fractal = of.is_nd ? "" : `, fractal ${Math.floor(number / of.size)}`;
  const low = of.bits < 8 ? ` bit ${bit}` : "";
  return `${of.name}: element ${number}, byte ${of.byte(number)}${low}${fractal}`;
}

function show_sides() {
  const [row, column] = state.chosen;
  const { left, right } = state.now;
  for (const [side, of] of [["left", left], ["right", right]]) {
    const padding = of.nbytes - Math.ceil((of.rows * of.columns * of.bits) / 8);
    const filled = padding ? `, ${padding} of them padding` : "";
    el(`${side}-caption`).textContent =
      `${of.rows} x ${of.columns} ${of.dtype} as ${of.name}, ${of.nbytes} bytes${filled}`;
    draw_memory(el(`${side}-map`), of, (r, c) => r === row && c === column);
  }
  el("told").textContent =
    `(${row}, ${column})   ${told(left, row, column)}   |   ${told(right, row, column)}`;
}

function choose(row, column) {
  const { rows, columns } = state.now.left;
  if (row < 0 || column < 0 || row >= rows || column >= columns) return;
  if (row === state.chosen[0] && column === state.chosen[1]) return;
  state.chosen = [row, column];
  show_sides();
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function listen_to_side(canvas) {
  const point = (event) => {
    const number = canvas.grid.number(...hit(canvas, event));
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
    choose(state.chosen[0] + arrow[0], state.chosen[1] + arrow[1]);
  });
}

// ---- burst by burst ----

function fill_table(table, lines) {
  table.replaceChildren(...lines.map((line, place) => {
    const row = document.createElement("tr");
    line.forEach(([text, kind], column) => {
      const cell = document.createElement(place === 0 || column === 0 ? "th" : "td");
      cell.textContent = text;
      if (kind) cell.className = kind;
      row.append(cell);
    });
    return row;
  }));
}

function show_transfer() {
  const nd = state.now.make("ND");
  const width = row_bytes(nd);
  const odd = "rows of an odd number of int4 do not begin with a byte: no copy takes them";
  const refusal = FACTS.device.nd2nz_refusal || (width === null ? odd : null);
  el("step").max = nd.rows - 1;
  el("step").value = state.step;
  el("step-name").textContent =
    refusal === null ? `${state.step}, burst ${state.step + 1} of ${nd.rows}` : "";
  for (const id of ["back", "next", "play", "step"]) el(id).disabled = refusal !== null;
  if (refusal !== null) {
    stop();
    fill_table(el("costs"), [[[refusal]]]);
  } else show_costs(nd, width);
  const done = refusal === null ? state.step : -1;
  draw_memory(el("nd-map"), nd, (row) => row === done);
  const nz = state.now.make("FRACTAL_NZ");
  draw_memory(el("nz-map"), nz, (row, column, number, padding) => row === done && !padding);
}

function show_costs(nd, width) {
  const bursts = [];
  for (let row = 0; row < nd.rows; row++) bursts.push(burst(FACTS, row * width, width));
  const lines = [["", "bytes", "moved", "lines touched", "blocks of 32 bytes written",
    "turning takes at least, from memory", "from L2"].map((text) => [text])];
  const device = FACTS.device;
  const parts = [
    [`burst ${state.step + 1}`, [bursts[state.step]]],
    ["so far", bursts.slice(0, state.step + 1)],
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

function step_to(row) {
  state.step = Math.max(0, Math.min(row, state.now.left.rows - 1));
  show_transfer();
}

function stop() {
  clearInterval(state.timer);
  state.timer = null;
  el("play").textContent = "play";
}

function play() {
  if (state.timer !== null) return stop();
  if (state.step === state.now.left.rows - 1) step_to(0);
  el("play").textContent = "stop";
  state.timer = setInterval(() => {
    step_to(state.step + 1);
    if (state.step === state.now.left.rows - 1) stop();
  }, 400);
}

// ---- the wrong layout ----

const SHOWN_SUMS = 16;

function show_wrong() {
  const { left, right } = state.now;
  const found = misread(left, right);
  const wrong = found.filter((got, place) => got !== place).length;
  el("wrong-intro").textContent =
    `A kernel takes a matrix that lies as ${left.name} for ${right.name}: ` +
    `${wrong} of ${found.length} elements are not the ones it wants.`;
  const canvas = el("wrong-map");
  const pen = prepare(canvas, left.rows, left.columns);
  found.forEach((got, place) => {
    const name = got < 0 ? "" : `${Math.floor(got / left.columns)},${got % left.columns}`;
    const color = got === place ? RIGHT : got === -2 ? BEYOND : got === -1 ? PADDING : WRONG;
    const y = Math.floor(place / left.columns), x = place % left.columns;
    square(pen, canvas.cell, y, x, color, name, false);
  });
  canvas.found = found;
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

function point_at_wrong(event) {
  const canvas = el("wrong-map"), { rows, columns } = state.now.left;
  const [row, column] = hit(canvas, event);
  if (row < 0 || column < 0 || row >= rows || column >= columns) return;
  const got = canvas.found[row * columns + column];
  const what = got === -2 ? "what lies beyond the tensor" : got === -1 ? "padding"
    : `(${Math.floor(got / columns)}, ${got % columns})`;
  el("wrong-told").textContent = `(${row}, ${column}) is wanted, and ${what} is there`;
}

// ---- begin ----

function options(id, names, first) {
  el(id).replaceChildren(...names.map((name) => {
    const option = document.createElement("option");
    option.value = option.textContent = name;
    option.selected = name === first;
    return option;
  }));
}

function begin() {
  const { start, layouts, bits, most, device } = FACTS;
  for (const id of ["rows", "columns"]) {
    el(id).max = most;
    el(id).value = start[id];
  }
  options("dtype", Object.keys(bits), start.dtype);
  options("left", Object.keys(layouts), "ND");
  options("right", Object.keys(layouts), start.layout === "ND" ? "FRACTAL_NZ" : start.layout);
  el("device").textContent = device.name;
  el("choice").addEventListener("input", show_all);
  el("choice").addEventListener("submit", (event) => event.preventDefault());
  listen_to_side(el("left-map"));
  listen_to_side(el("right-map"));
  el("back").addEventListener("click", () => step_to(state.step - 1));
  el("next").addEventListener("click", () => step_to(state.step + 1));
  el("play").addEventListener("click", play);
  el("step").addEventListener("input", () => step_to(Number(el("step").value)));
  el("wrong-map").addEventListener("pointermove", point_at_wrong);
  window.addEventListener("resize", () => state.now && show_all());
  show_all();
}

begin();
