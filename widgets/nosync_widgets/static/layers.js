// @ts-check
// The layers of a stage over its epochs, and how far each place has it. The kernel owns `state`;
// what was merged is told by comparing two of them. Elements are kept, so that they can move.

/** @typedef {{lower: number, upper: number, level: number, rows: string, size: string, bytes: number, merging: boolean}} Layer */
/** @typedef {{kind: string, name: string, where?: string, epoch: number, note: string}} Place */
/**
 * @typedef {object} State
 * @property {string} stage
 * @property {string} name
 * @property {[string, string][]} stages names, and as they are shown
 * @property {number} epoch
 * @property {string} time
 * @property {string} why
 * @property {string=} stale
 * @property {string=} error
 * @property {number=} last
 * @property {number=} quorum
 * @property {Layer[]} layers
 * @property {Place[]} places
 */

const LEGEND = [
  ["memory", "in memory only"],
  ["disk", "on this disk too"],
  ["some", "on a replica too"],
  ["copied", "on enough replicas"],
];
const ROOM = 10;
const HEIGHT_MIN = 10;
const HEIGHT_MAX = 26;

/**
 * Where epochs are, from 0 to 100: a gap between two bounds of layers is as wide as the logarithm of
 * its epochs, so that the youngest layers are seen beside the oldest.
 * @param {number[]} bounds
 * @returns {(epoch: number) => number}
 */
export function scale(bounds) {
  const ends = [...new Set(bounds)].sort((a, b) => a - b);
  const widths = ends.slice(1).map((end, i) => 1 + Math.log2(1 + end - ends[i]));
  const total = widths.reduce((sum, width) => sum + width, 0) || 1;
  const places = [0];
  for (const width of widths) places.push(places[places.length - 1] + (100 * width) / total);
  return (epoch) => {
    if (!ends.length || epoch <= ends[0]) return 0;
    if (epoch >= ends[ends.length - 1]) return 100;
    for (let i = 1; i < ends.length; i += 1) {
      if (epoch > ends[i]) continue;
      const part = (epoch - ends[i - 1]) / (ends[i] - ends[i - 1]);
      return places[i - 1] + part * (places[i] - places[i - 1]);
    }
    return 100;
  };
}

/** The bounds of what is drawn. @param {State} state */
export function boundsOf(state) {
  const bounds = state.layers.flatMap((layer) => [layer.lower, layer.upper]);
  if (state.last !== undefined) bounds.push(state.last + 1);
  if (bounds.length < 2) bounds.push(0);
  return bounds;
}

/** The safest kind of place that has all of a layer. @param {Layer} layer @param {State} state */
export function safest(layer, state) {
  const has = state.places.filter((place) => place.epoch >= layer.upper - 1);
  const copies = has.filter((place) => place.kind === "replica").length;
  if (copies && copies >= (state.quorum ?? 1)) return "copied";
  if (copies) return "some";
  return has.some((place) => place.kind === "disk") ? "disk" : "memory";
}

/** Epochs of a half open interval, in words. @param {number} lower @param {number} upper */
export function epochs(lower, upper) {
  return upper - lower === 1 ? `epoch ${lower}` : `epochs ${lower} to ${upper - 1}`;
}

/** A layer in words. @param {Layer} layer @param {State} state */
export function describe(layer, state) {
  const has = state.places.filter((place) => place.epoch >= layer.upper - 1);
  const parts = [epochs(layer.lower, layer.upper), `level ${layer.level}`, layer.rows, layer.size];
  parts.push(`on ${has.map((place) => place.name).join(", ") || "its way"}`);
  if (layer.merging) parts.push("being merged");
  return parts.join(" · ");
}

/** What was merged between two states: how many layers became which. @param {State} before @param {State} after */
export function merges(before, after) {
  if (before.stage !== after.stage) return [];
  return after.layers
    .map((layer) => ({
      lower: layer.lower,
      upper: layer.upper,
      count: before.layers.filter((old) => old.lower >= layer.lower && old.upper <= layer.upper).length,
    }))
    .filter((merge) => merge.count > 1);
}

/** @param {State} state */
export function summary(state) {
  const levels = new Set(state.layers.map((layer) => layer.level)).size;
  const dated = state.time ? `epoch ${state.epoch} · ${state.time}` : `epoch ${state.epoch}`;
  const held = `${plural(state.layers.length, "layer")} on ${plural(levels, "level")}`;
  return `${dated} · ${held}`;
}

