"use strict";
// Maps on canvases: a matrix with its coordinates, and memory with its bytes.

const FACTS = JSON.parse(document.getElementById("facts").textContent);
const el = (id) => document.getElementById(id);
/** Pixels: a letter of the font, the smallest and largest cell, and a line of numbers. */
const FONT = "11px ui-monospace, monospace", LETTER = 6.7, SMALLEST = 4, LARGEST = 34, LINE = 18;
/** Pixels that a map is high at most, unless its cells would be smaller than the second number. */
const HIGHEST = 590, CLEAR = 8;
/** Elements that memory is at most drawn wide, fractals beside each other. */
const WIDEST = 64;

/** *text* in the language of the page. */
const spelt = (text) => (typeof say === "function" ? say(text) : text);

/** The colours of the page in the reader's scheme. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["ink", "soft", "paper", "padding", "stripe", "mark", "marked", "right", "wrong", "beyond"];
  const is_dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  return {
    ...Object.fromEntries(names.map((name) => [name, named(name)])),
    shades: is_dark ? FACTS.dark_shades : FACTS.shades,
  };
}

// ---- where the cells of a map stand ----

/** The matrix up to whole fractals, row below row. */
function matrix_grid(of) {
  const [high, wide] = of.fractal, [rows, columns] = of.padded;
  return {
    rows, columns, high, wide,
    place: (number) => { const { row, column } = of.spot(number); return [row, column]; },
    number: (y, x) => (y < rows && x < columns ? of.element(y, x) : null),
    left: (y) => String(of.row + y), top: (x) => String(of.column + x),
    name: (first) => {
      const number = of.element(...first), lies = of.lies(number);
      return [`fractal ${lies}, byte ${of.byte(number)}`, `fractal ${lies}`, String(lies)];
    },
  };
}

/** Memory: fractals in the order in which they lie, some beside each other. */
function memory_grid(of) {
  const [high, wide] = of.is_nd ? [of.rows, of.columns] : of.lines;
  const fractals = of.count / (high * wide);
  const abreast = Math.max(1, Math.min(fractals, Math.floor(WIDEST / wide)));
  const rows = Math.ceil(fractals / abreast) * high;
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
  return {
    rows, columns: abreast * wide, high, wide, place, number,
    left: (y) => String(of.byte(number(y, 0))),
    top: (x) => `+${Math.floor(((x % wide) * of.bits) / 8)}`,
    name: (first, spot) => {
      const row = of.row + spot.row, column = of.column + spot.column;
      const ends = `rows ${row}–${row + of.fractal[0] - 1}, columns ${column}–${column + of.fractal[1] - 1}`;
      const byte = of.byte(number(...first));
      return [`byte ${byte}: ${ends}`, ends, `from ${row},${column}`, `${row},${column}`];
    },
  };
}

// ---- drawing ----

/** A pen for *grid*, whose longest text in a cell has *letters*; *is_wide* makes room for it. */
function prepare(canvas, grid, letters, is_wide) {
  const edge = Math.max(grid.left(0).length, grid.left(grid.rows - 1).length);
  const left = Math.ceil(edge * LETTER) + 8, top = LINE;
  const needed = Math.ceil(letters * LETTER) + 6;
  const room = canvas.parentElement.clientWidth - left - 2;
  const low = Math.max(CLEAR, Math.floor(HIGHEST / grid.rows));
  const fitting = Math.max(SMALLEST, Math.min(LARGEST, low, Math.floor(room / grid.columns)));
  const has_text = is_wide || fitting >= needed;
  const cell = is_wide
    ? { x: Math.max(fitting, needed), y: Math.max(Math.min(fitting, 24), LINE) }
    : { x: fitting, y: fitting };
  const scale = window.devicePixelRatio || 1;
  const width = left + grid.columns * cell.x + 1, height = top + grid.rows * cell.y + 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  Object.assign(canvas, { grid, cell, margin: { left, top }, has_text });
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = FONT;
  pen.textBaseline = "middle";
  draw_coordinates(canvas, pen);
  pen.translate(left, top);
  pen.textAlign = "center";
  return pen;
}

/** How many cells apart names may stand that take *pixels* each: 1, 2, 4, 8 and so on. */
function stride(pixels, cell) {
  let found = 1;
  while (found * cell < pixels) found *= 2;
  return found;
}

