// @ts-check
// The time traveller: a slider over readable epochs, the rows of one, and what it changed.
// The kernel owns the model (`steps`, `page`); we ask for an epoch by message and are answered by a
// page. One question is under way at a time: a slider that is dragged asks for where it is then.

/** @typedef {[number, number, number]} Step first, last, distance */
/**
 * @typedef {object} Page
 * @property {string=} name the stage, and before it the branch that it is of
 * @property {number} epoch
 * @property {number} asked
 * @property {number | null} before
 * @property {string=} label
 * @property {string=} time
 * @property {string=} error
 * @property {string=} stale why there are no newer rows
 * @property {{name: string, type: string, right: boolean}[]} columns
 * @property {(string | null)[][]} rows
 * @property {string=} ordered what they are ordered by
 * @property {boolean} more
 * @property {string[]} fresh
 * @property {string[]=} by the columns that say which row became which
 * @property {Change[]} changes
 * @property {boolean} changes_more
 * @property {number} added
 * @property {number} removed
 * @property {Page[]=} beside the same of other stages under the slider
 */

/** @typedef {string | null} Item */
/** @typedef {Item | [Item, Item]} Cell what it is, or what it was and what it is */
/** @typedef {[number, Cell[], number?]} Change how often (0: a row changed, the third says how often), cells */

/** So many characters of a value stay in one line. */
const SHORT = 24;

/** How fast it plays: epochs a second, or all of them in so many seconds. */
const SPEEDS = ["1 a second", "2 a second", "5 a second", "10 a second", "all in 20 s"];

/**
 * The pause between two steps in ms, and how many epochs a step is; never more than 10 a second.
 * @param {string} speed @param {number} total
 */
export function pace(speed, total) {
  const [first, ...rest] = speed.split(" ");
  if (first !== "all") return { pause: 1000 / Number(first), stride: 1 };
  const seconds = Number(rest[1]);
  const stride = Math.max(1, Math.ceil(total / (10 * seconds)));
  return { pause: Math.max(100, Math.min(1000, (1000 * seconds * stride) / Math.max(1, total))), stride };
}

/** @param {Step} step */
const sizeOf = ([first, last, distance]) => Math.floor((last - first) / distance) + 1;

/** How many epochs are readable. @param {Step[]} steps */
export function count(steps) {
  return steps.reduce((sum, step) => sum + sizeOf(step), 0);
}

/** The epoch at a position 0 .. count-1, the last one beyond it. @param {Step[]} steps @param {number} position */
export function epochAt(steps, position) {
  let left = Math.max(0, position);
  for (const step of steps) {
    if (left < sizeOf(step)) return step[0] + left * step[2];
    left -= sizeOf(step);
  }
  return steps.length ? steps[steps.length - 1][1] : 0;
}

/** The position of the last epoch that is not after `epoch`. @param {Step[]} steps @param {number} epoch */
export function positionOf(steps, epoch) {
  let position = 0;
  for (const step of steps) {
    if (epoch < step[0]) break;
    if (epoch <= step[1]) return position + Math.floor((epoch - step[0]) / step[2]);
    position += sizeOf(step);
  }
  return Math.max(0, position - 1);
}

/** What a screen reader says about a page. @param {Page} page @param {Step[]} steps */
export function status(page, steps) {
  if (page.error) return `epoch ${page.epoch}: ${page.error}`;
  const latest = epochAt(steps, count(steps) - 1);
  const newest = page.stale ? ", its last" : ", the latest";
  const place = page.epoch >= latest ? newest : ` of ${latest}`;
  const parts = [`epoch ${page.epoch}${place}`];
  if (page.label) parts.push(page.label);
  if (page.time) parts.push(page.time);
  const first = page.before === null ? page.epoch : page.before + 1;
  if (first < page.epoch) parts.push(`epochs ${first} to ${page.epoch} are retained as one`);
  const changed = page.changes_more ? 0 : page.changes.reduce((sum, [n, , copies]) => sum + (n === 0 ? copies ?? 1 : 0), 0);
  if (changed) parts.push(`${plural(changed, "row")} changed`);
  parts.push(`${plural(page.added - changed, "row")} added, ${(page.removed - changed).toLocaleString("en")} removed`);
  return parts.join(" · ");
}

/** The sign and number of copies of a change. @param {number} diff @param {number=} changed */
export function sign(diff, changed = 1) {
  const many = diff === 0 ? changed : Math.abs(diff);
  const copies = many === 1 ? "" : ` ×${many.toLocaleString("en")}`;
  return (diff > 0 ? "+" : diff < 0 ? "−" : "→") + copies;
}

/** Whether a cell is a word of one line: a date is not to be broken at its dashes. @param {Cell} item */
export const isShort = (item) => [item].flat().join(" → ").length <= SHORT;

