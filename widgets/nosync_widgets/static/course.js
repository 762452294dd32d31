// The course of a stage above its slider: rows over epochs as a line, with marks for branches and
// versions. A part of travel.js, which it stands before in one source.

/** @typedef {{points: [number, number][], every: number, marks: [number, string][], past: string}} Course */

export const CHART = { width: 600, height: 56, left: 4, right: 4, top: 6, bottom: 6 };

/** How far to the right a position is, in the chart's units. @param {number} at @param {number} last */
export function across(at, last) {
  const { width, left, right } = CHART;
  return left + ((width - left - right) * at) / Math.max(1, last);
}

/**
 * The line: rows stay as they are until the next epoch that is counted.
 * @param {[number, number][]} points @param {(epoch: number) => number} place @param {number} last
 */
export function path(points, place, last) {
  const { height, top, bottom } = CHART;
  const most = Math.max(1, ...points.map(([, rows]) => rows));
  const round = (/** @type {number} */ value) => Math.round(value * 10) / 10;
  return points.map(([epoch, rows], i) => {
    const x = round(across(place(epoch), last));
    const y = round(height - bottom - ((height - top - bottom) * Math.max(0, rows)) / most);
    return i ? `H${x}V${y}` : `M${x} ${y}`;
  }).join("");
}

/** What the picture shows, in words. @param {Course} course */
export function told({ points, every }) {
  if (!points.length) return "";
  const rows = points.map(([, count]) => count);
  const say = (/** @type {number} */ count) => count.toLocaleString("en");
  const coarse = every > 1 ? `, one of ${every} epochs` : "";
  return `rows over epochs${coarse}: ${say(rows[0])} at epoch ${points[0][0]}, ` +
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