function draw_coordinates(canvas, pen) {
  const { grid, cell, margin } = canvas;
  pen.fillStyle = palette().soft;
  pen.textAlign = "right";
  for (let y = 0; y < grid.rows; y += stride(13, cell.y)) {
    pen.fillText(grid.left(y), margin.left - 4, margin.top + (y + 0.5) * cell.y);
  }
  pen.textAlign = "center";
  const longest = Math.max(grid.top(grid.columns - 1).length, grid.top(grid.wide - 1).length);
  for (let x = 0; x < grid.columns; x += stride((longest + 1) * LETTER, cell.x)) {
    pen.fillText(grid.top(x), margin.left + (x + 0.5) * cell.x, margin.top - 8);
  }
}

function fill_cell(pen, cell, [y, x], color, ink, text) {
  pen.fillStyle = color;
  pen.fillRect(x * cell.x, y * cell.y, cell.x - 0.5, cell.y - 0.5);
  if (!text) return;
  pen.fillStyle = ink;
  pen.fillText(text, (x + 0.5) * cell.x, (y + 0.5) * cell.y);
}

/** Draw *of* as *grid* has it, and keep that for draw_marks.
 *  owner: the matrix in the layout whose fractals give the colours;
 *  text: (number, row, column) -> what a cell shows; is_wide: see prepare. */
function draw_map(canvas, of, grid, { owner, text, is_wide }) {
  const colors = palette();
  const last = of.spot(of.element(of.rows - 1, of.columns - 1));
  const longest = [0, of.count - 1].map((number) => text(number, last.row, last.column).length);
  const pen = prepare(canvas, grid, Math.max(...longest), is_wide);
  for (let number = 0; number < of.count; number++) {
    const { row, column, padding } = of.spot(number);
    const at = grid.place(number);
    const owned = padding || owner.is_nd ? 0 : Math.floor(owner.element(row, column) / owner.size);
    const shade = padding ? colors.padding : colors.shades[owned % colors.shades.length];
    fill_cell(pen, canvas.cell, at, shade);
    const shown = canvas.has_text && !padding ? text(number, row, column) : "";
    fill_cell(pen, canvas.cell, at, row % 2 ? colors.stripe : "transparent", colors.ink, shown);
  }
  if (!of.is_nd) draw_frames(canvas, pen, of, colors.ink, 1, () => true);
  const kept = document.createElement("canvas");
  [kept.width, kept.height] = [canvas.width, canvas.height];
  kept.getContext("2d").drawImage(canvas, 0, 0);
  Object.assign(canvas, { of, kept, text });
}

/** Draw on the map as it was kept
 *  marked: elements that stand out, [row, column] each; ringed: the number of a fractal that does;
 *  walked: that of a fractal whose elements the walk goes through; null for none. */
function draw_marks(canvas, { marked, ringed = null, walked = null }) {
  const { of, grid, cell, margin } = canvas, colors = palette();
  const scale = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.drawImage(canvas.kept, 0, 0);
  pen.setTransform(scale, 0, 0, scale, margin.left * scale, margin.top * scale);
  for (const [row, column] of marked) {
    const number = of.element(row, column);
    const text = canvas.has_text ? canvas.text(number, row, column) : "";
    fill_cell(pen, cell, grid.place(number), colors.marked, colors.ink, text);
  }
  if (ringed !== null) draw_frames(canvas, pen, of, colors.mark, 3, (number) => number === ringed);
  if (walked !== null) draw_walk(canvas, pen, of, walked, colors);
  if (!of.is_nd && !canvas.has_text) draw_names(canvas, pen, of, colors);
}

/** The places of fractals: [number, left, top, right, bottom] in pixels, and its first element. */
function fractals_of(canvas, of) {
  const { grid, cell } = canvas, found = [];
  for (let number = 0; number * of.size < of.count; number++) {
    const [y, x] = grid.place(number * of.size);
    const { row, column } = of.spot(number * of.size);
    const box = [x * cell.x, y * cell.y, grid.wide * cell.x, grid.high * cell.y];
    found.push({ number, box, row, column, first: [y, x] });
  }
  return found;
}

function draw_frames(canvas, pen, of, color, width, is_framed) {
  pen.strokeStyle = color;
  pen.lineWidth = width;
  for (const { number, box } of fractals_of(canvas, of)) {
    if (is_framed(number)) pen.strokeRect(...box);
  }
}

/** A line through all elements of fractal *walked*, and one from fractal to fractal. Numbers in the
 *  cells tell the order of elements themselves, and are not crossed out. */