/** @param {HTMLElement} cell @param {Item} item */
function put(cell, item) {
  if (item === null) cell.classList.add("nosync-null");
  cell.textContent = item ?? "null";
  return cell;
}

/** Fills a cell; one that changed reads `was → is`. @param {HTMLElement} cell @param {Cell} item */
function fill(cell, item) {
  if (!Array.isArray(item)) return put(cell, item);
  cell.classList.add("nosync-changed");
  cell.append(put(make("del"), item[0]), " → ", put(make("ins"), item[1]));
  return cell;
}

/**
 * A table whose first column holds signs.
 * @param {string} caption
 * @param {Page["columns"]} columns
 * @param {{mark: string, kind: string, row: Cell[]}[]} rows
 */
function table(caption, columns, rows) {
  const node = make("table");
  node.append(make("caption", {}, caption));
  const head = make("tr");
  head.append(make("td", { class: "nosync-mark" }));
  for (const column of columns) {
    const side = column.right ? "nosync-right" : "nosync-left";
    head.append(make("th", { scope: "col", title: column.type, class: side }, column.name));
  }
  const top = make("thead");
  top.append(head);
  const body = make("tbody");
  for (const { mark, kind, row } of rows) {
    const line = make("tr", { class: kind });
    line.append(make("td", { class: "nosync-mark" }, mark));
    row.forEach((item, i) => {
      const side = columns[i].right ? "nosync-right" : "nosync-left";
      line.append(fill(make("td", { class: isShort(item) ? `${side} nosync-short` : side }), item));
    });
    body.append(line);
  }
  node.append(top, body);
  return node;
}

/** The rows of a page. @param {Page} page */
function rowsTable(page) {
  const rows = page.rows.map((row, i) => ({
    mark: page.fresh[i],
    kind: page.fresh[i] === "+" ? "nosync-came" : page.fresh[i] ? "nosync-became" : "",
    row,
  }));
  const count = plural(page.rows.length, "row");
  return table(`${page.more ? "the first " : ""}${count}${page.ordered ?? ""}`, page.columns, rows);
}

/** The changes of a page. @param {Page} page */
function changesTable(page) {
  const rows = page.changes.map(([diff, row, changed]) => ({
    mark: sign(diff, changed),
    kind: diff > 0 ? "nosync-came" : diff < 0 ? "nosync-went" : "",
    row,
  }));
  const since = page.before === null ? "from the beginning" : `since epoch ${page.before}`;
  if (!rows.length) return make("p", { class: "nosync-still" }, `no changes ${since}`);
  const more = page.changes_more ? ", the first of them" : "";
  const by = page.by?.length ? `, by ${page.by.join(", ")}` : "";
  return table(`changed ${since}${by}${more}`, page.columns, rows);
}

/** Room for the rows of a page and for its changes: each scrolls alone, so neither hides the other. */
function rooms() {
  const node = make("div", { class: "nosync-tables" });
  for (const what of ["rows", "changes"]) {
    node.append(make("div", { tabindex: "0", role: "region", "aria-label": what }));
  }
  return node;
}

/** Puts what a page shows into its rooms, or why there is nothing. @param {HTMLElement} node @param {Page} page */
function furnish(node, page) {
  const [rows, changes] = /** @type {Iterable<HTMLElement>} */ (node.children);
  const mark = page.stale ? [make("div", { role: "status", class: "nosync-warning" }, page.stale)] : [];
  rows.replaceChildren(...mark, page.error ? make("p", { class: "nosync-error" }, page.error) : rowsTable(page));
  changes.hidden = Boolean(page.error);
  changes.replaceChildren(...(page.error ? [] : [changesTable(page)]));
  return node;
}

/** Another stage under the slider. @param {Page} page */
function besideOf(page) {
  const part = make("section", { class: "nosync-beside", "aria-label": `${page.name} through time` });
  const title = make("div", { class: "nosync-title" }, `${page.name} at epoch ${page.epoch}`);
  part.append(title, furnish(rooms(), page));
  return part;
}

