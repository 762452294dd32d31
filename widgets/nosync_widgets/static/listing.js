// @ts-check
// The list of inputs, stages, watched folders and replicas. The kernel owns `state`; we select by message. Lines are
// kept while their stage is there, so that the focus stays where it is.

/** @typedef {{name: string, kind: string, cells: (string | null)[], bad: boolean, stale: boolean}} Line */
/** @typedef {{cells: (string | null)[], bad: boolean}} Copy */
/** @typedef {{name: string, path: string, selected: string, epoch: number, time: string, error?: string, safe: string, columns: string[], replica_columns: string[], stages: Line[], replicas: Copy[], watches: string[], refused: string[]}} State */

const RIGHT = new Set(["rows", "size", "epoch", "behind", "to ship"]);

/** What stands above the list. @param {State} state */
export function dated(state) {
  const branch = state.name ? `branch ${state.name} · ` : "";
  const time = state.time ? ` · ${state.time}` : "";
  return `${branch}epoch ${state.epoch}${time}`;
}

/** What stands after a number of rows where there is no head above it. @param {string} text */
export const rowsOf = (text) => noun(Number(text.replaceAll(",", "")), "row");

/** The last parts of a path, which tell it from others. @param {string} path */
export function short(path) {
  const parts = path.split("/").filter(Boolean);
  return parts.length > 3 ? `…/${parts.slice(-3).join("/")}` : path;
}

/** @param {Element} node @param {string} text */
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Writes one line for each text. @param {Element} node @param {string[]} texts @param {string} kind the class of a line */
function list(node, texts, kind) {
  while (node.children.length > texts.length) node.lastElementChild?.remove();
  texts.forEach((text, i) => put(node.children[i] ?? node.appendChild(make("div", { class: kind })), text));
}

/** An empty table with a head. @param {string} caption */
function table(caption) {
  const node = make("table");
  const title = make("caption", {}, caption);
  const head = make("tr");
  const top = make("thead");
  top.append(head);
  const body = make("tbody");
  node.append(title, top, body);
  return { node, title, head, body };
}

/** @param {Element} head @param {string[]} columns */
function title(head, columns) {
  if (head.children.length === columns.length) return;
  head.replaceChildren(...columns.map((name) =>
    make("th", { scope: "col", class: RIGHT.has(name) ? "nosync-right" : "" }, name)));
}

/** Writes the cells of a line. @param {Element} line @param {(string | null)[]} cells @param {string[]} columns @param {Element | null} first what the first cell has */
function fill(line, cells, columns, first) {
  cells.forEach((text, i) => {
    const cell = line.children[i] ?? line.appendChild(make("td", { class: RIGHT.has(columns[i]) ? "nosync-right" : "" }));
    if (i === 0 && first) {
      if (first.parentNode !== cell) cell.append(first);
      put(first, text ?? "");
    } else {
      put(cell, text ?? "null");
      /** @type {HTMLElement} */ (cell).title = text ?? "";
      if (columns[i] === "rows") cell.setAttribute("data-counted", text === null ? "" : ` ${rowsOf(text)}`);
    }
  });
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", { class: "nosync-live nosync-listing", role: "group", "aria-label": "inputs, stages and replicas" });
  const head = make("div", { class: "nosync-head" });
  const path = make("span", { class: "nosync-title" });
  const when = make("span", { class: "nosync-faint" });
  head.append(path, when);
  const scroll = make("div", { class: "nosync-scroll" });
  const stages = table("inputs and stages");
  const replicas = table("");
  replicas.node.className = "nosync-copies";
  const watches = make("div", { class: "nosync-faint nosync-watches", role: "group", "aria-label": "watched folders" });
  const refused = make("div", { role: "status", "aria-label": "refused files" });
  scroll.append(stages.node, watches, refused, replicas.node);
  const error = make("div", { class: "nosync-error", role: "alert" });
  root.append(head, scroll, error);
  el.append(root);
  const stop = new AbortController();
  /** @type {Map<string, {line: HTMLElement, button: HTMLElement}>} */
  let lines = new Map();
  let unheard = "";

  const show = () => {
    /** @type {State} */
    const state = model.get("state");
    put(path, short(state.path));
    path.title = state.path;
    put(when, dated(state));
    title(stages.head, state.columns);
    const kept = new Map();
    state.stages.forEach((stage, i) => {
      const each = lines.get(stage.name) ?? {
        line: make("tr"),
        button: make("button", { type: "button", "data-lm-suppress-shortcuts": "true" }),
      };
      const chosen = stage.name === state.selected;
      each.button.dataset.name = stage.name;
      each.button.setAttribute("aria-pressed", String(chosen));
      each.line.className = `${chosen ? "nosync-selected" : ""} ${stage.bad ? "nosync-bad" : stage.stale ? "nosync-stale" : ""}`;
      fill(each.line, stage.cells, state.columns, each.button);
      if (stages.body.children[i] !== each.line) stages.body.insertBefore(each.line, stages.body.children[i] ?? null);
      kept.set(stage.name, each);
    });
    for (const [name, each] of lines) if (!kept.has(name)) each.line.remove();
    lines = kept;
    list(watches, state.watches, "");
    list(refused, state.refused, "nosync-warning");
    put(replicas.title, state.safe);
    replicas.head.hidden = !state.replicas.length;
    title(replicas.head, state.replica_columns);
    while (replicas.body.children.length > state.replicas.length) replicas.body.lastElementChild?.remove();
    state.replicas.forEach((copy, i) => {
      const line = replicas.body.children[i] ?? replicas.body.appendChild(make("tr"));
      line.className = copy.bad ? "nosync-bad" : "";
      fill(line, copy.cells, state.replica_columns, null);
    });
    put(error, unheard || state.error || (state.stages.length ? "" : "no inputs and no stages yet"));
  };

  const kernel = attend(model, (said) => {
    unheard = said;
    show();
  });
  stages.body.addEventListener("click", (event) => {
    const line = /** @type {HTMLElement} */ (event.target).closest("tr");
    const name = line?.querySelector("button")?.dataset.name;
    if (name !== undefined) kernel.ask({ select: name });
  }, { signal: stop.signal });
  stages.body.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const all = [...stages.body.querySelectorAll("button")];
    all[all.indexOf(/** @type {HTMLButtonElement} */ (event.target)) + step]?.focus();
  }, { signal: stop.signal });
  model.on("change:state", show);
  show();

  return () => {
    stop.abort();
    kernel.stop();
    model.off("change:state", show);
    root.remove();
  };
}

export default { render };