function draw_walk(canvas, pen, of, walked, colors) {
  const { grid, cell } = canvas;
  const line = (points, width, opacity) => {
    pen.strokeStyle = colors.ink;
    pen.lineWidth = width;
    pen.globalAlpha = opacity;
    pen.beginPath();
    points.forEach(([x, y], place) => (place ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
    pen.globalAlpha = 1;
  };
  const size = of.is_nd ? of.count : of.size;
  const run = of.is_nd ? of.columns : of.lines[1];
  const middle = (number) => {
    const [y, x] = grid.place(number);
    return [(x + 0.5) * cell.x, (y + 0.5) * cell.y];
  };
  const inner_end = canvas.has_text ? 0 : (walked + 1) * size;
  for (let first = walked * size; first < inner_end; first += run) {
    const end = middle(first + run - 1);
    line([middle(first), end], 1, 0.6);
    // The way to the next row or column is fainter.
    if (first + run < inner_end) line([end, middle(first + run)], 1, 0.18);
  }
  if (of.is_nd) return;
  const centres = fractals_of(canvas, of).map(({ box: [x, y, w, h] }) => [x + w / 2, y + h / 2]);
  line(centres, 2, canvas.has_text ? 0.3 : 0.7);
  centres.slice(1).forEach(([x, y], place) => {
    // An arrowhead in the middle of each step, clear of the names.
    const [from_x, from_y] = centres[place];
    const [at_x, at_y] = [(x + from_x) / 2, (y + from_y) / 2];
    const angle = Math.atan2(y - from_y, x - from_x);
    const wing = (turn) => [at_x - 9 * Math.cos(angle + turn), at_y - 9 * Math.sin(angle + turn)];
    line([wing(0.45), [at_x, at_y], wing(-0.45)], 2, 1);
  });
}

/** A name in the middle of each fractal: the longest one that fits, none where none does. */
function draw_names(canvas, pen, of, colors) {
  for (const { box: [x, y, w, h], row, column, first } of fractals_of(canvas, of)) {
    const fits = (name) => name.length * LETTER + 10 <= w && h >= 16;
    const name = canvas.grid.name(first, { row, column }).map(spelt).find(fits);
    if (name === undefined) continue;
    const wide = name.length * LETTER + 8;
    pen.fillStyle = colors.paper;
    pen.fillRect(x + (w - wide) / 2, y + h / 2 - 8, wide, 16);
    pen.fillStyle = colors.ink;
    pen.fillText(name, x + w / 2, y + h / 2);
  }
}

/** The row and column of cells of the map that the pointer is at. */
function hit(canvas, event) {
  const box = canvas.getBoundingClientRect(), { cell, margin } = canvas;
  return [
    Math.floor((event.clientY - box.top - margin.top) / cell.y),
    Math.floor((event.clientX - box.left - margin.left) / cell.x),
  ];
}

/** The number of the element at a hit, or null beside the map. */
function number_at(canvas, event) {
  const [y, x] = hit(canvas, event);
  return y < 0 || x < 0 ? null : canvas.grid.number(y, x);
}

// ---- what several parts of the page use ----

/** Rows and columns that a key goes. */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The lines of a table; each cell is [text, class]. */
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

/** Steps that buttons and a slider go through; the parts of the page have an id that begins alike.
 *  *count* says how many there are, *show* shows one. */
function stepper(prefix, count, show) {
  const part = (name) => el(prefix + name);
  let step = 0, timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    part("play").textContent = "play";
  };
  const go = (wanted) => {
    step = Math.max(0, Math.min(wanted, count() - 1));
    part("step").max = count() - 1;
    part("step").value = step;
    show(step);
  };
  part("back").addEventListener("click", () => go(step - 1));
  part("next").addEventListener("click", () => go(step + 1));
  part("step").addEventListener("input", () => go(Number(part("step").value)));
  part("play").addEventListener("click", () => {
    if (timer !== null) return stop();
    if (step === count() - 1) go(0);
    part("play").textContent = "stop";
    timer = setInterval(() => {
      go(step + 1);
      if (step === count() - 1) stop();
    }, 400);
  });
  const enable = (is_possible) => {
    if (!is_possible) stop();
    for (const name of ["back", "next", "play", "step"]) part(name).disabled = !is_possible;
  };
  return { go, stop, enable, again: () => go(step) };
}

/** A whole number of a field, or an Error that says what it must be. */
function whole(id, name, most) {
  const size = Number(el(id).value);
  if (!Number.isInteger(size) || size < 1 || size > most) {
    throw new Error(`${name} must be a whole number from 1 to ${most}`);
  }
  return size;
}

function options(id, names, first) {
  el(id).replaceChildren(...names.map((name) => {
    const option = document.createElement("option");
    option.value = option.textContent = name;
    option.selected = name === first;
    return option;
  }));
}