/** @param {any} model @param {HTMLElement} root @param {AbortSignal} signal */
function build(model, root, signal) {
  const bar = make("div", { class: "nosync-bar" });
  /** @param {string} text @param {string} title */
  const button = (text, title) => {
    const node = /** @type {HTMLButtonElement} */ (make("button", { type: "button", title }, text));
    bar.append(node);
    return node;
  };
  const play = button("Play", "step through the epochs");
  play.setAttribute("aria-pressed", "false");
  const previous = button("Previous", "Previous epoch");
  const slider = /** @type {HTMLInputElement} */ (
    make("input", { type: "range", min: "0", step: "1", "aria-label": `epoch of ${model.get("stage")}` })
  );
  bar.append(slider);
  const next = button("Next", "Next epoch");
  const latest = button("Latest", "Latest epoch");
  const speed = /** @type {HTMLSelectElement} */ (
    make("select", { "aria-label": "speed of play", title: "epochs that play steps through" })
  );
  for (const each of SPEEDS) speed.append(make("option", {}, each));
  bar.append(speed, buildChoice(model, signal));
  const line = make("div", { role: "status", "aria-live": "polite", class: "nosync-status" });
  const tables = rooms();
  const title = make("div", { class: "nosync-title" }, model.get("stage"));
  const figure = make("figure", { class: "nosync-course" });
  figure.hidden = true;
  const beside = make("div");
  root.append(title, figure, bar, line, tables, beside);
  // The notebook's shortcuts (arrows, a, b, ...) look at the element that has the focus: there they
  // must be refused, or an arrow key moves between cells instead of epochs.
  for (const control of bar.children) control.setAttribute("data-lm-suppress-shortcuts", "true");
  return { play, previous, slider, next, latest, speed, figure, line, tables, beside, title };
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", {
    class: "nosync-travel",
    role: "group",
    "aria-label": `${model.get("stage")} through time`,
  });
  el.append(root);
  const stop = new AbortController();
  const view = build(model, root, stop.signal);
  buildForks(model, root, stop.signal);
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let playing;

  let wanted = model.get("page").epoch;
  /** @type {number | null} */
  let asked = null;
  let unheard = "";

  /** @returns {Step[]} */
  const steps = () => model.get("steps");
  const position = () => positionOf(steps(), wanted);
  const last = () => Math.max(0, count(steps()) - 1);

  const ask = () => {
    asked = wanted;
    kernel.ask({ epoch: wanted });
  };
  /** @param {number} to */
  const go = (to) => {
    wanted = epochAt(steps(), Math.min(Math.max(0, to), last()));
    if (asked === null && wanted !== model.get("page").epoch) ask();
    showSlider();
  };
  /** @param {boolean} on */
  const setPlaying = (on) => {
    clearInterval(playing);
    playing = on ? setInterval(tick, pace(view.speed.value, count(steps())).pause) : undefined;
    view.play.textContent = on ? "Pause" : "Play";
    view.play.setAttribute("aria-pressed", String(on));
  };
  const tick = () => {
    if (asked !== null) return; // the kernel is still reading
    if (position() >= last()) setPlaying(false);
    else go(position() + pace(view.speed.value, count(steps())).stride);
  };

  const showSlider = () => {
    const at = position();
    const page = model.get("page");
    const waiting = asked !== null;
    view.slider.max = String(last());
    view.slider.value = String(at);
    const said = unheard || (waiting ? `epoch ${wanted}: reading` : status(page, steps()));
    view.slider.setAttribute("aria-valuetext", said);
    if (view.line.textContent !== said) view.line.textContent = said;
    root.setAttribute("aria-busy", String(waiting));
    drawCourse(view.figure, model.get("course"), (epoch) => positionOf(steps(), epoch), last(), at);
    view.previous.disabled = at <= 0;
    view.next.disabled = view.latest.disabled = at >= last();
  };
  const showPage = () => {
    const page = model.get("page");
    if (asked === null) wanted = page.epoch; // moved by the kernel, or by another view
    else if (page.asked === asked) {
      const moved = wanted !== asked;
      asked = null;
      if (moved) ask();
      else wanted = page.epoch;
    }
    view.title.textContent = page.name ?? model.get("stage");
    furnish(view.tables, page);
    view.beside.replaceChildren(...(page.beside ?? []).map(besideOf));
    showSlider();
  };

  const on = { signal: stop.signal };
  const kernel = attend(model, (said) => {
    unheard = said;
    showSlider();
  });
  view.slider.addEventListener("input", () => { setPlaying(false); go(Number(view.slider.value)); }, on);
  view.previous.addEventListener("click", () => { setPlaying(false); go(position() - 1); }, on);
  view.next.addEventListener("click", () => { setPlaying(false); go(position() + 1); }, on);
  view.latest.addEventListener("click", () => { setPlaying(false); go(last()); }, on);
  view.play.addEventListener("click", () => {
    if (playing === undefined && position() >= last()) go(0);
    setPlaying(playing === undefined);
  }, on);
  view.speed.addEventListener("change", () => { if (playing !== undefined) setPlaying(true); }, on);
  model.on("change:page", showPage);
  model.on("change:steps", showSlider);
  model.on("change:course", showSlider);
  model.send({ course: -1 });
  showPage();

  return () => {
    setPlaying(false);
    stop.abort();
    kernel.stop();
    model.off("change:page", showPage);
    model.off("change:steps", showSlider);
    model.off("change:course", showSlider);
    root.remove();
  };
}

export default { render };
