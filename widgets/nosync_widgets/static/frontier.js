// @ts-check
// The graph of stages: laid out here, a rank for each step from the inputs, edges round what lies
// between. The kernel owns `state` and the `page` of the stage that is selected; we select by message.

/** @typedef {{name: string, type: string, right: boolean}} Column */
/**
 * @typedef {object} Node
 * @property {string} name
 * @property {string} text
 * @property {string} kind input or stage
 * @property {number} version
 * @property {string[]} reads
 * @property {Column[]} columns
 * @property {string} detail
 * @property {string} ran
 * @property {[string, number][]} levels
 * @property {[string, number][]} after
 * @property {string} why
 * @property {boolean=} stale
 */
/** @typedef {{what: string, text: string, epochs: number}} Cost */
/** @typedef {{name: string, selected: string, epoch: number, time: string, error?: string, costs: Cost[], nodes: Node[]}} State */
/** @typedef {{stage?: string, epoch: number, error: string, stale?: string, columns: Column[], rows: (string | null)[][], more: boolean}} Page */
/** @typedef {{x: number, y: number}} Point */

export const WIDTH = 208;
export const HEIGHT = 112;
const ACROSS = 44;
const BETWEEN = 14;
const THIN = 10;
const SWEEPS = 4;
const LEGEND = [["memory", "last epoch in memory"], ["disk", "on this disk"], ["copied", "on enough replicas"]];

/**
 * The rank of each node: 0 for what reads nothing, else one more than the highest that it reads.
 * @param {{name: string, reads: string[]}[]} nodes
 * @returns {Map<string, number>}
 */
export function ranks(nodes) {
  const reads = new Map(nodes.map((node) => [node.name, node.reads.filter((name) => name !== node.name)]));
  /** @type {Map<string, number>} */
  const found = new Map();
  /** @param {string} name @param {Set<string>} above */
  const visit = (name, above) => {
    const known = found.get(name);
    if (known !== undefined) return known;
    if (above.has(name)) return -1;
    above.add(name);
    const below = (reads.get(name) ?? []).filter((each) => reads.has(each)).map((each) => visit(each, above));
    above.delete(name);
    const rank = Math.max(-1, ...below) + 1;
    found.set(name, rank);
    return rank;
  };
  for (const node of nodes) visit(node.name, new Set());
  return found;
}

/**
 * Where nodes and edges are, in pixels. An edge over several ranks has a place of its own in each.
 * @param {{name: string, reads: string[]}[]} nodes
 */
export function layout(nodes) {
  const rank = ranks(nodes);
  const deep = nodes.length ? Math.max(...rank.values()) + 1 : 0;
  /** @type {{key: string, size: number, before: string[], at: number}[][]} */
  const columns = Array.from({ length: deep }, () => []);
  const edges = [];
  for (const node of nodes) columns[rank.get(node.name) ?? 0].push({ key: node.name, size: HEIGHT, before: [], at: 0 });
  const slots = new Map(columns.flat().map((slot) => [slot.key, slot]));
  for (const node of nodes) {
    for (const from of node.reads) {
      const [low, high] = [rank.get(from), rank.get(node.name)];
      if (low === undefined || high === undefined || low >= high) continue;
      const path = [from];
      for (let step = low + 1; step < high; step += 1) {
        const slot = { key: `${from}\n${node.name}\n${step}`, size: THIN, before: [path[path.length - 1]], at: 0 };
        slots.set(slot.key, slot);
        columns[step].push(slot);
        path.push(slot.key);
      }
      slots.get(node.name)?.before.push(path[path.length - 1]);
      edges.push({ from, to: node.name, path: [...path, node.name] });
    }
  }
  /** @type {Map<string, string[]>} */
  const after = new Map();
  for (const slot of slots.values()) for (const key of slot.before) after.set(key, [...(after.get(key) ?? []), slot.key]);
  const place = () => {
    for (const column of columns) {
      let y = 0;
      for (const slot of column) {
        slot.at = y + slot.size / 2;
        y += slot.size + BETWEEN;
      }
    }
  };
  /** @param {string[]} keys @param {number} own */
  const middle = (keys, own) =>
    keys.length ? keys.reduce((sum, key) => sum + (slots.get(key)?.at ?? 0), 0) / keys.length : own;
  place();
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0;
    for (const column of forth ? columns : [...columns].reverse()) {
      const wanted = new Map(column.map((slot) => [slot, middle(forth ? slot.before : after.get(slot.key) ?? [], slot.at)]));
      column.sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0));
      place();
    }
  }
  return placed(columns, edges);
}

