// @ts-check
// The grid: a page of a stage's rows, sorted, filtered, followed or frozen, with column summaries.
// The kernel owns the model (`page`, `summary`, `latest`, `frozen`); we ask for a page by message
// and are answered by one. One question is under way at a time; the last one asked meanwhile waits.

/** @typedef {[number, boolean]} Term a column's position, and whether it descends */
/**
 * @typedef {object} Page
 * @property {string} name the stage, and before it the branch that it is of
 * @property {number=} epoch
 * @property {number} asked
 * @property {string=} error
 * @property {string=} stale why there are no newer rows
 * @property {{name: string, type: string, right: boolean}[]=} columns
 * @property {(string | null)[][]} rows
 * @property {number} offset
 * @property {number} limit
 * @property {number} total
 * @property {Term[]} order
 * @property {string} where
 */
/**
 * @typedef {object} Summary
 * @property {number} nulls
 * @property {number | null} distinct
 * @property {string | null} low
 * @property {string | null} high
 * @property {number[]} bars
 * @property {[string | null, number][]} common
 */

const SIZES = [20, 50, 100, 200];

/** @param {number} number */
const spelled = (number) => number.toLocaleString("en");

/** Which rows a page shows. @param {Page} page */
export function extent(page) {
  if (!page.total) return page.where ? "no rows match" : "no rows";
  if (page.rows.length === page.total) return plural(page.total, "row");
  const last = page.offset + page.rows.length;
  return `rows ${spelled(page.offset + 1)} to ${spelled(last)} of ${spelled(page.total)}`;
}

/** How a page is dated. @param {Page} page @param {number} latest @param {boolean} frozen */
export function dated(page, latest, frozen) {
  const epoch = page.epoch ?? 0;
  if (epoch > latest) return `epoch ${epoch}, which a rewind has undone`;
  if (page.stale) return `epoch ${epoch}, its last`;
  const behind = latest - epoch;
  if (behind) return `epoch ${epoch}, ${spelled(behind)} behind`;
  return `epoch ${epoch}, the latest${frozen ? ", frozen" : ""}`;
}

/**
 * The order after a click on a column: up, down, then none; with others kept if it is added.
 * @param {Term[]} order @param {number} place @param {boolean} add
 * @returns {Term[]}
 */
export function turned(order, place, add) {
  const now = order.find(([each]) => each === place);
  /** @type {Term[]} */
  const next = !now ? [[place, false]] : now[1] ? [] : [[place, true]];
  if (!add) return next;
  const at = order.findIndex(([each]) => each === place);
  return at < 0 ? [...order, ...next] : [...order.slice(0, at), ...next, ...order.slice(at + 1)];
}

/** What a screen reader says of a column. @param {Summary} summary */
export function described(summary) {
  const parts = [`${spelled(summary.nulls)} null`];
  if (summary.distinct !== null) parts.push(`${spelled(summary.distinct)} distinct`);
  if (summary.low !== null) parts.push(`${summary.low} to ${summary.high}`);
  for (const [value, count] of summary.common) parts.push(`${value}: ${spelled(count)}`);
  return parts.join(", ");
}

/** Heights from 0 to 1, none that is there below a tenth. @param {number[]} counts */
export function heights(counts) {
  const most = Math.max(...counts, 1);
  return counts.map((count) => (count ? Math.max(count / most, 0.1) : 0));
}

/** A small picture of counts. @param {number[]} counts */
function picture(counts) {
  const bars = make("div", { class: "nosync-bars", "aria-hidden": "true" });
  for (const height of heights(counts)) {
    const bar = make("span");
    bar.style.height = `${100 * height}%`;
    bars.append(bar);
  }
  return bars;
}

/** The summary of a column as a cell. @param {Summary | undefined} summary @param {string} side */
function summaryCell(summary, side) {
  const cell = make("td", { class: side });
  if (!summary) return cell;
  cell.setAttribute("title", described(summary));
  const counts = summary.bars.length ? summary.bars : summary.common.map(([, count]) => count);
  if (counts.length) cell.append(picture(counts));
  const distinct = summary.distinct === null ? "" : `${spelled(summary.distinct)} distinct`;
  const nulls = summary.nulls ? plural(summary.nulls, "null") : "";
  cell.append(make("div", {}, [distinct, nulls].filter(Boolean).join(", ") || "no nulls"));
  return cell;
}