/** How far a place is, in words. @param {Place} place @param {number} last */
export function reach(place, last) {
  const lacks = Math.max(0, last - place.epoch);
  const far = lacks ? `epoch ${place.epoch}, ${lacks.toLocaleString("en")} behind` : `epoch ${place.epoch}`;
  return place.note ? `${far} · ${place.note}` : far;
}

/** A label and a track beside it. @param {string} label @param {string} kind */
function lane(label, kind) {
  const row = make("div", { class: "nosync-lane" });
  row.append(make("div", { title: label }, label));
  const track = make("div", { class: `nosync-track ${kind}` });
  row.append(track);
  return { row, track };
}

/** The heights of layers in their lanes, in pixels, by their bytes. @param {Layer[]} layers */
export function heights(layers) {
  const sizes = layers.map((layer) => Math.log2(2 + layer.bytes));
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  return sizes.map((size) =>
    most === least ? HEIGHT_MAX : HEIGHT_MIN + ((HEIGHT_MAX - HEIGHT_MIN) * (size - least)) / (most - least));
}

/** @param {any} model @param {HTMLElement} root */
function build(model, root) {
  const head = make("div", { class: "nosync-head" });
  const choice = /** @type {HTMLSelectElement} */ (make("select", { "aria-label": "stage" }));
  choice.setAttribute("data-lm-suppress-shortcuts", "true");
  const dated = make("span", { class: "nosync-faint nosync-dated" });
  const title = make("span", { class: "nosync-title" }, "Layers of");
  const said = make("span", { class: "nosync-said nosync-faint", role: "status", "aria-live": "polite" });
  head.append(title, choice, dated, said);
  const lanes = make("div", { role: "list", "aria-label": "layers, oldest first" });
  const axis = lane("epoch", "nosync-axis");
  axis.row.setAttribute("aria-hidden", "true");
  const reaches = make("div", { role: "list", "aria-label": "last epoch in each place" });
  const legend = make("div", { class: "nosync-legend" });
  for (const [kind, text] of LEGEND) {
    const entry = make("span");
    entry.append(make("span", { class: `nosync-swatch nosync-is-${kind}` }), text);
    legend.append(entry);
  }
  const detail = make("div", { class: "nosync-detail nosync-faint" });
  const error = make("div", { class: "nosync-error", role: "alert" });
  const stale = make("div", { class: "nosync-warning", role: "status" });
  root.append(head, stale, lanes, axis.row, reaches, legend, detail, error);
  return { choice, dated, lanes, axis: axis.track, reaches, legend, detail, said, stale, error };
}