/**
 * Points for slots whose order is decided; each column stands in the middle.
 * @param {{key: string, size: number, at: number}[][]} columns
 * @param {{from: string, to: string, path: string[]}[]} edges
 */
function placed(columns, edges) {
  const tall = columns.map((column) => column.reduce((sum, slot) => sum + slot.size + BETWEEN, -BETWEEN));
  const height = Math.max(0, ...tall);
  /** @type {Map<string, Point>} the left end of each slot's middle */
  const points = new Map();
  columns.forEach((column, i) => {
    const down = (height - tall[i]) / 2;
    for (const slot of column) points.set(slot.key, { x: i * (WIDTH + ACROSS), y: slot.at + down });
  });
  const lines = edges.map(({ from, to, path }) => ({ from, to, points: path.map((key) => /** @type {Point} */ (points.get(key))) }));
  return { points, lines, width: columns.length * (WIDTH + ACROSS) - (columns.length ? ACROSS : 0), height };
}

/** An edge as the path of an SVG: curves between columns, straight through them. @param {Point[]} points */
export function curve(points) {
  let path = `M${points[0].x + WIDTH},${points[0].y}`;
  for (let i = 1; i < points.length; i += 1) {
    const [from, to] = [points[i - 1].x + WIDTH, points[i]];
    const half = (from + to.x) / 2;
    path += `C${half},${points[i - 1].y} ${half},${to.y} ${to.x},${to.y}`;
    if (i < points.length - 1) path += `H${to.x + WIDTH}`;
  }
  return path;
}

/**
 * The node that an arrow key leads to: the nearest in that direction.
 * @param {Map<string, Point>} points @param {string[]} names @param {string} from @param {string} key
 */
export function neighbour(points, names, from, key) {
  const at = points.get(from);
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  if (!at || !way) return null;
  const [across, down] = way;
  let best = null;
  let least = Infinity;
  for (const name of names) {
    const to = points.get(name);
    if (!to || name === from) continue;
    const [dx, dy] = [to.x - at.x, to.y - at.y];
    if (across ? Math.sign(dx) !== across : dx !== 0 || Math.sign(dy) !== down) continue;
    const far = Math.abs(dx) * 4 + Math.abs(dy);
    if (far < least) [best, least] = [name, far];
  }
  return best;
}

/** A node in words. @param {Node} node */
export function describe(node) {
  const parts = [`${node.kind} ${node.text}`, node.detail, node.ran];
  parts.push(...node.levels.map(([level, epoch]) => `${level} epoch ${epoch}`));
  if (node.reads.length) parts.push(`reads ${node.reads.join(", ")}`);
  if (node.why) parts.push(node.why);
  return parts.join(", ");
}

/** @param {Column[]} columns */
export const columnsText = (columns) => columns.map(({ name, type }) => `${name} ${type}`).join(", ");