/** @param {any} model @param {HTMLElement} root */
function build(model, root) {
  const bar = make("div", { class: "nosync-bar" });
  const pager = make("div", { class: "nosync-bar" });
  /** @param {HTMLElement} where @param {string} text @param {string} title */
  const button = (where, text, title) => {
    const node = /** @type {HTMLButtonElement} */ (make("button", { type: "button", title }, text));
    where.append(node);
    return node;
  };
  const title = make("div", { class: "nosync-title" }, model.get("stage"));
  const filter = /** @type {HTMLInputElement} */ (
    make("input", {
      type: "search",
      "aria-label": "filter: an SQL predicate, Enter applies it",
      placeholder: "filter, in SQL: delay > 60 and carrier = 'AA'",
      spellcheck: "false",
    })
  );
  bar.append(filter);
  const freeze = button(bar, "Freeze", "stay at this epoch; commits are not followed");
  const csv = button(bar, "CSV", "download all rows of this filter as CSV");
  const parquet = button(bar, "Parquet", "download all rows of this filter as Parquet");
  const line = make("div", { role: "status", "aria-live": "polite", class: "nosync-status" });
  const stale = make("div", { role: "status", class: "nosync-warning" });
  const problem = make("div", { role: "alert", class: "nosync-error" });
  const scroller = make("div", {
    class: "nosync-scroll",
    tabindex: "0",
    role: "region",
    "aria-label": `rows of ${model.get("stage")}; Page Up and Page Down turn pages`,
  });
  const table = make("table");
  const head = make("thead");
  const body = make("tbody");
  table.append(head, body);
  scroller.append(table);
  const first = button(pager, "First", "First page");
  const previous = button(pager, "Previous", "Previous page");
  const shown = make("span", { class: "nosync-extent" });
  pager.append(shown);
  const next = button(pager, "Next", "Next page");
  const last = button(pager, "Last", "Last page");
  const size = /** @type {HTMLSelectElement} */ (make("select", { "aria-label": "rows per page" }));
  pager.append(size);
  root.append(title, stale, bar, line, problem, scroller, pager);
  // The notebook's shortcuts look at the element that has the focus: there they must be refused.
  for (const node of [...bar.children, ...pager.children, scroller]) {
    node.setAttribute("data-lm-suppress-shortcuts", "true");
  }
  return {
    title, stale, filter, freeze, csv, parquet, line, problem, scroller, table, head, body,
    first, previous, shown, next, last, size,
  };
}

