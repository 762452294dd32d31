// The course of a stage above its slider: rows or sums over epochs as a line, with marks for
// branches and versions. A part of travel.js, which it stands before in one source.

/**
 * @typedef {{points: [number, number][], every: number, of: string, columns: [number, string][],
 *   marks: [number, string][], past: string}} Course
 */

export const CHART = { width: 600, height: 56, left: 4, right: 4, top: 6, bottom: 6 };

/** How far to the right a position is, in the chart's units. @param {number} at @param {number} last */
export function across(at, last) {
  const { width, left, right } = CHART;
  return left + ((width - left - right) * at) / Math.max(1, last);
}

/**
 * The line: a figure stays as it is until the next epoch that is counted; 0 is in the picture.
 * @param {[number, number][]} points @param {(epoch: number) => number} place @param {number} last
 */
export function path(points, place, last) {
  const { height, top, bottom } = CHART;
  const figures = points.map(([, figure]) => figure);
  const least = Math.min(0, ...figures);
  const span = Math.max(0, ...figures) - least || 1;
  const round = (/** @type {number} */ value) => Math.round(value * 10) / 10;
  return points.map(([epoch, figure], i) => {
    const x = round(across(place(epoch), last));
    const y = round(height - bottom - ((height - top - bottom) * (figure - least)) / span);
    return i ? `H${x}V${y}` : `M${x} ${y}`;
  }).join("");
}

/** What the picture shows, in words. @param {Course} course */
export function told({ points, every, of = "rows" }) {
  if (!points.length) return "";
  const rows = points.map(([, count]) => count);
  const say = (/** @type {number} */ count) => count.toLocaleString("en", { maximumSignificantDigits: 15 });
  const coarse = every > 1 ? `, one of ${every} epochs` : "";
  return `${of} over epochs${coarse}: ${say(rows[0])} at epoch ${points[0][0]}, ` +
    `${say(Math.min(...rows))} to ${say(Math.max(...rows))}, now ${say(rows[rows.length - 1])}`;
}

/** @param {string} tag @param {Record<string, string | number>} attributes */
function drawn(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  return node;
}

/**
 * Draws it into a figure; `at` is the position that is shown.
 * @param {HTMLElement} figure @param {Course} course @param {(epoch: number) => number} place
 * @param {number} last @param {number} at
 */
export function drawCourse(figure, course, place, last, at) {
  figure.replaceChildren();
  figure.hidden = !course.points || (course.points.length < 2 && !course.past && !course.marks.length);
  if (figure.hidden) return;
  const { width, height } = CHART;
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none",
    role: "img", "aria-label": told(course) });
  picture.append(drawn("path", { d: path(course.points, place, last), class: "nosync-line" }));
  const lines = course.marks.map(([epoch]) => ({ x: across(place(epoch), last), kind: "nosync-marked" }));
  for (const { x, kind } of [...lines, { x: across(at, last), kind: "nosync-here" }]) {
    picture.append(drawn("line", { x1: x, x2: x, y1: 0, y2: height, class: kind }));
  }
  const said = document.createElement("figcaption");
  const marks = course.marks.map(([epoch, text]) => `epoch ${epoch}: ${text}`);
  said.textContent = [told(course), ...marks, course.past].filter(Boolean).join(" · ");
  if (course.points.length > 1) figure.append(picture);
  figure.append(said);
}

/**
 * A choice of what the line shows: the rows, or the sum of a column; hidden where there is none.
 * @param {any} model @param {AbortSignal} signal
 */
function buildChoice(model, signal) {
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "what the line shows");
  choice.setAttribute("data-lm-suppress-shortcuts", "true");
  choice.title = "rows, or the sum of a column, over epochs";
  let known = "";
  const fill = () => {
    /** @type {[number, string][]} */
    const columns = model.get("course").columns ?? [];
    if (known === JSON.stringify(columns)) return;
    known = JSON.stringify(columns);
    const chosen = choice.value;
    choice.replaceChildren(...[[-1, "line: rows"], ...columns.map(([place, name]) => [place, `line: sum of ${name}`])]
      .map(([place, text]) => new Option(String(text), String(place))));
    if ([...choice.options].some((option) => option.value === chosen)) choice.value = chosen;
    choice.hidden = !columns.length;
  };
  choice.hidden = true;
  choice.addEventListener("change", () => model.send({ course: Number(choice.value) }), { signal });
  model.on("change:course", fill);
  signal.addEventListener("abort", () => model.off("change:course", fill));
  fill();
  return choice;
}