/** The marks of the axis: as many bounds as there is room for. @param {number[]} bounds @param {(epoch: number) => number} at */
export function ticks(bounds, at) {
  const ends = [...new Set(bounds)].sort((a, b) => a - b);
  const last = ends[ends.length - 1];
  /** @type {number[]} */
  const chosen = [];
  for (const end of ends) {
    const before = chosen[chosen.length - 1];
    if (before !== undefined && at(end) - at(before) < ROOM) continue;
    if (end !== last && 100 - at(end) < ROOM) continue;
    chosen.push(end);
  }
  if (chosen[chosen.length - 1] !== last && last !== undefined) chosen.push(last);
  return chosen;
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", { class: "nosync-live nosync-layers", role: "group", "aria-label": "layers of a stage" });
  el.append(root);
  const view = build(model, root);
  const stop = new AbortController();
  /** @type {Map<string, HTMLElement>} */
  let drawn = new Map();
  /** @type {Map<number, {row: HTMLElement, track: HTMLElement}>} */
  let rows = new Map();
  /** @type {State | null} */
  let before = null;
  let unheard = "";

  /** @param {State} state */
  const drawChoice = (state) => {
    const names = state.stages.map(([name]) => name).join("\n");
    if (view.choice.dataset.names !== names) {
      view.choice.dataset.names = names;
      view.choice.replaceChildren(...state.stages.map(([name, text]) => {
        const option = /** @type {HTMLOptionElement} */ (make("option", {}, text));
        option.value = name;
        return option;
      }));
    }
    view.choice.value = state.stage;
  };
  /** @param {State} state @param {(epoch: number) => number} at */
  const drawLayers = (state, at) => {
    const joined = new Set((before ? merges(before, state) : []).map((each) => each.upper));
    const levels = [...new Set(state.layers.map((layer) => layer.level))].sort((a, b) => a - b);
    for (const level of levels) {
      if (!rows.has(level)) rows.set(level, lane(`level ${level}`, ""));
    }
    rows = new Map(levels.map((level) => [level, /** @type {any} */ (rows.get(level))]));
    const wanted = levels.map((level) => /** @type {any} */ (rows.get(level)).row);
    if (wanted.some((row, i) => view.lanes.children[i] !== row) || view.lanes.children.length !== wanted.length)
      view.lanes.replaceChildren(...wanted);
    const tall = heights(state.layers);
    const kept = new Map();
    const focused = /** @type {HTMLElement | null} */ (root.ownerDocument.activeElement);
    state.layers.forEach((layer, i) => {
      const key = `${layer.lower}-${layer.upper}`;
      const node = drawn.get(key) ?? make("div", { role: "listitem", tabindex: "-1" });
      const fresh = !drawn.has(key) && joined.has(layer.upper);
      const merging = layer.merging ? " nosync-merging" : "";
      const came = fresh ? " nosync-came" : node.classList.contains("nosync-came") ? " nosync-came" : "";
      node.className = `nosync-layer nosync-is-${safest(layer, state)}${merging}${came}`;
      node.style.left = `${at(layer.lower)}%`;
      node.style.width = `calc(${at(layer.upper) - at(layer.lower)}% - 1px)`;
      node.style.height = `${tall[i]}px`;
      node.textContent = at(layer.upper) - at(layer.lower) > 9 && tall[i] > 12 ? layer.size : "";
      const text = describe(layer, state);
      node.setAttribute("aria-label", text);
      node.title = text;
      const track = /** @type {any} */ (rows.get(layer.level)).track;
      if (node.parentNode !== track) track.append(node);
      kept.set(key, node);
    });
    for (const [key, node] of drawn) if (!kept.has(key)) node.remove();
    drawn = kept;
    const first = [...kept.values()].pop();
    if (first && ![...kept.values()].some((node) => node.tabIndex === 0)) {
      first.tabIndex = 0;
      if (focused && !focused.isConnected) first.focus();
    }
  };
  /** @param {State} state @param {(epoch: number) => number} at */
  const drawPlaces = (state, at) => {
    while (view.reaches.children.length > state.places.length) view.reaches.lastElementChild?.remove();
    state.places.forEach((place, i) => {
      let row = /** @type {HTMLElement | undefined} */ (view.reaches.children[i]);
      if (!row) {
        const made = lane("", "nosync-place");
        made.row.setAttribute("role", "listitem");
        made.track.append(make("div"), make("span", { class: "nosync-note" }));
        view.reaches.append(made.row);
        row = made.row;
      }
      const [label, track] = /** @type {any} */ (row.children);
      const text = reach(place, state.last ?? 0);
      if (label.textContent !== place.name) label.textContent = place.name;
      label.title = place.where ?? place.name;
      const kind = place.kind === "replica" ? "copied" : place.kind;
      track.children[0].className = `nosync-reach nosync-is-${kind}`;
      track.children[0].style.width = `${at(place.epoch + 1)}%`;
      track.children[1].textContent = track.children[1].title = text;
      row.setAttribute("aria-label", `${label.title}: ${text}`);
    });
  };
  const show = () => {
    /** @type {State} */
    const state = model.get("state");
    const bounds = boundsOf(state);
    const at = scale(bounds);
    drawChoice(state);
    view.dated.textContent = summary(state);
    drawLayers(state, at);
    const marks = ticks(bounds, at).map((end) => {
      const mark = make("span", {}, end.toLocaleString("en"));
      mark.style.left = `${at(end)}%`;
      return mark;
    });
    view.axis.replaceChildren(...marks);
    drawPlaces(state, at);
    const merged = before ? merges(before, state) : [];
    if (merged.length) {
      const { lower, upper, count } = merged[0];
      view.said.textContent = `${count} layers were merged: ${epochs(lower, upper)}`;
    } else if (before && before.stage !== state.stage) view.said.textContent = "";
    view.stale.textContent = state.stale ?? "";
    view.error.textContent = unheard || state.error || state.why || "";
    root.setAttribute("aria-label", `layers of ${state.name}`);
    before = state;
  };

  const on = { signal: stop.signal };
  const kernel = attend(model, (said) => {
    unheard = said;
    show();
  });
  view.choice.addEventListener("change", () => kernel.ask({ stage: view.choice.value }), on);
  view.lanes.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const nodes = [...drawn.values()];
    const from = nodes.indexOf(/** @type {HTMLElement} */ (event.target));
    const to = nodes[from + step];
    if (from < 0 || !to) return;
    event.preventDefault();
    event.stopPropagation();
    nodes[from].tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }, on);
  for (const kind of ["focusin", "mouseover"]) {
    view.lanes.addEventListener(kind, (event) => {
      const node = /** @type {HTMLElement} */ (event.target);
      if (node.classList.contains("nosync-layer")) view.detail.textContent = node.title;
    }, on);
  }
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