/** Offers what was sent in pieces as a file. @param {BlobPart[]} pieces @param {any} told */
function save(pieces, told) {
  const url = URL.createObjectURL(new Blob(pieces, { type: told.media }));
  const link = make("a", { href: url, download: told.name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", {
    class: "nosync-grid",
    role: "group",
    "aria-label": `rows of ${model.get("stage")}`,
  });
  el.append(root);
  const view = build(model, root);
  const stop = new AbortController();
  const on = { signal: stop.signal };
  let number = 0;
  /** @type {number | null} */
  let asked = null;
  /** @type {Record<string, any> | null} */
  let waiting = null;
  let unheard = "";
  /** @type {BlobPart[]} */
  let pieces = [];
  let columns = "";

  /** @returns {Page} */
  const page = () => model.get("page");
  const busy = () => root.setAttribute("aria-busy", String(asked !== null));

  /** Asks for another page, order or filter than are shown. @param {Record<string, any>} other */
  const ask = (other) => {
    const { order = [], where = "", offset = 0, limit = SIZES[0] } = page();
    const wanted = { order, where, offset, limit, ...other };
    if (asked !== null) {
      waiting = { ...waiting, ...other };
      return;
    }
    asked = ++number;
    kernel.ask({ kind: "show", asked, ...wanted });
    busy();
  };

  const buildHead = () => {
    const now = page().columns ?? [];
    const same = JSON.stringify(now);
    if (same === columns) return;
    columns = same;
    const line = make("tr");
    now.forEach(({ name, type, right }, place) => {
      const cell = make("th", { scope: "col", class: right ? "nosync-right" : "nosync-left" });
      const button = make("button", {
        type: "button",
        title: `${type}. Click to sort; Shift-click to add to the sort`,
        "data-lm-suppress-shortcuts": "true",
      });
      button.append(make("span", {}, name), make("span", { class: "nosync-arrow", "aria-hidden": "true" }));
      button.addEventListener("click", (event) => {
        ask({ order: turned(page().order ?? [], place, event.shiftKey), offset: 0 });
      }, on);
      cell.append(button);
      line.append(cell);
    });
    view.head.replaceChildren(line, make("tr", { class: "nosync-summary" }));
  };
  const showOrder = () => {
    const order = page().order ?? [];
    view.head.querySelectorAll("th").forEach((cell, place) => {
      const at = order.findIndex(([each]) => each === place);
      const arrow = at < 0 ? "" : order[at][1] ? "▼" : "▲";
      const rank = at >= 0 && order.length > 1 ? String(at + 1) : "";
      cell.setAttribute("aria-sort", at < 0 ? "none" : order[at][1] ? "descending" : "ascending");
      const sign = cell.querySelector(".nosync-arrow");
      if (sign) sign.textContent = arrow && ` ${arrow}${rank}`;
    });
  };
  const showRows = () => {
    const { rows = [], offset = 0, total = 0, columns: kinds = [] } = page();
    view.table.setAttribute("aria-rowcount", String(total + 1));
    view.body.replaceChildren(...rows.map((row, i) => {
      const line = make("tr", { "aria-rowindex": String(offset + i + 2) });
      row.forEach((item, place) => {
        const side = kinds[place].right ? "nosync-right" : "nosync-left";
        const cell = make("td", { class: item === null ? `${side} nosync-null` : side }, item ?? "null");
        line.append(cell);
      });
      return line;
    }));
  };
  const showSummary = () => {
    const line = view.head.querySelector(".nosync-summary");
    if (!line) return;
    const summary = model.get("summary");
    const fits = summary.columns && summary.where === page().where;
    const cells = (page().columns ?? []).map(({ right }, place) =>
      summaryCell(fits ? summary.columns[place] : undefined, right ? "nosync-right" : "nosync-left"));
    line.setAttribute("title", fits ? `of epoch ${summary.epoch}` : "");
    line.replaceChildren(...cells);
  };
  const showStatus = () => {
    const { offset = 0, rows = [], total = 0, error } = page();
    const frozen = model.get("frozen");
    const said = page().columns ? `${dated(page(), model.get("latest"), frozen)} · ${extent(page())}` : "";
    if (view.line.textContent !== said) view.line.textContent = said;
    const stale = page().stale ?? "";
    if (view.stale.textContent !== stale) view.stale.textContent = stale;
    const wrong = unheard || (error ?? "");
    if (view.problem.textContent !== wrong) view.problem.textContent = wrong;
    view.shown.textContent = page().columns ? extent(page()) : "";
    view.freeze.textContent = frozen ? "Follow" : "Freeze";
    view.freeze.setAttribute("aria-pressed", String(frozen));
    view.first.disabled = view.previous.disabled = offset <= 0;
    view.next.disabled = view.last.disabled = offset + rows.length >= total;
    const sizes = [...new Set([...SIZES, page().limit ?? SIZES[0]])].sort((a, b) => a - b);
    if (view.size.children.length !== sizes.length) {
      view.size.replaceChildren(...sizes.map((n) => make("option", { value: String(n) }, plural(n, "row"))));
    }
    view.size.value = String(page().limit ?? SIZES[0]);
  };
  const showPage = () => {
    if (asked !== null && page().asked === asked) {
      asked = null;
      const other = waiting;
      waiting = null;
      if (other) ask(other);
    }
    busy();
    view.title.textContent = page().name ?? model.get("stage");
    buildHead();
    showOrder();
    showRows();
    showSummary();
    showStatus();
    if (document.activeElement !== view.filter && !page().error) {
      sought = view.filter.value = page().where ?? "";
    }
  };

  const kernel = attend(model, (said) => {
    unheard = said;
    showStatus();
  });
  const back = () => ask({ offset: Math.max(0, page().offset - page().limit) });
  const forth = () => { if (!view.next.disabled) ask({ offset: page().offset + page().limit }); };
  const toEnd = () => ask({ offset: Math.max(0, Math.ceil(page().total / page().limit) - 1) * page().limit });
  view.first.addEventListener("click", () => ask({ offset: 0 }), on);
  view.previous.addEventListener("click", back, on);
  view.next.addEventListener("click", forth, on);
  view.last.addEventListener("click", toEnd, on);
  view.size.addEventListener("change", () => ask({ limit: Number(view.size.value), offset: 0 }), on);
  let sought = page().where ?? "";
  const seek = () => {
    if (view.filter.value === sought) return;
    sought = view.filter.value;
    ask({ where: sought, offset: 0 });
  };
  view.filter.addEventListener("change", seek, on);
  view.filter.addEventListener("search", seek, on); // its cross was clicked
  view.filter.addEventListener("keydown", (event) => { if (event.key === "Enter") seek(); }, on);
  view.freeze.addEventListener("click", () => kernel.ask({ kind: "freeze", on: !model.get("frozen") }), on);
  view.csv.addEventListener("click", () => kernel.ask({ kind: "download", format: "csv" }), on);
  view.parquet.addEventListener("click", () => kernel.ask({ kind: "download", format: "parquet" }), on);
  view.scroller.addEventListener("keydown", (event) => {
    const keys = { PageUp: back, PageDown: forth, Home: () => ask({ offset: 0 }), End: toEnd };
    const act = keys[/** @type {keyof typeof keys} */ (event.key)];
    if (!act || event.altKey || event.metaKey) return;
    event.preventDefault();
    act();
  }, on);
  /** @param {any} told @param {DataView[]} buffers */
  const heard = (told, buffers) => {
    if (told.kind === "failed") view.problem.textContent = told.error;
    if (told.kind !== "file") return;
    pieces[told.piece] = buffers[0];
    if (told.piece < told.last) return;
    save(pieces, told);
    pieces = [];
  };
  model.on("msg:custom", heard);
  model.on("change:page", showPage);
  model.on("change:summary", showSummary);
  model.on("change:latest change:frozen", showStatus);
  showPage();

  return () => {
    stop.abort();
    kernel.stop();
    model.off("msg:custom", heard);
    model.off("change:page", showPage);
    model.off("change:summary", showSummary);
    model.off("change:latest change:frozen", showStatus);
    root.remove();
  };
}

export default { render };