/** @param {HTMLElement} node @param {string} text */
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A box of the graph, and what writes a node into it. */
function box() {
  const root = make("button", { type: "button", class: "nosync-node", "data-lm-suppress-shortcuts": "true" });
  const name = make("span", { class: "nosync-title" });
  const [columns, detail, ran] = ["nosync-faint", "", "nosync-faint"].map((kind) => make("span", { class: kind }));
  const levels = make("span", { class: "nosync-levels" });
  root.append(name, columns, detail, ran, levels);
  /** @param {Node} node @param {boolean} selected */
  const write = (node, selected) => {
    const stale = node.stale ? " nosync-stale" : node.why ? " nosync-broken" : "";
    root.className = `nosync-node nosync-${node.kind}${stale}`;
    root.setAttribute("aria-pressed", String(selected));
    root.setAttribute("aria-label", describe(node));
    root.title = node.why || columnsText(node.columns);
    put(name, node.version > 1 ? `${node.text} · version ${node.version}` : node.text);
    put(columns, columnsText(node.columns));
    put(detail, node.detail);
    ran.className = node.why ? "nosync-why" : "nosync-faint";
    put(ran, node.why || node.ran);
    const wanted = node.levels.map(([level, epoch]) => `${level} ${epoch}`).join("\n");
    if (levels.dataset.levels === wanted) return;
    levels.dataset.levels = wanted;
    levels.replaceChildren(...node.levels.map(([level, epoch]) => {
      const kind = level === "replicas" ? "copied" : level;
      const entry = make("span", { title: `${level}: epoch ${epoch}` });
      entry.append(make("span", { class: `nosync-swatch nosync-is-${kind}` }), epoch.toLocaleString("en"));
      return entry;
    }));
  };
  return { root, write };
}

/** The rows of a page. @param {Page} page */
function table(page) {
  const node = make("table");
  const count = plural(page.rows.length, "row");
  const first = page.more ? `the first ${count}` : count;
  node.append(make("caption", {}, `${first} at epoch ${page.epoch}`));
  const head = make("tr");
  for (const { name, type, right } of page.columns)
    head.append(make("th", { scope: "col", title: type, class: right ? "nosync-right" : "" }, name));
  const top = make("thead");
  top.append(head);
  const body = make("tbody");
  for (const row of page.rows) {
    const line = make("tr");
    row.forEach((item, i) => {
      const side = page.columns[i]?.right ? "nosync-right" : "";
      line.append(make("td", { class: item === null ? `${side} nosync-null` : side }, item ?? "null"));
    });
    body.append(line);
  }
  node.append(top, body);
  return node;
}

/** @param {HTMLElement} root */
function build(root) {
  const head = make("div", { class: "nosync-head" });
  const dated = make("span", { class: "nosync-faint" });
  const title = make("span", { class: "nosync-title" });
  head.append(title, dated);
  const costs = make("div", { class: "nosync-costs", role: "list", "aria-label": "cost of a failure now" });
  const legend = make("div", { class: "nosync-legend" });
  for (const [kind, text] of LEGEND) {
    const entry = make("span");
    entry.append(make("span", { class: `nosync-swatch nosync-is-${kind}` }), text);
    legend.append(entry);
  }
  const scroll = make("div", { class: "nosync-scroll" });
  const graph = make("div", { class: "nosync-graph", role: "group", "aria-label": "inputs and stages" });
  const edges = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  edges.setAttribute("aria-hidden", "true");
  graph.append(edges);
  scroll.append(graph);
  const chosen = make("div", { class: "nosync-chosen", role: "status", "aria-live": "polite" });
  const rows = make("div", { class: "nosync-rows", tabindex: "0", role: "region", "aria-label": "rows" });
  const error = make("div", { class: "nosync-error", role: "alert" });
  root.append(head, costs, legend, scroll, chosen, rows, error);
  return { title, dated, costs, scroll, graph, edges, chosen, rows, error };
}

/** What is said of the stage that is selected. @param {Node | undefined} node */
export function chosenText(node) {
  if (!node) return "";
  const after = node.after.map(([failure, epoch]) => `${failure} ${epoch}`).join(", ");
  return `${node.text}: ${columnsText(node.columns)} · after a failure it would be at: ${after}`;
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", { class: "nosync-live nosync-frontier", role: "group", "aria-label": "graph of stages" });
  el.append(root);
  const view = build(root);
  const stop = new AbortController();
  /** @type {Map<string, ReturnType<typeof box>>} */
  let boxes = new Map();
  let shape = "";
  let unheard = "";
  let drawn = layout([]);

  /** @param {State} state */
  const drawEdges = (state) => {
    const wanted = JSON.stringify(state.nodes.map(({ name, reads }) => [name, reads]));
    if (wanted === shape) return;
    shape = wanted;
    drawn = layout(state.nodes);
    view.graph.style.width = `${drawn.width}px`;
    view.graph.style.height = `${drawn.height}px`;
    view.edges.setAttribute("viewBox", `0 0 ${Math.max(1, drawn.width)} ${Math.max(1, drawn.height)}`);
    view.edges.replaceChildren(...drawn.lines.map(({ points }) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      line.setAttribute("d", curve(points));
      return line;
    }));
  };
  /** @param {State} state */
  const drawNodes = (state) => {
    const kept = new Map();
    for (const node of state.nodes) {
      const each = boxes.get(node.name) ?? box();
      const point = drawn.points.get(node.name) ?? { x: 0, y: 0 };
      each.root.style.left = `${point.x}px`;
      each.root.style.top = `${point.y - HEIGHT / 2}px`;
      each.root.dataset.name = node.name;
      each.write(node, node.name === state.selected);
      if (each.root.parentNode !== view.graph) view.graph.append(each.root);
      kept.set(node.name, each);
    }
    for (const [name, each] of boxes) if (!kept.has(name)) each.root.remove();
    boxes = kept;
  };
  const show = () => {
    /** @type {State} */
    const state = model.get("state");
    put(view.title, state.name ? `Graph of ${state.name}` : "Graph");
    put(view.dated, state.time ? `epoch ${state.epoch} · ${state.time}` : `epoch ${state.epoch}`);
    const told = state.costs.map((cost) => `${cost.what}\t${cost.text}`).join("\n");
    if (view.costs.dataset.told !== told) {
      view.costs.dataset.told = told;
      view.costs.replaceChildren(...state.costs.map((cost) => {
        const line = make("div", { role: "listitem" });
        line.append(make("span", { class: "nosync-faint" }, `If ${cost.what}`));
        line.append(make("span", { class: cost.epochs ? "nosync-lost" : "" }, cost.text));
        return line;
      }));
    }
    drawEdges(state);
    drawNodes(state);
    put(view.chosen, chosenText(state.nodes.find((node) => node.name === state.selected)));
    const none = state.nodes.length ? "" : "no inputs and no stages yet";
    put(view.error, unheard || state.error || none);
  };
  const showPage = () => {
    /** @type {Page} */
    const page = model.get("page");
    view.rows.hidden = !page.stage;
    if (!page.stage) view.rows.replaceChildren();
    else if (page.error) view.rows.replaceChildren(make("p", { class: "nosync-error" }, page.error));
    else if (page.stale) view.rows.replaceChildren(make("div", { class: "nosync-warning" }, page.stale), table(page));
    else view.rows.replaceChildren(table(page));
  };

  const on = { signal: stop.signal };
  const kernel = attend(model, (said) => {
    unheard = said;
    show();
  });
  view.graph.addEventListener("click", (event) => {
    const name = /** @type {HTMLElement} */ (event.target).closest("button")?.dataset.name;
    if (name !== undefined) kernel.ask({ select: name === model.get("state").selected ? "" : name });
  }, on);
  view.graph.addEventListener("keydown", (event) => {
    const from = /** @type {HTMLElement} */ (event.target).dataset.name ?? "";
    const to = neighbour(drawn.points, [...boxes.keys()], from, event.key);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    event.stopPropagation();
    if (to !== null) boxes.get(to)?.root.focus();
  }, on);
  model.on("change:state", show);
  model.on("change:page", showPage);
  show();
  showPage();

  return () => {
    stop.abort();
    kernel.stop();
    model.off("change:state", show);
    model.off("change:page", showPage);
    root.remove();
  };
}

export default { render };
